//! The kind cluster: real kubelets, real PostgreSQL, the operator installed from its manifests.
//!
//! Each test has a namespace of its own and starts from nothing. Durations are recorded, not asserted, except where a
//! promise names a number.

use std::time::Duration;

mod bad;
mod change;
mod deletion;
mod life;
mod recovery;

/// For a cluster to be made: image in place, two cores shared with other tests.
const CREATION: Duration = Duration::from_secs(150);
/// For anything that needs no pod to be made.
const SHORT: Duration = Duration::from_secs(45);
