//! The loop of an instance: observe, decide, do, report. What to do is decided in `operator_core::instance`.

mod observe;
mod report;

use std::{io, net::IpAddr, os::fd::OwnedFd, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use operator_core::{
    instance::{Disk, Observed, Plan, RecordView, Server, Step, decide},
    names::DIR_RUN,
    pgconf::{Local, slot},
    record::{Member, Record},
    status::{Phase, Role},
};
use tokio::{sync::watch, time::Instant};

use super::{
    configuration::Configuration,
    disk::{MemberFile, Volume},
    duties::Duties,
    identity::Identity,
    kubernetes::{Kubernetes, Seen},
    postmaster::Postmaster,
    reaper::Children,
    server::{Snapshot, unknown_status},
    setup::{self, SetupError},
    sql::{ServerView, Sql},
};

/// Time between two looks at everything; events cause looks of their own.
const TICK: Duration = Duration::from_secs(1);
/// The same while PostgreSQL starts or a standby is about to stream: users wait for it.
const QUICK_TICK: Duration = Duration::from_millis(100);
/// How long after its start a server is looked at that often.
const QUICK_FOR: Duration = Duration::from_secs(20);
/// Longest pause after a step that failed.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A step failed; it is tried again after a pause.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Api(#[from] super::kubernetes::ApiError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("PostgreSQL did not stay up: {0}")]
    Ended(String),
}

/// What the supervisor listens to.
pub struct Inputs {
    /// The cluster's Lease.
    pub lease: watch::Receiver<Seen<Lease>>,
    /// The cluster's ConfigMap.
    pub config: watch::Receiver<Seen<ConfigMap>>,
    /// Counts renewals of the server's certificate.
    pub renewed: watch::Receiver<u64>,
    /// True once the pod is being stopped.
    pub stopping: watch::Receiver<bool>,
}

/// Pauses between attempts, longer after each failure in a row.
#[derive(Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
    why: String,
}

impl Pause {
    fn failed(&mut self, why: String) {
        let pause = Duration::from_millis(500) * 2_u32.saturating_pow(self.failures.min(10));
        self.failures += 1;
        self.until = Some(Instant::now() + pause.min(PAUSE_MAX));
        self.why = why;
    }

    fn holds(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// The supervisor of one instance.
pub struct Supervisor {
    identity: Identity,
    volume: Volume,
    children: Children,
    api: Kubernetes,
    inputs: Inputs,
    report: watch::Sender<Snapshot>,
    binaries: Option<(u32, String)>,
    configuration: Configuration,
    duties: Duties,
    began: Instant,
    lock: Option<OwnedFd>,
    lease: Option<Lease>,
    record: RecordView,
    disk: Disk,
    primary: Option<IpAddr>,
    server: Option<Postmaster>,
    sql: Sql,
    view: Option<ServerView>,
    pause: Pause,
    started: Option<Instant>,
    starts: u64,
    phase: Phase,
    reason: String,
}

impl Supervisor {
    /// A supervisor that has done nothing yet.
    #[must_use]
    pub fn new(
        identity: Identity,
        volume: Volume,
        children: Children,
        api: Kubernetes,
        inputs: Inputs,
        configuration: Configuration,
        binaries: Option<(u32, String)>,
    ) -> (Self, watch::Receiver<Snapshot>) {
        let status = unknown_status(&identity.pod);
        let (report, snapshots) = watch::channel(Snapshot { status, at: Instant::now(), starts: 0 });
        let supervisor = Self {
            identity,
            volume,
            children,
            api,
            inputs,
            report,
            binaries,
            configuration,
            duties: Duties::default(),
            began: Instant::now(),
            lock: None,
            lease: None,
            record: RecordView::Unknown,
            disk: Disk::Unknown("not looked at yet".to_owned()),
            primary: None,
            server: None,
            sql: Sql::new(DIR_RUN),
            view: None,
            pause: Pause::default(),
            started: None,
            starts: 0,
            phase: Phase::Waiting,
            reason: String::new(),
        };
        (supervisor, snapshots)
    }

    /// Runs until the pod is stopped and PostgreSQL is down.
    pub async fn run(mut self) {
        loop {
            self.observe().await;
            let plan = decide(&self.observed());
            self.announce(&plan);
            if plan.step == Step::Exit {
                return;
            }
            let again = self.attempt(plan).await;
            if !again {
                self.wait().await;
            }
        }
    }

    fn tick(&self) -> Duration {
        let settled = match &self.view {
            Some(view) => view.role == Role::Primary || view.streaming,
            None => self.server.is_none(),
        };
        if !settled && self.started.is_some_and(|started| started.elapsed() < QUICK_FOR) { QUICK_TICK } else { TICK }
    }

    async fn wait(&mut self) {
        let pause = self.tick();
        let Inputs { lease, config, renewed, stopping } = &mut self.inputs;
        let ended = async {
            match &mut self.server {
                Some(server) => server.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = lease.changed() => {}
            Ok(()) = config.changed() => {}
            Ok(()) = renewed.changed() => self.reload(),
            Ok(()) = stopping.changed() => {}
            () = ended => {}
        }
    }

    /// PostgreSQL reads its certificate only at a reload.
    fn reload(&self) {
        if let Some(server) = &self.server {
            server.reload();
        }
    }

    fn observed(&self) -> Observed {
        Observed {
            pod: self.identity.pod.clone(),
            ordinal: self.identity.ordinal,
            incarnation: self.identity.incarnation,
            age_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            stopping: *self.inputs.stopping.borrow(),
            wanted_major: self.configuration.wanted().major,
            binaries_major: self.binaries.as_ref().map(|(major, _)| *major),
            disk: self.disk.clone(),
            record: self.record.clone(),
            primary: self.primary,
            log_gone: self.log_gone(),
            server: self.server.as_ref().map_or(Server::Stopped, |server| Server::Up(server.role())),
        }
    }

    /// Does a step; true if there is something to look at right away.
    async fn attempt(&mut self, plan: Plan) -> bool {
        let urgent = matches!(plan.step, Step::Stop | Step::Fence | Step::Keep | Step::Wait | Step::Refuse);
        if self.pause.holds() && !urgent {
            let why = self.pause.why.clone();
            self.publish(Phase::Waiting, &why);
            return false;
        }
        match self.take(plan.step).await {
            Ok(again) => again,
            Err(error) => {
                tracing::error!("{error}");
                self.pause.failed(error.to_string());
                false
            }
        }
    }

    async fn take(&mut self, step: Step) -> Result<bool, StepError> {
        match step {
            Step::Wait | Step::Refuse | Step::Exit => Ok(false),
            Step::Write(record) => self.write(&record).await,
            Step::Initialise => {
                let (member, version) = self.member_and_version()?;
                let config = self.configuration.wanted().clone();
                let work = setup::initialise(&self.children, &self.volume, &member, &config, version);
                or_stopped(&mut self.inputs.stopping, work).await?;
                Ok(true)
            }
            Step::Clone { from, system_id } => {
                let (_, version) = self.member_and_version()?;
                let local = Local { member: self.volume.copy_identity()?, ..self.local()? };
                let work = setup::clone(&self.children, &self.volume, &local, from, system_id, version);
                or_stopped(&mut self.inputs.stopping, work).await?;
                Ok(true)
            }
            Step::GiveUpCopy => {
                self.volume.give_up()?;
                self.stop(false).await;
                Ok(true)
            }
            Step::Start(role) => self.start(role).map(|()| false),
            Step::Keep => self.keep().await.map(|()| false),
            Step::Stop => {
                self.stop(false).await;
                Ok(true)
            }
            Step::Fence => {
                self.stop(true).await;
                Ok(true)
            }
        }
    }

    /// Writes the record over the one seen. True if it is written, so that the next step can follow at once.
    async fn write(&mut self, record: &Record) -> Result<bool, StepError> {
        let Some(over) = &self.lease else { return Ok(false) };
        match self.api.write_record(over, record).await {
            Ok(lease) => {
                self.take_lease(lease);
                Ok(true)
            }
            Err(error) if error.is_conflict() => {
                tracing::info!("somebody else wrote the record first; the watch will bring it");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn start(&mut self, role: Role) -> Result<(), StepError> {
        self.note_version()?;
        let local = self.local()?;
        let pgdata = self.volume.pgdata();
        self.configuration.prepare_start(&self.volume, &local)?;
        forget_dead_postmaster(&pgdata)?;
        self.server = Some(Postmaster::start(&self.children, &pgdata, role)?);
        self.duties = Duties::default();
        self.started = Some(Instant::now());
        self.starts += 1;
        Ok(())
    }

    /// Stops the server; an end that was asked for is no failure.
    async fn stop(&mut self, at_once: bool) {
        let Some(mut server) = self.server.take() else { return };
        self.view = None;
        if at_once { server.fence().await } else { server.stop().await }
    }

    /// What a running instance does besides running.
    async fn keep(&mut self) -> Result<(), StepError> {
        self.note_version()?;
        let Some(view) = self.view.clone() else { return Ok(()) };
        let local = self.local()?;
        self.configuration.follow(&self.children, &self.volume, &local, &mut self.sql).await;
        let (role, ready) = (view.role, self.is_ready(&view));
        self.duties
            .perform(role, ready, &self.identity, self.configuration.wanted().clone(), &self.api, &mut self.sql)
            .await;
        Ok(())
    }

    /// From now on no older record counts.
    fn note_version(&mut self) -> io::Result<()> {
        let (RecordView::Known(record), Disk::Data(data)) = (&self.record, &mut self.disk) else { return Ok(()) };
        if record.version > data.highest_version
            && let Some(member) = &data.member
        {
            let file = MemberFile {
                member: member.clone(),
                system_id: data.noted_system,
                highest_version: record.version,
                replacement: self.volume.read_member()?.and_then(|file| file.replacement),
            };
            self.volume.write_member(&file)?;
            data.highest_version = record.version;
        }
        Ok(())
    }

    fn member(&self) -> Option<&Member> {
        match &self.disk {
            Disk::Empty { member } => Some(member),
            Disk::Data(data) => data.member.as_ref(),
            Disk::Unknown(_) | Disk::Locked => None,
        }
    }

    fn member_and_version(&self) -> io::Result<(Member, u64)> {
        match (self.member(), &self.record) {
            (Some(member), RecordView::Known(record)) => Ok((member.clone(), record.version)),
            _ => Err(io::Error::other("neither the own identity nor the record is known")),
        }
    }

    fn local(&self) -> io::Result<Local> {
        let (member, _) = self.member_and_version()?;
        let holds = matches!(&self.record, RecordView::Known(record) if record.holder == member);
        Ok(Local {
            member,
            slot: slot(self.identity.ordinal),
            tls_name: self.identity.tls_name(),
            primary: if holds { None } else { self.primary },
        })
    }
}

/// Gives a long step up as soon as the pod is being stopped; its processes are killed with it.
async fn or_stopped(
    stopping: &mut watch::Receiver<bool>,
    work: impl Future<Output = Result<(), SetupError>>,
) -> Result<(), SetupError> {
    tokio::select! {
        done = work => done,
        Ok(_) = stopping.wait_for(|stopping| *stopping) => Ok(()),
    }
}

/// In a new container the process ids begin anew, so the file a killed server left may name any process of ours. The
/// volume's lock and being the first process prove that no server runs.
fn forget_dead_postmaster(pgdata: &std::path::Path) -> io::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    match std::fs::remove_file(pgdata.join("postmaster.pid")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
