//! The HTML report: one page with its styles, plots and script inside. The browser fetches nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::colours::Colours;
use super::lines::{HEADER, cells, lines};
use super::plots::plots;
use super::published;
use super::table::percent;
use super::{Report, Row};
use crate::run::repeat::Rounds;
use crate::statistics::{Interval, rate, three_digits};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
/// Processors' worth of other programs' work from which on a result is doubtful.
const FOREIGN_MAX: f64 = 0.1;

/// The page of some results.
pub(super) fn page(reports: &[(String, Report)]) -> String {
    let colours = Colours::of(reports);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { "braid bench" }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                input #originals type="checkbox" checked;
                label for="originals" { " figures of the founding documents" }
                main {
                    header { (heading(reports)) }
                    (contents(reports))
                    @for (n, (name, report)) in (1..).zip(reports) { (section(n, name, report, &colours)) }
                }
                div #value {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    markup.into_string() + "\n"
}

/// Host, date, version and verdict of all results; one that they share is said once.
fn heading(reports: &[(String, Report)]) -> Markup {
    let of = |key: &str| {
        let mut values: Vec<&str> = Vec::new();
        for value in reports.iter().filter_map(|(_, r)| r.environment.get(key)) {
            if !values.contains(&value.as_str()) {
                values.push(value);
            }
        }
        values.join(", ")
    };
    let verdicts = || reports.iter().flat_map(|(_, report)| &report.verdicts);
    let measured = verdicts().filter(|v| v.measured.is_some()).count();
    let met = verdicts().filter(|v| v.measured.is_some() && v.met).count();
    let facts = [
        ("host", of("host")),
        ("date", of("time")),
        ("version", of("program")),
        ("processor", of("processor")),
        ("processors", of("processors")),
        ("memory", of("memory")),
        ("kernel", of("kernel")),
    ];
    html! {
        h1 { "braid bench" }
        @match (measured, measured - met) {
            (0, _) => p #verdict { "No goals were judged." },
            (all, 0) => p #verdict.met { "All " (all) " goals that were judged are met." },
            (all, short) => p #verdict.short { (short) " of " (all) " goals that were judged are not met." },
        }
        dl {
            @for (key, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
                dt.soft { (key) } dd { (value) }
            }
        }
    }
}

fn kind(report: &Report) -> &str {
    if report.kind.is_empty() { "result" } else { &report.kind }
}

fn contents(reports: &[(String, Report)]) -> Markup {
    html! {
        nav {
            @for (n, (name, report)) in (1..).zip(reports) {
                a href={ "#result" (n) } { (kind(report)) } " " small { (name) } " \u{b7} "
            }
        }
    }
}

fn section(n: u32, name: &str, report: &Report, colours: &Colours) -> Markup {
    html! {
        section {
            h2 id={ "result" (n) } { (kind(report)) " " small { (name) } }
            (banners(report))
            @for note in &report.notes { p.note { (note) } }
            (facts(report))
            (verdicts(report))
            div.plots {
                @for plot in plots(report, colours) { (plot) }
                @for figure in published::figures(&report.kind) { div.original { (figure.drawn(colours)) } }
            }
            @for lost in published::said(&report.kind) { p.original { (lost) } }
            (summaries(report))
            (rows(report))
        }
    }
}

/// What makes a result doubtful.
fn banners(report: &Report) -> Markup {
    let foreign = report.rounds.iter().flat_map(|r| &r.foreign).copied().fold(0.0, f64::max);
    let is_debug = report.environment.get("build").is_some_and(|build| build == "debug");
    html! {
        @if let Some(why) = &report.failed { p.banner { "Ended early: " (why) } }
        @if foreign > FOREIGN_MAX {
            p.banner {
                "Other programs used up to " (format!("{foreign:.1}")) " processors while this was measured: measure again on a quiet machine."
            }
        }
        @if is_debug { p.banner { "Measured with a debug build, which is slower." } }
    }
}

fn facts(report: &Report) -> Markup {
    let rounds = report.rounds.as_ref().and_then(Rounds::said);
    let configuration = report.configuration.to_string();
    html! {
        dl {
            @for (key, value) in &report.setup { dt.soft { (key) } dd { (value) } }
            @if let Some(said) = rounds { dt.soft { "rounds" } dd { (said) } }
        }
        details {
            summary { "machine, targets, configuration" }
            dl {
                @for (key, value) in &report.environment { dt.soft { (key) } dd { (value) } }
                @for t in &report.targets {
                    dt.soft { (t.path) }
                    dd {
                        (t.kind) " of " (t.size) " bytes, sectors of " (t.sector)
                        @if let Some(system) = &t.file_system { ", " (system) }
                    }
                }
            }
            pre { (configuration) }
        }
    }
}

fn verdicts(report: &Report) -> Markup {
    let grouped = lines(&report.verdicts).len() != report.verdicts.len();
    let head = ["what", "original", "goal", "measured", "95 % interval", "verdict"];
    html! {
        @if !report.verdicts.is_empty() {
            @if grouped { (experiments(report)) }
            details open[!grouped] {
                summary { "every cell" }
                div.scroll {
                    table.verdicts {
                        tr { @for name in head { th { (name) } } }
                        @for v in &report.verdicts {
                            @let [title, original, figures @ ..] = v.cells();
                            tr {
                                td { (title) } td.l { (original) }
                                @for figure in figures { td { (figure) } }
                                td.l.met[v.met].short[!v.met] { (v.word()) " " (v.note) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A line for each experiment.
fn experiments(report: &Report) -> Markup {
    html! {
        div.scroll {
            table.experiments {
                tr { @for name in HEADER { th.l { (name) } } }
                @for line in lines(&report.verdicts) {
                    @let [texts @ .., verdict] = cells(&line);
                    tr {
                        @for text in texts { td.l { (text) } }
                        td.l.met[line.met()].short[!line.met() && line.short() > 0] { (verdict) }
                    }
                }
            }
        }
    }
}

fn summaries(report: &Report) -> Markup {
    let head = ["ratio over all cells", "phase", "cells", "mean", "deviation", "least", "most"];
    html! {
        @if !report.summaries.is_empty() {
            div.scroll {
                table {
                    tr { @for name in head { th { (name) } } }
                    @for s in &report.summaries {
                        tr {
                            td { (s.name) " over " (s.base(report)) } td.l { (s.phase) } td { (s.cells) }
                            @for part in s.parts() { td { (percent(part)) } }
                        }
                    }
                    @for (layer, mode, figures) in published::EFFICIENCIES {
                        tr.original {
                            td { (layer) ", 1998" } td.l { (mode) } td {}
                            @for figure in figures { td { (percent(figure / 100.0)) } }
                        }
                    }
                }
            }
        }
    }
}

fn rows(report: &Report) -> Markup {
    let head = [
        "min..max",
        "ratio to",
        "95 %",
        "CPU s/GiB",
        "p50 \u{b5}s",
        "p99",
        "p99.9",
        "p99.99",
        "of requests",
        "cache",
    ];
    html! {
        @if !report.rows.is_empty() {
            details open {
                summary { "all rows" }
                div.scroll {
                    table {
                        tr {
                            th {} th { "phase" } th { (report.unit) }
                            @for name in head { th { (name) @if name == "ratio to" { " " (report.base) } } }
                        }
                        @for row in &report.rows { (self::row(report, row)) }
                    }
                }
            }
        }
    }
}

fn row(report: &Report, row: &Row) -> Markup {
    let ratio = report.base_of(row).map(|base| row.ratio_to(base));
    let sure = ratio.as_ref().and_then(Interval::of);
    let mut tail = vec![String::new(); 5];
    if let Some(l) = row.tail() {
        tail = l.known().map(|(_, v)| v.map_or("-".to_owned(), rate)).into();
        tail.push(l.count.to_string());
    }
    html! {
        tr {
            td { (row.name) } td.l { (row.phase_and_place()) }
            td { (rate(row.rate.median())) } td { (row.range()) }
            td { (ratio.map(|r| three_digits(r.median())).unwrap_or_default()) }
            td { (sure.map(|i| i.to_string()).unwrap_or_default()) }
            td { (row.cpu.known_median().map(three_digits).unwrap_or_default()) }
            @for text in tail { td { (text) } }
            td.l { (row.cache.as_deref().unwrap_or_default()) }
        }
    }
}
