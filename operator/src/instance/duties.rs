//! What a running instance does for its cluster: its label, and on the primary the slots and passwords.

use std::{path::Path, time::Duration};

use operator_core::{
    config::InstanceConfig,
    names::{DIR_APP, DIR_SUPERUSER, ROLE_PRIMARY, ROLE_STANDBY, USER_SUPERUSER},
    pgconf::slot,
    status::Role,
};
use tokio::time::Instant;

use super::{
    configuration::PENDING_RESTART,
    identity::Identity,
    kubernetes::Kubernetes,
    setup::Credentials,
    sql::{Sql, SqlError, literal},
};

/// Time between two looks at slots, passwords and parameters.
const PERIOD: Duration = Duration::from_secs(5);

const SLOTS: &str =
    "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' AND slot_name LIKE 'instance\\_%'";

/// What was done already in this run of the server.
#[derive(Default)]
pub struct Duties {
    labelled: Option<Role>,
    passwords: Option<(Credentials, Credentials)>,
    config: Option<InstanceConfig>,
    last: Option<Instant>,
    pending_restart: Vec<String>,
}

impl Duties {
    /// Parameters that wait for a restart of the server.
    #[must_use]
    pub fn pending_restart(&self) -> &[String] {
        &self.pending_restart
    }

    /// Does what is due. What fails is logged and done at the next look.
    pub async fn perform(
        &mut self,
        role: Role,
        ready: bool,
        identity: &Identity,
        config: InstanceConfig,
        api: &Kubernetes,
        sql: &mut Sql,
    ) {
        // A standby is offered to readers once it streams; a primary once it is in its place.
        if ready && self.labelled != Some(role) {
            match api.label_role(label(role)).await {
                Ok(()) => self.labelled = Some(role),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        let changed = self.config.as_ref() != Some(&config);
        if !changed && self.last.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        self.last = Some(Instant::now());
        match self.look(role, identity, &config, sql).await {
            Ok(()) => self.config = Some(config),
            Err(error) => tracing::warn!("looking after the server: {error}"),
        }
    }

    async fn look(
        &mut self,
        role: Role,
        identity: &Identity,
        config: &InstanceConfig,
        sql: &mut Sql,
    ) -> Result<(), SqlError> {
        self.pending_restart = sql.texts(PENDING_RESTART).await?;
        if role == Role::Primary {
            keep_slots(identity.ordinal, config.replicas, sql).await?;
            self.keep_passwords(config, sql).await?;
        }
        Ok(())
    }

    /// The Secrets are the truth: a password changed in one, or by SQL before a restart, is set again.
    async fn keep_passwords(&mut self, config: &InstanceConfig, sql: &mut Sql) -> Result<(), SqlError> {
        let read = |dir| Credentials::read(Path::new(dir));
        let (superuser, app) = match (read(DIR_SUPERUSER), read(DIR_APP)) {
            (Ok(superuser), Ok(app)) => (superuser, app),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("{error}");
                return Ok(());
            }
        };
        let wanted = (superuser, app);
        if self.passwords.as_ref() == Some(&wanted) {
            return Ok(());
        }
        sql.execute(&wanted.0.statement(USER_SUPERUSER)).await?;
        // The owner may have been dropped by its user; it is not made again behind their back.
        let owner = format!("SELECT rolname::text FROM pg_roles WHERE rolname = {}", literal(&config.initdb.owner));
        if !sql.texts(&owner).await?.is_empty() {
            sql.execute(&wanted.1.statement(&config.initdb.owner)).await?;
        }
        self.passwords = Some(wanted);
        Ok(())
    }
}

fn label(role: Role) -> &'static str {
    match role {
        Role::Primary => ROLE_PRIMARY,
        Role::Standby => ROLE_STANDBY,
    }
}

/// One slot for each other instance that shall exist; those of instances that shall not are dropped, for they would
/// retain the log for ever.
async fn keep_slots(own: u32, replicas: u32, sql: &mut Sql) -> Result<(), SqlError> {
    let existing = sql.texts(SLOTS).await?;
    let wanted: Vec<String> = (0..replicas).filter(|ordinal| *ordinal != own).map(slot).collect();
    for name in wanted.iter().filter(|name| !existing.contains(name)) {
        sql.execute(&format!("SELECT pg_create_physical_replication_slot({})", literal(name))).await?;
        tracing::info!(slot = name, "made a replication slot");
    }
    // A slot that retained more than it may is of no use to its standby any more; a new one is made at the next look.
    let lost = sql.texts(&format!("{SLOTS} AND wal_status = 'lost'")).await?;
    for name in existing.iter().filter(|name| !wanted.contains(name) || lost.contains(name)) {
        let drop =
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND slot_name = ";
        sql.execute(&format!("{drop}{}", literal(name))).await?;
    }
    Ok(())
}
