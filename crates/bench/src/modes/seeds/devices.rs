//! The ladder as an experiment, and helpers that all experiments on devices share.

use anyhow::Result;

use super::experiment::Args;
use crate::arguments::Common;
use crate::modes::{Measure, Run, RunOptions, ladder};
use crate::report::{Goal, Parameters, Report, Row};
use crate::statistics::Samples;

/// What this command cannot measure, and why.
pub(super) const CANNOT: [(&str, &str); 1] =
    [("S0.1 NFSstones through an export", "an NFS client is not part of the kit")];

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
    let rows = measured(report, "ladder", ladder::Args::new(common), short(&args.how))?;
    let goals = [
        ("pool", "S3.4 volume over raw, a row or more at a time", "0.87 read, 0.85 write", 0.98),
        ("native", "S0.3 file system over raw", "0.40 to 0.60", 0.95),
    ];
    for (name, what, original, goal) in goals {
        judge(report, &rows, name, (what, original, goal));
    }
    for row in rows.rows.iter().filter(|r| r.name == "native") {
        let volume = rows.find("pool", &row.phase, &row.parameters);
        let ratio = volume.map_or_else(Samples::default, |v| row.rate.ratio_to(&v.rate));
        let (what, original) = ("S3.10 file system over volume", "slightly above 1, by alignment");
        report.verdict((what, original, &row.title()), Goal::AtLeast(0.98), &ratio);
    }
    for row in rows.rows.iter().filter(|r| r.name == "mount") {
        let per_gb = Samples(row.cpu.0.iter().map(|c| c / 1.073_741_824).collect());
        let what = "S0.8 instead of money: CPU seconds of the machine per GB";
        let original = "61 % saved at 83 % of the speed";
        report.verdict((what, original, &row.title()), Goal::AtMost(0.3), &per_gb);
    }
    take(report, rows, "ladder");
    Ok(())
}

/// Rows of an experiment's own, in rounds: each of `systems` in its turn. What was measured before a failure
/// goes into the report.
pub(super) fn compare<T>(
    args: &Args,
    report: &mut Report,
    own: Own,
    systems: &[T],
    measure: impl Fn(&mut Report, &T) -> Result<()>,
) -> Result<Report> {
    let mut rows = Report::new(own.id).against(own.base, own.unit);
    let result = short(&args.how).compare(&mut rows, systems, own.rows, measure);
    or_keep(report, own.id, rows, result)
}

/// What an experiment measures in rows of its own.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub id: &'static str,
    pub base: &'static str,
    pub unit: &'static str,
    /// Of each system.
    pub rows: usize,
}

/// One more repeat of a row that is measured by itself.
pub(super) fn sample<'r>(
    report: &'r mut Report,
    (name, phase): (&str, &str),
    at: &Parameters,
    measure: impl FnOnce() -> Result<f64>,
) -> Result<&'r mut Row> {
    let what = format!("{name} {phase} {}", crate::report::said(at));
    crate::progress::row(what.trim_end().to_owned());
    let rate = measure()?;
    crate::progress::row_done();
    Ok(report.sample(name, phase, at, rate))
}

/// The rows of what has succeeded; those of what has failed are kept.
fn or_keep(report: &mut Report, id: &str, rows: Report, result: Result<()>) -> Result<Report> {
    match result {
        Ok(()) => Ok(rows),
        Err(e) => {
            take(report, rows, id);
            Err(e)
        }
    }
}

/// Seven rounds at most, judged here.
pub(super) fn short(how: &RunOptions) -> RunOptions {
    RunOptions { repeats: how.repeats.min(7), accept: Vec::new(), ..how.clone() }
}

pub(super) fn measured(
    report: &mut Report,
    id: &str,
    mode: impl Measure,
    how: RunOptions,
) -> Result<Report> {
    let (rows, result) = Run { mode, how }.result();
    or_keep(report, id, rows, result)
}

/// A verdict for every row of a system: cells of one experiment.
pub(super) fn judge(
    report: &mut Report,
    from: &Report,
    name: &str,
    (what, original, goal): (&str, &str, f64),
) {
    for row in from.rows.iter().filter(|r| r.name == name) {
        let Some(base) = from.base_of(row) else { continue };
        let ratio = row.ratio_to(base);
        let cell = format!("{name} over {}, {} {}", from.base, row.phase, row.at());
        report.verdict((what, original, cell.trim_end()), Goal::AtLeast(goal), &ratio);
    }
}

/// The rows themselves, told apart by where they come from.
pub(super) fn take(report: &mut Report, from: Report, mode: &str) {
    report.notes.extend(from.notes.into_iter().map(|n| format!("{mode}: {n}")));
    if let Some(rounds) = from.rounds {
        match &mut report.rounds {
            Some(all) => all.join(rounds),
            none => *none = Some(rounds),
        }
    }
    for mut summary in from.summaries {
        summary.phase = format!("{mode}: {}", summary.phase);
        report.summaries.push(summary);
    }
    for mut row in from.rows {
        row.phase = format!("{mode}: {}", row.phase);
        row.series = None;
        row.base.clone_from(&from.base);
        if row.unit.is_empty() {
            row.unit.clone_from(&from.unit);
        }
        report.rows.push(row);
    }
}
