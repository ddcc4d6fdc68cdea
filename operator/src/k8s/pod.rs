//! The pod of an instance: one init container that brings the binary, one container that runs PostgreSQL under it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector,
        PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements,
        SeccompProfile, SecurityContext, VolumeMount, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use operator_core::names::{DIR_BIN, PORT_INSTANCE, PORT_POSTGRES};

use super::{
    Cluster,
    config::POSTGRES_ID,
    network::{PORT_NAME_INSTANCE, PORT_NAME_POSTGRES},
};
use crate::api::v1alpha1::Spread;

mod volumes;

/// The container with PostgreSQL.
pub const CONTAINER_POSTGRES: &str = "postgres";
/// The container that leaves the operator's binary for the other one.
pub const CONTAINER_INSTALL: &str = "install";

/// How long a fast stop may take before the kubelet kills the container, in seconds.
const GRACE_SECONDS: i64 = 60;

/// The template of every pod of the cluster.
#[must_use]
pub fn template(cluster: &Cluster) -> PodTemplateSpec {
    let scheduling = &cluster.spec.scheduling;
    let spec = PodSpec {
        init_containers: Some(vec![install(cluster)]),
        containers: vec![postgres(cluster)],
        volumes: Some(volumes::volumes(cluster)),
        service_account_name: Some(cluster.name.to_string()),
        automount_service_account_token: Some(true),
        // Variables for every Service of the namespace would be noise in Postgres' environment.
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(pod_security()),
        image_pull_secrets: non_empty(cluster.spec.image_pull_secrets.clone()),
        node_selector: Some(scheduling.node_selector.clone()).filter(|selector| !selector.is_empty()),
        tolerations: non_empty(scheduling.tolerations.clone()),
        priority_class_name: scheduling.priority_class_name.clone(),
        affinity: Some(affinity(cluster)),
        ..PodSpec::default()
    };
    let metadata = ObjectMeta {
        labels: Some(cluster.labels()),
        annotations: Some(
            [("kubectl.kubernetes.io/default-container".to_owned(), CONTAINER_POSTGRES.to_owned())].into(),
        ),
        ..ObjectMeta::default()
    };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

fn install(cluster: &Cluster) -> Container {
    Container {
        name: CONTAINER_INSTALL.to_owned(),
        image: Some(cluster.operator_image.clone()),
        args: Some(vec!["install".to_owned(), "--to".to_owned(), DIR_BIN.to_owned()]),
        volume_mounts: Some(vec![VolumeMount {
            name: volumes::BIN.to_owned(),
            mount_path: DIR_BIN.to_owned(),
            ..VolumeMount::default()
        }]),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(&[("cpu", "10m"), ("memory", "16Mi")])),
            ..ResourceRequirements::default()
        }),
        security_context: Some(container_security()),
        ..Container::default()
    }
}

fn postgres(cluster: &Cluster) -> Container {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    Container {
        name: CONTAINER_POSTGRES.to_owned(),
        image: Some(cluster.image.clone()),
        command: Some(vec![format!("{DIR_BIN}/postgres-operator")]),
        args: Some(vec!["instance".to_owned()]),
        env: Some(environment(cluster)),
        ports: Some(vec![port(PORT_NAME_POSTGRES, PORT_POSTGRES), port(PORT_NAME_INSTANCE, PORT_INSTANCE)]),
        // While the manager starts it has all the time it needs; afterwards it has to answer.
        startup_probe: Some(probe("/healthz", 1, 60)),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 1, 3)),
        resources: Some(resources(cluster)),
        security_context: Some(container_security()),
        volume_mounts: Some(volumes::mounts(cluster)),
        ..Container::default()
    }
}

fn environment(cluster: &Cluster) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: path.to_owned() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    vec![
        EnvVar { name: "CLUSTER_NAME".to_owned(), value: Some(cluster.name.to_string()), ..EnvVar::default() },
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
    ]
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(PORT_NAME_INSTANCE.to_owned()),
            scheme: Some("HTTPS".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned()))).collect()
}

/// What the user asks for. A request that is missing is ours, unless a limit of the user's stands in for it.
fn resources(cluster: &Cluster) -> ResourceRequirements {
    let wish = &cluster.spec.resources;
    let mut requests = wish.requests.clone();
    for (name, value) in quantities(&[("cpu", "100m"), ("memory", "256Mi")]) {
        if !wish.limits.contains_key(&name) {
            requests.entry(name).or_insert(value);
        }
    }
    let some = |map: BTreeMap<String, Quantity>| Some(map).filter(|map| !map.is_empty());
    ResourceRequirements { requests: some(requests), limits: some(wish.limits.clone()), claims: None }
}

fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_user: Some(POSTGRES_ID),
        run_as_group: Some(POSTGRES_ID),
        run_as_non_root: Some(true),
        fs_group: Some(POSTGRES_ID),
        // Otherwise each start would walk the whole data directory.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(seccomp()),
        ..PodSecurityContext::default()
    }
}

fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        seccomp_profile: Some(seccomp()),
        ..SecurityContext::default()
    }
}

fn seccomp() -> SeccompProfile {
    SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }
}

fn affinity(cluster: &Cluster) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some(cluster.selector()), ..LabelSelector::default() }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    let anti = match cluster.spec.scheduling.spread {
        Spread::Preferred => PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: term,
            }]),
            ..PodAntiAffinity::default()
        },
        Spread::Required => PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![term]),
            ..PodAntiAffinity::default()
        },
    };
    Affinity { pod_anti_affinity: Some(anti), ..Affinity::default() }
}
