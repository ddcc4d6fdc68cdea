//! Zombies. PID 1 inherits the orphans of its container and must wait for them, but never for a child that somebody in
//! this process awaits: its exit code would be lost.

use std::{
    collections::BTreeSet,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::signal::unix::{SignalKind, signal};

/// The processes somebody awaits. One per instance manager; clones share it.
///
/// # Assumptions
/// The runtime has one thread: between a spawn and its registration nothing else runs.
#[derive(Clone, Debug, Default)]
pub struct Children(Arc<Mutex<BTreeSet<i32>>>);

/// Keeps a process registered while it lives.
#[derive(Debug)]
pub struct Registered {
    children: Children,
    pid: Option<i32>,
}

impl Children {
    /// Registers a process; `None` is one that has ended already.
    #[must_use]
    pub fn register(&self, pid: Option<u32>) -> Registered {
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            self.pids().insert(pid);
        }
        Registered { children: self.clone(), pid }
    }

    fn pids(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn awaited(&self, pid: i32) -> bool {
        self.pids().contains(&pid)
    }

    /// Waits for orphans whenever a child ends. Runs for ever.
    ///
    /// # Errors
    /// The signal handler can't be installed.
    pub async fn reap(self) -> std::io::Result<()> {
        let mut ended = signal(SignalKind::child())?;
        while ended.recv().await.is_some() {
            // Children of this process first: their owners get their turn before the scan.
            tokio::task::yield_now().await;
            self.reap_among(processes());
        }
        Ok(())
    }

    fn reap_among(&self, pids: impl Iterator<Item = i32>) {
        let me = std::process::id();
        for pid in pids {
            let zombie = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_zombie_of(&stat, me));
            if zombie && !self.awaited(pid) {
                // A named process, and only after it was seen to be an ended child of ours.
                let _ = Pid::from_raw(pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
            }
        }
    }
}

/// Every process of the container.
pub(super) fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            self.children.pids().remove(&pid);
        }
    }
}

/// Reads `/proc/<pid>/stat`: the name in parentheses may contain anything, so the fields count from the last one.
fn is_zombie_of(stat: &str, parent: u32) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    fields.next() == Some("Z") && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("7 (postgres) Z 1 7 7 0", true)]
    #[case("7 (a) b) Z 1 7 7 0", true)]
    #[case("7 (Z 1) S 1 7 7 0", false)]
    #[case("7 (postgres) Z 12 7 7 0", false)]
    #[case("", false)]
    fn zombies(#[case] stat: &str, #[case] expected: bool) {
        assert_eq!(is_zombie_of(stat, 1), expected);
    }

    #[test]
    fn awaited_children_are_left_alone_and_others_are_waited_for() {
        let children = Children::default();
        let mut awaited_child = std::process::Command::new("true").spawn().unwrap();
        let registered = children.register(Some(awaited_child.id()));
        // Nobody in this process waits for it: that is what is tested.
        #[allow(clippy::zombie_processes)]
        let orphan = std::process::Command::new("true").spawn().unwrap();
        let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let ended = |pid: u32| stat(pid).is_some_and(|text| is_zombie_of(&text, std::process::id()));
        while !(ended(awaited_child.id()) && ended(orphan.id())) {
            std::thread::yield_now();
        }
        let both = [awaited_child.id(), orphan.id()].map(|pid| i32::try_from(pid).unwrap());
        children.reap_among(both.into_iter());
        assert!(stat(orphan.id()).is_none(), "the orphan is still a zombie");
        assert!(awaited_child.wait().unwrap().success());
        drop(registered);
    }
}
