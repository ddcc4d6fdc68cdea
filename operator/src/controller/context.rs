//! What every reconciliation shares: the client, the caches, the images, and what is remembered from one time to the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        coordination::v1::Lease,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::{Client, runtime::reflector::Store};

use super::{instances::AskInstances, metrics::Metrics};
use crate::{
    api::{PostgresCluster, PostgresClusterStatus},
    k8s::{
        certificates::{Pair, Purpose},
        cluster::Images,
        secrets::Root,
    },
};

/// Caches of everything that belongs to a cluster, kept up to date by watches.
#[derive(Clone)]
pub struct Stores {
    /// The resources themselves.
    pub clusters: Store<PostgresCluster>,
    /// Their StatefulSets.
    pub stateful_sets: Store<StatefulSet>,
    /// Their Services.
    pub services: Store<Service>,
    /// Their Secrets.
    pub secrets: Store<Secret>,
    /// Their ConfigMaps.
    pub config_maps: Store<ConfigMap>,
    /// Their disruption budgets.
    pub disruption_budgets: Store<PodDisruptionBudget>,
    /// Their service accounts.
    pub service_accounts: Store<ServiceAccount>,
    /// Their roles.
    pub roles: Store<Role>,
    /// Their role bindings.
    pub role_bindings: Store<RoleBinding>,
    /// Their succession records.
    pub leases: Store<Lease>,
    /// Their pods.
    pub pods: Store<Pod>,
    /// Their volume claims.
    pub claims: Store<PersistentVolumeClaim>,
}

/// Shared by all reconciliations.
pub struct Context {
    /// Without retries of its own; each call has a deadline.
    pub client: Client,
    /// What exists.
    pub stores: Stores,
    /// The images the controller was started with.
    pub images: Images,
    /// Asks instances how they are.
    pub instances: Box<dyn AskInstances>,
    /// Counters.
    pub metrics: Metrics,
    /// Name of this controller's pod, in Events.
    pub identity: String,
    /// What is remembered of each cluster, by uid.
    pub memory: Memory,
    /// The time. A function, so that tests choose it.
    pub now: fn() -> Timestamp,
}

/// What is remembered of one cluster. Losing it costs nothing but work: everything is found again in the objects.
#[derive(Clone, Default)]
pub struct Remembered {
    /// Its secrets: a Secret that is deleted comes back as it was.
    pub root: Option<Root>,
    /// Certificates issued; the cache may not show them yet.
    pub pairs: BTreeMap<&'static str, Pair>,
    /// The status last written, and the resource's version after that: the cache may show an older one.
    pub status: Option<(u64, PostgresClusterStatus)>,
    /// How often in a row a reconciliation failed.
    pub failures: u32,
    /// Objects that stay different from what was asked for whatever is done, by kind and name: their version then.
    pub accepted: BTreeMap<String, String>,
}

/// What is remembered of all clusters.
#[derive(Default)]
pub struct Memory(Mutex<BTreeMap<String, Remembered>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Remembered>> {
        // No code panics while it holds the lock, and each change is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes what is remembered of a cluster.
    pub fn with<T>(&self, uid: &str, f: impl FnOnce(&mut Remembered) -> T) -> T {
        f(self.lock().entry(uid.to_owned()).or_default())
    }

    /// Forgets every cluster but these.
    pub fn keep_only(&self, uids: &BTreeSet<String>) {
        self.lock().retain(|uid, _| uids.contains(uid));
    }

    /// How many clusters are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True if nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

impl Context {
    /// Forgets clusters that are gone.
    pub fn prune(&self) {
        let clusters: Vec<Arc<PostgresCluster>> = self.stores.clusters.state();
        if self.memory.len() > clusters.len() {
            let uids = clusters.iter().filter_map(|cluster| cluster.metadata.uid.clone()).collect();
            self.memory.keep_only(&uids);
        }
    }
}

/// Key of a certificate in [`Remembered::pairs`].
#[must_use]
pub fn pair_key(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Server => "server",
        Purpose::Replication => "replication",
    }
}
