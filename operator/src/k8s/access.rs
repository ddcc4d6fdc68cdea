//! Who the instances are and what they may do: their own objects, by name.

use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
};
use kube::Resource;

use super::{Cluster, meta};
use crate::api::v1alpha1::REPLICAS_MAX;

/// Verbs an instance holds, by group and resource. The controller has to hold them too, or it could not grant them.
pub const INSTANCE_VERBS: &[(&str, &str, &[&str])] = &[
    ("", "configmaps", &["get", "list", "watch"]),
    ("", "pods", &["get", "patch"]),
    ("coordination.k8s.io", "leases", &["get", "list", "watch", "update", "patch"]),
];

/// Identity of the instances.
#[must_use]
pub fn service_account(cluster: &Cluster) -> ServiceAccount {
    ServiceAccount {
        metadata: meta(cluster, cluster.name.to_string()),
        // The pods ask for their token themselves; nothing else that names this account should get one by default.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// What the instances may do. Listing and watching by name needs the field selector `metadata.name=`.
#[must_use]
pub fn role(cluster: &Cluster) -> Role {
    let rules = INSTANCE_VERBS.iter().map(|(group, resource, verbs)| PolicyRule {
        api_groups: Some(vec![(*group).to_owned()]),
        resources: Some(vec![(*resource).to_owned()]),
        resource_names: Some(names(cluster, resource)),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    });
    Role { metadata: meta(cluster, cluster.name.to_string()), rules: Some(rules.collect()) }
}

fn names(cluster: &Cluster, resource: &str) -> Vec<String> {
    match resource {
        "configmaps" => vec![cluster.name.config_map()],
        // All ordinals there can be, so that scaling doesn't change what an instance may do.
        "pods" => (0..REPLICAS_MAX).map(|ordinal| cluster.name.pod(ordinal)).collect(),
        _ => vec![cluster.name.to_string()],
    }
}

/// Gives the role to the account.
#[must_use]
pub fn role_binding(cluster: &Cluster) -> RoleBinding {
    let name = cluster.name.to_string();
    RoleBinding {
        metadata: meta(cluster, name.clone()),
        role_ref: RoleRef {
            api_group: Role::group(&()).into_owned(),
            kind: Role::kind(&()).into_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: ServiceAccount::kind(&()).into_owned(),
            name,
            namespace: Some(cluster.namespace.clone()),
            ..Subject::default()
        }]),
    }
}
