//! The ConfigMap: what the controller tells the instances, and the users of the container.

use k8s_openapi::api::core::v1::ConfigMap;
use operator_core::{
    config::{InitdbConfig, InstanceConfig},
    names::{DIR_DATA, FILE_CONFIG, FILE_PASSWD},
};

use super::{Cluster, meta};

/// User and group of every process in the pod. Debian's choice for `postgres`; any image runs with it, because
/// `/etc/passwd` comes from here.
pub const POSTGRES_ID: i64 = 999;

/// What the instances are told. `replicas` is how many there are to be now: it bounds the replication slots, so it may
/// not go below what exists.
#[must_use]
pub fn instance_config(cluster: &Cluster, replicas: u32) -> InstanceConfig {
    let spec = &cluster.spec;
    let initdb = &spec.bootstrap.initdb;
    InstanceConfig {
        cluster: cluster.name.to_string(),
        namespace: cluster.namespace.clone(),
        replicas,
        major: cluster.major,
        parameters: spec.postgresql.parameters.clone(),
        pg_hba: spec.postgresql.pg_hba.clone(),
        wal_volume: spec.storage.wal.is_some(),
        storage_bytes: cluster.storage_bytes,
        initdb: InitdbConfig {
            database: initdb.database.clone(),
            owner: initdb.owner.clone(),
            encoding: initdb.encoding.clone(),
            locale: initdb.locale.clone(),
        },
    }
}

/// The ConfigMap of the cluster.
#[must_use]
pub fn config_map(cluster: &Cluster, replicas: u32) -> ConfigMap {
    // JSON of strings, numbers and maps with text keys can't fail; an empty file would be refused by the instance.
    let config = serde_json::to_string_pretty(&instance_config(cluster, replicas)).unwrap_or_default();
    let data = [(FILE_CONFIG.to_owned(), config), (FILE_PASSWD.to_owned(), passwd())];
    ConfigMap { metadata: meta(cluster, cluster.name.config_map()), data: Some(data.into()), ..ConfigMap::default() }
}

/// `initdb` and `psql` look up the name of the user they run as.
fn passwd() -> String {
    format!(
        "root:x:0:0:root:/root:/bin/sh\npostgres:x:{POSTGRES_ID}:{POSTGRES_ID}:PostgreSQL:{DIR_DATA}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/bin/false\n"
    )
}
