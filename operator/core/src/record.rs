//! The succession record: who is primary, and who may follow.
//!
//! One Kubernetes Lease per cluster holds it and is changed only by compare-and-swap. This module
//! knows its content and its text form; the protocol around it is a matter of others.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::lsn::Timeline;

/// One member of a cluster: a pod **and** the data directory it holds.
///
/// The identity is minted with the data directory and is new after a clone or a rewind, so that a
/// pod with a new disk never votes for what its old disk promised. Printed as `orders-0.1a2b3c4d`,
/// which is also the member's `application_name` in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Name of the pod.
    pub pod: String,
    /// Identity of the data directory, eight hexadecimal digits.
    pub identity: u32,
}

/// The text names no member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no member: expected <pod>.<8 hexadecimal digits>")]
pub struct MemberError(String);

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.pod, self.identity)
    }
}

impl FromStr for Member {
    type Err = MemberError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || MemberError(text.to_owned());
        let (pod, digits) = text.rsplit_once('.').ok_or_else(error)?;
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if pod.is_empty() || digits.len() != 8 || !digits.bytes().all(lower_hex) {
            return Err(error());
        }
        let identity = u32::from_str_radix(digits, 16).map_err(|_| error())?;
        Ok(Self { pod: pod.to_owned(), identity })
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The record. `version` grows with every write; everything else may stay as it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Grows by at least one with every write.
    pub version: u64,
    /// Who is primary.
    pub holder: Member,
    /// Grows by one with every change of the holder. Starts at 1.
    pub epoch: u32,
    /// Which life of the holder wrote it: random, new at each start of its instance manager.
    pub incarnation: u64,
    /// The standbys that may succeed the holder; never the holder itself.
    pub names: BTreeSet<Member>,
    /// How many of `names` each acknowledged commit waits for. 0: asynchronous.
    pub acks: u32,
    /// The highest timeline number ever taken; 0 while the first data directory is being made.
    pub timeline: Timeline,
    /// PostgreSQL's system identifier; `None` while the first data directory is being made.
    pub system_id: Option<u64>,
}

/// The part of a [`Record`] that the annotation of the Lease holds.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Annotation {
    version: u64,
    incarnation: String,
    names: BTreeSet<Member>,
    acks: u32,
    timeline: Timeline,
    // A string: the number needs 64 bits, and many readers of JSON have 53.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_id: Option<String>,
}

/// The three fields of a Lease that hold a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFields {
    /// `spec.holderIdentity`
    pub holder_identity: String,
    /// `spec.leaseTransitions`
    pub lease_transitions: i32,
    /// The annotation [`crate::names::ANNOTATION_SUCCESSION`].
    pub annotation: String,
}

/// A Lease whose record can't be read: nobody may act on it, and nobody may overwrite it either.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// `holderIdentity` names no member.
    #[error("holderIdentity of the Lease: {0}")]
    Holder(#[from] MemberError),
    /// The annotation is not what this operator writes.
    #[error("the annotation db.example.com/succession can't be read: {0}")]
    Annotation(#[from] serde_json::Error),
    /// A field is out of its range or contradicts another.
    #[error("the succession record contradicts itself: {0}")]
    Contradiction(&'static str),
}

impl Record {
    /// The fields of the Lease that hold this record.
    ///
    /// # Errors
    /// Never for a record that [`Record::check`] accepts; JSON can't fail on these types.
    pub fn encode(&self) -> Result<LeaseFields, RecordError> {
        let annotation = Annotation {
            version: self.version,
            incarnation: format!("{:016x}", self.incarnation),
            names: self.names.clone(),
            acks: self.acks,
            timeline: self.timeline,
            system_id: self.system_id.map(|id| id.to_string()),
        };
        Ok(LeaseFields {
            holder_identity: self.holder.to_string(),
            lease_transitions: i32::try_from(self.epoch)
                .map_err(|_| RecordError::Contradiction("epoch is too large"))?,
            annotation: serde_json::to_string(&annotation)?,
        })
    }

    /// Reads a record back and checks it.
    ///
    /// # Errors
    /// Anything in it that this operator could not have written.
    pub fn decode(fields: &LeaseFields) -> Result<Self, RecordError> {
        let annotation: Annotation = serde_json::from_str(&fields.annotation)?;
        let system_id = match annotation.system_id {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| RecordError::Contradiction("systemId is no number"))?),
        };
        let record = Self {
            version: annotation.version,
            holder: fields.holder_identity.parse()?,
            epoch: u32::try_from(fields.lease_transitions)
                .map_err(|_| RecordError::Contradiction("leaseTransitions is negative"))?,
            incarnation: u64::from_str_radix(&annotation.incarnation, 16)
                .map_err(|_| RecordError::Contradiction("incarnation is no hexadecimal number"))?,
            names: annotation.names,
            acks: annotation.acks,
            timeline: annotation.timeline,
            system_id,
        };
        record.check()?;
        Ok(record)
    }

    /// What holds for every record.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), RecordError> {
        let broken = |what| Err(RecordError::Contradiction(what));
        if self.version == 0 || self.epoch == 0 {
            return broken("version and epoch start at 1");
        }
        if self.names.contains(&self.holder) {
            return broken("the holder is among its own successors");
        }
        if !self.names.is_empty() && self.names.len() < self.acks as usize {
            return broken("fewer successors than acknowledgements: no election could be safe");
        }
        if self.system_id.is_some() != (self.timeline > 0) {
            return broken("systemId and timeline are known together");
        }
        if self.system_id.is_none() && !self.names.is_empty() {
            return broken("successors of a data directory that does not exist yet");
        }
        Ok(())
    }

    /// True once the first data directory exists: from then on nobody may run `initdb`.
    #[must_use]
    pub fn initialised(&self) -> bool {
        self.system_id.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn member(text: &str) -> Member {
        text.parse().unwrap()
    }

    fn record() -> Record {
        Record {
            version: 7,
            holder: member("orders-1.00c0ffee"),
            epoch: 3,
            incarnation: u64::MAX,
            names: [member("orders-0.0000000a"), member("orders-2.0000000b")].into(),
            acks: 1,
            timeline: 3,
            system_id: Some(u64::MAX),
        }
    }

    #[test]
    fn round_trips_through_a_lease() {
        let fields = record().encode().unwrap();
        assert_eq!(fields.holder_identity, "orders-1.00c0ffee");
        assert_eq!(fields.lease_transitions, 3);
        assert_eq!(Record::decode(&fields).unwrap(), record());
    }

    #[rstest]
    #[case("orders-0")]
    #[case("orders-0.")]
    #[case(".00000000")]
    #[case("orders-0.0000000A")]
    #[case("orders-0.+0000000")]
    #[case("orders-0.000000000")]
    fn refuses_what_names_no_member(#[case] text: &str) {
        assert!(text.parse::<Member>().is_err());
    }

    #[rstest]
    #[case::own_successor(Record { names: [member("orders-1.00c0ffee")].into(), ..record() })]
    #[case::too_few_names(Record { acks: 3, ..record() })]
    #[case::no_version(Record { version: 0, ..record() })]
    #[case::no_epoch(Record { epoch: 0, ..record() })]
    #[case::no_system(Record { system_id: None, ..record() })]
    fn refuses_contradictions(#[case] record: Record) {
        assert!(matches!(record.check(), Err(RecordError::Contradiction(_))));
        assert!(Record::decode(&record.encode().unwrap()).is_err());
    }

    #[rstest]
    #[case::other_json("{}")]
    #[case::no_json("")]
    #[case::unknown_field(r#"{"version":1,"incarnation":"1","names":[],"acks":0,"timeline":1,"systemId":"1","x":1}"#)]
    fn refuses_text_it_did_not_write(#[case] annotation: &str) {
        let fields = LeaseFields { annotation: annotation.to_owned(), ..record().encode().unwrap() };
        assert!(matches!(Record::decode(&fields), Err(RecordError::Annotation(_))));
    }
}
