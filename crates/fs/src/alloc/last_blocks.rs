//! The last free blocks: a node that finds none asks the others for what only they know of.
//!
//! A node that holds the space lock may have free space in its windows or its free log. Windows are
//! taken, and blocks that may go to the free log freed, under a shared hold. A node that finds
//! nothing takes the lock exclusively. A node that gives it up puts everything that is not reserved
//! into the groups, where the node that asked finds it.
//!
//! ```text
//! nothing in the groups --> space lock, exclusive --> each holder: commit, drain the free log,
//!                                                     give windows back, and parts of those
//! take it, or NoSpace  <----------------------------- that have reserved blocks
//! ```
//!
//! While the lock is held exclusively nobody else takes a window, so the node that asked gets the
//! space. The lock is granted in the order of asking: each of several nodes that compete for the
//! last blocks gets its turn, and a turn ends with blocks taken or an answer.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::rgrp::BlockState;
use braid_format::tree::{RawExtent, RawNode};
use braid_format::{BlockNo, LockNo};
use braid_lock::{Guard, Local, Mode};

use super::group::{Edits, Group};
use super::inner::{Alloc, Inner};
use super::private::plan_runs;
use super::share::ReturnedPart;
use crate::error::{Error, Result};

/// How long the housekeeper waits for the lock.
const PATIENCE: Duration = Duration::from_millis(100);

/// Slots that are not called available: each change of a file's tree reserves more than it uses.
const SLOTS_KEPT: u64 = 16;

impl Alloc {
    /// Another node is about to take or free space: what was not found may be there then.
    pub fn note_change_by_others(&self) {
        self.inner.note_space();
    }
    /// Gives what nobody here has reserved to the groups: the space lock is given up.
    pub fn hand_out(&self) -> Result<()> {
        let inner = &self.inner;
        inner.share.note(false);
        if inner.share.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut refill = inner.refill.lock();
        // Frees become takeable.
        inner.meta.commit()?;
        inner.drain_usable(&mut refill)?;
        if let Err(e) = Error::of_one_group(inner.give_back_idle(&mut refill, false))? {
            tracing::warn!("cannot give all windows back: {e}");
        }
        inner.give_parts()
    }
    /// Takes the space lock if this node has space and does not hold it: a free may have come while it
    /// was given up, or windows from an earlier life. Waits for a moment only.
    pub fn keep_share(&self) -> Result<()> {
        let inner = &self.inner;
        let Some(lock) = inner.share.lock else { return Ok(()) };
        if inner.share.is_held() || !inner.state.lock().has_takeable() {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        let cancelled = || Instant::now() >= until;
        let guard = inner.locks.acquire_unless(lock, Mode::Shared, Local::Shared, &cancelled);
        match guard.map_err(Error::from) {
            Ok(guard) => {
                // As long as the guard is there nobody gives the lock up.
                inner.share.note(guard.is_some());
                Ok(())
            }
            Err(e) if e.is_of_one_group() => Ok(()),
            Err(e) => Err(e),
        }
    }
    /// Of `free` blocks, what files may have beside the metadata that leads to them, however small the
    /// pieces; `slots`: where metadata stands apart, what is free there.
    pub(super) fn available(&self, free: u64, slots: Option<u64>) -> u64 {
        let volume = &self.inner.volume;
        // Nodes are at least half full.
        let room = volume.geo.body_len().saturating_sub(size_of::<RawNode>());
        let extents = (room / size_of::<RawExtent>() / 2).max(1) as u64;
        if let Some(slots) = slots {
            return free.min(slots.saturating_sub(SLOTS_KEPT).saturating_mul(extents));
        }
        let slot = self.inner.slot_blocks();
        free.saturating_sub((free * slot).div_ceil(extents) + SLOTS_KEPT * slot)
    }
}

impl Inner {
    /// The space lock, before windows are taken and [`Inner::refill`] is locked. `None`: there is none,
    /// or a dead node that cannot be recovered has it.
    pub(super) fn share(&self, mode: Mode) -> Result<Option<Guard>> {
        let Some(lock) = self.share.lock else { return Ok(None) };
        match self.locks.acquire(lock, mode, Local::Shared).map_err(Error::from) {
            Ok(guard) => {
                self.share.note(true);
                Ok(Some(guard))
            }
            Err(e) if e.is_of_one_group() => Ok(None),
            Err(e) => Err(e),
        }
    }
    /// Before blocks are freed that may go to the free log: so that others ask this node for them.
    pub(super) fn share_frees(&self) -> Result<()> {
        if self.share.is_held() { Ok(()) } else { self.share(Mode::Shared).map(drop) }
    }
    /// Gives parts of windows that stay, because something in them is reserved or under way.
    fn give_parts(&self) -> Result<()> {
        let parts = self.state.lock().begin_return(self.slot_blocks());
        let mut groups: BTreeMap<u64, Vec<ReturnedPart>> = BTreeMap::new();
        for part in parts {
            groups.entry(part.group).or_default().push(part);
        }
        let mut failed = Ok(());
        for (index, parts) in groups {
            let given = failed.is_ok().then(|| self.give_to(index, &parts));
            self.state.lock().end_return(&parts, matches!(given, Some(Ok(()))));
            match given {
                Some(Err(e)) if e.is_of_one_group() => {
                    tracing::warn!("cannot give space to group {index}: {e}");
                }
                Some(Err(e)) => failed = Err(e),
                _ => {}
            }
        }
        failed
    }
    fn give_to(&self, index: u64, parts: &[ReturnedPart]) -> Result<()> {
        let slots = parts.iter().filter(|p| p.state == BlockState::MetaFree);
        let slots: Vec<BlockNo> = slots.map(|p| BlockNo(p.start)).collect();
        // Their bodies become visible to other nodes: they must be in place first.
        if !slots.is_empty() {
            self.meta.sync_blocks(&slots)?;
        }
        let lock = LockNo::from(self.volume.rgrp(index));
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        let mut group = Group::load(&self.volume, &self.meta, index)?;
        let mut edits = Edits::default();
        for part in parts {
            let base = group.local_run(part.start, part.len)?;
            plan_runs(&group, base..base + part.len, part.state, &mut edits)?;
        }
        let private = self.private();
        let mut tx = self.meta.begin()?;
        let done = group.apply(&mut tx, &edits).and_then(|()| {
            parts.iter().try_for_each(|p| {
                private.set_window_bits(&mut tx, p.place, &[(p.at, p.len, BlockState::Data)])
            })
        });
        drop(tx);
        self.meta.fatal(done)?;
        private.forget(&slots);
        drop(guard);
        Ok(())
    }
}
