//! File systems side by side: first write, rewrite and read of a file (S3.6 to S3.9), and request size by
//! streams, past the cache and through it (S2). In the directories that are given; otherwise on XFS and
//! on two nodes' mounts of one pool, each on a loop device of the same backing that is made for it.

use anyhow::{Context, Result};

use super::Args;
use super::devices::{measured, short, take};
use super::rigged::members;
use crate::modes::{System, first_write, sweep};
use crate::report::stats::Samples;
use crate::report::{Goal, Report, Row, Verdict};
use crate::rig::Mount;
use crate::rig::members::Members;

/// The experiments here.
pub(super) const NUMBERS: &str = "S2.1 S2.2 S2.3 S2.4 S2.5 S2.6 S2.7 S2.8 S2.9 S2.10 S2.11 S2.12 \
     S2.13 S2.14 S2.15 S2.16 S2.17 S2.18 S2.19 S2.20 S3.6 S3.7 S3.8 S3.9";
/// Those that are a sweep, and those that are first writes.
const SWEEP: &str = "S2.1 S2.2 S2.3 S2.4 S2.5 S2.6 S2.7 S2.8 S2.9 S2.10 S2.11 S2.12 S2.13 S2.14 \
     S2.15 S2.16 S2.17 S2.18 S2.19 S2.20";
const WRITES: &str = "S3.6 S3.7 S3.8 S3.9";

/// Room for labels, journals and resource groups beside the data.
const SLACK: u64 = 512 << 20;
/// Streams of the sweep, at most.
const STREAMS: u64 = 2;

/// How the file systems are called that are made.
const XFS: &str = "xfs";
const MOUNT: &str = "mount";
const OTHER: &str = "other node";

/// File systems for this alone; taken down before their devices.
struct Made {
    mounts: Vec<(&'static str, Mount)>,
    _rigs: [Members; 2],
}

impl Made {
    fn new(args: &Args) -> Result<Self> {
        let room = |nodes: u64| nodes.saturating_mul(STREAMS).saturating_mul(args.size);
        let one = members(args, "xfs", (1, room(1).saturating_add(SLACK)), None)?;
        let two = members(args, "pool", (1, room(2).saturating_add(SLACK)), None)?;
        let device = one.paths.first().context("no device")?;
        let xfs = Mount::xfs(device, one.work.join("mount"))?;
        let mount = Mount::braid(&two.paths, two.work.join("mount"))?;
        let other = Mount::braid_again(&two.paths, two.work.join("other"), None)?;
        Ok(Self { mounts: vec![(XFS, xfs), (MOUNT, mount), (OTHER, other)], _rigs: [one, two] })
    }
    fn systems(&self, names: &[&str]) -> Vec<System> {
        let of = |(name, mount): &(&str, Mount)| System {
            name: (*name).to_owned(),
            path: mount.dir.clone(),
        };
        self.mounts.iter().filter(|(name, _)| names.contains(name)).map(of).collect()
    }
}

/// First writes and a sweep.
pub(super) fn directories(args: &Args, report: &mut Report) -> Result<()> {
    if !args.systems.is_empty() {
        writes(args, &args.systems, report)?;
        return factors(args, &args.systems, report);
    }
    let made = Made::new(args)?;
    if args.wants(WRITES) {
        writes(args, &made.systems(&[XFS, MOUNT]), report)?;
    }
    if args.wants(SWEEP) {
        factors(args, &made.systems(&[XFS, MOUNT, OTHER]), report)?;
    }
    Ok(())
}

/// S3.6 to S3.9.
fn writes(args: &Args, systems: &[System], report: &mut Report) -> Result<()> {
    let mode = first_write::Args::of(systems, args.size, &short(&args.how));
    let rows = measured(report, "first-write", &mode)?;
    for row in &rows.rows {
        let request = parameter(row, "request");
        let again = row.phase.replace("first write", "rewrite");
        if let Some(base) = same(&rows, row, &row.name, &again).filter(|_| again != row.phase) {
            let goal = if request >= MIB { 0.95 } else { 0.80 };
            let what = format!("S3.6 first write over rewrite: {}, {}", row.name, row.at());
            let original = "below 1, but for very large requests";
            said(report, what, (original, goal), &row.rate.ratio_to(&base.rate));
        }
        let Some(base) = rows.base_of(row).filter(|_| row.name != rows.base) else { continue };
        let (number, original, large) = match row.phase.split(' ').next() {
            Some("first") => ("S3.7", "well above 0.85", 0.95),
            Some("rewrite") => ("S3.8", "about 1", 0.98),
            _ => ("S3.9", "about 1", 0.98),
        };
        let goal = if request >= MIB { large } else { 0.85 };
        let what = format!("{number} {} over {}, {}, {}", row.name, rows.base, row.phase, row.at());
        said(report, what, (original, goal), &row.ratio_to(base));
    }
    take(report, rows, "first-write");
    Ok(())
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

/// S2. What it measured is lost: what is said are its factors.
fn factors(args: &Args, systems: &[System], report: &mut Report) -> Result<()> {
    let mode = sweep::Args::of(systems, args.size, &short(&args.how));
    let rows = measured(report, "sweep", &mode)?;
    for row in rows.rows.iter().filter(|r| r.name != rows.base) {
        let (what, at) = (format!("{}, {}", row.name, row.phase), row.at());
        if parameter(row, "streams") > 1.0 {
            let mut place = row.parameters.clone();
            place.insert("streams".to_owned(), 1.0);
            let single =
                |r: &&Row| r.name == row.name && r.phase == row.phase && r.parameters == place;
            if let Some(one) = rows.rows.iter().find(single) {
                let what = format!("S2.1 to S2.4 two streams over one: {what}, {at}");
                said(report, what, ("lost", 1.0), &row.rate.ratio_to(&one.rate));
            }
        }
        if row.name == OTHER {
            let Some(first) = same(&rows, row, MOUNT, &row.phase) else { continue };
            let what = format!("S2.9 to S2.12 {what} over the first node, {at}");
            said(report, what, ("lost", 0.97), &row.rate.ratio_to(&first.rate));
        } else if let Some(base) = rows.base_of(row) {
            let what = format!("S2.13 to S2.20 {what} over {}, {at}", rows.base);
            said(report, what, ("lost", goal(row)), &row.ratio_to(base));
        }
    }
    for note in crossings(&rows) {
        report.note(format!("S2.5 to S2.8 {note}"));
    }
    take(report, rows, "sweep");
    Ok(())
}

/// Of a file system beside XFS.
fn goal(row: &Row) -> f64 {
    let request = parameter(row, "request");
    match row.phase.ends_with("direct") {
        true if request < 64.0 * KIB => 0.60,
        true if request < 256.0 * KIB => 0.85,
        _ => 0.95,
    }
}

fn parameter(row: &Row, key: &str) -> f64 {
    row.parameters.get(key).copied().unwrap_or(0.0)
}

/// The row of another system or phase at the same parameters.
fn same<'r>(rows: &'r Report, row: &Row, name: &str, phase: &str) -> Option<&'r Row> {
    let same = |r: &&Row| r.name == name && r.phase == phase && r.parameters == row.parameters;
    rows.rows.iter().find(same)
}

fn said(report: &mut Report, what: String, (original, goal): (&str, f64), ratio: &Samples) {
    report.verdicts.push(Verdict::of(what, Goal::AtLeast(goal), ratio).original(original));
}

/// From which request size on going past the cache is as fast as going through it.
fn crossings(rows: &Report) -> Vec<String> {
    let mut found: Vec<(String, Option<f64>)> = Vec::new();
    for row in &rows.rows {
        let Some(what) = row.phase.strip_suffix(" direct") else { continue };
        let Some(cold) = same(rows, row, &row.name, &format!("{what} cold")) else { continue };
        let streams = parameter(row, "streams");
        let key = format!("{}, {what}, {streams:.0} streams", row.name);
        let fast = row.rate.ratio_to(&cold.rate).median() >= 1.0;
        let at = fast.then(|| parameter(row, "request"));
        match found.iter_mut().find(|(k, _)| *k == key) {
            Some((_, from)) if fast => *from = from.or(at),
            Some((_, from)) => *from = None,
            None => found.push((key, at)),
        }
    }
    let said = |(key, from): (String, Option<f64>)| match from {
        Some(from) => {
            format!("{key}: direct is as fast as buffered from {:.0} KiB on", from / KIB)
        }
        None => format!("{key}: buffered is faster than direct"),
    };
    found.into_iter().map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::at;

    #[test]
    fn where_direct_and_buffered_cross() {
        let mut rows = Report::new("sweep").against(XFS, "MB/s");
        // Reads cross at 64 KiB; writes do, but not for good.
        for (phase, rates) in [("read", [50.0, 101.0, 150.0]), ("write", [120.0, 110.0, 90.0])] {
            for (request, rate) in [4.0, 64.0, 256.0].into_iter().zip(rates) {
                let place = at(&[("request", request * KIB), ("streams", 1.0)]);
                let cold = format!("{phase} cold");
                rows.row(MOUNT, &format!("{phase} direct"), &place).rate.0.push(rate);
                rows.row(MOUNT, &cold, &place).rate.0.push(100.0);
            }
        }
        assert_eq!(
            crossings(&rows),
            [
                "mount, read, 1 streams: direct is as fast as buffered from 64 KiB on",
                "mount, write, 1 streams: buffered is faster than direct"
            ]
        );
        let goals: Vec<_> = rows.rows.iter().map(goal).collect();
        assert_eq!(goals[..6], [0.60, 0.95, 0.85, 0.95, 0.95, 0.95]);
    }
}
