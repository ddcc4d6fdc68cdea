//! Who this instance is: what the pod's environment says.

use std::net::IpAddr;

use clap::Args;
use operator_core::names::{ClusterName, ClusterNameError};

/// What the controller writes into the environment of the container.
#[derive(Args, Clone, Debug)]
pub struct InstanceArgs {
    /// Name of the cluster.
    #[arg(long, env = "CLUSTER_NAME")]
    pub cluster_name: String,
    /// Namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Name of the pod, `<cluster>-<ordinal>`.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// Address of the pod.
    #[arg(long, env = "POD_IP")]
    pub pod_ip: IpAddr,
}

/// The environment, understood.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the cluster.
    pub cluster: ClusterName,
    /// Namespace of cluster and pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Its ordinal.
    pub ordinal: u32,
    /// Random number of this life.
    pub incarnation: u64,
}

/// The environment makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The cluster's name.
    #[error("CLUSTER_NAME: {0}")]
    Cluster(#[from] ClusterNameError),
    /// The pod's name.
    #[error("POD_NAME {pod:?} is no pod of cluster {cluster}: expected {cluster}-<ordinal>")]
    Pod {
        /// What was given.
        pod: String,
        /// Name of the cluster.
        cluster: String,
    },
    /// No random number.
    #[error("reading a random number from the system: {0}")]
    Random(#[from] std::io::Error),
}

impl Identity {
    /// Checks the environment and begins a new life.
    ///
    /// # Errors
    /// The names don't fit together.
    pub fn new(args: &InstanceArgs) -> Result<Self, IdentityError> {
        let cluster = ClusterName::parse(&args.cluster_name)?;
        let pod = args.pod_name.clone();
        let Some(ordinal) = cluster.ordinal(&pod) else {
            return Err(IdentityError::Pod { pod, cluster: cluster.to_string() });
        };
        let incarnation = u64::from(super::disk::random_u32()?) << 32 | u64::from(super::disk::random_u32()?);
        Ok(Self { cluster, namespace: args.pod_namespace.clone(), pod, ordinal, incarnation })
    }

    /// The name that every server certificate of the cluster carries.
    #[must_use]
    pub fn tls_name(&self) -> String {
        self.cluster.tls_name(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("orders", "orders-2", Some(2))]
    #[case("orders", "payments-2", None)]
    #[case("Orders", "Orders-2", None)]
    fn names_have_to_fit(#[case] cluster: &str, #[case] pod: &str, #[case] ordinal: Option<u32>) {
        let args = InstanceArgs {
            cluster_name: cluster.to_owned(),
            pod_namespace: "shop".to_owned(),
            pod_name: pod.to_owned(),
            pod_ip: [10, 0, 0, 1].into(),
        };
        assert_eq!(Identity::new(&args).ok().map(|identity| identity.ordinal), ordinal);
    }
}
