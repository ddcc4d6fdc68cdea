//! What one instance does next, from what it sees.
//!
//! [`decide`] is the only place where an instance claims the record, makes or copies a data directory, starts PostgreSQL or
//! stops it. It knows no clock and no I/O. Whatever was not observed is a value of its own, and nothing is started,
//! overwritten or deleted because of it.

use std::{fmt, net::IpAddr};

use crate::{
    record::{Member, Record},
    status::Role,
};

/// How long any instance but the first leaves the empty record to ordinal 0, in milliseconds. Liveness only: whoever
/// wins the compare-and-swap makes the first data directory.
pub const CLAIM_PATIENCE_MS: u64 = 10_000;

/// What an instance sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Name of the own pod.
    pub pod: String,
    /// Its ordinal.
    pub ordinal: u32,
    /// Random number of this life of the instance manager.
    pub incarnation: u64,
    /// Milliseconds since this life began.
    pub age_ms: u64,
    /// Somebody asked the instance to end.
    pub stopping: bool,
    /// Major version the cluster wants.
    pub wanted_major: u32,
    /// Major version of the binaries in the image; `None` if they didn't answer.
    pub binaries_major: Option<u32>,
    /// The data volume.
    pub disk: Disk,
    /// The cluster's record.
    pub record: RecordView,
    /// Address of the holder's pod, if somebody else holds the record and the address is known.
    pub primary: Option<IpAddr>,
    /// PostgreSQL.
    pub server: Server,
    /// The primary has said that it no longer holds the log this standby needs.
    pub log_gone: bool,
}

/// The data volume of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    /// It could not be read; the text says why.
    Unknown(String),
    /// Another process holds the lock on the volume.
    Locked,
    /// No data directory. `member` is the identity minted for the one to come.
    Empty {
        /// Identity the next data directory will carry.
        member: Member,
    },
    /// A complete data directory.
    Data(DataDirectory),
}

/// A complete data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirectory {
    /// The identity this operator minted for it; `None` if it was never made by this operator.
    pub member: Option<Member>,
    /// System identifier this operator noted when it made the directory.
    pub noted_system: Option<u64>,
    /// System identifier in the directory's own control file; `None` if that can't be read.
    pub system_id: Option<u64>,
    /// Major version in `PG_VERSION`; `None` if that can't be read.
    pub major: Option<u32>,
    /// It is set up to follow a primary (`standby.signal`).
    pub follows: bool,
    /// Highest version of the record that this member has acted on.
    pub highest_version: u64,
    /// It can't follow the primary any more and shall be replaced by a new copy.
    pub outdated: bool,
}

/// What is known of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordView {
    /// Not read yet, or not readable just now.
    Unknown,
    /// The API server says that there is no Lease.
    Missing,
    /// A Lease nobody ever held.
    Empty,
    /// A Lease whose content can't be understood; the text says why.
    Unreadable(String),
    /// The record.
    Known(Record),
}

/// PostgreSQL as its supervisor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Not running.
    Stopped,
    /// Running, started in this role.
    Up(Role),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Change nothing; look again later.
    Wait,
    /// Change nothing until a person acts.
    Refuse,
    /// Write this record over the one seen, by compare-and-swap.
    Write(Record),
    /// Make the first data directory.
    Initialise,
    /// Copy the primary's data directory. One that is there stays until the copy is complete.
    Clone {
        /// Address of the primary.
        from: IpAddr,
        /// System identifier the copy must have.
        system_id: u64,
    },
    /// Start PostgreSQL.
    Start(Role),
    /// Note that the data directory of this standby has to be replaced by a new copy, and stop PostgreSQL.
    GiveUpCopy,
    /// Keep PostgreSQL running as it is.
    Keep,
    /// Stop PostgreSQL in an orderly way.
    Stop,
    /// Stop PostgreSQL at once: it must not acknowledge another write.
    Fence,
    /// End this process.
    Exit,
}

/// A step and why it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to do.
    pub step: Step,
    /// Why, in one sentence, for the log, the status and the Event.
    pub reason: String,
}

fn plan(step: Step, reason: impl fmt::Display) -> Plan {
    Plan { step, reason: reason.to_string() }
}

/// Decides the next step.
#[must_use]
pub fn decide(seen: &Observed) -> Plan {
    match (seen.stopping, seen.server) {
        (true, Server::Stopped) => plan(Step::Exit, "the pod is being stopped"),
        (true, Server::Up(_)) => plan(Step::Stop, "the pod is being stopped"),
        (false, Server::Up(role)) => while_running(seen, role),
        (false, Server::Stopped) => while_stopped(seen),
    }
}

/// A running server goes on unless the record says that somebody else is in its place.
fn while_running(seen: &Observed, role: Role) -> Plan {
    let RecordView::Known(record) = &seen.record else {
        return plan(Step::Keep, "the record can't be read just now; nothing changes because of that");
    };
    let mine = own_member(&seen.disk) == Some(&record.holder);
    match (role, mine) {
        (Role::Primary, true) if record.incarnation == seen.incarnation => {
            plan(Step::Keep, "this instance is the primary")
        }
        (Role::Primary, true) => plan(Step::Fence, "another life of this instance has taken the record over"),
        (Role::Primary, false) => plan(Step::Fence, format!("the record names {} as primary", record.holder)),
        (Role::Standby, false) if seen.log_gone && seen.primary.is_some() => plan(
            Step::GiveUpCopy,
            format!("{} no longer holds the log this standby needs; copying again", record.holder),
        ),
        (Role::Standby, false) => plan(Step::Keep, format!("this instance follows {}", record.holder)),
        (Role::Standby, true) => plan(Step::Keep, NOT_PROMOTED),
    }
}

fn while_stopped(seen: &Observed) -> Plan {
    let Some(binaries) = seen.binaries_major else {
        return plan(
            Step::Refuse,
            "the image has no working postgres binary; use an image of PostgreSQL with its binaries on the PATH",
        );
    };
    if binaries != seen.wanted_major {
        return plan(
            Step::Refuse,
            format!(
                "the image holds PostgreSQL {binaries}, spec.version asks for {}; correct spec.image or spec.version",
                seen.wanted_major
            ),
        );
    }
    match &seen.disk {
        Disk::Unknown(why) => plan(Step::Wait, format!("the data volume can't be read: {why}")),
        Disk::Locked => plan(Step::Wait, "another process still holds the lock on the data volume"),
        Disk::Empty { member } => without_data(seen, member),
        Disk::Data(data) => with_data(seen, data, binaries),
    }
}

fn own_member(disk: &Disk) -> Option<&Member> {
    match disk {
        Disk::Unknown(_) | Disk::Locked => None,
        Disk::Empty { member } => Some(member),
        Disk::Data(data) => data.member.as_ref(),
    }
}

fn without_data(seen: &Observed, member: &Member) -> Plan {
    let record = match &seen.record {
        RecordView::Unknown => return plan(Step::Wait, "the record of the cluster has not been read yet"),
        RecordView::Missing => return plan(Step::Wait, MISSING),
        RecordView::Unreadable(why) => {
            return plan(Step::Refuse, format!("the record of the cluster can't be understood: {why}"));
        }
        RecordView::Empty if seen.ordinal > 0 && seen.age_ms < CLAIM_PATIENCE_MS => {
            return plan(Step::Wait, "the first instance makes the first data directory");
        }
        RecordView::Empty => {
            return plan(Step::Write(first_record(seen, member)), "nobody has made the first data directory yet");
        }
        RecordView::Known(record) => record,
    };
    let same_pod = record.holder.pod == seen.pod;
    match (record.system_id, same_pod) {
        (None, true) if record.holder == *member && record.incarnation == seen.incarnation => {
            plan(Step::Initialise, "this instance holds the record and makes the first data directory")
        }
        (None, true) => plan(
            Step::Write(claim(record, member, seen.incarnation)),
            "this instance goes on making the first data directory",
        ),
        (None, false) => plan(Step::Wait, format!("{} makes the first data directory", record.holder.pod)),
        (Some(_), true) => plan(
            Step::Refuse,
            format!(
                "the record names {} as primary, but its data directory is gone from this volume; restore the volume",
                record.holder
            ),
        ),
        (Some(system_id), false) => match seen.primary {
            Some(from) => plan(
                Step::Clone { from, system_id },
                format!("there is no data directory yet; copying that of {}", record.holder),
            ),
            None => plan(Step::Wait, format!("the address of the primary {} is not known yet", record.holder.pod)),
        },
    }
}

/// Nothing in this operator names a standby as holder without its knowledge, so a person did.
const NOT_PROMOTED: &str = "the record names this standby as primary, but it was never promoted; put the name of the primary back into the Lease";

const MISSING: &str =
    "the Lease of the cluster does not exist; the controller makes it once, for a cluster that was never initialised";

fn with_data(seen: &Observed, data: &DataDirectory, binaries: u32) -> Plan {
    let (Some(member), Some(noted)) = (&data.member, data.noted_system) else {
        return plan(
            Step::Refuse,
            "the volume holds a data directory that this operator did not make; move it elsewhere or use an empty volume",
        );
    };
    let (Some(system_id), Some(major)) = (data.system_id, data.major) else {
        return plan(
            Step::Refuse,
            "the control file or PG_VERSION of the data directory can't be read; restore the volume",
        );
    };
    if major != binaries {
        return plan(
            Step::Refuse,
            format!("the data directory is of PostgreSQL {major}, the image holds {binaries}; use an image of {major}"),
        );
    }
    if member.pod != seen.pod {
        return plan(
            Step::Refuse,
            format!("the volume belongs to {}, not to this pod; attach the right volume", member.pod),
        );
    }
    if noted != system_id {
        return plan(Step::Refuse, "the data directory was exchanged since this operator made it; restore the volume");
    }
    match &seen.record {
        RecordView::Unknown => plan(Step::Wait, "the record of the cluster has not been read yet"),
        RecordView::Missing => plan(Step::Wait, MISSING),
        RecordView::Unreadable(why) => {
            plan(Step::Refuse, format!("the record of the cluster can't be understood: {why}"))
        }
        RecordView::Empty => plan(
            Step::Refuse,
            "the volume holds the data of an earlier cluster of this name; delete the volume claims if the data is not needed",
        ),
        RecordView::Known(record) => with_own_data(seen, data, member, record, system_id),
    }
}

fn with_own_data(seen: &Observed, data: &DataDirectory, member: &Member, record: &Record, system_id: u64) -> Plan {
    if record.version < data.highest_version {
        return plan(
            Step::Refuse,
            format!(
                "the record has version {}, this member has seen {}: it is an old copy",
                record.version, data.highest_version
            ),
        );
    }
    if record.system_id.is_some_and(|recorded| recorded != system_id) {
        return plan(
            Step::Refuse,
            "the volume holds the data of another cluster (system identifiers differ); delete its claim if the data is not needed",
        );
    }
    if record.holder != *member {
        return as_standby(seen, data, record);
    }
    if data.follows {
        return plan(Step::Refuse, NOT_PROMOTED);
    }
    if record.incarnation != seen.incarnation {
        let next = claim(record, member, seen.incarnation);
        return plan(Step::Write(next), "a new life of the primary writes the record before it acts");
    }
    if record.system_id.is_none() {
        let next = Record { version: record.version + 1, system_id: Some(system_id), timeline: 1, ..record.clone() };
        return plan(Step::Write(next), "the first data directory is complete");
    }
    plan(Step::Start(Role::Primary), "this instance holds the record")
}

fn as_standby(seen: &Observed, data: &DataDirectory, record: &Record) -> Plan {
    if !record.initialised() {
        return plan(
            Step::Refuse,
            "the volume holds data, but this cluster is only being made; delete its claim if the data is not needed",
        );
    }
    if record.holder.pod == seen.pod {
        return plan(
            Step::Refuse,
            format!(
                "the record names {} as primary, but the volume holds another data directory; restore the volume",
                record.holder
            ),
        );
    }
    if !data.follows {
        return plan(
            Step::Refuse,
            format!(
                "this instance was a primary and {} is one now; delete its volume claim and pod to copy again",
                record.holder
            ),
        );
    }
    let (Some(from), Some(system_id)) = (seen.primary, record.system_id) else {
        return plan(Step::Wait, format!("the address of the primary {} is not known yet", record.holder.pod));
    };
    if data.outdated {
        return plan(
            Step::Clone { from, system_id },
            format!("the log is gone from {}; copying it again beside the old copy", record.holder),
        );
    }
    plan(Step::Start(Role::Standby), format!("this instance follows {}", record.holder))
}

fn first_record(seen: &Observed, member: &Member) -> Record {
    Record {
        version: 1,
        holder: member.clone(),
        epoch: 1,
        incarnation: seen.incarnation,
        names: [].into(),
        acks: 0,
        timeline: 0,
        system_id: None,
    }
}

/// The record with the next version, held by `member` in this life. The epoch grows only with a change of the holder.
fn claim(record: &Record, member: &Member, incarnation: u64) -> Record {
    let epoch = record.epoch + u32::from(record.holder != *member);
    Record { version: record.version + 1, holder: member.clone(), epoch, incarnation, ..record.clone() }
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
