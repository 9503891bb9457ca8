//! The clock of leases.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A moment of the clock that nobody can set and that goes on while the machine is suspended
/// (`CLOCK_BOOTTIME`): a host that was suspended counts that time as those do who watched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        let part = |n: i64| u64::try_from(n).unwrap_or(0);
        Self(Duration::from_secs(part(tv_sec)) + Duration::from_nanos(part(tv_nsec)))
    }
    /// So long after the machine started: see [`Self::since_boot`].
    pub fn at(since_boot: Duration) -> Self {
        Self(since_boot)
    }
    /// Since `earlier`; none if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
    /// Since the machine started.
    pub fn since_boot(self) -> Duration {
        self.0
    }
    /// The same in nanoseconds.
    pub fn nanoseconds(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}
