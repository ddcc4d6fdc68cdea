//! The kind cluster that `hack/cluster.sh` brings up, with the operator installed from its manifests.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::OnceCell;

use crate::{
    env::{cache, image, target},
    manifests::{self, NAME, NAMESPACE},
    wait::{until, when},
};

/// The kubeconfig of the cluster.
///
/// # Errors
/// It isn't there.
pub fn kubeconfig() -> Result<PathBuf> {
    let name = std::env::var("CLUSTER").unwrap_or_else(|_| "postgres-operator".to_owned());
    let path = cache()?.join(format!("kubeconfig-{name}"));
    if !path.exists() {
        bail!("{} isn't there: run `make cluster`", path.display());
    }
    Ok(path)
}

/// A client that may do everything; no call hangs longer than 15 s.
///
/// # Errors
/// There is no cluster.
pub async fn client() -> Result<Client> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig()?)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(15));
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// kubectl on this cluster: its output.
///
/// # Errors
/// It fails, or takes longer than 60 s; its words are in the message.
pub async fn kubectl(arguments: &[&str]) -> Result<String> {
    let program = cache()?.join("bin/kubectl");
    let program = if program.exists() { program } else { PathBuf::from("kubectl") };
    let output = tokio::process::Command::new(program)
        .env("KUBECONFIG", kubeconfig()?)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let what = || format!("kubectl {}", arguments.join(" "));
    let output = tokio::time::timeout(Duration::from_secs(60), output).await.with_context(what)?.with_context(what)?;
    if !output.status.success() {
        bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The operator of this checkout runs: installed once per run from `bundle/plain/install.yaml`, with the image that
/// `hack/image.sh` made last.
///
/// # Errors
/// There is no image, or the Deployment doesn't become available within two minutes.
pub async fn operator(client: &Client) -> Result<()> {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED.get_or_try_init(|| install(client)).await?;
    Ok(())
}

async fn install(client: &Client) -> Result<()> {
    let file = target().join("operator-image");
    let operator = std::fs::read_to_string(&file)
        .with_context(|| format!("{} can't be read: run `make image`", file.display()))?;
    let operator = operator.trim();
    let mut variables = vec![("OPERATOR_IMAGE".to_owned(), operator.to_owned())];
    for major in [15, 17, 18] {
        variables.push((format!("POSTGRES_IMAGE_{major}"), image(&format!("POSTGRES_IMAGE_{major}_IN_CLUSTER"))?));
    }
    manifests::deploy(client, operator, &variables).await?;
    available(client).await
}

/// Waits until every replica of the operator is the wanted one and available.
///
/// # Errors
/// Not within two minutes.
pub async fn available(client: &Client) -> Result<()> {
    let api = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let look = || async {
        let deployment = api.get(NAME).await?;
        let generation = deployment.metadata.generation;
        let wanted = deployment.spec.and_then(|spec| spec.replicas);
        let status = deployment.status.unwrap_or_default();
        let counts = [status.updated_replicas, status.available_replicas, status.replicas];
        let all = counts.iter().all(|count| count.unwrap_or(0) == wanted.unwrap_or(1));
        Ok(when(all && status.observed_generation == generation, (wanted, counts, status.conditions)))
    };
    until("the operator is available", Duration::from_secs(120), look).await?;
    Ok(())
}

/// Changes the number of replicas of the operator and waits until it is so.
///
/// # Errors
/// Not within two minutes.
pub async fn scale_operator(client: &Client, replicas: u32) -> Result<()> {
    let count = format!("--replicas={replicas}");
    kubectl(&["--namespace", NAMESPACE, "scale", "deployment", NAME, &count]).await?;
    available(client).await
}

/// Kills the operator without a warning, as a node's death would, and waits until another pod of it is available.
///
/// # Errors
/// Not within two minutes.
pub async fn kill_operator(client: &Client) -> Result<()> {
    let selector = format!("--selector=app.kubernetes.io/name={NAME}");
    let force = ["--namespace", NAMESPACE, "delete", "pods", &selector, "--grace-period=0", "--force", "--wait=false"];
    kubectl(&force).await?;
    available(client).await
}

/// The operator as its manifests have it, after a test that scaled it.
///
/// # Errors
/// Not available within two minutes.
pub async fn operator_back(client: &Client) -> Result<()> {
    install(client).await
}
