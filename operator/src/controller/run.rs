//! The program: a client, the election, the caches, the driver, and the two small servers.

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;
use futures::{FutureExt, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{applier, controller},
};
use operator_core::names::{PORT_METRICS, PORT_PROBES};
use tokio::signal::unix::{SignalKind, signal};
use tower::timeout::TimeoutLayer;

use super::{
    context::{Context, Memory},
    instances::OverTls,
    leader::Candidate,
    metrics::Metrics,
    reconcile::{on_error, reconcile},
    server::{self, Readiness},
    watches::{self, Wakes},
};
use crate::k8s::cluster::Images;

/// How many clusters are worked on at a time.
const CONCURRENCY: u16 = 8;
/// Wakes of one cluster within this time are one: creating it touches a dozen objects.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Options of the controller.
#[derive(Args, Clone, Debug)]
pub struct ControllerArgs {
    /// Image of this operator, from which each pod takes the instance manager.
    #[arg(long, env = "OPERATOR_IMAGE")]
    pub operator_image: String,
    /// Image of PostgreSQL 15 for clusters without spec.image.
    #[arg(long, env = "POSTGRES_IMAGE_15", default_value = "", hide_default_value = true)]
    pub postgres_image_15: String,
    /// Image of PostgreSQL 16 for clusters without spec.image.
    #[arg(long, env = "POSTGRES_IMAGE_16", default_value = "", hide_default_value = true)]
    pub postgres_image_16: String,
    /// Image of PostgreSQL 17 for clusters without spec.image.
    #[arg(long, env = "POSTGRES_IMAGE_17", default_value = "", hide_default_value = true)]
    pub postgres_image_17: String,
    /// Image of PostgreSQL 18 for clusters without spec.image.
    #[arg(long, env = "POSTGRES_IMAGE_18", default_value = "", hide_default_value = true)]
    pub postgres_image_18: String,
    /// Namespaces whose clusters are managed, separated by commas; all if empty.
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Namespace of the Lease by which replicas of the controller elect their leader.
    #[arg(long, env = "POD_NAMESPACE", default_value = "postgres-operator-system")]
    pub namespace: String,
    /// Name of this replica.
    #[arg(long, env = "POD_NAME", default_value = "postgres-operator")]
    pub name: String,
    /// Kubeconfig to use instead of the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Where metrics are served.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT_METRICS)))]
    pub metrics_address: SocketAddr,
    /// Where probes are served.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT_PROBES)))]
    pub probes_address: SocketAddr,
}

impl ControllerArgs {
    fn images(&self) -> Images {
        let all = [
            (15, &self.postgres_image_15),
            (16, &self.postgres_image_16),
            (17, &self.postgres_image_17),
            (18, &self.postgres_image_18),
        ];
        let postgres: BTreeMap<u32, String> = all
            .into_iter()
            .filter(|(_, image)| !image.is_empty())
            .map(|(major, image)| (major, image.clone()))
            .collect();
        Images { operator: self.operator_image.clone(), postgres }
    }

    fn namespaces(&self) -> Vec<String> {
        let names = self.watch_namespaces.iter().map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect()
    }
}

/// Runs the controller until it is asked to stop or is no longer the leader.
///
/// # Errors
/// The API server can't be reached at all, an address is taken, or the leadership is lost.
pub async fn run(args: &ControllerArgs) -> anyhow::Result<()> {
    let config = config(args).await?;
    let client = client(config.clone(), Duration::from_secs(10))?;
    let identity = format!("{}-{}", args.name, suffix()?);
    let namespaces = args.namespaces();
    let (stores, wakes) = watches::begin(&client, &namespaces);
    let ctx = Arc::new(Context {
        client,
        stores,
        images: args.images(),
        instances: Box::new(OverTls),
        metrics: Metrics::default(),
        identity: identity.clone(),
        memory: Memory::default(),
        now: Timestamp::now,
    });
    let candidate = Candidate::new(self::client(config, Duration::from_secs(2))?, &args.namespace, identity, ctx.now);
    let readiness = Readiness::default();
    readiness.set(true);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespaces = namespaces.join(","), "the controller starts");
    tokio::select! {
        result = server::probes(args.probes_address, readiness.clone()) => result.map_err(Into::into),
        result = server::metrics(args.metrics_address, ctx.clone()) => result.map_err(Into::into),
        result = lead(&candidate, &ctx, wakes, &readiness) => result,
        result = asked_to_stop() => {
            result?;
            tracing::info!("asked to stop");
            candidate.resign().await;
            Ok(())
        }
    }
}

/// Waits for the leadership, then works until it is lost.
async fn lead(candidate: &Candidate, ctx: &Arc<Context>, wakes: Wakes, readiness: &Readiness) -> anyhow::Result<()> {
    let lease = candidate.win().await;
    tracing::info!(identity = ctx.identity, "this replica leads");
    ctx.metrics.leader.set(1);
    readiness.set(false);
    let fill = async {
        watches::synced(&ctx.stores).await.context("filling the caches")?;
        tracing::info!(clusters = ctx.stores.clusters.len(), "the caches are filled");
        readiness.set(true);
        std::future::pending::<anyhow::Result<Infallible>>().await
    };
    tokio::select! {
        () = work(ctx, wakes) => anyhow::bail!("every watch has ended"),
        Err(error) = fill => Err(error),
        lost = candidate.keep(lease) => Err(lost.into()),
    }
}

/// Reconciles what the watches wake.
async fn work(ctx: &Arc<Context>, wakes: Wakes) {
    let wakes = wakes.map(Ok::<_, Infallible>);
    let config = controller::Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY);
    let results = applier(
        |resource, ctx| reconcile(resource, ctx).boxed(),
        on_error,
        ctx.clone(),
        ctx.stores.clusters.clone(),
        wakes,
        config,
    );
    results
        .for_each(|result| async {
            ctx.metrics.clusters.set(i64::try_from(ctx.stores.clusters.len()).unwrap_or(i64::MAX));
            // Errors were logged where they were met; a wake for a cluster that is gone is usual.
            if let Err(error) = result {
                tracing::debug!("{error}");
            }
        })
        .await;
}

async fn config(args: &ControllerArgs) -> anyhow::Result<Config> {
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await.context("neither a kubeconfig nor a service account can be used")?,
    };
    // Errors are tried again with a pause that grows, by the driver: hidden retries would hide an outage.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(3));
    // Longer than a watch is silent: it ends by itself before.
    config.read_timeout = Some(Duration::from_secs(150));
    Ok(config)
}

/// A client whose requests are answered within `limit`, or not at all. Watches go on: only the beginning of an answer counts.
fn client(config: Config, limit: Duration) -> anyhow::Result<Client> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&TimeoutLayer::new(limit)).build())
}

/// Tells two processes of the same name apart, for example a container and the one that replaces it.
fn suffix() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 4];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| anyhow::anyhow!("the system gave no random bytes"))?;
    Ok(format!("{:08x}", u32::from_be_bytes(bytes)))
}

async fn asked_to_stop() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
