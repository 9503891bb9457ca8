//! The tables of a result, and the whole of it as text for a terminal.

use std::fmt::Write as _;

use super::Report;
use super::grid::{Grid, Mark};
use crate::run::repeat::Rounds;
use crate::statistics::{Interval, float, rate, three_digits};

/// A parameter's or quantity's value: sizes by their unit.
pub(crate) fn number(key: &str, value: f64) -> String {
    if matches!(key, "request" | "transfer" | "file" | "unit") {
        return size(value);
    }
    if (value - value.round()).abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Bytes in the largest unit that they are a whole number of.
pub(crate) fn size(bytes: f64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let parts = units.map(|(unit, name)| (bytes / float(unit), name));
    let whole = parts.iter().find(|(n, _)| n.fract() == 0.0 && *n >= 1.0);
    let (n, name) = whole.copied().unwrap_or((bytes, "B"));
    format!("{n:.0} {name}")
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// All that is printed. Of a brief report that is a line for each experiment, and no rows.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    for (key, value) in &report.setup {
        let _ = writeln!(out, "{key:>10}: {value}");
    }
    if !report.brief {
        let _ = writeln!(out, "{}", rows(report).text(false));
        let by_row = report.rows.iter().filter_map(|r| Some((r.title(), r.issued.clone()?)));
        let issued: Vec<_> = report.issued.iter().cloned().chain(by_row).collect();
        if !issued.is_empty() {
            let _ = writeln!(out, "requests issued to the devices:");
        }
        for (what, said) in issued {
            let _ = writeln!(out, "  {what}: {said}");
        }
        if let Some(said) = report.rounds.as_ref().and_then(Rounds::said) {
            let _ = writeln!(out, "{said}");
        }
    }
    if !report.summaries.is_empty() {
        let _ = writeln!(out, "{}", summaries(report).text(false));
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(why) = &report.failed {
        let _ = writeln!(out, "ended early: {why}");
    }
    if !report.verdicts.is_empty() {
        let verdicts = if report.brief {
            super::lines::grid(&report.verdicts).text(true)
        } else {
            super::acceptance::grid(&report.verdicts).text(false)
        };
        let _ = writeln!(out, "{verdicts}");
    }
    if report.brief {
        let (rows, cells) = (report.rows.len(), report.verdicts.len());
        let more = "--verbose, or --out FILE for `braid bench report`";
        let _ = writeln!(out, "{cells} cells, {rows} rows: {more}");
    }
    out
}

/// Of a surface.
pub(super) fn summaries(report: &Report) -> Grid {
    let head = ["ratio over all cells", "phase", "cells", "mean", "deviation", "least", "most"];
    let mut grid = Grid::new(head);
    for s in &report.summaries {
        let what = format!("{} over {}", s.name, s.base(report));
        let texts = [what, s.phase.clone(), s.cells.to_string()];
        grid.add(texts.into_iter().chain(s.parts().map(percent)), Mark::Plain);
    }
    grid
}

/// A line for each row. A column in which nothing stands is left out.
pub(super) fn rows(report: &Report) -> Grid {
    let ratio = format!("ratio to {}", report.base);
    let ratio = ratio.trim_end_matches(" to ");
    let tails = "p50, p99, p99.9, p99.99 us (of)";
    let mut grid = Grid::new([
        "",
        "phase",
        &report.unit,
        "min..max",
        ratio,
        "spread",
        "CPU s/GiB",
        tails,
        "cache",
    ]);
    for row in &report.rows {
        let unit = if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) };
        let ratio = report.base_of(row).map(|base| row.ratio_to(base));
        let [ratio, spread] = ratio.map_or_else(Default::default, |ratio| {
            let sure = Interval::of(&ratio).map(|i| format!(" [{:.3}, {:.3}]", i.low, i.high));
            let (low, high) = ratio.spread();
            let median = three_digits(ratio.median());
            [median + &sure.unwrap_or_default(), format!("{low:.2}..{high:.2}")]
        });
        let tail = row.tail().map(|tail| {
            let of = |(_, value): (_, Option<f64>)| value.map_or("-".to_owned(), rate);
            format!("{} ({})", tail.known().map(of).join(", "), tail.count)
        });
        let cells = [
            row.name.clone(),
            row.phase_and_place(),
            format!("{}{unit}", rate(row.rate.median())),
            row.range(),
            ratio,
            spread,
            row.cpu.known_median().map(|s| format!("{s:.2}")).unwrap_or_default(),
            tail.unwrap_or_default(),
            row.cache.clone().unwrap_or_default(),
        ];
        grid.add(cells, Mark::Plain);
    }
    [8, 7, 5, 4].into_iter().fold(grid, Grid::without_empty)
}
