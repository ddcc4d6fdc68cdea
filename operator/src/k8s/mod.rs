//! The Kubernetes objects of one cluster, built by pure functions: no client, no clock.
//!
//! [`build()`] takes a validated [`Cluster`], the secrets it owns and what exists already, and returns every object in full.
//! Whether anything has to be written is decided elsewhere.

pub mod access;
pub mod certificates;
pub mod cluster;
pub mod config;
pub mod network;
pub mod pod;
pub mod quantity;
pub mod secrets;
pub mod workload;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};

pub use cluster::Cluster;

use self::secrets::Material;

/// Every object of a cluster that the controller keeps as it is. The Lease is not among them: it is made once and then
/// belongs to the instances.
#[derive(Clone, Debug)]
pub struct Objects {
    /// Identity of the instances.
    pub service_account: ServiceAccount,
    /// What the instances may do.
    pub role: Role,
    /// Gives the role to the account.
    pub role_binding: RoleBinding,
    /// The application's, the superuser's and the certificates' Secrets.
    pub secrets: Vec<Secret>,
    /// What the controller tells the instances.
    pub config_map: ConfigMap,
    /// Headless, read-write, read-only and any-instance Services.
    pub services: Vec<Service>,
    /// How many instances a drain may take.
    pub disruption_budget: PodDisruptionBudget,
    /// The pods and their volumes.
    pub stateful_set: StatefulSet,
}

/// What exists already and bounds what can be asked for.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many instances there shall be now. Differs from the wish while the primary is in the way of scaling down.
    pub replicas: u32,
    /// Sizes in the claim templates of the StatefulSet that exists, by name. Kubernetes doesn't let them change; growth
    /// goes to the claims.
    pub sizes: BTreeMap<String, Quantity>,
}

/// Builds every object of a cluster.
#[must_use]
pub fn build(cluster: &Cluster, material: &Material, shape: &Shape) -> Objects {
    Objects {
        service_account: access::service_account(cluster),
        role: access::role(cluster),
        role_binding: access::role_binding(cluster),
        secrets: secrets::secrets(cluster, material),
        config_map: config::config_map(cluster, shape.replicas),
        services: network::services(cluster),
        disruption_budget: network::disruption_budget(cluster),
        stateful_set: workload::stateful_set(cluster, shape),
    }
}

/// Metadata of an object of the cluster: named, labelled, owned.
#[must_use]
pub fn meta(cluster: &Cluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(cluster.labels()),
        owner_references: Some(vec![cluster.owner()]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
pub(crate) mod tests;
