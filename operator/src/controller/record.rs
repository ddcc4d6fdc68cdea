//! The Lease with the succession record: made once, empty, for a cluster that never had one, and never written again.

use std::sync::Arc;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::PersistentVolumeClaim};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use operator_core::{instance::RecordView, names::MANAGER};

use super::{
    apply::find,
    context::Context,
    error::{Error, deadline},
};
use crate::{
    api::v1alpha1::REPLICAS_MAX,
    instance::kubernetes::record_of,
    k8s::{Cluster, meta, workload::CLAIM_DATA},
};

/// What there is of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The Lease exists, or was just made.
    Record(RecordView),
    /// There is none, and it must not be made: these volume claims are older than the cluster.
    OlderData(Vec<String>),
    /// There is none any more.
    Gone,
}

/// Reads the record, or makes the Lease for it. `initialised`: the status says that there has been a data directory.
///
/// # Errors
/// The API server couldn't be asked, or the Lease belongs to somebody else.
pub async fn record(ctx: &Context, cluster: &Cluster, initialised: bool, exists: bool) -> Result<Found, Error> {
    let name = cluster.name.as_str();
    if let Some(lease) = find(ctx, &ctx.stores.leases, &cluster.namespace, name).await? {
        return read(cluster, &lease);
    }
    // Pods without a record may hold data that another record speaks of. Only a cluster that never was may have a new one.
    if initialised || exists {
        return Ok(Found::Gone);
    }
    let older = data_claims(ctx, cluster).await?;
    if !older.is_empty() {
        return Ok(Found::OlderData(older));
    }
    let lease = Lease { metadata: meta(cluster, name.to_owned()), spec: None };
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let lease = deadline(format!("creating Lease {name}"), api.create(&params, &lease)).await?;
    ctx.metrics.wrote("Lease", "create");
    read(cluster, &Arc::new(lease))
}

fn read(cluster: &Cluster, lease: &Arc<Lease>) -> Result<Found, Error> {
    let label = || format!("Lease {}", cluster.name);
    match lease.owner_references().iter().find(|owner| owner.controller == Some(true)) {
        Some(owner) if owner.uid == cluster.uid => Ok(Found::Record(record_of(lease))),
        Some(owner) if owner.kind == cluster.owner().kind && owner.name == cluster.owner().name => {
            Err(Error::Leaving(label()))
        }
        // A record without an owner is still the record: taking away the reference must not end a cluster.
        None if lease.labels().contains_key(operator_core::names::LABEL_CLUSTER) => Ok(Found::Record(record_of(lease))),
        Some(_) | None => Err(Error::NameTaken(label())),
    }
}

/// Claims that instances of this cluster would use, whoever made them.
async fn data_claims(ctx: &Context, cluster: &Cluster) -> Result<Vec<String>, Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let what = format!("listing volume claims in namespace {}", cluster.namespace);
    let claims = deadline(what, api.list_metadata(&ListParams::default())).await?;
    let names: Vec<String> =
        (0..REPLICAS_MAX).map(|ordinal| format!("{CLAIM_DATA}-{}", cluster.name.pod(ordinal))).collect();
    let found = claims.items.iter().map(ResourceExt::name_any).filter(|name| names.contains(name));
    Ok(found.collect())
}
