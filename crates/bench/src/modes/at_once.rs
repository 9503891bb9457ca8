//! Threads that begin at one moment, each with something of its own, and what they did together.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::engine::{Latency, StartBarrier, on_threads};
use crate::report::{Parameters, Report, Row};
use crate::statistics::float;

/// What a thread did: operations, how long each took, when it began and when it was through.
pub(crate) type ThreadResult = (usize, Latency, Instant, Instant);

/// `work` on each of `items`, by a thread of its own: what each of them did.
///
/// # Errors
/// The first error of `work`, after all have ended; a thread could not be started.
pub(crate) fn all_at_once<T: Sync>(
    items: &[T],
    work: impl Fn(&T, &mut Latency) -> Result<usize> + Sync,
) -> Result<Vec<ThreadResult>> {
    let start = &StartBarrier::of(items.len() + 1);
    let work = &work;
    let works = items.iter().map(|item| {
        move || {
            let _guard = start.cancel_on_panic();
            let mut latency = Latency::default();
            let all = start.wait();
            let began = Instant::now();
            let done = if all { work(item, &mut latency)? } else { 0 };
            Ok((done, latency, began, Instant::now()))
        }
    });
    let ((), results) = on_threads(start, works, || (start.wait(), ()))?;
    Ok(results)
}

/// One more repeat of a row: what threads did together, and what each of them did.
///
/// # Errors
/// Those of `work`; there was nothing to do.
pub(crate) fn row<'r>(
    report: &'r mut Report,
    (name, what): (&str, &str),
    at: &Parameters,
    work: impl FnOnce() -> Result<Vec<ThreadResult>>,
) -> Result<(&'r mut Row, Vec<ThreadResult>)> {
    crate::progress::row(format!("{name} {what}"));
    let done = work()?;
    crate::progress::row_done();
    let (operations, latency, seconds) = sum(&done).context("no threads")?;
    ensure!(operations > 0, "there was nothing to do");
    let row = report.sample(name, what, at, float(operations as u64) / seconds);
    if !latency.is_empty() {
        row.took(&latency);
    }
    Ok((row, done))
}

/// Of all threads: operations, how long each took, and the seconds from the first one's start to the
/// last one's end, by their own clocks: whoever waits for them may be woken much later. `None`: no threads.
fn sum(all: &[ThreadResult]) -> Option<(usize, Latency, f64)> {
    let (mut operations, mut latency) = (0, Latency::default());
    let began = all.iter().map(|d| d.2).min()?;
    let ended = all.iter().map(|d| d.3).max()?;
    for (n, more, ..) in all {
        operations += n;
        latency.merge(more);
    }
    let took = ended.saturating_duration_since(began).max(Duration::from_nanos(1));
    Some((operations, latency, took.as_secs_f64()))
}

/// The rate of the slowest thread over that of the fastest one: 1 if all were served alike.
pub(crate) fn fairness(all: &[ThreadResult]) -> f64 {
    let rate = |(n, _, began, ended): &ThreadResult| {
        let took = ended.saturating_duration_since(*began).max(Duration::from_nanos(1));
        float(*n as u64) / took.as_secs_f64()
    };
    let rates = || all.iter().map(rate);
    let fastest = rates().fold(0.0, f64::max);
    if fastest > 0.0 { rates().fold(fastest, f64::min) / fastest } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_from_the_first_start_to_the_last_end() {
        let zero = Instant::now();
        let did = |n, from, to| {
            let at = |ms| zero + Duration::from_millis(ms);
            (n, Latency::default(), at(from), at(to))
        };
        // A thread that was through before the other began.
        let (operations, _, seconds) = sum(&[did(10, 5, 6), did(20, 7, 9)]).unwrap();
        assert_eq!((operations, seconds), (30, 0.004));
        assert!(sum(&[]).is_none());
    }

    #[test]
    fn the_slowest_is_compared_with_the_fastest() {
        let zero = Instant::now();
        let did = |n, ms| (n, Latency::default(), zero, zero + Duration::from_millis(ms));
        let about = |all: &[ThreadResult], expected: f64| (fairness(all) - expected).abs() < 1e-9;
        assert!(about(&[did(10, 5), did(20, 5), did(10, 4)], 0.5));
        assert!(about(&[did(10, 5)], 1.0));
        assert!(about(&[did(0, 5), did(7, 5)], 0.0));
        assert!(about(&[did(0, 5)], 1.0) && about(&[], 1.0));
    }
}
