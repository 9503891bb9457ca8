//! `braid bench report RESULT...`: results as one page, as JSON, as CSV.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Report, page::page};

/// Write results as one self-contained HTML page; also as JSON and CSV
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Results that other modes wrote by `--out` or `--json`
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The HTML page
    #[arg(long, value_name = "FILE", default_value = "braid-bench.html")]
    html: PathBuf,
    /// A JSON file of all results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A CSV file with every sample of every row
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut reports = Vec::new();
    let outputs = [Some(&args.html), args.json.as_ref(), args.csv.as_ref()];
    let outputs: Vec<_> = outputs.into_iter().flatten().collect();
    for path in &args.results {
        reports.push((path.display().to_string(), Report::load(path)?));
        for out in &outputs {
            ensure!(!same(out, path), "{}: would be written over", path.display());
        }
    }
    for (n, out) in outputs.iter().enumerate() {
        let again = outputs.iter().skip(n + 1).any(|o| same(o, out));
        ensure!(!again, "{}: named twice", out.display());
    }
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).with_context(|| path.display().to_string())
    };
    write(&args.html, page(&reports))?;
    if let Some(path) = &args.json {
        let all: Vec<_> = reports.iter().map(|(_, r)| r).collect();
        write(path, serde_json::to_string(&all)? + "\n")?;
    }
    if let Some(path) = &args.csv {
        write(path, csv(&reports)?)?;
    }
    println!("{}", args.html.display());
    Ok(())
}

/// Whether two names are of one file, whatever they look like, and whether it is there yet.
fn same(a: &Path, b: &Path) -> bool {
    let file = |p: &Path| std::fs::metadata(p).map(|m| (m.dev(), m.ino()));
    match (file(a), file(b)) {
        (Ok(a), Ok(b)) => a == b,
        (Err(_), Err(_)) => {
            let dirs = [a, b].map(|p| file(crate::run::names::parent(p)).ok());
            a.file_name() == b.file_name() && dirs[0].is_some() && dirs[0] == dirs[1]
        }
        _ => false,
    }
}

/// The columns of [`csv`].
const COLUMNS: &str =
    "file,mode,name,phase,parameters,repeat,rate,unit,cpu_s_per_gib,ratio,p50_us,p99_us,p99_99_us";

/// A line for each sample.
pub(super) fn csv(reports: &[(String, Report)]) -> Result<String> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(COLUMNS.split(','))?;
    for (file, report) in reports {
        for row in &report.rows {
            let base = report.base_of(row);
            let unit = if row.unit.is_empty() { &report.unit } else { &row.unit };
            for (n, value) in row.rate.0.iter().enumerate() {
                let ratio = base.and_then(|b| row.ratio_to(b).0.get(n).copied());
                let known = row.latency.get(n).map(crate::engine::Percentiles::known);
                let l = |q: usize| known.and_then(|k| k.get(q).and_then(|(_, value)| *value));
                let figure = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v}"));
                let texts =
                    [file, &report.kind, &row.name, &row.phase, &row.at()].map(String::clone);
                let rate = [(n + 1).to_string(), value.to_string(), unit.clone()];
                let figures = [row.cpu.0.get(n).copied(), ratio, l(0), l(1), l(3)].map(figure);
                out.write_record(texts.into_iter().chain(rate).chain(figures))?;
            }
        }
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::at;

    fn surface() -> Report {
        let mut report = Report::new("surface").against("raw", "MB/s");
        for name in ["raw", "<b>&'fs\""] {
            for request in [65536.0, 131_072.0] {
                for transfer in [131_072.0, 1_048_576.0] {
                    let place = at(&[("request", request), ("transfer", transfer)]);
                    let row = report.row(name, "read direct", &place);
                    row.rate.0.extend([100.0, 110.0]);
                }
            }
        }
        report.note("a, \"b\"");
        report.verdicts = crate::report::acceptance::judge(&report, &["0.95".parse().unwrap()]);
        report
    }

    #[test]
    fn a_page_needs_nothing_else_and_no_name_becomes_markup() {
        let html = page(&[("x<script>".to_owned(), surface())]);
        // Two maps, and the original's efficiencies, dashed.
        assert_eq!(html.matches("<svg").count(), 3);
        assert!(html.matches("stroke-dasharray").count() == 3, "{html}");
        assert!(html.matches("data-value=").count() >= 8);
        assert!(!html.contains("<b>&'fs") && !html.contains("x<script>"));
        for fetched in ["http:", "https:", "//", "src=", "@import", "url("] {
            assert!(!html.contains(fetched), "{fetched}");
        }
        assert!(html.contains("class=\"verdicts\""));
    }
    #[test]
    fn every_shape_of_result_has_a_plot() {
        let mut lines = Report::new("curve").against("raw", "IOPS");
        let mut sweep = Report::new("sweep").against("raw", "MB/s");
        let mut flat = Report::new("ladder").against("raw", "MB/s");
        for n in [1.0, 2.0, 3.0] {
            let row = lines.row("raw", "read", &at(&[("load", n)]));
            row.rate.0.push(n);
            row.latency.push(crate::engine::Percentiles {
                count: 100_000,
                p50: n,
                p99: 2.0 * n,
                ..Default::default()
            });
            let place = at(&[("request", n * 4096.0), ("streams", 2.0)]);
            sweep.row("raw", "write direct", &place).rate.0.push(n);
            flat.row("raw", "write", &at(&[])).rate.0.push(n);
        }
        for (report, least) in [(lines, 2), (sweep, 1), (flat, 1)] {
            let html = page(&[(String::new(), report.clone())]);
            assert!(html.matches("<svg").count() >= least, "{}", report.kind);
            assert!(!html.contains("NaN") && !html.contains("inf"), "{}", report.kind);
        }
        // Nothing measured, or only zeros, is a page too.
        assert!(!page(&[(String::new(), Report::new("x"))]).contains("NaN"));
    }
    #[test]
    fn the_page_begins_with_a_verdict_and_what_it_has() {
        let met = |goal: &str| {
            let mut report = surface();
            report.verdicts = crate::report::acceptance::judge(&report, &[goal.parse().unwrap()]);
            page(&[("one.json".to_owned(), report.clone()), ("two.json".to_owned(), report)])
        };
        let (good, bad) = (met("0.95"), met("2"));
        assert!(good.contains("<p class=\"met\" id=\"verdict\">All 8 goals"));
        assert!(bad.contains("<p class=\"short\" id=\"verdict\">8 of 8 goals"));
        let none = page(&[(String::new(), Report::new("x"))]);
        assert!(none.contains("No goals were judged."));
        // The contents lead to each section.
        let nav = good.split_once("<nav>").unwrap().1.split_once("</nav>").unwrap().0;
        for (n, name) in [(1, "one.json"), (2, "two.json")] {
            assert!(
                nav.contains(&format!("<a href=\"#result{n}\">surface</a> <small>{name}")),
                "{nav}"
            );
            assert!(good.contains(&format!("<h2 id=\"result{n}\">")));
        }
        assert_eq!(nav.matches("<a ").count(), 2);
    }
    #[test]
    fn load_of_other_programs_is_a_banner() {
        let page_of = |foreign: &[f64]| {
            let mut report = surface();
            let rounds = report.rounds.get_or_insert_default();
            rounds.foreign = foreign.to_vec();
            page(&[(String::new(), report)])
        };
        let banner = "<p class=\"banner\">Other programs used up to 1.5 processors";
        assert!(page_of(&[0.0, 1.5, 0.2]).contains(banner));
        for quiet in [&[][..], &[0.0, 0.1]] {
            assert!(!page_of(quiet).contains("Other programs used"), "{quiet:?}");
        }
        let failed = Report { failed: Some("a device failed".to_owned()), ..surface() };
        let html = page(&[(String::new(), failed)]);
        assert!(html.contains("<p class=\"banner\">Ended early: a device failed"));
    }
    #[test]
    fn repeats_have_a_whisker_also_if_they_are_alike() {
        let whiskers = |rates: &[f64]| {
            let mut report = Report::new("ladder").against("raw", "MB/s");
            for n in [1.0, 2.0] {
                report.row("raw", "read", &at(&[("load", n)])).rate.0.extend(rates);
            }
            let html = page(&[(String::new(), report)]);
            let paths = html.split("class=\"whisker\" d=\"").skip(1);
            paths.map(|path| path.split('"').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // From the lower end to the upper one; a line across, if these are the same.
        let ends = |path: &String| -> (f64, f64) {
            let (low, rest) = path.split_once('V').unwrap();
            let (low, high) = (low.split(' ').nth(1).unwrap(), rest.split('M').next().unwrap());
            (low.parse().unwrap(), high.parse().unwrap())
        };
        let spread = whiskers(&[100.0, 130.0, 110.0]);
        assert!(
            spread.len() >= 2 && spread.iter().all(|path| ends(path).0 > ends(path).1),
            "{spread:?}"
        );
        let alike = whiskers(&[100.0, 100.0]);
        assert!(
            alike.len() >= 2 && alike.iter().all(|path| (ends(path).0 - ends(path).1).abs() < 1e-9),
            "{alike:?}"
        );
        assert!(alike.iter().all(|path| path.matches('H').count() == 2), "{alike:?}");
        assert_eq!(whiskers(&[100.0]), [""; 0], "nobody knows how much one measurement differs");
    }
    #[test]
    fn results_are_read_as_they_were_written_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let report = surface();
        report.save(&path).unwrap();
        let again = Report::load(&path).unwrap();
        assert_eq!(again.rows.len(), report.rows.len());
        assert_eq!(again.verdicts, report.verdicts);
        for bad in ["", "{}", "[1]", "{\"setup\":[],\"rows\":[],\"issued\":[],\"version\":99}"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Report::load(&path).is_err(), "{bad}");
        }
        let text = csv(&[("a,b".to_owned(), report)]).unwrap();
        assert_eq!(text.lines().count(), 1 + 8 * 2);
        assert!(text.lines().nth(1).unwrap().starts_with("\"a,b\",surface,raw,read direct,"));
    }
    #[test]
    fn an_hours_result_is_small() {
        // Every cell of the original surface, four phases, two systems, a hundred rounds.
        let mut report = Report::new("surface").against("raw", "MB/s");
        for n in 0..98 {
            for name in ["raw", "fs"] {
                for phase in ["a", "b", "c", "d"] {
                    let row = report.row(name, phase, &at(&[("request", f64::from(n))]));
                    row.rate.0 = vec![234.567_890_123; 100];
                    row.cpu.0 = vec![0.123_456_789_012; 100];
                    row.latency = vec![crate::engine::Percentiles::default(); 100];
                    for key in ["seconds", "iops", "own CPU seconds", "stolen", "switches"] {
                        row.more.entry(key.to_owned()).or_default().0 = vec![0.123_456_789; 100];
                    }
                }
            }
        }
        let bytes = serde_json::to_string(&report).unwrap().len();
        assert!(bytes < 50_000_000, "{bytes}");
    }
}
