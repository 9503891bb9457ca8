//! A start barrier that can be cancelled: no thread waits for one that failed, panicked or could not be
//! started. And how a set of threads is begun and joined.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};

/// For so many parties, which may wait as often as they like.
#[derive(Debug)]
pub(crate) struct StartBarrier {
    parties: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    arrived: usize,
    /// Times that all have arrived.
    rounds: u64,
    cancelled: bool,
}

impl StartBarrier {
    pub fn of(parties: usize) -> Self {
        Self { parties, state: Mutex::default(), changed: Condvar::new() }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits for all parties; whether they came. After [`StartBarrier::cancel`] nobody waits any more.
    #[must_use]
    pub fn wait(&self) -> bool {
        let mut state = self.state();
        if state.cancelled {
            return false;
        }
        state.arrived += 1;
        if state.arrived == self.parties {
            state.arrived = 0;
            state.rounds += 1;
            self.changed.notify_all();
            return true;
        }
        let before = state.rounds;
        while state.rounds == before && !state.cancelled {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.rounds != before
    }
    /// A party cannot come: whoever waits goes on, and [`StartBarrier::wait`] answers no.
    pub fn cancel(&self) {
        self.state().cancelled = true;
        self.changed.notify_all();
    }
    /// Cancels it if this thread panics before that is dropped.
    pub fn cancel_on_panic(&self) -> CancelOnPanic<'_> {
        CancelOnPanic(self)
    }
}

/// Runs each of `works` in a thread of its own; `start` runs in this one and says whether all began,
/// and what else there is to know of that. If a thread cannot be started, the barrier is cancelled.
///
/// # Errors
/// A thread could not be started, failed or panicked, or not all began.
pub(crate) fn on_threads<T: Send, S>(
    barrier: &StartBarrier,
    works: impl Iterator<Item = impl FnOnce() -> Result<T> + Send>,
    start: impl FnOnce() -> (bool, S),
) -> Result<(S, Vec<T>)> {
    std::thread::scope(|scope| {
        let begin = |work| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, work);
            // Those before it wait for nobody who does not come.
            thread.inspect_err(|_| barrier.cancel())
        };
        let workers = works.map(begin).collect::<std::io::Result<Vec<_>>>();
        let workers = workers.context("cannot start another thread")?;
        let (all, started) = start();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            worker.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        // All of them end before the first error is told.
        let ended: Vec<_> = workers.into_iter().map(join).collect();
        let ended = ended.into_iter().collect::<Result<_>>()?;
        ensure!(all, "the threads did not begin");
        Ok((started, ended))
    })
}

/// See [`StartBarrier::cancel_on_panic`].
#[must_use]
pub(crate) struct CancelOnPanic<'a>(&'a StartBarrier);
impl Drop for CancelOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_come_as_often_as_they_like() {
        let barrier = StartBarrier::of(3);
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..3).map(|_| scope.spawn(|| (0..100).all(|_| barrier.wait()))).collect();
            assert!(threads.into_iter().all(|t| t.join().unwrap()));
        });
    }
    #[test]
    fn whoever_waits_for_a_thread_that_panics_is_told() {
        let barrier = StartBarrier::of(3);
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..2).map(|_| scope.spawn(|| barrier.wait())).collect();
            let panics = scope.spawn(|| {
                let _guard = barrier.cancel_on_panic();
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
            assert!(waits.into_iter().all(|t| !t.join().unwrap()));
        });
        assert!(!barrier.wait(), "nor does anybody wait later");
    }
}
