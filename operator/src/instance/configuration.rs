//! The configuration: what is wanted, what is in force, and why they differ.

use std::io;

use k8s_openapi::api::core::v1::ConfigMap;
use operator_core::{config::InstanceConfig, pgconf::Local, pglog};

use super::{
    command::CommandError,
    disk::{Volume, read_if_there, write_durably},
    kubernetes::{Seen, config_of},
    reaper::Children,
    setup::{SetupError, check_config, write_config},
    sql::{Sql, SqlError},
};

/// Complaints about the files as they lie there. A parameter that only waits for a restart is no complaint.
const COMPLAINTS: &str = "SELECT coalesce(name || ': ', '') || error FROM pg_file_settings \
      WHERE error IS NOT NULL AND error <> 'setting could not be applied' \
    UNION ALL SELECT 'pg_hba.conf line ' || line_number || ': ' || error FROM pg_hba_file_rules WHERE error IS NOT NULL";

/// Parameters in the files that a running server can't take over. Unlike [`PENDING_RESTART`] it reads the files itself,
/// so it is right even before the reload has reached this session.
const NOT_APPLIED: &str = "SELECT name FROM pg_file_settings WHERE error = 'setting could not be applied'";

/// Parameters that wait for a restart of the server.
pub(super) const PENDING_RESTART: &str = "SELECT name FROM pg_settings WHERE pending_restart ORDER BY name";

/// The configuration of one instance.
pub struct Configuration {
    wanted: InstanceConfig,
    in_force: Option<InstanceConfig>,
    /// The local part the files were last written with.
    local: Option<Local>,
    /// Fingerprint of a configuration that was refused; not tried again.
    refused: Option<String>,
    error: Option<String>,
}

impl Configuration {
    /// Begins with the mounted configuration.
    #[must_use]
    pub fn new(mounted: InstanceConfig) -> Self {
        Self { wanted: mounted, in_force: None, local: None, refused: None, error: None }
    }

    /// The configuration the cluster wants.
    #[must_use]
    pub fn wanted(&self) -> &InstanceConfig {
        &self.wanted
    }

    /// Why the wanted configuration is not in force.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Fingerprint of the configuration in force.
    #[must_use]
    pub fn hash_in_force(&self) -> Option<String> {
        self.in_force.as_ref().map(InstanceConfig::hash)
    }

    /// Takes what the API server says. A ConfigMap that is gone or broken changes nothing.
    pub fn see(&mut self, seen: Seen<ConfigMap>) {
        let Seen::Here(map) = seen else { return };
        match config_of(&map) {
            Ok(config) => self.wanted = config,
            Err(error) => self.error = Some(error),
        }
    }

    /// Writes the files for a start: the wanted configuration, or the last good one if the wanted was refused.
    ///
    /// # Errors
    /// The volume can't be read or written.
    pub fn prepare_start(&mut self, volume: &Volume, local: &Local) -> io::Result<()> {
        let good = read_if_there(&volume.good_config())?.and_then(|text| serde_json::from_slice(&text).ok());
        let config = match good {
            Some(good) if self.is_refused() => good,
            _ => self.wanted.clone(),
        };
        write_config(&volume.pgdata(), &config, local)?;
        self.in_force = Some(config);
        self.local = Some(local.clone());
        Ok(())
    }

    fn is_refused(&self) -> bool {
        self.refused.as_ref() == Some(&self.wanted.hash())
    }

    fn refuse(&mut self, why: &str) {
        tracing::error!("the configuration is refused, the previous one stays in force: {why}");
        self.refused = Some(self.wanted.hash());
        self.error = Some(why.to_owned());
    }

    /// The server ended before it ever accepted connections under the configuration it was started with.
    pub fn start_failed(&mut self, why: &str) {
        if self.in_force.as_ref() == Some(&self.wanted) {
            self.refuse(why);
        }
    }

    /// The server accepts connections: what it was started with is good.
    pub fn started(&mut self, volume: &Volume) {
        let Some(config) = &self.in_force else { return };
        if self.refused.is_some() && !self.is_refused() || *config == self.wanted {
            self.refused = None;
            self.error = None;
        }
        self.note_good(volume);
    }

    fn note_good(&self, volume: &Volume) {
        let Some(config) = &self.in_force else { return };
        let written = serde_json::to_vec(config).map_err(io::Error::other).and_then(|text| {
            let known = read_if_there(&volume.good_config())?;
            if known.as_ref() == Some(&text) { Ok(()) } else { write_durably(&volume.good_config(), &text) }
        });
        if let Err(error) = written {
            tracing::warn!("noting the good configuration: {error}");
        }
    }

    /// Brings a running server to what is wanted, if its binary accepts it.
    pub async fn follow(&mut self, children: &Children, volume: &Volume, local: &Local, sql: &mut Sql) {
        if self.in_force.as_ref() == Some(&self.wanted) {
            (self.refused, self.error) = (None, None);
        } else if !self.is_refused() {
            match check_config(children, &volume.pgdata(), &self.wanted, local).await {
                Ok(()) => self.apply(volume, local, sql).await,
                Err(error) => self.refuse(&plain(&error)),
            }
        }
        if self.local.as_ref() != Some(local)
            && let Some(config) = self.in_force.clone()
        {
            match reload(volume, &config, local, sql).await {
                Ok(()) => self.local = Some(local.clone()),
                Err(error) => tracing::warn!("following the primary's new address: {error}"),
            }
        }
    }

    async fn apply(&mut self, volume: &Volume, local: &Local, sql: &mut Sql) {
        let wanted = self.wanted.clone();
        let complaints = match reload(volume, &wanted, local, sql).await {
            Ok(()) => sql.texts(COMPLAINTS).await,
            Err(error) => return tracing::warn!("applying the configuration: {error}"),
        };
        match complaints {
            Ok(complaints) if complaints.is_empty() => {
                tracing::info!("the new configuration is in force");
                self.in_force = Some(wanted);
                self.local = Some(local.clone());
                (self.refused, self.error) = (None, None);
                // What waits for a restart has yet to show that a server starts with it.
                if sql.texts(NOT_APPLIED).await.is_ok_and(|pending| pending.is_empty()) {
                    self.note_good(volume);
                }
            }
            Ok(complaints) => {
                self.refuse(&complaints.join("; "));
                if let Some(previous) = &self.in_force
                    && let Err(error) = reload(volume, previous, local, sql).await
                {
                    tracing::error!("going back to the previous configuration: {error}");
                }
            }
            Err(error) => tracing::warn!("asking what became of the configuration: {error}"),
        }
    }
}

/// What the server's binary said against a configuration, without the prefixes of its log lines.
fn plain(error: &SetupError) -> String {
    let SetupError::Command(CommandError::Failed { said, .. }) = error else { return error.to_string() };
    let messages: Vec<&str> = said.lines().map(|line| pglog::parse(line).message.trim()).collect();
    messages.join("; ")
}

/// The files could not be put in force.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("writing the files: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Sql(#[from] SqlError),
}

async fn reload(volume: &Volume, config: &InstanceConfig, local: &Local, sql: &mut Sql) -> Result<(), ReloadError> {
    write_config(&volume.pgdata(), config, local)?;
    sql.execute("SELECT pg_reload_conf()").await?;
    Ok(())
}
