//! Which files the programs of a client have locked.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::InodeNo;
use braid_fs::{FileSystem, Plock, PlockKind};

/// Most locked files of a session, each counted once for each owner.
const HELD_MAX: usize = 1 << 16;

/// What one owner has locks on: files, by flock(2) (`true`) or fcntl(2).
#[derive(Debug)]
struct Owner {
    number: u64,
    held: HashSet<(InodeNo, bool)>,
}

/// Files of a session that are locked, or were asked to be.
#[derive(Debug, Default)]
pub struct Held {
    owners: HashMap<u64, Owner>,
    count: usize,
}

impl Held {
    /// A client's owner asks for a lock: his number.
    pub fn note(&mut self, owner: u64, file: (InodeNo, bool), numbers: &AtomicU64) -> Option<u64> {
        if self.count >= HELD_MAX {
            return None;
        }
        let entry = self.owners.entry(owner).or_insert_with(|| Owner {
            number: numbers.fetch_add(1, Ordering::Relaxed),
            held: HashSet::new(),
        });
        self.count += usize::from(entry.held.insert(file));
        Some(entry.number)
    }
    /// A client's owner has given a file up.
    pub fn forget(&mut self, owner: u64, file: (InodeNo, bool)) {
        let Some(entry) = self.owners.get_mut(&owner) else { return };
        self.count -= usize::from(entry.held.remove(&file));
        if entry.held.is_empty() {
            self.owners.remove(&owner);
        }
    }
    /// Files, each as often as owners have locked it.
    pub fn len(&self) -> usize {
        self.count
    }
    /// The number of a client's owner.
    pub fn number(&self, owner: u64) -> Option<u64> {
        self.owners.get(&owner).map(|entry| entry.number)
    }
    /// Whether an owner has that number.
    pub fn has(&self, number: u64) -> bool {
        self.owners.values().any(|entry| entry.number == number)
    }
    /// Takes those of a file, or all, out: numbers of owners, and what they have.
    pub fn take(&mut self, of: Option<InodeNo>) -> Vec<(u64, InodeNo, bool)> {
        let mut taken = Vec::new();
        for entry in self.owners.values_mut() {
            let number = entry.number;
            let goes = entry.held.extract_if(|(ino, _)| of.is_none_or(|of| of == *ino));
            taken.extend(goes.map(|(ino, whole)| (number, ino, whole)));
        }
        self.owners.retain(|_, entry| !entry.held.is_empty());
        self.count -= taken.len();
        taken
    }
}

/// Gives up what [`Held::take`] has taken out.
pub fn give_up<F: FileSystem>(files: &F, taken: Vec<(u64, InodeNo, bool)>) {
    for (owner, ino, whole) in taken {
        let lock =
            Plock { start: 0, end: u64::MAX, kind: PlockKind::Unlock, owner, pid: 0, uid: 0 };
        let done = if whole { files.flock(ino, &lock) } else { files.setlk(ino, &lock) };
        if let Err(errno) = done {
            tracing::error!(%ino, %errno, "a lock outlives its client");
        }
    }
}
