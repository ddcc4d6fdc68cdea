//! The API reference, from the schema itself.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use operator_core::config::OWNED_PARAMETERS;

use super::BundleError;

/// Types of Kubernetes itself, described there rather than here.
const FOREIGN: &[&str] = &["tolerations[]", "imagePullSecrets[]", "conditions[]"];

/// The page `docs/reference/api.md`.
///
/// # Errors
/// The definition has no schema.
pub fn page(crd: &CustomResourceDefinition) -> Result<String, BundleError> {
    let version = crd.spec.versions.first().ok_or(BundleError::NoSchema)?;
    let schema = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).ok_or(BundleError::NoSchema)?;
    let properties = schema.properties.as_ref().ok_or(BundleError::NoSchema)?;
    let mut page = format!(
        "# API reference\n\n<!-- Generated from the code: change it there and run make generate. -->\n\n\
         ## {} ({}/{})\n",
        crd.spec.names.kind, crd.spec.group, version.name
    );
    for part in ["spec", "status"] {
        let schema = properties.get(part).ok_or(BundleError::NoSchema)?;
        let _ = write!(page, "\n### {part}\n\n{}\n", paragraph(schema.description.as_deref()));
        page.push_str("\n| field | type | default | meaning |\n|---|---|---|---|\n");
        rows(&mut page, schema, "");
    }
    page.push_str("\n### Rules\n\nThe API server refuses a resource that breaks one of them.\n\n");
    rules(&mut page, schema);
    page.push_str(
        "\n### Parameters the operator sets itself\n\nThey can't be set in `spec.postgresql.parameters`.\n\n",
    );
    for name in OWNED_PARAMETERS {
        let _ = writeln!(page, "- `{name}`");
    }
    Ok(page)
}

fn paragraph(text: Option<&str>) -> String {
    text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn rows(page: &mut String, schema: &JSONSchemaProps, prefix: &str) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, property) in schema.properties.iter().flatten() {
        let path = format!("{prefix}{name}");
        let default = match (&property.default, required.contains(name)) {
            (_, true) => "required".to_owned(),
            (Some(value), false) if value.0.is_object() || value.0.is_array() => String::new(),
            (Some(value), false) => format!("`{}`", value.0),
            (None, false) => String::new(),
        };
        let _ = writeln!(
            page,
            "| `{path}` | {} | {default} | {}{} |",
            kind(property),
            paragraph(property.description.as_deref()),
            values(property)
        );
        match items(property) {
            Some(item) if !FOREIGN.contains(&format!("{name}[]").as_str()) => {
                rows(page, item, &format!("{path}[]."));
            }
            Some(_) => {}
            None => rows(page, property, &format!("{path}.")),
        }
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(items) => items.first(),
    }
}

fn kind(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "quantity".to_owned();
    }
    match items(schema) {
        Some(item) => format!("list of {}", kind(item)),
        None if schema.additional_properties.is_some() => "map".to_owned(),
        None => schema.type_.clone().unwrap_or_else(|| "any".to_owned()),
    }
}

/// What is allowed: the values of an enumeration, or the bounds of a number.
fn values(schema: &JSONSchemaProps) -> String {
    if let Some(values) = &schema.enum_ {
        let values: Vec<String> =
            values.iter().filter(|value| !value.0.is_null()).map(|value| format!("`{}`", value.0)).collect();
        return format!(" One of {}.", values.join(", "));
    }
    match (schema.minimum, schema.maximum) {
        (Some(minimum), Some(maximum)) => format!(" From {minimum} to {maximum}."),
        _ => String::new(),
    }
}

fn rules(page: &mut String, schema: &JSONSchemaProps) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let _ = writeln!(page, "- {}", paragraph(rule.message.as_deref()));
    }
    for property in schema.properties.iter().flatten().map(|(_, property)| property) {
        rules(page, property);
    }
}
