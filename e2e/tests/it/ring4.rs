//! Real PostgreSQL under real instance managers in containers, an API server, no Kubernetes nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    apiserver::https_client,
    instances::{Instance, Instances},
    wait::{Look, always, until, when},
};
use operator_core::{
    record::{Member, Record},
    status::{InstanceStatus, Phase, Role},
};

const STARTED: Duration = Duration::from_secs(60);

/// Waits until an instance says that it is ready in this role; a failure has the end of its log.
async fn ready(instance: &Instance, role: Role) -> Result<InstanceStatus> {
    let look = || async {
        let seen = instance.status().await?;
        Ok(if seen.ready && seen.role == Some(role) { Look::Done(seen) } else { Look::NotYet(format!("{seen:?}")) })
    };
    let reached = until(&format!("{} is ready as {role:?}", instance.pod), STARTED, look).await;
    match reached {
        Ok((status, took)) => {
            println!("{} is ready as {role:?} after {:.1} s", instance.pod, took.as_secs_f64());
            Ok(status)
        }
        Err(error) => Err(error.context(instance.log().await)),
    }
}

/// Waits until an instance refuses to run, for a reason that contains `because`.
async fn refused(instance: &Instance, because: &str) -> Result<String> {
    let look = || async {
        let seen = instance.status().await?;
        let wanted = seen.phase == Phase::Refused && seen.reason.contains(because);
        Ok(if wanted { Look::Done(seen.reason) } else { Look::NotYet(format!("{:?}: {}", seen.phase, seen.reason)) })
    };
    let reached = until(&format!("{} refuses", instance.pod), STARTED, look).await;
    match reached {
        Ok((reason, _)) => Ok(reason),
        Err(error) => Err(error.context(instance.log().await)),
    }
}

/// A write succeeds. Whatever stands in the way, a server that isn't there included, means no.
async fn writable(instance: &Instance) -> bool {
    instance.sql("postgres", "create table if not exists probe (id int); insert into probe values (1)").await.is_ok()
}

async fn record(site: &Instances) -> Result<Record> {
    site.record().await?.1.context("the Lease holds no record")
}

async fn has_rows(instance: &Instance, rows: usize) -> Result<Duration> {
    let look = || async {
        let seen = instance.sql("app", "select count(*) from t").await?;
        Ok(when(seen == rows.to_string(), seen))
    };
    Ok(until(&format!("{} has {rows} rows", instance.pod), STARTED, look).await?.1)
}

/// The first makes the data, the second copies it and streams; both come back with it after a stop and after a kill, and
/// each life of the primary writes the record before it writes anything else.
#[tokio::test]
async fn two_instances_stream_and_come_back() -> Result<()> {
    let site = Instances::new("stream", 2).await?;
    let first = site.start(0).await?;
    let second = site.start(1).await?;
    let primary = ready(&first, Role::Primary).await?;
    let standby = ready(&second, Role::Standby).await?;
    let made = record(&site).await?;
    ensure!(made.holder.pod == "orders-0" && made.epoch == 1 && made.timeline == 1, "{made:?}");
    ensure!(made.system_id.is_some() && made.system_id == primary.system_id, "{made:?}, {primary:?}");
    ensure!(standby.system_id == primary.system_id && standby.streaming == Some(true), "{standby:?}");
    ensure!(Some(&made.holder) == primary.member.as_ref(), "{made:?}, {primary:?}");
    let names = first.sql("postgres", "select application_name from pg_stat_replication").await?;
    ensure!(Some(names.parse::<Member>()?) == standby.member, "{names}, {standby:?}");
    strangers_learn_nothing(&site, &first).await?;
    first.sql("app", "create table t (id int); insert into t values (1)").await?;
    has_rows(&second, 1).await?;
    ensure!(!writable(&second).await, "the standby took a write");

    second.stop().await?;
    first.sql("app", "insert into t values (2)").await?;
    let second = site.start(1).await?;
    let again = ready(&second, Role::Standby).await?;
    ensure!(again.member == standby.member, "the standby copied again instead of going on: {again:?}");
    has_rows(&second, 2).await?;

    first.kill().await?;
    let first = site.start(0).await?;
    let back = ready(&first, Role::Primary).await?;
    let taken = record(&site).await?;
    ensure!(back.member == primary.member && taken.holder == made.holder && taken.epoch == made.epoch, "{taken:?}");
    ensure!(taken.version > made.version && taken.incarnation != made.incarnation, "{made:?}, then {taken:?}");
    first.sql("app", "insert into t values (3)").await?;
    let took = has_rows(&second, 3).await?;
    println!("streaming again {:.1} s after the primary was back on another address", took.as_secs_f64());
    Ok(())
}

/// `/status` is for the cluster's own certificate only.
async fn strangers_learn_nothing(site: &Instances, instance: &Instance) -> Result<()> {
    let url = format!("https://{}:{}", instance.address, operator_core::names::PORT_INSTANCE);
    let name = site.cluster.name.tls_name(&site.namespace);
    let authority = &site.material.root.authority.certificate;
    let stranger = https_client(&url, authority, None, Some(&name)).await?;
    let get = |path: &str| http::Request::get(path).body(Vec::new());
    let refused = stranger.request_text(get("/status")?).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 401), "/status: {refused:?}");
    for path in ["/healthz", "/readyz"] {
        let answer = stranger.request_text(get(path)?).await?;
        ensure!(answer.trim() == "ok", "{path}: {answer}");
    }
    let metrics = stranger.request_text(get("/metrics")?).await?;
    ensure!(metrics.contains("# TYPE"), "/metrics: {metrics}");
    Ok(())
}

/// A volume with somebody else's data: refused with a reason, nothing on it changed, the record not claimed.
#[tokio::test]
async fn foreign_data_is_refused_and_left_alone() -> Result<()> {
    let site = Instances::new("foreign", 1).await?;
    let donor = Instances::new("donor", 1).await?;
    let owner = donor.start(0).await?;
    ready(&owner, Role::Primary).await?;
    owner.stop().await?;
    let copied = std::process::Command::new("cp")
        .args(["--archive", "--"])
        .arg(donor.volume(0)?.join("pgdata"))
        .arg(site.volume(0)?)
        .status()?;
    ensure!(copied.success(), "copying the data directory: {copied}");
    let before = site.files(0)?;
    ensure!(before.len() > 500, "only {} files: that is no data directory", before.len());
    let instance = site.start(0).await?;
    let reason = refused(&instance, "did not make").await?;
    println!("refused: {reason}");
    let stays = || async {
        let seen = instance.status().await?;
        Ok(when(seen.phase == Phase::Refused && !seen.ready, seen.reason))
    };
    always("it goes on refusing", Duration::from_secs(5), stays).await?;
    ensure!(site.files(0)? == before, "something in the data directory was changed");
    ensure!(site.record().await?.1.is_none(), "the record was claimed");
    Ok(())
}

/// The record names another data directory on the same pod: never read-write, whatever else looks right.
///
/// The control comes last: with the record put right, the very same volume does become read-write.
#[tokio::test]
async fn a_record_held_by_another_is_never_written_under() -> Result<()> {
    let site = Instances::new("held", 1).await?;
    let first = site.start(0).await?;
    ready(&first, Role::Primary).await?;
    ensure!(writable(&first).await, "the primary takes no writes");
    let right = record(&site).await?;

    // While it runs: it has to stop at once.
    let other = Member { pod: "orders-0".to_owned(), identity: right.holder.identity ^ 1 };
    let taken = Record { version: right.version + 1, holder: other, epoch: right.epoch + 1, ..right.clone() };
    site.force_record(&taken).await?;
    let look = || async { Ok(when(!writable(&first).await, "it takes writes")) };
    let fenced = until("the primary takes no more writes", Duration::from_secs(10), look).await?.1;
    println!("fenced {:.2} s after the record was taken over", fenced.as_secs_f64());
    never_writes(&site, &first, &taken).await?;
    first.kill().await?;

    // After a restart: it must not start as primary.
    let again = site.start(0).await?;
    println!("refused: {}", refused(&again, "another data directory").await?);
    never_writes(&site, &again, &taken).await?;
    again.kill().await?;

    site.force_record(&Record { version: taken.version + 1, epoch: taken.epoch + 1, ..right }).await?;
    let control = site.start(0).await?;
    ready(&control, Role::Primary).await?;
    ensure!(writable(&control).await, "the control takes no writes, so the test above shows nothing");
    Ok(())
}

async fn never_writes(site: &Instances, instance: &Instance, taken: &Record) -> Result<()> {
    let looks = always("no write is taken", Duration::from_secs(8), || async {
        Ok(when(!writable(instance).await, "a write was taken"))
    })
    .await?;
    ensure!(looks > 10, "only {looks} looks");
    ensure!(record(site).await? == *taken, "the record was written by one that doesn't hold it");
    Ok(())
}

/// Without an API server nothing changes: the primary that runs goes on, and a record that can't be read is no reason to
/// stop or to start anything.
#[tokio::test]
async fn an_unreadable_record_changes_nothing() -> Result<()> {
    let site = Instances::new("unreadable", 1).await?;
    let first = site.start(0).await?;
    ready(&first, Role::Primary).await?;
    let (lease, _) = site.record().await?;
    let leases =
        kube::Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(site.client.clone(), &site.namespace);
    leases.delete("orders", &Default::default()).await?;
    always("the primary goes on", Duration::from_secs(5), || async {
        Ok(when(writable(&first).await, "no write is taken"))
    })
    .await?;
    first.kill().await?;
    let again = site.start(0).await?;
    let look = || async {
        let seen = again.status().await?;
        let waits = seen.phase == Phase::Waiting && seen.reason.contains("does not exist");
        Ok(when(waits, (seen.phase, seen.reason)))
    };
    until("the instance waits for the Lease", STARTED, look).await?;
    ensure!(!writable(&again).await, "it started without a record");
    ensure!(leases.get_opt("orders").await?.is_none(), "the instance made a Lease");
    drop(lease);
    Ok(())
}
