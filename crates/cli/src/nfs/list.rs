//! The servers of this host, by the notes of their supervisors.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use braid_lock::runtime::private_dir;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::orders::{self, Order, View};
use crate::process::notes;

/// The kind of these notes.
const KIND: &str = "export";

/// Longest wait for the end of a supervisor that said that it ends.
const END_MAX: Duration = Duration::from_mins(1);
/// And of one that said nothing.
const GONE_MAX: Duration = Duration::from_secs(2);

/// What a note says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noted {
    /// The supervisor.
    pub pid: u32,
    /// The process that serves the mount.
    pub node_pid: u32,
    /// Where that is.
    pub mount_point: PathBuf,
}

impl Noted {
    /// Gives the supervisor an order.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn order(&self, order: &Order) -> Result<View> {
        orders::order(&private_dir()?, self.pid, order)
    }

    /// Has the supervisor export `subtree` no longer, or nothing any more. If nothing is left, it has ended on
    /// return.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn stop(&self, subtree: Option<String>) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let done = self.order(&subtree.map_or(Order::End, Order::Remove));
        let patience = match &done {
            Ok(view) if !view.exports.is_empty() => return Ok(()),
            Ok(_) => END_MAX,
            // It may have been gone before its answer was.
            Err(_) => GONE_MAX,
        };
        let Some(process) = process else { return done.map(drop) };
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        match (poll(&mut fds, Some(&patience.try_into()?))?, done) {
            (0, Ok(_)) => {
                bail!("the process that supervises NFS exports ({}) does not end", self.pid)
            }
            (0, Err(why)) => Err(why),
            _ => Ok(()),
        }
    }
}

/// Writes the note of this process.
///
/// # Errors
/// The system's.
pub fn note(dir: &Path, noted: &Noted) -> std::io::Result<notes::Note> {
    notes::Note::write(dir, KIND, noted.pid, noted)
}

/// Supervisors that live. What dead ones have left behind is removed.
pub fn all() -> Vec<Noted> {
    let Ok(dir) = private_dir() else { return Vec::new() };
    let (mut all, mut dead, mut begins) = (Vec::new(), Vec::new(), false);
    for found in notes::found::<Noted>(&dir, KIND) {
        match found.value {
            Some(noted) if found.lives => all.push(noted),
            Some(noted) => dead.push(noted.pid),
            None => begins |= found.lives,
        }
    }
    // One that lives, or begins, may have the number of a dead one.
    dead.retain(|pid| !begins && all.iter().all(|noted: &Noted| noted.pid != *pid));
    for pid in dead {
        remove_rest(&dir, pid);
    }
    all.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    all
}

/// The supervisor of the exports of the mount that the process `node_pid` serves.
pub fn of_node(node_pid: u32) -> Option<Noted> {
    all().into_iter().find(|noted| noted.node_pid == node_pid)
}

/// The directory of a supervisor's files.
pub fn room(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{KIND}-{pid}"))
}

/// Removes what a supervisor leaves beside its note.
pub fn remove_rest(dir: &Path, pid: u32) {
    std::fs::remove_file(orders::socket(dir, pid)).ok();
    std::fs::remove_dir_all(room(dir, pid)).ok();
}
