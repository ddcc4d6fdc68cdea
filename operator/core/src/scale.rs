//! How many instances there shall be now, when a cluster is asked to shrink.
//!
//! A StatefulSet takes away its highest ordinals. Any of them may be the primary, and an unknown primary may be any of
//! them: then nothing is taken away.

/// What is known of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primary {
    /// The record couldn't be read, or names no pod of this cluster.
    Unknown,
    /// Nobody has ever been primary.
    None,
    /// The record names the pod of this ordinal.
    Ordinal(u32),
}

/// How many instances there shall be now, and why not as many as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Number of instances, ordinals from 0.
    pub replicas: u32,
    /// Why that isn't what was asked for.
    pub held: Option<Held>,
}

/// Why a cluster doesn't shrink as far as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The primary's ordinal would be taken away.
    PrimaryInTheWay(u32),
    /// It isn't known who is primary.
    PrimaryUnknown,
}

/// `current` is `None` while there is no StatefulSet.
#[must_use]
pub fn scale(wanted: u32, current: Option<u32>, primary: Primary) -> Scale {
    let Some(current) = current.filter(|current| *current > wanted) else {
        return Scale { replicas: wanted, held: None };
    };
    match primary {
        Primary::Ordinal(ordinal) if ordinal >= wanted => {
            // Those above the primary may go. One that is named but doesn't exist holds everything.
            let replicas = current.min(ordinal.saturating_add(1));
            Scale { replicas, held: Some(Held::PrimaryInTheWay(ordinal)) }
        }
        Primary::Ordinal(_) => Scale { replicas: wanted, held: None },
        Primary::None | Primary::Unknown => Scale { replicas: current, held: Some(Held::PrimaryUnknown) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::new(3, None, Primary::None, 3, None)]
    #[case::up(3, Some(1), Primary::Unknown, 3, None)]
    #[case::same(3, Some(3), Primary::Unknown, 3, None)]
    #[case::down(1, Some(3), Primary::Ordinal(0), 1, None)]
    #[case::all_the_way_held(1, Some(3), Primary::Ordinal(2), 3, Some(Held::PrimaryInTheWay(2)))]
    #[case::half_way(1, Some(3), Primary::Ordinal(1), 2, Some(Held::PrimaryInTheWay(1)))]
    #[case::nobody(1, Some(3), Primary::None, 3, Some(Held::PrimaryUnknown))]
    #[case::blind(1, Some(3), Primary::Unknown, 3, Some(Held::PrimaryUnknown))]
    #[case::absent_primary(1, Some(3), Primary::Ordinal(7), 3, Some(Held::PrimaryInTheWay(7)))]
    fn shrinks_only_around_the_primary(
        #[case] wanted: u32,
        #[case] current: Option<u32>,
        #[case] primary: Primary,
        #[case] replicas: u32,
        #[case] held: Option<Held>,
    ) {
        assert_eq!(scale(wanted, current, primary), Scale { replicas, held });
    }

    proptest! {
        #[test]
        fn the_primary_stays(wanted in 1_u32..9, current in 1_u32..9, primary in 0_u32..9) {
            prop_assume!(primary < current);
            let Scale { replicas, held } = scale(wanted, Some(current), Primary::Ordinal(primary));
            prop_assert!(replicas > primary);
            prop_assert!(replicas >= wanted);
            prop_assert_eq!(held.is_some(), replicas != wanted);
        }
    }
}
