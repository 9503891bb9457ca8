//! How much space there is and how much of it is free, for this node and in the cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use braid_format::BlockNo;
use braid_format::meta::MetaKind;
use braid_format::node::RawCounters;
use braid_format::superblock::RawSuperblock;
use braid_lock::Deltas;
use braid_pool::BackgroundIo;
use zerocopy::FromBytes;

use super::closed_space::ClosedSpace;
use super::inner::{Alloc, Counters, Inner};
use crate::error::{Error, Result};
use crate::meta::Tx;
use crate::volume::Volume;

/// The cluster's counters on disk are read again after this.
const COUNTERS_AGE_MAX: Duration = Duration::from_millis(500);

/// The same for a node that has nothing to do, while there is plenty of space.
const PLENTY_AGE_MAX: Duration = Duration::from_secs(30);

/// A display waits for so long for a device.
const DISPLAY_WAIT_MAX: Duration = Duration::from_millis(200);

/// Space is short when less than this part (divisor) of the pool is free.
const LOW_SPACE_DIVISOR: u64 = 8;

/// What there is in all, and of it free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    /// Blocks that may hold file data.
    pub blocks: u64,
    /// Of those, free.
    pub free: u64,
    /// Of those, what files may have beside their metadata.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that there is room for.
    pub files_free: u64,
}

/// The cluster's counters as they are on the devices.
pub(super) fn read_counters(volume: &Volume) -> Result<Counters> {
    let block = BlockNo::from(volume.named(RawSuperblock::NAMED_COUNTERS));
    let (body, _, kind) = volume.read_body(block)?;
    let bad = Error::Inconsistent { block, what: "not the cluster's counters" };
    match RawCounters::read_from_prefix(&body) {
        Ok((raw, _)) if kind == MetaKind::Counters => Ok(Counters {
            free: raw.free_blocks.get(),
            inodes: raw.inodes.get(),
            // Negative if an older pool did not count the slots.
            meta: raw.free_meta.get().cast_signed().max(0).cast_unsigned(),
        }),
        _ => Err(bad),
    }
}

impl Inner {
    /// The cluster's counters, with what the nodes have not added to them yet.
    pub(super) fn counted(&self) -> Counters {
        self.refresh_counters();
        self.last_counted()
    }
    fn are_counters_old(&self) -> bool {
        self.counters.lock().0.elapsed() >= COUNTERS_AGE_MAX
    }
    /// Reads the cluster's counters if they are old; one thread at a time does.
    fn refresh_counters(&self) {
        if !self.are_counters_old() {
            return;
        }
        let _one = self.reading_counters.lock();
        if !self.are_counters_old() {
            return;
        }
        // The filling of a member need not give way to commands that only look (`df`, `braid status`).
        let _background = BackgroundIo::begin();
        // A read beside a write may be torn: then the old values stay.
        if let Ok(now) = read_counters(&self.volume) {
            *self.counters.lock() = (Instant::now(), now);
        }
    }
    /// As [`Self::counted`], by what was read last: asks no device.
    fn last_counted(&self) -> Counters {
        let read = self.counters.lock().1;
        let others = self.others.lock().as_ref().and_then(|f| f()).unwrap_or_default();
        let change = self.state.lock().shown_deltas() + others;
        Counters {
            free: read.free.saturating_add_signed(change.free),
            inodes: read.inodes.saturating_add_signed(change.inodes),
            meta: read.meta.saturating_add_signed(change.meta),
        }
    }
    /// Blocks that may hold file data, and blocks of groups for metadata alone: more, when the file
    /// system has grown.
    pub(super) fn total(&self) -> (u64, u64) {
        let mut total = self.total.lock();
        let version = self.volume.groups.version();
        if total.0 != version {
            *total = (version, self.volume.groups.totals());
        }
        total.1
    }
    /// Whether so little is free that no node should keep windows it does not use.
    pub(super) fn is_short(&self) -> bool {
        self.has_less(self.counted(), LOW_SPACE_DIVISOR)
    }
    /// As [`Self::is_short`], for a node that has nothing to do and asks all the time: it does not read while twice
    /// as much was free a short while ago.
    pub(super) fn is_short_at_rest(&self) -> bool {
        let recent = self.counters.lock().0.elapsed() < PLENTY_AGE_MAX;
        let plenty = recent && !self.has_less(self.last_counted(), LOW_SPACE_DIVISOR / 2);
        !plenty && self.is_short()
    }
    /// Whether less is free, by these counters, than one in `divisor` of data or metadata.
    pub(super) fn has_less(&self, counted: Counters, divisor: u64) -> bool {
        let (closed, (data, meta)) = (self.closed_space(), self.total());
        let (free, data) =
            (counted.free.saturating_sub(closed.free), data.saturating_sub(closed.blocks));
        free < data / divisor || counted.meta.saturating_sub(closed.meta) < meta / divisor
    }
}

impl Alloc {
    /// This node's change of the cluster's counters since these were last updated, with what dirty data
    /// was reserved.
    pub fn deltas(&self) -> Deltas {
        self.inner.state.lock().shown_deltas()
    }
    /// Totals of the resource groups, closed ones left out. What is in windows counts as free.
    pub fn totals(&self) -> Totals {
        self.inner.refresh_counters();
        self.totals_of(self.inner.closed_space())
    }
    /// As [`Self::totals`], for displays: what is old is read again by another thread, and is waited for
    /// no longer than [`DISPLAY_WAIT_MAX`].
    pub fn totals_soon(&self) -> Totals {
        if self.inner.are_counters_old() && !self.inner.is_looking.swap(true, Ordering::AcqRel) {
            let (inner, (done, wait)) = (Arc::clone(&self.inner), sync_channel(1));
            let look = std::thread::Builder::new().name("counters".into()).spawn(move || {
                inner.refresh_counters();
                inner.closed_space();
                inner.is_looking.store(false, Ordering::Release);
                let _ = done.send(());
            });
            match look {
                Ok(_) => drop(wait.recv_timeout(DISPLAY_WAIT_MAX)),
                Err(_) => self.inner.is_looking.store(false, Ordering::Release),
            }
        }
        self.totals_of(self.inner.last_closed_space())
    }
    fn totals_of(&self, closed: ClosedSpace) -> Totals {
        let inner = &self.inner;
        let counted = inner.last_counted();
        let (total, _) = inner.total();
        let total = total.saturating_sub(closed.blocks);
        let free = counted.free.saturating_sub(closed.free).min(total);
        let meta = counted.meta.saturating_sub(closed.meta);
        let split = inner.volume.groups.split();
        // Free blocks may become slots where groups are for both.
        let room = if split { meta } else { meta.saturating_add(free) };
        let files_free = room / inner.slot_blocks();
        let available = self.available(free, split.then_some(files_free));
        Totals { blocks: total, free, available, inodes: counted.inodes, files_free }
    }
    /// Counts what groups that are being added have, in the transaction that adds them.
    pub fn count_added(&self, tx: &mut Tx<'_>, data: u64, meta: u64) -> Result<()> {
        let (free, meta) = (Inner::signed(data), Inner::signed(meta));
        self.inner.count(tx, Deltas { free, meta, ..Deltas::default() })
    }
}
