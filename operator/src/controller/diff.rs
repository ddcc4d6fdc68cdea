//! Whether an object that exists is what it should be.
//!
//! A server fills in defaults, so what exists is always more than what was asked for. It is as it should be if every field
//! that was asked for is there and equal, and if nobody else has put a field of their own into its content. Labels and
//! annotations of others are theirs to add.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use operator_core::names::MANAGER;
use serde_json::{Map, Value};

use crate::k8s::quantity;

/// Annotation with the fingerprint of what was applied last: tells when a field is no longer asked for.
pub const ANNOTATION_APPLIED: &str = "db.example.com/applied";

/// Fingerprint of an object as it is asked for. Not secure.
#[must_use]
pub fn fingerprint(desired: &Value) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", desired.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The first place in which an object differs from what was asked for; `None` if it doesn't.
#[must_use]
pub fn difference(desired: &Value, live: &Value) -> Option<String> {
    within(desired, live, &mut Vec::new())
}

fn within<'a>(desired: &'a Value, live: &Value, path: &mut Vec<&'a str>) -> Option<String> {
    let here = |path: &[&str]| Some(path.join("."));
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            for (key, value) in desired {
                path.push(key);
                let found = within(value, live.get(key).unwrap_or(&Value::Null), path);
                if found.is_some() {
                    return found;
                }
                path.pop();
            }
            None
        }
        (Value::Array(desired), Value::Array(live)) if path.ends_with(&["ownerReferences"]) => {
            // Others may add owners; ours has to be among them.
            let there = desired.iter().all(|item| live.iter().any(|other| difference(item, other).is_none()));
            if there { None } else { here(path) }
        }
        (Value::Array(desired), Value::Array(live)) => {
            if desired.len() != live.len() {
                return here(path);
            }
            desired.iter().zip(live).find_map(|(desired, live)| within(desired, live, path))
        }
        // An empty map or list is as good as none.
        (Value::Object(map), Value::Null) if map.is_empty() => None,
        (Value::Array(list), Value::Null) if list.is_empty() => None,
        (desired, live) if desired == live || (is_quantity(path) && same_quantity(desired, live)) => None,
        _ => here(path),
    }
}

fn is_quantity(path: &[&str]) -> bool {
    path.iter().any(|part| matches!(*part, "requests" | "limits" | "sizeLimit"))
}

/// The server writes quantities its own way: `1024Mi` comes back as `1Gi`.
fn same_quantity(desired: &Value, live: &Value) -> bool {
    let parse = |value: &Value| quantity::thousandths(value.as_str()?).ok();
    parse(desired).is_some_and(|desired| Some(desired) == parse(live))
}

/// Keeps of the field owners only what matters here: who else changed the content, and that we are one of them. They are
/// the largest part of most objects, and the store holds thousands.
pub fn trim(meta: &mut ObjectMeta) {
    let Some(entries) = &mut meta.managed_fields else { return };
    entries.retain_mut(|entry| {
        if entry.manager.as_deref() == Some(MANAGER) {
            entry.fields_v1 = None;
            return entry.operation.as_deref() == Some("Apply");
        }
        entry.subresource.is_none() && content(entry).is_some_and(|roots| !roots.is_empty())
    });
    entries.shrink_to_fit();
}

/// The fields of an entry that belong to the content of an object.
fn content(entry: &ManagedFieldsEntry) -> Option<Vec<(&String, &Value)>> {
    let fields = entry.fields_v1.as_ref()?.0.as_object()?;
    Some(fields.iter().filter(|(key, _)| !matches!(key.as_str(), "f:metadata" | "f:status")).collect())
}

/// A field of the content that somebody else put there: who, and which.
#[must_use]
pub fn foreign(desired: &Value, live: &Value, meta: &ObjectMeta) -> Option<(String, String)> {
    let others = meta.managed_fields.iter().flatten();
    others.filter(|entry| entry.manager.as_deref() != Some(MANAGER) && entry.subresource.is_none()).find_map(|entry| {
        content(entry)?.into_iter().find_map(|(key, fields)| {
            let path = stray(key, fields, Some(desired), Some(live))?;
            Some((entry.manager.clone().unwrap_or_default(), path))
        })
    })
}

/// The first field under `key` that wasn't asked for. An owned field without parts has to be equal as a whole: selectors
/// and the like are replaced rather than merged.
fn stray(key: &str, fields: &Value, desired: Option<&Value>, live: Option<&Value>) -> Option<String> {
    let (desired, live) = (pick(key, desired), pick(key, live));
    let parts: Vec<(&String, &Value)> =
        fields.as_object().map(Map::iter).into_iter().flatten().filter(|(key, _)| key.as_str() != ".").collect();
    // Gone by now, or a default that nobody would miss.
    live.filter(|live| !is_empty(live))?;
    if desired.is_none() {
        return Some(key.to_owned());
    }
    if parts.is_empty() {
        let composite = desired.is_some_and(|value| value.is_object() || value.is_array());
        return (composite && desired != live).then(|| key.to_owned());
    }
    parts.into_iter().find_map(|(part, fields)| Some(format!("{key}.{}", stray(part, fields, desired, live)?)))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// The part of a value that a key of a field set names: `f:name` a field, `k:{...}` an element of a list.
fn pick<'a>(key: &str, value: Option<&'a Value>) -> Option<&'a Value> {
    if let Some(name) = key.strip_prefix("f:") {
        return value?.get(name);
    }
    let wanted: Map<String, Value> = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
    let matches = |item: &&Value| wanted.iter().all(|(key, value)| item.get(key) == Some(value));
    value?.as_array()?.iter().find(matches)
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
