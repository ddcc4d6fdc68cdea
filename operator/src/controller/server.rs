//! Metrics and probes, plain HTTP.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;

use super::context::Context;

/// Whether this replica could do its work now.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says whether it could.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    /// True if the caches are filled, or if this replica only waits to become the leader.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An address can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("listening on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Serves `/healthz` and `/readyz` until the program ends.
///
/// # Errors
/// The address can't be listened on.
pub async fn probes(address: SocketAddr, readiness: Readiness) -> Result<(), ListenError> {
    let ready = |State(readiness): State<Readiness>| async move {
        if readiness.get() {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "caches are not filled\n")
        }
    };
    let router = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready));
    serve(address, router.with_state(readiness)).await
}

/// Serves `/metrics` until the program ends.
///
/// # Errors
/// The address can't be listened on.
pub async fn metrics(address: SocketAddr, ctx: Arc<Context>) -> Result<(), ListenError> {
    let kind = [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    let render = move |State(ctx): State<Arc<Context>>| async move { (kind, ctx.metrics.render()) };
    serve(address, Router::new().route("/metrics", get(render)).with_state(ctx)).await
}

async fn serve(address: SocketAddr, router: Router) -> Result<(), ListenError> {
    let error = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    axum::serve(listener, router).await.map_err(error)
}
