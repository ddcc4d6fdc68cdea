//! The little an instance wants from the API server: its cluster's Lease and ConfigMap, the primary's address, and its own label.

use std::{fmt::Debug, net::IpAddr, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config, Resource,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher::watch_object,
};
use operator_core::{
    config::InstanceConfig,
    instance::RecordView,
    names::{ANNOTATION_SUCCESSION, FILE_CONFIG, LABEL_ROLE},
    record::{LeaseFields, Record, RecordError},
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::timeout};

use super::identity::Identity;

/// How long a single request may take, connection included.
const DEADLINE: Duration = Duration::from_secs(2);
/// Pause before a failed watch is begun again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// A request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No way to reach it at all.
    #[error("the pod's service account and API server address: {0}")]
    Config(String),
    /// The request failed.
    #[error("{what}: {source}")]
    Request {
        /// What was attempted.
        what: &'static str,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The outcome is unknown.
    #[error("{what}: no answer within 2 s")]
    Late {
        /// What was attempted.
        what: &'static str,
    },
    /// The record can't be written as a Lease.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl ApiError {
    /// Somebody else changed the object first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Request { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 409))
    }
}

/// An object as last seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<K> {
    /// Not seen yet.
    Unknown,
    /// The API server says that it doesn't exist.
    Missing,
    /// The object.
    Here(K),
}

/// A client for one instance.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    leases: Api<Lease>,
    pods: Api<Pod>,
    watched_leases: Api<Lease>,
    watched_configs: Api<ConfigMap>,
    cluster: String,
    config_map: String,
    pod: String,
}

impl Kubernetes {
    /// Connects as the pod's service account.
    ///
    /// # Errors
    /// There is no service account or no address of an API server.
    pub fn new(identity: &Identity) -> Result<Self, ApiError> {
        let config = Config::incluster_env().map_err(|error| ApiError::Config(error.to_string()))?;
        let single = client(config.clone(), DEADLINE)?;
        // A watch is silent for as long as nothing happens; the server ends it after five minutes at the latest.
        let watching = client(config, Duration::from_secs(330))?;
        let namespace = &identity.namespace;
        Ok(Self {
            leases: Api::namespaced(single.clone(), namespace),
            pods: Api::namespaced(single, namespace),
            watched_leases: Api::namespaced(watching.clone(), namespace),
            watched_configs: Api::namespaced(watching, namespace),
            cluster: identity.cluster.to_string(),
            config_map: identity.cluster.config_map(),
            pod: identity.pod.clone(),
        })
    }

    /// Follows the Lease of the cluster. The sender lives as long as the returned receiver has clones.
    #[must_use]
    pub fn follow_lease(&self) -> watch::Receiver<Seen<Lease>> {
        let api = self.watched_leases.clone();
        let name = self.cluster.clone();
        follow("the Lease", move || watch_object(api.clone(), &name))
    }

    /// Follows the ConfigMap of the cluster.
    #[must_use]
    pub fn follow_config(&self) -> watch::Receiver<Seen<ConfigMap>> {
        let api = self.watched_configs.clone();
        let name = self.config_map.clone();
        follow("the ConfigMap", move || watch_object(api.clone(), &name))
    }

    /// Writes a record over the Lease as it was read, unless somebody else wrote first.
    ///
    /// # Errors
    /// [`ApiError::is_conflict`]: it was not written. Anything else: it may be, or may yet be.
    pub async fn write_record(&self, over: &Lease, record: &Record) -> Result<Lease, ApiError> {
        let lease = with_record(over.clone(), record)?;
        bounded("writing the Lease", self.leases.replace(&self.cluster, &PostParams::default(), &lease)).await
    }

    /// Address of a pod of the cluster; `None` if the pod doesn't exist or has none yet.
    ///
    /// # Errors
    /// The request failed.
    pub async fn pod_address(&self, pod: &str) -> Result<Option<IpAddr>, ApiError> {
        let found = bounded("reading the primary's pod", self.pods.get_opt(pod)).await?;
        Ok(found.and_then(|pod| pod.status?.pod_ip?.parse().ok()))
    }

    /// Sets the role label of the own pod.
    ///
    /// # Errors
    /// The request failed.
    pub async fn label_role(&self, role: &str) -> Result<(), ApiError> {
        let labels = [(LABEL_ROLE.to_owned(), role.to_owned())].into();
        let patch = Pod { metadata: ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }, ..Pod::default() };
        bounded("labelling the own pod", self.pods.patch(&self.pod, &PatchParams::default(), &Patch::Merge(&patch)))
            .await?;
        Ok(())
    }
}

fn client(mut config: Config, read: Duration) -> Result<Client, ApiError> {
    config.connect_timeout = Some(Duration::from_secs(1));
    config.write_timeout = Some(Duration::from_secs(1));
    config.read_timeout = Some(read);
    // Else time that a connection sat idle in the pool would count against the next answer.
    config.reset_reader_on_write = true;
    // A retry behind our back would make the deadline a fiction, and a refused write look like an accepted one.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| ApiError::Config(error.to_string()))
}

async fn bounded<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match timeout(DEADLINE, request).await {
        Ok(answer) => answer.map_err(|source| ApiError::Request { what, source: Box::new(source) }),
        Err(_) => Err(ApiError::Late { what }),
    }
}

fn follow<K, S>(what: &'static str, begin: impl Fn() -> S + Send + 'static) -> watch::Receiver<Seen<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + PartialEq + Send + Sync + 'static,
    S: Stream<Item = Result<Option<K>, kube::runtime::watcher::Error>> + Send + 'static,
{
    let (sender, receiver) = watch::channel(Seen::Unknown);
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(begin());
        while let Some(item) = stream.next().await {
            match item {
                Ok(object) => {
                    let seen = object.map_or(Seen::Missing, Seen::Here);
                    sender.send_if_modified(|last| std::mem::replace(last, seen.clone()) != seen);
                }
                // The stream begins anew by itself at the next poll. What was seen stays seen.
                Err(error) => {
                    tracing::warn!("watching {what}: {error}");
                    tokio::time::sleep(WATCH_PAUSE).await;
                }
            }
        }
    });
    receiver
}

/// Reads the record out of a Lease.
#[must_use]
pub fn record_of(lease: &Lease) -> RecordView {
    let annotation = lease.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_SUCCESSION));
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    match (holder, annotation, spec.lease_transitions) {
        (None, None, None | Some(0)) => RecordView::Empty,
        (Some(holder_identity), Some(annotation), Some(lease_transitions)) => {
            let fields = LeaseFields { holder_identity, lease_transitions, annotation: annotation.clone() };
            Record::decode(&fields).map_or_else(|error| RecordView::Unreadable(error.to_string()), RecordView::Known)
        }
        _ => RecordView::Unreadable(
            "holderIdentity, leaseTransitions and the annotation are not there together".to_owned(),
        ),
    }
}

fn with_record(mut lease: Lease, record: &Record) -> Result<Lease, RecordError> {
    let LeaseFields { holder_identity, lease_transitions, annotation } = record.encode()?;
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(holder_identity);
    spec.lease_transitions = Some(lease_transitions);
    lease.metadata.annotations.get_or_insert_default().insert(ANNOTATION_SUCCESSION.to_owned(), annotation);
    Ok(lease)
}

/// Reads the configuration out of the ConfigMap.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub fn config_of(map: &ConfigMap) -> Result<InstanceConfig, String> {
    let text = map.data.as_ref().and_then(|data| data.get(FILE_CONFIG));
    let text = text.ok_or_else(|| format!("the ConfigMap has no key {FILE_CONFIG}"))?;
    serde_json::from_str(text).map_err(|error| format!("{FILE_CONFIG} in the ConfigMap: {error}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn record() -> Record {
        Record {
            version: 2,
            holder: "orders-0.0000000a".parse().unwrap(),
            epoch: 1,
            incarnation: 7,
            names: [].into(),
            acks: 0,
            timeline: 1,
            system_id: Some(9),
        }
    }

    #[test]
    fn a_record_survives_the_lease_and_leaves_the_rest_alone() {
        let metadata = ObjectMeta { resource_version: Some("5".to_owned()), ..ObjectMeta::default() };
        let spec = Some(LeaseSpec { strategy: Some("x".to_owned()), ..LeaseSpec::default() });
        let lease = with_record(Lease { metadata, spec }, &record()).unwrap();
        assert_eq!(record_of(&lease), RecordView::Known(record()));
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("5"));
        assert_eq!(lease.spec.and_then(|spec| spec.strategy).as_deref(), Some("x"));
    }

    #[test]
    fn an_empty_lease_is_empty_and_a_half_written_one_is_not() {
        assert_eq!(record_of(&Lease::default()), RecordView::Empty);
        let spec = Some(LeaseSpec { holder_identity: Some("orders-0.0000000a".to_owned()), ..LeaseSpec::default() });
        assert!(matches!(record_of(&Lease { spec, ..Lease::default() }), RecordView::Unreadable(_)));
        let annotations = Some([(ANNOTATION_SUCCESSION.to_owned(), "{}".to_owned())].into());
        let metadata = ObjectMeta { annotations, ..ObjectMeta::default() };
        assert!(matches!(record_of(&Lease { metadata, ..Lease::default() }), RecordView::Unreadable(_)));
    }
}
