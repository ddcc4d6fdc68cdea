//! Asks instances how they are: HTTPS with the cluster's own certificates, by address, two seconds at most.
//!
//! Nothing here is needed for a cluster to work. A controller that can't reach pods knows less, that is all.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use operator_core::{names::PORT_INSTANCE, status::InstanceStatus};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::k8s::{Cluster, secrets::Material};

/// How long asking one instance may take, connection included.
const DEADLINE: Duration = Duration::from_secs(2);
/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

/// Asks instances how they are; tests have another answer.
pub trait AskInstances: Send + Sync {
    /// The answers in the order of the addresses; `None` where there was none.
    fn ask<'a>(
        &'a self,
        cluster: &'a Cluster,
        material: &'a Material,
        addresses: Vec<Option<IpAddr>>,
    ) -> BoxFuture<'a, Vec<Option<InstanceStatus>>>;
}

/// Why an instance gave no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("the cluster's certificates can't be used: {0}")]
    Certificates(String),
    #[error("connecting: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the request: {0}")]
    Http(#[from] hyper::Error),
    #[error("the answer: {0}")]
    Answer(String),
    #[error("no answer within 2 s")]
    Late,
}

/// Over the network.
pub struct OverTls;

impl AskInstances for OverTls {
    fn ask<'a>(
        &'a self,
        cluster: &'a Cluster,
        material: &'a Material,
        addresses: Vec<Option<IpAddr>>,
    ) -> BoxFuture<'a, Vec<Option<InstanceStatus>>> {
        async move {
            let config = match tls(material) {
                Ok(config) => Arc::new(config),
                Err(error) => {
                    tracing::warn!("instances can't be asked: {error}");
                    return vec![None; addresses.len()];
                }
            };
            let name = cluster.name.tls_name(&cluster.namespace);
            let requests = addresses.into_iter().map(|address| {
                let (config, name) = (config.clone(), name.clone());
                async move {
                    let address = address?;
                    let answer = timeout(DEADLINE, status(config, name, address)).await.unwrap_or(Err(AskError::Late));
                    answer.inspect_err(|error| tracing::debug!(%address, "an instance gives no status: {error}")).ok()
                }
            });
            join_all(requests).await
        }
        .boxed()
    }
}

fn tls(material: &Material) -> Result<ClientConfig, AskError> {
    let error = |error: &dyn std::fmt::Display| AskError::Certificates(error.to_string());
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(material.root.authority.certificate.as_bytes());
    roots.add(authority.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
    let own = CertificateDer::from_pem_slice(material.replication.certificate.as_bytes()).map_err(|e| error(&e))?;
    let key = PrivateKeyDer::from_pem_slice(material.replication.key.as_bytes()).map_err(|e| error(&e))?;
    ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(vec![own], key).map_err(|e| error(&e))
}

async fn status(config: Arc<ClientConfig>, name: String, address: IpAddr) -> Result<InstanceStatus, AskError> {
    let host = ServerName::try_from(name.clone()).map_err(|error| AskError::Certificates(error.to_string()))?;
    let stream = TcpStream::connect((address, PORT_INSTANCE)).await?;
    let stream = TlsConnector::from(config).connect(host, stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/status").header("host", name).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| AskError::Answer(error.to_string()))?;
    // The connection is driven here and dropped with the answer: nothing outlives the deadline.
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        Ok::<_, AskError>((status, body.map_err(|error| AskError::Answer(error.to_string()))?.to_bytes()))
    };
    let (status, body) = tokio::select! {
        answer = exchange => answer?,
        ended = connection => {
            ended?;
            return Err(AskError::Answer("the connection ended".to_owned()));
        }
    };
    if !status.is_success() {
        return Err(AskError::Answer(format!("HTTP status {status}")));
    }
    serde_json::from_slice(&body).map_err(|error| AskError::Answer(error.to_string()))
}
