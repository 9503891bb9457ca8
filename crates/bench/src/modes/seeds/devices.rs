//! Experiments that are modes of the kit: a ladder over files in RAM, and, if directories are given,
//! first writes and a sweep in them.

use anyhow::Result;

use super::{Args, verdict};
use crate::cli::Common;
use crate::modes::{How, Measure, Turns, first_write, ladder, sweep};
use crate::report::{Report, Row, Verdict};
use crate::run::interval::Interval;

/// What this command cannot measure, and why.
pub(super) const CANNOT: [(&str, &str); 2] = [
    ("S0.1 NFSstones through an export", "there is no NFS gateway yet"),
    ("S1.6 BDS over XFS", "there is no bulk service beside NFS yet"),
];

/// The volume, the file system and the mount over raw devices in RAM; what the mount costs.
pub(super) fn layers(args: &Args, report: &mut Report) -> Result<()> {
    let common = Common {
        dir: args.dir.clone(),
        members: 2,
        size: args.size,
        streams: 2,
        throttle: None,
        loop_devices: true,
    };
    let rows = measured(&ladder::Args { common, how: short(&args.how) })?;
    let goals = [
        ("pool", "S3.4, S4.2 volume over raw", "0.87 read, 0.85 write; 0.964", 0.98),
        ("native", "S0.3, S3.10 file system over raw, native", "0.40 to 0.60", 0.95),
    ];
    for (name, what, original, goal) in goals {
        judge(report, &rows, name, (what, original, goal));
    }
    for row in rows.rows.iter().filter(|r| r.name == "mount") {
        let per_gb = row.cpu.median() / 1.073_741_824;
        let what =
            format!("S0.8 instead of money: CPU seconds of the machine per GB, {}", row.title());
        report.verdicts.push(Verdict {
            at_most: true,
            met: per_gb <= 0.3,
            ..verdict(&what, "61 % saved at 83 % of the speed", 0.3, per_gb)
        });
    }
    take(report, rows, "ladder");
    Ok(())
}

/// First writes and a sweep in the directories that were given.
pub(super) fn directories(args: &Args, report: &mut Report) -> Result<()> {
    if args.systems.is_empty() {
        report.note("no directories were given: S2 and S3.6 to S3.9 were not measured");
        return Ok(());
    }
    let first = measured(&first_write::Args::of(&args.systems, args.size, &args.how))?;
    firsts(report, &first);
    for system in args.systems.iter().skip(1) {
        judge(report, &first, &system.name, ("S3.7 to S3.9", "0.85 and above", 0.95));
    }
    take(report, first, "first-write");
    let table = measured(&sweep::Args::of(&args.systems, args.size, &args.how))?;
    for system in args.systems.iter().skip(1) {
        judge(report, &table, &system.name, ("S2.13 to S2.20", "lost", 0.95));
    }
    take(report, table, "sweep");
    Ok(())
}

/// Rows of an experiment's own, in rounds.
pub(super) fn rounds(
    args: &Args,
    (id, base, unit): (&str, &str, &str),
    turns: Turns,
    measure: impl Fn(&mut Report, usize, usize) -> Result<()>,
) -> Result<Report> {
    let mut rows = Report::new(id).against(base, unit);
    short(&args.how).rounds(&mut rows, turns, measure)?;
    Ok(rows)
}

/// Seven rounds at most, judged here.
pub(super) fn short(how: &How) -> How {
    How { repeats: how.repeats.min(7), accept: Vec::new(), ..how.clone() }
}

/// The result of a mode.
fn measured(mode: &impl Measure) -> Result<Report> {
    let (report, result) = mode.result();
    result.map(|()| report)
}

/// A verdict for every row of a system.
pub(super) fn judge(
    report: &mut Report,
    from: &Report,
    name: &str,
    (what, original, goal): (&str, &str, f64),
) {
    for row in from.rows.iter().filter(|r| r.name == name) {
        let Some(base) = from.base_of(row) else { continue };
        let ratio = row.ratio_to(base);
        let measured = ratio.median();
        let what = format!("{what}: {name} over {}, {} {}", from.base, row.phase, row.at());
        let what = what.trim_end();
        let interval = Interval::of(&ratio);
        report.verdicts.push(Verdict { interval, ..verdict(what, original, goal, measured) });
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
        let what = format!("S3.6 first write over rewrite: {}, {}", row.name, row.at());
        let original = "below 1, but for very large requests";
        let interval = Interval::of(&ratio);
        report.verdicts.push(Verdict { interval, ..verdict(&what, original, goal, measured) });
    }
}

/// The rows themselves, told apart by where they come from.
pub(super) fn take(report: &mut Report, from: Report, mode: &str) {
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
