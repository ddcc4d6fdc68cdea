//! The volumes of a pod and where its main container sees them.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};
use operator_core::names::{
    DIR_APP, DIR_BIN, DIR_CONFIG, DIR_DATA, DIR_RUN, DIR_SUPERUSER, DIR_TLS_REPLICATION, DIR_TLS_SERVER, DIR_WAL,
    FILE_PASSWD,
};

use crate::k8s::{
    Cluster,
    workload::{CLAIM_DATA, CLAIM_WAL},
};

/// Volume the `install` container writes to.
pub(super) const BIN: &str = "bin";
const CONFIG: &str = "config";
const RUN: &str = "run";
const TMP: &str = "tmp";
const SHARED_MEMORY: &str = "shared-memory";
const TLS_SERVER: &str = "tls-server";
const TLS_REPLICATION: &str = "tls-replication";
const SUPERUSER: &str = "superuser";
const APP: &str = "app";

/// Read by root and by the group of the pod, nobody else: PostgreSQL refuses a key that others can read.
const MODE_SECRET: i32 = 0o440;
/// The API server's default, written out so that comparing is simple.
const MODE_CONFIG: i32 = 0o444;

/// Everything but the claims, which the StatefulSet adds.
pub(super) fn volumes(cluster: &Cluster) -> Vec<Volume> {
    let name = &cluster.name;
    vec![
        empty(BIN, None),
        empty(RUN, None),
        empty(TMP, None),
        // The container's own /dev/shm has 64 MB, too little for parallel queries.
        empty(SHARED_MEMORY, Some("Memory")),
        Volume {
            name: CONFIG.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: name.config_map(),
                default_mode: Some(MODE_CONFIG),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        secret(TLS_SERVER, name.server_secret()),
        secret(TLS_REPLICATION, name.replication_secret()),
        secret(SUPERUSER, name.superuser_secret()),
        secret(APP, name.app_secret()),
    ]
}

fn empty(name: &str, medium: Option<&str>) -> Volume {
    let source = EmptyDirVolumeSource { medium: medium.map(str::to_owned), size_limit: None };
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}

fn secret(name: &str, secret: String) -> Volume {
    let source = SecretVolumeSource {
        secret_name: Some(secret),
        default_mode: Some(MODE_SECRET),
        ..SecretVolumeSource::default()
    };
    Volume { name: name.to_owned(), secret: Some(source), ..Volume::default() }
}

/// Mounts of the container `postgres`.
pub(super) fn mounts(cluster: &Cluster) -> Vec<VolumeMount> {
    let writable = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    };
    let read_only = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..writable(name, path) };
    let mut mounts = vec![
        writable(CLAIM_DATA, DIR_DATA),
        writable(RUN, DIR_RUN),
        writable(TMP, "/tmp"),
        writable(SHARED_MEMORY, "/dev/shm"),
        read_only(BIN, DIR_BIN),
        read_only(CONFIG, DIR_CONFIG),
        VolumeMount { sub_path: Some(FILE_PASSWD.to_owned()), ..read_only(CONFIG, "/etc/passwd") },
        read_only(TLS_SERVER, DIR_TLS_SERVER),
        read_only(TLS_REPLICATION, DIR_TLS_REPLICATION),
        read_only(SUPERUSER, DIR_SUPERUSER),
        read_only(APP, DIR_APP),
    ];
    if cluster.spec.storage.wal.is_some() {
        mounts.push(writable(CLAIM_WAL, DIR_WAL));
    }
    mounts
}
