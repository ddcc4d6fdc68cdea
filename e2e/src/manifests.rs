//! Applying `bundle/plain/install.yaml`, the way a user installs the operator.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::EnvVar};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde::Deserialize;

use crate::{crd, env::repository};

/// Namespace of the operator.
pub const NAMESPACE: &str = "postgres-operator-system";
/// Name of the operator's Deployment and ServiceAccount.
pub const NAME: &str = "postgres-operator";

/// The objects of `bundle/plain/install.yaml`, in their order.
///
/// # Errors
/// The file can't be read or understood.
pub fn read() -> Result<Vec<DynamicObject>> {
    let path = repository().join("bundle/plain/install.yaml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} can't be read: run `make generate`", path.display()))?;
    let documents = serde_yaml::Deserializer::from_str(&text);
    let objects = documents.map(Option::<DynamicObject>::deserialize);
    Ok(objects
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| path.display().to_string())?
        .into_iter()
        .flatten()
        .collect())
}

/// Applies everything, and waits until the custom resource is served.
///
/// # Errors
/// The API server refuses an object.
pub async fn install(client: &Client) -> Result<()> {
    for object in read()? {
        let what = describe(&object);
        apply(client, &object).await.with_context(|| format!("applying {what}"))?;
        if what.starts_with("CustomResourceDefinition") {
            crd::install(client, &crd::postgres_cluster()).await?;
        }
    }
    Ok(())
}

fn describe(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
    format!("{kind} {}", object.metadata.name.as_deref().unwrap_or_default())
}

async fn apply(client: &Client, object: &DynamicObject) -> Result<()> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) = pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match (&capabilities.scope, &object.metadata.namespace) {
        (Scope::Namespaced, namespace) => {
            Api::namespaced_with(client.clone(), namespace.as_deref().unwrap_or("default"), &resource)
        }
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.as_deref().context("an object without a name")?;
    api.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await?;
    Ok(())
}

/// Installs the operator with this image and these variables in its Deployment.
///
/// # Errors
/// The API server refuses an object, or the manifests have no Deployment.
pub async fn deploy(client: &Client, image: &str, variables: &[(String, String)]) -> Result<()> {
    let mut deployed = false;
    for mut object in read()? {
        let what = describe(&object);
        if what == format!("Deployment {NAME}") {
            let mut deployment: Deployment = object.try_parse()?;
            configure(&mut deployment, image, variables)?;
            object = serde_json::from_value(serde_json::to_value(&deployment)?)?;
            deployed = true;
        }
        apply(client, &object).await.with_context(|| format!("applying {what}"))?;
        if what.starts_with("CustomResourceDefinition") {
            crd::install(client, &crd::postgres_cluster()).await?;
        }
    }
    ensure!(deployed, "the manifests have no Deployment {NAME}");
    Ok(())
}

fn configure(deployment: &mut Deployment, image: &str, variables: &[(String, String)]) -> Result<()> {
    let pod = deployment.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).context("no pod")?;
    let container = pod.containers.first_mut().context("no container")?;
    container.image = Some(image.to_owned());
    let environment = container.env.get_or_insert_default();
    for (name, value) in variables {
        environment.retain(|variable| variable.name != *name);
        environment.push(EnvVar { name: name.clone(), value: Some(value.clone()), value_from: None });
    }
    Ok(())
}
