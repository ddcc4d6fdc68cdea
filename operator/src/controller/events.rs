//! Events: one for each transition, with the words of the condition.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta},
};
use kube::{Api, Resource, ResourceExt, api::PostParams};
use operator_core::names::MANAGER;

use super::{
    context::Context,
    error::{Error, deadline},
};
use crate::api::{
    PostgresCluster,
    conditions::{DEGRADED, READY},
};

/// Longest note the API server takes, in bytes.
const NOTE_MAX: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Somebody should look at it.
    pub warning: bool,
    /// Short reason, in CamelCase.
    pub reason: String,
    /// What happened, in a sentence.
    pub note: String,
    /// What was done, or which condition changed.
    pub action: String,
}

/// The transitions between two lists of conditions.
#[must_use]
pub fn transitions(before: &[Condition], after: &[Condition]) -> Vec<Happened> {
    after.iter().filter_map(|now| transition(before.iter().find(|old| old.type_ == now.type_), now)).collect()
}

fn transition(before: Option<&Condition>, now: &Condition) -> Option<Happened> {
    let met = now.status == "True";
    let changed = match before {
        Some(before) => (&before.status, &before.reason) != (&now.status, &now.reason),
        // A new cluster that isn't ready and not degraded is no news.
        None => met,
    };
    changed.then(|| Happened {
        warning: (now.type_ == DEGRADED && met) || (now.type_ == READY && !met),
        reason: now.reason.clone(),
        note: now.message.clone(),
        action: now.type_.clone(),
    })
}

/// Publishes an Event about a cluster.
///
/// # Errors
/// The API server couldn't be reached or refuses it.
pub async fn publish(ctx: &Context, resource: &PostgresCluster, happened: &Happened) -> Result<(), Error> {
    let now = (ctx.now)();
    let namespace = resource.namespace().unwrap_or_default();
    let event = event(resource, happened, MicroTime(now), &ctx.identity);
    let api: Api<Event> = Api::namespaced(ctx.client.clone(), &namespace);
    deadline(format!("publishing an Event about {}", resource.name_any()), api.create(&PostParams::default(), &event))
        .await?;
    ctx.metrics.wrote("Event", "create");
    Ok(())
}

fn event(resource: &PostgresCluster, happened: &Happened, now: MicroTime, identity: &str) -> Event {
    let mut note = happened.note.clone();
    while note.len() > NOTE_MAX {
        note.pop();
    }
    // Several in one reconciliation share the time, never the action and the reason.
    let name = format!("{}.{:x}.{}", resource.name_any(), now.0.as_nanosecond(), slug(happened));
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: resource.namespace(), ..ObjectMeta::default() },
        event_time: Some(now),
        action: Some(happened.action.clone()),
        reason: Some(happened.reason.clone()),
        note: Some(note),
        type_: Some(if happened.warning { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference { ..resource.object_ref(&()) }),
        reporting_controller: Some(format!("{MANAGER}.example.com")),
        reporting_instance: Some(identity.to_owned()),
        ..Event::default()
    }
}

fn slug(happened: &Happened) -> String {
    format!("{}.{}", happened.action, happened.reason).to_lowercase()
}
