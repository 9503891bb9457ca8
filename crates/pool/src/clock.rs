//! The time: wall-clock seconds for labels, and deadlines for requests of a node with a lease. (The
//! end of the lease itself is in [`crate::cluster::write_gate`].)

use std::time::Instant;

use braid_device::Moment;

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// When one of so many equal parts of the time from now to then is over.
pub(crate) fn part_of(then: Moment, parts: u32) -> Instant {
    Instant::now() + then.since(Moment::now()) / parts
}
