//! Waits for other nodes that end without what they wait for.
//!
//! A thread may wait for a region that another node holds, or until all nodes use an epoch. If that node is dead and
//! nobody can fence it, nothing ends the wait but the operator. Such waits are *broken off*, with
//! [`PoolError::BrokenOff`]:
//!
//! * of work that was told to stop: what a thread waits for under a [`BreakOff`], at once;
//! * of a node that leaves: whatever it waits for, but each wait lasts for a time first
//!   ([`crate::Pool::leave_within`]). Once one was broken off no other lasts at all, and the node cannot leave in order.
//!
//! Only waits are broken off, not I/O. The thread has not begun what it waited to do. What it had done before is as after
//! a crash of the node at that place, which recovery makes whole.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::error::PoolError;

thread_local! {
    static CURRENT: RefCell<Option<BreakOff>> = const { RefCell::new(None) };
}

/// When the waits of threads under it are broken off. Clones are the same.
#[derive(Clone)]
pub struct BreakOff(Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for BreakOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BreakOff").field(&self.is_due()).finish()
    }
}

impl BreakOff {
    /// Once `is_due`, which is asked several times a second and must not wait.
    pub fn when(is_due: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_due))
    }
    /// This thread's waits are under it, and under no other, until the answer is dropped.
    pub fn scope(&self) -> BreakOffScope {
        BreakOffScope::of(Some(self.clone()))
    }
    /// What this thread's waits are under.
    pub(crate) fn of_thread() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }
    fn is_due(&self) -> bool {
        (self.0)()
    }
}

/// See [`BreakOff::scope`].
#[must_use]
#[derive(Debug)]
pub struct BreakOffScope {
    before: Option<BreakOff>,
    _of_this_thread: PhantomData<*const ()>,
}

impl BreakOffScope {
    /// As it is in another thread.
    pub(crate) fn of(current: Option<BreakOff>) -> Self {
        Self { before: CURRENT.replace(current), _of_this_thread: PhantomData }
    }
}

impl Drop for BreakOffScope {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// Whether the node leaves.
#[derive(Debug, Default)]
pub(crate) struct Leave(RwLock<Option<Arc<Leaving>>>);

/// The node leaves.
#[derive(Debug)]
struct Leaving {
    since: Instant,
    /// How long each wait may last.
    most: Duration,
    /// One has lasted longer.
    broken: AtomicBool,
}

/// A wait of this thread for other nodes. It begins when it is first asked.
#[derive(Debug)]
pub struct OthersWait<'p> {
    leave: &'p Leave,
    own: Option<BreakOff>,
    begun: Cell<Option<Instant>>,
}

impl OthersWait<'_> {
    /// Whether it is broken off.
    pub fn is_over(&self) -> bool {
        if self.own.as_ref().is_some_and(BreakOff::is_due) {
            return true;
        }
        let now = Instant::now();
        let begun = self.begun.get().unwrap_or(now);
        self.begun.set(Some(begun));
        let Some(leaving) = self.leave.0.read().clone() else { return false };
        if leaving.broken.load(Ordering::Acquire) {
            return true;
        }
        if now.saturating_duration_since(begun.max(leaving.since)) < leaving.most {
            return false;
        }
        if !leaving.broken.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "this node leaves, and another node keeps it waiting for longer than a dead one is fenced: it waits no more"
            );
        }
        true
    }
    /// The same as an error.
    ///
    /// # Errors
    /// [`PoolError::BrokenOff`].
    pub(crate) fn check(&self) -> Result<(), PoolError> {
        if self.is_over() { Err(PoolError::BrokenOff) } else { Ok(()) }
    }
}

impl Leave {
    /// A wait of this thread for other nodes.
    pub fn others_wait(&self) -> OthersWait<'_> {
        OthersWait { leave: self, own: BreakOff::of_thread(), begun: Cell::new(None) }
    }
    /// From now on no wait for other nodes lasts longer than `most`, until the node has left.
    pub fn begin(&self, most: Duration) {
        let broken = AtomicBool::new(false);
        let leaving = Leaving { since: Instant::now(), most, broken };
        *self.0.write() = Some(Arc::new(leaving));
    }
    /// The node has left: waits have no bound of their own any more.
    pub fn has_left(&self) {
        *self.0.write() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_of_a_threads_scopes_counts() {
        let due = Arc::new(AtomicBool::new(false));
        let (of_outer, never) = (due.clone(), BreakOff::when(|| false));
        let outer = BreakOff::when(move || of_outer.load(Ordering::Acquire));
        let is_due = || BreakOff::of_thread().map(|current| current.is_due());
        assert_eq!(is_due(), None);
        let scope = outer.scope();
        assert_eq!(is_due(), Some(false));
        due.store(true, Ordering::Release);
        assert_eq!(is_due(), Some(true));
        let inner = never.scope();
        assert_eq!(is_due(), Some(false));
        drop(inner);
        assert_eq!(is_due(), Some(true));
        assert_eq!(std::thread::spawn(|| BreakOff::of_thread().is_some()).join().ok(), Some(false));
        drop(scope);
        assert_eq!(is_due(), None);
    }
}
