//! Waiting for what another thread or process does.

use std::time::{Duration, Instant};

/// How long [`wait_until`] waits: far longer than anything takes on a busy machine, so that only what
/// never comes fails a test.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks, which may start a process each; longer, the longer it takes.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Looks again and again until `condition` holds; how long that took.
///
/// # Panics
/// If it does not hold within [`PATIENCE`]: with `what`, the condition in words.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} not yet: {what}");
        let pause = (begun.elapsed() / 16).clamp(PAUSE_MIN, PAUSE_MAX);
        std::thread::sleep(pause);
    }
    begun.elapsed()
}
