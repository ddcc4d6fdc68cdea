//! What there is of a cluster: read from the caches, and from the instances themselves.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ContainerStatus, PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;
use operator_core::{
    instance::RecordView,
    names::{LABEL_CLUSTER, LABEL_ROLE},
    rollout,
    scale::Primary,
    status::{InstanceStatus, Phase},
};

use super::context::Context;
use crate::k8s::{Cluster, pod::CONTAINER_POSTGRES};

/// Label with the revision of the template a pod was made from.
const LABEL_REVISION: &str = "controller-revision-hash";

/// What there is.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The StatefulSet, if it exists.
    pub stateful_set: Option<StatefulSet>,
    /// Its pods, by ordinal.
    pub pods: Vec<Instance>,
    /// Volume claims of the cluster.
    pub claims: Vec<PersistentVolumeClaim>,
    /// The succession record.
    pub record: RecordView,
}

/// One pod and what it says of itself.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its ordinal.
    pub ordinal: u32,
    /// The pod.
    pub pod: Pod,
    /// The instance's own words; `None` if it couldn't be asked.
    pub said: Option<InstanceStatus>,
}

impl Instance {
    /// Name of the pod.
    #[must_use]
    pub fn name(&self) -> String {
        self.pod.name_any()
    }

    /// The kubelet says that it is ready, and it isn't being deleted.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.leaving() && self.condition("Ready").is_some_and(|(status, _)| status)
    }

    /// It is being deleted.
    #[must_use]
    pub fn leaving(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// A condition of the pod: whether it is met, and the message.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<(bool, String)> {
        let conditions = self.pod.status.as_ref()?.conditions.as_ref()?;
        let condition = conditions.iter().find(|condition| condition.type_ == kind)?;
        Some((condition.status == "True", condition.message.clone().unwrap_or_default()))
    }

    /// Value of the label that says which role it plays.
    #[must_use]
    pub fn role_label(&self) -> Option<&str> {
        self.pod.labels().get(LABEL_ROLE).map(String::as_str)
    }

    /// Address of the pod.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
    }

    /// States of its containers, init containers first.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        let status = self.pod.status.as_ref();
        let init = status.and_then(|status| status.init_container_statuses.as_ref());
        let main = status.and_then(|status| status.container_statuses.as_ref());
        init.into_iter().chain(main).flatten()
    }

    /// The container with PostgreSQL runs.
    #[must_use]
    pub fn running(&self) -> bool {
        let mut states = self.containers().filter(|container| container.name == CONTAINER_POSTGRES);
        states.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
    }

    /// In the middle of something that would have to begin anew; `None` if that isn't known.
    fn busy(&self) -> Option<bool> {
        if !self.running() {
            return Some(false);
        }
        let phase = self.said.as_ref()?.phase;
        Some(matches!(phase, Phase::Initialising | Phase::Cloning | Phase::Starting | Phase::Stopping))
    }

    fn revision(&self) -> Option<&str> {
        self.pod.labels().get(LABEL_REVISION).map(String::as_str)
    }
}

impl Observed {
    /// How many instances the StatefulSet asks for.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        u32::try_from(self.stateful_set.as_ref()?.spec.as_ref()?.replicas?).ok()
    }

    /// Sizes in the claim templates of the StatefulSet, which can't be changed.
    #[must_use]
    pub fn template_sizes(&self) -> BTreeMap<String, Quantity> {
        let set = self.stateful_set.as_ref().and_then(|set| set.spec.as_ref());
        let templates = set.and_then(|spec| spec.volume_claim_templates.as_ref());
        let size = |claim: &PersistentVolumeClaim| {
            let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
            Some((claim.name_any(), requests.get("storage")?.clone()))
        };
        templates.into_iter().flatten().filter_map(size).collect()
    }

    /// Ordinal of the pod the record names.
    #[must_use]
    pub fn primary(&self, cluster: &Cluster) -> Primary {
        match &self.record {
            RecordView::Known(record) => {
                cluster.name.ordinal(&record.holder.pod).map_or(Primary::Unknown, Primary::Ordinal)
            }
            RecordView::Empty => Primary::None,
            RecordView::Unknown | RecordView::Missing | RecordView::Unreadable(_) => Primary::Unknown,
        }
    }

    /// The instance that holds the record, accepts writes and is labelled so.
    #[must_use]
    pub fn serving_primary(&self) -> Option<&Instance> {
        let RecordView::Known(record) = &self.record else { return None };
        self.pods.iter().find(|instance| {
            instance.name() == record.holder.pod
                && instance.ready()
                && instance.role_label() == Some(operator_core::names::ROLE_PRIMARY)
        })
    }

    /// The pods as the rollout sees them; `None` while the StatefulSet's controller hasn't looked at the latest template,
    /// because then nobody knows which pod is stale.
    #[must_use]
    pub fn rollout(&self) -> Option<Vec<rollout::Pod>> {
        let set = self.stateful_set.as_ref()?;
        let status = set.status.as_ref()?;
        if status.observed_generation < set.metadata.generation {
            return None;
        }
        let current = status.update_revision.as_deref()?;
        Some(self.pods.iter().map(|instance| view(instance, current)).collect())
    }
}

fn view(instance: &Instance, revision: &str) -> rollout::Pod {
    let pending = instance.said.as_ref().map(|said| said.pending_restart.clone());
    rollout::Pod {
        name: instance.name(),
        ordinal: instance.ordinal,
        stale: instance.revision().is_some_and(|own| own != revision),
        ready: instance.ready(),
        leaving: instance.leaving(),
        busy: instance.busy(),
        pending_restart: pending.unwrap_or_default(),
    }
}

/// Reads the caches. The StatefulSet, the record and what the instances say are added by whoever asks for them.
#[must_use]
pub fn observe(ctx: &Context, cluster: &Cluster) -> Observed {
    let name = cluster.name.as_str();
    let of_cluster = |namespace: Option<String>, labels: &BTreeMap<String, String>| {
        namespace.as_deref() == Some(&cluster.namespace) && labels.get(LABEL_CLUSTER).is_some_and(|label| label == name)
    };
    let mut pods: Vec<Instance> = ctx
        .stores
        .pods
        .state()
        .into_iter()
        .filter(|pod| of_cluster(pod.namespace(), pod.labels()))
        .filter_map(|pod| {
            let ordinal = cluster.name.ordinal(&pod.name_any())?;
            Some(Instance { ordinal, pod: pod.as_ref().clone(), said: None })
        })
        .collect();
    pods.sort_by_key(|instance| instance.ordinal);
    let claims = ctx.stores.claims.state().into_iter().filter(|claim| of_cluster(claim.namespace(), claim.labels()));
    Observed {
        stateful_set: None,
        pods,
        claims: claims.map(|claim| claim.as_ref().clone()).collect(),
        record: RecordView::Unknown,
    }
}
