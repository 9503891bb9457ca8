//! One page that needs nothing else: styles, plots and a few lines of script inside, no address that
//! a browser would fetch.

use std::fmt::Write as _;

use super::lines::{HEADER, cells, lines};
use super::originals;
use super::svg::{Heat, Plot, escape};
use super::table::number;
use super::{Report, Row};
use crate::run::repeat::Rounds;
use crate::statistics::Interval;
use crate::statistics::rate;

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;\
color:#222}h1{font-size:1.5em}h2{font-size:1.2em;border-bottom:1px solid #ccc;margin-top:2em}\
table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{padding:2px 9px;text-align:right;\
border-bottom:1px solid #e4e4e4}td:first-child,th:first-child,.l{text-align:left}\
.plots{display:flex;flex-wrap:wrap;gap:12px}.plot{background:#fafafa;border:1px solid #ddd}\
.plot text{font-size:10px;fill:#333;pointer-events:none}.plot .title{font-size:12px;font-weight:bold}.plot .cell\
{font-size:8px}.grid{stroke:#ddd}.legend{font-size:12px;max-width:560px}.short{color:#b00;\
font-weight:bold}.met{color:#060}.note{background:#fff6dd;padding:4px 8px;margin:3px 0}\
details{margin:.6em 0}#value{position:fixed;right:1em;bottom:1em;background:#222;color:#fff;\
padding:5px 9px;border-radius:4px;display:none}";

const SCRIPT: &str = "document.addEventListener('mouseover',function(e){var v=document\
.getElementById('value'),d=e.target.getAttribute&&e.target.getAttribute('data-value');\
if(d){v.textContent=d;v.style.display='block'}else{v.style.display='none'}});";

/// The page of some results.
pub(super) fn page(reports: &[(String, Report)]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\
         <meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\
         <title>braid bench</title><link rel='icon' href='data:,'>",
    );
    let _ = write!(out, "<style>{STYLE}</style></head><body><h1>braid bench</h1>");
    for (name, report) in reports {
        section(&mut out, name, report);
    }
    let _ = writeln!(out, "<div id='value'></div><script>{SCRIPT}</script></body></html>");
    out
}

fn section(out: &mut String, name: &str, report: &Report) {
    let kind = if report.kind.is_empty() { "result" } else { &report.kind };
    let _ = write!(out, "<h2>{} <small>{}</small></h2>", escape(kind), escape(name));
    if let Some(why) = &report.failed {
        let _ = write!(out, "<p class='short'>ended early: {}</p>", escape(why));
    }
    for note in &report.notes {
        let _ = write!(out, "<p class='note'>{}</p>", escape(note));
    }
    facts(out, report);
    verdicts(out, report);
    let _ = write!(out, "<div class='plots'>");
    for plot in plots(report) {
        let _ = write!(out, "<div>{plot}</div>");
    }
    for figure in originals::figures(&report.kind) {
        let _ = write!(out, "<div class='original'>{}</div>", figure.svg());
    }
    let _ = write!(out, "</div>");
    for lost in originals::said(&report.kind) {
        let _ = write!(out, "<p>{}</p>", escape(lost));
    }
    summaries(out, report);
    rows(out, report);
}

fn facts(out: &mut String, report: &Report) {
    let _ = write!(out, "<table>");
    for (key, value) in &report.setup {
        let _ =
            write!(out, "<tr><td>{}</td><td class='l'>{}</td></tr>", escape(key), escape(value));
    }
    if let Some(said) = report.rounds.as_ref().and_then(Rounds::said) {
        let _ = write!(out, "<tr><td>rounds</td><td class='l'>{said}</td></tr>");
    }
    let _ =
        write!(out, "</table><details><summary>machine, targets, configuration</summary><table>");
    for (key, value) in &report.environment {
        let _ =
            write!(out, "<tr><td>{}</td><td class='l'>{}</td></tr>", escape(key), escape(value));
    }
    for t in &report.targets {
        let said = format!(
            "{} of {} bytes, sectors of {}{}",
            t.kind,
            t.size,
            t.sector,
            t.file_system.as_ref().map_or(String::new(), |f| format!(", {f}"))
        );
        let path = escape(&t.path);
        let _ = write!(out, "<tr><td>{path}</td><td class='l'>{}</td></tr>", escape(&said));
    }
    let configuration = report.configuration.to_string();
    let _ = write!(out, "</table><pre>{}</pre></details>", escape(&configuration));
}

fn verdicts(out: &mut String, report: &Report) {
    if report.verdicts.is_empty() {
        return;
    }
    let grouped = experiments(out, report);
    let _ = write!(
        out,
        "<details{}><summary>every cell</summary><table class='verdicts'><tr><th>what</th><th>original</th><th>goal</th><th>measured</th>\
         <th>95 % interval</th><th>verdict</th></tr>",
        if grouped { "" } else { " open" }
    );
    for v in &report.verdicts {
        let (class, word) = (if v.met { "met" } else { "short" }, v.word());
        let interval = v.interval.map_or(String::new(), |i| format!("{:.3}..{:.3}", i.low, i.high));
        let _ = write!(
            out,
            "<tr><td>{}</td><td class='l'>{}</td><td>{}</td><td>{}</td><td>{interval}</td>\
             <td class='l {class}'>{word} {}</td></tr>",
            escape(&v.title()),
            escape(&v.original),
            escape(&v.goal_said()),
            v.measured.map_or(String::new(), |m| format!("{m:.3}")),
            escape(&v.note)
        );
    }
    let _ = write!(out, "</table></details>");
}

/// A line for each experiment, if some have several cells.
fn experiments(out: &mut String, report: &Report) -> bool {
    let lines = lines(&report.verdicts);
    if lines.len() == report.verdicts.len() {
        return false;
    }
    let _ = write!(out, "<table class='experiments'><tr>");
    for name in HEADER {
        let _ = write!(out, "<th class='l'>{}</th>", escape(name));
    }
    let _ = write!(out, "</tr>");
    for line in lines {
        let class = match (line.met(), line.short()) {
            (true, _) => "met",
            (false, 0) => "",
            _ => "short",
        };
        let _ = write!(out, "<tr>");
        for (n, cell) in cells(&line).iter().enumerate() {
            let class = if n + 1 == HEADER.len() { class } else { "" };
            let _ = write!(out, "<td class='l {class}'>{}</td>", escape(cell));
        }
        let _ = write!(out, "</tr>");
    }
    let _ = write!(out, "</table>");
    true
}

fn summaries(out: &mut String, report: &Report) {
    if report.summaries.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<table><tr><th>ratio over all cells</th><th>phase</th><th>cells</th><th>mean</th>\
         <th>deviation</th><th>least</th><th>most</th></tr>"
    );
    for s in &report.summaries {
        let _ = write!(
            out,
            "<tr><td>{} over {}</td><td class='l'>{}</td><td>{}</td>",
            escape(&s.name),
            escape(if s.base.is_empty() { &report.base } else { &s.base }),
            escape(&s.phase),
            s.cells
        );
        percents(out, [s.mean, s.deviation, s.min, s.max]);
    }
    for (layer, mode, figures) in originals::EFFICIENCIES {
        let _ = write!(out, "<tr><td>{layer}, 1998</td><td class='l'>{mode}</td><td></td>");
        percents(out, figures.map(|f| f / 100.0));
    }
    let _ = write!(out, "</table>");
}

fn percents(out: &mut String, parts: [f64; 4]) {
    for part in parts {
        let _ = write!(out, "<td>{:.1} %</td>", part * 100.0);
    }
    let _ = write!(out, "</tr>");
}

fn rows(out: &mut String, report: &Report) {
    if report.rows.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<details open><summary>all rows</summary><table><tr><th></th><th>phase</th><th>{}</th>\
         <th>min..max</th><th>ratio to {}</th><th>95 %</th><th>CPU s/GiB</th><th>p50 us</th>\
         <th>p99</th><th>p99.9</th><th>p99.99</th><th>of requests</th><th>cache</th></tr>",
        escape(&report.unit),
        escape(&report.base)
    );
    for row in &report.rows {
        let at = row.at();
        let phase = if at.is_empty() { row.phase.clone() } else { format!("{}, {at}", row.phase) };
        let (low, high) = row.rate.spread();
        let ratio = report.base_of(row).map(|b| row.ratio_to(b));
        let sure = ratio.as_ref().and_then(Interval::of);
        let mut tail = vec![String::new(); 5];
        if let Some(l) = row.tail() {
            tail = l.known().map(|(_, v)| v.map_or("-".to_owned(), rate)).into();
            tail.push(l.count.to_string());
        }
        let cells = [
            rate(row.rate.median()),
            format!("{}..{}", rate(low), rate(high)),
            ratio.map_or(String::new(), |r| format!("{:.3}", r.median())),
            sure.map_or(String::new(), |i| format!("{:.3}..{:.3}", i.low, i.high)),
            if row.cpu.0.is_empty() { String::new() } else { format!("{:.3}", row.cpu.median()) },
        ];
        let _ =
            write!(out, "<tr><td>{}</td><td class='l'>{}</td>", escape(&row.name), escape(&phase));
        for cell in cells.iter().chain(&tail) {
            let _ = write!(out, "<td>{cell}</td>");
        }
        let cache = row.cache.as_deref().unwrap_or_default();
        let _ = write!(out, "<td class='l'>{}</td></tr>", escape(cache));
    }
    let _ = write!(out, "</table></details>");
}

/// What there is to draw.
fn plots(report: &Report) -> Vec<String> {
    let mut phases: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !phases.contains(&row.phase.as_str()) {
            phases.push(&row.phase);
        }
    }
    let mut out = Vec::new();
    for phase in phases {
        let rows: Vec<&Row> = report.rows.iter().filter(|r| r.phase == phase).collect();
        let of = |r: &&Row| r.parameters.len();
        match rows.iter().map(of).max().unwrap_or(0) {
            0 => {}
            1 => out.extend(one_axis(report, phase, &rows)),
            _ if rows.iter().any(|r| r.parameters.contains_key("transfer")) => {
                out.extend(heats(report, phase, &rows));
            }
            _ => out.extend(two_axes(report, phase, &rows)),
        }
    }
    if report.rows.iter().all(|r| r.parameters.is_empty()) {
        out.extend(over_repeats(report));
    } else {
        out.extend(side_by_side(report));
    }
    out.extend(over_time(report));
    out
}

/// Rate, ratio and latency over the one parameter.
fn one_axis(report: &Report, phase: &str, rows: &[&Row]) -> Vec<String> {
    let Some(key) = rows.iter().find_map(|r| r.parameters.keys().next()) else { return Vec::new() };
    let (title, y) = (phase.to_owned(), unit(report, rows).to_owned());
    let mut plot = Plot { title, x: key.clone(), y, ..Plot::default() };
    let mut ratio = Plot {
        title: format!("{phase}: ratio to {}", base_name(report, rows)),
        y: "of it".to_owned(),
        ..plot.clone()
    };
    let mut tail = Plot {
        title: format!("{phase}: latency"),
        y: "us".to_owned(),
        log_y: true,
        ..plot.clone()
    };
    for row in rows {
        let Some(x) = row.parameters.get(key) else { continue };
        push(&mut plot, &row.name, *x, row.rate.median());
        if let (false, Some(base)) = (report.is_base(row), report.base_of(row)) {
            push(&mut ratio, &row.name, *x, row.ratio_to(base).median());
        }
        for (q, v) in row.tail().into_iter().flat_map(crate::engine::Percentiles::known) {
            if let Some(v) = v {
                push(&mut tail, &format!("{} {q}", row.name), *x, v);
            }
        }
    }
    plot.originals = originals::curves(phase);
    let all = [plot, ratio, tail];
    all.into_iter().filter(|p| !p.lines.is_empty()).map(|p| p.svg()).collect()
}

/// Of the rates of a phase.
fn unit<'r>(report: &'r Report, rows: &[&'r Row]) -> &'r str {
    rows.iter().map(|r| r.unit.as_str()).find(|u| !u.is_empty()).unwrap_or(&report.unit)
}

/// What the rows of a phase are compared with.
fn base_name<'r>(report: &'r Report, rows: &[&'r Row]) -> &'r str {
    rows.first().map_or("", |row| report.base_name(row))
}

fn push(plot: &mut Plot, name: &str, x: f64, y: f64) {
    match plot.lines.iter_mut().find(|(n, _)| n == name) {
        Some((_, points)) => points.push((x, y)),
        None => plot.lines.push((name.to_owned(), vec![(x, y)])),
    }
}

/// Over the request size, a line for each number of streams.
fn two_axes(report: &Report, phase: &str, rows: &[&Row]) -> Vec<String> {
    let key = "request";
    let mut plot = Plot {
        title: phase.to_owned(),
        x: key.to_owned(),
        y: unit(report, rows).to_owned(),
        ..Plot::default()
    };
    let mut ratio = Plot {
        title: format!("{phase}: ratio to {}", base_name(report, rows)),
        y: "of it".to_owned(),
        ..plot.clone()
    };
    for row in rows {
        let Some(x) = row.parameters.get(key) else { continue };
        let others = row.parameters.iter().filter(|(k, _)| *k != key);
        let at: Vec<_> = others.map(|(k, v)| format!("{} {k}", number(k, *v))).collect();
        let name = format!("{}, {}", row.name, at.join(", "));
        push(&mut plot, &name, *x, row.rate.median());
        if let (false, Some(base)) = (report.is_base(row), report.base_of(row)) {
            push(&mut ratio, &name, *x, row.ratio_to(base).median());
        }
    }
    let all = [plot, ratio];
    all.into_iter().filter(|p| !p.lines.is_empty()).map(|p| p.svg()).collect()
}

/// A map for each system: ratio to the base, or rate over the largest.
fn heats(report: &Report, phase: &str, rows: &[&Row]) -> Vec<String> {
    let sorted = |key: &str| {
        let mut v: Vec<f64> = rows.iter().filter_map(|r| r.parameters.get(key).copied()).collect();
        v.sort_by(f64::total_cmp);
        v.dedup();
        v
    };
    let (requests, transfers) = (sorted("request"), sorted("transfer"));
    let mut names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    let most = rows.iter().map(|r| r.rate.median()).fold(0.0, f64::max);
    let mut out = Vec::new();
    for name in names {
        let base = base_name(report, rows);
        let is_base = name == base;
        let cell = |request: f64, transfer: f64| {
            let here = |r: &&&Row| {
                r.name == name
                    && r.parameters.get("request") == Some(&request)
                    && r.parameters.get("transfer") == Some(&transfer)
            };
            let row = rows.iter().find(here)?;
            if is_base {
                return Some(row.rate.median() / most.max(f64::MIN_POSITIVE));
            }
            Some(row.ratio_to(report.base_of(row)?).median())
        };
        let what = if is_base {
            format!(
                "{phase}, {name}: part of its highest rate, {} {}",
                rate(most),
                unit(report, rows)
            )
        } else {
            format!("{phase}, {name}: ratio to {base}")
        };
        out.push(
            Heat {
                title: what,
                columns: transfers.iter().map(|t| number("transfer", *t)).collect(),
                rows: requests.iter().map(|r| number("request", *r)).collect(),
                cells: requests
                    .iter()
                    .map(|r| transfers.iter().map(|t| cell(*r, *t)).collect())
                    .collect(),
            }
            .svg(),
        );
    }
    out
}

/// Rows without parameters among others that have some: of each mode the phases, one beside the other.
fn side_by_side(report: &Report) -> Vec<String> {
    let mut all: Vec<(&str, Plot, Vec<&str>)> = Vec::new();
    for row in report.rows.iter().filter(|r| r.parameters.is_empty()) {
        let (mode, phase) = row.phase.split_once(": ").unwrap_or(("", &row.phase));
        let y = unit(report, &[row]);
        let n =
            all.iter().position(|(m, plot, _)| *m == mode && plot.y == y).unwrap_or_else(|| {
                let plot = Plot { x: "phase".to_owned(), y: y.to_owned(), ..Plot::default() };
                all.push((mode, plot, Vec::new()));
                all.len() - 1
            });
        let Some((_, plot, phases)) = all.get_mut(n) else { continue };
        let place = phases.iter().position(|p| *p == phase).unwrap_or_else(|| {
            phases.push(phase);
            phases.len() - 1
        });
        push(plot, &row.name, crate::statistics::float(place as u64 + 1), row.rate.median());
    }
    let drawn = |(mode, plot, phases): (&str, Plot, Vec<&str>)| {
        let phases: Vec<_> = (1..).zip(phases).map(|(n, p): (u32, _)| format!("{n} {p}")).collect();
        Plot { title: format!("{mode}: {}", phases.join(", ")), ..plot }.svg()
    };
    all.into_iter().map(drawn).collect()
}

/// Rows without parameters: every sample, so that drift is seen.
fn over_repeats(report: &Report) -> Option<String> {
    let mut plot = Plot {
        title: "every repeat".to_owned(),
        x: "repeat".to_owned(),
        y: report.unit.clone(),
        ..Plot::default()
    };
    for row in &report.rows {
        for (n, v) in (1_u32..).zip(&row.rate.0) {
            push(&mut plot, &format!("{} {}", row.name, row.phase), f64::from(n), *v);
        }
    }
    (!plot.lines.is_empty()).then(|| plot.svg())
}

/// Bandwidth over time of the rows that kept it.
fn over_time(report: &Report) -> Option<String> {
    let mut plot = Plot {
        title: "over time, last repeat".to_owned(),
        x: "seconds".to_owned(),
        y: "MB/s".to_owned(),
        ..Plot::default()
    };
    for row in report.rows.iter().take(7) {
        let Some(series) = &row.series else { continue };
        let interval = crate::statistics::float(series.interval_ms) / 1e3;
        for (n, bytes) in (0..).zip(&series.bytes) {
            let x = crate::statistics::float(n) * interval;
            let y = crate::statistics::float(*bytes) / 1e6 / interval;
            push(&mut plot, &format!("{} {} {}", row.name, row.phase, row.at()), x, y);
        }
    }
    (!plot.lines.is_empty()).then(|| plot.svg())
}
