//! The PostgreSQL operator: see `ARCHITECTURE.md` for the map.

pub mod api;
pub mod cli;
pub mod telemetry;
