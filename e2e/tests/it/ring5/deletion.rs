//! Deleting a cluster: what goes, what stays, and that it needs no operator.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    env::image,
    kind,
    objects::{cluster, existing},
    pg::Pg,
    space::Space,
    wait::{always, until, when},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use postgres_operator::api::v1alpha1::ReclaimPolicy;
use serde_json::json;

use super::{CREATION, SHORT};

const SYSTEM: &str = "select system_identifier from pg_control_system()";
const LIMIT: Duration = Duration::from_secs(60);

async fn claims(space: &Space) -> Result<Vec<String>> {
    let api = Api::<PersistentVolumeClaim>::namespaced(space.client.clone(), &space.namespace);
    let claims = api.list(&ListParams::default()).await?;
    Ok(claims.into_iter().filter_map(|claim| claim.metadata.uid).collect())
}

async fn nothing_left(space: &Space) -> Result<Duration> {
    let look = || async {
        let (objects, claims) = (existing(&space.client, &space.namespace, "orders").await?, claims(space).await?);
        Ok(when(objects.is_empty() && claims.is_empty(), (objects.into_keys().collect::<Vec<_>>(), claims)))
    };
    Ok(until("nothing is left of the cluster", LIMIT, look).await?.1)
}

#[tokio::test]
async fn with_its_volumes() -> Result<()> {
    Space::run("delete", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 2)).await?;
        pg.ready("created", 2, CREATION).await?;
        space.record("pods gone", pg.delete().await?);
        space.record("everything gone after that", nothing_left(&space).await?);
        Ok(())
    })
    .await
}

/// The volumes stay; a new cluster of the name refuses to touch what is on them, says so, and comes up when they are gone.
#[tokio::test]
async fn retained_volumes_are_not_overwritten() -> Result<()> {
    Space::run("retain", async |space| {
        let mut wanted = cluster(&space.namespace, "orders", 1);
        wanted.spec.storage.reclaim_policy = ReclaimPolicy::Retain;
        let pg = Pg::create(&space, &wanted).await?;
        pg.ready("created", 1, CREATION).await?;
        pg.rw("create table t as select 42 as answer").await?;
        let system = pg.sql("orders-0", SYSTEM).await?;
        let kept = claims(&space).await?;
        ensure!(kept.len() == 1, "{} claims", kept.len());
        space.record("pods gone", pg.delete().await?);
        let look = || async {
            let left: Vec<String> = existing(&space.client, &space.namespace, "orders").await?.into_keys().collect();
            Ok(when(left.is_empty(), left))
        };
        until("only the volumes are left", LIMIT, look).await?;
        let stay = || async {
            let seen = claims(&space).await?;
            Ok(when(seen == kept, seen))
        };
        always("the volume claims stay", Duration::from_secs(5), stay).await?;

        let again = Pg::create(&space, &wanted).await?;
        let (seen, took) = again.condition("Degraded", "True DataRefused: ", CREATION).await?;
        space.record("data of the earlier cluster refused", took);
        ensure!(seen.contains("data-orders-0"), "the condition names no volume claim: {seen}");
        ensure!(claims(&space).await? == kept, "the volume claims were replaced");
        ensure!(system_on_volume(&space, "data-orders-0").await? == system, "the data was overwritten");

        let api = Api::<PersistentVolumeClaim>::namespaced(space.client.clone(), &space.namespace);
        api.delete("data-orders-0", &DeleteParams::default()).await?;
        again.ready("ready after the claim was deleted", 1, CREATION).await?;
        let fresh = again.sql("orders-0", SYSTEM).await?;
        ensure!(fresh != system, "the new cluster has the old one's data");
        Ok(())
    })
    .await
}

/// What is on a volume, seen by a pod that has nothing to do with the operator.
async fn system_on_volume(space: &Space, claim: &str) -> Result<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inspector"},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "containers": [{
                "name": "inspector", "image": image("POSTGRES_IMAGE_17_IN_CLUSTER")?,
                "command": ["pg_controldata", "/data/pgdata"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
        },
    });
    let pods = Api::<Pod>::namespaced(space.client.clone(), &space.namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let look = || async {
        let phase = pods.get("inspector").await?.status.and_then(|status| status.phase);
        Ok(when(phase.as_deref() == Some("Succeeded"), phase))
    };
    until("the volume was inspected", SHORT, look).await?;
    let text = pods.logs("inspector", &Default::default()).await?;
    pods.delete("inspector", &DeleteParams::default()).await?;
    let line = text.lines().find_map(|line| line.strip_prefix("Database system identifier:"));
    Ok(line.with_context(|| format!("no system identifier: {text}"))?.trim().to_owned())
}

/// Owner references do the work: the operator isn't needed.
#[tokio::test]
async fn while_the_operator_is_down() -> Result<()> {
    Space::run_alone("delete-down", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 1)).await?;
        pg.ready("created", 1, CREATION).await?;
        kind::scale_operator(&space.client, 0).await?;
        let deleted = async {
            space.record("pods gone, operator down", pg.delete().await?);
            nothing_left(&space).await
        }
        .await;
        kind::operator_back(&space.client).await?;
        space.record("everything gone after that", deleted?);
        Ok(())
    })
    .await
}
