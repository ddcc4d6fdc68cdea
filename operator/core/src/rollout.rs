//! Which pod is replaced next, when the template has changed or a parameter needs a restart.
//!
//! One at a time: a pod that serves nobody at once, so that a corrected spec recovers; the others only while everybody is
//! ready, standbys first, the primary last.

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its ordinal.
    pub ordinal: u32,
    /// It was made from an older template.
    pub stale: bool,
    /// It is ready.
    pub ready: bool,
    /// It is being deleted.
    pub leaving: bool,
    /// It is in the middle of something that would have to begin anew: copying, recovering. `None` if it couldn't be asked.
    pub busy: Option<bool>,
    /// Parameters that wait for a restart.
    pub pending_restart: Vec<String>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// Every pod is as it should be.
    Done,
    /// Something is to be replaced, but not now.
    Wait(String),
    /// Delete this pod; it comes back from the current template.
    Replace {
        /// Its name.
        pod: String,
        /// Why.
        reason: String,
    },
}

/// Decides. `wanted` pods are to be there; `primary` is the ordinal in the record, `None` if that is unknown.
#[must_use]
pub fn next(pods: &[Pod], wanted: u32, primary: Option<u32>) -> Rollout {
    let due = |pod: &&Pod| pod.stale || (pod.ready && !pod.pending_restart.is_empty());
    let mut candidates: Vec<&Pod> = pods.iter().filter(due).collect();
    // Standbys before the primary; of the standbys the highest ordinal first.
    candidates.sort_by_key(|pod| (Some(pod.ordinal) == primary, u32::MAX - pod.ordinal));
    let Some(first) = candidates.first() else {
        return Rollout::Done;
    };
    if let Some(leaving) = pods.iter().find(|pod| pod.leaving) {
        return Rollout::Wait(format!("waiting for {} to be replaced", leaving.name));
    }
    if let Some(pod) = candidates.iter().find(|pod| !pod.ready) {
        return match pod.busy {
            Some(true) => Rollout::Wait(format!("waiting for {} to finish what it began", pod.name)),
            // Unknown counts as idle: the pod serves nobody, and its data stays where it is.
            Some(false) | None => replace(pod, "it is not ready and was made from an older template"),
        };
    }
    let ready = pods.iter().filter(|pod| pod.ready && pod.ordinal < wanted).count();
    if ready < wanted as usize {
        return Rollout::Wait(format!("waiting for all instances to be ready before {} is replaced", first.name));
    }
    if primary.is_none() {
        return Rollout::Wait(format!("{} is to be replaced, but it is not known who is primary", first.name));
    }
    if first.stale {
        replace(first, "it was made from an older template")
    } else {
        replace(first, &format!("{} needs a restart", first.pending_restart.join(", ")))
    }
}

fn replace(pod: &Pod, reason: &str) -> Rollout {
    Rollout::Replace { pod: pod.name.clone(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// `0s!` is ordinal 0, stale and not ready; `p`: a parameter waits; `l`: leaving; `b`: busy; `?`: busy is unknown.
    fn pods(text: &str) -> Vec<Pod> {
        let parse = |word: &str| {
            let ordinal = word[..1].parse().unwrap();
            let has = |flag| word.contains(flag);
            Pod {
                name: format!("orders-{ordinal}"),
                ordinal,
                stale: has('s'),
                ready: !has('!'),
                leaving: has('l'),
                busy: if has('?') { None } else { Some(has('b')) },
                pending_restart: if has('p') { vec!["shared_buffers".to_owned()] } else { Vec::new() },
            }
        };
        text.split_whitespace().map(parse).collect()
    }

    fn outcome(text: &str, primary: Option<u32>) -> String {
        match next(&pods(text), 3, primary) {
            Rollout::Done => "done".to_owned(),
            Rollout::Wait(_) => "wait".to_owned(),
            Rollout::Replace { pod, .. } => pod.replace("orders-", ""),
        }
    }

    #[rstest]
    #[case::nothing("0 1 2", Some(0), "done")]
    #[case::not_ready_but_current("0 1 2!", Some(0), "done")]
    #[case::standbys_first("0s 1s 2s", Some(0), "2")]
    #[case::then_the_next("0s 1s 2", Some(0), "1")]
    #[case::primary_last("0s 1 2", Some(0), "0")]
    #[case::primary_is_the_highest("0s 1s 2s", Some(2), "1")]
    #[case::one_is_missing("0s 1s", Some(0), "wait")]
    #[case::one_is_not_ready("0s 1s 2!", Some(0), "wait")]
    #[case::one_is_leaving("0s 1s 2sl", Some(0), "wait")]
    #[case::nobody_knows_the_primary("0s 1s 2s", None, "wait")]
    #[case::broken_ones_at_once("0s 1s! 2s", Some(0), "1")]
    #[case::broken_without_primary("0s! 1s! 2s!", None, "2")]
    #[case::broken_standby_before_broken_primary("0s! 1s! 2", Some(0), "1")]
    #[case::copying("0 1s!b 2", Some(0), "wait")]
    #[case::cannot_be_asked("0 1s!? 2", Some(0), "1")]
    #[case::parameter("0p 1p 2p", Some(1), "2")]
    #[case::parameter_of_one_that_is_not_ready("0 1 2p!", Some(0), "done")]
    fn one_at_a_time(#[case] text: &str, #[case] primary: Option<u32>, #[case] expected: &str) {
        assert_eq!(outcome(text, primary), expected);
    }
}
