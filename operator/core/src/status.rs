//! What an instance says of itself over `/status`.

use serde::{Deserialize, Serialize};

use crate::{
    lsn::{Lsn, Timeline},
    record::Member,
};

/// The answer of `/status`, JSON over TLS with a client certificate of the cluster.
///
/// Unknown is always `None`, never a default: whoever decides on it must see the difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Name of the pod.
    pub pod: String,
    /// Identity of pod and data directory; `None` before there is one.
    pub member: Option<Member>,
    /// What the instance is doing.
    pub phase: Phase,
    /// Why, in one sentence; what a person should do if something is to be done.
    pub reason: String,
    /// Is this instance the primary, as far as PostgreSQL is concerned?
    pub role: Option<Role>,
    /// Accepts connections now.
    pub ready: bool,
    /// PostgreSQL's system identifier.
    pub system_id: Option<u64>,
    /// Current timeline.
    pub timeline: Option<Timeline>,
    /// Primary: end of the log written. Standby: end of the log received and flushed.
    pub lsn: Option<Lsn>,
    /// Standby: end of the log replayed.
    pub replay_lsn: Option<Lsn>,
    /// Standby: the WAL receiver is streaming.
    pub streaming: Option<bool>,
    /// Full version of the binaries, for example `17.6`.
    pub version: Option<String>,
    /// Parameters that wait for a restart of PostgreSQL.
    pub pending_restart: Vec<String>,
    /// PostgreSQL's own words about a configuration it refused; the previous one stays in force.
    pub config_error: Option<String>,
    /// [`crate::config::InstanceConfig::hash`] of the configuration in force.
    pub config_hash: Option<String>,
}

/// Role of a PostgreSQL server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Accepts writes.
    Primary,
    /// In recovery, follows the primary.
    Standby,
}

/// What an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for something named in `reason`.
    Waiting,
    /// Runs `initdb`.
    Initialising,
    /// Runs `pg_basebackup`.
    Cloning,
    /// PostgreSQL starts or recovers.
    Starting,
    /// PostgreSQL accepts connections.
    Running,
    /// PostgreSQL is being stopped.
    Stopping,
    /// Refuses to run until a person acts; `reason` says what to do. Nothing is overwritten.
    Refused,
}
