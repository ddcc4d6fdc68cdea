//! `instance`: PID 1 of each Postgres pod. It makes or copies one data directory, runs one server on it and says how it is.
//!
//! What to do next is decided by [`operator_core::instance::decide`]; [`supervise`] observes and does.

pub mod command;
pub mod configuration;
pub mod disk;
pub mod duties;
pub mod identity;
pub mod kubernetes;
pub mod metrics;
pub mod postmaster;
pub mod reaper;
pub mod server;
pub mod setup;
pub mod sql;
pub mod supervise;
pub mod tls;

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::Context;
use operator_core::{
    config::InstanceConfig,
    names::{DIR_CONFIG, DIR_DATA, DIR_PGDATA, DIR_WAL, FILE_CONFIG, PORT_INSTANCE},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use configuration::Configuration;
use disk::Volume;
use identity::{Identity, InstanceArgs};
use kubernetes::Kubernetes;
use reaper::Children;
use server::CurrentTls;
use supervise::{Inputs, Supervisor};
use tls::Certificates;

/// Time between two looks at the mounted certificates.
const CERTIFICATES_PERIOD: Duration = Duration::from_secs(10);

/// Runs the instance until the pod is stopped.
///
/// # Errors
/// The pod is not set up as the controller sets it up; nothing that PostgreSQL or the API server does.
pub async fn run(args: &InstanceArgs) -> anyhow::Result<()> {
    let identity = Identity::new(args)?;
    let file = Path::new(DIR_CONFIG).join(FILE_CONFIG);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mounted: InstanceConfig = serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    let volume = Volume::new(Path::new(DIR_DATA), mounted.wal_volume.then_some(Path::new(DIR_WAL)));
    debug_assert_eq!(volume.pgdata(), Path::new(DIR_PGDATA));

    let children = Children::default();
    let stopping = stop_signals()?;
    tokio::spawn(children.clone().reap());
    let api = Kubernetes::new(&identity)?;
    let (renewals, renewed) = watch::channel(0);
    let inputs = Inputs { lease: api.follow_lease(), config: api.follow_config(), renewed, stopping };
    let binaries = setup::binaries_version(&children).await;
    tracing::info!(pod = identity.pod, version = binaries.as_ref().map(|(_, full)| full), "the instance begins");

    let mut certificates = Certificates::mounted();
    let tls = certificates.changed()?.context("no certificate is mounted")?;
    let tls = CurrentTls::new(tls);
    let address = SocketAddr::new(args.pod_ip, PORT_INSTANCE);
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    let (supervisor, snapshots) =
        Supervisor::new(identity, volume, children, api, inputs, Configuration::new(mounted), binaries);
    tokio::spawn(server::serve(listener, tls.clone(), snapshots));
    tokio::spawn(renew(certificates, tls, renewals));
    supervisor.run().await;
    tracing::info!("the instance ends");
    Ok(())
}

/// Puts renewed certificates in force: in our own server at once, in PostgreSQL by a reload.
async fn renew(mut certificates: Certificates, tls: CurrentTls, renewals: watch::Sender<u64>) {
    loop {
        tokio::time::sleep(CERTIFICATES_PERIOD).await;
        match certificates.changed() {
            Ok(None) => {}
            Ok(Some(config)) => {
                tls.replace(config);
                renewals.send_modify(|count| *count += 1);
                tracing::info!("the renewed certificate is in force");
            }
            Err(error) => tracing::error!("{error}"),
        }
    }
}

/// Becomes true at the first SIGTERM or SIGINT.
fn stop_signals() -> std::io::Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to stop");
        sender.send_replace(true);
        // Dropping the sender would end the channel; the receivers outlive this task.
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}
