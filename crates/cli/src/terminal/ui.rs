//! Progress bars and tables, and how far work is in words.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::size;

/// A bar that shows itself only on a terminal, and only when the work takes a moment.
pub fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{msg:>12} [{bar:40}] {pos}/{len} {elapsed} ETA {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// A bar for bytes.
const BYTES: &str =
    "{msg:>12} [{bar:40}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} ETA {eta}";

/// The same for bytes, with their rate.
pub fn byte_bar(what: &'static str, len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    if let Ok(style) = ProgressStyle::with_template(BYTES) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// How far work is that `ran` for so many seconds, from so many bytes on: `12 %, 103 MiB/s, 5 min left`. In its first
/// second, and from a node that does not say since when, only how much is done.
pub fn how_far(done: u64, total: u64, ran: Option<(f64, u64)>) -> String {
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    let Some((seconds, from)) = ran.filter(|(s, from)| *s >= 1.0 && done > *from) else {
        return format!("{percent} %");
    };
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let (rate, left) = ((done - from) as f64 / seconds, total.saturating_sub(done) as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    let (bytes, rest) = (rate as u64, Duration::from_secs((left / rate) as u64));
    format!("{percent} %, {}/s, {} left", size::show(bytes), span(rest))
}

/// A time for people: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min"),
        7200..172_800 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// A callback for library code: (done, total).
pub fn progress(bar: &ProgressBar) -> impl FnMut(u64, u64) + '_ {
    |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// A plain table.
pub fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_work_is_has_a_rate_and_the_time_that_is_left() {
        const GIB: u64 = 1 << 30;
        for (done, total, seconds, shown) in [
            (0, 0, Some(5.0), "0 %"),
            (GIB, 4 * GIB, None, "25 %"),
            (GIB, 4 * GIB, Some(0.5), "25 %"),
            (GIB, 4 * GIB, Some(10.0), "25 %, 102.3 MiB/s, 30 s left"),
            (GIB, 41 * GIB, Some(8.0), "2 %, 128 MiB/s, 5 min left"),
            (GIB, 1000 * GIB, Some(12.0), "0 %, 85.3 MiB/s, 3 h 19 min left"),
            (GIB, 20_000 * GIB, Some(9.0), "0 %, 113.7 MiB/s, 2 d 1 h left"),
            (4 * GIB, 4 * GIB, Some(2.0), "100 %, 2 GiB/s, 0 s left"),
            (u64::MAX, u64::MAX, Some(1e9), "100 %, 17.1 GiB/s, 0 s left"),
        ] {
            assert_eq!(how_far(done, total, seconds.map(|s| (s, 0))), shown, "{done} of {total}");
        }
        // What was done before it was broken off took no time of this run.
        let again = how_far(3 * GIB, 4 * GIB, Some((8.0, 2 * GIB)));
        assert_eq!(again, "75 %, 128 MiB/s, 8 s left");
        assert_eq!(how_far(GIB, 4 * GIB, Some((8.0, GIB))), "25 %");
    }

    #[test]
    fn a_bar_for_bytes_has_human_units_a_rate_and_the_time_that_is_left() {
        assert!(ProgressStyle::with_template(BYTES).is_ok());
        for key in ["{binary_bytes}", "{binary_total_bytes}", "{binary_bytes_per_sec}", "{eta}"] {
            assert!(BYTES.contains(key), "{key}");
        }
    }
}
