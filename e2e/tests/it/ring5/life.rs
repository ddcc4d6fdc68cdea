//! A cluster comes up, streams, and does what its Services say.

use anyhow::{Result, ensure};
use e2e::{
    objects::cluster,
    pg::Pg,
    space::Space,
    wait::{until, when},
};
use operator_core::record::Member;
use rstest::rstest;

use super::{CREATION, SHORT};

#[rstest]
#[case::one(1)]
#[case::two(2)]
#[tokio::test]
async fn instances(#[case] replicas: u32) -> Result<()> {
    Space::run(&format!("instances-{replicas}"), async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", replicas)).await?;
        pg.ready("created", replicas, CREATION).await?;
        ensure!(pg.rw("select pg_is_in_recovery()").await? == "f", "the Service of the primary leads to a standby");
        Ok(())
    })
    .await
}

/// Written through `-rw`, read through `-ro`; every standby streams over TLS under its own name.
#[tokio::test]
async fn three_instances_stream() -> Result<()> {
    Space::run("stream", async |space| {
        let pg = Pg::create(&space, &cluster(&space.namespace, "orders", 3)).await?;
        pg.ready("created", 3, CREATION).await?;
        pg.rw("create table t (id int primary key, word text)").await?;
        pg.rw("insert into t select n, 'word ' || n from generate_series(1, 1000) n").await?;
        let look = || async {
            let seen = pg.ro("select pg_is_in_recovery(), count(*), max(word) from t").await?;
            Ok(when(seen == "t|1000|word 999", seen))
        };
        let took = until("rows written through -rw are read through -ro", SHORT, look).await?.1;
        space.record("written through -rw, read through -ro", took);
        let refused = pg.ro("insert into t values (0, '')").await;
        let words = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(words.contains("read-only transaction"), "a standby took a write: {words:?}");
        check_replication(&pg).await?;
        check_settings(&pg).await?;
        each_instance_has_the_rows(&pg).await
    })
    .await
}

async fn check_replication(pg: &Pg) -> Result<()> {
    let primary = pg.primary().await?;
    let query = "select application_name, state, ssl, usename, slot_name is not null from pg_stat_replication r \
                 join pg_stat_ssl using (pid) left join pg_replication_slots on active_pid = r.pid order by 1";
    let seen = pg.sql(&primary, query).await?;
    let rows: Vec<Vec<&str>> = seen.lines().map(|line| line.split('|').collect()).collect();
    ensure!(rows.len() == 2, "{} standbys stream:\n{seen}", rows.len());
    for row in rows {
        let [name, rest @ ..] = row.as_slice() else { continue };
        let member: Member = name.parse()?;
        ensure!(member.pod != primary, "the primary follows itself: {seen}");
        ensure!(rest == ["streaming", "t", "streaming_replica", "t"], "{name}: {rest:?}");
    }
    Ok(())
}

/// What a careful person would look for first.
async fn check_settings(pg: &Pg) -> Result<()> {
    let primary = pg.primary().await?;
    for (name, wanted) in
        [("data_checksums", "on"), ("ssl", "on"), ("max_connections", "40"), ("shared_buffers", "32MB")]
    {
        let seen = pg.sql(&primary, &format!("show {name}")).await?;
        ensure!(seen == wanted, "{name} is {seen}, not {wanted}");
    }
    let trusting = "select count(*) from pg_hba_file_rules where auth_method = 'trust'";
    ensure!(pg.sql(&primary, trusting).await? == "0", "pg_hba.conf trusts somebody");
    let plain =
        pg.exec("client", "client", &["psql", "host=orders-rw user=app dbname=app sslmode=disable", "-c", ""]).await;
    ensure!(plain.is_err(), "a connection without TLS was accepted");
    Ok(())
}

async fn each_instance_has_the_rows(pg: &Pg) -> Result<()> {
    for pod in pg.lives().await?.keys() {
        let look = || async {
            let seen = pg
                .exec(
                    pod,
                    "postgres",
                    &[
                        "psql",
                        "-h",
                        "/run/postgresql",
                        "-U",
                        "postgres",
                        "-d",
                        "app",
                        "-XAtc",
                        "select count(*) from t",
                    ],
                )
                .await?;
            Ok(when(seen == "1000", seen))
        };
        until(&format!("{pod} has the rows"), SHORT, look).await?;
    }
    Ok(())
}

/// The same name in two namespaces: two clusters, two passwords, two sets of data.
#[tokio::test]
async fn namesakes_do_not_meet() -> Result<()> {
    Space::run("namesake", async |a| {
        let b = a.beside("too").await?;
        let first = Pg::create(&a, &cluster(&a.namespace, "orders", 1)).await?;
        let second = Pg::create(&b, &cluster(&b.namespace, "orders", 1)).await?;
        first.ready("first created", 1, CREATION).await?;
        second.ready("second created", 1, CREATION).await?;
        first.rw("create table mine (id int)").await?;
        let seen = second.rw("select count(*) from pg_class where relname = 'mine'").await?;
        ensure!(seen == "0", "the table of one cluster is in the other");
        let system =
            async |pg: &Pg| pg.sql(&pg.primary().await?, "select system_identifier from pg_control_system()").await;
        ensure!(system(&first).await? != system(&second).await?, "one system identifier for both");
        b.delete().await
    })
    .await
}
