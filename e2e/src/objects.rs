//! Every object of a cluster, by the names of the API.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, PostParams},
};
use postgres_operator::api::{
    PostgresCluster, PostgresClusterSpec,
    v1alpha1::{ReclaimPolicy, StorageSpec},
};

use crate::wait::{until, when};

/// A kind of object and the suffixes of the cluster's name under which it exists.
pub struct Children {
    /// The kind.
    pub kind: ApiResource,
    /// Suffixes.
    pub suffixes: &'static [&'static str],
}

/// What the controller makes for every cluster.
#[must_use]
pub fn children() -> Vec<Children> {
    fn of<K: Resource<DynamicType = ()>>(suffixes: &'static [&'static str]) -> Children {
        Children { kind: ApiResource::erase::<K>(&()), suffixes }
    }
    vec![
        of::<StatefulSet>(&[""]),
        of::<Service>(&["-pods", "-rw", "-ro", "-r"]),
        of::<Secret>(&["-app", "-superuser", "-ca", "-server", "-replication"]),
        of::<ConfigMap>(&["-instance"]),
        of::<PodDisruptionBudget>(&[""]),
        of::<ServiceAccount>(&[""]),
        of::<Role>(&[""]),
        of::<RoleBinding>(&[""]),
        of::<Lease>(&[""]),
    ]
}

/// Names of the children that exist, as `Kind name`, with the object.
///
/// # Errors
/// The API server doesn't answer.
pub async fn existing(client: &Client, namespace: &str, cluster: &str) -> Result<BTreeMap<String, DynamicObject>> {
    let mut found = BTreeMap::new();
    for children in children() {
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &children.kind);
        for suffix in children.suffixes {
            let name = format!("{cluster}{suffix}");
            if let Some(object) = api.get_opt(&name).await? {
                found.insert(format!("{} {name}", children.kind.kind), object);
            }
        }
    }
    Ok(found)
}

/// How many children a cluster has.
#[must_use]
pub fn count() -> usize {
    children().iter().map(|children| children.suffixes.len()).sum()
}

/// Checks that `object` belongs to `cluster` in the way that makes Kubernetes delete it with the cluster.
///
/// # Errors
/// It doesn't; the message says in what.
pub fn belongs(object: &DynamicObject, cluster: &PostgresCluster) -> Result<()> {
    let wanted = OwnerReference {
        api_version: PostgresCluster::api_version(&()).into_owned(),
        kind: PostgresCluster::kind(&()).into_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().context("a cluster without a uid")?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
    ensure!(owners == [wanted], "owner references {owners:?}");
    for label in [operator_core::names::LABEL_CLUSTER, "app.kubernetes.io/managed-by"] {
        ensure!(object.labels().contains_key(label), "no label {label}");
    }
    Ok(())
}

/// A cluster of the smallest kind: 17, 256 MiB per volume, deleted with its volumes.
#[must_use]
pub fn cluster(namespace: &str, name: &str, replicas: u32) -> PostgresCluster {
    let parameters = [("shared_buffers", "32MB"), ("max_connections", "40")];
    let mut spec = PostgresClusterSpec {
        replicas,
        version: "17".to_owned(),
        image: None,
        image_pull_secrets: Vec::new(),
        storage: StorageSpec {
            size: Quantity("1Gi".to_owned()),
            storage_class_name: None,
            wal: None,
            reclaim_policy: ReclaimPolicy::Delete,
        },
        postgresql: Default::default(),
        bootstrap: Default::default(),
        resources: Default::default(),
        scheduling: Default::default(),
    };
    spec.postgresql.parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
    PostgresCluster { metadata, spec, status: None }
}

/// Creates a namespace that must not exist.
///
/// # Errors
/// It exists, or the API server refuses.
pub async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    match Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(()),
        Err(error) => bail!("creating the namespace {name}: {error}"),
    }
}

/// Removes a namespace with everything in it.
///
/// # Errors
/// It isn't gone within 60 s.
pub async fn delete_namespace(client: &Client, name: &str) -> Result<()> {
    let api = Api::<Namespace>::all(client.clone());
    match api.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        answer => {
            answer?;
        }
    }
    let look = || async {
        let namespace = api.get_opt(name).await?;
        let conditions = namespace.as_ref().map(|namespace| namespace.status.clone());
        Ok(when(namespace.is_none(), conditions))
    };
    until(&format!("the namespace {name} is gone"), Duration::from_secs(60), look).await?;
    Ok(())
}

/// The condition of a type: `status reason: message`; empty if it isn't there.
#[must_use]
pub fn condition(cluster: &PostgresCluster, kind: &str) -> String {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition.type_ == kind);
    condition.map(|c| format!("{} {}: {}", c.status, c.reason, c.message)).unwrap_or_default()
}
