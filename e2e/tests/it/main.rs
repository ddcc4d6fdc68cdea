//! Integration tests, one module per ring.

// What a run found out is meant for the terminal.
#![allow(clippy::print_stdout)]

mod bench;
mod ring3;
mod ring4;
mod ring5;
