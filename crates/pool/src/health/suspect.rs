//! Members that return garbage: found by bytes whose checksum is wrong on one member and right on
//! others.
//!
//! ```text
//!  sound --8 places--> suspected (in the labels, the log and `status`) --32 places, then a scrub--> failed
//!    ^                    |
//!    +-- a scrub finds nothing wrong
//! ```
//! A place counts once, and only if the member returns garbage there when it is asked again: a
//! block that is read while it is written may look damaged. A member that the pool cannot spare,
//! or that only suspected ones would stand in for, stays in use. File data has no checksums: a member
//! that returns garbage for metadata returns it for file data too, so the pool is better without it.
//!
//! Each node counts for itself. That a member is suspected stands in the labels, so all nodes know it,
//! and whoever opens the pool later ([`crate::pool::Pool::mark_suspects`]). What is healed shows nothing
//! any more. So the label says so before anything is healed, by a read, a scrub, or the recovery of a dead node
//! ([`crate::redundancy`]: `copy_damage`).
//!
//! A suspected member is read last: only for what no other member has. So that it still comes to be
//! failed, each block of metadata that is read is then asked of it as well
//! ([`crate::pool::Pool::ask_suspects`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::ByteOffset;
use parking_lot::Mutex;
use uuid::Uuid;

/// Damaged places from which on a member is suspected.
pub const SUSPECT_AT: usize = 8;
/// Damaged places from which on the pool is scrubbed and a member failed; as many are remembered.
pub const FAIL_AT: usize = 32;

/// Damaged places of each member that this node has met, by its identity: numbers are given again. All
/// epochs of an open pool have the same one.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    /// Whether a member was ever suspected. Reads look at nothing else until then.
    any: AtomicBool,
    places: Mutex<HashMap<Uuid, BTreeSet<u64>>>,
}

impl Suspicion {
    /// Notes a place; whether the member has become suspected by it.
    pub fn note(&self, member: Uuid, at: ByteOffset) -> bool {
        let mut all = self.places.lock();
        let places = all.entry(member).or_default();
        let now = places.len() < FAIL_AT && places.insert(at.0) && places.len() == SUSPECT_AT;
        if now {
            self.any.store(true, Ordering::Relaxed);
        }
        now
    }
    /// How many places there would be of a member with these.
    pub fn count_with(&self, member: Uuid, more: &BTreeSet<u64>) -> usize {
        let all = self.places.lock();
        all.get(&member).map_or(more.len(), |places| places.union(more).count())
    }
    pub fn count(&self, member: Uuid) -> usize {
        self.places.lock().get(&member).map_or(0, BTreeSet::len)
    }
    /// The labels say that a member is suspected.
    pub fn note_marked(&self) {
        self.any.store(true, Ordering::Relaxed);
    }
    /// What this node has met of a member counts no more.
    pub fn forget(&self, member: Uuid) {
        self.places.lock().remove(&member);
    }
    /// Whether any member was ever suspected.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }
}
