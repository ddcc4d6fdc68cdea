//! Positions in the write-ahead log.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte position in the write-ahead log, printed as PostgreSQL prints it (`0/3000060`).
///
/// Comparable within one timeline only; use [`WalPosition`] across timelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// A timeline number: 1 after `initdb`, one more at each promotion.
pub type Timeline = u32;

/// The text is not an LSN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an LSN: expected two hexadecimal numbers such as 0/3000060")]
pub struct LsnError(String);

impl FromStr for Lsn {
    type Err = LsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || LsnError(text.to_owned());
        let (high, low) = text.split_once('/').ok_or_else(error)?;
        let part = |digits: &str| {
            // `from_str_radix` would take a sign, PostgreSQL never prints one.
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let high = part(high).ok_or_else(error)?;
        let low = part(low).ok_or_else(error)?;
        Ok(Self(u64::from(high) << 32 | u64::from(low)))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How far a log reaches: the timeline of its last record, then the end of it.
///
/// The order is the one candidates are compared by: a longer log on an older timeline is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WalPosition {
    /// Timeline of the last record.
    pub timeline: Timeline,
    /// End of the log.
    pub lsn: Lsn,
}

impl fmt::Display for WalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on timeline {}", self.lsn, self.timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("0/0", 0)]
    #[case("0/3000060", 0x300_0060)]
    #[case("16/B374D848", 0x16_B374_D848)]
    fn reads_what_postgres_prints(#[case] text: &str, #[case] value: u64) {
        assert_eq!(text.parse(), Ok(Lsn(value)));
        assert_eq!(Lsn(value).to_string(), text);
    }

    #[rstest]
    #[case("")]
    #[case("0")]
    #[case("/1")]
    #[case("0/")]
    #[case("0/+1")]
    #[case("0/1/2")]
    #[case("100000000/0")]
    fn refuses_other_text(#[case] text: &str) {
        assert!(text.parse::<Lsn>().is_err());
    }

    proptest! {
        #[test]
        fn round_trips(value: u64) {
            prop_assert_eq!(Lsn(value).to_string().parse(), Ok(Lsn(value)));
        }
    }

    #[test]
    fn an_older_timeline_is_behind_however_long_its_log() {
        let old = WalPosition { timeline: 1, lsn: Lsn(900) };
        let new = WalPosition { timeline: 2, lsn: Lsn(100) };
        assert!(old < new);
    }
}
