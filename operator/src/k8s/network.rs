//! How clients find the instances, and how many of them a drain may take.

use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use operator_core::names::{LABEL_ROLE, PORT_INSTANCE, PORT_POSTGRES, ROLE_PRIMARY, ROLE_STANDBY};

use super::{Cluster, meta};

/// Name of PostgreSQL's port in pods and Services.
pub const PORT_NAME_POSTGRES: &str = "postgres";
/// Name of the instance manager's port.
pub const PORT_NAME_INSTANCE: &str = "instance";

/// Headless, read-write, read-only and any-instance Service.
#[must_use]
pub fn services(cluster: &Cluster) -> Vec<Service> {
    let name = &cluster.name;
    vec![
        pods_service(cluster),
        service(cluster, name.rw_service(), Some(ROLE_PRIMARY)),
        service(cluster, name.ro_service(), Some(ROLE_STANDBY)),
        service(cluster, name.r_service(), None),
    ]
}

fn service(cluster: &Cluster, name: String, role: Option<&str>) -> Service {
    let mut selector = cluster.selector();
    selector.extend(role.map(|role| (LABEL_ROLE.to_owned(), role.to_owned())));
    let spec = ServiceSpec {
        type_: Some("ClusterIP".to_owned()),
        selector: Some(selector),
        ports: Some(vec![port(PORT_NAME_POSTGRES, PORT_POSTGRES)]),
        ..ServiceSpec::default()
    };
    Service { metadata: meta(cluster, name), spec: Some(spec), ..Service::default() }
}

/// Gives the pods their names. Also for pods that aren't ready: a standby being copied is already somebody.
fn pods_service(cluster: &Cluster) -> Service {
    let spec = ServiceSpec {
        type_: Some("ClusterIP".to_owned()),
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        selector: Some(cluster.selector()),
        ports: Some(vec![port(PORT_NAME_POSTGRES, PORT_POSTGRES), port(PORT_NAME_INSTANCE, PORT_INSTANCE)]),
        ..ServiceSpec::default()
    };
    Service { metadata: meta(cluster, cluster.name.pods_service()), spec: Some(spec), ..Service::default() }
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}

/// One instance at a time; also of a cluster of one, or its node could never be drained.
#[must_use]
pub fn disruption_budget(cluster: &Cluster) -> PodDisruptionBudget {
    let spec = PodDisruptionBudgetSpec {
        max_unavailable: Some(IntOrString::Int(1)),
        selector: Some(LabelSelector { match_labels: Some(cluster.selector()), ..LabelSelector::default() }),
        // A pod that isn't ready serves nobody; keeping it would only block the drain.
        unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
        ..PodDisruptionBudgetSpec::default()
    };
    PodDisruptionBudget {
        metadata: meta(cluster, cluster.name.to_string()),
        spec: Some(spec),
        ..PodDisruptionBudget::default()
    }
}
