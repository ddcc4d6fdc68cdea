//! A PostgresCluster of the kind cluster under test: its resource, its pods, its SQL.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use operator_core::names::{LABEL_CLUSTER, LABEL_ROLE};
use postgres_operator::api::{PostgresCluster, conditions};
use serde_json::Value;

use crate::{
    env::image,
    kind::kubectl,
    objects::condition,
    space::Space,
    wait::{Look, until, when},
};

const CLIENT: &str = "client";

/// One cluster.
pub struct Pg {
    space: Arc<Space>,
    name: String,
}

/// What tells whether a pod was restarted or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The pod itself.
    pub uid: String,
    /// Restarts of the container `postgres`.
    pub restarts: i32,
    /// Label of the role.
    pub role: String,
    /// The pod is ready.
    pub ready: bool,
}

impl Pg {
    /// Creates the cluster.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn create(space: &Arc<Space>, cluster: &PostgresCluster) -> Result<Self> {
        let pg = Self { space: Arc::clone(space), name: cluster.name_any() };
        pg.api().create(&PostParams::default(), cluster).await?;
        Ok(pg)
    }

    fn api(&self) -> Api<PostgresCluster> {
        Api::namespaced(self.space.client.clone(), &self.space.namespace)
    }

    /// The pods' API.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.space.client.clone(), &self.space.namespace)
    }

    /// The resource.
    ///
    /// # Errors
    /// It doesn't exist.
    pub async fn get(&self) -> Result<PostgresCluster> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Changes the spec.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(serde_json::json!({ "spec": spec }));
        self.api().patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Deletes the resource and waits until it and its pods are gone.
    ///
    /// # Errors
    /// Not within 60 s.
    pub async fn delete(&self) -> Result<Duration> {
        self.api().delete(&self.name, &DeleteParams::default()).await?;
        let look = || async {
            let pods = self.lives().await?;
            let there = self.api().get_opt(&self.name).await?.is_some();
            Ok(when(!there && pods.is_empty(), (there, pods)))
        };
        Ok(until("the cluster and its pods are gone", Duration::from_secs(60), look).await?.1)
    }

    /// Waits until the resource says that its present generation is ready with this many instances, in the promised words,
    /// and that nothing is wrong; the pods have to agree.
    ///
    /// # Errors
    /// Not within `limit`.
    pub async fn ready(&self, step: &str, replicas: u32, limit: Duration) -> Result<Duration> {
        let wanted = format!("True {}: {}", conditions::RECONCILIATION_SUCCEEDED, conditions::ready_message(replicas));
        let look = || async {
            let seen = self.get().await?;
            let status = seen.status.clone().unwrap_or_default();
            let current = status.observed_generation == seen.metadata.generation;
            let ready = condition(&seen, conditions::READY);
            let calm = !condition(&seen, conditions::DEGRADED).starts_with("True");
            let counted = status.ready_replicas == replicas;
            let said = current && ready == wanted && calm && counted;
            // The status follows the pods by a moment; only both together count.
            let lives = self.lives().await?;
            let agree = roles_agree(&lives, status.primary.as_deref(), replicas);
            Ok(when(said && agree, (current, ready, status.instances, lives)))
        };
        let what = format!("{step}: {} is ready with {replicas} instances", self.name);
        let took = until(&what, limit, look).await?.1;
        self.space.record(step, took);
        Ok(took)
    }

    /// Waits until a condition is as wanted: `wanted` is the beginning of `status reason: message`.
    ///
    /// # Errors
    /// Not within `limit`.
    pub async fn condition(&self, kind: &str, wanted: &str, limit: Duration) -> Result<(String, Duration)> {
        let look = || async {
            let seen = condition(&self.get().await?, kind);
            Ok(if seen.starts_with(wanted) { Look::Done(seen) } else { Look::NotYet(seen) })
        };
        until(&format!("condition {kind} starts with {wanted:?}"), limit, look).await
    }

    /// Name of the primary's pod, from the status.
    ///
    /// # Errors
    /// The status names none.
    pub async fn primary(&self) -> Result<String> {
        self.get().await?.status.and_then(|status| status.primary).context("the status names no primary")
    }

    /// Name of some standby's pod.
    ///
    /// # Errors
    /// There is none.
    pub async fn standby(&self) -> Result<String> {
        let lives = self.lives().await?;
        let standby = lives.iter().find(|(_, life)| life.role == "standby").map(|(name, _)| name.clone());
        standby.with_context(|| format!("no standby: {lives:?}"))
    }

    /// Every pod of the cluster.
    ///
    /// # Errors
    /// The API server doesn't answer.
    pub async fn lives(&self) -> Result<BTreeMap<String, Life>> {
        let selector = ListParams::default().labels(&format!("{LABEL_CLUSTER}={}", self.name));
        Ok(self.pods().list(&selector).await?.into_iter().map(|pod| (pod.name_any(), life(&pod))).collect())
    }

    /// SQL as the application, through the Service `<name>-rw`.
    ///
    /// # Errors
    /// It fails; psql's words are in the message.
    pub async fn rw(&self, sql: &str) -> Result<String> {
        self.application("-rw", sql).await
    }

    /// SQL as the application, through the Service `<name>-ro`.
    ///
    /// # Errors
    /// As [`Pg::rw`].
    pub async fn ro(&self, sql: &str) -> Result<String> {
        self.application("-ro", sql).await
    }

    async fn application(&self, service: &str, sql: &str) -> Result<String> {
        self.start_client().await?;
        let secrets = Api::<Secret>::namespaced(self.space.client.clone(), &self.space.namespace);
        let secret = secrets.get(&format!("{}-app", self.name)).await?;
        let uri = secret.data.as_ref().and_then(|data| data.get("uri")).context("the Secret has no uri")?;
        let uri = String::from_utf8(uri.0.clone())?;
        let uri = uri.replace(&format!("{}-rw", self.name), &format!("{}{service}", self.name));
        // A node's kube-proxy learns of a new endpoint a moment after the API server does, and refuses until then. What was
        // never sent can be sent again; any other failure is the answer.
        let look = || async {
            match self.exec(CLIENT, CLIENT, &["env", "PGCONNECT_TIMEOUT=5", "psql", &uri, "-XAtc", sql]).await {
                Err(error) if error.to_string().contains("Connection refused") => Ok(Look::NotYet(error.to_string())),
                answer => Ok(Look::Done(answer)),
            }
        };
        until(&format!("the Service {}{service} leads somewhere", self.name), Duration::from_secs(10), look).await?.0
    }

    /// SQL as the superuser, inside a pod.
    ///
    /// # Errors
    /// As [`Pg::rw`].
    pub async fn sql(&self, pod: &str, sql: &str) -> Result<String> {
        self.exec(pod, "postgres", &["psql", "-h", "/run/postgresql", "-U", "postgres", "-XAtc", sql]).await
    }

    /// A command in a pod.
    ///
    /// # Errors
    /// It fails.
    pub async fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String> {
        let fixed = ["--namespace", &self.space.namespace, "exec", pod, "--container", container, "--"];
        Ok(kubectl(&[fixed.as_slice(), command].concat()).await?.trim().to_owned())
    }

    /// Deletes a pod.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn delete_pod(&self, pod: &str, grace_seconds: u32) -> Result<()> {
        self.pods().delete(pod, &DeleteParams::default().grace_period(grace_seconds)).await?;
        Ok(())
    }

    /// A pod with psql that stays, as an application would have.
    async fn start_client(&self) -> Result<()> {
        if self.pods().get_opt(CLIENT).await?.is_none() {
            let metadata = ObjectMeta { name: Some(CLIENT.to_owned()), ..ObjectMeta::default() };
            let container = Container {
                name: CLIENT.to_owned(),
                image: Some(image("POSTGRES_IMAGE_17_IN_CLUSTER")?),
                command: Some(vec!["sleep".to_owned(), "infinity".to_owned()]),
                ..Container::default()
            };
            let spec = PodSpec {
                containers: vec![container],
                termination_grace_period_seconds: Some(0),
                ..PodSpec::default()
            };
            let pod = Pod { metadata, spec: Some(spec), status: None };
            self.pods().create(&PostParams::default(), &pod).await?;
        }
        let look = || async {
            let pod = self.pods().get(CLIENT).await?;
            Ok(when(life(&pod).ready, pod.status))
        };
        until("the client pod is ready", Duration::from_secs(60), look).await?;
        Ok(())
    }
}

/// One primary, the one that the status names, the others standbys, all ready.
fn roles_agree(lives: &BTreeMap<String, Life>, primary: Option<&str>, replicas: u32) -> bool {
    let count = |role: &str| lives.values().filter(|life| life.role == role && life.ready).count();
    let standbys = usize::try_from(replicas.saturating_sub(1)).unwrap_or(usize::MAX);
    let named = primary.and_then(|name| lives.get(name)).is_some_and(|life| life.role == "primary");
    count("primary") == 1 && count("standby") == standbys && named
}

fn life(pod: &Pod) -> Life {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    Life {
        uid: pod.uid().unwrap_or_default(),
        restarts: containers.iter().find(|container| container.name == "postgres").map_or(0, |c| c.restart_count),
        role: pod.labels().get(LABEL_ROLE).cloned().unwrap_or_default(),
        ready: pod.metadata.deletion_timestamp.is_none()
            && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
    }
}
