//! The HTML report: one page with its styles, plots and script inside. The browser fetches nothing.

use std::fmt::Write as _;

use super::lines::{HEADER, cells, lines};
use super::published;
use super::svg::{Heat, Plot, escape};
use super::table::{number, percent};
use super::{Report, Row};
use crate::run::repeat::Rounds;
use crate::statistics::{Interval, float, rate, three_digits};

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

/// A cell of a table, its text to the right.
fn right(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

/// A cell with its text to the left.
fn left(text: &str) -> String {
    classed("l", text)
}

fn classed(class: &str, text: &str) -> String {
    format!("<td class='{class}'>{}</td>", escape(text))
}

fn table_row(cells: &[String]) -> String {
    format!("<tr>{}</tr>", cells.concat())
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
    *out += "<div class='plots'>";
    for plot in plots(report) {
        let _ = write!(out, "<div>{plot}</div>");
    }
    for figure in published::figures(&report.kind) {
        let _ = write!(out, "<div class='original'>{}</div>", figure.svg());
    }
    *out += "</div>";
    for lost in published::said(&report.kind) {
        let _ = write!(out, "<p>{}</p>", escape(lost));
    }
    summaries(out, report);
    rows(out, report);
}

fn facts(out: &mut String, report: &Report) {
    let fact = |(key, value): (&String, &String)| table_row(&[right(key), left(value)]);
    *out += "<table>";
    out.extend(report.setup.iter().map(|(key, value)| fact((key, value))));
    let rounds = report.rounds.as_ref().and_then(Rounds::said);
    out.extend(rounds.map(|said| fact((&"rounds".to_owned(), &said))));
    *out += "</table><details><summary>machine, targets, configuration</summary><table>";
    out.extend(report.environment.iter().map(fact));
    for t in &report.targets {
        let system = t.file_system.as_ref().map_or(String::new(), |f| format!(", {f}"));
        let said = format!("{} of {} bytes, sectors of {}{system}", t.kind, t.size, t.sector);
        *out += &fact((&t.path, &said));
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
        let class = if v.met { "l met" } else { "l short" };
        let [title, original, figures @ ..] = v.cells();
        let mut cells = vec![right(&title), left(&original)];
        cells.extend(figures.iter().map(|figure| right(figure)));
        cells.push(classed(class, &format!("{} {}", v.word(), v.note)));
        *out += &table_row(&cells);
    }
    *out += "</table></details>";
}

/// A line for each experiment, if some have several cells.
fn experiments(out: &mut String, report: &Report) -> bool {
    let lines = lines(&report.verdicts);
    if lines.len() == report.verdicts.len() {
        return false;
    }
    let heads = HEADER.map(|name| format!("<th class='l'>{}</th>", escape(name)));
    let _ = write!(out, "<table class='experiments'>{}", table_row(&heads));
    for line in lines {
        let class = match (line.met(), line.short()) {
            (true, _) => "l met",
            (false, 0) => "l ",
            _ => "l short",
        };
        let [cells @ .., verdict] = &cells(&line);
        let mut cells: Vec<_> = cells.iter().map(|cell| classed("l ", cell)).collect();
        cells.push(classed(class, verdict));
        *out += &table_row(&cells);
    }
    *out += "</table>";
    true
}

fn summaries(out: &mut String, report: &Report) {
    if report.summaries.is_empty() {
        return;
    }
    *out += "<table><tr><th>ratio over all cells</th><th>phase</th><th>cells</th><th>mean</th>\
             <th>deviation</th><th>least</th><th>most</th></tr>";
    let mut line = |name: &str, phase: &str, count: &str, parts: [f64; 4]| {
        let mut cells = vec![right(name), left(phase), right(count)];
        cells.extend(parts.map(|part| right(&percent(part))));
        *out += &table_row(&cells);
    };
    for s in &report.summaries {
        let name = format!("{} over {}", s.name, s.base(report));
        line(&name, &s.phase, &s.cells.to_string(), s.parts());
    }
    for (layer, mode, figures) in published::EFFICIENCIES {
        line(&format!("{layer}, 1998"), mode, "", figures.map(|f| f / 100.0));
    }
    *out += "</table>";
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
        let ratio = report.base_of(row).map(|b| row.ratio_to(b));
        let sure = ratio.as_ref().and_then(Interval::of);
        let mut cells = vec![right(&row.name), left(&row.phase_and_place())];
        cells.extend([
            right(&rate(row.rate.median())),
            right(&row.range()),
            right(&ratio.map(|r| three_digits(r.median())).unwrap_or_default()),
            right(&sure.map(|i| i.to_string()).unwrap_or_default()),
            right(&row.cpu.known_median().map(three_digits).unwrap_or_default()),
        ]);
        let mut tail = vec![String::new(); 5];
        if let Some(l) = row.tail() {
            tail = l.known().map(|(_, v)| v.map_or("-".to_owned(), rate)).into();
            tail.push(l.count.to_string());
        }
        cells.extend(tail.iter().map(|text| right(text)));
        cells.push(left(row.cache.as_deref().unwrap_or_default()));
        *out += &table_row(&cells);
    }
    *out += "</table></details>";
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
        let key = rows.iter().find_map(|r| r.parameters.keys().next());
        match (rows.iter().map(|r| r.parameters.len()).max(), key) {
            (Some(1), Some(key)) => out.extend(over(report, phase, &rows, key)),
            (Some(2..), _) if rows.iter().any(|r| r.parameters.contains_key("transfer")) => {
                out.extend(heats(report, phase, &rows));
            }
            (Some(2..), _) => out.extend(over(report, phase, &rows, "request")),
            _ => {}
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

/// Rate and ratio over one parameter, a line for each system and each value of the others; over a
/// parameter that is the only one the latency, too.
fn over(report: &Report, phase: &str, rows: &[&Row], key: &str) -> Vec<String> {
    let (title, y) = (phase.to_owned(), unit(report, rows).to_owned());
    let mut plot = Plot { title, x: key.to_owned(), y, ..Plot::default() };
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
    let only = rows.iter().all(|r| r.parameters.len() < 2);
    for row in rows {
        let Some(x) = row.parameters.get(key) else { continue };
        let others = row.parameters.iter().filter(|(k, _)| *k != key);
        let others: Vec<_> = others.map(|(k, v)| format!("{} {k}", number(k, *v))).collect();
        let name =
            if only { row.name.clone() } else { format!("{}, {}", row.name, others.join(", ")) };
        push(&mut plot, &name, *x, row.rate.median());
        if let (false, Some(base)) = (report.is_base(row), report.base_of(row)) {
            push(&mut ratio, &name, *x, row.ratio_to(base).median());
        }
        let known = row.tail().filter(|_| only).map(crate::engine::Percentiles::known);
        for (q, v) in known.into_iter().flatten() {
            if let Some(v) = v {
                push(&mut tail, &format!("{name} {q}"), *x, v);
            }
        }
    }
    plot.published = published::curves(phase);
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
        push(plot, &row.name, float(place as u64 + 1), row.rate.median());
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
        let interval = float(series.interval_ms) / 1e3;
        for (n, bytes) in (0..).zip(&series.bytes) {
            let x = float(n) * interval;
            let y = float(*bytes) / 1e6 / interval;
            push(&mut plot, &format!("{} {} {}", row.name, row.phase, row.at()), x, y);
        }
    }
    (!plot.lines.is_empty()).then(|| plot.svg())
}
