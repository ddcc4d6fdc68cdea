//! The StatefulSet and the claims of its volumes.

use k8s_openapi::{
    api::{
        apps::v1::{
            StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
        },
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
    },
};

use super::{Cluster, Shape, meta, pod};
use crate::api::v1alpha1::ReclaimPolicy;

/// Claim template of the data volume; a pod's claim is called `data-<pod>`.
pub const CLAIM_DATA: &str = "data";
/// Claim template of the write-ahead log's volume.
pub const CLAIM_WAL: &str = "wal";

/// The StatefulSet: Kubernetes restarts containers and makes pods, the operator says when a pod is replaced.
#[must_use]
pub fn stateful_set(cluster: &Cluster, shape: &Shape) -> StatefulSet {
    let spec = StatefulSetSpec {
        replicas: Some(i32::try_from(shape.replicas).unwrap_or(i32::MAX)),
        service_name: Some(cluster.name.pods_service()),
        // All at once: no instance waits for another one's readiness, neither at the start nor after an outage.
        pod_management_policy: Some("Parallel".to_owned()),
        update_strategy: Some(StatefulSetUpdateStrategy { type_: Some("OnDelete".to_owned()), rolling_update: None }),
        selector: LabelSelector { match_labels: Some(cluster.selector()), ..LabelSelector::default() },
        template: pod::template(cluster),
        volume_claim_templates: Some(claims(cluster, shape)),
        persistent_volume_claim_retention_policy: Some(retention(cluster.spec.storage.reclaim_policy)),
        revision_history_limit: Some(2),
        ..StatefulSetSpec::default()
    };
    StatefulSet { metadata: meta(cluster, cluster.name.to_string()), spec: Some(spec), ..StatefulSet::default() }
}

fn retention(policy: ReclaimPolicy) -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let text = match policy {
        ReclaimPolicy::Retain => "Retain",
        ReclaimPolicy::Delete => "Delete",
    };
    StatefulSetPersistentVolumeClaimRetentionPolicy {
        when_deleted: Some(text.to_owned()),
        when_scaled: Some(text.to_owned()),
    }
}

fn claims(cluster: &Cluster, shape: &Shape) -> Vec<PersistentVolumeClaim> {
    let storage = &cluster.spec.storage;
    let size = |name: &str, wanted: &Quantity| shape.sizes.get(name).unwrap_or(wanted).clone();
    let mut claims =
        vec![claim(cluster, CLAIM_DATA, size(CLAIM_DATA, &storage.size), storage.storage_class_name.clone())];
    if let Some(wal) = &storage.wal {
        claims.push(claim(cluster, CLAIM_WAL, size(CLAIM_WAL, &wal.size), wal.storage_class_name.clone()));
    }
    claims
}

fn claim(cluster: &Cluster, name: &str, size: Quantity, class: Option<String>) -> PersistentVolumeClaim {
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), size)].into()),
            limits: None,
        }),
        storage_class_name: class,
        ..PersistentVolumeClaimSpec::default()
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(cluster.labels()), ..ObjectMeta::default() };
    PersistentVolumeClaim { metadata, spec: Some(spec), status: None }
}
