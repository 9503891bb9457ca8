//! Latency histograms (three digits), and bytes over time.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::statistics::float;

/// Latencies of requests, 1 ns to 18 minutes, to 0.1 %.
#[derive(Debug, Clone)]
pub(crate) struct Latency(Histogram<u64>);

/// What a result keeps of them, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Percentiles {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

impl Percentiles {
    /// Requests beyond a percentile by which it is told from the longest few.
    const BEYOND: u64 = 10;
    /// p50, p99, p99.9 and p99.99, as far as there are enough requests to know them.
    pub fn known(&self) -> [(&'static str, Option<f64>); 4] {
        let known = |one_in: u64, value| (self.count / one_in >= Self::BEYOND).then_some(value);
        [
            ("p50", (self.count > 0).then_some(self.p50)),
            ("p99", known(100, self.p99)),
            ("p99.9", known(1000, self.p99_9)),
            ("p99.99", known(10_000, self.p99_99)),
        ]
    }
}

/// Latencies of all rounds: histograms added up, of which only what is not 0 is kept, since a report
/// has many rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    /// Those of one more round, too.
    pub fn add(&mut self, latency: &Latency) {
        for v in latency.0.iter_recorded() {
            *self.0.entry(v.value_iterated_to()).or_default() += v.count_at_value();
        }
    }
    pub fn percentiles(&self) -> Percentiles {
        let mut all = Latency::default();
        for (ns, count) in &self.0 {
            all.0.saturating_record_n(*ns, *count);
        }
        all.percentiles()
    }
}

const LONGEST_NS: u64 = 1 << 40;

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds"))
    }
}
impl Latency {
    pub fn add(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Those of another stream, too.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds: nothing can be left out.
        let _ = self.0.add(&other.0);
    }
    pub fn percentiles(&self) -> Percentiles {
        let micros = |ns: u64| float(ns) / 1e3;
        let at = |q: f64| micros(self.0.value_at_quantile(q));
        Percentiles {
            count: self.0.len(),
            mean: self.0.mean() / 1e3,
            min: micros(self.0.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: micros(self.0.max()),
        }
    }
}

/// Most points of a time series: beyond, two are made one.
const POINTS_MAX: usize = 600;

/// Bytes that were through in each interval after the start.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Series {
    /// Milliseconds to a point.
    pub interval_ms: u64,
    pub bytes: Vec<u64>,
}
impl Default for Series {
    fn default() -> Self {
        Self { interval_ms: 10, bytes: Vec::new() }
    }
}
impl Series {
    /// Notes bytes that were through `after` the start.
    pub fn add(&mut self, after: Duration, bytes: u64) {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let mut point = usize::try_from(ms / self.interval_ms).unwrap_or(usize::MAX);
        while point >= POINTS_MAX {
            self.halve();
            point = usize::try_from(ms / self.interval_ms).unwrap_or(usize::MAX);
        }
        if point >= self.bytes.len() {
            self.bytes.resize(point + 1, 0);
        }
        if let Some(b) = self.bytes.get_mut(point) {
            *b += bytes;
        }
    }
    /// Those of another stream, too.
    pub fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while other.interval_ms < self.interval_ms {
            other.halve();
        }
        while self.interval_ms < other.interval_ms {
            self.halve();
        }
        self.bytes.resize(self.bytes.len().max(other.bytes.len()), 0);
        for (mine, more) in self.bytes.iter_mut().zip(&other.bytes) {
            *mine += more;
        }
    }
    fn halve(&mut self) {
        self.interval_ms *= 2;
        self.bytes = self.bytes.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
}
