//! The controller under exactly the rights of its manifests: what it makes, what it never asks for, who leads.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    audit::Entry,
    controller::{Site, USER, get},
    objects::{self, belongs, condition, existing},
    wait::{Look, always, until, when},
};
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease, core::v1::Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator_core::names::LEADER_LEASE;
use postgres_operator::api::PostgresCluster;

const SECONDS_30: Duration = Duration::from_secs(30);

pub(super) async fn create(site: &Site, namespace: &str, name: &str) -> Result<PostgresCluster> {
    objects::create_namespace(&site.client, namespace).await?;
    let api = Api::namespaced(site.client.clone(), namespace);
    Ok(api.create(&PostParams::default(), &objects::cluster(namespace, name, 3)).await?)
}

pub(super) async fn complete(site: &Site, namespace: &str, name: &str) -> Result<Duration> {
    let look = || async {
        let found = existing(&site.client, namespace, name).await?;
        Ok(when(found.len() == objects::count(), found.keys().collect::<Vec<_>>()))
    };
    Ok(until("every object of the cluster exists", SECONDS_30, look).await?.1)
}

/// Requests that were refused for lack of a right.
fn forbidden(entries: &[Entry]) -> Vec<String> {
    entries.iter().filter(|entry| matches!(entry.code(), 401 | 403)).map(Entry::line).collect()
}

fn is_leader_lease(entry: &Entry) -> bool {
    entry.object_ref.as_ref().is_some_and(|target| target.resource == "leases" && target.name == LEADER_LEASE)
}

#[tokio::test]
async fn every_object_appears_and_belongs_to_the_cluster() -> Result<()> {
    let site = Site::new("every_object_appears").await?;
    let _controller = site.start("controller").await?;
    let cluster = create(&site, "e2e-appear", "orders").await?;
    let took = complete(&site, "e2e-appear", "orders").await?;
    for (what, object) in existing(&site.client, "e2e-appear", "orders").await? {
        belongs(&object, &cluster).with_context(|| what.clone())?;
    }
    println!("{} objects after {:.1} s", objects::count(), took.as_secs_f64());
    check_stateful_set(&Api::namespaced(site.client.clone(), "e2e-appear").get("orders").await?)?;
    let secret: Secret = Api::namespaced(site.client.clone(), "e2e-appear").get("orders-app").await?;
    check_binding(&secret)?;
    let lease: Lease = Api::namespaced(site.client.clone(), "e2e-appear").get("orders").await?;
    ensure!(lease.spec.is_none_or(|spec| spec.holder_identity.is_none()), "the controller named a holder");
    let api = Api::<PostgresCluster>::namespaced(site.client.clone(), "e2e-appear");
    let look = || async {
        let seen = api.get("orders").await?;
        let observed = seen.status.as_ref().and_then(|status| status.observed_generation);
        let ready = condition(&seen, "Ready");
        Ok(when(observed == Some(1) && ready.starts_with("False "), ready))
    };
    until("the status says that the cluster is not ready", SECONDS_30, look).await?;
    Ok(())
}

fn check_stateful_set(set: &StatefulSet) -> Result<()> {
    let spec = set.spec.as_ref().context("no spec")?;
    let strategy = spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    ensure!(strategy == Some("OnDelete"), "update strategy {strategy:?}");
    ensure!(spec.pod_management_policy.as_deref() == Some("Parallel"), "{:?}", spec.pod_management_policy);
    ensure!(spec.replicas == Some(3), "replicas {:?}", spec.replicas);
    let pod = spec.template.spec.as_ref().context("no pod spec")?;
    ensure!(pod.containers.iter().any(|container| container.name == "postgres"), "no container postgres");
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        let name = &container.name;
        let security = container.security_context.as_ref().with_context(|| format!("{name}: no security context"))?;
        ensure!(security.read_only_root_filesystem == Some(true), "{name}: root file system is writable");
        ensure!(security.allow_privilege_escalation == Some(false), "{name}: may escalate");
        let dropped = security.capabilities.as_ref().and_then(|capabilities| capabilities.drop.clone());
        ensure!(dropped == Some(vec!["ALL".to_owned()]), "{name}: drops {dropped:?}");
        let requests =
            container.resources.as_ref().and_then(|resources| resources.requests.clone()).unwrap_or_default();
        ensure!(requests.contains_key("cpu") && requests.contains_key("memory"), "{name}: requests {requests:?}");
    }
    let text = serde_json::to_string(spec)?.to_lowercase();
    ensure!(!text.contains("password"), "the pod spec speaks of a password");
    Ok(())
}

fn check_binding(secret: &Secret) -> Result<()> {
    ensure!(secret.type_.as_deref() == Some("servicebinding.io/postgresql"), "type {:?}", secret.type_);
    let data = secret.data.as_ref().context("no data")?;
    let keys: BTreeSet<&str> = data.keys().map(String::as_str).collect();
    let wanted = ["type", "provider", "host", "port", "database", "username", "password", "uri", "jdbc-uri"]
        .into_iter()
        .collect();
    ensure!(keys.is_superset(&wanted), "keys {keys:?}");
    let password = data.get("password").map_or(0, |value| value.0.len());
    ensure!(password >= 16, "a password of {password} characters");
    Ok(())
}

/// The rights suffice, and an idle controller writes nothing but its leader Lease.
#[tokio::test]
async fn nothing_is_forbidden_and_idle_means_idle() -> Result<()> {
    let site = Site::new("nothing_is_forbidden").await?;
    let _controller = site.start("controller").await?;
    create(&site, "e2e-idle", "orders").await?;
    complete(&site, "e2e-idle", "orders").await?;
    // The status follows the objects; quiet is when nothing was written for five seconds.
    let writes = |mark| {
        let entries = site.server.audit.since(mark, USER);
        entries.into_iter().filter(|entry| entry.writes() && !is_leader_lease(entry)).collect::<Vec<_>>()
    };
    let quiet = || async {
        let mark = site.server.audit.mark();
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(when(writes(mark).is_empty(), writes(mark).iter().map(Entry::line).collect::<Vec<_>>()))
    };
    until("the controller is done", SECONDS_30, quiet).await?;
    let mark = site.server.audit.mark();
    let window = Duration::from_secs(30);
    tokio::time::sleep(window).await;
    let busy: Vec<String> = writes(mark).iter().map(Entry::line).collect();
    ensure!(busy.is_empty(), "an idle controller wrote:\n{}", busy.join("\n"));
    let idle = site.server.audit.since(mark, USER);
    let renewals = idle.iter().filter(|entry| entry.writes() && is_leader_lease(entry)).count();
    ensure!(renewals > 0, "the leader Lease was not renewed: the audit log can't be trusted");
    let all = site.server.audit.since(0, USER);
    ensure!(all.iter().filter(|entry| entry.writes()).count() > objects::count(), "the audit log misses writes");
    let refused = forbidden(&all);
    ensure!(refused.is_empty(), "rights are missing:\n{}", refused.join("\n"));
    println!(
        "{} requests, none forbidden; in {} s idle {} requests, {renewals} writes of the leader Lease, no others",
        all.len(),
        window.as_secs(),
        idle.len()
    );
    Ok(())
}

/// Negative control: without its binding, the controller's requests are seen to be forbidden.
#[tokio::test]
async fn a_missing_right_is_seen() -> Result<()> {
    let site = Site::new("a_missing_right").await?;
    let bindings = Api::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>::all(site.client.clone());
    bindings.delete("postgres-operator", &DeleteParams::default()).await?;
    let mut controller = site.spawn("controller").await?;
    let look = || async {
        let refused = forbidden(&site.server.audit.since(0, USER));
        Ok(if refused.is_empty() { Look::NotYet("no 403".to_owned()) } else { Look::Done(()) })
    };
    until("a request is forbidden", SECONDS_30, look).await?;
    let ready = get(controller.probes, "/readyz").await;
    ensure!(!matches!(ready, Ok((200, _))), "ready without having read anything: {ready:?}");
    controller.kill();
    Ok(())
}

#[tokio::test]
async fn of_two_controllers_one_leads_and_the_other_takes_over() -> Result<()> {
    let site = Site::new("two_controllers").await?;
    let mut first = site.start("first").await?;
    let leases = Api::<Lease>::namespaced(site.client.clone(), e2e::manifests::NAMESPACE);
    let holder = || async {
        let lease = leases.get_opt(LEADER_LEASE).await?;
        anyhow::Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
    };
    let led_by = async |name: &str, limit| {
        let look = || async {
            let seen = holder().await?;
            Ok(when(seen.contains(name), seen))
        };
        until("a controller leads", limit, look).await
    };
    led_by("first", SECONDS_30).await?;
    // A replica that doesn't lead is ready as well: it is there to take over.
    let mut second = site.start("second").await?;
    create(&site, "e2e-lead", "orders").await?;
    complete(&site, "e2e-lead", "orders").await?;
    always("the first leads", Duration::from_secs(5), || async {
        let seen = holder().await?;
        Ok(when(seen.contains("first"), seen))
    })
    .await?;
    let writers = writers(&site);
    ensure!(writers.len() == 1, "{} controllers wrote: {writers:?}", writers.len());

    first.kill();
    let killed = led_by("second", Duration::from_secs(40)).await?.1;
    works(&site, "e2e-lead", 4).await?;
    let _first = site.start("first").await?;
    second.stop().await?;
    let stopped = led_by("first", SECONDS_30).await?.1;
    works(&site, "e2e-lead", 5).await?;
    println!("leader killed: {:.1} s; stopped: {:.1} s", killed.as_secs_f64(), stopped.as_secs_f64());
    Ok(())
}

/// Credentials under which anything but the leader Lease was written.
fn writers(site: &Site) -> BTreeSet<String> {
    let entries = site.server.audit.since(0, USER);
    let writes = entries.iter().filter(|entry| entry.writes() && !is_leader_lease(entry) && entry.code() < 300);
    writes.map(|entry| entry.credential().to_owned()).collect()
}

/// A change of the spec reaches the StatefulSet.
async fn works(site: &Site, namespace: &str, replicas: i32) -> Result<()> {
    let clusters = Api::<PostgresCluster>::namespaced(site.client.clone(), namespace);
    let patch = Patch::Merge(serde_json::json!({"spec": {"replicas": replicas}}));
    clusters.patch("orders", &PatchParams::default(), &patch).await?;
    let sets = Api::<StatefulSet>::namespaced(site.client.clone(), namespace);
    let look = || async {
        let seen = sets.get("orders").await?.spec.and_then(|spec| spec.replicas);
        Ok(when(seen == Some(replicas), seen))
    };
    until("the StatefulSet follows the spec", SECONDS_30, look).await?;
    Ok(())
}

/// Killed again and again while it makes the objects, it ends with what an undisturbed one makes.
#[tokio::test]
async fn killed_at_each_step_it_takes() -> Result<()> {
    let site = Site::new("killed_at_each_step").await?;
    let cluster = create(&site, "e2e-killed", "orders").await?;
    let authority = Api::<Secret>::namespaced(site.client.clone(), "e2e-killed");
    let mut first_authority = None;
    let mut steps = BTreeSet::new();
    for wanted in 1..=objects::count() {
        let mut controller = site.spawn("controller").await?;
        let look = || async {
            let found = existing(&site.client, "e2e-killed", "orders").await?.len();
            Ok(if found >= wanted { Look::Done(found) } else { Look::NotYet(format!("{found} objects")) })
        };
        let reached = until("one object more", Duration::from_secs(45), look).await;
        let tail = controller.tail(10);
        controller.kill();
        steps.insert(reached.with_context(|| tail)?.0);
        let seen = authority.get_opt("orders-ca").await?.and_then(|secret| secret.data);
        if first_authority.is_some() {
            ensure!(seen == first_authority, "the certificate authority changed when the controller was killed");
        }
        first_authority = seen.or(first_authority);
    }
    ensure!(first_authority.is_some(), "no certificate authority");
    for (what, object) in existing(&site.client, "e2e-killed", "orders").await? {
        belongs(&object, &cluster).with_context(|| what.clone())?;
    }
    println!("killed when it had made {steps:?} of {} objects", objects::count());
    Ok(())
}

#[tokio::test]
async fn a_deleted_cluster_ends_quietly() -> Result<()> {
    let site = Site::new("a_deleted_cluster").await?;
    let mut controller = site.start("controller").await?;
    create(&site, "e2e-delete", "orders").await?;
    complete(&site, "e2e-delete", "orders").await?;
    let api = Api::<PostgresCluster>::namespaced(site.client.clone(), "e2e-delete");
    api.delete("orders", &DeleteParams::default()).await?;
    let gone = || async { Ok(when(api.get_opt("orders").await?.is_none(), "it is there")) };
    until("the resource is gone", Duration::from_secs(5), gone).await?;
    // Nothing collects garbage here, so the test does; a controller that still cares would make it anew.
    for children in objects::children() {
        let api = Api::<kube::api::DynamicObject>::namespaced_with(site.client.clone(), "e2e-delete", &children.kind);
        for suffix in children.suffixes {
            api.delete(&format!("orders{suffix}"), &DeleteParams::default()).await?;
        }
    }
    always("nothing comes back", Duration::from_secs(5), || async {
        let found = existing(&site.client, "e2e-delete", "orders").await?;
        Ok(when(found.is_empty(), found.keys().collect::<Vec<_>>()))
    })
    .await?;
    ensure!(controller.runs(), "the controller ended: {}", controller.tail(10));
    let log = controller.tail(200);
    ensure!(!log.contains("ERROR"), "errors in the log:\n{log}");
    Ok(())
}

/// A version for which the operator knows no image is a condition, and goes away when the spec is corrected.
#[tokio::test]
async fn an_unknown_image_is_a_condition_until_it_is_corrected() -> Result<()> {
    let site = Site::new("an_unknown_image").await?;
    let _controller = site.start("controller").await?;
    objects::create_namespace(&site.client, "e2e-image").await?;
    let api = Api::<PostgresCluster>::namespaced(site.client.clone(), "e2e-image");
    let mut cluster = objects::cluster("e2e-image", "orders", 1);
    "16".clone_into(&mut cluster.spec.version);
    api.create(&PostParams::default(), &cluster).await?;
    let look = || async {
        let seen = api.get("orders").await?;
        let degraded = condition(&seen, "Degraded");
        Ok(when(degraded.starts_with("True ImageUnknown: "), degraded))
    };
    until("the condition says that no image is known", SECONDS_30, look).await?;
    let patch = Patch::Merge(serde_json::json!({"spec": {"image": "registry.example.com/postgres:16"}}));
    api.patch("orders", &PatchParams::default(), &patch).await?;
    complete(&site, "e2e-image", "orders").await?;
    let look = || async {
        let degraded = condition(&api.get("orders").await?, "Degraded");
        Ok(when(!degraded.starts_with("True"), degraded))
    };
    until("the condition is gone", SECONDS_30, look).await?;
    Ok(())
}
