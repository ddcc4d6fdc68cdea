//! `controller`: observe -> validate -> build -> apply -> status, one module per step.
//!
//! It builds Kubernetes objects, rolls out changes and reports. It starts nothing and promotes nothing: clusters keep
//! serving while it is away.

pub mod apply;
pub mod context;
pub mod diff;
pub mod duties;
pub mod error;
pub mod events;
pub mod instances;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod problems;
pub mod reconcile;
pub mod record;
pub mod root;
pub mod run;
pub mod server;
pub mod status;
pub mod volumes;
pub mod watches;

pub use run::{ControllerArgs, run};

#[cfg(test)]
mod scripted_tests;
