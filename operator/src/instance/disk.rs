//! The data volume: what is on it, and writes to it that survive a crash.

use std::{
    fs, io,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use operator_core::{
    instance::{DataDirectory, Disk},
    record::Member,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

/// What this operator notes beside a data directory. Written before the directory gets its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberFile {
    /// Identity of pod and data directory.
    pub member: Member,
    /// System identifier of the directory; `None` while there is only the identity of the one to come.
    pub system_id: Option<u64>,
    /// Highest version of the record this member has acted on.
    pub highest_version: u64,
    /// Identity of the copy that shall replace the directory, once it can't follow its primary any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Member>,
}

/// The paths on the volumes of one instance.
#[derive(Clone, Debug)]
pub struct Volume {
    root: PathBuf,
    wal: Option<PathBuf>,
}

impl Volume {
    /// The volume mounted at `root`, and that for the write-ahead log if there is one.
    #[must_use]
    pub fn new(root: &Path, wal: Option<&Path>) -> Self {
        Self { root: root.to_owned(), wal: wal.map(Path::to_owned) }
    }

    /// The data directory.
    #[must_use]
    pub fn pgdata(&self) -> PathBuf {
        self.root.join("pgdata")
    }

    /// A data directory that is being made; whatever is in it may be deleted.
    #[must_use]
    pub fn making(&self) -> PathBuf {
        self.root.join("pgdata.new")
    }

    /// A data directory that was replaced by a newer copy.
    fn replaced(&self) -> PathBuf {
        self.root.join("pgdata.old")
    }

    /// Directory of the write-ahead log of the data directory with this identity, if it has a volume of its own.
    #[must_use]
    pub fn waldir(&self, member: &Member) -> Option<PathBuf> {
        self.wal.as_ref().map(|wal| wal.join(format!("pg_wal.{:08x}", member.identity)))
    }

    /// The last configuration under which the server accepted connections.
    #[must_use]
    pub fn good_config(&self) -> PathBuf {
        self.root.join("config.good.json")
    }

    fn member_file(&self) -> PathBuf {
        self.root.join("member.json")
    }

    /// Takes the lock on the volume, for as long as the returned file lives.
    ///
    /// # Errors
    /// The volume can't be written. `Ok(None)`: another process holds the lock.
    pub fn lock(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.root.join("lock"), flags, Mode::from(0o600))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what this operator noted, if it ever did.
    ///
    /// # Errors
    /// The file exists and can't be read or understood.
    pub fn read_member(&self) -> io::Result<Option<MemberFile>> {
        let Some(text) = read_if_there(&self.member_file())? else { return Ok(None) };
        let file = serde_json::from_slice(&text).map_err(|error| io::Error::other(format!("member.json: {error}")))?;
        Ok(Some(file))
    }

    /// Notes it, durably.
    ///
    /// # Errors
    /// The volume can't be written.
    pub fn write_member(&self, file: &MemberFile) -> io::Result<()> {
        let text = serde_json::to_vec(file).map_err(io::Error::other)?;
        write_durably(&self.member_file(), &text)
    }

    /// Looks at the volume. Mints an identity for the data directory to come, if there is neither.
    #[must_use]
    pub fn observe(&self, pod: &str) -> Disk {
        self.try_observe(pod).unwrap_or_else(|error| Disk::Unknown(error.to_string()))
    }

    fn try_observe(&self, pod: &str) -> io::Result<Disk> {
        let noted = self.read_member()?;
        let pgdata = self.pgdata();
        if !is_there(&pgdata)? {
            return Ok(Disk::Empty { member: self.future_member(pod, noted)? });
        }
        Ok(Disk::Data(DataDirectory {
            noted_system: noted.as_ref().and_then(|file| file.system_id),
            highest_version: noted.as_ref().map_or(0, |file| file.highest_version),
            outdated: noted.as_ref().is_some_and(|file| file.replacement.is_some()),
            member: noted.map(|file| file.member),
            system_id: read_system_id(&pgdata)?,
            major: read_if_there(&pgdata.join("PG_VERSION"))?
                .and_then(|text| String::from_utf8(text).ok())
                .and_then(|text| text.trim().parse().ok()),
            follows: is_there(&pgdata.join("standby.signal"))?,
        }))
    }

    /// An identity without a system was minted for a directory that was never finished and goes on to the next try; one
    /// with a system belonged to a directory that is gone, and is never used again.
    fn future_member(&self, pod: &str, noted: Option<MemberFile>) -> io::Result<Member> {
        if let Some(MemberFile { member, system_id: None, .. }) = noted
            && member.pod == pod
        {
            return Ok(member);
        }
        let member = Member { pod: pod.to_owned(), identity: random_u32()? };
        self.write_member(&MemberFile {
            member: member.clone(),
            system_id: None,
            highest_version: 0,
            replacement: None,
        })?;
        Ok(member)
    }

    /// Notes that the data directory shall be replaced, and mints the identity of the copy to come.
    ///
    /// # Errors
    /// The volume can't be read or written, or holds no directory of this operator.
    pub fn give_up(&self) -> io::Result<()> {
        let mut file = self.read_member()?.ok_or_else(|| io::Error::other("member.json is gone"))?;
        if file.replacement.is_none() {
            file.replacement = Some(Member { pod: file.member.pod.clone(), identity: random_u32()? });
            self.write_member(&file)?;
        }
        Ok(())
    }

    /// Identity that a copy made now will carry.
    ///
    /// # Errors
    /// The volume can't be read, or the identity has not been minted.
    pub fn copy_identity(&self) -> io::Result<Member> {
        let file = self.read_member()?.ok_or_else(|| io::Error::other("no identity has been minted"))?;
        Ok(file.replacement.unwrap_or(file.member))
    }

    /// Removes what an interrupted try left behind, and nothing else.
    ///
    /// # Errors
    /// The volume can't be written.
    pub fn clear_making(&self, member: &Member) -> io::Result<()> {
        for left in [Some(self.making()), Some(self.replaced()), self.waldir(member)].into_iter().flatten() {
            match fs::remove_dir_all(&left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a finished directory its name. From then on it is data. One that was there is removed afterwards.
    ///
    /// # Errors
    /// The volume can't be written, or the new directory's control file can't be read.
    pub fn finish(&self, member: &Member, version: u64) -> io::Result<u64> {
        let making = self.making();
        let system_id =
            read_system_id(&making)?.ok_or_else(|| io::Error::other("the new data directory has no control file"))?;
        rustix::fs::syncfs(fs::File::open(&making)?)?;
        if let Some(wal) = &self.wal {
            rustix::fs::syncfs(fs::File::open(wal)?)?;
        }
        let before = self.read_member()?.map(|file| file.member).filter(|before| before != member);
        if is_there(&self.pgdata())? {
            fs::rename(self.pgdata(), self.replaced())?;
        }
        // Between these steps there is no data directory, only the finished copy; a crash here costs another copy.
        self.write_member(&MemberFile {
            member: member.clone(),
            system_id: Some(system_id),
            highest_version: version,
            replacement: None,
        })?;
        fs::rename(&making, self.pgdata())?;
        sync_dir(&self.root)?;
        self.remove_replaced(before.as_ref());
        Ok(system_id)
    }

    fn remove_replaced(&self, before: Option<&Member>) {
        let old_wal = before.and_then(|before| self.waldir(before));
        for old in [Some(self.replaced()), old_wal].into_iter().flatten() {
            if let Err(error) = fs::remove_dir_all(&old)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("removing {}: {error}", old.display());
            }
        }
    }
}

/// The system identifier: the first eight bytes of the control file, in the machine's own order, in every release so far.
pub(super) fn read_system_id(pgdata: &Path) -> io::Result<Option<u64>> {
    let mut bytes = [0_u8; 8];
    match fs::File::open(pgdata.join("global/pg_control")).and_then(|mut file| file.read_exact(&mut bytes)) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(bytes))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A random number from the system.
///
/// # Errors
/// The system's source of random numbers can't be read.
pub fn random_u32() -> io::Result<u32> {
    let mut bytes = [0_u8; 4];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Like `exists`, but "can't be told" is an error and not "no".
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The content of a file; `None` if there is no such file.
///
/// # Errors
/// Anything but its absence.
pub fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file so that after a crash it is the old one or the new one.
///
/// # Errors
/// The directory can't be written.
pub fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = fs::File::create(&partial)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
