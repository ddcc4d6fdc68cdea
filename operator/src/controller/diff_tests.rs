use rstest::rstest;
use serde_json::json;

use super::*;

#[rstest]
#[case::equal(json!({"a": 1}), json!({"a": 1}), None)]
#[case::defaults_of_the_server(json!({"a": {"b": 1}}), json!({"a": {"b": 1, "c": 2}, "d": 3}), None)]
#[case::other_value(json!({"a": {"b": 1}}), json!({"a": {"b": 2}}), Some("a.b"))]
#[case::missing(json!({"a": {"b": 1}}), json!({"a": {}}), Some("a.b"))]
#[case::missing_parent(json!({"a": {"b": 1}}), json!({}), Some("a"))]
#[case::empty_is_none(json!({"a": {}, "b": []}), json!({}), None)]
#[case::list_longer(json!({"a": [1]}), json!({"a": [1, 2]}), Some("a"))]
#[case::list_shorter(json!({"a": [1, 2]}), json!({"a": [1]}), Some("a"))]
#[case::list_of_maps(json!({"a": [{"b": 1}]}), json!({"a": [{"b": 1, "c": 2}]}), None)]
#[case::quantity(json!({"requests": {"memory": "1024Mi"}}), json!({"requests": {"memory": "1Gi"}}), None)]
#[case::other_quantity(
    json!({"requests": {"memory": "1Gi"}}), json!({"requests": {"memory": "2Gi"}}), Some("requests.memory")
)]
#[case::not_a_quantity(json!({"data": {"memory": "1024Mi"}}), json!({"data": {"memory": "1Gi"}}), Some("data.memory"))]
#[case::one_owner_more(
    json!({"ownerReferences": [{"uid": "a"}]}), json!({"ownerReferences": [{"uid": "b"}, {"uid": "a"}]}), None
)]
#[case::owner_gone(
    json!({"ownerReferences": [{"uid": "a"}]}), json!({"ownerReferences": [{"uid": "b"}]}), Some("ownerReferences")
)]
fn differences(#[case] desired: Value, #[case] live: Value, #[case] expected: Option<&str>) {
    assert_eq!(difference(&desired, &live).as_deref(), expected);
}

fn meta(entries: Value) -> ObjectMeta {
    serde_json::from_value(json!({"managedFields": entries})).unwrap()
}

fn entry(manager: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

#[rstest]
#[case::nobody(json!([]), None)]
#[case::ours(json!([entry("postgres-operator", json!({"f:spec": {"f:extra": {}}}))]), None)]
#[case::added(json!([entry("kubectl-edit", json!({"f:spec": {"f:extra": {}}}))]), Some(("kubectl-edit", "f:spec.f:extra")))]
#[case::added_to_a_selector(
    json!([entry("kubectl-edit", json!({"f:spec": {"f:selector": {}}}))]), Some(("kubectl-edit", "f:spec.f:selector"))
)]
#[case::gone_again(json!([entry("kubectl-edit", json!({"f:spec": {"f:gone": {}}}))]), None)]
#[case::asked_for(json!([entry("kubectl-edit", json!({"f:spec": {"f:replicas": {}}}))]), None)]
#[case::element_of_a_list(
    json!([entry("kubectl-edit", json!({"f:spec": {"f:ports": {"k:{\"port\":2}": {".": {}, "f:port": {}}}}}))]),
    Some(("kubectl-edit", "f:spec.f:ports.k:{\"port\":2}"))
)]
#[case::label_of_others(json!([entry("kubectl-label", json!({"f:metadata": {"f:labels": {"f:team": {}}}}))]), None)]
#[case::status(json!([entry("kubelet", json!({"f:status": {"f:phase": {}}}))]), None)]
fn fields_of_others(#[case] entries: Value, #[case] expected: Option<(&str, &str)>) {
    let desired = json!({"spec": {"replicas": 1, "selector": {"a": "b"}, "ports": [{"port": 1}]}});
    let live = json!({
        "spec": {"replicas": 1, "extra": true, "selector": {"a": "b", "c": "d"}, "ports": [{"port": 1}, {"port": 2}]},
        "status": {"phase": "Running"},
    });
    let mut meta = meta(entries);
    for trimmed in [false, true] {
        if trimmed {
            trim(&mut meta);
        }
        let seen = foreign(&desired, &live, &meta);
        let seen = seen.as_ref().map(|(manager, path)| (manager.as_str(), path.as_str()));
        assert_eq!(seen, expected, "trimmed: {trimmed}");
    }
}

#[test]
fn trimming_keeps_what_is_judged_by() {
    let mut applied = entry("postgres-operator", json!({"f:spec": {}}));
    applied["operation"] = json!("Apply");
    let mut by_status = entry("kube-controller-manager", json!({"f:spec": {"f:a": {}}}));
    by_status["subresource"] = json!("status");
    let mut meta = meta(json!([
        applied,
        by_status,
        entry("kubectl-edit", json!({"f:spec": {"f:a": {}}})),
        entry("kubectl-label", json!({"f:metadata": {"f:labels": {"f:team": {}}}})),
    ]));
    trim(&mut meta);
    let kept = meta.managed_fields.unwrap();
    let names: Vec<&str> = kept.iter().filter_map(|entry| entry.manager.as_deref()).collect();
    assert_eq!(names, ["postgres-operator", "kubectl-edit"]);
    assert!(kept[0].fields_v1.is_none(), "our own fields are not compared");
}

#[test]
fn a_fingerprint_tells_objects_apart() {
    assert_eq!(fingerprint(&json!({"a": 1})), fingerprint(&json!({"a": 1})));
    assert_ne!(fingerprint(&json!({"a": 1})), fingerprint(&json!({"a": 2})));
}
