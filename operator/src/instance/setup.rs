//! Data directories: the first one by `initdb`, the others by `pg_basebackup`. Both are made under another name and get
//! theirs when they are complete, so that an interrupted try is never taken for data.

use std::{fs, io, net::IpAddr, path::Path, time::Duration};

use operator_core::{
    config::InstanceConfig,
    names::{DIR_APP, DIR_SUPERUSER, USER_REPLICATION, USER_SUPERUSER},
    pgconf::{self, Local},
    record::Member,
};
use tokio::process::Command;

use super::{
    command::{self, CommandError},
    disk::{Volume, read_if_there},
    reaper::Children,
    sql::{identifier, literal},
};

/// `initdb` and the first statements take seconds; on a starved disk a few minutes.
const INITDB_DEADLINE: Duration = Duration::from_secs(600);
/// A copy takes as long as the data is large. A dead peer is noticed by the connection's own time-outs.
const CLONE_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// A data directory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A program of PostgreSQL failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The volume or a mounted file can't be used.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The copy is of another cluster.
    #[error("the primary has system identifier {found}, the record says {expected}; the copy was thrown away")]
    OtherSystem {
        /// What the record says.
        expected: u64,
        /// What the copy has.
        found: u64,
    },
}

fn io(what: &str) -> impl Fn(io::Error) -> SetupError {
    let what = what.to_owned();
    move |source| SetupError::Io { what: what.clone(), source }
}

/// Makes the first data directory of a cluster, with its roles and its database.
///
/// # Errors
/// See [`SetupError`]; nothing is left that would be taken for data.
pub async fn initialise(
    children: &Children,
    volume: &Volume,
    member: &Member,
    config: &InstanceConfig,
    version: u64,
) -> Result<(), SetupError> {
    volume.clear_making(member).map_err(io("removing an unfinished data directory"))?;
    let making = volume.making();
    let mut initdb = Command::new("initdb");
    initdb.arg("-D").arg(&making).arg(format!("--username={USER_SUPERUSER}"));
    initdb.arg(format!("--encoding={}", config.initdb.encoding)).arg(format!("--locale={}", config.initdb.locale));
    initdb.args([
        "--data-checksums",
        "--auth-local=peer",
        "--auth-host=scram-sha-256",
        "--no-instructions",
        "--no-sync",
    ]);
    if let Some(waldir) = volume.waldir(member) {
        initdb.arg("--waldir").arg(waldir);
    }
    command::run(children, initdb, "", INITDB_DEADLINE).await?;

    let mut single = Command::new("postgres");
    single
        .args(["--single", "-j", "-c", "exit_on_error=on", "-c", "log_statement=none", "-D"])
        .arg(&making)
        .arg("postgres");
    command::run(children, single, &first_statements(config)?, INITDB_DEADLINE).await?;
    volume.finish(member, version).map_err(io("naming the new data directory"))?;
    Ok(())
}

/// Roles and database, as the single-user server reads them: statements end with an empty line.
fn first_statements(config: &InstanceConfig) -> Result<String, SetupError> {
    let superuser = Credentials::read(Path::new(DIR_SUPERUSER))?;
    let app = Credentials::read(Path::new(DIR_APP))?;
    let owner = identifier(&config.initdb.owner);
    let mut statements = vec![
        format!("CREATE ROLE {USER_REPLICATION} LOGIN REPLICATION"),
        superuser.statement(USER_SUPERUSER),
        format!("CREATE ROLE {owner} LOGIN"),
        app.statement(&config.initdb.owner),
        format!("CREATE DATABASE {} OWNER {owner}", identifier(&config.initdb.database)),
    ];
    // What pg_rewind calls on the other side; with it no superuser has to connect from elsewhere.
    for function in [
        "pg_ls_dir(text, boolean, boolean)",
        "pg_stat_file(text, boolean)",
        "pg_read_binary_file(text)",
        "pg_read_binary_file(text, bigint, bigint, boolean)",
    ] {
        statements.push(format!("GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {USER_REPLICATION}"));
    }
    Ok(statements.iter().map(|statement| format!("{statement};\n\n")).collect())
}

/// A password as mounted from a Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    password: String,
}

impl Credentials {
    /// Reads the mounted Secret.
    ///
    /// # Errors
    /// It isn't there or isn't text.
    pub fn read(dir: &Path) -> Result<Self, SetupError> {
        let file = dir.join("password");
        let password = fs::read_to_string(&file).map_err(io(&format!("reading {}", file.display())))?;
        Ok(Self { password })
    }

    /// The statement that gives a role this password. It holds the verifier, never the password, so a logged statement betrays nothing.
    #[must_use]
    pub fn statement(&self, role: &str) -> String {
        let verifier = postgres_protocol::password::scram_sha_256(self.password.as_bytes());
        format!("ALTER ROLE {} PASSWORD {}", identifier(role), literal(&verifier))
    }
}

/// Copies the primary's data directory.
///
/// # Errors
/// See [`SetupError`]; nothing is left that would be taken for data.
pub async fn clone(
    children: &Children,
    volume: &Volume,
    local: &Local,
    from: IpAddr,
    system_id: u64,
    version: u64,
) -> Result<(), SetupError> {
    let member = &local.member;
    volume.clear_making(member).map_err(io("removing an unfinished data directory"))?;
    let making = volume.making();
    let mut copy = Command::new("pg_basebackup");
    copy.arg("-D").arg(&making).arg("-d").arg(pgconf::primary_conninfo(local, from)).arg("-S").arg(&local.slot);
    copy.args(["--wal-method=stream", "--checkpoint=fast", "--no-password", "--no-sync"]);
    if let Some(waldir) = volume.waldir(member) {
        copy.arg("--waldir").arg(waldir);
    }
    command::run(children, copy, "", CLONE_DEADLINE).await?;
    fs::write(making.join("standby.signal"), "").map_err(io("writing standby.signal"))?;
    let found = system_of(&making)?;
    if found != system_id {
        volume.clear_making(member).map_err(io("removing the copy of another cluster"))?;
        return Err(SetupError::OtherSystem { expected: system_id, found });
    }
    volume.finish(member, version).map_err(io("naming the new data directory"))?;
    Ok(())
}

fn system_of(pgdata: &Path) -> Result<u64, SetupError> {
    let found = super::disk::read_system_id(pgdata).map_err(io("reading the copy's control file"))?;
    found.ok_or_else(|| io("reading the copy's control file")(io::ErrorKind::NotFound.into()))
}

/// Writes the configuration files of a server.
///
/// # Errors
/// The data directory can't be written.
pub fn write_config(pgdata: &Path, config: &InstanceConfig, local: &Local) -> io::Result<()> {
    for (name, text) in
        [("postgresql.conf", pgconf::postgresql_conf(config, local)), ("pg_hba.conf", pgconf::pg_hba_conf(config))]
    {
        let file = pgdata.join(name);
        if read_if_there(&file)?.as_deref() != Some(text.as_bytes()) {
            super::disk::write_durably(&file, text.as_bytes())?;
        }
    }
    Ok(())
}

/// Lets the server's own binary judge a configuration, without touching the running one.
///
/// # Errors
/// What it says against it.
pub async fn check_config(
    children: &Children,
    pgdata: &Path,
    config: &InstanceConfig,
    local: &Local,
) -> Result<(), SetupError> {
    let candidate = std::env::temp_dir().join("postgresql.conf");
    fs::write(&candidate, pgconf::postgresql_conf(config, local))
        .map_err(io("writing the configuration to be checked"))?;
    let mut check = Command::new("postgres");
    check.arg("-D").arg(pgdata).arg("-c").arg(format!("config_file={}", candidate.display())).args(["-C", "port"]);
    command::run(children, check, "", Duration::from_secs(30)).await?;
    Ok(())
}

/// Full version of the binaries; `None` if there are none that work.
pub async fn binaries_version(children: &Children) -> Option<(u32, String)> {
    let mut version = Command::new("postgres");
    version.arg("--version");
    match command::run(children, version, "", Duration::from_secs(30)).await {
        Ok(output) => pgconf::parse_version(&output),
        Err(error) => {
            tracing::error!("{error}");
            None
        }
    }
}
