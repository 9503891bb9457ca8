//! What the file system does when a lock is given up ([`GlockOps`]), and what that may wait for.

use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::LockNo;

use super::fills::ToDrop;
use crate::Mode;

/// What a demotion left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Demoted {
    /// A program here has the file open: recorded in the lock as an opener.
    pub opened: bool,
    /// When contents were last changed under concurrent holds as far as the dinode does not say so,
    /// nanoseconds since 1970 (0: it says all). Kept in the record: from an exclusive hold as it is,
    /// from a concurrent one if it is the latest. `None`: nothing is known here, what stands stays.
    pub written: Option<u64>,
}

/// The caches under a lock could not be made stable: the node must withdraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoteFailed;

/// What giving a lock up may wait for. Each kind has demoters of its own: what another lock's demotion
/// waits for (the kernel's pages, which may need space) may in turn need one of a later kind from a
/// node whose demoters of the earlier kinds all wait likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemotionWaits {
    /// Pages that a program has stored to through a mapping, and that the kernel must write back: as long as
    /// the kernel, and programs that go on storing, take. One program's many files do not hold up the rest.
    MappedPages,
    /// The kernel, and through it any lock of the kinds below.
    Anything,
    /// Locks of which giving up waits for devices only.
    Locks,
    /// Nothing but devices.
    Devices,
}

impl DemotionWaits {
    pub(super) const ALL: [Self; 4] =
        [Self::MappedPages, Self::Anything, Self::Locks, Self::Devices];

    /// Threads for this kind, where there are `many` for those that wait for the kernel.
    pub(super) fn demoters(self, many: usize) -> usize {
        match self {
            Self::MappedPages | Self::Anything => many,
            Self::Locks | Self::Devices => 1,
        }
    }
    /// In its threads' names, which have 15 characters.
    pub(super) fn letter(self) -> char {
        match self {
            Self::MappedPages => 'm',
            Self::Anything => 'a',
            Self::Locks => 'l',
            Self::Devices => 'd',
        }
    }
}

/// A lock that is being given up, or in part.
#[derive(Clone, Copy)]
pub struct Demoting<'a> {
    /// Which.
    pub lock: LockNo,
    /// What is held.
    pub from: Mode,
    /// What is kept.
    pub to: Mode,
    /// What becomes of the kernel's pages under it.
    pub pages: &'a dyn PageDrops,
}

/// In which order the kernel's pages are dropped under a lock that is being given up, and which page fills are
/// let in meanwhile: see `super::fills`.
pub trait PageDrops {
    /// What the kernel is to drop now. Fills that hold that up are let in until the next call. `None`: it has
    /// nothing any more, and nothing is filled. `unbegun`: the bytes (from, to) of pages whose fills wait for a thread;
    /// it is called with the lock's mutex held, and does not block.
    fn next(&self, unbegun: &dyn Fn() -> Vec<(u64, u64)>) -> Option<ToDrop>;
    /// Does what any fill may hold up.
    fn with_all_fills(&self, f: &mut dyn FnMut());
}

/// Where no fill comes, or none may be let in.
#[derive(Debug, Default)]
pub struct NoFills(AtomicBool);

impl PageDrops for NoFills {
    fn next(&self, _: &dyn Fn() -> Vec<(u64, u64)>) -> Option<ToDrop> {
        (!self.0.swap(true, Ordering::Relaxed)).then_some(ToDrop::All)
    }
    fn with_all_fills(&self, f: &mut dyn FnMut()) {
        f();
    }
}

/// What the file system does when a lock is given up.
pub trait GlockOps: Send + Sync {
    /// Called when a record was read, or written, that gives this node more of the lock than it
    /// had, before anybody is let in. The record is not durable yet. Does not block: the lock's
    /// mutex is held.
    fn granted(&self, lock: LockNo, mode: Mode) {
        let _ = (lock, mode);
    }
    /// Called on a demotion thread, after users incompatible with `what.to` have drained. On return
    /// `Ok`: nothing dirty remains under the lock, all of it is stable; if `what.to` is
    /// [`Mode::Unlocked`] nothing is cached. It may be called again for the same demotion.
    ///
    /// The kernel's pages are dropped as `what.pages` says, all of them at first.
    ///
    /// # Errors
    /// The lock is then kept and the manager withdraws.
    fn demote(&self, what: &Demoting<'_>) -> Result<Demoted, DemoteFailed>;
    /// What giving this lock up may wait for.
    fn demotion_waits(&self, lock: LockNo) -> DemotionWaits {
        let _ = lock;
        DemotionWaits::Anything
    }
    /// Giving this lock up takes no longer than a change of metadata: no contents are to be written, and no program
    /// has the file open, so the kernel has nothing to write back. Other locks may wait for it, therefore. Does not block.
    fn demotes_soon(&self, lock: LockNo) -> bool {
        self.demotion_waits(lock) == DemotionWaits::Anything
    }
    /// Another node says that something that waits here under the lock is free. May be wrong. Does not block.
    fn your_turn(&self, lock: LockNo) {
        let _ = lock;
    }
    /// Called after the last [`Self::demote`] to [`Mode::Unlocked`], when nobody uses the lock and
    /// nobody, fills included, is let in any more: forgets what was cached under it. Does not block.
    fn forget(&self, lock: LockNo) {
        let _ = lock;
    }
}
