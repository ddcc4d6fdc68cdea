//! Leader election: of several replicas of the controller one works, the others wait.
//!
//! A Lease says who. Another replica takes over when it has not seen the Lease change for as long as the Lease says, by its
//! own clock, so that clocks need not agree; or at once when the leader has given it up. It decides who writes, not who
//! is primary: two leaders for a moment would only do the same work twice.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use operator_core::names::{LEADER_LEASE, MANAGER};
use tokio::time::{Instant, sleep, timeout};

/// How long a leader that is not heard of stays the leader.
const TERM: Duration = Duration::from_secs(15);
/// How often the leader renews, and others look.
const ROUND: Duration = Duration::from_secs(5);
/// After how long without a renewal the leader stops, before others may begin.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(3);

/// The election could not go on.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The API server could not be asked.
    #[error("{what} Lease {LEADER_LEASE}: {source}")]
    Request {
        /// What was attempted.
        what: &'static str,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("{what} Lease {LEADER_LEASE}: no answer within {} s", DEADLINE.as_secs())]
    Late {
        /// What was attempted.
        what: &'static str,
    },
    /// Somebody else leads now, or nobody knows.
    #[error("no longer the leader: {0}")]
    Lost(String),
}

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is ours.
    Ours,
    /// Nobody holds it, or its holder has been silent for a whole term.
    Free,
    /// Somebody else holds it.
    Theirs,
}

/// Who holds a Lease. `unchanged`: for how long it has been seen without a change.
#[must_use]
pub fn standing(lease: &Lease, identity: &str, unchanged: Duration) -> Standing {
    let spec = lease.spec.as_ref();
    let term = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    match spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default() {
        "" => Standing::Free,
        holder if holder == identity => Standing::Ours,
        _ if unchanged >= term.map_or(TERM, Duration::from_secs) => Standing::Free,
        _ => Standing::Theirs,
    }
}

/// One candidate.
pub struct Candidate {
    api: Api<Lease>,
    identity: String,
    now: fn() -> Timestamp,
}

impl Candidate {
    /// `client` must not try again by itself: an answer that comes late is worse than none.
    #[must_use]
    pub fn new(client: Client, namespace: &str, identity: String, now: fn() -> Timestamp) -> Self {
        Self { api: Api::namespaced(client, namespace), identity, now }
    }

    /// Waits until this replica leads. Errors are logged and tried again: there is nothing else to do.
    pub async fn win(&self) -> Lease {
        let mut seen: Option<(Lease, Instant)> = None;
        loop {
            match self.attempt(&mut seen).await {
                Ok(Some(lease)) => return lease,
                Ok(None) => {}
                Err(error) => tracing::warn!("leader election: {error}"),
            }
            sleep(ROUND).await;
        }
    }

    async fn attempt(&self, seen: &mut Option<(Lease, Instant)>) -> Result<Option<Lease>, LeaderError> {
        let Some(lease) = limited("reading", self.api.get_opt(LEADER_LEASE)).await? else {
            let lease = self.held(Lease::default());
            return limited("creating", self.api.create(&PostParams::default(), &lease)).await.map(Some);
        };
        let since = match seen.as_ref() {
            Some((old, since)) if old.metadata.resource_version == lease.metadata.resource_version => *since,
            _ => Instant::now(),
        };
        *seen = Some((lease.clone(), since));
        match standing(&lease, &self.identity, since.elapsed()) {
            Standing::Theirs => Ok(None),
            Standing::Ours | Standing::Free => self.write(self.held(lease)).await.map(Some),
        }
    }

    /// Keeps the Lease until that fails for so long that somebody else may begin.
    ///
    /// # Errors
    /// Always, in the end: why this replica is no longer the leader.
    pub async fn keep(&self, mut lease: Lease) -> LeaderError {
        let mut renewed = Instant::now();
        loop {
            sleep(ROUND).await;
            let began = Instant::now();
            match self.write(self.held(lease.clone())).await {
                Ok(written) => (lease, renewed) = (written, began),
                Err(LeaderError::Request { source, .. }) if is_conflict(&source) => match self.again().await {
                    Ok(Some(current)) => lease = current,
                    Ok(None) => return LeaderError::Lost("another replica holds the Lease".to_owned()),
                    Err(error) => tracing::warn!("leader election: {error}"),
                },
                Err(error) => tracing::warn!("leader election: {error}"),
            }
            if renewed.elapsed() >= GIVE_UP {
                return LeaderError::Lost(format!("the Lease could not be renewed for {} s", GIVE_UP.as_secs()));
            }
        }
    }

    /// The Lease as it is, if it is still ours: a renewal whose answer was lost changed its version.
    async fn again(&self) -> Result<Option<Lease>, LeaderError> {
        let lease = limited("reading", self.api.get_opt(LEADER_LEASE)).await?;
        Ok(lease.filter(|lease| standing(lease, &self.identity, Duration::ZERO) == Standing::Ours))
    }

    /// Gives the Lease up, so that another replica begins at once.
    pub async fn resign(&self) {
        let released = async {
            let Some(mut lease) = self.again().await? else { return Ok(()) };
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
            }
            self.write(lease).await.map(|_| ())
        };
        if let Err(error) = released.await {
            let error: LeaderError = error;
            tracing::warn!("giving up the leadership: {error}");
        }
    }

    async fn write(&self, lease: Lease) -> Result<Lease, LeaderError> {
        limited("writing", self.api.replace(LEADER_LEASE, &PostParams::default(), &lease)).await
    }

    fn held(&self, lease: Lease) -> Lease {
        let old = lease.spec.unwrap_or_default();
        let now = Some(MicroTime((self.now)()));
        let ours = old.holder_identity.as_deref() == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or_default().saturating_add(i32::from(!ours));
        let metadata = ObjectMeta {
            name: Some(LEADER_LEASE.to_owned()),
            labels: Some([("app.kubernetes.io/name".to_owned(), MANAGER.to_owned())].into()),
            managed_fields: None,
            ..lease.metadata
        };
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(TERM.as_secs()).ok(),
            acquire_time: if ours { old.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

async fn limited<T>(
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, LeaderError> {
    match timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(LeaderError::Request { what, source: Box::new(source) }),
        Err(_) => Err(LeaderError::Late { what }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn lease(holder: Option<&str>, seconds: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[rstest]
    #[case::ours(lease(Some("me"), Some(15)), 0, Standing::Ours)]
    #[case::ours_after_all(lease(Some("me"), Some(15)), 99, Standing::Ours)]
    #[case::theirs(lease(Some("you"), Some(15)), 14, Standing::Theirs)]
    #[case::silent(lease(Some("you"), Some(15)), 15, Standing::Free)]
    #[case::short_term(lease(Some("you"), Some(1)), 1, Standing::Free)]
    #[case::no_term(lease(Some("you"), None), 14, Standing::Theirs)]
    #[case::nonsense_term(lease(Some("you"), Some(-1)), 14, Standing::Theirs)]
    #[case::given_up(lease(Some(""), Some(15)), 0, Standing::Free)]
    #[case::never_held(lease(None, None), 0, Standing::Free)]
    #[case::empty(Lease::default(), 0, Standing::Free)]
    fn who_leads(#[case] lease: Lease, #[case] unchanged: u64, #[case] expected: Standing) {
        assert_eq!(standing(&lease, "me", Duration::from_secs(unchanged)), expected);
    }
}
