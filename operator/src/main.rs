//! `postgres-operator`: the controller, the instance manager and the installer, in one binary.

use std::process::ExitCode;

use clap::Parser;
use postgres_operator::cli::{Cli, run};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
