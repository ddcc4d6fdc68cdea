//! Makes objects be what they should be, and writes only what differs.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::reflector::{ObjectRef, Store},
};
use operator_core::names::MANAGER;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    context::Context,
    diff::{self, ANNOTATION_APPLIED},
    error::{Error, deadline},
};
use crate::k8s::{Cluster, Objects};

/// A kind of object that lives in a namespace and whose type is known.
pub trait Kept:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Kept for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Makes every object of a cluster be what it should be. The pods come last: what they need is there before them.
///
/// # Errors
/// The first object that couldn't be written.
pub async fn apply(ctx: &Context, cluster: &Cluster, objects: Objects) -> Result<(), Error> {
    // Without `..`, so that a new kind of object can't be forgotten here.
    let Objects { service_account, role, role_binding, secrets, config_map, services, disruption_budget, stateful_set } =
        objects;
    let stores = &ctx.stores;
    for secret in secrets {
        keep(ctx, cluster, &stores.secrets, secret).await?;
    }
    keep(ctx, cluster, &stores.config_maps, config_map).await?;
    keep(ctx, cluster, &stores.service_accounts, service_account).await?;
    keep(ctx, cluster, &stores.roles, role).await?;
    keep(ctx, cluster, &stores.role_bindings, role_binding).await?;
    for service in services {
        keep(ctx, cluster, &stores.services, service).await?;
    }
    keep(ctx, cluster, &stores.disruption_budgets, disruption_budget).await?;
    keep(ctx, cluster, &stores.stateful_sets, stateful_set).await
}

/// An object by name: from the cache, or from the API server if the cache doesn't have it (yet).
///
/// # Errors
/// The API server couldn't be asked.
pub async fn find<K: Kept>(
    ctx: &Context,
    store: &Store<K>,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<K>>, Error> {
    if let Some(object) = store.get(&ObjectRef::new(name).within(namespace)) {
        return Ok(Some(object));
    }
    let api: Api<K> = Api::namespaced(ctx.client.clone(), namespace);
    let found = deadline(format!("reading {}", label::<K>(name)), api.get_opt(name)).await?;
    Ok(found.map(|mut object| {
        diff::trim(object.meta_mut());
        Arc::new(object)
    }))
}

/// Kind and name, for messages.
fn label<K: Kept>(name: &str) -> String {
    format!("{} {name}", K::kind(&()))
}

/// Makes one object be what it should be. Nothing is written if it is.
///
/// # Errors
/// It belongs to somebody else, or couldn't be written.
pub async fn keep<K: Kept>(ctx: &Context, cluster: &Cluster, store: &Store<K>, desired: K) -> Result<(), Error> {
    let (name, namespace) = (desired.name_any(), &cluster.namespace);
    let label = label::<K>(&name);
    let desired = prepare(&label, desired)?;
    let live = find(ctx, store, namespace, &name).await?;
    if let Some(live) = &live {
        own(cluster, &label, live.meta())?;
        let accepted = ctx.memory.with(&cluster.uid, |memory| memory.accepted.get(&label).cloned());
        if accepted.is_some() && accepted == live.resource_version() {
            return Ok(());
        }
        match judge(&label, &desired.value, live.as_ref())? {
            None => return Ok(()),
            Some(finding) => tracing::info!(object = label, "bringing it back: {finding}"),
        }
    }
    write(ctx, cluster, &label, &desired).await
}

/// Creates an object, and fails if one of that name exists.
///
/// # Errors
/// It exists, or couldn't be written.
pub async fn create<K: Kept>(ctx: &Context, cluster: &Cluster, desired: K) -> Result<(), Error> {
    let label = label::<K>(&desired.name_any());
    let desired = prepare(&label, desired)?;
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    deadline(format!("creating {label}"), api.create(&params, &desired.object)).await?;
    ctx.metrics.wrote(&K::kind(&()), "create");
    Ok(())
}

/// An object as it is asked for, with the fingerprint of that.
struct Desired<K> {
    object: K,
    value: Value,
}

fn prepare<K: Kept>(label: &str, mut object: K) -> Result<Desired<K>, Error> {
    let fingerprint = diff::fingerprint(&to_value(label, &object)?);
    object.annotations_mut().insert(ANNOTATION_APPLIED.to_owned(), fingerprint);
    let value = to_value(label, &object)?;
    Ok(Desired { object, value })
}

fn to_value<K: Serialize>(label: &str, object: &K) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|error| Error::Json(label.to_owned(), error))
}

/// Refuses to touch what isn't this cluster's.
fn own(cluster: &Cluster, label: &str, meta: &ObjectMeta) -> Result<(), Error> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let ours = cluster.owner();
    match owner {
        Some(owner) if owner.uid == ours.uid => Ok(()),
        Some(owner) if owner.kind == ours.kind && owner.name == ours.name => Err(Error::Leaving(label.to_owned())),
        Some(_) => Err(Error::NameTaken(label.to_owned())),
        // Somebody took the reference away; the field owners still know that it is ours.
        None if meta.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(MANAGER)) => Ok(()),
        None => Err(Error::NameTaken(label.to_owned())),
    }
}

/// What is wrong with an object; `None` if nothing is.
fn judge<K: Kept>(label: &str, desired: &Value, live: &K) -> Result<Option<String>, Error> {
    let value = to_value(label, live)?;
    if let Some(path) = diff::difference(desired, &value) {
        return Ok(Some(format!("{path} differs")));
    }
    Ok(diff::foreign(desired, &value, live.meta()).map(|(manager, path)| format!("{manager} set {path}")))
}

/// Writes an object; by replacing it if applying leaves something of others in it.
async fn write<K: Kept>(ctx: &Context, cluster: &Cluster, label: &str, desired: &Desired<K>) -> Result<(), Error> {
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let name = desired.object.name_any();
    let params = PatchParams::apply(MANAGER).force();
    let applied =
        deadline(format!("applying {label}"), api.patch(&name, &params, &Patch::Apply(&desired.object))).await?;
    ctx.metrics.wrote(&K::kind(&()), "apply");
    let Some(finding) = remaining(label, &desired.value, &applied)? else {
        return Ok(());
    };
    tracing::info!(object = label, "replacing it, applying was not enough: {finding}");
    let mut object = desired.object.clone();
    *object.meta_mut() = merged(desired.object.meta(), applied.meta());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let replaced = deadline(format!("replacing {label}"), api.replace(&name, &params, &object)).await?;
    ctx.metrics.wrote(&K::kind(&()), "replace");
    if let Some(finding) = remaining(label, &desired.value, &replaced)? {
        // The server insists. Trying again at once would only repeat this; a later change of the object is looked at again.
        tracing::warn!(object = label, "it stays different: {finding}");
        let version = replaced.resource_version().unwrap_or_default();
        ctx.memory.with(&cluster.uid, |memory| memory.accepted.insert(label.to_owned(), version));
    }
    Ok(())
}

fn remaining<K: Kept>(label: &str, desired: &Value, live: &K) -> Result<Option<String>, Error> {
    let mut live = live.clone();
    diff::trim(live.meta_mut());
    judge(label, desired, &live)
}

/// Metadata for replacing an object: labels, annotations, owners and finalizers of others stay.
fn merged(desired: &ObjectMeta, live: &ObjectMeta) -> ObjectMeta {
    let mut meta = ObjectMeta { managed_fields: None, ..live.clone() };
    meta.labels.get_or_insert_default().extend(desired.labels.clone().unwrap_or_default());
    meta.annotations.get_or_insert_default().extend(desired.annotations.clone().unwrap_or_default());
    meta
}
