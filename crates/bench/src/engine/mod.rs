//! Who issues the requests: streams, each a thread with a window of its own over one target.
//!
//! A stream with one request at a time makes plain calls (`pread`, `pwrite`); a deeper one hands its
//! window to a ring of its own, or to threads where `io_uring` is refused ([`braid_device::IoQueue`]).
//! All streams of a job wait for each other before the first request.
//!
//! [`braid_device::IoQueue`]: braid_pool::device::IoQueue

mod data;
mod latency;
mod layer;
mod outcome;
mod pattern;
mod target;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

pub(crate) use data::{Content, Mismatch, PIECE, generation_of};
pub(crate) use latency::{Latency, Percentiles, Series};
pub(crate) use layer::{Calls, Layer};
pub(crate) use outcome::{Done, Outcome, float};
pub(crate) use pattern::{Order, Pattern, mix};
pub(crate) use target::{Opened, Refusal, Target, Use, may_write};

use crate::run::load::Meter;

/// Direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Read,
    Write,
}
impl Direction {
    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// When requests are due, apart from when there is room for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Between two requests of the stream.
    pub interval: Duration,
    /// Of the first, after the common start.
    pub first: Duration,
}

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// On what.
    pub target: Arc<Target>,
    /// Where, and which way.
    pub pattern: Pattern,
    /// Requests at a time.
    pub depth: usize,
    /// When; `None`: as soon as there is room. Latency counts from when a request was due.
    pub pace: Option<Pace>,
    /// What is written, and whether it is looked for when read.
    pub content: Content,
    /// A flush at the end, inside the measured time.
    pub flush: bool,
}

impl Stream {
    /// One request at a time as soon as there is room, bytes that no layer can compress, no flush.
    pub fn plain(target: Arc<Target>, pattern: Pattern) -> Self {
        let (depth, pace, content, flush) = (1, None, Content::Random, false);
        Self { target, pattern, depth, pace, content, flush }
    }
}

/// What all streams of a run have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// No request is begun after this much time.
    pub time: Option<Duration>,
    /// Counted up as bytes are through: for whoever shows progress.
    pub progress: Option<Arc<AtomicU64>>,
    /// Ends all streams early.
    pub stop: Option<Arc<AtomicBool>>,
    /// A deadline for each request, after it was due: those later than that are counted.
    pub deadline: Option<Duration>,
    /// Keep the latency of every request, in order.
    pub every: bool,
    /// Large buffers in ordinary pages, as most programs have them, rather than in huge ones, which
    /// cost the kernel less for each request.
    pub ordinary_pages: bool,
}

/// What streams see of each other.
pub(crate) struct Shared<'a> {
    /// Memory and rings are there: what they cost is not the job's.
    ready: Barrier,
    start: Barrier,
    began: std::sync::OnceLock<Instant>,
    /// Nanoseconds after the start when the first stream was through: what the others did until
    /// then they did side by side.
    first_end: AtomicU64,
    limits: &'a Limits,
    /// The limits', or those of the run that is shown.
    progress: Option<Arc<AtomicU64>>,
    stop: Option<Arc<AtomicBool>>,
}
impl Shared<'_> {
    fn began(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }
    fn stopped(&self) -> bool {
        let asked = self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed));
        asked || self.limits.time.is_some_and(|t| self.began().elapsed() >= t)
    }
}

/// Runs the streams side by side.
///
/// # Errors
/// Setting up failed, or the run was interrupted. Requests that failed are told in the outcome: what
/// was done stands.
pub(crate) fn run(streams: &[Stream], limits: &Limits) -> anyhow::Result<Outcome> {
    anyhow::ensure!(!streams.is_empty(), "no streams");
    let (progress, stop) = crate::live::hooks();
    let shared = Shared {
        ready: Barrier::new(streams.len() + 1),
        start: Barrier::new(streams.len() + 1),
        began: std::sync::OnceLock::new(),
        first_end: AtomicU64::new(u64::MAX),
        limits,
        progress: limits.progress.clone().or(progress),
        stop: limits.stop.clone().or(stop),
    };
    let issued = target::issued_of(streams);
    let (meter, parts) = std::thread::scope(|scope| {
        let workers: Vec<_> = streams
            .iter()
            .map(|stream| {
                let shared = &shared;
                scope.spawn(move || worker::work(stream, shared))
            })
            .collect();
        shared.ready.wait();
        let meter = Meter::start();
        shared.start.wait();
        let parts: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (meter.stop(), parts)
    });
    let mut dones = Vec::with_capacity(parts.len());
    for part in parts {
        dones.push(part.map_err(|_| anyhow::anyhow!("a stream panicked"))??);
    }
    crate::live::go_on()?;
    let issued = target::issued_since(&issued, &target::issued_of(streams));
    Ok(Outcome::new(dones, shared.first_end.load(Ordering::Relaxed), meter, issued))
}

/// Splits `count` requests of `pattern` over `parts` streams of depth 1 that take turns, so that
/// each is issued when it is due, whatever the others wait for.
pub(crate) fn in_turns(stream: &Stream, parts: usize) -> Vec<Stream> {
    let parts = parts.max(1) as u64;
    (0..parts)
        .map(|n| {
            let pace = stream.pace.map(|p| Pace {
                interval: p.interval * u32::try_from(parts).unwrap_or(u32::MAX),
                first: p.first + p.interval * u32::try_from(n).unwrap_or(u32::MAX),
            });
            let mine = stream.pattern.count.saturating_sub(n).div_ceil(parts);
            let pattern = stream.pattern.every(parts, n, mine);
            Stream { pattern, depth: 1, pace, ..stream.clone() }
        })
        .collect()
}
