//! Experiments on loop devices: caches, lmdd, request sizes, a block transport, film playback.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use braid_pool::device::OpenOptions;

use super::devices::{Own, compare, judge, measured, sample, short, take};
use super::experiment::{Args, verdict};
use crate::arguments::DeviceKind;
use crate::engine::{Direction, Layer, Limits, OpenMode, Order, Pattern, Stream, Target};
use crate::modes::streams::{self, Phase};
use crate::modes::{Cell, System, at, stream};
use crate::report::{Goal, Report};
use crate::statistics::Samples;
use crate::statistics::float;
use crate::testbed::members::Members;
use crate::testbed::{Mount, text};

const MIB: u64 = 1 << 20;
/// Bytes per second of a device that is to be the bottleneck.
const SLOW: u64 = 100_000_000;

const WAYS: [Direction; 2] = [Direction::Write, Direction::Read];

/// Loop devices over files in `dir`.
pub(super) fn members(
    args: &Args,
    name: &str,
    size: (usize, u64),
    throttle: Option<u64>,
) -> Result<Members> {
    Members::new(&args.dir, name, size, throttle.map_or(DeviceKind::Loop, DeviceKind::throttled))
}

/// Written and read through the file system's caches, and past them, on one slow device and on
/// four: what is cached and what is not are rows of their own.
pub(super) fn s0_4(args: &Args, report: &mut Report) -> Result<()> {
    const SIZES: [u64; 4] = [1, 10, 40, 100];
    const PAST: &str = "past the cache";
    let testbeds = [
        ("1-way", members(args, "one", (1, 1024 * MIB), Some(SLOW))?),
        ("4-way", members(args, "four", (4, 320 * MIB), Some(SLOW))?),
    ];
    let mounts = testbeds
        .iter()
        .map(|(name, testbed)| {
            Ok((*name, Mount::braid(&testbed.paths, testbed.work.join("mount"))?))
        })
        .collect::<Result<Vec<_>>>()?;
    let own = Own { id: "S0.4", base: "1-way", unit: "MB/s", rows: SIZES.len() * 2 };
    let rows = compare(args, report, own, &mounts, |report, (name, mount)| {
        for mib in SIZES {
            let place = at(&[("file", float(mib * MIB))]);
            for (phase, past) in [("in the cache", false), (PAST, true)] {
                sample(report, (name, phase), &place, || written_and_read(mount, mib * MIB, past))?;
            }
        }
        Ok(())
    })?;
    for row in rows.rows.iter().filter(|r| r.name == "4-way") {
        let Some(base) = rows.base_of(row) else { continue };
        let phase = format!("S0.4 4-way over 1-way, {}", row.phase);
        let ratio = report.row(&row.phase, &phase, &row.parameters);
        "of one device".clone_into(&mut ratio.unit);
        ratio.rate = row.ratio_to(base);
    }
    let last = |name: &str, mib: u64| {
        let row = rows.find(name, PAST, &at(&[("file", float(mib * MIB))]));
        row.map(|r| r.rate.clone()).unwrap_or_default()
    };
    let mut judged = |what: &str, original: &str, goal: f64, ratio: Samples| {
        report.verdict((what, original, ""), Goal::AtLeast(goal), &ratio);
    };
    let what = "S0.4 4 devices over 1, file of 100 MiB, past the cache";
    judged(what, "4.20; 5.23 at 40 MB", 3.8, last("4-way", 100).ratio_to(&last("1-way", 100)));
    // Smaller files go through a throttle in one burst.
    let what = "S0.4 1 device, file of 100 MiB over 40 MiB, past the cache: no cliff";
    judged(what, "1.06; 0.20 over 10 MB", 0.9, last("1-way", 100).ratio_to(&last("1-way", 40)));
    take(report, rows, "S0.4");
    Ok(())
}

/// MB/s of writing and reading a new file.
fn written_and_read(mount: &Mount, bytes: u64, past: bool) -> Result<f64> {
    let files = streams::files(&mount.dir, 1);
    let write = Phase { sync: past, ..Phase::written(bytes) };
    let written = write.outcome(&files)?.seconds;
    if past {
        mount.drop_caches()?;
    }
    let read = write.read().outcome(&files)?.seconds;
    for file in &files {
        std::fs::remove_file(file)?;
    }
    Ok(2.0 * float(bytes) / 1e6 / (written + read))
}

/// The document's own commands, on a device as fast one way as the other.
pub(super) fn s1_1(args: &Args, report: &mut Report) -> Result<()> {
    let testbed = members(args, "lmdd", (1, 512 * MIB), Some(4 * SLOW))?;
    let device = testbed.paths.first().context("no device")?;
    let own = Own { id: "S1.2", base: "read", unit: "MB/s", rows: 1 };
    let rows =
        compare(args, report, own, &[("read", "if"), ("write", "of")], |report, (name, word)| {
            let mut moved = 0.0;
            let row = sample(report, (name, "lmdd, direct, 4 MiB"), &at(&[]), || {
                let (megabytes, rate) = lmdd(&format!("{word}={}", text(device)?))?;
                moved = megabytes;
                Ok(rate)
            })?;
            row.add("MB moved", moved);
            Ok(())
        })?;
    let moved = rows.rows.iter().filter_map(|r| r.more.get("MB moved")).map(Samples::median);
    let right = moved.filter(|m| (m - 524.29).abs() < 0.005).count();
    let what = "S1.1 lmdd's command unchanged, its line says 524.29 MB: write and read";
    let (original, goal) = ("97.21 MB/s", Goal::AtLeast(2.0));
    report.verdicts.push(verdict(what, original, goal, float(right as u64)));
    judge(report, &rows, "write", ("S1.2 lmdd, direct, 4 MiB", "0.70", 0.95));
    take(report, rows, "S1.2");
    Ok(())
}

/// MB moved and MB/s, as lmdd says them.
fn lmdd(target: &str) -> Result<(f64, f64)> {
    let exe = std::env::current_exe()?;
    let words = ["lmdd", target, "bs=4m", "move=500m", "direct=1"];
    let output = Command::new(exe).args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "lmdd {target}: {said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    // 524.29 MB in 5.39 secs, 97.27 MB/sec
    let number = |n: usize| words.get(n).and_then(|w| w.parse::<f64>().ok());
    number(0).zip(number(5)).with_context(|| format!("lmdd said: {said}"))
}

/// Requests larger than what the device takes at a time are split, and what was issued is told.
pub(super) fn s1_7(args: &Args, report: &mut Report) -> Result<()> {
    let testbed = members(args, "sizes", (1, 512 * MIB), None)?;
    let device = testbed.paths.first().context("no device")?;
    let sizes = [("1 MiB", MIB), ("4 MiB", 4 * MIB), ("16 MiB", 16 * MIB)];
    let own = Own { id: "S1.7", base: "1 MiB", unit: "MB/s", rows: 2 };
    let rows = compare(args, report, own, &sizes, |report, (name, request)| {
        for direction in WAYS {
            let read = direction == Direction::Read;
            let pattern = Pattern::sequential(0, 256 * MIB, *request, read);
            let stream = Stream { depth: 2, ..Stream::plain(opened(device)?, pattern) };
            let cell = Cell { name, phase: direction.word(), at: at(&[]) };
            cell.run(report, &[stream], &Limits::default())?;
        }
        Ok(())
    })?;
    for (name, _) in sizes.iter().skip(1) {
        judge(report, &rows, name, ("S1.7 larger requests", "must be made possible", 0.95));
    }
    let issued = |row: &crate::report::Row| {
        format!("of {} as {}", row.name, row.issued.as_deref().unwrap_or("nothing known"))
    };
    let issued: Vec<_> = rows.rows.iter().map(issued).collect();
    report.note(format!("S1.7 requests were issued: {}", issued.join("; ")));
    take(report, rows, "S1.7");
    Ok(())
}

fn opened(path: &Path) -> Result<std::sync::Arc<Target>> {
    let how = OpenMode { write: true, direct: true, force: true, ..OpenMode::default() };
    Ok(Target::open(path, how)?)
}

/// A target in a process of its own, ended when dropped.
struct Served {
    child: Child,
    unit: String,
}
impl Served {
    fn new(device: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["target", text(device)?, "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut unit = String::new();
        let out = child.stdout.take().context("no output")?;
        BufReader::new(out).read_line(&mut unit)?;
        let served = Self { child, unit: unit.trim().to_owned() };
        anyhow::ensure!(served.unit.starts_with("iscsi://"), "the target says: {}", served.unit);
        Ok(served)
    }
    fn open(&self) -> Result<std::sync::Arc<Target>> {
        let name = Path::new(&self.unit);
        let device = braid_pool::device::open(name, OpenOptions::default())?;
        let info = device.info().clone();
        Ok(Target::over(Layer::Device(device), &self.unit, &info))
    }
}
impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A block transport beside the device itself: a unit of a target over loopback.
pub(super) fn s3_3(args: &Args, report: &mut Report) -> Result<()> {
    let slow = members(args, "slow", (1, 320 * MIB), Some(SLOW))?;
    let fast = members(args, "fast", (1, 320 * MIB), None)?;
    let (slow, fast) = (slow.paths.first(), fast.paths.first());
    let (Some(slow), Some(fast)) = (slow, fast) else { return Ok(()) };
    let (slow_unit, fast_unit) = (Served::new(slow)?, Served::new(fast)?);
    let own = Own { id: "S3.3", base: "direct", unit: "MB/s", rows: 3 };
    let rows = compare(args, report, own, &["direct", "unit"], |report, name| {
        let open = |device: &Path, unit: &Served| {
            if *name == "direct" { opened(device) } else { unit.open() }
        };
        for direction in WAYS {
            let read = direction == Direction::Read;
            let pattern = Pattern::sequential(0, 128 * MIB, MIB, read);
            let stream = Stream { depth: 4, ..Stream::plain(open(slow, &slow_unit)?, pattern) };
            let cell = Cell { name, phase: direction.word(), at: at(&[]) };
            cell.run(report, &[stream], &Limits::default())?;
        }
        let mut pattern = Pattern::sequential(0, 256 * MIB, 4096, true).ordered(Order::Random);
        pattern.count = 5000;
        let stream = Stream::plain(open(fast, &fast_unit)?, pattern);
        let cell = Cell { name, phase: "latency of 4 KiB", at: at(&[]) };
        let (row, outcome) = cell.run(report, &[stream], &Limits::default())?;
        (row.less, row.unit) = (true, "us".to_owned());
        row.replace_rate(outcome.all.latency().percentiles().p50);
        Ok(())
    })?;
    let (latency, rates): (Vec<_>, Vec<_>) =
        rows.rows.iter().cloned().partition(|r| r.phase.starts_with("latency"));
    let only = Report { rows: rates, ..rows.clone() };
    judge(report, &only, "unit", ("S3.3 transport over loopback, 1 MiB", "about 1", 0.95));
    let [direct, unit] = latency.as_slice() else { return Ok(()) };
    let added: Vec<f64> = unit.rate.0.iter().zip(&direct.rate.0).map(|(u, d)| u - d).collect();
    let what = "S3.3 latency that the transport adds, us at p50, processes on the same processors";
    report.verdict((what, "not measurable", ""), Goal::AtMost(15.0), &Samples(added));
    take(report, rows, "S3.3");
    Ok(())
}

/// One stream of uncompressed film, 24 frames of 126 MiB a second, from devices in RAM.
pub(super) fn s4_5(args: &Args, report: &mut Report) -> Result<()> {
    let testbed = members(args, "film", (4, 320 * MIB), None)?;
    let mount = Mount::braid(&testbed.paths, testbed.work.join("mount"))?;
    let plain = testbed.work.join("plain");
    std::fs::create_dir(&plain)?;
    let systems = vec![
        System { name: "files in RAM".to_owned(), path: plain.clone() },
        System { name: "mount".to_owned(), path: mount.dir.clone() },
    ];
    let mut how = short(&args.how);
    how.repeats = how.repeats.min(3);
    let rows = measured(report, "S4.5", stream::Args::film(systems), how);
    std::fs::remove_dir(&plain).ok();
    let rows = rows?;
    for row in &rows.rows {
        let what = "S4.5 film, 3.17 GB/s: part of the frames on time";
        let original = "42 minutes for a second, on 10 Mbit/s";
        let parts = Samples(row.rate.0.iter().map(|percent| percent / 100.0).collect());
        report.verdict((what, original, &row.name), Goal::AtLeast(0.99), &parts);
    }
    take(report, rows, "S4.5");
    Ok(())
}
