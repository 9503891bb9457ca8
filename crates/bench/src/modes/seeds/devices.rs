//! Experiments on this machine's devices: a ladder over files in RAM, and, if directories are given,
//! first writes, a sweep and playback in them.

use anyhow::Result;

use super::Args;
use crate::cli::Common;
use crate::modes::{first_write, ladder, sweep};
use crate::report::{Report, Row, Verdict};
use crate::run::interval::Interval;

/// What this command does not measure, and why.
pub(super) const NOT_YET: [(&str, &str); 4] = [
    ("S0.1, S0.2, S0.9", "a mix of NFS operations, a build and a failure are tests of their own"),
    ("S1.6", "the bulk service"),
    ("S3.3", "a block transport beside a local device"),
    ("S4.3, S4.4, S4.7", "`braid bench scale` and `share` on several mounts; `lock_speed`"),
];

/// All that this machine can.
pub(super) fn all(args: &Args, report: &mut Report) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let common = Common {
            dir: args.dir.clone(),
            members: 2,
            size: args.size,
            streams: 2,
            repeats: args.how.repeats.min(7),
            throttle: None,
            loop_devices: true,
            mount_options: None,
            files: 0,
            json: false,
            out: None,
            accept: Vec::new(),
        };
        let rows = ladder::run(&common)?.against("raw", "MB/s");
        let goals = [
            ("pool", "S3.4, S4.2 volume over raw", "0.87 read, 0.85 write; 0.964", 0.98),
            ("native", "S0.3, S3.10 file system over raw, native", "0.40 to 0.60", 0.95),
        ];
        for (name, what, original, goal) in goals {
            judge(report, &rows, name, (what, original, goal));
        }
        take(report, rows, "ladder");
    } else {
        report.note("the ladder needs root: S0.3, S3.4 and S4.2 are on models only");
    }
    if args.systems.is_empty() {
        report.note("no directories were given: S2 and S3.6 to S3.9 were not measured");
        return Ok(());
    }
    let first = first_write::measured(&first_write::Args::of(&args.systems, args.size, &args.how))?;
    firsts(report, &first);
    for system in args.systems.iter().skip(1) {
        judge(report, &first, &system.name, ("S3.7 to S3.9", "0.85 and above", 0.95));
    }
    take(report, first, "first-write");
    let table = sweep::measured(&sweep::Args::of(&args.systems, args.size, &args.how))?;
    for system in args.systems.iter().skip(1) {
        judge(report, &table, &system.name, ("S2.13 to S2.20", "lost", 0.95));
    }
    take(report, table, "sweep");
    Ok(())
}

/// A verdict for every row of a system.
fn judge(
    report: &mut Report,
    from: &Report,
    name: &str,
    (what, original, goal): (&str, &str, f64),
) {
    for row in from.rows.iter().filter(|r| r.name == name) {
        let Some(base) = from.base_of(row) else { continue };
        let ratio = row.ratio_to(base);
        let measured = ratio.median();
        report.verdicts.push(Verdict {
            what: format!("{what}: {name} over {}, {} {}", from.base, row.phase, row.at()),
            original: original.to_owned(),
            goal,
            at_most: false,
            measured: Some(measured),
            interval: Interval::of(&ratio),
            met: measured >= goal,
            note: String::new(),
        });
    }
}

/// First write over rewrite of the same system.
fn firsts(report: &mut Report, from: &Report) {
    let pairs = from.rows.iter().filter_map(|r| {
        let again = r.phase.replace("first write", "rewrite");
        let same = |b: &&Row| b.name == r.name && b.phase == again && b.parameters == r.parameters;
        let base = from.rows.iter().find(same).filter(|_| again != r.phase)?;
        Some((r, r.rate.ratio_to(&base.rate)))
    });
    for (row, ratio) in pairs {
        let request = row.parameters.get("request").copied().unwrap_or(0.0);
        let goal = if request >= f64::from(1 << 20) { 0.95 } else { 0.80 };
        let measured = ratio.median();
        report.verdicts.push(Verdict {
            what: format!("S3.6 first write over rewrite: {}, {}", row.name, row.at()),
            original: "below 1, but for very large requests".to_owned(),
            goal,
            at_most: false,
            measured: Some(measured),
            interval: Interval::of(&ratio),
            met: measured >= goal,
            note: String::new(),
        });
    }
}

/// The rows themselves, told apart by where they come from.
fn take(report: &mut Report, from: Report, mode: &str) {
    report.notes.extend(from.notes.into_iter().map(|n| format!("{mode}: {n}")));
    for mut row in from.rows {
        row.phase = format!("{mode}: {}", row.phase);
        row.series = None;
        if row.unit.is_empty() {
            row.unit.clone_from(&from.unit);
        }
        report.rows.push(row);
    }
}
