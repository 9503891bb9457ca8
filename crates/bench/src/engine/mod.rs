//! The engine issues requests and times them. A job has streams; each is a thread with its own queue on
//! one target.
//!
//! A stream of depth 1 calls `pread` and `pwrite`. A deeper stream has an `io_uring` of its own, or
//! threads if `io_uring` is refused ([`braid_device::IoQueue`]). All streams wait for each other before
//! the first request.
//!
//! [`braid_device::IoQueue`]: braid_pool::device::IoQueue

mod barrier;
mod block_layer_requests;
mod data;
mod direction;
mod latency;
mod layer;
mod outcome;
mod pattern;
mod stream;
mod target;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) use barrier::{StartBarrier, on_threads};
pub(crate) use data::{Content, Mismatch, PIECE, generation_of};
pub(crate) use direction::Direction;
pub(crate) use latency::{Latencies, Latency, Percentiles, Series};
pub(crate) use layer::{Calls, Layer};
pub(crate) use outcome::{Outcome, StreamResult};
pub(crate) use pattern::{Order, Pattern, mix};
pub(crate) use stream::{Limits, Pace, Stream};
pub(crate) use target::{OpenMode, Opened, Refusal, Target, capacity, may_write, room};

use crate::run::load::Meter;
use block_layer_requests::{issued_of, issued_since};
use worker::Shared;

/// Streams of a run, each of which is a thread.
pub(crate) const STREAMS_MAX: usize = 4096;

/// Whether buffers of so many bytes fit into this machine.
///
/// # Errors
/// They are more than half of its memory.
pub(crate) fn room_for_buffers(bytes: u128) -> anyhow::Result<()> {
    let most = crate::run::environment::memory() / 2;
    anyhow::ensure!(
        most == 0 || bytes <= most.into(),
        "requests under way need {bytes} bytes of memory; {most} (half of the machine's) are the most"
    );
    Ok(())
}

/// Runs the streams side by side.
///
/// # Errors
/// Setting up failed, or the run was interrupted. Requests that failed are told in the outcome: what
/// was done stands.
pub(crate) fn run(streams: &[Stream], limits: &Limits) -> anyhow::Result<Outcome> {
    anyhow::ensure!(!streams.is_empty(), "no streams");
    let many = streams.len();
    anyhow::ensure!(many <= STREAMS_MAX, "{many} threads are too many; {STREAMS_MAX} are the most");
    let each = |s: &Stream| u128::from(s.pattern.request) * s.depth.max(1) as u128;
    room_for_buffers(streams.iter().map(each).sum())?;
    let (progress, stop) = crate::progress::hooks();
    let shared = Shared {
        barrier: StartBarrier::of(many + 1),
        began: OnceLock::new(),
        many,
        started: AtomicUsize::new(0),
        first_end: AtomicU64::new(u64::MAX),
        limits,
        progress: limits.progress.clone().or(progress),
        stop: limits.stop.clone().or(stop),
    };
    let issued = issued_of(streams);
    let shared = &shared;
    let works = streams.iter().map(|stream| move || worker::work(stream, shared));
    let (meter, results) = on_threads(&shared.barrier, works, || {
        let ready = shared.barrier.wait();
        let meter = Meter::start();
        (ready && shared.barrier.wait(), meter)
    })?;
    let meter = meter.stop();
    crate::progress::check_interrupted()?;
    let issued = issued_since(&issued, &issued_of(streams));
    Ok(Outcome::new(results, shared.first_end.load(Ordering::Relaxed), meter, issued))
}

/// Splits `count` requests of `pattern` over `parts` streams of depth 1 that take turns, so that
/// each is issued when it is due, whatever the others wait for.
pub(crate) fn in_turns(stream: &Stream, parts: usize) -> Vec<Stream> {
    let parts = parts.max(1) as u64;
    (0..parts)
        .map(|n| {
            let pace = stream.pace.map(|p| Pace {
                interval: Pace { first: Duration::ZERO, ..p }.due(parts),
                first: p.due(n),
            });
            let mine = stream.pattern.count.saturating_sub(n).div_ceil(parts);
            let pattern = stream.pattern.every(parts, n, mine);
            Stream { pattern, depth: 1, pace, ..stream.clone() }
        })
        .collect()
}
