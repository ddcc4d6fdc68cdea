//! `db.example.com/v1alpha1`.
//!
//! Each field is served: one that nothing acts on yet is not in the schema. Each rule that spans
//! fields or forbids a change is a CEL rule with a message that says what to do, so that the API
//! server refuses before anything happens.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{LocalObjectReference, Toleration},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};
use kube::{CustomResource, KubeSchema};
use operator_core::config::OWNED_PARAMETERS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Highest number of instances of one cluster.
pub const REPLICAS_MAX: u32 = 9;

/// A PostgreSQL cluster: one primary and any number of streaming standbys.
///
/// Connect through the Service `<name>-rw` (primary), `<name>-ro` (standbys) or `<name>-r` (any), as the user of the
/// Secret `<name>-app`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "db.example.com",
    version = "v1alpha1",
    kind = "PostgresCluster",
    plural = "postgresclusters",
    shortname = "pgc",
    category = "all",
    namespaced,
    status = "PostgresClusterStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "Every wanted instance is ready"),
    printcolumn(name = "Primary", type_ = "string", json_path = ".status.primary", description = "Pod that accepts writes"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", description = "Version of PostgreSQL that runs"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 50").message("metadata.name: use at most 50 characters, the pods of the cluster are named after it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name: use lower-case letters, digits and '-', starting with a letter: Services are named after it"),
)]
#[serde(rename_all = "camelCase")]
pub struct PostgresClusterSpec {
    /// Number of instances: one primary, the others standbys. `kubectl scale` changes it too.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = REPLICAS_MAX))]
    pub replicas: u32,

    /// Version of PostgreSQL: a major version such as `17`, or a minor release such as `17.6`, which is then checked against the image.
    #[schemars(length(max = 8))]
    #[x_kube(validation = Rule::new("self.matches('^(15|16|17|18)([.][0-9]{1,2})?$')").message("version: use \"15\", \"16\", \"17\" or \"18\", or one of their minor releases such as \"17.6\""))]
    #[x_kube(validation = Rule::new("self.split('.')[0] == oldSelf.split('.')[0]").message("version: the major version of a cluster can't be changed in place; create a new cluster and move the data with pg_dump"))]
    pub version: String,

    /// Image with the binaries of PostgreSQL, instead of the operator's own choice for `version`. Any plain image will do: nothing of the operator is expected in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Names of Secrets in the same namespace with credentials for pulling images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// The volumes of each instance.
    pub storage: StorageSpec,

    /// Configuration of PostgreSQL.
    #[serde(default)]
    pub postgresql: PostgresqlSpec,

    /// How the first data directory is made. Can't be changed afterwards.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("bootstrap: it was used when the cluster was created and can't be changed; create a new cluster"))]
    pub bootstrap: BootstrapSpec,

    /// Compute resources of each instance. Without requests, 100m CPU and 256Mi memory are requested.
    #[serde(default)]
    pub resources: Resources,

    /// Where the pods may run.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
}

fn default_replicas() -> u32 {
    3
}

/// The volumes of each instance.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storage.storageClassName: it can't be changed; create a new cluster and move the data"))]
#[x_kube(validation = Rule::new("has(self.wal) == has(oldSelf.wal)").message("storage.wal: a volume for the write-ahead log can't be added or removed later; create a new cluster and move the data"))]
pub struct StorageSpec {
    /// Size of the data volume, for example `20Gi`. It can grow if the storage class allows expansion, never shrink.
    #[schemars(extend("maxLength" = 24))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("storage.size: use a positive quantity such as 20Gi"))]
    #[x_kube(validation = Rule::new("!isQuantity(self) || !isQuantity(oldSelf) || !quantity(self).isLessThan(quantity(oldSelf))").message("storage.size: a volume can't shrink; create a smaller cluster and move the data"))]
    pub size: Quantity,

    /// Storage class of the data volume; the cluster's default class if left out. Can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,

    /// A volume of its own for the write-ahead log. Can't be added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal: Option<WalStorageSpec>,

    /// What happens to the volumes when an instance or the cluster is deleted.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
}

/// A volume for the write-ahead log.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storage.wal.storageClassName: it can't be changed; create a new cluster and move the data"))]
pub struct WalStorageSpec {
    /// Size of the volume, for example `5Gi`. It can grow if the storage class allows expansion, never shrink.
    #[schemars(extend("maxLength" = 24))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("storage.wal.size: use a positive quantity such as 5Gi"))]
    #[x_kube(validation = Rule::new("!isQuantity(self) || !isQuantity(oldSelf) || !quantity(self).isLessThan(quantity(oldSelf))").message("storage.wal.size: a volume can't shrink; create a smaller cluster and move the data"))]
    pub size: Quantity,

    /// Storage class of the volume; the cluster's default class if left out. Can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// What happens to the volumes of an instance that is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// The volume claims stay, and with them the data. A new cluster of the same name refuses to overwrite them.
    #[default]
    Retain,
    /// The volume claims are deleted with the instance or the cluster, and the data with them.
    Delete,
}

/// Configuration of PostgreSQL.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresqlSpec {
    /// Parameters of `postgresql.conf`. Values are text, written as in that file without the quotes: `"64MB"`, `"on"`.
    /// Parameters that the operator needs for itself are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 128))]
    #[x_kube(validation = owned_parameters_rule())]
    pub parameters: BTreeMap<String, String>,

    /// Lines of `pg_hba.conf`. They come after the operator's own lines and before its last one, which allows
    /// every user with a password (scram-sha-256) over TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    #[x_kube(validation = Rule::new("self.all(line, !line.contains('\\n'))").message("postgresql.pgHba: write one line per entry"))]
    pub pg_hba: Vec<String>,
}

fn owned_parameters_rule() -> kube::core::Rule {
    let owned = OWNED_PARAMETERS.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",");
    kube::core::Rule::new(format!("self.all(name, !(name.lowerAscii() in [{owned}]))"))
        .message("postgresql.parameters: a parameter the operator sets itself can't be set here; remove it (the API reference lists them)")
}

/// How the first data directory is made.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapSpec {
    /// A new, empty data directory.
    #[serde(default)]
    pub initdb: InitdbSpec,
}

/// A new, empty data directory.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InitdbSpec {
    /// Database created for the application.
    #[serde(default = "default_app")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z_][a-z0-9_]*$') && !(self in ['postgres', 'template0', 'template1'])").message("bootstrap.initdb.database: use lower-case letters, digits and '_', and none of postgres, template0, template1"))]
    pub database: String,
    /// Owner of that database; the user of the Secret `<name>-app`.
    #[serde(default = "default_app")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_') && !(self in ['postgres', 'streaming_replica'])").message("bootstrap.initdb.owner: use lower-case letters, digits and '_'; not postgres, streaming_replica or a name that starts with pg_"))]
    pub owner: String,
    /// Encoding of the databases.
    #[serde(default = "default_encoding")]
    #[schemars(length(max = 32), regex(pattern = "^[A-Za-z0-9_]+$"))]
    pub encoding: String,
    /// Locale of the databases; it has to exist in the image.
    #[serde(default = "default_locale")]
    #[schemars(length(max = 64), regex(pattern = "^[A-Za-z0-9_.@-]+$"))]
    pub locale: String,
}

impl Default for InitdbSpec {
    fn default() -> Self {
        Self { database: default_app(), owner: default_app(), encoding: default_encoding(), locale: default_locale() }
    }
}

fn default_app() -> String {
    "app".to_owned()
}

fn default_encoding() -> String {
    "UTF8".to_owned()
}

fn default_locale() -> String {
    "C.UTF-8".to_owned()
}

/// Compute resources of a container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// What is reserved, for example `cpu: 500m`, `memory: 1Gi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// The most that may be used.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Where the pods may run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingSpec {
    /// Whether two instances may share a node.
    #[serde(default)]
    pub spread: Spread,
    /// Labels a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}

/// Whether two instances may share a node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// They share a node only if there is no other.
    #[default]
    Preferred,
    /// They never share a node; an instance without a node of its own stays Pending.
    Required,
}

/// What the operator observed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresClusterStatus {
    /// The generation of the spec that the rest of the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of instances that exist.
    #[serde(default)]
    pub replicas: u32,
    /// Number of instances that are ready.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Labels that select the pods, as text; used by `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Pod that accepts writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Current timeline of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// Identifier PostgreSQL gave the data when it was first made. Once set, nobody makes a new data directory under this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_id: Option<String>,
    /// Version of PostgreSQL that the primary runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Every instance that exists, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub instances: Vec<InstanceSummary>,
    /// `Ready`, `Progressing` and `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One instance, as last seen.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSummary {
    /// Name of the pod.
    pub name: String,
    /// `primary` or `standby`; absent while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Accepts connections, and streams if it is a standby.
    #[serde(default)]
    pub ready: bool,
    /// Timeline it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// Node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why it is not ready, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
