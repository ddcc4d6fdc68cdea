//! What the PostgreSQL operator decides, without touching anything.
//!
//! Nothing here reads a clock, opens a socket or knows Kubernetes: the same functions run in the
//! controller, in every instance, in the model checker and in the simulator.

pub mod config;
pub mod instance;
pub mod lsn;
pub mod names;
pub mod pgconf;
pub mod pglog;
pub mod record;
pub mod rollout;
pub mod scale;
pub mod status;
