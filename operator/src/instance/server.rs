//! The instance's own HTTPS server: probes, metrics, and the status for whoever shows a certificate of the cluster.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use operator_core::status::{InstanceStatus, Phase};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{metrics, tls};

/// Connections served at a time; probes and scrapers need a handful.
const CONNECTIONS: usize = 64;
/// How long a handshake, or the wait for a request, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may live.
const LIFE: Duration = Duration::from_secs(120);
/// An observation older than this is no ground for being called ready.
const FRESH: Duration = Duration::from_secs(10);

/// What the server tells.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The status.
    pub status: InstanceStatus,
    /// When it was observed.
    pub at: Instant,
    /// How often PostgreSQL was started in this life.
    pub starts: u64,
}

/// The status before anything is known.
#[must_use]
pub fn unknown_status(pod: &str) -> InstanceStatus {
    InstanceStatus {
        pod: pod.to_owned(),
        member: None,
        phase: Phase::Waiting,
        reason: "the instance has just begun".to_owned(),
        role: None,
        ready: false,
        system_id: None,
        timeline: None,
        lsn: None,
        replay_lsn: None,
        streaming: None,
        version: None,
        pending_restart: Vec::new(),
        config_error: None,
        config_hash: None,
    }
}

/// The TLS configuration in force; replaced when the certificate is renewed.
#[derive(Clone)]
pub struct CurrentTls(Arc<Mutex<Arc<ServerConfig>>>);

impl CurrentTls {
    /// Begins with this one.
    #[must_use]
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(Mutex::new(config)))
    }

    /// New connections use this one.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn get(&self) -> Arc<ServerConfig> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, config: CurrentTls, snapshot: watch::Receiver<Snapshot>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Beyond the limit clients wait in the kernel's queue.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (config, snapshot) = (config.get(), snapshot.clone());
        tokio::spawn(async move {
            connection(stream, peer, config, snapshot).await;
            drop(slot);
        });
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    config: Arc<ServerConfig>,
    snapshot: watch::Receiver<Snapshot>,
) {
    let stream = match timeout(PATIENCE, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, "handshake: {error}"),
        Err(_) => return tracing::debug!(%peer, "no handshake within 5 s"),
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let trusted = certificates.and_then(|chain| chain.first()).is_some_and(tls::is_peer);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = respond(request.method(), request.uri().path(), trusted, &snapshot.borrow());
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(LIFE, served).await {
        tracing::debug!(%peer, "connection: {error}");
    }
}

fn respond(method: &Method, path: &str, trusted: bool, snapshot: &Snapshot) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if method != Method::GET {
        return answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is served\n");
    }
    let Snapshot { status, at, starts } = snapshot;
    match path {
        // The manager answers, so it lives; the kubelet must not restart it because PostgreSQL waits for something.
        "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" if status.ready && at.elapsed() < FRESH => answer(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{:?}: {}\n", status.phase, status.reason)),
        "/metrics" => match metrics::text(status, *starts) {
            Ok(text) => answer(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        "/status" if !trusted => answer(StatusCode::UNAUTHORIZED, TEXT, "show the cluster's replication certificate\n"),
        "/status" => match serde_json::to_vec(status) {
            Ok(json) => answer(StatusCode::OK, "application/json", json),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        _ => answer(StatusCode::NOT_FOUND, TEXT, "there are /healthz, /readyz, /metrics and /status\n"),
    }
}

fn answer(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn snapshot(ready: bool, age: Duration) -> Snapshot {
        let at = Instant::now().checked_sub(age).unwrap();
        Snapshot { status: InstanceStatus { ready, ..unknown_status("orders-0") }, at, starts: 0 }
    }

    #[rstest]
    #[case::alive(Method::GET, "/healthz", false, 200)]
    #[case::ready(Method::GET, "/readyz", false, 200)]
    #[case::metrics(Method::GET, "/metrics", false, 200)]
    #[case::stranger(Method::GET, "/status", false, 401)]
    #[case::peer(Method::GET, "/status", true, 200)]
    #[case::nowhere(Method::GET, "/", true, 404)]
    #[case::write(Method::POST, "/status", true, 405)]
    fn answers(#[case] method: Method, #[case] path: &str, #[case] trusted: bool, #[case] code: u16) {
        let answer = respond(&method, path, trusted, &snapshot(true, Duration::ZERO));
        assert_eq!(answer.status().as_u16(), code);
    }

    #[rstest]
    #[case::not_ready(false, Duration::ZERO)]
    #[case::stale(true, FRESH)]
    fn readiness_needs_a_fresh_observation(#[case] ready: bool, #[case] age: Duration) {
        assert_eq!(respond(&Method::GET, "/readyz", false, &snapshot(ready, age)).status().as_u16(), 503);
    }
}
