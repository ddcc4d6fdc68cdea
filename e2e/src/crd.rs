//! Installing the custom resources.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use postgres_operator::api::PostgresCluster;

use crate::wait::{Look, until};

/// The CRD as the operator's code says it.
#[must_use]
pub fn postgres_cluster() -> CustomResourceDefinition {
    PostgresCluster::crd()
}

/// Creates a CRD, unless it is there, and waits until its resources can be listed.
///
/// # Errors
/// The API server refuses it, or doesn't serve it within 30 s.
pub async fn install(client: &Client, crd: &CustomResourceDefinition) -> Result<ApiResource> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    match api.create(&PostParams::default(), crd).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        answer => {
            answer.context("creating the CRD")?;
        }
    }
    let version = crd.spec.versions.first().context("the CRD has no version")?;
    let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural);
    let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let look = || async {
        objects.list(&ListParams::default().limit(1)).await?;
        Ok(Look::Done(()))
    };
    until("the API server serves the CRD", Duration::from_secs(30), look).await?;
    Ok(resource)
}
