//! What a simulation decides instead of chance: for `braid-sim`, nobody else.
//!
//! A run from a seed must be the same each time. So nothing of a pool may depend on threads of its
//! own or on how long a pause is, and devices are found where the simulation has them.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use braid_device::Device;
use braid_format::Bytes;
use braid_format::label::Member;
use parking_lot::Mutex;
use uuid::{Builder, Uuid};

use crate::error::PoolError;
use crate::maintenance::Progress;
use crate::{Inner, Pool, discover};

/// Chunks that a filler or mover has in flight.
const CREW: usize = 4;

/// Where a pause is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// The thread holds nothing of the pool: other threads of its node may change the epoch.
    Free,
    /// A request is under way.
    Inside,
}

/// What a simulation does for a pool.
pub trait Simulation: Send + Sync {
    /// Instead of sleeping.
    fn pause(&self, pause: Pause);
    /// The device of a member that another node has let in.
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>>;
}

/// Opens the device of a member.
pub(crate) type Opener = Box<dyn Fn(&Member) -> Option<Arc<dyn Device>> + Send + Sync>;

/// Set at most once, before the pool is used.
#[derive(Default)]
pub(crate) struct Simulated(OnceLock<Arc<dyn Simulation>>);

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Simulated").field(&self.0.get().is_some()).finish()
    }
}

/// What gives bits in place of chance.
pub type Source = Box<dyn Fn() -> u128>;

thread_local! {
    static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
}

/// An identity, a change's or a nonce's bits: of two changes of one epoch it decides which counts.
pub(crate) fn fresh() -> Uuid {
    let drawn = SOURCE.try_with(|s| s.borrow().as_ref().map(|source| source())).ok().flatten();
    let of = |bits: u128| Builder::from_random_bytes(bits.to_le_bytes()).into_uuid();
    drawn.map_or_else(Uuid::new_v4, of)
}

/// While it is held, this thread's identities come from a [`Source`].
#[derive(Debug)]
#[must_use]
pub struct Drawn(PhantomData<*const ()>);

impl Drawn {
    /// From `source`.
    pub fn from(source: Source) -> Self {
        SOURCE.with(|s| *s.borrow_mut() = Some(source));
        Self(PhantomData)
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        SOURCE.try_with(|s| s.borrow_mut().take()).ok();
    }
}

/// From now on `pool` does all in the threads that call it, and sleeps nowhere.
pub fn simulate(pool: &Pool, simulation: Arc<dyn Simulation>) {
    pool.0.simulated.0.set(simulation).ok();
}

impl Inner {
    /// Waits a little.
    pub(crate) fn pause(&self, length: Duration, pause: Pause) {
        match self.simulated.0.get() {
            Some(simulation) => simulation.pause(pause),
            None => std::thread::sleep(length),
        }
    }

    /// The device of a member that another node has let in.
    pub(crate) fn open_member(&self, member: &Member) -> Option<Arc<dyn Device>> {
        match self.simulated.0.get() {
            Some(simulation) => simulation.open(member),
            None => discover::open_member(member),
        }
    }

    /// As [`Inner::open_member`], for later.
    pub(crate) fn opener(&self) -> Opener {
        match self.simulated.0.get().cloned() {
            Some(simulation) => Box::new(move |member| simulation.open(member)),
            None => Box::new(discover::open_member),
        }
    }

    /// Does `each` of `all`, several at a time, and says after each how far that is, by its `len`;
    /// `false`: `pace` has ended it, or a panic, which has been reported in its thread.
    ///
    /// # Errors
    /// The first of `each`, which ends it too.
    pub(crate) fn by_crew<T: Sync>(
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
        let whole = self.together(CREW, || {
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
            Some(error) => Err(error),
            None => Ok(whole && !stopped.into_inner()),
        }
    }

    /// Runs `work` in `crew` threads until all have ended; `false`: one has panicked.
    fn together(&self, crew: usize, work: impl Fn() + Sync) -> bool {
        if self.simulated.0.get().is_some() {
            work();
            return true;
        }
        std::thread::scope(|s| {
            let crew: Vec<_> = (0..crew).map(|_| s.spawn(&work)).collect();
            // A panic has been reported in its thread.
            let ends: Vec<bool> = crew.into_iter().map(|t| t.join().is_ok()).collect();
            ends.into_iter().all(|whole| whole)
        })
    }
}
