//! What `braid-sim`, and nothing else, decides for locks: the time, pauses, nonces.
//!
//! A run from a seed must be the same each time. So in a simulation a lock manager starts no threads: who waits
//! pauses instead of sleeping, and the simulation calls [`crate::LockManager::demote_due`] where demoters would
//! work. Whether there is one is said of each thread; elsewhere this is the system's clock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a simulation does for a thread of a node.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// Others go on for a while.
    pub pause: fn(),
    /// Whether the node that this thread is part of has died: it waits for nothing any more.
    pub has_ended: fn() -> bool,
}

#[derive(Clone, Copy)]
struct Simulated {
    now: Duration,
    hooks: Hooks,
    drawn: u64,
}

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

fn simulated() -> Option<Simulated> {
    SIMULATED.try_with(Cell::get).ok().flatten()
}

/// Now: of the simulation, where there is one.
pub fn now() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    simulated().map_or_else(Instant::now, |s| *ORIGIN.get_or_init(Instant::now) + s.now)
}

/// How long that is ago.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Whether this thread is part of a simulation.
pub fn is_simulated() -> bool {
    simulated().is_some()
}

/// Others go on for a while; however long is the simulation's choice.
pub(crate) fn pause(length: Duration) {
    match simulated() {
        Some(s) => (s.hooks.pause)(),
        None => std::thread::sleep(length),
    }
}

/// Whether this thread's node has died in a simulation.
pub fn has_ended() -> bool {
    simulated().is_some_and(|s| (s.hooks.has_ended)())
}

/// Random bits, in a simulation never the same twice, and in each run the same.
pub(crate) fn draw() -> u64 {
    let Some(s) = simulated() else { return uuid::Uuid::new_v4().as_u64_pair().0 };
    let drawn = s.drawn + 1;
    SIMULATED.set(Some(Simulated { drawn, ..s }));
    // Far from each other, as random ones are.
    drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// While it is held, this thread is part of a simulation.
#[derive(Debug)]
#[must_use]
pub struct SimulationScope(PhantomData<*const ()>);

impl SimulationScope {
    /// Of which this thread is part from now on.
    pub fn of(hooks: Hooks) -> Self {
        SIMULATED.set(Some(Simulated { now: Duration::ZERO, hooks, drawn: 0 }));
        Self(PhantomData)
    }
}

/// In the simulation that this thread is part of it is so late now.
pub fn set_time(now: Duration) {
    if let Some(s) = simulated() {
        SIMULATED.set(Some(Simulated { now, ..s }));
    }
}

impl Drop for SimulationScope {
    fn drop(&mut self) {
        SIMULATED.try_with(Cell::take).ok();
    }
}
