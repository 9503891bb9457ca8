//! Long work on a pool, done by several threads at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_format::Bytes;
use parking_lot::Mutex;

use crate::cluster::{BreakOff, BreakOffScope};
use crate::error::PoolError;
use crate::pace::Progress;
use crate::pool::PoolState;

/// Chunks that a filler or mover has in flight.
const THREADS: usize = 4;

impl PoolState {
    /// Does `each` of `all`, several at a time, and says after each how far that is, by its `len`;
    /// `false`: `pace` or a [`BreakOff`] has ended it, or a panic, which has been reported in its thread.
    ///
    /// # Errors
    /// The first of `each`, which ends it too.
    pub(crate) fn in_parallel<T: Sync>(
        &self,
        all: &[T],
        len: impl Fn(&T) -> Bytes + Sync,
        each: impl Fn(&T) -> Result<(), PoolError> + Sync,
        pace: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<bool, PoolError> {
        let total = Bytes(all.iter().map(|one| len(one).0).sum());
        let (done, next) = (AtomicU64::new(0), AtomicU64::new(0));
        let stopped = AtomicBool::new(false);
        let error: Mutex<Option<PoolError>> = Mutex::new(None);
        let break_off = BreakOff::of_thread();
        let whole = self.on_threads(THREADS, || {
            let _scope = BreakOffScope::of(break_off.clone());
            while !stopped.load(Ordering::Relaxed) {
                let i = Bytes(next.fetch_add(1, Ordering::Relaxed)).to_usize();
                let Some(one) = all.get(i) else { return };
                if let Err(e) = each(one) {
                    error.lock().get_or_insert(e);
                    stopped.store(true, Ordering::Relaxed);
                    return;
                }
                let len = len(one).0;
                let done = Bytes(done.fetch_add(len, Ordering::Relaxed) + len);
                if !pace(Progress { done, total }) {
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        });
        match error.into_inner() {
            Some(PoolError::BrokenOff) => Ok(false),
            Some(error) => Err(error),
            None => Ok(whole && !stopped.into_inner()),
        }
    }

    /// Runs `work` in `threads` threads until all have ended; `false`: one has panicked.
    fn on_threads(&self, threads: usize, work: impl Fn() + Sync) -> bool {
        if self.simulated.get().is_some() {
            work();
            return true;
        }
        std::thread::scope(|s| {
            let start = |_| std::thread::Builder::new().spawn_scoped(s, &work).ok();
            let threads: Vec<_> = (0..threads).filter_map(start).collect();
            if threads.is_empty() {
                // No thread can be started: this one does it.
                work();
            }
            // A panic has been reported in its thread.
            let ends: Vec<bool> = threads.into_iter().map(|t| t.join().is_ok()).collect();
            ends.into_iter().all(|whole| whole)
        })
    }
}
