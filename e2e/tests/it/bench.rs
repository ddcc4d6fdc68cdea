//! The promised numbers, measured on the kind cluster. Run it alone: `make bench`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    env::target,
    manifests,
    nodes::{docker, largest, processes},
    objects::{self, cluster},
    pg::Pg,
    space::Space,
    wait::{until, when},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use operator_core::names::LEADER_LEASE;
use postgres_operator::api::PostgresCluster;

const RUNS: usize = 5;
const CLUSTERS: usize = 10;
const IDLE: Duration = Duration::from_secs(60);
const CREATION: Duration = Duration::from_secs(180);

/// One line of the table.
struct Figure {
    name: String,
    goal: f64,
    seen: f64,
    unit: &'static str,
    more: String,
}

impl Figure {
    fn line(&self) -> String {
        let verdict = if self.seen <= self.goal { "ok" } else { "MISSED" };
        let Self { name, goal, seen, unit, more } = self;
        format!("{name:<44} {seen:>8.1} {unit:<5} {goal:>7.1} {verdict:<7} {more}")
    }
}

#[tokio::test]
async fn the_promised_numbers() -> Result<()> {
    Space::run_alone("bench", async |space| {
        let mut figures = vec![image().await?, creation(&space).await?];
        let clusters = ten_clusters(&space).await?;
        figures.extend(memory().await?);
        figures.push(idle(&space).await?);
        drop(clusters);
        let machine = machine();
        let heading = format!("{:<44} {:>8} {:<5} {:>7} {:<7}", "figure", "seen", "", "goal", "");
        let lines: Vec<String> = figures.iter().map(Figure::line).collect();
        let table = format!("{machine}\n{heading}\n{}\n", lines.join("\n"));
        println!("{table}");
        std::fs::write(target().join("e2e").join("bench.txt"), &table)?;
        let missed = figures.iter().filter(|figure| figure.seen > figure.goal).count();
        ensure!(missed == 0, "{missed} of {} goals are missed", figures.len());
        Ok(())
    })
    .await
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, {}", name.trim_start_matches([' ', '\t', ':']))
}

async fn image() -> Result<Figure> {
    let name = std::fs::read_to_string(target().join("operator-image")).context("run `make image`")?;
    // The nodes' name of the registry; this machine has another one for it.
    let name = name.trim().replace("registry.local:5000", "localhost:5000");
    let bytes: f64 = docker(&["image", "inspect", "--format", "{{.Size}}", &name]).await?.parse()?;
    Ok(Figure { name: "operator image".to_owned(), goal: 15.0, seen: bytes / 1e6, unit: "MB", more: name })
}

async fn creation(space: &Arc<Space>) -> Result<Figure> {
    let mut times = Vec::new();
    for run in 0..RUNS {
        let name = format!("run-{run}");
        let began = Instant::now();
        let pg = Pg::create(space, &cluster(&space.namespace, &name, 3)).await?;
        pg.ready(&format!("created, run {run}"), 3, CREATION).await?;
        times.push(began.elapsed().as_secs_f64());
        pg.delete().await?;
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().context("no run")?;
    let all = times.iter().map(|time| format!("{time:.1}")).collect::<Vec<_>>().join(" ");
    let name = format!("create to Ready, 3 instances, median of {RUNS}");
    Ok(Figure { name, goal: 15.0, seen: median, unit: "s", more: all })
}

async fn ten_clusters(space: &Arc<Space>) -> Result<Vec<Pg>> {
    let mut clusters = Vec::new();
    for number in 0..CLUSTERS {
        clusters.push(Pg::create(space, &cluster(&space.namespace, &format!("many-{number}"), 1)).await?);
    }
    for (number, pg) in clusters.iter().enumerate() {
        pg.ready(&format!("many-{number}"), 1, CREATION).await?;
    }
    Ok(clusters)
}

async fn memory() -> Result<Vec<Figure>> {
    let processes = processes().await?;
    let count = |job: &str| processes.iter().filter(|process| process.job == job).count();
    ensure!(count("instance") >= CLUSTERS && count("controller") > 0, "processes: {processes:?}");
    let mut figures = Vec::new();
    for (job, process) in largest(&processes) {
        let (name, goal) = match job.as_str() {
            "controller" => (format!("controller resident, {CLUSTERS} clusters"), 20.0),
            _ => (format!("instance manager resident, largest of {}", count(&job)), 12.0),
        };
        let mebibytes = |kibibytes: u64| u32::try_from(kibibytes).map(|k| f64::from(k) / 1024.0);
        let more = format!("of that its own: {:.1} MiB", mebibytes(process.own)?);
        figures.push(Figure { name, goal, seen: mebibytes(process.resident)?, unit: "MiB", more });
    }
    Ok(figures)
}

/// Objects of the clusters and of the operator that changed although nothing happened.
async fn idle(space: &Space) -> Result<Figure> {
    // Settled: nothing changed for ten seconds.
    let settled = || async {
        let before = versions(space).await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let changed = changed(&before, &versions(space).await?);
        Ok(when(changed.is_empty(), changed))
    };
    until("nothing changes any more", Duration::from_secs(120), settled).await?;
    let before = versions(space).await?;
    ensure!(before.len() > CLUSTERS * objects::count(), "only {} objects are looked at", before.len());
    tokio::time::sleep(IDLE).await;
    let changed = changed(&before, &versions(space).await?);
    let name = format!("objects written in {} s idle, {} looked at", IDLE.as_secs(), before.len());
    let seen = u32::try_from(changed.len()).map(f64::from)?;
    Ok(Figure { name, goal: 0.0, seen, unit: "", more: changed.join(", ") })
}

type Versions = BTreeMap<String, Option<String>>;

/// Resource versions of everything in the two namespaces, the controller's leader Lease excepted.
async fn versions(space: &Space) -> Result<Versions> {
    let mut versions = Versions::new();
    let mut kinds: Vec<ApiResource> = objects::children().into_iter().map(|children| children.kind).collect();
    kinds.extend([kind::<PostgresCluster>(), kind::<Pod>(), kind::<Event>()]);
    for namespace in [space.namespace.as_str(), manifests::NAMESPACE] {
        for kind in &kinds {
            let api = Api::<DynamicObject>::namespaced_with(space.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                if object.name_any() != LEADER_LEASE {
                    versions
                        .insert(format!("{} {namespace}/{}", kind.kind, object.name_any()), object.resource_version());
                }
            }
        }
    }
    Ok(versions)
}

fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// Changed or new; what expires meanwhile was not written.
fn changed(before: &Versions, after: &Versions) -> Vec<String> {
    after.iter().filter(|(name, version)| before.get(*name) != Some(*version)).map(|(name, _)| name.clone()).collect()
}
