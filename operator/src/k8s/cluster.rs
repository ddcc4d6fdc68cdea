//! A cluster whose spec has been checked: what every builder takes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use operator_core::names::{ClusterName, ClusterNameError, LABEL_CLUSTER, MANAGER};

use super::quantity::{self, QuantityError};
use crate::api::{PostgresCluster, PostgresClusterSpec};

/// Versions this operator can run.
pub const MAJORS: std::ops::RangeInclusive<u32> = 15..=18;

/// The images the controller was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// The operator's own, from which each pod takes the binary.
    pub operator: String,
    /// PostgreSQL by major version.
    pub postgres: BTreeMap<u32, String>,
}

/// A checked cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name of the resource.
    pub name: ClusterName,
    /// Its namespace.
    pub namespace: String,
    /// Its uid; owner of every object.
    pub uid: String,
    /// Major version of PostgreSQL.
    pub major: u32,
    /// Minor release, if the user insists on one.
    pub minor: Option<u32>,
    /// Image with the binaries of PostgreSQL.
    pub image: String,
    /// Image of the init container.
    pub operator_image: String,
    /// Size of the data volume in bytes.
    pub storage_bytes: u64,
    /// The rest, as written.
    pub spec: PostgresClusterSpec,
}

/// The spec asks for something that can't be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The API server sets it on every object.
    #[error("the object has no {0}; it was not read from an API server")]
    Incomplete(&'static str),
    /// The name can't be used for pods and Services.
    #[error(transparent)]
    Name(#[from] ClusterNameError),
    /// Not a version this operator runs.
    #[error("spec.version: {0:?} is none of 15, 16, 17, 18 or their minor releases")]
    Version(String),
    /// There is no image for the version.
    #[error("no image is configured for PostgreSQL {0}: set spec.image, or POSTGRES_IMAGE_{0} of the operator")]
    NoImage(u32),
    /// A size can't be read.
    #[error("{field}: {source}")]
    Size {
        /// Where it is in the spec.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        source: QuantityError,
    },
}

impl Invalid {
    /// Reason of the condition that reports it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoImage(_) => crate::api::conditions::IMAGE_UNKNOWN,
            Self::Incomplete(_) | Self::Name(_) | Self::Version(_) | Self::Size { .. } => {
                crate::api::conditions::SPEC_INVALID
            }
        }
    }
}

impl Cluster {
    /// Checks a resource and completes it with the controller's images.
    ///
    /// # Errors
    /// What the user has to correct.
    pub fn check(resource: &PostgresCluster, images: &Images) -> Result<Self, Invalid> {
        let meta = resource.meta();
        let name = ClusterName::parse(meta.name.as_deref().ok_or(Invalid::Incomplete("name"))?)?;
        let (major, minor) = version(&resource.spec.version)?;
        let image = match &resource.spec.image {
            Some(image) => image.clone(),
            None => images.postgres.get(&major).cloned().ok_or(Invalid::NoImage(major))?,
        };
        let size = |field, text: &str| quantity::bytes(text).map_err(|source| Invalid::Size { field, source });
        let storage_bytes = size("spec.storage.size", &resource.spec.storage.size.0)?;
        if let Some(wal) = &resource.spec.storage.wal {
            size("spec.storage.wal.size", &wal.size.0)?;
        }
        Ok(Self {
            name,
            namespace: meta.namespace.clone().ok_or(Invalid::Incomplete("namespace"))?,
            uid: meta.uid.clone().ok_or(Invalid::Incomplete("uid"))?,
            major,
            minor,
            image,
            operator_image: images.operator.clone(),
            storage_bytes,
            spec: resource.spec.clone(),
        })
    }

    /// Labels that select what belongs to the cluster.
    #[must_use]
    pub fn selector(&self) -> BTreeMap<String, String> {
        [(LABEL_CLUSTER.to_owned(), self.name.to_string())].into()
    }

    /// Labels of every object of the cluster.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        for (key, value) in [
            ("app.kubernetes.io/name", "postgresql"),
            ("app.kubernetes.io/instance", self.name.as_str()),
            ("app.kubernetes.io/component", "database"),
            ("app.kubernetes.io/managed-by", MANAGER),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        labels
    }

    /// The reference that makes an object go with the cluster.
    #[must_use]
    pub fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: PostgresCluster::api_version(&()).into_owned(),
            kind: PostgresCluster::kind(&()).into_owned(),
            name: self.name.to_string(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

/// Major and minor of a version such as `17` or `17.6`.
///
/// # Errors
/// The text is no version this operator runs.
pub fn version(text: &str) -> Result<(u32, Option<u32>), Invalid> {
    let error = || Invalid::Version(text.to_owned());
    let (major, minor) = match text.split_once('.') {
        Some((major, minor)) => (major, Some(minor.parse().map_err(|_| error())?)),
        None => (text, None),
    };
    let major = major.parse().ok().filter(|major| MAJORS.contains(major)).ok_or_else(error)?;
    Ok((major, minor))
}
