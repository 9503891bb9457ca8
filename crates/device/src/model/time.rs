//! Time and speed of a model, in whole numbers: nothing depends on how a processor rounds.

use std::ops::{Add, Sub};
use std::time::Duration;

use braid_format::Bytes;

/// An instant of a model: nanoseconds since its clock began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The length of time since `earlier`, or nothing if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
impl Add<Duration> for Time {
    type Output = Self;
    /// Saturates: 584 years after its beginning a model stands still.
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(nanos(length)))
    }
}
impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// As nanoseconds.
pub(crate) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// A speed, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

impl Rate {
    /// So many million bytes per second, as data sheets say it.
    pub const fn mega(n: u64) -> Self {
        Self(n * 1_000_000)
    }
    /// So many thousand bytes per second.
    pub const fn kilo(n: u64) -> Self {
        Self(n * 1000)
    }
    /// `len` bytes in `time`, rounded down; without time, as fast as can be said.
    pub fn of(len: Bytes, time: Duration) -> Self {
        let per = u128::from(len.0) * SECOND;
        let rate = per.checked_div(time.as_nanos()).unwrap_or(u128::from(u64::MAX));
        Self(u64::try_from(rate).unwrap_or(u64::MAX))
    }
    /// How long `len` bytes take, rounded up.
    pub fn time_for(self, len: Bytes) -> Duration {
        let time = (u128::from(len.0) * SECOND).div_ceil(u128::from(self.0.max(1)));
        Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }
    /// How many bytes pass in `time`, rounded down.
    pub fn in_time(self, time: Duration) -> Bytes {
        let len = u128::from(self.0) * time.as_nanos() / SECOND;
        Bytes(u64::try_from(len).unwrap_or(u64::MAX))
    }
    /// In million bytes per second, for people.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn megabytes(self) -> f64 {
        self.0 as f64 / 1e6
    }
}
