//! Volumes that are to grow: the claims are told, the templates of a StatefulSet can't be.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use operator_core::names::MANAGER;

use super::{
    context::Context,
    error::{Error, deadline},
    problems::Problem,
};
use crate::{
    api::conditions::EXPANSION_REFUSED,
    k8s::{
        Cluster, quantity,
        workload::{CLAIM_DATA, CLAIM_WAL},
    },
};

/// A claim that is to ask for more.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Name of the claim.
    pub claim: String,
    /// Size it shall ask for.
    pub size: Quantity,
}

/// What is to be done about the volumes, and what is under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes {
    /// Claims that ask for less than the spec.
    pub grow: Vec<Growth>,
    /// Claims whose volume isn't as large yet as they ask for.
    pub growing: Vec<String>,
}

/// Compares the claims with the spec. A claim that isn't bound can't be changed; it is looked at again when it is.
#[must_use]
pub fn volumes(cluster: &Cluster, claims: &[PersistentVolumeClaim]) -> Volumes {
    let mut result = Volumes::default();
    for claim in claims {
        let name = claim.name_any();
        let Some(wanted) = wanted(cluster, &name) else { continue };
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let (Some(asked), true) = (requested(claim), bound) else { continue };
        let bytes = |size: &Quantity| quantity::bytes(&size.0).ok();
        if bytes(asked) < bytes(wanted) {
            result.grow.push(Growth { claim: name, size: wanted.clone() });
        } else if capacity(claim).is_some_and(|have| bytes(have) < bytes(asked)) {
            result.growing.push(name);
        }
    }
    result
}

/// The size a claim shall have; `None` if it is none of an instance's.
fn wanted<'a>(cluster: &'a Cluster, claim: &str) -> Option<&'a Quantity> {
    let (kind, pod) = claim.split_once('-')?;
    cluster.name.ordinal(pod)?;
    match kind {
        CLAIM_DATA => Some(&cluster.spec.storage.size),
        CLAIM_WAL => cluster.spec.storage.wal.as_ref().map(|wal| &wal.size),
        _ => None,
    }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.status.as_ref()?.capacity.as_ref()?.get("storage")
}

/// Tells the claims. A storage class that doesn't allow it is a problem of its own, not an error: the rest goes on.
///
/// # Errors
/// The API server couldn't be reached.
pub async fn grow(ctx: &Context, cluster: &Cluster, volumes: &Volumes) -> Result<Vec<Problem>, Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let mut problems = Vec::new();
    for Growth { claim, size } in &volumes.grow {
        let patch = Patch::Merge(request(size));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let what = format!("growing PersistentVolumeClaim {claim} to {}", size.0);
        match deadline(what, api.patch(claim, &params, &patch)).await {
            Ok(_) => ctx.metrics.wrote("PersistentVolumeClaim", "patch"),
            Err(error) if error.is_not_found() => {}
            Err(error) if error.refusal().is_some() => {
                let text = format!("{error}; use a storage class with allowVolumeExpansion, or take the change back");
                problems.push(Problem::new(EXPANSION_REFUSED, text));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(problems)
}

fn request(size: &Quantity) -> PersistentVolumeClaim {
    let requests: BTreeMap<String, Quantity> = [("storage".to_owned(), size.clone())].into();
    let resources = VolumeResourceRequirements { requests: Some(requests), limits: None };
    let spec = PersistentVolumeClaimSpec { resources: Some(resources), ..PersistentVolumeClaimSpec::default() };
    PersistentVolumeClaim { spec: Some(spec), ..PersistentVolumeClaim::default() }
}
