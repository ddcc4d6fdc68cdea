//! Cases of validation: what a user writes, and what the API server has to answer.

use std::{collections::BTreeSet, fmt, path::Path};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, ValidationDirective},
};
use serde::Deserialize;
use serde_json::Value;

/// A file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    /// A spec that is accepted; each case changes it.
    pub base: Value,
    /// The cases.
    pub cases: Vec<Case>,
}

/// One case. Without `refused`, the API server has to accept.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it is about.
    pub case: String,
    /// Name of the resource, if the case is about the name.
    #[serde(default)]
    pub name: Option<String>,
    /// Merge patch to the base before the resource is created.
    #[serde(default)]
    pub spec: Value,
    /// Merge patch to the spec of the resource that was created.
    #[serde(default)]
    pub to: Option<Value>,
    /// Everything the API server objects to, in any order.
    #[serde(default)]
    pub refused: BTreeSet<Refusal>,
}

/// One objection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The field it is about; empty if the API server names none.
    pub field: String,
    /// Its words.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A rule of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where it stands: property names from the root of the resource.
    pub path: Vec<String>,
    /// The expression.
    pub expression: String,
    /// What a user is told.
    pub message: String,
}

impl Rule {
    /// It compares with the value before an update.
    #[must_use]
    pub fn is_transition(&self) -> bool {
        self.expression.contains("oldSelf")
    }
}

impl Cases {
    /// Reads a file of the folder `cases`.
    ///
    /// # Errors
    /// It can't be read or understood.
    pub fn read(file: &str) -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_yaml::from_str(&text).with_context(|| path.display().to_string())
    }
}

impl Case {
    /// The resource as created, and as it shall be after the update if there is one.
    #[must_use]
    pub fn objects(&self, base: &Value) -> (Value, Option<Value>) {
        let object = |spec: &Value| serde_json::json!({ "spec": spec });
        let mut created = base.clone();
        merge(&mut created, &self.spec);
        let updated = self.to.as_ref().map(|patch| {
            let mut spec = created.clone();
            merge(&mut spec, patch);
            object(&spec)
        });
        (object(&created), updated)
    }

    /// Plays the case and removes what it made; returns the objections to its last step.
    ///
    /// # Errors
    /// The API server doesn't answer, or refuses the creation that an update needs.
    pub async fn play(
        &self,
        client: &Client,
        kind: &ApiResource,
        number: usize,
        base: &Value,
    ) -> Result<BTreeSet<Refusal>> {
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", kind);
        let name = self.name.clone().unwrap_or_else(|| format!("case-{number}"));
        let mut object = DynamicObject::new(&name, kind);
        object.data = self.objects(base).0;
        let created = refusals(create(client, kind, &object).await)?;
        if !created.is_empty() {
            ensure!(self.to.is_none(), "the creation was refused already: {}", list(&created));
            return Ok(created);
        }
        let answer = match &self.to {
            None => Ok(BTreeSet::new()),
            Some(patch) => {
                let parameters =
                    PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::default() };
                let patch = Patch::Merge(serde_json::json!({ "spec": patch }));
                refusals(api.patch(&name, &parameters, &patch).await)
            }
        };
        api.delete(&name, &Default::default()).await?;
        answer
    }

    /// Compares the objections with those wanted.
    ///
    /// # Errors
    /// They differ; the message has both.
    pub fn judge(&self, seen: &BTreeSet<Refusal>) -> Result<()> {
        if *seen == self.refused {
            return Ok(());
        }
        bail!("{}\n    wanted: {}\n    seen:   {}", self.case, list(&self.refused), list(seen))
    }

    /// The case shows `rule` refusing.
    #[must_use]
    pub fn refuses(&self, rule: &Rule) -> bool {
        self.refused.iter().any(|refusal| refusal.message.ends_with(&rule.message))
    }

    /// The case makes the API server evaluate `rule`, which allows it.
    #[must_use]
    pub fn allows(&self, rule: &Rule, base: &Value) -> bool {
        let (created, updated) = self.objects(base);
        let set = |object: &Value| has(object, &rule.path);
        self.refused.is_empty()
            && match &updated {
                Some(updated) => set(updated) && (set(&created) || !rule.is_transition()),
                None => set(&created) && !rule.is_transition(),
            }
    }
}

/// As kubectl creates: strict about fields that don't exist, which kube's own `create` can't ask for.
async fn create(client: &Client, kind: &ApiResource, object: &DynamicObject) -> kube::Result<DynamicObject> {
    let url = format!("/apis/{}/namespaces/default/{}?fieldValidation=Strict", kind.api_version, kind.plural);
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(url).header(http::header::CONTENT_TYPE, "application/json").body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

fn list(refusals: &BTreeSet<Refusal>) -> String {
    if refusals.is_empty() {
        return "accepted".to_owned();
    }
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n            ")
}

fn refusals<T>(answer: kube::Result<T>) -> Result<BTreeSet<Refusal>> {
    let status = match answer {
        Ok(_) => return Ok(BTreeSet::new()),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => status,
        Err(error) => return Err(error.into()),
    };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    if causes.is_empty() {
        return Ok([Refusal { field: String::new(), message: status.message.clone() }].into());
    }
    // Not an objection but a remark that there may be more of them.
    let remark = "some validation rules were not checked";
    let objections = causes.iter().filter(|cause| !cause.message.contains(remark));
    Ok(objections.map(|cause| Refusal { field: cause.field.clone(), message: cause.message.clone() }).collect())
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        if !patch.is_null() {
            *target = patch.clone();
        }
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

fn has(value: &Value, path: &[String]) -> bool {
    path.iter().try_fold(value, |value, name| value.get(name)).is_some()
}

/// Every rule of a CRD's schema.
///
/// # Errors
/// The CRD has no schema.
pub fn rules(crd: &CustomResourceDefinition) -> Result<Vec<Rule>> {
    let mut found = Vec::new();
    collect(&schema(crd)?, &mut Vec::new(), &mut found);
    Ok(found)
}

/// The schema of a CRD's only version.
///
/// # Errors
/// There is none.
pub fn schema(crd: &CustomResourceDefinition) -> Result<Value> {
    let version = crd.spec.versions.first().context("the CRD has no version")?;
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    Ok(serde_json::to_value(schema.context("the CRD has no schema")?)?)
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Rule>) {
    let text = |rule: &Value, key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for rule in schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
        found.push(Rule { path: path.clone(), expression: text(rule, "rule"), message: text(rule, "message") });
    }
    for (name, child) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        path.push(name.clone());
        collect(child, path, found);
        path.pop();
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(key) {
            path.push("*".to_owned());
            collect(child, path, found);
            path.pop();
        }
    }
}

/// The same schema under another group and without its rules: the control that shows what the rules do.
///
/// # Errors
/// The CRD can't be read back, which would be a defect here.
pub fn without_rules(crd: &CustomResourceDefinition, group: &str) -> Result<CustomResourceDefinition> {
    let mut value = serde_json::to_value(crd)?;
    strip(&mut value);
    let mut crd: CustomResourceDefinition = serde_json::from_value(value)?;
    crd.metadata.name = Some(format!("{}.{group}", crd.spec.names.plural));
    crd.spec.group = group.to_owned();
    Ok(crd)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
