//! What dies comes back with its data.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{
    kind,
    objects::{cluster, count, existing},
    pg::Pg,
    space::Space,
    wait::{until, when},
};

use super::{CREATION, SHORT};

/// Kills PostgreSQL inside a pod: the server itself, as the kernel would when memory runs out.
async fn kill_postgres(pg: &Pg, pod: &str) -> Result<String> {
    let script = "read -r pid </var/lib/postgresql/data/pgdata/postmaster.pid && kill -KILL \"$pid\" && echo \"$pid\"";
    pg.exec(pod, "postgres", &["sh", "-c", script]).await
}

async fn running(pg: &Pg, pod: &str) -> Result<String> {
    pg.exec(pod, "postgres", &["head", "-n1", "/var/lib/postgresql/data/pgdata/postmaster.pid"]).await
}

/// The instance manager starts a killed server again, in the same container, with every acknowledged row.
#[tokio::test]
async fn a_killed_server_is_started_again_in_place() -> Result<()> {
    Space::run("killed", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 2)).await?;
        pg.ready("created", 2, CREATION).await?;
        pg.rw("create table t (id int primary key)").await?;
        let before = pg.lives().await?;
        for (id, pod) in [(1, pg.primary().await?), (2, pg.standby().await?)] {
            pg.rw(&format!("insert into t values ({id})")).await?;
            let killed = kill_postgres(&pg, &pod).await?;
            let began = Instant::now();
            let look = || async {
                let (pid, rows) = (running(&pg, &pod).await?, pg.sql(&pod, "select 'up'").await?);
                Ok(when(pid != killed && rows == "up", (pid, rows)))
            };
            until("another server process runs", SHORT, look).await?;
            let role = if id == 1 { "primary" } else { "standby" };
            space.record(&format!("server of the {role} killed, answers again"), began.elapsed());
            pg.ready(&format!("ready after the {role}'s server was killed"), 2, SHORT).await?;
            let seen = pg.rw("select count(*) from t").await?;
            ensure!(seen == id.to_string(), "{seen} rows of {id}");
        }
        ensure!(pg.lives().await? == before, "a pod or container was restarted: {before:?}, {:?}", pg.lives().await?);
        follows(&pg, "2").await
    })
    .await
}

/// A write after the fault arrives at the standbys: replication goes on.
async fn follows(pg: &Pg, rows: &str) -> Result<()> {
    let look = || async {
        let seen = pg.ro("select count(*) from t").await?;
        Ok(when(seen == rows, seen))
    };
    until("the standbys have every row", SHORT, look).await?;
    Ok(())
}

/// A deleted pod comes back on its volume: standby, then primary, gently and by force.
#[tokio::test]
async fn a_deleted_pod_comes_back_with_its_data() -> Result<()> {
    Space::run("deleted-pod", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 3)).await?;
        pg.ready("created", 3, CREATION).await?;
        pg.rw("create table t (id int primary key)").await?;
        let primary = pg.primary().await?;
        let cases = [
            (pg.standby().await?, 60, "standby"),
            (primary.clone(), 60, "primary"),
            (primary.clone(), 0, "primary by force"),
        ];
        for (number, (pod, grace, what)) in cases.into_iter().enumerate() {
            pg.rw(&format!("insert into t values ({number})")).await?;
            let system = pg.sql(&pod, "select system_identifier from pg_control_system()").await?;
            let before = pg.lives().await?.get(&pod).map(|life| life.uid.clone());
            pg.delete_pod(&pod, grace).await?;
            let look = || async {
                let seen = pg.lives().await?.get(&pod).cloned();
                Ok(when(seen.as_ref().is_some_and(|life| Some(&life.uid) != before.as_ref()), seen))
            };
            until("another pod of the name exists", CREATION, look).await?;
            pg.ready(&format!("ready after deleting the {what}"), 3, CREATION).await?;
            ensure!(pg.primary().await? == primary, "another instance is primary, without anything that promotes");
            let again = pg.sql(&pod, "select system_identifier from pg_control_system()").await?;
            ensure!(system == again, "the pod came back with other data");
            let rows = pg.rw("select count(*) from t").await?;
            ensure!(rows == (number + 1).to_string(), "{rows} rows of {}", number + 1);
        }
        follows(&pg, "3").await
    })
    .await
}

/// The operator dies while it makes a cluster, again and again; what comes out is what would have come out anyway.
#[tokio::test]
async fn the_operator_killed_while_it_makes_a_cluster() -> Result<()> {
    Space::run_alone("operator-killed", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 3)).await?;
        let mut seen = Vec::new();
        for wanted in [1, count() / 2, count()] {
            let look = || async {
                let found = existing(&space.client, &space.namespace, "orders").await?.len();
                Ok(when(found >= wanted, found))
            };
            until(&format!("{wanted} objects of the cluster exist"), Duration::from_secs(60), look).await?;
            kind::kill_operator(&space.client).await?;
            seen.push(existing(&space.client, &space.namespace, "orders").await?.len());
        }
        pg.ready("ready, the operator killed three times meanwhile", 3, CREATION).await?;
        println!("killed when {seen:?} of {} objects existed", count());
        let restarts: i32 = pg.lives().await?.values().map(|life| life.restarts).sum();
        ensure!(restarts == 0, "{restarts} restarts of instances");
        pg.rw("create table t (id int primary key); insert into t values (1)").await?;
        follows(&pg, "1").await
    })
    .await
}
