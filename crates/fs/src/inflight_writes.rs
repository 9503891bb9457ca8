//! Direct writes under way, and which of them their programs need not wait for.
//!
//! A large write through the page cache's interface (no `O_DIRECT`, no `O_SYNC`) may be answered as
//! soon as nothing but a device can refuse it any more: its blocks are claimed, its range is
//! entered here, and the file is as long as it will be. The thread that answered goes on with it,
//! and holds the inode's lock: everybody who wants that lock exclusively, also this node's
//! demotion, waits for the bytes. Threads that share the lock (readers, page fills, other direct
//! writers, fsync) wait here, for the ranges that they touch.
//!
//! A thread enters a range while it holds the file's `change`. So a thread that holds `change` and
//! sees nobody in a range has that range alone. Nobody waits here while holding `change`, because a
//! write that ends needs it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_format::InodeNo;
use braid_pool::device::tasks::{self, Awaited};
use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::file_data::FileData;
use crate::inode::Inode;

/// Bytes of answered writes under way on a node, at most: enough to keep devices busy that are a
/// network away (2 GB/s at 10 ms).
const ANSWERED_MAX: u64 = 24 << 20;

/// The direct writes of a node.
#[derive(Debug, Default)]
pub(crate) struct InflightWrites {
    /// How many: mostly none, and then nobody need look further.
    count: AtomicUsize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: Vec<UnderWay>,
    /// Bytes of those that are answered.
    answered: u64,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    ino: InodeNo,
    /// Bytes of the file.
    range: Range<u64>,
}

impl UnderWay {
    fn is_in(&self, ino: InodeNo, range: &Range<u64>) -> bool {
        self.ino == ino && self.range.start < range.end && range.start < self.range.end
    }
}

/// A write under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    all: &'a InflightWrites,
    number: u64,
    /// Whose holes it fills, and bytes of these.
    fills: Option<(&'a FileData, u64)>,
    answered: u64,
}

impl InflightWrites {
    /// Enters a range that nobody is in. The file's `change` is held.
    pub fn begin(&self, ino: InodeNo, range: Range<u64>) -> Ticket<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.push(UnderWay { number, ino, range });
        self.count.fetch_add(1, Ordering::SeqCst);
        Ticket { all: self, number, fills: None, answered: 0 }
    }

    /// Whether somebody writes in `range`.
    pub fn is_in(&self, ino: InodeNo, range: &Range<u64>) -> bool {
        self.count.load(Ordering::SeqCst) > 0
            && self.state.lock().under_way.iter().any(|w| w.is_in(ino, range))
    }

    /// Waits for all writes in `range` that have begun. No `change` is held.
    pub fn wait_for(&self, ino: InodeNo, range: &Range<u64>) {
        self.settle(|w| w.is_in(ino, range));
    }

    /// Waits for writes that have begun, and for none that begins later. So a stream of writes
    /// keeps nobody waiting for ever.
    fn settle(&self, which: impl Fn(&UnderWay) -> bool) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let before = state.next;
        while state.under_way.iter().any(|w| w.number < before && which(w)) {
            let _waits = tasks::wait(Awaited::Request);
            self.ended.wait(&mut state);
        }
    }

    /// Waits for all writes to a file that have begun.
    ///
    /// # Errors
    /// One that was answered is lost, and nobody has heard of it yet.
    pub fn settle_file(&self, inode: &Inode) -> Result<(), Error> {
        self.settle(|w| w.ino == inode.ino);
        inode.data.lost.lock().take().map_or(Ok(()), Err)
    }

    /// Waits for all writes that have begun.
    pub fn settle_all(&self) {
        self.settle(|_| true);
    }
}

impl<'a> Ticket<'a> {
    /// So many bytes go to holes of the file: they count as its own until the ticket is dropped.
    pub fn fill(&mut self, file: &'a FileData, bytes: u64) {
        debug_assert!(self.fills.is_none(), "once");
        file.inflight.fetch_add(bytes, Ordering::AcqRel);
        self.fills = Some((file, bytes));
    }
    /// Whether the program may be told that `len` bytes are written. If so they count until the
    /// ticket is dropped. `room`: how much more may become dirty, as what a device refuses then does.
    pub fn may_answer(&mut self, len: u64, room: u64) -> bool {
        let mut state = self.all.state.lock();
        if state.answered + len > ANSWERED_MAX.min(room) {
            return false;
        }
        state.answered += len;
        self.answered += len;
        true
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // What is linked is in the state by now.
        if let Some((file, bytes)) = self.fills {
            file.inflight.fetch_sub(bytes, Ordering::AcqRel);
        }
        let mut state = self.all.state.lock();
        state.under_way.retain(|w| w.number != self.number);
        state.answered -= self.answered;
        self.all.count.fetch_sub(1, Ordering::SeqCst);
        self.all.ended.notify_all();
    }
}
