//! The names shared by the controller, the instances and the harness. Each is written once, here.

use std::fmt;

/// API group of the custom resources.
pub const GROUP: &str = "db.example.com";
/// Field manager of every server-side apply of the controller.
pub const MANAGER: &str = "postgres-operator";
/// Lease of the controller's leader election.
pub const LEADER_LEASE: &str = "postgres-operator.example.com";

/// Label with the name of the cluster, on every object that belongs to one.
pub const LABEL_CLUSTER: &str = "db.example.com/cluster";
/// Label on pods: [`ROLE_PRIMARY`] or [`ROLE_STANDBY`]; absent until the instance knows.
pub const LABEL_ROLE: &str = "db.example.com/role";
/// Value of [`LABEL_ROLE`] the read-write Service selects.
pub const ROLE_PRIMARY: &str = "primary";
/// Value of [`LABEL_ROLE`] the read-only Service selects.
pub const ROLE_STANDBY: &str = "standby";
/// Annotation of the cluster's Lease that holds the succession record.
pub const ANNOTATION_SUCCESSION: &str = "db.example.com/succession";

/// Port of PostgreSQL.
pub const PORT_POSTGRES: u16 = 5432;
/// Port of the instance manager: probes, status, metrics, peers; TLS only.
pub const PORT_INSTANCE: u16 = 8443;
/// Port of the controller's metrics, plain HTTP.
pub const PORT_METRICS: u16 = 8080;
/// Port of the controller's probes, plain HTTP.
pub const PORT_PROBES: u16 = 8081;

/// The superuser's name.
pub const USER_SUPERUSER: &str = "postgres";
/// The role that standbys replicate as; common name of the replication certificate.
pub const USER_REPLICATION: &str = "streaming_replica";

/// Mount point of the data volume.
pub const DIR_DATA: &str = "/var/lib/postgresql/data";
/// The data directory, one level below the mount so that `lost+found` never meets `initdb`.
pub const DIR_PGDATA: &str = "/var/lib/postgresql/data/pgdata";
/// Mount point of the optional volume for the write-ahead log.
pub const DIR_WAL: &str = "/var/lib/postgresql/wal";
/// Unix sockets of PostgreSQL.
pub const DIR_RUN: &str = "/run/postgresql";
/// Where the `install` container leaves the binary.
pub const DIR_BIN: &str = "/opt/postgres-operator";
/// Mount of the cluster's ConfigMap; holds [`FILE_CONFIG`].
pub const DIR_CONFIG: &str = "/etc/postgres-operator/config";
/// Mount of the Secret with the server certificate: `tls.crt`, `tls.key`, `ca.crt`.
pub const DIR_TLS_SERVER: &str = "/etc/postgres-operator/server";
/// Mount of the Secret with the replication certificate: `tls.crt`, `tls.key`, `ca.crt`.
pub const DIR_TLS_REPLICATION: &str = "/etc/postgres-operator/replication";
/// Mount of the superuser's Secret: `username`, `password`.
pub const DIR_SUPERUSER: &str = "/etc/postgres-operator/superuser";
/// Mount of the application's Secret: `username`, `password`, `database`.
pub const DIR_APP: &str = "/etc/postgres-operator/app";
/// Key of the ConfigMap, and file in [`DIR_CONFIG`]: [`crate::config::InstanceConfig`] as JSON.
pub const FILE_CONFIG: &str = "instance.json";
/// Key of the ConfigMap mounted as `/etc/passwd`, so that any image knows the uid it runs as.
pub const FILE_PASSWD: &str = "passwd";

/// Longest name of a cluster. Its pods are called `<name>-<ordinal>`, and Kubernetes labels them
/// with `<name>-<10 characters of hash>`, which has to fit into 63 characters.
pub const CLUSTER_NAME_MAX: usize = 50;

/// The name of a cluster, known to be short enough for everything named after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

/// The name can't be a cluster's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterNameError {
    /// Longer than [`CLUSTER_NAME_MAX`].
    #[error("the name {0:?} has {1} characters; use at most {CLUSTER_NAME_MAX}, its pods are named after it")]
    TooLong(String, usize),
    /// Not a DNS label that starts with a letter.
    #[error("the name {0:?} is not a DNS label: use lower-case letters, digits and '-', starting with a letter")]
    NotALabel(String),
}

impl ClusterName {
    /// Parses the name of a resource.
    ///
    /// # Errors
    /// The name is too long, or no DNS label (Services are named after it).
    pub fn parse(name: &str) -> Result<Self, ClusterNameError> {
        if name.len() > CLUSTER_NAME_MAX {
            return Err(ClusterNameError::TooLong(name.to_owned(), name.len()));
        }
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let starts = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        let ends = name.bytes().last().is_some_and(|b| b != b'-');
        if !(starts && ends && name.bytes().all(inner)) {
            return Err(ClusterNameError::NotALabel(name.to_owned()));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name itself; also that of the StatefulSet, the Lease, the ServiceAccount, the Role and the PodDisruptionBudget.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Pod of an ordinal.
    #[must_use]
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{self}-{ordinal}")
    }

    /// Ordinal of a pod of this cluster; `None` for any other name.
    #[must_use]
    pub fn ordinal(&self, pod: &str) -> Option<u32> {
        let digits = pod.strip_prefix(self.as_str())?.strip_prefix('-')?;
        let ordinal: u32 = digits.parse().ok()?;
        (self.pod(ordinal) == pod).then_some(ordinal)
    }

    /// Headless Service of the pods.
    #[must_use]
    pub fn pods_service(&self) -> String {
        format!("{self}-pods")
    }

    /// Service of the primary.
    #[must_use]
    pub fn rw_service(&self) -> String {
        format!("{self}-rw")
    }

    /// Service of the standbys.
    #[must_use]
    pub fn ro_service(&self) -> String {
        format!("{self}-ro")
    }

    /// Service of every instance.
    #[must_use]
    pub fn r_service(&self) -> String {
        format!("{self}-r")
    }

    /// Secret of the application's user.
    #[must_use]
    pub fn app_secret(&self) -> String {
        format!("{self}-app")
    }

    /// Secret of the superuser.
    #[must_use]
    pub fn superuser_secret(&self) -> String {
        format!("{self}-superuser")
    }

    /// Secret of the certificate authority; only the controller reads it.
    #[must_use]
    pub fn ca_secret(&self) -> String {
        format!("{self}-ca")
    }

    /// Secret of the server certificate.
    #[must_use]
    pub fn server_secret(&self) -> String {
        format!("{self}-server")
    }

    /// Secret of the client certificate that standbys and peers present.
    #[must_use]
    pub fn replication_secret(&self) -> String {
        format!("{self}-replication")
    }

    /// ConfigMap with [`FILE_CONFIG`] and [`FILE_PASSWD`].
    #[must_use]
    pub fn config_map(&self) -> String {
        format!("{self}-instance")
    }

    /// The name every server certificate of the cluster carries besides its DNS names: peers are
    /// reached by IP address and verified by this. It names the namespace too, so that the
    /// certificate of a cluster of the same name elsewhere is refused even under a shared authority.
    #[must_use]
    pub fn tls_name(&self, namespace: &str) -> String {
        format!("{self}-rw.{namespace}.svc")
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a", true)]
    #[case("orders-eu-1", true)]
    #[case("", false)]
    #[case("1orders", false)]
    #[case("orders-", false)]
    #[case("Orders", false)]
    #[case("orders.eu", false)]
    fn names_are_dns_labels(#[case] name: &str, #[case] allowed: bool) {
        assert_eq!(ClusterName::parse(name).is_ok(), allowed);
    }

    #[test]
    fn the_longest_name_leaves_room_for_pods_and_revisions() {
        let longest = "x".repeat(CLUSTER_NAME_MAX);
        let name = ClusterName::parse(&longest).unwrap();
        assert!(name.pod(99).len() <= 63);
        assert!(name.replication_secret().len() <= 63);
        assert!(format!("{name}-0123456789").len() <= 63);
        assert!(ClusterName::parse(&format!("{longest}x")).is_err());
    }

    #[rstest]
    #[case("orders-0", Some(0))]
    #[case("orders-12", Some(12))]
    #[case("orders-012", None)]
    #[case("orders-+1", None)]
    #[case("orders-eu-1", None)]
    #[case("orders", None)]
    fn ordinals_are_read_back_exactly(#[case] pod: &str, #[case] ordinal: Option<u32>) {
        assert_eq!(ClusterName::parse("orders").unwrap().ordinal(pod), ordinal);
    }
}
