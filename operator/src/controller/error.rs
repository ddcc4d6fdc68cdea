//! What can go wrong while a cluster is made real.

use std::{future::Future, time::Duration};

use tokio::time::timeout;

use crate::{
    api::conditions::{NAME_TAKEN, OBJECT_REFUSED},
    k8s::{certificates::CertificateError, secrets::NoRandomness},
};

/// How long a single request to the API server may take, connection included.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no, or couldn't be reached.
    #[error("{what}: {}", plain(source))]
    Request {
        /// What was attempted, on what.
        what: String,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The outcome is unknown.
    #[error("{what}: no answer within {} s", DEADLINE.as_secs())]
    Late {
        /// What was attempted, on what.
        what: String,
    },
    /// An object of that name belongs to somebody else.
    #[error("{0} exists and isn't this cluster's; rename or delete it, or choose another name for the cluster")]
    NameTaken(String),
    /// An object of an earlier cluster of the same name is still being removed.
    #[error("waiting for {0} of an earlier cluster of this name to be removed")]
    Leaving(String),
    /// A watch ended before its cache was filled.
    #[error("the caches are not filled; the program is ending")]
    NotSynced,
    /// No certificate could be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No password could be made.
    #[error(transparent)]
    Password(#[from] NoRandomness),
    /// An object can't be written as JSON.
    #[error("writing {0} as JSON: {1}")]
    Json(String, #[source] serde_json::Error),
}

impl Error {
    /// The API server's answer, if there was one.
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// The object doesn't exist (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// The object exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }

    /// The object has changed meanwhile.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    /// The namespace is on its way out: nothing can be made in it, and nothing has to.
    #[must_use]
    pub fn is_namespace_leaving(&self) -> bool {
        let causes = self.status().and_then(|status| status.details.as_ref()).map(|details| &details.causes);
        causes.into_iter().flatten().any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Nobody but a person can help: the reason for the condition `Degraded`. Anything else is tried again in silence.
    #[must_use]
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::NameTaken(_) => Some(NAME_TAKEN),
            Self::Request { .. } => self
                .status()
                .filter(|status| (status.is_invalid() || status.is_forbidden()) && !self.is_namespace_leaving())
                .map(|_| OBJECT_REFUSED),
            _ => None,
        }
    }

    /// A short name for metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Request { .. } if self.status().is_some() => "refused",
            Self::Request { .. } => "unreachable",
            Self::Late { .. } => "late",
            Self::NameTaken(_) => "name_taken",
            Self::Leaving(_) | Self::NotSynced => "waiting",
            Self::Certificate(_) | Self::Password(_) | Self::Json(..) => "internal",
        }
    }
}

/// The API server's own words, without the client's rendering of everything around them.
fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Waits for a request, but not forever: the client itself knows no limit.
///
/// # Errors
/// The request's own error, or none came in time.
pub async fn deadline<T>(
    what: impl Into<String>,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Request { what: what.into(), source: Box::new(source) }),
        Err(_) => Err(Error::Late { what: what.into() }),
    }
}
