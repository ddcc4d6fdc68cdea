//! The harness: what the integration tests stand on. The tests themselves are in `tests/it`.
//!
//! One module of the test binary is one ring: `ring3` needs an API server in containers, `ring5` the kind cluster,
//! `bench` measures on that cluster. Every wait has a deadline and says what it waited for and what it saw last.

// What a harness finds out is meant for the terminal.
#![allow(clippy::print_stdout)]

pub mod apiserver;
pub mod audit;
pub mod cases;
pub mod controller;
pub mod crd;
pub mod diagnosis;
pub mod env;
pub mod instances;
pub mod kind;
pub mod manifests;
pub mod nodes;
pub mod objects;
pub mod pg;
pub mod pki;
pub mod space;
pub mod wait;
