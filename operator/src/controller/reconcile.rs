//! The driver: one pass over one cluster.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use operator_core::{
    instance::RecordView,
    names::MANAGER,
    rollout::{self, Rollout},
    scale::{self, Primary, Scale},
};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    apply::{apply, find},
    context::Context,
    duties,
    error::{Error, deadline},
    events::{self, Happened},
    observe::{Observed, observe},
    problems::{self, Problem},
    record::{Found, record},
    root::material,
    status::{Findings, Progress, status},
    volumes::{self, Volumes},
    watches::synced,
};
use crate::{
    api::{PostgresCluster, PostgresClusterStatus, conditions as reason},
    k8s::{self, Cluster, Shape, config::instance_config, secrets::Material},
};

/// How often a healthy cluster is looked at, besides watches.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The longest pause after an error, and between two looks at something that is under way.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Makes a cluster what its spec says, and says how it is.
///
/// # Errors
/// Whatever stopped it; it is tried again after a pause.
pub async fn reconcile(resource: Arc<PostgresCluster>, ctx: Arc<Context>) -> Result<Action, Error> {
    // An empty cache looks like an empty cluster.
    synced(&ctx.stores).await.map_err(|_| Error::NotSynced)?;
    let began = Instant::now();
    ctx.prune();
    if resource.meta().deletion_timestamp.is_some() {
        // Owner references do the work.
        return Ok(Action::await_change());
    }
    let before = last_status(&ctx, &resource);
    let mut findings = Findings::default();
    let outcome = work(&ctx, &resource, &before, &mut findings).await;
    if let Err(error) = &outcome {
        if error.is_namespace_leaving() {
            // The cluster is about to go as well; what is missing meanwhile is no news.
            return outcome.map(|()| Action::await_change());
        }
        explain(error, &mut findings);
    }
    let after = status(&findings, resource.meta().generation, &before, (ctx.now)());
    let reported = report(&ctx, &resource, &before, &after).await;
    let outcome = outcome.and(reported);
    ctx.metrics.reconciled(outcome.as_ref().err().map_or("success", Error::category), began.elapsed());
    outcome?;
    ctx.memory.with(&resource.uid().unwrap_or_default(), |memory| memory.failures = 0);
    Ok(Action::requeue(pause(&findings, &after, (ctx.now)())))
}

/// The steps. What they find is in `findings` also if one of them fails.
async fn work(
    ctx: &Context,
    resource: &PostgresCluster,
    before: &PostgresClusterStatus,
    findings: &mut Findings,
) -> Result<(), Error> {
    let cluster = match Cluster::check(resource, &ctx.images) {
        Ok(cluster) => cluster,
        Err(invalid) => {
            findings.problems.push(Problem::new(invalid.reason(), invalid.to_string()));
            return Ok(());
        }
    };
    let mut seen = observe(ctx, &cluster);
    let set = find(ctx, &ctx.stores.stateful_sets, &cluster.namespace, cluster.name.as_str()).await?;
    seen.stateful_set = set.map(|set| set.as_ref().clone());
    findings.seen = Some((cluster.clone(), seen.clone()));

    seen.record = match record(ctx, &cluster, before.system_id.is_some(), seen.stateful_set.is_some()).await? {
        Found::Record(view) => view,
        Found::Gone => RecordView::Missing,
        Found::OlderData(claims) => {
            findings.problems.push(older_data(&cluster, &claims));
            return Ok(());
        }
    };
    let material = material(ctx, &cluster).await?;
    ask(ctx, &cluster, &material, &mut seen).await;
    findings.problems = problems::problems(&cluster, &seen, (ctx.now)());
    findings.seen = Some((cluster.clone(), seen.clone()));

    let scale = scale::scale(cluster.spec.replicas, seen.replicas(), seen.primary(&cluster));
    findings.problems.extend(scale.held.map(|held| problems::held(&cluster, held, scale.replicas)));
    let shape = Shape { replicas: scale.replicas, sizes: seen.template_sizes() };
    apply(ctx, &cluster, k8s::build(&cluster, &material, &shape)).await?;

    let volumes = volumes::volumes(&cluster, &seen.claims);
    findings.problems.extend(volumes::grow(ctx, &cluster, &volumes).await?);
    for (pod, role) in duties::mislabelled(&seen) {
        duties::label(ctx, &cluster, &pod, role).await?;
    }
    let rollout = roll(ctx, resource, &cluster, &seen, &scale).await?;
    findings.progress = progress(&cluster, &seen, &scale, &volumes, rollout.as_ref(), before);
    Ok(())
}

/// Adds the instances' own words to what was observed.
async fn ask(ctx: &Context, cluster: &Cluster, material: &Material, seen: &mut Observed) {
    let addresses = seen.pods.iter().map(|instance| instance.address().filter(|_| instance.running())).collect();
    let answers = ctx.instances.ask(cluster, material, addresses).await;
    for (instance, answer) in seen.pods.iter_mut().zip(answers) {
        // An address may have passed to another pod meanwhile.
        instance.said = answer.filter(|said| said.pod == instance.name());
    }
}

/// Takes the next step of a rollout, if there is one.
async fn roll(
    ctx: &Context,
    resource: &PostgresCluster,
    cluster: &Cluster,
    seen: &Observed,
    scale: &Scale,
) -> Result<Option<Rollout>, Error> {
    let Some(pods) = seen.rollout() else { return Ok(None) };
    let primary = match seen.primary(cluster) {
        Primary::Ordinal(ordinal) => Some(ordinal),
        Primary::None | Primary::Unknown => None,
    };
    let step = rollout::next(&pods, scale.replicas, primary);
    if let Rollout::Replace { pod, reason } = &step
        && let Some(instance) = seen.pods.iter().find(|instance| instance.name() == *pod)
    {
        tracing::info!(pod, "replacing it: {reason}");
        duties::replace(ctx, cluster, instance).await?;
        let note = format!("{pod} is replaced: {reason}");
        let happened = Happened { warning: false, reason: "Replacing".to_owned(), note, action: "Replace".to_owned() };
        events::publish(ctx, resource, &happened).await?;
    }
    Ok(Some(step))
}

/// What is under way; the first thing that is not as it should be in the end.
fn progress(
    cluster: &Cluster,
    seen: &Observed,
    scale: &Scale,
    volumes: &Volumes,
    rollout: Option<&Rollout>,
    before: &PostgresClusterStatus,
) -> Option<Progress> {
    let wanted = scale.replicas;
    if !matches!(&seen.record, RecordView::Known(record) if record.initialised()) {
        return Some(Progress::new(reason::CREATING, "waiting for the first instance to make its data directory"));
    }
    let there = seen.pods.len();
    if seen.replicas() != Some(wanted) || there != wanted as usize {
        return Some(Progress::new(reason::SCALING, format!("{there} instances exist, {wanted} are wanted")));
    }
    match rollout {
        None => return Some(Progress::new(reason::ROLLING, "waiting for the StatefulSet to be looked at")),
        Some(Rollout::Wait(why)) => return Some(Progress::new(reason::ROLLING, why.clone())),
        Some(Rollout::Replace { pod, reason: why }) => {
            return Some(Progress::new(reason::ROLLING, format!("{pod} is replaced: {why}")));
        }
        Some(Rollout::Done) => {}
    }
    if let Some(instance) = seen.pods.iter().find(|instance| !instance.ready()) {
        let why = problems::not_ready(cluster, instance).unwrap_or_default();
        return Some(Progress::new(goes_on(before), format!("waiting for {}: {why}", instance.name())));
    }
    let hash = instance_config(cluster, wanted).hash();
    let behind = seen.pods.iter().find(|instance| {
        let said = instance.said.as_ref();
        // A refused configuration is a problem, not progress. One that can't be asked is not waited for.
        said.is_some_and(|said| said.config_error.is_none() && said.config_hash.as_ref() != Some(&hash))
    });
    if let Some(instance) = behind {
        let message = format!("waiting for {} to take over the configuration", instance.name());
        return Some(Progress::new(reason::CONFIGURING, message));
    }
    let growing = volumes.grow.iter().map(|growth| &growth.claim).chain(&volumes.growing).next()?;
    Some(Progress::new(reason::RESIZING, format!("waiting for the volume of {growing} to grow")))
}

/// Instances that aren't ready yet end what was begun; if nothing was, they come back from something.
fn goes_on(before: &PostgresClusterStatus) -> &'static str {
    let progressing = before.conditions.iter().find(|old| old.type_ == reason::PROGRESSING && old.status == "True");
    let begun = [reason::CREATING, reason::SCALING, reason::ROLLING];
    let same = begun.into_iter().find(|begun| progressing.is_some_and(|old| old.reason == *begun));
    same.unwrap_or(reason::RECOVERING)
}

fn older_data(cluster: &Cluster, claims: &[String]) -> Problem {
    Problem::new(
        reason::DATA_REFUSED,
        format!(
            "PersistentVolumeClaim {} is older than this cluster and may hold data, which would be overwritten; delete \
             it if the data is not needed, or choose another name than {}",
            claims.join(", "),
            cluster.name
        ),
    )
}

/// Puts an error into the words of a condition.
fn explain(error: &Error, findings: &mut Findings) {
    match error.refusal() {
        Some(reason) => findings.problems.insert(0, Problem::new(reason, error.to_string())),
        None => findings.progress = Some(Progress::new(reason::RETRYING, error.to_string())),
    }
}

/// The status as last written, or as the cache has it if that is newer: the cache may be behind our own writes.
fn last_status(ctx: &Context, resource: &PostgresCluster) -> PostgresClusterStatus {
    let cached = version(resource);
    let remembered = ctx.memory.with(&resource.uid().unwrap_or_default(), |memory| memory.status.clone());
    match remembered {
        Some((written, status)) if written > cached => status,
        _ => resource.status.clone().unwrap_or_default(),
    }
}

/// The resource version as a number: Kubernetes promises that they can be compared.
fn version(resource: &PostgresCluster) -> u64 {
    resource.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// A resource of which only the status is applied.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusOf<'a> {
    api_version: std::borrow::Cow<'static, str>,
    kind: std::borrow::Cow<'static, str>,
    status: &'a PostgresClusterStatus,
}

/// Writes the status and the Events of its transitions, if there is anything new.
async fn report(
    ctx: &Context,
    resource: &PostgresCluster,
    before: &PostgresClusterStatus,
    after: &PostgresClusterStatus,
) -> Result<(), Error> {
    if before == after {
        return Ok(());
    }
    let (name, namespace) = (resource.name_any(), resource.namespace().unwrap_or_default());
    let api: Api<PostgresCluster> = Api::namespaced(ctx.client.clone(), &namespace);
    let body =
        StatusOf { api_version: PostgresCluster::api_version(&()), kind: PostgresCluster::kind(&()), status: after };
    let params = PatchParams::apply(MANAGER).force();
    let what = format!("writing the status of {name}");
    let written = match deadline(what, api.patch_status(&name, &params, &Patch::Apply(&body))).await {
        // Deleted meanwhile: nobody is left to read it.
        Err(error) if error.is_not_found() => return Ok(()),
        written => written?,
    };
    ctx.metrics.wrote("PostgresCluster", "status");
    let uid = resource.uid().unwrap_or_default();
    ctx.memory.with(&uid, |memory| memory.status = Some((version(&written), after.clone())));
    for happened in events::transitions(&before.conditions, &after.conditions) {
        tracing::info!(reason = happened.reason, "{}: {}", happened.action, happened.note);
        events::publish(ctx, resource, &happened).await?;
    }
    Ok(())
}

/// When to look again if nothing happens: the longer something takes, the rarer.
fn pause(findings: &Findings, after: &PostgresClusterStatus, now: Timestamp) -> Duration {
    if findings.progress.is_none() && findings.problems.is_empty() {
        return LOOK_AGAIN;
    }
    let since = after.conditions.iter().filter(|c| c.status == "True" && c.type_ != reason::READY);
    let since = since.map(|condition| condition.last_transition_time.0).max().unwrap_or(now);
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or_default();
    Duration::from_secs(seconds / 4).clamp(Duration::from_secs(1), PAUSE_MAX)
}

/// What to do after an error: try again, after twice the pause each time.
pub fn on_error(resource: Arc<PostgresCluster>, error: &Error, ctx: Arc<Context>) -> Action {
    let failures = ctx.memory.with(&resource.uid().unwrap_or_default(), |memory| {
        memory.failures = memory.failures.saturating_add(1);
        memory.failures
    });
    let pause = back_off(failures);
    let seconds = pause.as_secs_f64();
    if matches!(error, Error::Leaving(_)) || error.is_namespace_leaving() {
        tracing::debug!("{error}; trying again in {seconds} s");
    } else {
        tracing::warn!("{error}; trying again in {seconds} s");
    }
    Action::requeue(pause)
}

/// Half a second after the first failure, twice as long after each further one, at most [`PAUSE_MAX`].
#[must_use]
pub fn back_off(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    Duration::from_millis(500).saturating_mul(doubled).min(PAUSE_MAX)
}
