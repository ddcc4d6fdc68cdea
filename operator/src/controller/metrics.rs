//! What the controller counts.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    kind: String,
    verb: String,
}

/// Counters and gauges, with the registry that renders them.
pub struct Metrics {
    registry: Registry,
    reconciliations: Family<Outcome, Counter>,
    duration: Histogram,
    writes: Family<Write, Counter>,
    /// 1 while this replica leads.
    pub leader: Gauge,
    /// Number of clusters it manages.
    pub clusters: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("postgres_operator");
        let metrics = (Family::default(), Family::default(), Gauge::default(), Gauge::default());
        let (reconciliations, writes, leader, clusters) = metrics;
        let duration = Histogram::new([0.005, 0.02, 0.1, 0.5, 2.0, 10.0]);
        registry.register("reconciliations", "Reconciliations by outcome", Family::clone(&reconciliations));
        registry.register("reconciliation_seconds", "How long reconciliations took", duration.clone());
        registry.register("api_writes", "Writes to the API server by kind and verb", Family::clone(&writes));
        registry.register("leader", "1 while this replica leads", leader.clone());
        registry.register("clusters", "Clusters this replica manages", clusters.clone());
        Self { registry, reconciliations, duration, writes, leader, clusters }
    }
}

impl Metrics {
    /// Counts a write to the API server.
    pub fn wrote(&self, kind: &str, verb: &str) {
        self.writes.get_or_create(&Write { kind: kind.to_owned(), verb: verb.to_owned() }).inc();
    }

    /// Counts a reconciliation.
    pub fn reconciled(&self, outcome: &str, took: Duration) {
        self.reconciliations.get_or_create(&Outcome { outcome: outcome.to_owned() }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// The text that Prometheus reads.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail; an empty answer would be noticed by whoever scrapes.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
