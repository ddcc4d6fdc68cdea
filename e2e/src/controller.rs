//! The controller as a process of this machine, under exactly the rights its manifests give it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams};
use tokio::sync::OnceCell;

use crate::{
    apiserver::{ApiServer, Identity},
    env::{image, repository, target},
    manifests::{self, NAME, NAMESPACE},
    wait::{Look, until},
};

/// The user that the controller is for the API server.
pub const USER: &str = "system:serviceaccount:postgres-operator-system:postgres-operator";

/// An API server of its own with the operator's manifests applied; controllers are started on it.
pub struct Site {
    /// The API server.
    pub server: Arc<ApiServer>,
    /// A client that may do everything.
    pub client: Client,
    program: PathBuf,
    folder: PathBuf,
}

/// A running controller; killed when dropped.
pub struct Controller {
    child: Child,
    log: PathBuf,
    /// `http://127.0.0.1:port` of the metrics and of the probes.
    pub metrics: u16,
    /// Port of the probes.
    pub probes: u16,
}

impl Site {
    /// Starts an API server and installs the operator's manifests.
    ///
    /// # Errors
    /// The operator doesn't compile, the server doesn't start, the manifests are refused.
    pub async fn new(test: &str) -> Result<Self> {
        let program = program().await?;
        let server = ApiServer::own().await?;
        let client = server.client(&Identity::Admin).await?;
        manifests::install(&client).await?;
        let folder = target().join("e2e").join(test);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { server, client, program, folder })
    }

    /// Starts a controller and waits until it says that it is ready.
    ///
    /// # Errors
    /// It doesn't get ready within 30 s; the end of its log is in the message.
    pub async fn start(&self, name: &str) -> Result<Controller> {
        let mut controller = self.spawn(name).await?;
        let port = controller.probes;
        let ready = until("the controller is ready", Duration::from_secs(30), || {
            let runs = controller.runs();
            async move {
                Ok(match get(port, "/readyz").await {
                    _ if !runs => Look::Done(false),
                    Ok((200, _)) => Look::Done(true),
                    Ok((code, body)) => Look::NotYet(format!("{code} {body}")),
                    Err(error) => Look::NotYet(format!("{error:#}")),
                })
            }
        })
        .await;
        match ready {
            Ok((true, _)) => Ok(controller),
            Ok((false, _)) => bail!("the controller ended; its last words:\n{}", controller.tail(20)),
            Err(error) => Err(error.context(format!("the controller's last words:\n{}", controller.tail(20)))),
        }
    }

    /// Starts a controller without waiting.
    ///
    /// # Errors
    /// The process can't be started.
    pub async fn spawn(&self, name: &str) -> Result<Controller> {
        let token = token_of(&self.client, NAMESPACE, NAME).await?;
        let kubeconfig = self.folder.join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, serde_yaml::to_string(&self.server.kubeconfig(&Identity::Token(token)))?)?;
        let log = self.folder.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let (metrics, probes) = (free_port()?, free_port()?);
        let mut command = Command::new(&self.program);
        command
            .args(["controller", &format!("--metrics-address=127.0.0.1:{metrics}")])
            .arg(format!("--probes-address=127.0.0.1:{probes}"))
            .env("KUBECONFIG", &kubeconfig)
            .env("LOG_FORMAT", "text")
            .env("POD_NAME", name)
            .env("POD_NAMESPACE", NAMESPACE)
            .env("OPERATOR_IMAGE", "registry.example.com/postgres-operator:test")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        for major in [15, 17, 18] {
            command.env(format!("POSTGRES_IMAGE_{major}"), image(&format!("POSTGRES_IMAGE_{major}_IN_CLUSTER"))?);
        }
        let child = command.spawn().with_context(|| self.program.display().to_string())?;
        Ok(Controller { child, log, metrics, probes })
    }
}

impl Controller {
    /// Kills it, as a node's death would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits.
    ///
    /// # Errors
    /// It doesn't end in good order within 15 s.
    pub async fn stop(&mut self) -> Result<()> {
        let status = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status()?;
        ensure!(status.success(), "the controller has ended before it was asked to");
        let child = &mut self.child;
        let mut end = None;
        until("the controller ends after SIGTERM", Duration::from_secs(15), || {
            end = child.try_wait().ok().flatten();
            let look = end.map_or_else(|| Look::NotYet("it runs".to_owned()), |_| Look::Done(()));
            async { Ok(look) }
        })
        .await?;
        ensure!(end.is_some_and(|status| status.success()), "it ended with {end:?}");
        Ok(())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of its log.
    pub fn tail(&mut self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let skip = text.lines().count().saturating_sub(lines);
        text.lines().skip(skip).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// GET from a port of this machine: status and body.
///
/// # Errors
/// Nothing answers within 5 s.
pub async fn get(port: u16, path: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        anyhow::Ok((code, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(5), exchange).await?.with_context(|| format!("127.0.0.1:{port}{path}"))
}

/// A token of a ServiceAccount, valid for two hours.
///
/// # Errors
/// The API server gives none.
pub async fn token_of(client: &Client, namespace: &str, account: &str) -> Result<String> {
    let api = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(7200), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let answer = api.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.context("the API server gave no token")?.token)
}

/// A port nobody listens on just now.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The operator's program, compiled from this checkout as it is now.
///
/// # Errors
/// It doesn't compile.
pub async fn program() -> Result<PathBuf> {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    let build = || async {
        let output = tokio::process::Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--package", NAME, "--bin", NAME])
            .current_dir(repository())
            .output()
            .await?;
        ensure!(output.status.success(), "the operator doesn't compile: {}", String::from_utf8_lossy(&output.stderr));
        // Under a name of this run: another build into the same folder must not exchange it under the tests.
        let folder = target().join("e2e").join("bin");
        std::fs::create_dir_all(&folder)?;
        let program = folder.join(format!("{NAME}-{}", std::process::id()));
        std::fs::copy(target().join("debug").join(NAME), &program)?;
        remove_others(&folder, &program);
        anyhow::Ok(program)
    };
    BUILT.get_or_try_init(build).await.cloned()
}

/// Removes the programs of runs that are over.
fn remove_others(folder: &Path, own: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let process = path.file_name().and_then(|name| name.to_str()?.rsplit('-').next().map(str::to_owned));
        let runs = process.is_some_and(|process| Path::new("/proc").join(process).exists());
        if path != own && !runs {
            let _ = std::fs::remove_file(path);
        }
    }
}
