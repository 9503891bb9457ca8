//! The one place in this crate that asks what time it is: labels say for people when they were
//! written, regions that were not written for a while are no longer noted, and a node's lease ends.
//! Nothing else depends on it.

use std::sync::LazyLock;
use std::time::Instant;

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds of a clock that nobody can set.
pub(crate) fn monotonic() -> u64 {
    nanoseconds(Instant::now())
}

/// A moment of that clock.
pub(crate) fn nanoseconds(at: Instant) -> u64 {
    let since = at.saturating_duration_since(*ORIGIN).as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// When one of so many equal parts of the time from now to then is over.
pub(crate) fn part_of(then: Instant, parts: u32) -> Instant {
    let now = Instant::now();
    now + then.saturating_duration_since(now) / parts
}
