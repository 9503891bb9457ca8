//! The servers of this host, by the notes of their supervisors.

use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Result, bail};
use braid_pool::device::user_dir;
use serde::{Deserialize, Serialize};

use super::orders::{self, Order, View};
use crate::process::notes::{self, Writer};

/// The kind of these notes.
const KIND: &str = "export";

/// Longest wait for the end of a supervisor that said that it ends.
const END_MAX: Duration = Duration::from_mins(1);
/// And of one that said nothing.
const GONE_MAX: Duration = Duration::from_secs(2);

/// What a note says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noted {
    /// The process that serves the mount, as its note is named.
    pub node: String,
    /// Where that is.
    pub mount_point: PathBuf,
    /// The supervisor.
    #[serde(skip)]
    pub supervisor: Writer,
}

impl Noted {
    /// Gives the supervisor an order.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn order(&self, order: &Order) -> Result<View> {
        orders::order(&user_dir()?, self.supervisor.id(), order)
    }

    /// Has the supervisor export `subtree` no longer, or nothing any more. If nothing is left, it has ended on
    /// return.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn stop(&self, subtree: Option<String>) -> Result<()> {
        let ended = self.supervisor.ended()?;
        let done = self.order(&subtree.map_or(Order::End, Order::Remove));
        let patience = match &done {
            Ok(view) if !view.exports.is_empty() => return Ok(()),
            Ok(_) => END_MAX,
            // It may have been gone before its answer was.
            Err(_) => GONE_MAX,
        };
        match (ended.recv_timeout(patience), done) {
            (Err(RecvTimeoutError::Timeout), Ok(_)) => {
                let id = self.supervisor.id();
                bail!("the process that supervises NFS exports ({id}) does not end")
            }
            (Err(RecvTimeoutError::Timeout), Err(why)) => Err(why),
            _ => Ok(()),
        }
    }
}

/// Begins the note of this process, a supervisor.
///
/// # Errors
/// The system's.
pub fn begin(dir: &Path) -> std::io::Result<notes::Note> {
    let note = notes::Note::begin(dir, KIND, std::process::id())?;
    remove_rest(dir, note.id());
    Ok(note)
}

/// Supervisors that live. What dead ones have left behind is removed.
pub fn all() -> Vec<Noted> {
    let Ok(dir) = user_dir() else { return Vec::new() };
    let living = notes::living::<Noted>(&dir, KIND, |id| remove_rest(&dir, id)).into_iter();
    let mut all: Vec<Noted> =
        living.map(|(noted, supervisor)| Noted { supervisor, ..noted }).collect();
    all.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    all
}

/// The supervisor of the exports of the mount that `node` serves.
pub fn of_node(node: &Writer) -> Option<Noted> {
    all().into_iter().find(|noted| noted.node == node.id())
}

/// The directory of a supervisor's files.
pub fn room(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{KIND}-{id}"))
}

/// Removes what a supervisor leaves beside its note.
pub fn remove_rest(dir: &Path, id: &str) {
    std::fs::remove_file(orders::socket(dir, id)).ok();
    std::fs::remove_dir_all(room(dir, id)).ok();
}
