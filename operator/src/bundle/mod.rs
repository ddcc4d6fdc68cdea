//! What is derived from the code and committed: manifests, custom resource definitions, the API reference.
//!
//! Pure functions from the types to text; `bin/bundle.rs` writes the files or compares them.

pub mod manifests;
pub mod rbac;
pub mod reference;

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Serialize;

use crate::api::PostgresCluster;

/// A file could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The YAML library refused.
    #[error("rendering YAML: {0}")]
    Yaml(#[from] serde_yaml::Error),
    /// The definition lacks its schema.
    #[error("the custom resource definition has no schema")]
    NoSchema,
}

const HEADER: &str = "# Generated from the code: change it there and run make generate.\n";

/// Every generated file: its path from the top of the repository, and its content.
///
/// # Errors
/// Something can't be rendered.
pub fn files() -> Result<BTreeMap<String, String>, BundleError> {
    let crd = crd();
    let name = format!("bundle/crds/{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
    let mut plain = String::from(HEADER);
    for document in manifests::documents(&crd)? {
        plain.push_str("---\n");
        plain.push_str(&document);
    }
    Ok([
        (name, format!("{HEADER}{}", yaml(&crd)?)),
        ("bundle/plain/install.yaml".to_owned(), plain),
        ("docs/reference/api.md".to_owned(), reference::page(&crd)?),
    ]
    .into())
}

/// The custom resource definition.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    PostgresCluster::crd()
}

/// YAML of a typed object, without the `status: null` and the like that nobody wrote.
///
/// # Errors
/// The object can't be rendered.
pub fn yaml<T: Serialize>(object: &T) -> Result<String, BundleError> {
    Ok(serde_yaml::to_string(object)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn committed_files_are_current() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (path, content) in files().unwrap() {
            let committed = std::fs::read_to_string(top.join(&path)).unwrap_or_default();
            assert!(committed == content, "{path} differs: run make generate");
        }
    }
}
