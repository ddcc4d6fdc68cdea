//! What the builders make, field by field where somebody relies on it.

use k8s_openapi::{
    api::core::v1::{Container, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    certificates::{Purpose, authority, issue},
    cluster::{Images, Invalid},
    secrets::{Root, password},
    *,
};
use crate::api::{PostgresCluster, PostgresClusterSpec};

/// A cluster called `orders` in `shop`, with `changes` merged into the smallest spec.
pub(crate) fn resource(changes: &Value) -> PostgresCluster {
    let mut spec = json!({"version": "17", "storage": {"size": "1Gi"}});
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let spec: PostgresClusterSpec = serde_json::from_value(spec).unwrap();
    let metadata = ObjectMeta {
        name: Some("orders".to_owned()),
        namespace: Some("shop".to_owned()),
        uid: Some("uid-1".to_owned()),
        generation: Some(1),
        resource_version: Some("10".to_owned()),
        ..ObjectMeta::default()
    };
    PostgresCluster { metadata, spec, status: None }
}

pub(crate) fn images() -> Images {
    Images { operator: "operator:1".to_owned(), postgres: [(17, "postgres:17".to_owned())].into() }
}

pub(crate) fn cluster(changes: &Value) -> Cluster {
    Cluster::check(&resource(changes), &images()).unwrap()
}

pub(crate) fn material(cluster: &Cluster) -> Material {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let authority = authority(cluster, now).unwrap();
    Material {
        server: issue(cluster, &authority, Purpose::Server, now).unwrap(),
        replication: issue(cluster, &authority, Purpose::Replication, now).unwrap(),
        root: Root { authority, app_password: password().unwrap(), superuser_password: password().unwrap() },
    }
}

fn objects(changes: &Value) -> Objects {
    let cluster = cluster(changes);
    let shape = Shape { replicas: cluster.spec.replicas, sizes: BTreeMap::new() };
    build(&cluster, &material(&cluster), &shape)
}

fn pod(changes: &Value) -> PodSpec {
    objects(changes).stateful_set.spec.unwrap().template.spec.unwrap()
}

fn postgres(changes: &Value) -> Container {
    pod(changes).containers.remove(0)
}

fn metas(objects: &Objects) -> Vec<ObjectMeta> {
    let mut metas = vec![
        objects.service_account.metadata.clone(),
        objects.role.metadata.clone(),
        objects.role_binding.metadata.clone(),
        objects.config_map.metadata.clone(),
        objects.disruption_budget.metadata.clone(),
        objects.stateful_set.metadata.clone(),
    ];
    metas.extend(objects.secrets.iter().map(|secret| secret.metadata.clone()));
    metas.extend(objects.services.iter().map(|service| service.metadata.clone()));
    metas
}

#[test]
fn every_object_is_owned_and_labelled() {
    let metas = metas(&objects(&json!({})));
    assert_eq!(metas.len(), 14);
    for meta in metas {
        let owners = meta.owner_references.unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!((owners[0].uid.as_str(), owners[0].controller), ("uid-1", Some(true)));
        assert_eq!(meta.labels.unwrap()["db.example.com/cluster"], "orders");
        assert_eq!(meta.namespace.as_deref(), Some("shop"));
    }
}

/// Whoever compares what exists with what is built needs this; certificates and passwords come from outside.
#[test]
fn the_same_input_builds_the_same_objects() {
    let cluster = cluster(&json!({}));
    let material = material(&cluster);
    let shape = Shape { replicas: 3, sizes: BTreeMap::new() };
    let text = || format!("{:?}", build(&cluster, &material, &shape));
    assert_eq!(text(), text());
}

#[test]
fn pods_are_restricted_and_no_secret_is_in_their_spec() {
    let pod = pod(&json!({}));
    let security = pod.security_context.clone().unwrap();
    assert_eq!(security.run_as_non_root, Some(true));
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        let security = container.security_context.clone().unwrap();
        assert_eq!(security.read_only_root_filesystem, Some(true), "{}", container.name);
        assert_eq!(security.allow_privilege_escalation, Some(false), "{}", container.name);
        assert_eq!(security.capabilities.unwrap().drop, Some(vec!["ALL".to_owned()]), "{}", container.name);
        let requests = container.resources.clone().unwrap().requests.unwrap();
        assert!(requests.contains_key("cpu") && requests.contains_key("memory"), "{}", container.name);
    }
    let text = serde_json::to_string(&pod).unwrap().to_lowercase();
    assert!(!text.contains("password") && !text.contains("begin"), "{text}");
}

#[rstest]
#[case::nothing(json!({}), json!({"requests": {"cpu": "100m", "memory": "256Mi"}}))]
#[case::a_request(json!({"requests": {"cpu": "2"}}), json!({"requests": {"cpu": "2", "memory": "256Mi"}}))]
#[case::a_limit_stands_in(
    json!({"limits": {"memory": "128Mi"}}),
    json!({"requests": {"cpu": "100m"}, "limits": {"memory": "128Mi"}})
)]
fn requests_are_filled_in(#[case] wish: Value, #[case] expected: Value) {
    let container = postgres(&json!({"resources": wish}));
    assert_eq!(serde_json::to_value(container.resources).unwrap(), expected);
}

#[rstest]
#[case::preferred(json!({}), "preferredDuringSchedulingIgnoredDuringExecution")]
#[case::required(json!({"spread": "Required"}), "requiredDuringSchedulingIgnoredDuringExecution")]
fn instances_are_spread(#[case] scheduling: Value, #[case] expected: &str) {
    let affinity = serde_json::to_value(pod(&json!({"scheduling": scheduling})).affinity).unwrap();
    let rules = affinity["podAntiAffinity"].as_object().unwrap();
    assert_eq!(rules.keys().collect::<Vec<_>>(), [expected]);
}

#[rstest]
#[case::rw("orders-rw", Some("primary"), false)]
#[case::ro("orders-ro", Some("standby"), false)]
#[case::any("orders-r", None, false)]
#[case::pods("orders-pods", None, true)]
fn services_lead_to_roles(#[case] name: &str, #[case] role: Option<&str>, #[case] headless: bool) {
    let services = objects(&json!({})).services;
    let service = services.iter().find(|service| service.metadata.name.as_deref() == Some(name)).unwrap();
    let spec = service.spec.as_ref().unwrap();
    let selector = spec.selector.as_ref().unwrap();
    assert_eq!(selector.get("db.example.com/role").map(String::as_str), role);
    assert_eq!(selector["db.example.com/cluster"], "orders");
    assert_eq!(spec.cluster_ip.as_deref() == Some("None"), headless);
    assert_eq!(spec.publish_not_ready_addresses == Some(true), headless);
}

#[test]
fn a_role_names_each_object_it_allows() {
    for rule in objects(&json!({})).role.rules.unwrap() {
        assert!(rule.resource_names.as_ref().is_some_and(|names| !names.is_empty()), "{rule:?}");
        assert!(!rule.verbs.contains(&"*".to_owned()) && !rule.verbs.contains(&"create".to_owned()), "{rule:?}");
        let resources = rule.resources.unwrap();
        assert!(!resources.contains(&"secrets".to_owned()), "{resources:?}");
    }
}

#[rstest]
#[case::retain(json!({"size": "1Gi"}), "Retain")]
#[case::delete(json!({"size": "1Gi", "reclaimPolicy": "Delete"}), "Delete")]
fn volumes_are_kept_as_asked(#[case] storage: Value, #[case] expected: &str) {
    let spec = objects(&json!({"storage": storage})).stateful_set.spec.unwrap();
    let policy = spec.persistent_volume_claim_retention_policy.unwrap();
    assert_eq!((policy.when_deleted.as_deref(), policy.when_scaled.as_deref()), (Some(expected), Some(expected)));
}

/// Kubernetes refuses any change of a claim template: one that exists stays as it is.
#[test]
fn a_template_that_exists_keeps_its_size() {
    let cluster = cluster(&json!({"storage": {"size": "5Gi", "wal": {"size": "2Gi"}}}));
    let sizes: BTreeMap<String, Quantity> = [("data".to_owned(), Quantity("1Gi".to_owned()))].into();
    let set = build(&cluster, &material(&cluster), &Shape { replicas: 3, sizes }).stateful_set;
    let claims = set.spec.unwrap().volume_claim_templates.unwrap();
    let sizes: Vec<Value> = claims
        .iter()
        .map(|claim| serde_json::to_value(&claim.spec).unwrap()["resources"]["requests"].clone())
        .collect();
    assert_eq!(sizes, [json!({"storage": "1Gi"}), json!({"storage": "2Gi"})]);
}

#[test]
fn a_volume_for_the_log_is_mounted_only_if_asked_for() {
    let mounts = |changes: &Value| {
        let mounts = postgres(changes).volume_mounts.unwrap();
        mounts.into_iter().filter(|mount| mount.name == "wal").count()
    };
    assert_eq!(mounts(&json!({})), 0);
    assert_eq!(mounts(&json!({"storage": {"size": "1Gi", "wal": {"size": "1Gi"}}})), 1);
}

#[test]
fn instances_are_told_what_the_spec_says() {
    let objects = objects(&json!({"replicas": 2, "postgresql": {"parameters": {"work_mem": "7MB"}}}));
    let data = objects.config_map.data.unwrap();
    let config: operator_core::config::InstanceConfig = serde_json::from_str(&data["instance.json"]).unwrap();
    assert_eq!((config.replicas, config.major, config.storage_bytes), (2, 17, 1 << 30));
    assert_eq!(config.parameters["work_mem"], "7MB");
    assert!(data["passwd"].contains("postgres:x:999:999:"));
}

#[test]
fn an_application_finds_its_way() {
    let objects = objects(&json!({"bootstrap": {"initdb": {"database": "shop", "owner": "clerk"}}}));
    let secret = objects.secrets.iter().find(|secret| secret.metadata.name.as_deref() == Some("orders-app")).unwrap();
    let data = secret.data.as_ref().unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!(secret.type_.as_deref(), Some("servicebinding.io/postgresql"));
    assert_eq!((text("username"), text("database")), ("clerk".to_owned(), "shop".to_owned()));
    assert_eq!(text("host"), "orders-rw.shop.svc");
    let expected = format!("postgresql://clerk:{}@orders-rw.shop.svc:5432/shop?sslmode=require", text("password"));
    assert_eq!(text("uri"), expected);
}

#[test]
fn a_root_secret_reads_back_and_an_incomplete_one_does_not() {
    let cluster = cluster(&json!({}));
    let root = material(&cluster).root;
    let mut secret = secrets::root_secret(&cluster, &root);
    assert!(secrets::read_root(&secret) == Some(root));
    secret.data.as_mut().unwrap().remove("ca.key");
    assert!(secrets::read_root(&secret).is_none());
}

#[test]
fn passwords_are_long_and_differ() {
    let (one, other) = (password().unwrap(), password().unwrap());
    assert_eq!(one.len(), 32);
    assert_ne!(one, other);
    assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{one}");
}

#[rstest]
#[case::unknown_version(json!({"version": "14"}), "SpecInvalid", "\"14\" is none of")]
#[case::nonsense(json!({"version": "17.x"}), "SpecInvalid", "\"17.x\" is none of")]
#[case::no_image(json!({"version": "16"}), "ImageUnknown", "set spec.image, or POSTGRES_IMAGE_16")]
#[case::no_size(json!({"storage": {"size": "big"}}), "SpecInvalid", "spec.storage.size: \"big\"")]
#[case::no_wal_size(json!({"storage": {"size": "1Gi", "wal": {"size": "0"}}}), "SpecInvalid", "spec.storage.wal.size")]
fn what_can_not_be_built_says_what_to_correct(#[case] changes: Value, #[case] reason: &str, #[case] words: &str) {
    let invalid: Invalid = Cluster::check(&resource(&changes), &images()).unwrap_err();
    assert_eq!(invalid.reason(), reason);
    assert!(invalid.to_string().contains(words), "{invalid}");
}

#[rstest]
#[case("17", Some((17, None)))]
#[case("17.6", Some((17, Some(6))))]
#[case("15.0", Some((15, Some(0))))]
#[case("19", None)]
#[case("17.", None)]
#[case("", None)]
fn versions(#[case] text: &str, #[case] expected: Option<(u32, Option<u32>)>) {
    assert_eq!(cluster::version(text).ok(), expected);
}
