//! The HTML report: one page with its styles, plots and script inside. The browser fetches nothing.

use itertools::Itertools as _;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Report;
use super::colours::Colours;
use super::grid::Mark;
use super::plots::plots;
use super::table::percent;
use super::{acceptance, lines, published, table};
use crate::run::repeat::Rounds;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
/// Processors' worth of other programs' work from which on a result is doubtful.
const FOREIGN_MAX: f64 = 0.1;

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
    let of = |key| reports.iter().filter_map(move |(_, r)| r.environment.get(key)).unique();
    let dates: Vec<_> = of("time").sorted().collect();
    let dates = [dates.first(), dates.last()].into_iter().flatten().unique().join(" to ");
    let verdicts = || reports.iter().flat_map(|(_, report)| &report.verdicts);
    let measured = verdicts().filter(|v| v.measured.is_some()).count();
    let met = verdicts().filter(|v| v.measured.is_some() && v.met).count();
    let facts = [
        ("host", of("host").join(", ")),
        ("date", dates),
        ("version", of("program").join(", ")),
        ("processor", of("processor").join(", ")),
        ("processors", of("processors").join(", ")),
        ("memory", of("memory").map(|text| memory(text)).unique().join(", ")),
        ("kernel", of("kernel").join(", ")),
    ];
    html! {
        h1 { "braid bench" }
        @match (measured, measured - met) {
            (0, _) => p #verdict { "No goals were judged." },
            (all, 0) => p #verdict.met { "All " (all) " goals that were judged are met." },
            (all, short) => p #verdict.short { (short) " of " (all) " goals that were judged are not met." },
        }
        dl {
            @for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
                dt.soft { (name) } dd { (value) }
            }
        }
    }
}

/// As the kernel says it, in GiB.
fn memory(text: &str) -> String {
    let kib = text.strip_suffix("kB").and_then(|n| n.trim().parse::<f64>().ok());
    kib.map_or_else(|| text.to_owned(), |kib| format!("{:.1} GiB", kib / f64::from(1 << 20)))
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

/// A line for each experiment, if there are several cells of one; then every cell.
fn verdicts(report: &Report) -> Markup {
    let experiments = lines::grid(&report.verdicts);
    let grouped = experiments.rows.len() != report.verdicts.len();
    html! {
        @if grouped { (experiments.html("experiments")) }
        @if !report.verdicts.is_empty() {
            details open[!grouped] {
                summary { "every cell" }
                (acceptance::grid(&report.verdicts).html("verdicts"))
            }
        }
    }
}

/// With those of the original below them.
fn summaries(report: &Report) -> Markup {
    let mut grid = table::summaries(report);
    for (layer, mode, figures) in published::EFFICIENCIES {
        let figures = figures.map(|figure| percent(figure / 100.0));
        let what = [format!("{layer}, 1998"), mode.to_owned(), String::new()];
        grid.add(what.into_iter().chain(figures), Mark::Original);
    }
    html! { @if !report.summaries.is_empty() { (grid.html("summaries")) } }
}

fn rows(report: &Report) -> Markup {
    html! {
        @if !report.rows.is_empty() {
            details open { summary { "all rows" } (table::rows(report).html("rows")) }
        }
    }
}
