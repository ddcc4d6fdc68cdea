//! Types and reasons of conditions and Events: part of the API, scripts wait for them.

/// Every wanted instance is ready.
pub const READY: &str = "Ready";
/// The operator is changing something; the message says what it waits for.
pub const PROGRESSING: &str = "Progressing";
/// Something needs a person, or works less well than asked; the message says what to do.
pub const DEGRADED: &str = "Degraded";

/// Reason of `Ready=True`.
pub const RECONCILIATION_SUCCEEDED: &str = "ReconciliationSucceeded";

/// Reason of `Ready=False` while instances are missing or not ready.
pub const INSTANCES_NOT_READY: &str = "InstancesNotReady";
/// Reason of `Ready=False` while the instances run, but none of them accepts writes.
pub const NO_PRIMARY: &str = "NoPrimary";
/// Reason of a condition that is not met because something else comes first; `Degraded` says what.
pub const BLOCKED: &str = "Blocked";

/// Reason of `Progressing=False`: what runs is what was asked for.
pub const SETTLED: &str = "Settled";
/// Reason of `Progressing=True` while instances are made.
pub const CREATING: &str = "Creating";
/// Reason of `Progressing=True` while instances are added or removed.
pub const SCALING: &str = "Scaling";
/// Reason of `Progressing=True` while pods are replaced, one after the other.
pub const ROLLING: &str = "Rolling";
/// Reason of `Progressing=True` while instances take over a new configuration.
pub const CONFIGURING: &str = "Configuring";
/// Reason of `Progressing=True` while volumes grow.
pub const RESIZING: &str = "Resizing";

/// Reason of `Progressing=True` while an instance comes back.
pub const RECOVERING: &str = "Recovering";
/// Reason of `Progressing=True` while something failed that is tried again.
pub const RETRYING: &str = "Retrying";

/// Reason of `Degraded=False`.
pub const AS_EXPECTED: &str = "AsExpected";
/// The spec asks for something that can't be built.
pub const SPEC_INVALID: &str = "SpecInvalid";
/// No image is known for the version.
pub const IMAGE_UNKNOWN: &str = "ImageUnknown";
/// A node can't pull an image.
pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
/// A pod can't be placed on a node.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// A volume is not there yet.
pub const VOLUME_PENDING: &str = "VolumePending";
/// The storage class doesn't let the volume grow.
pub const EXPANSION_REFUSED: &str = "ExpansionRefused";
/// A container ends again and again.
pub const INSTANCE_CRASHING: &str = "InstanceCrashing";
/// PostgreSQL refused the configuration; the previous one is in force.
pub const PARAMETER_REFUSED: &str = "ParameterRefused";
/// An instance refuses the data it found.
pub const DATA_REFUSED: &str = "DataRefused";
/// The record of who is primary is gone or can't be read.
pub const RECORD_MISSING: &str = "RecordMissing";
/// The binaries in the image are of another version than `spec.version`.
pub const VERSION_MISMATCH: &str = "VersionMismatch";
/// Scaling down would remove the primary.
pub const PRIMARY_IN_THE_WAY: &str = "PrimaryInTheWay";
/// The API server refuses one of the objects.
pub const OBJECT_REFUSED: &str = "ObjectRefused";
/// An object of that name belongs to somebody else.
pub const NAME_TAKEN: &str = "NameTaken";

/// The message of `Ready=True`.
#[must_use]
pub fn ready_message(replicas: u32) -> String {
    format!("PostgresCluster with {replicas} replicas is ready")
}
