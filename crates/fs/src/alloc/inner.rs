//! What the handles of a node's allocator share; reservations, and runs that are claimed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use braid_format::lock_record::Life;
use braid_format::{BlockNo, Incarnation, NodeId};
use braid_lock::{Deltas, LockManager};
use parking_lot::{Condvar, Mutex};

use super::closed_space::ClosedSpace;
use super::failed_search::Full;
use super::freed_places::Remembered;
use super::private::Private;
use super::refill::Refill;
use super::share::Share;
use super::state::State;
use super::trimmed::Trimmed;
use crate::error::Result;
use crate::meta::{Meta, Tx};
use crate::volume::Volume;

/// What the other nodes have not yet added to the cluster's counters; `None`: there is none.
pub(crate) type OthersDeltas = Box<dyn Fn() -> Option<Deltas> + Send + Sync>;

/// The cluster's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Free blocks that may become file data.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Free slots, and free blocks of groups for metadata alone.
    pub meta: u64,
}

/// This node's allocator.
#[derive(Clone)]
pub(crate) struct Alloc {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) volume: Arc<Volume>,
    pub(super) meta: Arc<Meta>,
    pub(super) locks: Arc<LockManager>,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) state: Mutex<State>,
    pub(super) refill: Mutex<Refill>,
    /// Whether other nodes ask this one for space.
    pub(super) share: Share,
    /// What the last search for space did not find.
    pub(super) full: Full,
    /// A reservation was dropped.
    pub(super) released: Condvar,
    /// Which groups there are, blocks that may hold file data, and blocks of groups for metadata alone.
    pub(super) total: Mutex<((u64, u64), (u64, u64))>,
    /// Blocks of runs that are kept back ([`Run::keep_back`]).
    pub(super) kept_back: AtomicU64,
    /// What closed parts have.
    pub(super) closed: Mutex<Option<ClosedSpace>>,
    /// Groups all of whose free blocks have been discarded.
    pub(super) trimmed: Mutex<HashMap<u64, Trimmed>>,
    /// What was freed and is to be discarded; `None`: nothing is remembered. Before `state`.
    pub(super) freed: Mutex<Option<Remembered>>,
    /// The cluster's counters as last read, and when.
    pub(super) counters: Mutex<(Instant, Counters)>,
    /// Held by the thread that reads them anew.
    pub(super) reading_counters: Mutex<()>,
    /// A thread reads them for displays.
    pub(super) is_looking: AtomicBool,
    pub(super) others: Mutex<Option<OthersDeltas>>,
    /// See [`Alloc::set_leaving`].
    pub(super) leaving: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alloc").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A reservation of space, made before the transaction (or when data is dirtied). Dropping it returns
/// what was not used.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Data blocks still reserved.
    pub data: u64,
    /// Metadata slots still reserved.
    pub slots: u64,
    /// Free-log entries still reserved.
    pub frees: u64,
    pub(super) home: Arc<Inner>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.data + self.slots + self.frees != 0 {
            self.home.state.lock().unreserve(self.data, self.slots, self.frees);
            if self.data + self.slots > 0 {
                self.home.note_space();
            }
            self.home.released.notify_all();
        }
    }
}

/// Blocks that a node keeps back because writing them failed, at most: beyond it the node withdraws,
/// and its fence ends what may still land. 4 GiB in blocks of 4 KiB: a device that fails for minutes.
pub(super) const KEPT_BACK_MAX: u64 = 1 << 20;

/// A contiguous run of blocks taken out of a window in memory: data may be written there before
/// any transaction refers to it. Dropped without [`Alloc::commit_run`], it goes back.
#[derive(Debug)]
pub(crate) struct Run {
    /// First block.
    pub start: BlockNo,
    /// Blocks.
    pub len: u64,
    pub(super) home: Option<Arc<Inner>>,
}

impl Run {
    /// Never gives the run back while this node lives: a write to it failed, and may land yet. Its
    /// window stays with the slot, whose next owner finds the blocks free. `false`: so many blocks
    /// are kept back that this node should not go on.
    pub fn keep_back(mut self) -> bool {
        let Some(home) = self.home.take() else { return true };
        let before = home.kept_back.fetch_add(self.len, Ordering::Relaxed);
        before.saturating_add(self.len) <= KEPT_BACK_MAX
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.state.lock().unclaim(self.start.get(), self.len);
            home.note_space();
        }
    }
}

impl Inner {
    pub(super) fn private(&self) -> Private<'_> {
        Private { volume: &self.volume, meta: &self.meta, locks: &self.locks, node: self.node }
    }
    pub(super) fn slot_blocks(&self) -> u64 {
        self.volume.geo.slot_blocks()
    }
    /// Adds to this node's change of the counters, on disk in `tx` and in memory.
    pub(super) fn count(&self, tx: &mut Tx<'_>, change: Deltas) -> Result<()> {
        if change == Deltas::default() {
            return Ok(());
        }
        self.private().count(tx, change)?;
        self.state.lock().deltas += change;
        Ok(())
    }
    /// What taking so many slots changes.
    pub(super) fn slots_taken(&self, slots: i64) -> Deltas {
        Deltas { meta: -slots * Self::signed(self.slot_blocks()), ..Deltas::default() }
    }
    /// Blocks as a change of a counter.
    pub(super) fn signed(n: u64) -> i64 {
        i64::try_from(n).unwrap_or(i64::MAX)
    }
    /// This node in this life.
    pub(super) fn life(&self) -> Life {
        Life { slot: self.node, incarnation: self.incarnation }
    }
}
