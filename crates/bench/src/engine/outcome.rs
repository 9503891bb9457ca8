//! The result of one stream, and of all streams of a run.

use std::time::Duration;

use super::{Latency, Mismatch, Series};
use crate::run::load::Metered;
use crate::statistics::float;

/// What one stream did.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamResult {
    /// Bytes and requests that were through, and of these the reads.
    pub bytes: u64,
    pub ops: u64,
    pub bytes_read: u64,
    pub ops_read: u64,
    /// Bytes that came through from when all streams had begun until the first was through.
    pub bytes_together: u64,
    /// After the common start: first request, end of the last (with the flush).
    pub from: Duration,
    pub to: Duration,
    /// Latencies, reads and writes apart.
    pub reads: Latency,
    pub writes: Latency,
    /// Each one in order, if asked for: when it was through after the start, and its latency.
    pub every: Vec<(Duration, Duration)>,
    pub series: Series,
    /// Requests later than the deadline.
    pub late: u64,
    /// Paced requests that were due and not begun when the time was up: their latency counts as far
    /// as it went.
    pub held: u64,
    /// Paced requests that the stream has waited for, and how much later than due it woke up, in
    /// all.
    pub waited: u64,
    pub slack: Duration,
    /// Places that were not as written; the first of them.
    pub mismatches: u64,
    pub mismatch: Option<Mismatch>,
    /// Why it ended early.
    pub failed: Option<String>,
}

impl StreamResult {
    /// Of several streams. Latencies and time series are merged, but not the list of every request.
    pub fn sum(streams: &[Self]) -> Self {
        let mut all = Self { from: Duration::MAX, ..Self::default() };
        for s in streams {
            all.bytes += s.bytes;
            all.ops += s.ops;
            all.bytes_read += s.bytes_read;
            all.ops_read += s.ops_read;
            all.bytes_together += s.bytes_together;
            all.from = all.from.min(s.from);
            all.to = all.to.max(s.to);
            all.reads.merge(&s.reads);
            all.writes.merge(&s.writes);
            all.series.merge(&s.series);
            all.late += s.late;
            all.held += s.held;
            all.waited += s.waited;
            all.slack += s.slack;
            all.mismatches += s.mismatches;
            all.mismatch = all.mismatch.or(s.mismatch);
            all.failed = all.failed.take().or_else(|| s.failed.clone());
        }
        all
    }
    pub fn latency(&self) -> Latency {
        let mut both = self.reads.clone();
        both.merge(&self.writes);
        both
    }
    /// From the first request to the end of the last.
    pub fn seconds(&self) -> f64 {
        self.to.saturating_sub(self.from).as_secs_f64().max(1e-9)
    }
}

/// The part of the time that all streams must have been at work for a rate of that: in less there
/// are requests that were begun before, and their bytes with them.
const TOGETHER: f64 = 0.1;

/// What all streams of a run did.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Sums.
    pub all: StreamResult,
    pub streams: Vec<StreamResult>,
    /// From the first request to the end of the last.
    pub seconds: f64,
    /// From when all streams had begun until the first was through; 0: not at any time.
    pub seconds_together: f64,
    pub meter: Metered,
    /// What the devices were really asked for.
    pub issued: Option<String>,
}

impl Outcome {
    pub fn new(
        streams: Vec<StreamResult>,
        first_end: u64,
        meter: Metered,
        issued: Option<String>,
    ) -> Self {
        let all = StreamResult::sum(&streams);
        let seconds = all.seconds();
        let last_start = streams.iter().map(|s| s.from).max().unwrap_or_default();
        let together = Duration::from_nanos(first_end).min(all.to).saturating_sub(last_start);
        let seconds_together = together.as_secs_f64();
        Self { all, streams, seconds, seconds_together, meter, issued }
    }
    /// 10^6 bytes per second, from the first request to the end of the last.
    pub fn mb_per_s(&self) -> f64 {
        float(self.all.bytes) / 1e6 / self.seconds
    }
    /// The same while all streams were at work; `None`: that was too short to say anything.
    pub fn mb_per_s_together(&self) -> Option<f64> {
        let enough = self.seconds_together >= self.seconds * TOGETHER;
        let rate = float(self.all.bytes_together) / 1e6 / self.seconds_together.max(1e-9);
        (enough && self.all.bytes_together > 0).then_some(rate)
    }
    pub fn iops(&self) -> f64 {
        float(self.all.ops) / self.seconds
    }
    /// CPU seconds of the whole machine per GiB.
    pub fn cpu_per_gib(&self) -> f64 {
        self.meter.cpu_machine / (float(self.all.bytes.max(1)) / f64::from(1 << 30))
    }
    /// Fails with what ended a stream early, or what was not as written.
    pub fn ok(self) -> anyhow::Result<Self> {
        if let Some(why) = &self.all.failed {
            anyhow::bail!("{why}");
        }
        if let Some(m) = &self.all.mismatch {
            anyhow::bail!(
                "{} places are not as written, the first at byte {}: {:#x} instead of {:#x}",
                self.all.mismatches,
                m.at,
                m.found,
                m.expected
            );
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_hardly_met_have_no_rate_together() {
        let of = |(from, to): (u64, u64), bytes_together| StreamResult {
            bytes: 1_000_000,
            ops: 1,
            bytes_together,
            from: Duration::from_micros(from),
            to: Duration::from_micros(to),
            ..StreamResult::default()
        };
        let together = |second: (u64, u64), bytes| {
            let end = 1_000_000_u64.min(second.1 * 1000);
            let streams = vec![of((0, 1000), bytes), of(second, bytes)];
            Outcome::new(streams, end, Metered::default(), None).mb_per_s_together()
        };
        // One after the other; for a moment in which a request of each came through; half of the time.
        assert_eq!(together((1000, 2000), 0), None);
        assert_eq!(together((999, 2000), 1_000_000), None);
        assert_eq!(together((500, 1000), 500_000), Some(2000.0));
    }
}
