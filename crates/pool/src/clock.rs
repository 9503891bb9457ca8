//! The one place in this crate that asks what time it is: labels say for people when they were
//! written, and regions that were not written for a while are no longer noted. Nothing else depends
//! on it.

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
