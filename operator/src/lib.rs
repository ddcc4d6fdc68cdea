//! The PostgreSQL operator: see `ARCHITECTURE.md` for the map.

pub mod api;
pub mod bundle;
pub mod cli;
pub mod controller;
pub mod install;
pub mod instance;
pub mod k8s;
pub mod telemetry;
