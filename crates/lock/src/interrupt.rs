//! Ending the waits of a thread from outside: of a request whose program has been killed, of a recovery
//! on a node that leaves.
//!
//! A thread that may be interrupted is under an [`Interrupt`] ([`Interrupt::scope`]), one piece of work
//! after the other, each with a number ([`Interrupt::begin`]). Who trips it names the number, so that
//! the next piece is not hit. Only waits for cluster locks end, with
//! [`LockError::Interrupted`](crate::LockError::Interrupted), and only where nothing has been changed yet:
//! what is changed in a transaction has no way back, so nothing is interrupted in one ([`Uninterruptible`]).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

thread_local! {
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
    static HELD: Cell<u32> = const { Cell::new(0) };
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a wait is one for other nodes.
type ForOthers = Arc<dyn Fn() -> bool + Send + Sync>;

/// Waits for locks, of threads that have them counted, each with a number of its own.
static WAITS: Mutex<Vec<(u64, ForOthers)>> = Mutex::new(Vec::new());

type Waker = Arc<dyn Fn() + Send + Sync>;

/// The waits of one thread. Clones are the same.
#[derive(Clone)]
pub struct Interrupt(Arc<Shared>);

struct Shared {
    /// The piece of work under way; 0: none that may be interrupted.
    current: AtomicU64,
    /// The same, also once it is not to be interrupted any more.
    under_way: AtomicU64,
    /// Whose it is: a number of its owner's choice.
    whose: AtomicU32,
    tripped: AtomicU64,
    waker: Mutex<Option<Waker>>,
    /// The first change ends it for the piece of work.
    strict: bool,
    /// What this is a part of.
    whole: Option<Interrupt>,
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Interrupt").field(&self.current()).finish()
    }
}

impl Interrupt {
    /// For pieces of work that are never interrupted once they have changed something.
    pub fn of_requests() -> Self {
        Self::new(true)
    }
    /// For one piece of work in many steps, which may end between any two of them. It begins now, and ends
    /// with its scope.
    pub fn of_steps() -> Self {
        let interrupt = Self::new(false);
        interrupt.begin(1, 0);
        interrupt
    }
    /// As [`Interrupt::of_steps`], for a part of what this thread does: what ends the whole ends the part.
    pub fn within_current() -> Self {
        let whole = CURRENT.with_borrow(Clone::clone);
        let mut shared = Self::shared(false);
        shared.whole = whole;
        let interrupt = Self(Arc::new(shared));
        interrupt.begin(1, 0);
        interrupt
    }
    fn new(strict: bool) -> Self {
        Self(Arc::new(Self::shared(strict)))
    }
    fn shared(strict: bool) -> Shared {
        Shared {
            current: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            whose: AtomicU32::new(0),
            tripped: AtomicU64::new(0),
            waker: Mutex::default(),
            strict,
            whole: None,
        }
    }
    /// This thread's waits are under it until the scope is dropped, which ends the piece of work under way.
    pub fn scope(&self) -> Scope {
        Scope { before: CURRENT.replace(Some(self.clone())) }
    }
    /// A piece of work begins, of `whose`, with a number that is not 0 and of no other piece.
    pub fn begin(&self, number: u64, whose: u32) {
        self.0.whose.store(whose, Ordering::Relaxed);
        self.0.under_way.store(number, Ordering::SeqCst);
        self.0.current.store(number, Ordering::SeqCst);
    }
    /// It has ended.
    pub fn end(&self) {
        self.see_through();
        self.0.under_way.store(0, Ordering::SeqCst);
    }
    /// It is not to be interrupted any more.
    fn see_through(&self) {
        self.0.current.store(0, Ordering::SeqCst);
    }
    /// The piece of work under way, whether it may be interrupted or not; 0: none.
    pub fn under_way(&self) -> u64 {
        self.0.under_way.load(Ordering::SeqCst)
    }
    /// The piece of work under way; 0: none that may be interrupted.
    pub fn current(&self) -> u64 {
        self.0.current.load(Ordering::SeqCst)
    }
    /// Whose that is.
    pub fn whose(&self) -> u32 {
        self.0.whose.load(Ordering::SeqCst)
    }
    /// Whether these are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Ends the waits of the piece of work with this number, if it is under way.
    pub fn trip(&self, number: u64) {
        self.0.tripped.store(number, Ordering::SeqCst);
        let waker = self.0.waker.lock().clone();
        if let Some(waker) = waker {
            waker();
        }
    }
    /// Ends the waits of the piece of work under way.
    pub fn trip_current(&self) {
        self.trip(self.current());
    }
    /// This, and what it is a part of.
    fn and_wholes(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |part| part.0.whole.as_ref())
    }
    fn is_tripped(&self) -> bool {
        let current = self.current();
        current != 0 && self.0.tripped.load(Ordering::SeqCst) == current
            || self.0.whole.as_ref().is_some_and(Self::is_tripped)
    }
}

/// See [`Interrupt::scope`].
pub struct Scope {
    before: Option<Interrupt>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(over) = CURRENT.replace(self.before.take()) {
            over.end();
        }
    }
}

/// While it is held this thread is not interrupted: it changes something. What is one piece of work
/// ([`Interrupt::of_requests`]) is not interrupted any more afterwards either.
#[must_use]
pub struct Uninterruptible(std::marker::PhantomData<*const ()>);

impl Uninterruptible {
    /// Begins.
    pub fn begin() -> Self {
        HELD.set(HELD.get() + 1);
        CURRENT.with_borrow(|current| {
            if let Some(interrupt) = current.as_ref().filter(|i| i.0.strict) {
                interrupt.see_through();
            }
        });
        Self(std::marker::PhantomData)
    }
}

impl Drop for Uninterruptible {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
    }
}

/// As [`Interrupt::begin`] of what this thread is under, if it is under anything.
pub fn begin(number: u64, whose: u32) {
    CURRENT.with_borrow(|current| {
        if let Some(interrupt) = current {
            interrupt.begin(number, whose);
        }
    });
}

/// As [`Interrupt::end`] of what this thread is under.
pub fn end() {
    CURRENT.with_borrow(|current| {
        if let Some(interrupt) = current {
            interrupt.end();
        }
    });
}

/// Whether this thread is to wait no longer.
pub fn is_interrupted() -> bool {
    HELD.get() == 0
        && CURRENT.with_borrow(|current| current.as_ref().is_some_and(Interrupt::is_tripped))
}

/// Whether waits of this thread for locks count in [`others_are_waited_for`] from now on.
pub fn count_waits(count: bool) {
    COUNTED.set(count);
}

/// Whether a thread waits for a lock that other nodes have or want, of the threads whose waits count. Who
/// waits for a thread or a device of this node alone does not count.
pub fn others_are_waited_for() -> bool {
    let waits: Vec<ForOthers> = WAITS.lock().iter().map(|(_, wait)| wait.clone()).collect();
    waits.iter().any(|for_others| for_others())
}

/// This thread waits for a lock until the answer is dropped; `for_others` says, at any time until then,
/// whether it waits for other nodes. `None`: its waits do not count.
pub fn counted_wait(for_others: impl Fn() -> bool + Send + Sync + 'static) -> Option<CountedWait> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    COUNTED.get().then(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WAITS.lock().push((number, Arc::new(for_others)));
        CountedWait(number)
    })
}

/// See [`counted_wait`].
#[must_use]
pub struct CountedWait(u64);

impl Drop for CountedWait {
    fn drop(&mut self) {
        WAITS.lock().retain(|(number, _)| *number != self.0);
    }
}

/// Has `waker` called when this thread is interrupted, until the answer is dropped. Who waits looks at
/// [`is_interrupted`] after this call, before it sleeps.
pub(crate) fn wake_by(waker: impl FnOnce() -> Waker) -> Option<Waking> {
    let interrupt = CURRENT.with_borrow(Clone::clone).filter(|i| i.current() != 0)?;
    let waker = waker();
    for one in interrupt.and_wholes() {
        *one.0.waker.lock() = Some(waker.clone());
    }
    Some(Waking(interrupt))
}

/// See [`wake_by`].
pub(crate) struct Waking(Interrupt);

impl Drop for Waking {
    fn drop(&mut self) {
        for one in self.0.and_wholes() {
            *one.0.waker.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_piece_of_work_is_interrupted_and_only_before_it_changes_anything() {
        assert!(!is_interrupted());
        for strict in [true, false] {
            let interrupt = Interrupt::new(strict);
            let _scope = interrupt.scope();
            interrupt.begin(4, 1);
            interrupt.trip(3);
            assert!(!is_interrupted());
            interrupt.trip(4);
            assert!(is_interrupted());
            let held = Uninterruptible::begin();
            assert!(!is_interrupted() && interrupt.under_way() == 4);
            drop(held);
            assert_eq!(is_interrupted(), !strict);
            interrupt.begin(6, 1);
            assert!(!is_interrupted());
            interrupt.trip(6);
            assert!(is_interrupted());
            interrupt.end();
            assert!(!is_interrupted() && interrupt.under_way() == 0);
        }
        assert!(!is_interrupted());
    }
}
