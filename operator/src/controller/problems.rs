//! What needs a person, from what is seen: pure, one function per observation.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, PersistentVolumeClaim},
    jiff::Timestamp,
};
use operator_core::{
    instance::RecordView,
    scale::Held,
    status::{InstanceStatus, Phase},
};

use super::observe::{Instance, Observed};
use crate::{
    api::conditions as reason,
    k8s::{Cluster, cluster::version},
};

/// Something that needs a person, or works less well than asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of the condition.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Every problem that shows in the pods and the record, the gravest first.
#[must_use]
pub fn problems(cluster: &Cluster, seen: &Observed, now: Timestamp) -> Vec<Problem> {
    let mut problems: Vec<Problem> = record(cluster, &seen.record).into_iter().collect();
    for instance in &seen.pods {
        problems.extend(of_instance(cluster, instance));
        problems.extend(unscheduled(instance, &seen.claims, now));
    }
    problems.sort_by_key(|problem| rank(problem.reason));
    problems
}

/// Reasons from the gravest to the mildest. One that isn't listed comes first.
const RANKS: &[&str] = &[
    reason::RECORD_MISSING,
    reason::DATA_REFUSED,
    reason::VERSION_MISMATCH,
    reason::IMAGE_PULL_FAILED,
    reason::INSTANCE_CRASHING,
    reason::VOLUME_PENDING,
    reason::UNSCHEDULABLE,
    reason::PARAMETER_REFUSED,
    reason::EXPANSION_REFUSED,
    reason::PRIMARY_IN_THE_WAY,
];

fn rank(reason: &str) -> usize {
    RANKS.iter().position(|other| *other == reason).map_or(0, |place| place + 1)
}

fn record(cluster: &Cluster, record: &RecordView) -> Option<Problem> {
    let name = &cluster.name;
    match record {
        RecordView::Unreadable(why) => Some(Problem::new(
            reason::RECORD_MISSING,
            format!("Lease {name} names no primary that can be read ({why}); undo the change that somebody made to it"),
        )),
        RecordView::Missing => Some(Problem::new(
            reason::RECORD_MISSING,
            format!(
                "Lease {name}, the record of who is primary, is gone; running instances go on, but none starts; \
                 create it again from a copy"
            ),
        )),
        RecordView::Unknown | RecordView::Empty | RecordView::Known(_) => None,
    }
}

/// Why a cluster doesn't shrink as far as asked for.
#[must_use]
pub fn held(cluster: &Cluster, held: Held, replicas: u32) -> Problem {
    let wanted = cluster.spec.replicas;
    let message = match held {
        Held::PrimaryInTheWay(ordinal) => format!(
            "{} is the primary and would be removed by scaling to {wanted}; {replicas} instances stay. Set \
             spec.replicas to at least {}",
            cluster.name.pod(ordinal),
            ordinal.saturating_add(1)
        ),
        Held::PrimaryUnknown => {
            format!("it is not known who is primary, so nothing is removed; {replicas} instances stay")
        }
    };
    Problem::new(reason::PRIMARY_IN_THE_WAY, message)
}

fn of_instance(cluster: &Cluster, instance: &Instance) -> Vec<Problem> {
    let name = instance.name();
    let mut problems: Vec<Problem> = instance.containers().filter_map(|state| container(&name, state)).collect();
    let Some(said) = &instance.said else { return problems };
    if said.phase == Phase::Refused {
        let reason = if mismatch(cluster, said) { reason::VERSION_MISMATCH } else { reason::DATA_REFUSED };
        problems.push(Problem::new(reason, format!("{name} refuses to run: {}", said.reason)));
    } else if mismatch(cluster, said) {
        let have = said.version.as_deref().unwrap_or("another version");
        problems.push(Problem::new(
            reason::VERSION_MISMATCH,
            format!(
                "{name} runs PostgreSQL {have}, spec.version asks for {}; change spec.version or spec.image",
                cluster.spec.version
            ),
        ));
    }
    if let Some(error) = &said.config_error {
        problems.push(Problem::new(
            reason::PARAMETER_REFUSED,
            format!("{name} keeps the previous configuration, PostgreSQL refused the new one: {error}"),
        ));
    }
    problems
}

/// The binaries are of another version than the spec asks for. Unknown is no mismatch.
fn mismatch(cluster: &Cluster, said: &InstanceStatus) -> bool {
    let Some(have) = said.version.as_deref().map(|text| text.split_whitespace().next().unwrap_or_default()) else {
        return false;
    };
    match version(have) {
        Ok((major, minor)) => major != cluster.major || (cluster.minor.is_some() && cluster.minor != minor),
        // Not one this operator runs, so not the one that was asked for.
        Err(_) => true,
    }
}

fn container(pod: &str, status: &ContainerStatus) -> Option<Problem> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting.message.clone().unwrap_or_default();
    match waiting.reason.as_deref()? {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "RegistryUnavailable" => {
            let text = format!("{pod} can't pull {}: {message}", status.image);
            Some(Problem::new(reason::IMAGE_PULL_FAILED, text))
        }
        "CrashLoopBackOff" | "RunContainerError" | "CreateContainerError" | "CreateContainerConfigError" => {
            let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let code = last.map(|last| format!(", last exit code {}", last.exit_code)).unwrap_or_default();
            let text = format!("container {} of {pod} does not stay up{code}: {message}", status.name);
            Some(Problem::new(reason::INSTANCE_CRASHING, text))
        }
        _ => None,
    }
}

/// How long a pod may be without a node before that is worth a word: volumes take a moment, in seconds.
const PLACING_SECONDS: i64 = 10;

fn unscheduled(instance: &Instance, claims: &[PersistentVolumeClaim], now: Timestamp) -> Option<Problem> {
    let conditions = instance.pod.status.as_ref()?.conditions.as_ref()?;
    let placed = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let since = placed.last_transition_time.as_ref().map_or(now, |time| time.0);
    // Other reasons are the scheduler's own mishaps, which it tries again.
    let stuck = placed.status == "False" && placed.reason.as_deref() == Some("Unschedulable");
    if !stuck || now.as_second() - since.as_second() < PLACING_SECONDS {
        return None;
    }
    let message = placed.message.clone().unwrap_or_default();
    let text = message.to_lowercase();
    let volume =
        ["persistentvolumeclaim", "storageclass", "volume node affinity"].iter().any(|word| text.contains(word));
    let name = instance.name();
    if !volume {
        return Some(Problem::new(reason::UNSCHEDULABLE, format!("{name} can't be placed on a node: {message}")));
    }
    let waiting: Vec<String> = claims.iter().filter_map(|claim| pending(&name, claim)).collect();
    let text = format!("{name} can't be placed on a node: {message}; {}", waiting.join(", "));
    Some(Problem::new(reason::VOLUME_PENDING, text.trim_end_matches("; ")))
}

/// A claim of this pod that has no volume yet, with its storage class: the scheduler's own message names neither.
fn pending(pod: &str, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = claim.metadata.name.as_deref()?;
    let (_, owner) = name.split_once('-')?;
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if owner != pod || bound {
        return None;
    }
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let class = class.map_or_else(|| "the default storage class".to_owned(), |class| format!("storage class {class}"));
    Some(format!("PersistentVolumeClaim {name} waits for a volume of {class}"))
}

/// Why an instance isn't ready, in a sentence; `None` if it is.
#[must_use]
pub fn not_ready(cluster: &Cluster, instance: &Instance) -> Option<String> {
    if instance.ready() {
        return None;
    }
    if instance.leaving() {
        return Some("it is being deleted".to_owned());
    }
    if let Some(problem) = of_instance(cluster, instance).into_iter().next() {
        return Some(problem.message);
    }
    if let Some(said) = &instance.said {
        return Some(said.reason.clone());
    }
    if let Some((false, message)) = instance.condition("PodScheduled").filter(|(_, message)| !message.is_empty()) {
        return Some(format!("it waits for a node: {message}"));
    }
    let text = if instance.running() { "PostgreSQL is not ready yet" } else { "the pod is starting" };
    Some(text.to_owned())
}
