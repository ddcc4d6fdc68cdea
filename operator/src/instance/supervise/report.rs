//! What a supervisor says: the log line, and the status that probes, metrics and the controller read.

use operator_core::{
    instance::{Disk, Plan, RecordView, Step},
    status::{InstanceStatus, Phase, Role},
};
use tokio::time::Instant;

use super::{
    super::{postmaster::Postmaster, server::Snapshot, sql::ServerView},
    Supervisor,
};

impl Supervisor {
    /// Says what is being done and why, once.
    pub(super) fn announce(&mut self, plan: &Plan) {
        if plan.reason != self.reason {
            match plan.step {
                Step::Refuse | Step::Fence => tracing::error!("{}", plan.reason),
                _ => tracing::info!("{}", plan.reason),
            }
            self.reason.clone_from(&plan.reason);
        }
        self.phase = phase(&plan.step, self.view.is_some());
        self.publish(self.phase, &self.reason);
    }

    /// A primary is in its place under a record of its own; a standby while it streams.
    pub(super) fn is_ready(&self, view: &ServerView) -> bool {
        match view.role {
            Role::Standby => view.streaming,
            Role::Primary => {
                let holder = matches!(&self.record, RecordView::Known(record)
                    if Some(&record.holder) == self.member() && record.incarnation == self.identity.incarnation);
                // The Lease of a running primary may be deleted by hand; that takes nothing away from it.
                holder || matches!(self.record, RecordView::Missing | RecordView::Unknown)
            }
        }
    }

    /// Puts the status together.
    pub(super) fn publish(&self, phase: Phase, reason: &str) {
        let view = self.view.as_ref().filter(|_| phase == Phase::Running);
        let system_id = match &self.disk {
            Disk::Data(data) => data.system_id,
            _ => None,
        };
        let status = InstanceStatus {
            pod: self.identity.pod.clone(),
            member: self.member().cloned(),
            phase,
            reason: match view {
                Some(view) if view.role == Role::Standby && !view.streaming => {
                    let said = self.server.as_ref().and_then(Postmaster::last_error);
                    format!("{reason}, but does not stream: {}", said.as_deref().unwrap_or("no word from it yet"))
                }
                _ => reason.to_owned(),
            },
            role: view.map(|view| view.role),
            ready: view.is_some_and(|view| self.is_ready(view)),
            system_id,
            timeline: view.and_then(|view| view.timeline),
            lsn: view.and_then(|view| view.lsn),
            replay_lsn: view.and_then(|view| view.replay_lsn),
            streaming: view.filter(|view| view.role == Role::Standby).map(|view| view.streaming),
            version: self.binaries.as_ref().map(|(_, full)| full.clone()),
            pending_restart: self.duties.pending_restart().to_vec(),
            config_error: self.configuration.error().map(str::to_owned),
            config_hash: view.and_then(|_| self.configuration.hash_in_force()),
        };
        self.report.send_replace(Snapshot { status, at: Instant::now(), starts: self.starts });
    }
}

fn phase(step: &Step, answers: bool) -> Phase {
    match step {
        Step::Wait | Step::Write(_) => Phase::Waiting,
        Step::Refuse => Phase::Refused,
        Step::Initialise => Phase::Initialising,
        Step::Clone { .. } => Phase::Cloning,
        Step::Keep if answers => Phase::Running,
        Step::Start(_) | Step::Keep => Phase::Starting,
        Step::GiveUpCopy | Step::Stop | Step::Fence | Step::Exit => Phase::Stopping,
    }
}
