//! The engine issues requests and times them. A job has streams; each is a thread with its own queue on
//! one target.
//!
//! A stream of depth 1 calls `pread` and `pwrite`. A deeper stream has an `io_uring` of its own, or
//! threads if `io_uring` is refused ([`braid_device::IoQueue`]). All streams wait for each other before
//! the first request.
//!
//! [`braid_device::IoQueue`]: braid_pool::device::IoQueue

mod barrier;
mod data;
mod latency;
mod layer;
mod outcome;
mod pattern;
mod target;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use barrier::{StartBarrier, on_threads};
pub(crate) use data::{Content, Mismatch, PIECE, generation_of};
pub(crate) use latency::{Latencies, Latency, Percentiles, Series};
pub(crate) use layer::{Calls, Layer};
pub(crate) use outcome::{Outcome, StreamResult};
pub(crate) use pattern::{Order, Pattern, mix};
pub(crate) use target::{OpenMode, Opened, Refusal, Target, capacity, may_write, room};

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
impl Pace {
    /// When request `n` is due after the common start.
    pub fn due(&self, n: u64) -> Duration {
        let nanos = self.interval.as_nanos().saturating_mul(n.into());
        let after = u64::try_from(nanos / 1_000_000_000).map_or(Duration::MAX, |seconds| {
            Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).unwrap_or(0))
        });
        self.first.saturating_add(after)
    }
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
    /// Held twice: when memory and rings are there, which are not the job's to pay for, and for the
    /// start.
    barrier: StartBarrier,
    began: std::sync::OnceLock<Instant>,
    /// Streams, and how many of them have begun.
    many: usize,
    started: AtomicUsize,
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
    /// Whether somebody has asked for the end.
    fn asked(&self) -> bool {
        self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
    /// When no request is begun any more; `None`: never, or so late that it makes no difference.
    fn end(&self) -> Option<Instant> {
        self.began().checked_add(self.limits.time?)
    }
}

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
        began: std::sync::OnceLock::new(),
        many,
        started: AtomicUsize::new(0),
        first_end: AtomicU64::new(u64::MAX),
        limits,
        progress: limits.progress.clone().or(progress),
        stop: limits.stop.clone().or(stop),
    };
    let issued = target::issued_of(streams);
    let shared = &shared;
    let works = streams.iter().map(|stream| move || worker::work(stream, shared));
    let (meter, results) = on_threads(&shared.barrier, works, || {
        let ready = shared.barrier.wait();
        let meter = Meter::start();
        (ready && shared.barrier.wait(), meter)
    })?;
    let meter = meter.stop();
    crate::progress::check_interrupted()?;
    let issued = target::issued_since(&issued, &target::issued_of(streams));
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
