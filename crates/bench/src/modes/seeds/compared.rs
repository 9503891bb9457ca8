//! File systems compared: first write, rewrite and read (S3.6 to S3.9), and request size by streams, direct and
//! buffered (S2). They run in the directories that are given. Without any they run on XFS and on two nodes'
//! mounts of one pool, each on a loop device of its own.

use anyhow::{Context, Result};
use itertools::Itertools as _;

use super::devices::{measured, short, take};
use super::experiment::Args;
use super::loop_devices::members;
use crate::modes::ladder::SLACK;
use crate::modes::{System, first_write, sweep};
use crate::report::{Goal, Report, Row, Verdict};
use crate::statistics::Samples;
use crate::testbed::{Mount, members::Members};

/// Those that are a sweep, in the order of the original's figures, and those that are first writes.
pub(super) const SWEEP: [&str; 20] = [
    "S2.1", "S2.2", "S2.3", "S2.4", "S2.5", "S2.6", "S2.7", "S2.8", "S2.9", "S2.10", "S2.11",
    "S2.12", "S2.13", "S2.14", "S2.15", "S2.16", "S2.17", "S2.18", "S2.19", "S2.20",
];
pub(super) const WRITES: [&str; 4] = ["S3.6", "S3.7", "S3.8", "S3.9"];

/// Whether experiments use the directories that are given.
pub(super) fn in_directories(numbers: &[&str]) -> bool {
    numbers == SWEEP || numbers == WRITES
}

/// Streams of the sweep, at most.
const STREAMS: u64 = 2;

/// How the file systems are called that are made.
const XFS: &str = "xfs";
const MOUNT: &str = "mount";
const OTHER: &str = "other node";

/// File systems for this alone; taken down before their devices.
struct Made {
    mounts: Vec<(&'static str, Mount)>,
    _testbeds: [Members; 2],
}

impl Made {
    /// XFS, and mounts of so many nodes.
    fn new(args: &Args, nodes: u64) -> Result<Self> {
        let room = |nodes: u64| nodes.saturating_mul(STREAMS).saturating_mul(args.size);
        let one = members(args, "xfs", (1, room(1).saturating_add(SLACK)), None)?;
        let two = members(args, "pool", (1, room(nodes).saturating_add(SLACK)), None)?;
        let device = one.paths.first().context("no device")?;
        let xfs = Mount::xfs(device, one.work.join("mount"))?;
        let mount = Mount::braid(&two.paths, two.work.join("mount"))?;
        let mut mounts = vec![(XFS, xfs), (MOUNT, mount)];
        if nodes > 1 {
            let other = Mount::braid_again(&two.paths, two.work.join("other"), None)?;
            mounts.push((OTHER, other));
        }
        Ok(Self { mounts, _testbeds: [one, two] })
    }
    fn systems(&self) -> Vec<System> {
        let of = |(name, mount): &(&str, Mount)| System {
            name: (*name).to_owned(),
            path: mount.dir.clone(),
        };
        self.mounts.iter().map(of).collect()
    }
}

/// In the directories that are given, or on file systems for this alone: XFS and mounts of so many nodes.
fn on_systems(args: &Args, nodes: u64, work: impl FnOnce(&[System]) -> Result<()>) -> Result<()> {
    if args.systems.is_empty() {
        let made = Made::new(args, nodes)?;
        return work(&made.systems());
    }
    work(&args.systems)
}

/// S3.6 to S3.9.
pub(super) fn writes(args: &Args, report: &mut Report) -> Result<()> {
    on_systems(args, 1, |systems| written(args, systems, report))
}

/// S2.
pub(super) fn factors(args: &Args, report: &mut Report) -> Result<()> {
    on_systems(args, 2, |systems| swept(args, systems, report))
}

fn written(args: &Args, systems: &[System], report: &mut Report) -> Result<()> {
    let mode = first_write::Args::of(systems, args.size);
    let rows = measured(report, "first-write", mode, short(&args.how))?;
    for row in &rows.rows {
        let large = parameter(row, "request") >= MIB;
        let cell = format!("{}, {}, {}", row.name, row.phase, row.at());
        let again = row.phase.replace("first write", "rewrite");
        if let Some(base) =
            rows.find(&row.name, &again, &row.parameters).filter(|_| again != row.phase)
        {
            let goal = if large { 0.95 } else { 0.80 };
            let original = "below 1, but for very large requests";
            let ratio = row.rate.ratio_to(&base.rate);
            report.verdict(
                ("S3.6 first write over rewrite", original, &cell),
                Goal::AtLeast(goal),
                &ratio,
            );
        }
        let Some(base) = rows.base_of(row).filter(|_| !rows.is_base(row)) else { continue };
        let (what, original, goal) = match row.phase.split(' ').next() {
            Some("first") => ("S3.7 first write over", "well above 0.85", 0.95),
            Some("rewrite") => ("S3.8 rewrite over", "about 1", 0.98),
            _ => ("S3.9 read over", "about 1", 0.98),
        };
        let goal = if large { goal } else { 0.85 };
        let what = format!("{what} {}", rows.base);
        report.verdict((&what, original, &cell), Goal::AtLeast(goal), &row.ratio_to(base));
    }
    // Its notes are the cells of S3.6.
    take(report, Report { notes: Vec::new(), ..rows }, "first-write");
    Ok(())
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

/// What the original measured is lost: its factors are judged.
fn swept(args: &Args, systems: &[System], report: &mut Report) -> Result<()> {
    let how = short(&args.how);
    let rows = measured(report, "sweep", sweep::Args::of(systems, args.size), how.clone())?;
    judged(&rows, report);
    take(report, rows, "sweep");
    // Of the file's pages nothing is left out: they must be there.
    let rows = measured(report, "sweep", sweep::Args::cached(systems, args.size), how)?;
    for row in rows.rows.iter().filter(|r| !rows.is_base(r)) {
        let Some(base) = rows.base_of(row) else { continue };
        let what = format!("S2.13 the same over {}, from the page cache", rows.base);
        let original = "memory's rate, as it says";
        report.verdict((&what, original, &cell(row)), Goal::AtLeast(0.95), &row.ratio_to(base));
    }
    take(report, rows, "sweep");
    Ok(())
}

fn judged(rows: &Report, report: &mut Report) {
    let crossings = crossings(rows);
    for row in &rows.rows {
        let Some(f) = Factors::of(row) else { continue };
        let (cell, ratio) = (cell(row), |base: &Row| row.rate.ratio_to(&base.rate));
        if let Some(one) = single(rows, row).filter(|_| f.streams > 1) {
            report.verdict((&f.two_over_one(), "lost", &cell), Goal::AtLeast(1.0), &ratio(one));
        }
        if let Some(cold) = f.buffered(rows, row) {
            let told = Verdict::of(f.direct_over_buffered(), Goal::Told, &ratio(cold));
            let note = crossings.iter().find(|(figure, _)| *figure == f.direct_over_buffered());
            let note = note.map_or(String::new(), |(_, note)| note.clone());
            report.verdicts.push(Verdict { note, ..told.original("lost").cell(&cell) });
        }
        if row.name == OTHER {
            let Some(first) = rows.find(MOUNT, &row.phase, &row.parameters) else { continue };
            report.verdict(
                (&f.node_over_node(), "lost", &cell),
                Goal::AtLeast(0.97),
                &ratio(first),
            );
        } else if let Some(base) = rows.base_of(row).filter(|_| !rows.is_base(row)) {
            let what = f.over_base(&rows.base);
            report.verdict((&what, "lost", &cell), Goal::AtLeast(goal(row)), &row.ratio_to(base));
        }
        if let Some(tail) = row.tail().filter(|_| f.direct && f.streams == 1)
            && let [p50, p99, ..] = tail.known().map(|(_, value)| value)
            && let Some((p50, p99)) = p50.zip(p99)
        {
            let what = "S2.14, S2.18 latency of direct requests, one at a time: p99 over p50";
            let ratio = Samples(vec![p99 / p50.max(f64::MIN_POSITIVE)]);
            report.verdict((what, "lost", &cell), Goal::AtMost(5.0), &ratio);
        }
    }
}

/// What a row of the sweep is, in the original's figures.
#[derive(Debug, Clone, Copy)]
struct Factors {
    read: bool,
    direct: bool,
    streams: u32,
}
impl Factors {
    fn of(row: &Row) -> Option<Self> {
        let (what, cache) = row.phase.split_once(' ')?;
        let read = what == "read";
        let known = (read || what == "write") && ["direct", "cold"].contains(&cache);
        let streams = if parameter(row, "streams") > 1.0 { 2 } else { 1 };
        known.then_some(Self { read, direct: cache == "direct", streams })
    }
    /// First figure of a group, writes, two streams, direct: which figure.
    fn figure(self, first: u32, (write, two, direct): (u32, u32, u32)) -> String {
        let of = |is: bool, step: u32| if is { step } else { 0 };
        let n = first + of(!self.read, write) + of(self.streams > 1, two) + of(self.direct, direct);
        format!("S2.{n}")
    }
    fn what(self) -> &'static str {
        if self.read { "read" } else { "write" }
    }
    fn cache(self) -> &'static str {
        if self.direct { "direct" } else { "buffered, cold" }
    }
    fn count(self) -> &'static str {
        if self.streams > 1 { "2 streams" } else { "1 stream" }
    }
    fn two_over_one(self) -> String {
        let (what, cache) = (self.what(), self.cache());
        format!("{} two streams over one, {what}, {cache}", self.figure(1, (2, 0, 1)))
    }
    fn direct_over_buffered(self) -> String {
        let (what, count) = (self.what(), self.count());
        // Both are in one figure.
        let figure = Self { direct: false, ..self }.figure(5, (2, 1, 0));
        format!("{figure} direct over buffered, {what}, {count}")
    }
    fn node_over_node(self) -> String {
        let figure = Self { direct: false, ..self }.figure(9, (2, 1, 0));
        format!("{figure} other node over the first node, {}, {}", self.what(), self.count())
    }
    fn over_base(self, base: &str) -> String {
        let (what, cache, count) = (self.what(), self.cache(), self.count());
        format!("{} file system over {base}, {what}, {cache}, {count}", self.figure(13, (4, 2, 1)))
    }
    /// The buffered row of a direct one.
    fn buffered<'r>(self, rows: &'r Report, row: &Row) -> Option<&'r Row> {
        let phase = format!("{} cold", self.what());
        rows.find(&row.name, &phase, &row.parameters).filter(|_| self.direct)
    }
}

/// The row of one stream.
fn single<'r>(rows: &'r Report, row: &Row) -> Option<&'r Row> {
    let mut place = row.parameters.clone();
    place.insert("streams".to_owned(), 1.0);
    rows.find(&row.name, &row.phase, &place)
}

/// Which of a figure's points.
fn cell(row: &Row) -> String {
    let request = row.parameters.get("request").copied().unwrap_or(0.0);
    let at = crate::modes::at(&[("request", request)]);
    format!("{}, {}, {}", row.name, row.phase, crate::report::said(&at))
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

/// Of each figure, from which request size on going past the cache is as fast as going through it, by
/// system.
fn crossings(rows: &Report) -> Vec<(String, String)> {
    // The points of all figures: which, of what, at which request size, whether direct is as fast.
    let point = |row| {
        let factors = Factors::of(row)?;
        let cold = factors.buffered(rows, row)?;
        let fast = row.rate.ratio_to(&cold.rate).median() >= 1.0;
        Some((factors.direct_over_buffered(), &row.name, parameter(row, "request"), fast))
    };
    let points: Vec<_> = rows.rows.iter().filter_map(point).collect();
    let of_figure = |figure: &String| {
        let mine = || points.iter().filter(|point| point.0 == *figure);
        let of_system = |name| {
            let points: Vec<_> = mine().filter(|point| point.1 == name).collect();
            let from = points.iter().rev().take_while(|point| point.3).last();
            let from = from.map_or("never".to_owned(), |p| format!("from {:.0} KiB on", p.2 / KIB));
            format!("{name} {from}")
        };
        let said = mine().map(|point| point.1).unique().map(of_system).join(", ");
        (figure.clone(), format!("direct is as fast: {said}"))
    };
    points.iter().map(|point| &point.0).unique().map(of_figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::at;
    use crate::report::lines;

    /// Every cell of the sweep; `rate` of system, phase, streams and request.
    fn rows(rate: impl Fn(&str, &str, f64, f64) -> f64) -> Report {
        let mut rows = Report::new("sweep").against(XFS, "MB/s");
        for name in [XFS, MOUNT, OTHER] {
            for phase in ["write direct", "read direct", "write cold", "read cold"] {
                for streams in [1.0, 2.0] {
                    for request in [4.0, 64.0, 256.0] {
                        let place = at(&[("request", request * KIB), ("streams", streams)]);
                        let rate = rate(name, phase, streams, request);
                        rows.row(name, phase, &place).rate.0.push(rate);
                    }
                }
            }
        }
        rows
    }

    #[test]
    fn every_figure_of_the_original_has_its_line_and_its_cells() {
        let mut report = Report::new("seeds");
        judged(&rows(|_, _, streams, _| 100.0 * streams), &mut report);
        let lines = lines(&report.verdicts);
        assert_eq!(lines.len(), SWEEP.len());
        for number in SWEEP {
            let of = |l: &&crate::report::Line| crate::report::numbers(l.what).any(|n| n == number);
            let found: Vec<_> = lines.iter().filter(of).collect();
            assert_eq!(found.len(), 1, "{number}");
            // Of three request sizes: each system, the base too; one node over one; both caches.
            let n: usize = number[3..].parse().unwrap();
            let cells = [(1..=8, 9), (9..=12, 6), (13..=20, 3)];
            let expected = cells.iter().find(|(of, _)| of.contains(&n)).unwrap().1;
            assert_eq!(found[0].cells.len(), expected, "{}", found[0].what);
            assert_eq!(found[0].short(), 0, "{}", found[0].what);
        }
        let said = |start: &str| {
            lines.iter().find(|l| l.what.starts_with(start)).map(|l| l.what.to_owned()).unwrap()
        };
        for (start, all) in [
            ("S2.2 ", "S2.2 two streams over one, read, direct"),
            ("S2.3 ", "S2.3 two streams over one, write, buffered, cold"),
            ("S2.8 ", "S2.8 direct over buffered, write, 2 streams"),
            ("S2.11 ", "S2.11 other node over the first node, write, 1 stream"),
            ("S2.15 ", "S2.15 file system over xfs, read, buffered, cold, 2 streams"),
            ("S2.18 ", "S2.18 file system over xfs, write, direct, 1 stream"),
        ] {
            assert_eq!(said(start), all);
        }
    }
    #[test]
    fn the_base_is_judged_for_its_streams_and_shortness_is_counted() {
        // Two streams of XFS are slower than one; the mount is slow at 4 KiB only.
        let slow = |name: &str, _: &str, streams: f64, request: f64| match name {
            XFS if streams > 1.0 => 80.0,
            MOUNT if request < 5.0 => 50.0,
            _ => 100.0,
        };
        let mut report = Report::new("seeds");
        judged(&rows(slow), &mut report);
        let lines = lines(&report.verdicts);
        let line = |start: &str| lines.iter().find(|l| l.what.starts_with(start)).unwrap();
        let first = line("S2.1 ");
        assert_eq!((first.cells.len(), first.short()), (9, 3));
        assert_eq!(first.worst().unwrap().cell, "xfs, read cold, request 4 KiB");
        let (direct, cold) = (line("S2.14 "), line("S2.13 "));
        assert_eq!((direct.short(), cold.short()), (1, 1));
        assert_eq!(direct.goal(), ">= 0.6 to 0.95");
        // The other node is twice as fast as the first: not short.
        assert_eq!(line("S2.9 ").short(), 0);
    }
    #[test]
    fn where_direct_and_buffered_cross() {
        // Reads cross at 64 KiB; writes do, but not for good.
        let rate = |_: &str, phase: &str, _: f64, request: f64| {
            let n = if request < 5.0 {
                0
            } else if request < 65.0 {
                1
            } else {
                2
            };
            match phase {
                "read direct" => [50.0, 101.0, 150.0][n],
                "write direct" => [120.0, 110.0, 90.0][n],
                _ => 100.0,
            }
        };
        let found = crossings(&rows(rate));
        let note = |start: &str| &found.iter().find(|(f, _)| f.starts_with(start)).unwrap().1;
        let from = "from 64 KiB on";
        let said = format!("direct is as fast: xfs {from}, mount {from}, other node {from}");
        assert_eq!(*note("S2.5 "), said);
        assert!(note("S2.7 ").contains("mount never"), "{}", note("S2.7 "));
        let rows = rows(rate);
        let goals: Vec<_> = rows.rows.iter().map(goal).collect();
        assert_eq!(goals[..3], [0.60, 0.85, 0.95]);
    }
}
