//! What the operator answers: the status, from what was seen and done. Pure, but for the time of a transition.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use operator_core::{instance::RecordView, names::LABEL_CLUSTER, status::Role};

use super::{
    observe::{Instance, Observed},
    problems::{Problem, not_ready},
};
use crate::{
    api::{
        PostgresClusterStatus,
        conditions::{self as reason, DEGRADED, PROGRESSING, READY},
        v1alpha1::InstanceSummary,
    },
    k8s::Cluster,
};

/// What the operator is about, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Reason of the condition.
    pub reason: &'static str,
    /// What it waits for.
    pub message: String,
}

impl Progress {
    /// A step under way.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What a reconciliation found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The cluster and what there is of it; `None` if the spec couldn't be used at all.
    pub seen: Option<(Cluster, Observed)>,
    /// What needs a person, the gravest first.
    pub problems: Vec<Problem>,
    /// What is under way.
    pub progress: Option<Progress>,
}

/// The status. What couldn't be seen this time stays as it was.
#[must_use]
pub fn status(
    findings: &Findings,
    generation: Option<i64>,
    before: &PostgresClusterStatus,
    now: Timestamp,
) -> PostgresClusterStatus {
    let mut status = PostgresClusterStatus { observed_generation: generation, ..before.clone() };
    let ready = match &findings.seen {
        Some((cluster, seen)) => {
            fill(&mut status, cluster, seen);
            ready(cluster, seen, &findings.problems)
        }
        None => (false, reason::BLOCKED, first(&findings.problems)),
    };
    let progressing = match &findings.progress {
        Some(Progress { reason, message }) => (true, *reason, message.clone()),
        None if findings.seen.is_none() => (false, reason::BLOCKED, first(&findings.problems)),
        None => (false, reason::SETTLED, "nothing is being changed".to_owned()),
    };
    let degraded = match findings.problems.first() {
        Some(problem) => (true, problem.reason, all(&findings.problems)),
        None => (false, reason::AS_EXPECTED, "nothing needs attention".to_owned()),
    };
    status.conditions = [(READY, ready), (PROGRESSING, progressing), (DEGRADED, degraded)]
        .into_iter()
        .map(|(kind, (met, reason, message))| condition(kind, met, reason, message, generation, before, now))
        .collect();
    status
}

fn first(problems: &[Problem]) -> String {
    problems.first().map(|problem| problem.message.clone()).unwrap_or_default()
}

fn all(problems: &[Problem]) -> String {
    let mut texts: Vec<&str> = Vec::new();
    for problem in problems {
        if !texts.contains(&problem.message.as_str()) {
            texts.push(&problem.message);
        }
    }
    texts.join("; ")
}

fn condition(
    kind: &str,
    met: bool,
    reason: &str,
    mut message: String,
    generation: Option<i64>,
    before: &PostgresClusterStatus,
    now: Timestamp,
) -> Condition {
    // The schema of a condition allows 32 KiB; nobody reads more than this.
    while message.len() > 4096 {
        message.pop();
    }
    let status = if met { "True" } else { "False" };
    let old = before.conditions.iter().find(|old| old.type_ == kind && old.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
    }
}

fn fill(status: &mut PostgresClusterStatus, cluster: &Cluster, seen: &Observed) {
    status.replicas = count(seen.pods.iter());
    status.ready_replicas = count(seen.pods.iter().filter(|instance| instance.ready()));
    status.selector = Some(format!("{LABEL_CLUSTER}={}", cluster.name));
    let primary = seen.serving_primary();
    status.primary = primary.map(Instance::name);
    if let RecordView::Known(record) = &seen.record
        && let Some(system_id) = record.system_id
    {
        status.system_id = Some(system_id.to_string());
        status.timeline = Some(record.timeline);
    }
    if let Some(version) = primary.and_then(|primary| primary.said.as_ref()?.version.clone()) {
        status.version = Some(version);
    }
    status.instances = seen.pods.iter().map(|instance| summary(cluster, instance)).collect();
}

fn count<'a>(pods: impl Iterator<Item = &'a Instance>) -> u32 {
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

fn summary(cluster: &Cluster, instance: &Instance) -> InstanceSummary {
    let said = instance.said.as_ref();
    let role = said.and_then(|said| said.role).map(role_text).or(instance.role_label());
    InstanceSummary {
        name: instance.name(),
        role: role.map(str::to_owned),
        ready: instance.ready(),
        timeline: said.and_then(|said| said.timeline),
        node: instance.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        reason: not_ready(cluster, instance),
    }
}

/// The label an instance of this role carries.
#[must_use]
pub fn role_text(role: Role) -> &'static str {
    match role {
        Role::Primary => operator_core::names::ROLE_PRIMARY,
        Role::Standby => operator_core::names::ROLE_STANDBY,
    }
}

fn ready(cluster: &Cluster, seen: &Observed, problems: &[Problem]) -> (bool, &'static str, String) {
    let wanted = cluster.spec.replicas;
    if seen.stateful_set.is_none() && !problems.is_empty() {
        return (false, reason::BLOCKED, first(problems));
    }
    let members: Vec<&Instance> = seen.pods.iter().filter(|instance| instance.ordinal < wanted).collect();
    let ready = count(members.iter().copied().filter(|instance| instance.ready()));
    if ready < wanted {
        let why = members
            .iter()
            .find_map(|instance| Some(format!(": {}: {}", instance.name(), not_ready(cluster, instance)?)));
        let message = format!("{ready} of {wanted} instances are ready{}", why.unwrap_or_default());
        return (false, reason::INSTANCES_NOT_READY, message);
    }
    if seen.serving_primary().is_none() {
        return (false, reason::NO_PRIMARY, "no instance accepts writes".to_owned());
    }
    (true, reason::RECONCILIATION_SUCCEEDED, reason::ready_message(wanted))
}
