//! What the controller tells the instances of one cluster, as a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The content of [`crate::names::FILE_CONFIG`]: the same for every instance of a cluster.
///
/// The controller renders it from the validated spec; an instance reads it from the mounted
/// ConfigMap when it starts and follows the ConfigMap afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceConfig {
    /// Name of the cluster.
    pub cluster: String,
    /// Its namespace.
    pub namespace: String,
    /// How many instances there shall be; ordinals from 0.
    pub replicas: u32,
    /// Major version the binaries must have.
    pub major: u32,
    /// Parameters of `postgresql.conf`, the user's, already checked against [`OWNED_PARAMETERS`].
    pub parameters: BTreeMap<String, String>,
    /// Lines of `pg_hba.conf` between the operator's own and its closing ones.
    pub pg_hba: Vec<String>,
    /// The write-ahead log has a volume of its own at [`crate::names::DIR_WAL`].
    pub wal_volume: bool,
    /// Size of the data volume in bytes; bounds what replication slots may retain.
    pub storage_bytes: u64,
    /// How the first data directory is made.
    pub initdb: InitdbConfig,
}

impl InstanceConfig {
    /// A short fingerprint, to tell whether an instance already runs what was asked. Not secure.
    #[must_use]
    pub fn hash(&self) -> String {
        // FNV-1a over the canonical JSON: stable across builds, which `DefaultHasher` is not.
        let text = serde_json::to_string(self).unwrap_or_default();
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// How the first data directory is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitdbConfig {
    /// Database created for the application.
    pub database: String,
    /// Its owner, the user of the `-app` Secret.
    pub owner: String,
    /// Encoding, for example `UTF8`.
    pub encoding: String,
    /// Locale, for example `C.UTF-8`.
    pub locale: String,
}

/// Parameters the operator sets itself: a user's value would break replication, fencing or probes.
/// Sorted, for binary search.
pub const OWNED_PARAMETERS: &[&str] = &[
    "allow_alter_system",
    "archive_cleanup_command",
    "cluster_name",
    "config_file",
    "data_directory",
    "event_source",
    "external_pid_file",
    "hba_file",
    "hot_standby",
    "ident_file",
    "listen_addresses",
    "log_destination",
    "log_directory",
    "log_file_mode",
    "log_filename",
    "logging_collector",
    "port",
    "primary_conninfo",
    "primary_slot_name",
    "promote_trigger_file",
    "recovery_end_command",
    "recovery_target",
    "recovery_target_action",
    "recovery_target_inclusive",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_xid",
    "restart_after_crash",
    "restore_command",
    "ssl",
    "ssl_ca_file",
    "ssl_cert_file",
    "ssl_crl_dir",
    "ssl_crl_file",
    "ssl_key_file",
    "sync_replication_slots",
    "synchronous_standby_names",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
    "wal_level",
    "wal_log_hints",
];

/// True if the operator sets this parameter itself.
#[must_use]
pub fn is_owned(parameter: &str) -> bool {
    let name = parameter.to_ascii_lowercase();
    OWNED_PARAMETERS.binary_search(&name.as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_parameters_are_sorted() {
        assert!(OWNED_PARAMETERS.is_sorted());
    }

    #[test]
    fn case_does_not_help() {
        assert!(is_owned("Port"));
        assert!(!is_owned("work_mem"));
    }
}
