//! The plain manifests: what `kubectl apply` needs to run the operator.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Namespace,
            ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
            ResourceRequirements, SeccompProfile, SecurityContext, ServiceAccount, WeightedPodAffinityTerm,
        },
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use operator_core::names::{MANAGER, PORT_METRICS, PORT_PROBES};

use super::{BundleError, rbac, yaml};

/// Namespace of the operator.
pub const NAMESPACE: &str = "postgres-operator-system";
/// Stands for the image in the manifests; whoever installs puts theirs in.
pub const IMAGE: &str = "postgres-operator:dev";
/// Majors for which an image can be configured.
const MAJORS: std::ops::RangeInclusive<u32> = crate::k8s::cluster::MAJORS;

/// Every document of the plain manifests, in the order they have to be applied.
///
/// # Errors
/// Something can't be rendered.
pub fn documents(crd: &CustomResourceDefinition) -> Result<Vec<String>, BundleError> {
    let account = ServiceAccount { metadata: meta(true), ..ServiceAccount::default() };
    Ok(vec![
        yaml(crd)?,
        yaml(&namespace())?,
        yaml(&account)?,
        yaml(&ClusterRole { metadata: meta(false), rules: Some(rbac::cluster_rules()), aggregation_rule: None })?,
        yaml(&ClusterRoleBinding {
            metadata: meta(false),
            role_ref: role_ref("ClusterRole"),
            subjects: Some(vec![subject()]),
        })?,
        yaml(&Role { metadata: meta(true), rules: Some(rbac::own_rules()) })?,
        yaml(&RoleBinding { metadata: meta(true), role_ref: role_ref("Role"), subjects: Some(vec![subject()]) })?,
        yaml(&deployment(&meta(true)))?,
    ])
}

fn labels() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", MANAGER), ("app.kubernetes.io/component", "controller")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn meta(namespaced: bool) -> ObjectMeta {
    ObjectMeta {
        name: Some(MANAGER.to_owned()),
        namespace: namespaced.then(|| NAMESPACE.to_owned()),
        labels: Some(labels()),
        ..ObjectMeta::default()
    }
}

fn namespace() -> Namespace {
    let mut labels = labels();
    labels.insert("pod-security.kubernetes.io/enforce".to_owned(), "restricted".to_owned());
    let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    Namespace { metadata, ..Namespace::default() }
}

fn role_ref(kind: &str) -> RoleRef {
    RoleRef { api_group: "rbac.authorization.k8s.io".to_owned(), kind: kind.to_owned(), name: MANAGER.to_owned() }
}

fn subject() -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: MANAGER.to_owned(),
        namespace: Some(NAMESPACE.to_owned()),
        ..Subject::default()
    }
}

fn deployment(meta: &ObjectMeta) -> Deployment {
    let selector = LabelSelector { match_labels: Some(labels()), ..LabelSelector::default() };
    let pod = PodSpec {
        service_account_name: Some(MANAGER.to_owned()),
        containers: vec![container()],
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(65532),
            run_as_group: Some(65532),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(10),
        // A second replica, if there is one, belongs on another node.
        affinity: Some(spread(&selector)),
        ..PodSpec::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels()), ..ObjectMeta::default() }),
        spec: Some(pod),
    };
    Deployment {
        metadata: meta.clone(),
        spec: Some(DeploymentSpec { replicas: Some(1), selector, template, ..DeploymentSpec::default() }),
        status: None,
    }
}

fn spread(selector: &LabelSelector) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(selector.clone()),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: term,
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container() -> Container {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        ..ContainerPort::default()
    };
    let probe = |path: &str| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("probes".to_owned()),
            ..HTTPGetAction::default()
        }),
        timeout_seconds: Some(5),
        ..Probe::default()
    };
    let quantities = |cpu: &str, memory: &str| {
        [("cpu", cpu), ("memory", memory)].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into()
    };
    Container {
        name: "controller".to_owned(),
        image: Some(IMAGE.to_owned()),
        args: Some(vec!["controller".to_owned()]),
        env: Some(environment()),
        ports: Some(vec![port("metrics", PORT_METRICS), port("probes", PORT_PROBES)]),
        liveness_probe: Some(probe("/healthz")),
        readiness_probe: Some(Probe { period_seconds: Some(2), ..probe("/readyz") }),
        resources: Some(ResourceRequirements {
            requests: Some(quantities("50m", "32Mi")),
            limits: Some([("memory".to_owned(), Quantity("256Mi".to_owned()))].into()),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

fn environment() -> Vec<EnvVar> {
    let value = |name: String, value: &str| EnvVar { name, value: Some(value.to_owned()), value_from: None };
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: None }),
            ..EnvVarSource::default()
        }),
        value: None,
    };
    let mut variables = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        value("OPERATOR_IMAGE".to_owned(), IMAGE),
        value("WATCH_NAMESPACES".to_owned(), ""),
    ];
    // Empty: a cluster of that version needs `spec.image`.
    variables.extend(MAJORS.map(|major| value(format!("POSTGRES_IMAGE_{major}"), "")));
    variables
}
