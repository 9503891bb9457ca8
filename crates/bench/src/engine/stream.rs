//! What a stream is asked to do, and what all streams of a run have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::data::Content;
use super::pattern::Pattern;
use super::target::Target;

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

#[derive(Debug, Clone)]
pub(crate) struct Stream {
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

impl Limits {
    /// Ordinary pages, as programs have them, and no other limit.
    pub fn ordinary() -> Self {
        Self { ordinary_pages: true, ..Self::default() }
    }
}
