//! The driver and the election against a scripted API: every request has to be the next of the script, and the script has
//! to be played to its end. Time is paused.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::{
    Client,
    client::Body,
    runtime::{
        reflector::{self, Lookup, Store},
        watcher::Event,
    },
};
use operator_core::status::InstanceStatus;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    context::{Context, Memory, Stores},
    error::Error,
    instances::AskInstances,
    leader::{Candidate, LeaderError},
    metrics::Metrics,
    reconcile::{back_off, reconcile},
};
use crate::{
    api::PostgresCluster,
    k8s::{
        Cluster,
        secrets::Material,
        tests::{images, resource},
    },
};

/// What the server answers.
#[derive(Clone, Debug)]
enum Answer {
    /// The object that was sent, as a server would return it.
    Echo,
    /// A body with status 200.
    Ok(Value),
    /// A refusal with this code, and a cause.
    Refusal(u16, &'static str),
    /// Nothing, ever.
    Silence,
}

use Answer::{Echo, Ok as Found, Refusal, Silence};

const NOT_FOUND: Answer = Refusal(404, "");

/// The requests that are expected, and those that came.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    expected: VecDeque<(String, Answer)>,
    sent: Vec<(String, Value)>,
    unexpected: Vec<String>,
}

impl Script {
    /// Expects a request, written as `METHOD path`.
    fn expect(&self, request: &str, answer: Answer) {
        self.0.lock().unwrap().expected.push_back((request.to_owned(), answer));
    }

    /// Expects what the driver does for an object that isn't there: look for it, then write it.
    fn expect_applied(&self, path: &str) {
        self.expect(&format!("GET {path}"), NOT_FOUND);
        self.expect(&format!("PATCH {path}"), Echo);
    }

    fn client(&self) -> Client {
        let script = self.clone();
        let answer = move |request: http::Request<Body>| {
            let script = script.clone();
            async move { Ok::<_, Infallible>(script.answer(request).await) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let line = format!("{} {}", request.method(), request.uri().path());
        let body = request.into_body().collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = {
            let mut state = self.0.lock().unwrap();
            state.sent.push((line.clone(), body.clone()));
            match state.expected.pop_front() {
                Some((expected, answer)) if expected == line => answer,
                other => {
                    state.unexpected.push(format!("{line}, expected {other:?}"));
                    Refusal(500, "unexpected")
                }
            }
        };
        let (code, body) = match answer {
            Echo => (200, as_stored(body)),
            Found(body) => (200, body),
            Refusal(code, cause) => (code, refusal(code, cause)),
            Silence => return std::future::pending().await,
        };
        http::Response::builder().status(code).body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap()
    }

    /// Nothing came that wasn't expected, and everything expected came.
    fn played(&self) {
        let state = self.0.lock().unwrap();
        assert!(state.unexpected.is_empty(), "{:#?}", state.unexpected);
        assert!(state.expected.is_empty(), "never asked for: {:#?}", state.expected);
    }

    /// Bodies of the requests whose line ends like this.
    fn sent(&self, end: &str) -> Vec<Value> {
        let state = self.0.lock().unwrap();
        state.sent.iter().filter(|(line, _)| line.ends_with(end)).map(|(_, body)| body.clone()).collect()
    }

    /// What was written of a kind, as a server would have stored it.
    fn written<K: DeserializeOwned>(&self, plural: &str) -> Vec<K> {
        let state = self.0.lock().unwrap();
        let of_kind = |line: &str| {
            let (method, path) = line.split_once(' ').unwrap_or_default();
            method != "GET" && path.contains(&format!("/{plural}")) && !path.ends_with("/status")
        };
        let bodies = state.sent.iter().filter(|(line, _)| of_kind(line)).map(|(_, body)| body.clone());
        bodies.map(|body| serde_json::from_value(as_stored(body)).unwrap()).collect()
    }
}

fn as_stored(mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = json!("11");
    object["metadata"]["managedFields"] = json!([{"manager": "postgres-operator", "operation": "Apply"}]);
    object
}

fn refusal(code: u16, cause: &str) -> Value {
    let reason = match code {
        404 => "NotFound",
        403 => "Forbidden",
        409 => "Conflict",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason,
        "details": {"causes": [{"reason": cause, "message": cause}]},
    })
}

/// Instances that can't be reached.
struct Nobody;

impl AskInstances for Nobody {
    fn ask<'a>(
        &'a self,
        _: &'a Cluster,
        _: &'a Material,
        addresses: Vec<Option<IpAddr>>,
    ) -> BoxFuture<'a, Vec<Option<InstanceStatus>>> {
        async move { vec![None; addresses.len()] }.boxed()
    }
}

/// A cache that holds these objects.
fn store<K>(objects: Vec<K>) -> Store<K>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
    // Without its writer a cache counts as broken.
    std::mem::forget(writer);
    store
}

fn empty() -> Stores {
    Stores {
        clusters: store(Vec::new()),
        stateful_sets: store(Vec::new()),
        services: store(Vec::new()),
        secrets: store(Vec::new()),
        config_maps: store(Vec::new()),
        disruption_budgets: store(Vec::new()),
        service_accounts: store(Vec::new()),
        roles: store(Vec::new()),
        role_bindings: store(Vec::new()),
        leases: store(Vec::new()),
        pods: store(Vec::new()),
        claims: store(Vec::new()),
    }
}

fn context(script: &Script, stores: Stores) -> Arc<Context> {
    Arc::new(Context {
        client: script.client(),
        stores,
        images: images(),
        instances: Box::new(Nobody),
        metrics: Metrics::default(),
        identity: "test".to_owned(),
        memory: Memory::default(),
        now: || Timestamp::from_second(1_800_000_000).unwrap(),
    })
}

fn orders() -> Arc<PostgresCluster> {
    Arc::new(resource(&json!({})))
}

const CORE: &str = "/api/v1/namespaces/shop";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
const SETS: &str = "/apis/apps/v1/namespaces/shop/statefulsets";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const STATUS: &str = "/apis/db.example.com/v1alpha1/namespaces/shop/postgresclusters/orders/status";

/// A cluster nobody has seen before: no set, no record, and these volume claims.
fn expect_nothing_there(script: &Script, claims: &[&str]) {
    script.expect(&format!("GET {SETS}/orders"), NOT_FOUND);
    script.expect(&format!("GET {LEASES}/orders"), NOT_FOUND);
    let items: Vec<Value> = claims.iter().map(|name| json!({"metadata": {"name": name}})).collect();
    let list =
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items});
    script.expect(&format!("GET {CORE}/persistentvolumeclaims"), Found(list));
}

fn expect_status(script: &Script, events: usize) {
    let stored = serde_json::to_value(resource(&json!({}))).unwrap();
    script.expect(&format!("PATCH {STATUS}"), Found(as_stored(stored)));
    for _ in 0..events {
        script.expect(&format!("POST {EVENTS}"), Echo);
    }
}

fn expect_creation(script: &Script) {
    expect_nothing_there(script, &["data-invoices-0"]);
    script.expect(&format!("POST {LEASES}"), Echo);
    for name in ["ca", "app", "superuser"] {
        script.expect(&format!("GET {CORE}/secrets/orders-{name}"), NOT_FOUND);
    }
    script.expect(&format!("POST {CORE}/secrets"), Echo);
    for name in ["server", "replication"] {
        script.expect(&format!("GET {CORE}/secrets/orders-{name}"), NOT_FOUND);
    }
    for name in ["app", "superuser", "server", "replication"] {
        script.expect_applied(&format!("{CORE}/secrets/orders-{name}"));
    }
    script.expect_applied(&format!("{CORE}/configmaps/orders-instance"));
    script.expect_applied(&format!("{CORE}/serviceaccounts/orders"));
    for kind in ["roles", "rolebindings"] {
        script.expect_applied(&format!("/apis/rbac.authorization.k8s.io/v1/namespaces/shop/{kind}/orders"));
    }
    for name in ["pods", "rw", "ro", "r"] {
        script.expect_applied(&format!("{CORE}/services/orders-{name}"));
    }
    script.expect_applied("/apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders");
    script.expect_applied(&format!("{SETS}/orders"));
    expect_status(script, 1);
}

fn condition(script: &Script, kind: &str) -> String {
    let status = script.sent(STATUS).pop().expect("no status was written");
    let conditions = status["status"]["conditions"].as_array().unwrap().clone();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap();
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// The record before everything else, the pods last: what they need is there before them.
#[tokio::test(start_paused = true)]
async fn a_new_cluster_is_made_in_order() {
    let script = Script::default();
    expect_creation(&script);
    reconcile(orders(), context(&script, empty())).await.unwrap();
    script.played();
    assert!(condition(&script, "Ready").starts_with("False InstancesNotReady: 0 of 3"));
    assert!(condition(&script, "Progressing").starts_with("True Creating: "));
}

/// What was made is what is wanted: not a single request, also by a controller that remembers nothing.
#[tokio::test(start_paused = true)]
async fn what_is_as_it_should_be_costs_no_request() {
    let script = Script::default();
    expect_creation(&script);
    reconcile(orders(), context(&script, empty())).await.unwrap();
    script.played();
    let mut seen = resource(&json!({}));
    seen.status = serde_json::from_value(script.sent(STATUS).pop().unwrap()["status"].clone()).unwrap();
    let stores = Stores {
        stateful_sets: store(script.written::<StatefulSet>("statefulsets")),
        services: store(script.written::<Service>("services")),
        secrets: store(script.written::<Secret>("secrets")),
        config_maps: store(script.written::<ConfigMap>("configmaps")),
        disruption_budgets: store(script.written::<PodDisruptionBudget>("poddisruptionbudgets")),
        service_accounts: store(script.written::<ServiceAccount>("serviceaccounts")),
        roles: store(script.written::<Role>("roles/")),
        role_bindings: store(script.written::<RoleBinding>("rolebindings")),
        leases: store(script.written::<Lease>("leases")),
        ..empty()
    };
    let idle = Script::default();
    reconcile(Arc::new(seen.clone()), context(&idle, stores.clone())).await.unwrap();
    idle.played();

    // The control: with one object gone, it is written again and nothing else.
    let stores = Stores { disruption_budgets: store(Vec::new()), ..stores };
    let repair = Script::default();
    repair.expect_applied("/apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders");
    reconcile(Arc::new(seen), context(&repair, stores)).await.unwrap();
    repair.played();
}

#[tokio::test(start_paused = true)]
async fn older_data_is_left_alone() {
    let script = Script::default();
    expect_nothing_there(&script, &["data-orders-0", "data-other-0"]);
    expect_status(&script, 1);
    reconcile(orders(), context(&script, empty())).await.unwrap();
    script.played();
    let degraded = condition(&script, "Degraded");
    assert!(degraded.starts_with("True DataRefused: PersistentVolumeClaim data-orders-0 is older"), "{degraded}");
    assert!(condition(&script, "Ready").starts_with("False Blocked: "));
}

/// An object of that name belongs to somebody else: said, and nothing written to it.
#[tokio::test(start_paused = true)]
async fn what_belongs_to_others_is_not_touched() {
    let script = Script::default();
    expect_nothing_there(&script, &[]);
    script.expect(&format!("POST {LEASES}"), Echo);
    for name in ["app", "superuser"] {
        script.expect(&format!("GET {CORE}/secrets/orders-{name}"), NOT_FOUND);
    }
    expect_status(&script, 1);
    let theirs: Secret =
        serde_json::from_value(json!({"metadata": {"name": "orders-ca", "namespace": "shop"}})).unwrap();
    let stores = Stores { secrets: store(vec![theirs]), ..empty() };
    let error = reconcile(orders(), context(&script, stores)).await.unwrap_err();
    script.played();
    assert!(matches!(error, Error::NameTaken(_)), "{error}");
    let degraded = condition(&script, "Degraded");
    assert!(degraded.starts_with("True NameTaken: Secret orders-ca exists and isn't this cluster's"), "{degraded}");
}

/// A server that accepts the connection and says nothing.
#[tokio::test(start_paused = true)]
async fn silence_ends_after_the_deadline() {
    let script = Script::default();
    script.expect(&format!("GET {SETS}/orders"), Silence);
    expect_status(&script, 1);
    let began = Instant::now();
    let error = reconcile(orders(), context(&script, empty())).await.unwrap_err();
    script.played();
    assert!(matches!(error, Error::Late { .. }), "{error}");
    assert_eq!(began.elapsed().as_secs(), 10);
    assert!(condition(&script, "Progressing").starts_with("True Retrying: reading StatefulSet orders: no answer"));
}

/// The namespace goes, and the cluster with it: no condition, no Event.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_leaves_is_no_news() {
    let script = Script::default();
    expect_nothing_there(&script, &[]);
    script.expect(&format!("POST {LEASES}"), Refusal(403, "NamespaceTerminating"));
    let error = reconcile(orders(), context(&script, empty())).await.unwrap_err();
    script.played();
    assert!(error.is_namespace_leaving(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_cluster_costs_nothing() {
    let script = Script::default();
    let mut leaving = resource(&json!({}));
    leaving.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap());
    reconcile(Arc::new(leaving), context(&script, empty())).await.unwrap();
    script.played();
}

#[rstest]
#[case(1, 500)]
#[case(2, 1000)]
#[case(6, 16_000)]
#[case(7, 30_000)]
#[case(u32::MAX, 30_000)]
fn pauses_double_up_to_half_a_minute(#[case] failures: u32, #[case] milliseconds: u64) {
    assert_eq!(back_off(failures), Duration::from_millis(milliseconds));
}

const LEADER: &str = "/apis/coordination.k8s.io/v1/namespaces/system/leases/postgres-operator.example.com";

fn candidate(script: &Script) -> Candidate {
    Candidate::new(script.client(), "system", "me".to_owned(), || Timestamp::from_second(1_800_000_000).unwrap())
}

fn held_by(holder: &str, version: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "postgres-operator.example.com", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    })
}

/// A silent leader is replaced after its term, counted from when its Lease was last seen to change.
#[tokio::test(start_paused = true)]
async fn a_silent_leader_is_replaced_after_its_term() {
    let script = Script::default();
    for version in ["1", "2", "2", "2", "2"] {
        script.expect(&format!("GET {LEADER}"), Found(held_by("you", version)));
    }
    script.expect(&format!("PUT {LEADER}"), Echo);
    let began = Instant::now();
    let lease = candidate(&script).win().await;
    script.played();
    assert_eq!(began.elapsed().as_secs(), 20, "5 s until the change, 15 s after it");
    let spec = lease.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("me"), Some(1)));
}

/// Whoever can't renew has stopped before others may begin.
#[tokio::test(start_paused = true)]
async fn a_leader_that_can_not_renew_stops_before_its_term_is_over() {
    let script = Script::default();
    script.expect(&format!("PUT {LEADER}"), Refusal(500, ""));
    script.expect(&format!("PUT {LEADER}"), Silence);
    let began = Instant::now();
    let lease = serde_json::from_value(held_by("me", "1")).unwrap();
    let lost = candidate(&script).keep(lease).await;
    script.played();
    assert!(matches!(lost, LeaderError::Lost(_)), "{lost}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// A renewal that met a conflict looks who holds the Lease.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_replaced_stops_at_once() {
    let script = Script::default();
    script.expect(&format!("PUT {LEADER}"), Refusal(409, ""));
    script.expect(&format!("GET {LEADER}"), Found(held_by("you", "7")));
    let began = Instant::now();
    let lost = candidate(&script).keep(serde_json::from_value(held_by("me", "1")).unwrap()).await;
    script.played();
    assert!(lost.to_string().contains("another replica holds the Lease"), "{lost}");
    assert_eq!(began.elapsed().as_secs(), 5);
}
