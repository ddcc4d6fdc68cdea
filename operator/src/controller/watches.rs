//! Watches: what keeps the caches current and wakes the driver.
//!
//! Each watch has a back-off of its own. In the library's own way of triggering, one broken watch would slow all of them.

use std::fmt::Debug;

use futures::{Stream, StreamExt, stream::SelectAll};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};
use operator_core::names::LABEL_CLUSTER;
use serde::de::DeserializeOwned;

use super::{context::Stores, diff};
use crate::api::PostgresCluster;

/// How long one watch request lasts, in seconds: short, so that a connection that died in silence is noticed.
const WATCH_SECONDS: u32 = 120;

/// Something woke the driver: this cluster should be looked at.
pub type Wake = ObjectRef<PostgresCluster>;
/// Everything that wakes it.
pub type Wakes = SelectAll<std::pin::Pin<Box<dyn Stream<Item = Wake> + Send>>>;

/// What watching needs.
pub struct Watches {
    client: Client,
    namespaces: Vec<String>,
    clusters: Store<PostgresCluster>,
    wakes: Wakes,
}

/// Begins all watches, in these namespaces or in all. The caches fill while the second value is polled.
pub fn begin(client: &Client, namespaces: &[String]) -> (Stores, Wakes) {
    let (clusters, writer) = reflector::store();
    let mut watches = Watches {
        client: client.clone(),
        namespaces: namespaces.to_vec(),
        clusters: clusters.clone(),
        wakes: SelectAll::new(),
    };
    watches.add(writer, None, own_key);
    let stores = Stores {
        clusters,
        stateful_sets: watches.owned(),
        services: watches.owned(),
        secrets: watches.owned(),
        config_maps: watches.owned(),
        disruption_budgets: watches.owned(),
        service_accounts: watches.owned(),
        roles: watches.owned(),
        role_bindings: watches.owned(),
        leases: watches.owned(),
        pods: watches.owned(),
        claims: watches.owned(),
    };
    (stores, watches.wakes)
}

fn own_key(cluster: &PostgresCluster) -> Option<Wake> {
    Some(ObjectRef::from_obj(cluster))
}

/// The cluster an object belongs to, by its label.
fn labelled<K: Resource>(object: &K) -> Option<Wake> {
    let name = object.labels().get(LABEL_CLUSTER)?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

impl Watches {
    /// Watches what belongs to clusters.
    fn owned<K>(&mut self) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let (store, writer) = reflector::store();
        self.add(writer, Some(LABEL_CLUSTER), labelled);
        store
    }

    fn add<K>(&mut self, writer: reflector::store::Writer<K>, label: Option<&str>, key: fn(&K) -> Option<Wake>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
        if let Some(label) = label {
            config = config.labels(label);
        }
        // Several lists can't be put into one cache: of several namespaces all are watched, and the others ignored.
        let api: Api<K> = match self.namespaces.as_slice() {
            [namespace] => Api::namespaced(self.client.clone(), namespace),
            _ => Api::all(self.client.clone()),
        };
        let clusters = self.clusters.clone();
        let namespaces = self.namespaces.clone();
        let wakes = watcher(api, config)
            .default_backoff()
            .modify(|object| diff::trim(object.meta_mut()))
            .reflect(writer)
            .filter_map(|event| async {
                event.inspect_err(|error| tracing::warn!(kind = %K::kind(&()), "watching failed: {error}")).ok()
            })
            .flat_map(move |event| futures::stream::iter(woken(&event, key, &clusters)))
            .filter(move |wake| std::future::ready(manages(&namespaces, wake.namespace.as_deref())));
        self.wakes.push(wakes.boxed());
    }
}

/// True if this controller manages clusters of the namespace. No namespace in the list means all.
#[must_use]
pub fn manages(namespaces: &[String], namespace: Option<&str>) -> bool {
    namespaces.is_empty() || namespaces.iter().any(|managed| Some(managed.as_str()) == namespace)
}

/// Which clusters an event wakes. After a new list all of them: what is gone from it left no event.
fn woken<K>(event: &Event<K>, key: fn(&K) -> Option<Wake>, clusters: &Store<PostgresCluster>) -> Vec<Wake> {
    match event {
        Event::Apply(object) | Event::Delete(object) => key(object).into_iter().collect(),
        Event::InitDone => clusters.state().iter().map(|cluster| ObjectRef::from_obj(cluster.as_ref())).collect(),
        Event::Init | Event::InitApply(_) => Vec::new(),
    }
}

/// Waits until every cache holds what there is.
///
/// # Errors
/// A watch has ended, which only happens when the program does.
pub async fn synced(stores: &Stores) -> Result<(), reflector::store::WriterDropped> {
    // Without `..`, so that a new cache can't be forgotten here.
    let Stores {
        clusters,
        stateful_sets,
        services,
        secrets,
        config_maps,
        disruption_budgets,
        service_accounts,
        roles,
        role_bindings,
        leases,
        pods,
        claims,
    } = stores;
    clusters.wait_until_ready().await?;
    stateful_sets.wait_until_ready().await?;
    services.wait_until_ready().await?;
    secrets.wait_until_ready().await?;
    config_maps.wait_until_ready().await?;
    disruption_budgets.wait_until_ready().await?;
    service_accounts.wait_until_ready().await?;
    roles.wait_until_ready().await?;
    role_bindings.wait_until_ready().await?;
    leases.wait_until_ready().await?;
    pods.wait_until_ready().await?;
    claims.wait_until_ready().await
}
