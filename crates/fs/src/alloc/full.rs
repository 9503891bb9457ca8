//! A search for space that found nothing is not repeated at once.
//!
//! On a full pool every page that a program has stored to through a mapping over a hole comes back for a
//! block and finds none; each such search commits, and looks into every group. What one found out
//! holds for the next ones as long as nothing changes here (a free, a reservation that ends, space that is
//! used), and no other node asks for the space lock, which this one holds exclusively, or for a
//! resource group's. It is believed for 250 ms at most: another node can free into a group whose lock
//! this one no longer holds.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_lock::{Local, Mode};

use super::failed_search::{Before, FailedSearch};
use super::inner::Inner;

/// As long as what other nodes have freed may be missed anyway (docs/SEMANTICS.md).
const AGE_MAX: Duration = Duration::from_millis(250);

impl Inner {
    /// This node may have more space than before.
    pub(super) fn note_space(&self) {
        self.full.events.fetch_add(1, Ordering::AcqRel);
    }
    /// Before a search begins.
    pub(super) fn before_search(&self) -> Before {
        #[cfg(test)]
        self.full.searches.fetch_add(1, Ordering::Relaxed);
        self.state_of_space()
    }
    fn state_of_space(&self) -> Before {
        let events = self.full.events.load(Ordering::Acquire);
        Before { events, groups: self.volume.groups.version() }
    }
    /// A search for so much found nothing, with the space lock held exclusively.
    pub(super) fn note_full(&self, data: u64, slots: u64, tenure: Option<u64>, before: Before) {
        let found = FailedSearch { data, slots, at: Instant::now(), tenure, before };
        *self.full.last.lock() = Some(found);
    }
    /// Whether a search for so much would find nothing either.
    pub(super) fn is_known_full(&self, data: u64, slots: u64) -> bool {
        let Some(last) = *self.full.last.lock() else { return false };
        let as_much = data >= last.data && slots >= last.slots;
        if !as_much || last.at.elapsed() > AGE_MAX || last.before != self.state_of_space() {
            return false;
        }
        let Some(lock) = self.share.lock() else { return last.tenure.is_none() };
        let alone = self.locks.try_acquire(lock, Mode::Exclusive, Local::Shared);
        alone.is_some_and(|guard| Some(guard.tenure()) == last.tenure)
    }
}
