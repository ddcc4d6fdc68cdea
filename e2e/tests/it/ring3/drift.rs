//! What somebody edits or deletes comes back as it was, within five seconds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    controller::Site,
    objects::existing,
    wait::{until, when},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};

use serde_json::{Value, json};

use super::controller::{complete, create};

const LIMIT: Duration = Duration::from_secs(5);

/// One object and what somebody does to it.
struct Drift {
    object: &'static str,
    /// A merge patch; `None`: it is deleted.
    edit: Option<Value>,
}

fn edits() -> Vec<Drift> {
    let edit = |object, edit| Drift { object, edit: Some(edit) };
    let delete = |object| Drift { object, edit: None };
    vec![
        edit("Service orders-rw", json!({"spec": {"selector": {"db.example.com/role": "standby"}}})),
        delete("Service orders-rw"),
        edit("Service orders-ro", json!({"metadata": {"labels": {"db.example.com/cluster": null}}})),
        delete("Service orders-pods"),
        edit("Secret orders-app", json!({"data": {"password": "aGFja2Vk"}})),
        delete("Secret orders-app"),
        delete("Secret orders-superuser"),
        edit("ConfigMap orders-instance", json!({"data": {"instance.json": "{}"}})),
        delete("ConfigMap orders-instance"),
        edit("PodDisruptionBudget orders", json!({"metadata": {"ownerReferences": []}})),
        delete("PodDisruptionBudget orders"),
        edit("Role orders", json!({"rules": []})),
        delete("RoleBinding orders"),
        delete("ServiceAccount orders"),
        edit("StatefulSet orders", json!({"spec": {"replicas": 0}})),
        edit("StatefulSet orders", json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}})),
        delete("StatefulSet orders"),
    ]
}

/// What a user wrote, without what the API server counts.
fn content(object: &DynamicObject) -> Value {
    let mut data = object.data.clone();
    if let Some(fields) = data.as_object_mut() {
        fields.remove("status");
    }
    // Addresses are given anew to a Service that was deleted.
    if let Some(spec) = data.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|key, _| key != "clusterIP" && key != "clusterIPs");
    }
    json!({"labels": object.labels(), "owners": object.owner_references(), "data": data})
}

async fn play(site: &Site, namespace: &str, drift: &Drift) -> Result<Duration> {
    let before = existing(&site.client, namespace, "orders").await?;
    let wanted = content(before.get(drift.object).context("it doesn't exist")?);
    let (kind, name) = drift.object.split_once(' ').context("no name")?;
    let kind: ApiResource =
        e2e::objects::children().into_iter().map(|children| children.kind).find(|k| k.kind == kind).context("kind")?;
    let api = Api::<DynamicObject>::namespaced_with(site.client.clone(), namespace, &kind);
    match &drift.edit {
        Some(edit) => {
            let edited = api.patch(name, &PatchParams::default(), &Patch::Merge(edit)).await?;
            ensure!(content(&edited) != wanted, "the edit changes nothing");
        }
        None => {
            api.delete(name, &DeleteParams::background()).await?;
        }
    }
    let look = || async {
        let seen = api.get_opt(name).await?.as_ref().map(content);
        Ok(when(seen.as_ref() == Some(&wanted), seen))
    };
    Ok(until("it is as it was", LIMIT, look).await?.1)
}

#[tokio::test]
async fn edited_and_deleted_objects_come_back() -> Result<()> {
    let site = Site::new("drift").await?;
    let _controller = site.start("controller").await?;
    create(&site, "e2e-drift", "orders").await?;
    complete(&site, "e2e-drift", "orders").await?;
    let mut wrong = Vec::new();
    let mut slowest = Duration::ZERO;
    let edits = edits();
    for drift in &edits {
        let what = if drift.edit.is_some() { "edited" } else { "deleted" };
        match play(&site, "e2e-drift", drift).await {
            Ok(took) => slowest = slowest.max(took),
            Err(error) => wrong.push(format!("{} {what}: {error:#}", drift.object)),
        }
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), edits.len(), wrong.join("\n"));
    println!("{} edits and deletions repaired, the slowest in {:.2} s", edits.len(), slowest.as_secs_f64());
    Ok(())
}
