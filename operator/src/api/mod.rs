//! The custom resources: what a user writes and what the operator answers.

pub mod conditions;
// The derive repeats each struct inside a function, where `pub` reaches nobody.
#[allow(unreachable_pub)]
pub mod v1alpha1;

pub use v1alpha1::{PostgresCluster, PostgresClusterSpec, PostgresClusterStatus};
