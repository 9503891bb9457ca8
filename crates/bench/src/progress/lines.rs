//! One line of progress: below a bar on a terminal, or printed now and then.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::state::{Now, Rates, RunOfRuns};

/// The line of a terminal, drawn again and again.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:20} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }
    pub fn draw(&self, now: &Now, rates: &Rates) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        self.0.set_position((now.part() * 1000.0) as u64);
        self.0.set_message(heartbeat(now, rates));
    }
}
impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Where a run is: `sweep: round 2 of 15, 1215 MB/s, xfs write direct, 64 KiB; ...`
pub(super) fn heartbeat(now: &Now, rates: &Rates) -> String {
    let part = now.whole.as_ref().map_or(String::new(), |w| part(w) + ": ");
    if now.mode.is_empty() {
        return format!("{part}getting ready{}", whole(now));
    }
    let mut said = format!("{part}{}: {}, {}", now.mode, round(now), speed(now, rates.latest()));
    if !now.row.is_empty() {
        let _ = write!(said, ", {}", now.row);
    }
    if let Some(width) = now.widest() {
        let (width, wanted) = (width * 100.0, now.width * 100.0);
        let _ = write!(said, "; widest interval {width:.1} % of {wanted:.1} %");
    }
    if let Some(left) = now.left() {
        let _ = write!(said, "; at most {} left", duration(left));
    }
    said + &whole(now)
}

/// `S0.4 (3 of 14)`
pub(super) fn part(whole: &RunOfRuns) -> String {
    format!("{} ({} of {})", whole.name, whole.number, whole.count)
}

/// `; all of it: about 9 min 20 s`
fn whole(now: &Now) -> String {
    let left = now.whole.as_ref().map(|w| duration(w.left()));
    left.map_or(String::new(), |left| format!("; all of it: about {left}"))
}

/// `round 2 of 15`
pub(super) fn round(now: &Now) -> String {
    format!("round {} of {}", now.round + 1, now.rounds)
}

/// A rate in what the mode counts.
pub(super) fn speed(now: &Now, rate: f64) -> String {
    if now.counted.is_empty() {
        return format!("{} MB/s", crate::statistics::rate(rate / 1e6));
    }
    format!("{} {}/s", crate::statistics::rate(rate), now.counted)
}

/// `8 s`, `3 min 20 s`, `2 h 5 min`
pub(crate) fn duration(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=89 => format!("{s} s"),
        s @ 90..=5399 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Standing;
    use crate::statistics::Interval;

    #[test]
    fn a_line_says_where_it_is() {
        let interval = Some(Interval { median: 0.5, low: 0.45, high: 0.55 });
        let now = Now {
            mode: "sweep".to_owned(),
            row: "xfs read direct".to_owned(),
            round: 1,
            rounds: 15,
            rows: 2,
            done: 3,
            width: 0.03,
            began: std::time::Instant::now().checked_sub(Duration::from_secs(3)),
            budget: Duration::from_mins(2),
            standings: vec![Standing { what: "fs".to_owned(), ratio: 0.5, interval }],
            ..Now::default()
        };
        let rates = Rates { last: None, looks: vec![1e9; 5] };
        let said = heartbeat(&now, &rates);
        for part in [
            "sweep: round 2 of 15, 1000 MB/s, xfs read direct",
            "widest interval 20.0 % of 3.0 %",
            "at most 2",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(heartbeat(&Now::default(), &rates), "getting ready");
        let ends = std::time::Instant::now() + Duration::from_secs(1000);
        let whole = Some(RunOfRuns { number: 3, count: 14, name: "S0.4".to_owned(), ends });
        let waiting = heartbeat(&Now { whole: whole.clone(), ..Now::default() }, &rates);
        assert!(
            waiting.starts_with("S0.4 (3 of 14): getting ready; all of it: about 16 min"),
            "{waiting}"
        );
        let said = heartbeat(&Now { whole, ..now.clone() }, &rates);
        assert!(said.starts_with("S0.4 (3 of 14): sweep: round 2 of 15"), "{said}");
        assert!(said.contains("all of it: about 16 min"), "{said}");
        let counted = Now { counted: "files", ..now };
        assert_eq!(speed(&counted, 1234.0), "1234 files/s");
    }
    #[test]
    fn times() {
        let said = [8, 200, 7500].map(|s| duration(Duration::from_secs(s)));
        assert_eq!(said, ["8 s", "3 min 20 s", "2 h 5 min"]);
    }
}
