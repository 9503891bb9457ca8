//! Many seeds, over all processors.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Display;
use std::ops::{AddAssign, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seeds of one test run: `0..usual`, or what `variable` says, as `FIRST..LAST`.
///
/// # Panics
/// It says something else.
pub fn seeds(variable: &str, usual: u64) -> Range<u64> {
    let Ok(chosen) = std::env::var(variable) else { return 0..usual };
    let range = chosen.split_once("..");
    let parse = |(a, b): (&str, &str)| Some(a.parse().ok()?..b.parse().ok()?);
    range.and_then(parse).unwrap_or_else(|| panic!("{variable}={chosen} is not FIRST..LAST"))
}

/// Runs every seed; the sum of their reports.
///
/// # Panics
/// One of them failed.
pub fn run_all<R, E>(range: Range<u64>, run: impl Fn(u64) -> Result<R, E> + Sync) -> R
where
    R: Default + Send + for<'a> AddAssign<&'a R>,
    E: Display,
{
    let next = AtomicU64::new(range.start);
    let total = Mutex::new(R::default());
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= range.end {
                        return;
                    }
                    match run(seed) {
                        Ok(report) => *total.lock().unwrap() += &report,
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    total.into_inner().unwrap()
}
