//! A result as text for a terminal.

use std::fmt::Write as _;

use super::Report;
use super::acceptance::{Verdict, ruled};
use crate::run::repeat::Rounds;
use crate::statistics::{Interval, float, rate};

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

/// A part of something.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    for (key, value) in &report.setup {
        let _ = writeln!(out, "{key:>10}: {value}");
    }
    if report.brief {
        lines(&mut out, report);
        return out;
    }
    let _ = writeln!(out, "{}", rows(report));
    let by_row = || report.rows.iter().filter(|r| r.issued.is_some());
    if !report.issued.is_empty() || by_row().next().is_some() {
        let _ = writeln!(out, "requests issued to the devices:");
    }
    for (key, said) in &report.issued {
        let _ = writeln!(out, "  {key}: {said}");
    }
    for row in by_row() {
        let _ = writeln!(out, "  {}: {}", row.title(), row.issued.as_deref().unwrap_or_default());
    }
    if let Some(said) = report.rounds.as_ref().and_then(Rounds::said) {
        let _ = writeln!(out, "{said}");
    }
    rest(&mut out, report, super::acceptance::table);
    out
}

/// What is printed of many experiments.
fn lines(out: &mut String, report: &Report) {
    rest(out, report, super::lines::table);
    let (rows, cells) = (report.rows.len(), report.verdicts.len());
    let _ = writeln!(
        out,
        "{cells} cells, {rows} rows: --verbose, or --out FILE for `braid bench report`"
    );
}

/// What stands below the rows, verdicts as `table` draws them.
fn rest(out: &mut String, report: &Report, table: fn(&[Verdict]) -> comfy_table::Table) {
    if !report.summaries.is_empty() {
        let _ = writeln!(out, "{}", summaries(report));
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(why) = &report.failed {
        let _ = writeln!(out, "ended early: {why}");
    }
    if !report.verdicts.is_empty() {
        let _ = writeln!(out, "{}", table(&report.verdicts));
    }
}

fn summaries(report: &Report) -> comfy_table::Table {
    let header =
        ["over all cells, ratio to", "", "phase", "cells", "mean", "deviation", "least", "most"];
    let mut table = ruled(header);
    for s in &report.summaries {
        let (base, cells) = (s.base(report).to_owned(), s.cells.to_string());
        let cells = [base, s.name.clone(), s.phase.clone(), cells];
        table.add_row(cells.into_iter().chain(s.parts().map(percent)));
    }
    table
}

fn rows(report: &Report) -> comfy_table::Table {
    let latency = report.rows.iter().any(|r| !r.latency.is_empty());
    let cache = report.rows.iter().any(|r| r.cache.is_some());
    let mut header: Vec<String> = ["", "phase", &report.unit, "min..max"].map(str::to_owned).into();
    let compared = report.rows.iter().any(|r| report.base_of(r).is_some());
    if compared {
        let ratio = format!("ratio to {}", report.base);
        header.extend([ratio.trim_end_matches(" to ").to_owned(), "spread".to_owned()]);
    }
    header.push("CPU s/GiB".to_owned());
    if latency {
        header.push("p50, p99, p99.9, p99.99 us (of)".to_owned());
    }
    if cache {
        header.push("cache".to_owned());
    }
    let mut table = ruled(header);
    for row in &report.rows {
        let unit = if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) };
        let mut cells = vec![
            row.name.clone(),
            row.phase_and_place(),
            format!("{}{unit}", rate(row.rate.median())),
            row.range(),
        ];
        if compared {
            let ratio = report.base_of(row).map(|b| row.ratio_to(b));
            cells.extend(ratio.map_or([String::new(), String::new()], |ratio| {
                let (low, high) = ratio.spread();
                let sure = Interval::of(&ratio)
                    .map_or(String::new(), |i| format!(" [{:.2}, {:.2}]", i.low, i.high));
                [format!("{:.2}{sure}", ratio.median()), format!("{low:.2}..{high:.2}")]
            }));
        }
        cells.push(row.cpu.known_median().map(|s| format!("{s:.2}")).unwrap_or_default());
        if latency {
            cells.push(row.tail().map_or(String::new(), |tail| {
                let of = |(_, value): (_, Option<f64>)| value.map_or("-".to_owned(), rate);
                format!("{} ({})", tail.known().map(of).join(", "), tail.count)
            }));
        }
        if cache {
            cells.push(row.cache.clone().unwrap_or_default());
        }
        table.add_row(cells);
    }
    table
}
