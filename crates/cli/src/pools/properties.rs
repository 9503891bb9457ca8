//! Settings that stay with a pool: the keys that this version knows, and how often to scrub. Which values make sense, and
//! what for, is in `commands/properties.rs`.

use std::time::Duration;

use anyhow::{Context, Result};
use braid_format::label::properties::Properties;
use braid_fs::lock::Timing;

/// Free text, shown by `braid status`.
pub const COMMENT: &str = "comment";
/// Seconds from which the timers of every node of the pool follow.
pub const IO_TIMEOUT: &str = "io_timeout";
/// Options of every mount of the pool.
pub const MOUNT_OPTIONS: &str = "mount.options";
/// Days between two scrubs.
pub const SCRUB_EVERY: &str = "scrub.every";

/// Never, in place of a number of days.
const NEVER: &str = "never";
const DAY: Duration = Duration::from_hours(24);
/// Most days between two scrubs.
const DAYS_MAX: u32 = 3650;

/// Days from one scrub to the next; `None`: never.
///
/// # Errors
/// It is no such number.
pub fn scrub_every(text: &str) -> Result<Option<Duration>> {
    if text == NEVER {
        return Ok(None);
    }
    let days = text.parse::<u32>().ok().filter(|days| (1..=DAYS_MAX).contains(days));
    let days =
        days.with_context(|| format!("not a number of days from 1 to {DAYS_MAX}, or {NEVER}"))?;
    Ok(Some(DAY * days))
}

/// How long after a scrub the next one is due; `None`: never. A value of another version counts as none.
pub fn scrub_interval(all: &Properties) -> Option<Duration> {
    let text = all.get(SCRUB_EVERY).map_or("30", String::as_str);
    scrub_every(text).unwrap_or(Some(DAY * 30))
}

/// The timers that follow from an `io_timeout`; `None`: it is no number of seconds that is possible.
pub fn timing_of(seconds: &str) -> Option<Timing> {
    let time = seconds.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok())?;
    (Timing::MIN..=Timing::MAX).contains(&time).then(|| Timing::of(time))
}

/// The pool's own timers, if it has any. A value of another version counts as none.
pub fn timing(all: &Properties) -> Option<Timing> {
    all.get(IO_TIMEOUT).and_then(|seconds| timing_of(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_of_a_pool_follow_from_its_io_timeout() {
        let of = |seconds: &str| {
            timing(&Properties::from([(IO_TIMEOUT.to_owned(), seconds.to_owned())]))
        };
        assert_eq!(timing(&Properties::new()).map(Timing::io_timeout), None);
        assert_eq!(of("30").map(Timing::io_timeout), Some(Duration::from_secs(30)));
        for bad in ["0", "-1", "inf", "1e9", "soon", ""] {
            assert!(of(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_scrub_is_due_after_as_many_days() {
        let of = |days: &str| Properties::from([(SCRUB_EVERY.to_owned(), days.to_owned())]);
        assert_eq!(scrub_interval(&Properties::new()), Some(DAY * 30));
        assert_eq!(scrub_interval(&of("7")), Some(DAY * 7));
        assert_eq!(scrub_interval(&of("never")), None);
        assert_eq!(scrub_interval(&of("from another version")), Some(DAY * 30));
    }
}
