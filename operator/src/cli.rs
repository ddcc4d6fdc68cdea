//! The command line: each subcommand is a job of its own, see [`Command`].

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{
    controller::{self, ControllerArgs},
    install,
    instance::{self, identity::InstanceArgs},
    telemetry::{self, LogFormat},
};

/// A Kubernetes operator for PostgreSQL.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// Form of the log lines.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t, global = true)]
    log_format: LogFormat,
    /// What to log, in the syntax of RUST_LOG.
    #[arg(long, env = "RUST_LOG", default_value = "info", global = true)]
    log_filter: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Manages PostgresClusters; one of its replicas works, the others wait.
    Controller(ControllerArgs),
    /// Runs one PostgreSQL instance; PID 1 of a Postgres pod.
    Instance(InstanceArgs),
    /// Copies this binary where another container finds it.
    Install {
        /// Directory to copy it to.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
}

/// Runs a subcommand to its end.
///
/// # Errors
/// Whatever made the subcommand give up; the chain says what was attempted.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    telemetry::init(cli.log_format, &cli.log_filter);
    // kube, tokio-postgres and the servers share one TLS provider; installing it twice is harmless.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Controller(args) => controller::run(&args).await,
            Command::Instance(args) => instance::run(&args).await,
            Command::Install { to } => Ok(install::install(&to)?),
        }
    })
}
