//! Settings that stay with a pool: the keys that this version knows, and how often to scrub. Which values make sense, and
//! what for, is in `commands/properties.rs`.

use std::time::Duration;

use anyhow::{Context, Result};
use braid_format::label::properties::Properties;

/// Free text, shown by `braid status`.
pub const COMMENT: &str = "comment";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_after_as_many_days() {
        let of = |days: &str| Properties::from([(SCRUB_EVERY.to_owned(), days.to_owned())]);
        assert_eq!(scrub_interval(&Properties::new()), Some(DAY * 30));
        assert_eq!(scrub_interval(&of("7")), Some(DAY * 7));
        assert_eq!(scrub_interval(&of("never")), None);
        assert_eq!(scrub_interval(&of("from another version")), Some(DAY * 30));
    }
}
