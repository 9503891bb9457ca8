//! What there is to draw of a result.

use itertools::Itertools as _;
use maud::Markup;

use super::colours::Colours;
use super::published;
use super::svg::{Bar, Bars, Heat, Line, Plot, Value};
use super::table::number;
use super::units::{human, parameter};
use super::{Report, Row};
use crate::statistics::{Samples, float};

/// Most lines of one plot over time: more go into further plots.
const SERIES_MAX: usize = 8;

pub(super) fn plots(report: &Report, colours: &Colours) -> Vec<Markup> {
    let phases = report.rows.iter().map(|row| row.phase.as_str()).unique();
    let mut lines = Vec::new();
    let mut maps = Vec::new();
    for phase in phases {
        let rows: Vec<&Row> = report.rows.iter().filter(|r| r.phase == phase).collect();
        let key = rows.iter().find_map(|r| r.parameters.keys().next());
        match (rows.iter().map(|r| r.parameters.len()).max(), key) {
            (Some(1), Some(key)) => lines.extend(over(report, phase, &rows, key)),
            (Some(2..), _) if rows.iter().any(|r| r.parameters.contains_key("transfer")) => {
                maps.extend(heats(report, phase, &rows));
            }
            (Some(2..), _) => lines.extend(over(report, phase, &rows, "request")),
            _ => {}
        }
    }
    let mut out: Vec<Markup> = bars(report).iter().map(|bars| bars.drawn(colours)).collect();
    out.extend(maps.iter().map(Heat::drawn));
    if report.rows.iter().all(|r| r.parameters.is_empty()) {
        lines.extend(over_repeats(report));
    }
    lines.extend(over_time(report));
    out.extend(lines.iter().filter(|p| !p.lines.is_empty()).map(|p| p.drawn(colours)));
    out
}

/// The median, and the least and the highest repeat.
fn spread(samples: &Samples) -> Value {
    let (low, high) = samples.spread();
    Value { middle: samples.median(), low, high, repeated: samples.0.len() > 1 }
}

/// Rate and ratio over one parameter, a line for each system and each value of the others; over a
/// parameter that is the only one the latency, too.
fn over(report: &Report, phase: &str, rows: &[&Row], key: &str) -> Vec<Plot> {
    let (title, y) = (phase.to_owned(), unit(report, rows).to_owned());
    let mut plot = Plot { title, x: key.to_owned(), y, ..Plot::default() };
    let mut ratio = Plot {
        title: format!("{phase}: ratio to {}", base_name(report, rows)),
        y: format!("ratio to {}", base_name(report, rows)),
        ratios: true,
        ..plot.clone()
    };
    let title = format!("{phase}: latency");
    let mut tail = Plot { title, y: "us".to_owned(), ..plot.clone() };
    let only = rows.iter().all(|r| r.parameters.len() < 2);
    for row in rows {
        let Some(x) = row.parameters.get(key) else { continue };
        let others = row.parameters.iter().filter(|(k, _)| *k != key);
        let others = others.map(|(k, v)| format!("{} {k}", number(k, *v)));
        let name = std::iter::once(row.name.clone()).chain(others).join(", ");
        push(&mut plot, (&row.name, &name), *x, spread(&row.rate));
        if let (false, Some(base)) = (report.is_base(row), report.base_of(row)) {
            push(&mut ratio, (&row.name, &name), *x, spread(&row.ratio_to(base)));
        }
        let known = row.tail().filter(|_| only).map(crate::engine::Percentiles::known);
        for (q, v) in known.into_iter().flatten() {
            if let Some(v) = v {
                push(&mut tail, (&row.name, &format!("{name} {q}")), *x, Value::exact(v));
            }
        }
    }
    plot.published = published::curves(phase);
    vec![plot, ratio, tail]
}

/// Of the rates of a phase.
fn unit<'r>(report: &'r Report, rows: &[&'r Row]) -> &'r str {
    rows.iter().map(|r| r.unit.as_str()).find(|u| !u.is_empty()).unwrap_or(&report.unit)
}

/// What the rows of a phase are compared with.
fn base_name<'r>(report: &'r Report, rows: &[&'r Row]) -> &'r str {
    rows.first().map_or("", |row| report.base_name(row))
}

fn push(plot: &mut Plot, (system, name): (&str, &str), x: f64, y: Value) {
    match plot.lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push((x, y)),
        None => plot.lines.push(Line {
            system: system.to_owned(),
            name: name.to_owned(),
            points: vec![(x, y)],
        }),
    }
}

/// A map for each system: ratio to the base, or rate over the largest.
fn heats(report: &Report, phase: &str, rows: &[&Row]) -> Vec<Heat> {
    let sorted = |key: &str| -> Vec<f64> {
        let all = rows.iter().filter_map(|r| r.parameters.get(key).copied());
        all.sorted_by(f64::total_cmp).dedup().collect()
    };
    let (requests, transfers) = (sorted("request"), sorted("transfer"));
    let names = rows.iter().map(|r| r.name.as_str()).sorted_unstable().dedup();
    let most = rows.iter().map(|r| r.rate.median()).fold(0.0, f64::max);
    let base = base_name(report, rows);
    let map = |name: &str| {
        let is_base = name == base;
        let cell = |request: f64, transfer: f64| {
            let at = super::at(&[("request", request), ("transfer", transfer)]);
            let row = report.find(name, phase, &at)?;
            if is_base {
                return Some(row.rate.median() / most.max(f64::MIN_POSITIVE));
            }
            Some(row.ratio_to(report.base_of(row)?).median())
        };
        let title = if is_base {
            let most = human(most, unit(report, rows));
            format!("{phase}, {name}: part of its highest rate, {most}")
        } else {
            format!("{phase}, {name}: ratio to {base}")
        };
        let row = |r: &f64| transfers.iter().map(|t| cell(*r, *t)).collect();
        Heat {
            title,
            axes: (parameter("transfer").to_owned(), parameter("request").to_owned()),
            columns: transfers.iter().map(|t| number("transfer", *t)).collect(),
            rows: requests.iter().map(|r| number("request", *r)).collect(),
            cells: requests.iter().map(row).collect(),
        }
    };
    names.map(map).collect()
}

/// Rows without parameters: of each mode and unit the phases side by side, a bar for each system.
fn bars(report: &Report) -> Vec<Bars> {
    let mut all: Vec<Bars> = Vec::new();
    for row in report.rows.iter().filter(|r| r.parameters.is_empty() && !r.rate.0.is_empty()) {
        let (mode, phase) = row.phase.split_once(": ").unwrap_or(("", &row.phase));
        let title = if mode.is_empty() { &report.kind } else { mode };
        let y = unit(report, &[row]);
        let place = all.iter().position(|bars| bars.title == title && bars.y == y);
        let place = place.unwrap_or_else(|| {
            let (title, y) = (title.to_owned(), y.to_owned());
            all.push(Bars { title, y, groups: Vec::new() });
            all.len() - 1
        });
        let Some(Bars { groups, .. }) = all.get_mut(place) else { continue };
        let bar = Bar { system: row.name.clone(), value: spread(&row.rate) };
        match groups.iter_mut().find(|(name, _)| name == phase) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((phase.to_owned(), vec![bar])),
        }
    }
    all
}

/// Rows without parameters: every sample, so that drift is seen.
fn over_repeats(report: &Report) -> Option<Plot> {
    let mut plot = Plot {
        title: "every repeat".to_owned(),
        x: "repeat".to_owned(),
        y: report.unit.clone(),
        ..Plot::default()
    };
    for row in report.rows.iter().filter(|row| row.rate.0.len() > 1) {
        for (n, v) in (1_u32..).zip(&row.rate.0) {
            let name = format!("{} {}", row.name, row.phase);
            push(&mut plot, (&row.name, &name), f64::from(n), Value::exact(*v));
        }
    }
    (!plot.lines.is_empty()).then_some(plot)
}

/// Bandwidth over time of the rows that kept it.
fn over_time(report: &Report) -> Vec<Plot> {
    let kept: Vec<&Row> = report.rows.iter().filter(|row| row.series.is_some()).collect();
    let several = kept.len() > SERIES_MAX;
    let part = |(n, rows): (u32, &[&Row])| {
        let which = if several { format!(", part {n}") } else { String::new() };
        let mut plot = Plot {
            title: format!("over time, last repeat{which}"),
            x: "seconds".to_owned(),
            y: "MB/s".to_owned(),
            ..Plot::default()
        };
        for row in rows {
            let Some(series) = &row.series else { continue };
            let interval = float(series.interval_ms) / 1e3;
            let name = format!("{} {}", row.name, row.phase_and_place());
            for (n, bytes) in (0..).zip(&series.bytes) {
                let rate = float(*bytes) / 1e6 / interval;
                push(&mut plot, (&row.name, &name), float(n) * interval, Value::exact(rate));
            }
        }
        plot
    };
    (1..).zip(kept.chunks(SERIES_MAX)).map(part).collect()
}
