//! What Prometheus reads from an instance: the last observation, as numbers.

use std::{fmt, sync::atomic::AtomicU64};

use operator_core::status::{InstanceStatus, Phase, Role};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::ConstCounter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Info {
    role: String,
    version: String,
    phase: String,
}

/// The text of `/metrics`. A value that is not known is left out, never zero.
///
/// # Errors
/// Never: writing to a text does not fail.
pub fn text(status: &InstanceStatus, starts: u64) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("postgres_instance");
    let info = Family::<Info, Gauge>::default();
    info.get_or_create(&Info {
        role: status.role.map_or("unknown", role).to_owned(),
        version: status.version.clone().unwrap_or_default(),
        phase: format!("{:?}", status.phase),
    })
    .set(1);
    registry.register("info", "What the instance is; always 1", info);
    let mut known = |name: &str, help: &str, unit: Option<Unit>, value: Option<u64>| {
        let Some(value) = value else { return };
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, gauge),
            None => registry.register(name, help, gauge),
        }
    };
    known("up", "PostgreSQL accepts connections", None, Some(u64::from(status.phase == Phase::Running)));
    known("ready", "The instance is in its place: primary, or streaming standby", None, Some(u64::from(status.ready)));
    known("refused", "The instance waits for a person", None, Some(u64::from(status.phase == Phase::Refused)));
    known("streaming", "The standby streams from its primary", None, status.streaming.map(u64::from));
    known("timeline", "Current timeline", None, status.timeline.map(u64::from));
    known("wal_position", "End of the log written or received", Some(Unit::Bytes), status.lsn.map(|lsn| lsn.0));
    known("replay_position", "End of the log replayed", Some(Unit::Bytes), status.replay_lsn.map(|lsn| lsn.0));
    known(
        "pending_restart_parameters",
        "Parameters that wait for a restart",
        None,
        u64::try_from(status.pending_restart.len()).ok(),
    );
    known(
        "configuration_refused",
        "The server refused the last configuration",
        None,
        Some(u64::from(status.config_error.is_some())),
    );
    known("manager_resident_memory", "Memory of the instance manager itself", Some(Unit::Bytes), resident_bytes());
    registry.register("server_starts", "Starts of the server in this life of the pod", ConstCounter::new(starts));
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(out)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Primary => "primary",
        Role::Standby => "standby",
    }
}

/// Resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * u64::try_from(rustix::param::page_size()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::server::unknown_status;

    #[test]
    fn the_unknown_is_left_out() {
        let text = text(&unknown_status("orders-0"), 2).unwrap();
        assert!(text.contains("postgres_instance_up 0"), "{text}");
        assert!(text.contains("postgres_instance_server_starts_total 2"), "{text}");
        assert!(!text.contains("postgres_instance_timeline"), "{text}");
    }
}
