//! The full-screen view of a run.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::lines::{duration, part, round, speed};
use super::state::{Now, Rates, Standing};

pub(super) fn draw(frame: &mut Frame<'_>, now: &Now, rates: &Rates) {
    let [top, bar, row, series, ratios, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let mode = if now.mode.is_empty() { "getting ready" } else { &now.mode };
    let of = now.whole.as_ref().map_or(String::new(), |w| {
        format!("{}, all of it: about {}; ", part(w), duration(w.left()))
    });
    let title = format!("braid bench {of}{mode}: {}", round(now));
    frame.render_widget(Line::from(title).bold(), top);
    let left = now.left().map_or_else(String::new, |l| format!("at most {} left", duration(l)));
    frame.render_widget(Gauge::default().ratio(now.part()).label(left), bar);
    frame.render_widget(Paragraph::new(now.row.as_str()), row);
    let most = rates.looks.iter().copied().fold(0.0, f64::max);
    let title = format!(" {}, at most {} ", speed(now, rates.latest()), speed(now, most));
    let shown = usize::from(series.width.saturating_sub(2));
    let from = rates.looks.len().saturating_sub(shown);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
    let looks: Vec<u64> = rates.looks.iter().skip(from).map(|r| *r as u64).collect();
    frame.render_widget(
        Sparkline::default().block(Block::bordered().title(title)).data(looks),
        series,
    );
    frame.render_widget(standings(now), ratios);
    frame.render_widget(Line::from("q or Ctrl-C: end it, with the result so far").dim(), foot);
}

/// The widest intervals first: they are what the run goes on for.
fn standings(now: &Now) -> Table<'_> {
    let mut sorted: Vec<_> = now.standings.iter().collect();
    let width = |s: &Standing| s.interval.map_or(f64::INFINITY, |i| i.width());
    sorted.sort_by(|a, b| width(b).total_cmp(&width(a)));
    let rows = sorted.into_iter().map(|s| {
        let (interval, width) = s.interval.map_or_else(
            || ("not yet known".to_owned(), String::new()),
            |i| (format!("{:.3}..{:.3}", i.low, i.high), format!("{:.1} %", i.width() * 100.0)),
        );
        let narrow = s.interval.is_some_and(|i| i.width() <= now.width);
        let style = if narrow { Style::new().green() } else { Style::new() };
        let ratio = crate::statistics::rate(s.ratio);
        Row::new([s.what.clone(), ratio, interval, width]).style(style)
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(20),
        Constraint::Length(8),
    ];
    let what = if now.base.is_empty() { "median".to_owned() } else { format!("of {}", now.base) };
    let wanted = format!("wanted {:.1} %", now.width * 100.0);
    let head = Row::new(["row".to_owned(), what, "95 % interval".to_owned(), "width".to_owned()]);
    let block = Block::bordered().title(format!(" so far, widest interval first; {wanted} "));
    Table::new(rows, widths).header(head.bold()).block(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Interval;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn screen(now: &Now, rates: &Rates, (columns, lines): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| draw(frame, now, rates)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_on_it() {
        let standing = |what: &str, low, high| Standing {
            what: what.to_owned(),
            ratio: 0.5,
            interval: Some(Interval { median: 0.5, low, high }),
        };
        let now = Now {
            mode: "sweep".to_owned(),
            row: "xfs read direct, request 64 KiB".to_owned(),
            round: 2,
            rounds: 15,
            rows: 4,
            done: 30,
            width: 0.03,
            base: "raw".to_owned(),
            began: Instant::now().checked_sub(Duration::from_mins(5)),
            budget: Duration::from_hours(1),
            standings: vec![standing("pool read", 0.499, 0.501), standing("fs read", 0.4, 0.6)],
            ..Now::default()
        };
        let rates = Rates { last: None, looks: vec![2e9; 50] };
        let seen = screen(&now, &rates, (80, 24));
        for part in [
            "braid bench sweep: round 3 of 15",
            "at most 5 min",
            "xfs read direct, request 64 KiB",
            "2000 MB/s",
            "of raw",
            "0.400..0.600",
            "40.0 %",
            "wanted 3.0 %",
            "Ctrl-C",
        ] {
            assert!(seen.contains(part), "{part} in\n{seen}");
        }
        assert!(seen.find("fs read").unwrap() < seen.find("pool read").unwrap(), "{seen}");
    }
    #[test]
    fn small_screens_and_empty_runs_are_drawn() {
        for (columns, lines) in [(1, 1), (20, 5), (300, 100)] {
            let seen = screen(&Now::default(), &Rates::default(), (columns, lines));
            assert_eq!(seen.lines().count(), usize::from(lines), "{seen}");
            let whole = seen.contains("getting ready") && seen.contains("Ctrl-C");
            assert_eq!(whole, lines == 100, "{seen}");
        }
    }
}
