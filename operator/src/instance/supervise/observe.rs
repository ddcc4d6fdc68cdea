//! What a supervisor sees. Only what was seen changes anything; a look that failed leaves what was known.

use operator_core::{
    instance::{Disk, RecordView},
    pglog,
    status::Role,
};

use super::{
    super::{
        kubernetes::{Seen, record_of},
        postmaster::Postmaster,
    },
    Lease, Pause, StepError, Supervisor,
};

impl Supervisor {
    /// Looks at everything there is.
    pub(super) async fn observe(&mut self) {
        self.see_lease();
        self.see_server();
        self.see_disk();
        self.see_primary().await;
        let seen = self.inputs.config.borrow_and_update().clone();
        self.configuration.see(seen);
        if self.server.is_some() {
            self.see_inside().await;
        }
    }

    /// A record is replaced only by a newer one: the watch may still deliver what came before our own write.
    fn see_lease(&mut self) {
        let seen = self.inputs.lease.borrow_and_update().clone();
        match seen {
            Seen::Unknown => {}
            Seen::Missing => (self.lease, self.record) = (None, RecordView::Missing),
            Seen::Here(lease) => self.take_lease(lease),
        }
    }

    /// Takes a Lease that the watch or a write of our own brought.
    pub(super) fn take_lease(&mut self, lease: Lease) {
        let record = record_of(&lease);
        match (&self.record, &record) {
            (RecordView::Known(known), RecordView::Known(new)) if new.version < known.version => {}
            (RecordView::Known(_), RecordView::Empty) => {}
            _ => (self.lease, self.record) = (Some(lease), record),
        }
    }

    fn see_server(&mut self) {
        let Some(how) = self.server.as_ref().and_then(Postmaster::ended) else { return };
        let said = self.server.as_ref().and_then(Postmaster::last_error);
        let never_ready = self.view.is_none();
        self.server = None;
        self.view = None;
        if *self.inputs.stopping.borrow() {
            return;
        }
        let why = said.map_or(how.clone(), |said| format!("{said} ({how})"));
        tracing::error!("PostgreSQL ended: {why}");
        if never_ready {
            self.configuration.start_failed(&why);
        }
        self.pause.failed(StepError::Ended(why).to_string());
    }

    fn see_disk(&mut self) {
        if self.lock.is_none() {
            match self.volume.lock() {
                Ok(Some(lock)) => self.lock = Some(lock),
                Ok(None) => return self.disk = Disk::Locked,
                Err(error) => return self.disk = Disk::Unknown(error.to_string()),
            }
        }
        // While the server runs the volume is the server's; only the directory's identity matters, and that can't change.
        if self.server.is_none() || !matches!(self.disk, Disk::Data(_)) {
            self.disk = self.volume.observe(&self.identity.pod);
        }
    }

    /// Looks the primary's address up while it is needed: before a start or a copy, and while the standby doesn't stream.
    async fn see_primary(&mut self) {
        let RecordView::Known(record) = &self.record else { return };
        let streams = self.view.as_ref().is_some_and(|view| view.streaming || view.role == Role::Primary);
        if record.holder.pod == self.identity.pod || streams {
            return;
        }
        match self.api.pod_address(&record.holder.pod).await {
            Ok(Some(address)) => self.primary = Some(address),
            // A pod without an address has not started; the old address may be another pod's by now.
            Ok(None) => self.primary = None,
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// A standby that has been without its primary's log for a while, and whose last complaint says why.
    pub(super) fn log_gone(&self) -> bool {
        let waits = self.view.as_ref().is_some_and(|view| view.role == Role::Standby && !view.streaming);
        let said = self.server.as_ref().and_then(Postmaster::last_error);
        waits && said.is_some_and(|said| pglog::says_log_gone(&said))
    }

    async fn see_inside(&mut self) {
        let asked_too_early = self.server.as_ref().is_some_and(|server| !server.takes_connections());
        if self.view.is_none() && asked_too_early {
            return;
        }
        match self.sql.view().await {
            Ok(view) => {
                if self.view.is_none() {
                    self.pause = Pause::default();
                    self.configuration.started(&self.volume);
                    tracing::info!(role = ?view.role, "PostgreSQL accepts connections");
                }
                self.view = Some(view);
            }
            Err(error) => {
                if self.view.take().is_some() {
                    tracing::warn!("PostgreSQL does not answer: {error}");
                }
            }
        }
    }
}
