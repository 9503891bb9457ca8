//! Waits that a signal may break off: SETLKW is the only one. The INTERRUPT travels on its own and
//! may be read before the request it names has got here, so the latest unknown ones are kept.

use std::collections::{HashMap, HashSet, VecDeque};

use parking_lot::Mutex;

use braid_fs::Canceller;

/// Interrupts of unknown requests that are remembered. Most of them are for requests that cannot
/// be interrupted; only those that overtook their request matter. In a storm of signals those are many, as
/// requests stand in line for a thread.
const EARLY_MAX: usize = 16_384;

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, Canceller>,
    early: HashSet<u64>,
    /// Which of them came first.
    order: VecDeque<u64>,
    closed: bool,
}

/// The waits of a mount.
#[derive(Debug, Default)]
pub struct Interrupts {
    state: Mutex<State>,
}

/// A registered wait; gone when dropped.
#[derive(Debug)]
pub struct Wait<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
    /// Given to the call that waits.
    pub canceller: Canceller,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.interrupts.state.lock().waiting.remove(&self.unique);
    }
}

impl Interrupts {
    /// Registers a wait; it may already be interrupted.
    pub fn enter(&self, unique: u64) -> Wait<'_> {
        let canceller = Canceller::new();
        let mut state = self.state.lock();
        if state.closed || state.early.contains(&unique) {
            canceller.cancel();
        }
        state.waiting.insert(unique, canceller.clone());
        Wait { interrupts: self, unique, canceller }
    }
    /// A signal wants `unique` ended.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(canceller) = state.waiting.get(&unique).cloned() {
            drop(state);
            canceller.cancel();
            return;
        }
        if state.order.len() == EARLY_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.early.remove(&oldest);
        }
        if state.early.insert(unique) {
            state.order.push_back(unique);
        }
    }
    /// The mount is gone: ends all waits, now and from now on.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting: Vec<_> = state.waiting.values().cloned().collect();
        drop(state);
        for canceller in waiting {
            canceller.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_reach_waits_early_and_late() {
        let interrupts = Interrupts::default();
        interrupts.interrupt(4);
        assert!(interrupts.enter(4).canceller.is_cancelled());
        let wait = interrupts.enter(6);
        assert!(!wait.canceller.is_cancelled());
        interrupts.interrupt(6);
        assert!(wait.canceller.is_cancelled());
        let other = interrupts.enter(8);
        interrupts.close();
        assert!(other.canceller.is_cancelled());
        assert!(interrupts.enter(10).canceller.is_cancelled());
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let interrupts = Interrupts::default();
        for unique in 0..50_000 {
            interrupts.interrupt(unique);
        }
        let state = interrupts.state.lock();
        assert_eq!((state.early.len(), state.order.len()), (EARLY_MAX, EARLY_MAX));
        drop(state);
        assert!(interrupts.enter(49_999).canceller.is_cancelled());
        assert!(!interrupts.enter(0).canceller.is_cancelled());
    }
}
