//! What is done to pods: replaced one at a time, and labelled as they say they are.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use operator_core::{
    instance::RecordView,
    names::{LABEL_ROLE, MANAGER},
    status::Role,
};

use super::{
    context::Context,
    error::{Error, deadline},
    observe::{Instance, Observed},
    status::role_text,
};
use crate::k8s::Cluster;

/// Deletes a pod, which the StatefulSet then makes again; only the very pod that was looked at.
///
/// # Errors
/// The API server couldn't be reached or refuses.
pub async fn replace(ctx: &Context, cluster: &Cluster, instance: &Instance) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let name = instance.name();
    let uid = instance.pod.metadata.uid.clone();
    let params =
        DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::default() };
    match deadline(format!("deleting Pod {name}"), api.delete(&name, &params)).await {
        Ok(_) => ctx.metrics.wrote("Pod", "delete"),
        // Somebody else was faster.
        Err(error) if error.is_not_found() || error.is_conflict() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Pods whose label contradicts what their instance says of itself just now, and the label they should have. A pod is
/// labelled primary only if the record names it as well.
#[must_use]
pub fn mislabelled(seen: &Observed) -> Vec<(String, Role)> {
    let RecordView::Known(record) = &seen.record else { return Vec::new() };
    let wrong = |instance: &Instance| {
        let role = instance.said.as_ref()?.role?;
        let name = instance.name();
        let allowed = (role == Role::Primary) == (name == record.holder.pod);
        (allowed && instance.ready() && instance.role_label() != Some(role_text(role))).then_some((name, role))
    };
    seen.pods.iter().filter_map(wrong).collect()
}

/// Gives a pod its label back.
///
/// # Errors
/// The API server couldn't be reached or refuses.
pub async fn label(ctx: &Context, cluster: &Cluster, pod: &str, role: Role) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let labels: BTreeMap<String, String> = [(LABEL_ROLE.to_owned(), role_text(role).to_owned())].into();
    let patch = Pod { metadata: ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }, ..Pod::default() };
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match deadline(format!("labelling Pod {pod}"), api.patch_metadata(pod, &params, &Patch::Merge(&patch))).await {
        Ok(_) => ctx.metrics.wrote("Pod", "patch"),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
