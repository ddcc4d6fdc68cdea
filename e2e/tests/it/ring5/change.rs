//! Scaling, parameters, drift: changes of a running cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    objects::cluster,
    pg::Pg,
    space::Space,
    wait::{until, when},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{CREATION, SHORT};

/// One, three, two, and a row that survives; the volume of the instance taken away goes with it (reclaimPolicy Delete).
#[tokio::test]
async fn scale_up_and_down() -> Result<()> {
    Space::run("scale", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 1)).await?;
        pg.ready("created", 1, CREATION).await?;
        pg.rw("create table t as select 42 as answer").await?;
        let primary = pg.primary().await?;
        let before = pg.lives().await?;
        pg.change(json!({"replicas": 3})).await?;
        pg.ready("1 to 3", 3, CREATION).await?;
        let look = || async {
            let seen = pg.ro("select answer from t").await?;
            Ok(when(seen == "42", seen))
        };
        until("the new standbys have the row", SHORT, look).await?;
        pg.change(json!({"replicas": 2})).await?;
        pg.ready("3 to 2", 2, SHORT).await?;
        ensure!(pg.rw("select answer from t").await? == "42", "the row is gone");
        let after = pg.lives().await?;
        ensure!(after.get(&primary) == before.get(&primary), "the primary was restarted: {before:?}, {after:?}");
        let claims = Api::<PersistentVolumeClaim>::namespaced(space.client.clone(), &space.namespace);
        let look = || async {
            let count = claims.list(&ListParams::default()).await?.items.len();
            Ok(when(count == 2, count))
        };
        until("the volume of the instance taken away is gone", SHORT, look).await?;
        let slots = "select count(*) from pg_replication_slots where not active";
        let look = || async {
            let idle = pg.sql(&primary, slots).await?;
            Ok(when(idle == "0", idle))
        };
        until("the slot of the instance taken away is gone", SHORT, look).await?;
        Ok(())
    })
    .await
}

/// A parameter takes effect without a restart; one that PostgreSQL refuses changes nothing and is said.
#[tokio::test]
async fn parameters() -> Result<()> {
    Space::run("parameters", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 2)).await?;
        pg.ready("created", 2, CREATION).await?;
        let before = pg.lives().await?;
        pg.change(json!({"postgresql": {"parameters": {"work_mem": "7MB"}}})).await?;
        shows(&space, &pg, "work_mem", "7MB").await?;
        pg.ready("ready after a change", 2, SHORT).await?;

        pg.change(json!({"postgresql": {"parameters": {"work_mem": "lots"}}})).await?;
        let (seen, took) = pg.condition("Degraded", "True ParameterRefused: ", SHORT).await?;
        space.record("refused parameter said", took);
        ensure!(seen.contains("work_mem"), "the condition names no parameter: {seen}");
        ensure!(pg.rw("show work_mem").await? == "7MB", "the refused value took effect");
        pg.rw("create table t (id int)").await.context("after a refused parameter")?;

        pg.change(json!({"postgresql": {"parameters": {"work_mem": "9MB"}}})).await?;
        shows(&space, &pg, "work_mem", "9MB").await?;
        pg.ready("ready after the correction", 2, SHORT).await?;
        ensure!(pg.lives().await? == before, "an instance was restarted: {before:?}, {:?}", pg.lives().await?);
        Ok(())
    })
    .await
}

async fn shows(space: &Space, pg: &Pg, name: &str, wanted: &str) -> Result<()> {
    let look = || async {
        let mut seen = Vec::new();
        for pod in pg.lives().await?.keys() {
            seen.push(pg.sql(pod, &format!("show {name}")).await?);
        }
        Ok(when(seen.iter().all(|value| value == wanted), seen))
    };
    let took = until(&format!("{name} is {wanted} everywhere"), SHORT, look).await?.1;
    space.record(&format!("{name} = {wanted} in force everywhere"), took);
    Ok(())
}

/// An edited and a deleted Secret come back as they were within 5 s; PostgreSQL isn't restarted, the password still works.
#[tokio::test]
async fn drift_without_a_restart() -> Result<()> {
    Space::run("drift", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 1)).await?;
        pg.ready("created", 1, CREATION).await?;
        pg.rw("create table t (id int)").await?;
        let before = pg.lives().await?;
        let secrets = Api::<Secret>::namespaced(space.client.clone(), &space.namespace);
        let data = async || anyhow::Ok(secrets.get_opt("orders-app").await?.and_then(|secret| secret.data));
        let wanted = data().await?;
        let back = async |what: &str| {
            let look = || async {
                let same = data().await? == wanted;
                Ok(when(same, "it differs"))
            };
            until(what, Duration::from_secs(5), look).await
        };
        let edit = Patch::Merge(json!({"data": {"password": "aGFja2Vk"}}));
        secrets.patch("orders-app", &PatchParams::default(), &edit).await?;
        space.record("edited Secret back", back("the edited Secret is as it was").await?.1);
        secrets.delete("orders-app", &DeleteParams::default()).await?;
        space.record("deleted Secret back", back("the deleted Secret is as it was").await?.1);
        pg.rw("insert into t values (1)").await.context("with the password that came back")?;
        ensure!(pg.lives().await? == before, "PostgreSQL was restarted");
        Ok(())
    })
    .await
}
