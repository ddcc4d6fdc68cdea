//! Types and reasons of conditions and Events: part of the API, scripts wait for them.

/// Every wanted instance is ready.
pub const READY: &str = "Ready";
/// The operator is changing something; the message says what it waits for.
pub const PROGRESSING: &str = "Progressing";
/// Something needs a person, or works less well than asked; the message says what to do.
pub const DEGRADED: &str = "Degraded";

/// Reason of `Ready=True`.
pub const RECONCILIATION_SUCCEEDED: &str = "ReconciliationSucceeded";

/// The message of `Ready=True`.
#[must_use]
pub fn ready_message(replicas: u32) -> String {
    format!("PostgresCluster with {replicas} replicas is ready")
}
