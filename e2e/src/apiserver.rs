//! A real Kubernetes API server, without nodes and without controllers: etcd and kube-apiserver in containers.
//!
//! # Guarantees
//! RBAC is enforced, ServiceAccount tokens work, the audit log is complete and readable.
//! # Caveats
//! Nothing collects garbage, nothing starts pods, namespaces never finish terminating.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use kube::{
    Client, Config,
    config::{
        AuthInfo, Cluster, Context as KubeContext, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster,
        NamedContext,
    },
};
use testcontainers::{
    ContainerAsync, GenericImage, ImageExt,
    core::{IntoContainerPort, logs::LogFrame},
    runners::AsyncRunner,
};
use tokio::runtime::Runtime;

use crate::{
    audit::{Audit, POLICY},
    env::{image, name_and_tag},
    pki::{Authority, Leaf, signing_key},
    wait::{Look, until},
};

/// Label on every container of a run, with the process that made it.
pub const LABEL: &str = "com.example.postgres-operator.e2e";
const PORT: u16 = 6443;

/// Credentials for the API server.
#[derive(Clone, Debug)]
pub enum Identity {
    /// May do everything.
    Admin,
    /// The token of a ServiceAccount.
    Token(String),
}

/// The API server; its containers go when the last user drops it.
pub struct ApiServer {
    // Containers are bound to the runtime they were started in, and tests come and go with theirs.
    runtime: Option<Runtime>,
    containers: Option<[ContainerAsync<GenericImage>; 2]>,
    port: u16,
    authority: String,
    admin: Leaf,
    /// What was asked of it.
    pub audit: Arc<Audit>,
}

static SHARED: Mutex<Weak<ApiServer>> = Mutex::new(Weak::new());

impl ApiServer {
    /// The server of this process, started if nobody uses one just now.
    ///
    /// # Errors
    /// No engine, no images, or the server doesn't come up within 90 s; its log is in the message.
    pub async fn shared() -> Result<Arc<Self>> {
        tokio::task::spawn_blocking(|| {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(server) = shared.upgrade() {
                return Ok(server);
            }
            let server = Arc::new(Self::start()?);
            *shared = Arc::downgrade(&server);
            Ok(server)
        })
        .await?
    }

    /// A server nobody else uses: for tests that read the audit log or run a controller.
    ///
    /// # Errors
    /// As [`ApiServer::shared`].
    pub async fn own() -> Result<Arc<Self>> {
        tokio::task::spawn_blocking(|| Ok(Arc::new(Self::start()?))).await?
    }

    fn start() -> Result<Self> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        remove_leftovers();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let authority = Authority::new("e2e")?;
        let admin = authority.client("admin", Some("system:masters"))?;
        let audit = Arc::new(Audit::default());
        let (containers, port) = runtime.block_on(containers(&authority, Arc::clone(&audit)))?;
        let server = Self {
            containers: Some(containers),
            port,
            authority: authority.certificate,
            admin,
            audit: Arc::clone(&audit),
            runtime: Some(runtime),
        };
        let ready = server.runtime.as_ref().map(|runtime| runtime.block_on(server.wait_ready()));
        ready.transpose().with_context(|| format!("the API server's last words:\n{}", audit.tail(15)))?;
        Ok(server)
    }

    async fn wait_ready(&self) -> Result<()> {
        let client = self.client(&Identity::Admin).await?;
        let look = || async {
            let answer = client.request_text(http_get("/readyz")?).await?;
            Ok(if answer == "ok" { Look::Done(()) } else { Look::NotYet(answer) })
        };
        until("the API server is ready", Duration::from_secs(90), look).await?;
        Ok(())
    }

    /// A kubeconfig with these credentials.
    #[must_use]
    pub fn kubeconfig(&self, identity: &Identity) -> Kubeconfig {
        let mut auth = AuthInfo::default();
        match identity {
            Identity::Admin => auth = certificate(&self.admin),
            Identity::Token(token) => auth.token = Some(token.clone().into()),
        }
        kubeconfig(&format!("https://127.0.0.1:{}", self.port), &self.authority, auth, None)
    }

    /// A client with these credentials, for the caller's runtime; no call hangs longer than 15 s.
    ///
    /// # Errors
    /// The credentials can't be used.
    pub async fn client(&self, identity: &Identity) -> Result<Client> {
        client(self.kubeconfig(identity)).await
    }

    /// Port on every address of this machine, and the authority that signed the server's certificate, PEM.
    #[must_use]
    pub fn endpoint(&self) -> (u16, &str) {
        (self.port, &self.authority)
    }
}

fn certificate(leaf: &Leaf) -> AuthInfo {
    AuthInfo {
        client_certificate_data: Some(base64(leaf.certificate.as_bytes())),
        client_key_data: Some(base64(leaf.key.as_bytes()).into()),
        ..AuthInfo::default()
    }
}

fn kubeconfig(url: &str, authority: &str, auth: AuthInfo, tls_name: Option<&str>) -> Kubeconfig {
    let name = || "e2e".to_owned();
    let cluster = Cluster {
        server: Some(url.to_owned()),
        certificate_authority_data: Some(base64(authority.as_bytes())),
        tls_server_name: tls_name.map(str::to_owned),
        ..Cluster::default()
    };
    let context = KubeContext { cluster: name(), user: Some(name()), ..KubeContext::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(auth), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    }
}

async fn client(kubeconfig: Kubeconfig) -> Result<Client> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(15));
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A client for any HTTPS server whose certificate this authority signed for this name.
///
/// # Errors
/// The certificates can't be used.
pub async fn https_client(url: &str, authority: &str, leaf: Option<&Leaf>, tls_name: Option<&str>) -> Result<Client> {
    client(kubeconfig(url, authority, leaf.map(certificate).unwrap_or_default(), tls_name)).await
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let (Some(runtime), Some(containers)) = (self.runtime.take(), self.containers.take()) else { return };
        // A runtime can't be blocked on from inside another one.
        let remover = std::thread::spawn(move || {
            runtime.block_on(async {
                for container in containers {
                    let _ = container.rm().await;
                }
            });
        });
        let _ = remover.join();
    }
}

async fn containers(authority: &Authority, audit: Arc<Audit>) -> Result<([ContainerAsync<GenericImage>; 2], u16)> {
    let etcd = etcd().await?;
    let store = etcd.get_bridge_ip_address().await.context("address of the etcd container")?;
    let api = kube_apiserver(authority, &format!("http://{store}:2379"), audit).await?;
    let port = api.get_host_port_ipv4(PORT).await?;
    Ok(([api, etcd], port))
}

async fn etcd() -> Result<ContainerAsync<GenericImage>> {
    let image = image("ETCD_IMAGE")?;
    let (name, tag) = name_and_tag(&image);
    let arguments = [
        "--data-dir=/data",
        "--listen-client-urls=http://0.0.0.0:2379",
        "--advertise-client-urls=http://0.0.0.0:2379",
        // What it holds is worth nothing after the run.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ];
    GenericImage::new(name, tag)
        .with_entrypoint("/usr/local/bin/etcd")
        .with_cmd(arguments)
        // By its name: the address on the engine's nameless default can't be asked for.
        .with_network("bridge")
        .with_label(LABEL, std::process::id().to_string())
        .start()
        .await
        .with_context(|| format!("starting {image}"))
}

async fn kube_apiserver(authority: &Authority, store: &str, audit: Arc<Audit>) -> Result<ContainerAsync<GenericImage>> {
    let image = image("KUBE_APISERVER_IMAGE")?;
    let (name, tag) = name_and_tag(&image);
    let server =
        authority.server("kube-apiserver", &["127.0.0.1", "172.17.0.1", "localhost", "kubernetes.default.svc"])?;
    let (private, public) = signing_key()?;
    let arguments = [
        format!("--etcd-servers={store}"),
        format!("--secure-port={PORT}"),
        "--client-ca-file=/pki/ca.crt".to_owned(),
        "--tls-cert-file=/pki/server.crt".to_owned(),
        "--tls-private-key-file=/pki/server.key".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--service-account-signing-key-file=/pki/sa.key".to_owned(),
        "--service-account-key-file=/pki/sa.pub".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        // No controller makes the default ServiceAccounts here.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--audit-policy-file=/pki/audit.yaml".to_owned(),
        "--audit-log-path=-".to_owned(),
    ];
    GenericImage::new(name, tag)
        .with_entrypoint("/usr/local/bin/kube-apiserver")
        .with_exposed_port(PORT.tcp())
        .with_cmd(arguments)
        .with_network("bridge")
        .with_label(LABEL, std::process::id().to_string())
        .with_copy_to("/pki/ca.crt", authority.certificate.clone().into_bytes())
        .with_copy_to("/pki/server.crt", server.certificate.into_bytes())
        .with_copy_to("/pki/server.key", server.key.into_bytes())
        .with_copy_to("/pki/sa.key", private.into_bytes())
        .with_copy_to("/pki/sa.pub", public.into_bytes())
        .with_copy_to("/pki/audit.yaml", POLICY.as_bytes().to_vec())
        .with_log_consumer(move |frame: &LogFrame| audit.accept(frame))
        .start()
        .await
        .with_context(|| format!("starting {image}"))
}

/// Removes containers of runs whose process is gone: a killed run can't clean up.
fn remove_leftovers() {
    let format = format!("{{{{.ID}}}} {{{{.Label \"{LABEL}\"}}}}");
    let list = ["ps", "--all", "--filter", &format!("label={LABEL}"), "--format", &format].map(str::to_owned);
    let Ok(output) = std::process::Command::new("docker").args(list).output() else { return };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((id, process)) = line.split_once(' ') else { continue };
        if !std::path::Path::new("/proc").join(process).exists() {
            let _ = std::process::Command::new("docker").args(["rm", "--force", "--volumes", id]).output();
        }
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path).body(Vec::new()).map_err(|error| anyhow!("{path}: {error}"))
}

fn base64(bytes: &[u8]) -> String {
    let text = serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default();
    text.as_str().unwrap_or_default().to_owned()
}
