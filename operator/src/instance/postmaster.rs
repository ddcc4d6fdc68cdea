//! The running server: start, logs, reload, stop, and making sure it is gone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use operator_core::{
    pglog::{self, Level},
    status::Role,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

use super::reaper::{Children, processes};

/// How long a fast stop may take before it becomes an immediate one. The kubelet gives 60 s in all.
const FAST_STOP: Duration = Duration::from_secs(45);
/// How long an immediate stop may take before every process is killed.
const IMMEDIATE_STOP: Duration = Duration::from_millis(750);

/// A running server.
pub struct Postmaster {
    pid: Pid,
    role: Role,
    pgdata: PathBuf,
    binary: Option<PathBuf>,
    exit: watch::Receiver<Option<String>>,
    last_error: Arc<Mutex<Option<String>>>,
}

impl Postmaster {
    /// Starts the server on a data directory.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(children: &Children, pgdata: &Path, role: Role) -> std::io::Result<Self> {
        let mut command = Command::new("postgres");
        command
            .arg("-D")
            .arg(pgdata)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let registered = children.register(child.id());
        let raw = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = raw.ok_or_else(|| std::io::Error::other("postgres ended at once"))?;
        let last_error = Arc::new(Mutex::new(None));
        tokio::spawn(forward(child.stdout.take(), last_error.clone()));
        tokio::spawn(forward(child.stderr.take(), last_error.clone()));
        let (sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            let status = wait(&mut child).await;
            drop(registered);
            sender.send_replace(Some(status));
        });
        Ok(Self { pid, role, pgdata: pgdata.to_owned(), binary: find("postgres"), exit, last_error })
    }

    /// The role it was started in.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// True once it has noted in its lock file that it takes connections. Asking it earlier would only fill its log.
    #[must_use]
    pub fn takes_connections(&self) -> bool {
        fs::read_to_string(self.pgdata.join("postmaster.pid")).is_ok_and(|text| notes_ready(&text))
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.exit.borrow().clone()
    }

    /// Completes when it has ended.
    pub async fn wait(&mut self) {
        // The sender goes away only after it has sent.
        let _ = self.exit.wait_for(Option::is_some).await;
    }

    /// The last thing it complained about.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes it read its files again, certificates included.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        // An ended server is reaped by its own task before `ended` says so; a signal in between meets a zombie, not a stranger.
        if self.ended().is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Stops it in an orderly way: sessions are ended, a checkpoint is written, standbys receive everything.
    pub async fn stop(&mut self) {
        self.signal(Signal::INT);
        if timeout(FAST_STOP, self.wait()).await.is_err() {
            tracing::warn!("the server did not stop within {} s; stopping it at once", FAST_STOP.as_secs());
            self.fence().await;
        }
    }

    /// Stops it at once. When this returns, no process of the server is left.
    pub async fn fence(&mut self) {
        self.signal(Signal::QUIT);
        if timeout(IMMEDIATE_STOP, self.wait()).await.is_err() {
            self.signal(Signal::KILL);
        }
        self.kill_remains();
        let _ = timeout(IMMEDIATE_STOP, self.wait()).await;
    }

    /// Backends are sessions of their own, so they are known by their binary.
    fn kill_remains(&self) {
        let Some(binary) = &self.binary else { return };
        for pid in processes() {
            if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == *binary)
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The eighth line of the lock file is the server's state, padded with blanks.
fn notes_ready(lock_file: &str) -> bool {
    lock_file.lines().nth(7).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
}

async fn wait(child: &mut Child) -> String {
    match child.wait().await {
        Ok(status) => describe(status),
        Err(error) => format!("how it ended is unknown: {error}"),
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "it stopped in an orderly way".to_owned(),
        (Some(code), _) => format!("it ended with code {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Where a program is, links resolved.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find_map(|file| fs::canonicalize(file).ok())
}

/// Puts the server's log into ours, and remembers its last complaint.
async fn forward(stream: Option<impl AsyncRead + Unpin>, last_error: Arc<Mutex<Option<String>>>) {
    let Some(stream) = stream else { return };
    let mut lines = BufReader::new(stream).split(b'\n');
    // The parameter is named in lines of their own, before the one with which the server gives up.
    let mut complaints: Vec<String> = Vec::new();
    while let Ok(Some(bytes)) = lines.next_segment().await {
        let text = String::from_utf8_lossy(&bytes);
        let line = pglog::parse(&text);
        let (pid, backend, user, database) = (line.pid, line.backend, line.user, line.database);
        match line.level {
            Level::Debug => tracing::debug!(pid, backend, user, database, "{}", line.message),
            Level::Info => tracing::info!(pid, backend, user, database, "{}", line.message),
            Level::Warn => tracing::warn!(pid, backend, user, database, "{}", line.message),
            Level::Error => tracing::error!(pid, backend, user, database, "{}", line.message),
        }
        if pglog::complains_of_configuration(line.message) {
            complaints.push(line.message.to_owned());
        } else if line.level != Level::Error {
            complaints.clear();
        }
        // A client's mistakes say nothing about the server's health.
        if line.level == Level::Error && line.backend != "client backend" {
            let said = std::mem::take(&mut complaints).into_iter().chain([line.message.to_owned()]);
            let said = said.collect::<Vec<_>>().join("; ");
            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("ready   ", true)]
    #[case("standby ", true)]
    #[case("starting", false)]
    #[case("stopping", false)]
    fn the_lock_file_says_when_to_ask(#[case] state: &str, #[case] expected: bool) {
        let file = format!("8\n/data\n1700000000\n5432\n/run/postgresql\n*\n  1 2\n{state}\n");
        assert_eq!(notes_ready(&file), expected);
        assert!(!notes_ready("8\n/data\n"));
    }
}
