//! A lock in use, until it is dropped.

use std::sync::Arc;

use braid_format::LockNo;

use super::core::Entry;
use super::state::Admission;
use super::step::Event;
use crate::{Life, Mode};

/// A lock in use. Dropping it ends the use; the node keeps the lock until it is asked for.
pub struct Guard {
    pub(super) entry: Arc<Entry>,
    pub(super) admission: Admission,
}

impl Guard {
    /// The lock.
    pub fn lock(&self) -> LockNo {
        self.entry.lock
    }
    /// The mode this use may rely on: the one asked for, or for a fill admitted during a demotion
    /// the one still held.
    pub fn mode(&self) -> Mode {
        self.admission.mode
    }
    /// First use since the cluster lock was taken or taken again. Others may use it at the same
    /// time: a cache knows by itself whether it is loaded (a demotion to unlocked has emptied it).
    pub fn first(&self) -> bool {
        self.admission.first
    }
    /// Counts the times this node took this lock from nothing: a cache loaded under one value is
    /// void under another.
    pub fn tenure(&self) -> u64 {
        self.admission.tenure
    }
    /// Living nodes that gave the lock up while a program of theirs had the file open, without
    /// this one. Complete only under an exclusive guard.
    pub fn openers(&self) -> Vec<Life> {
        let named = match self.entry.state.lock().dlock().known() {
            Some(known) => known.openers.clone(),
            None => Vec::new(),
        };
        let lock = self.lock();
        match self.entry.core.upgrade() {
            Some(core) => {
                named.into_iter().filter(|l| *l != core.me && !core.is_dead(lock, *l)).collect()
            }
            None => named,
        }
    }
    /// When contents were last changed under concurrent holds as far as the dinode does not say so
    /// yet: nanoseconds since 1970, 0: it says all. Stays as it is under a shared or exclusive guard.
    pub fn written(&self) -> u64 {
        self.entry.state.lock().dlock().known().map_or(0, |known| known.written)
    }
    /// The record's version: counts releases of exclusive and concurrent holds.
    pub fn version(&self) -> u64 {
        self.entry.state.lock().dlock().known().map_or(0, |known| known.version)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.entry.state.lock();
        if state.end(&self.admission)
            && let Some(core) = self.entry.core.upgrade()
        {
            core.tell(&self.entry, &mut state, Event::Ended);
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guard").field(&self.entry.lock).field(&self.admission).finish()
    }
}
