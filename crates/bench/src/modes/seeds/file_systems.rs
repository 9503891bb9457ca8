//! Experiments on freshly made file systems: building a program, a failed member, several nodes, locks.

use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use braid_fs::Cred;
use itertools::Itertools as _;
use xxhash_rust::xxh3::xxh3_64;

use super::devices::{Own, compare, judge, sample, take};
use super::experiment::{Args, verdict};
use super::loop_devices::members;
use crate::engine::{Content, Direction, Limits, OpenMode, Pattern, Stream, Target};
use crate::modes::{Cell, at, ladder};
use crate::report::{Goal, Report};
use crate::statistics::Samples;
use crate::statistics::float;
use crate::testbed::{Mount, braid, command, text};

const MIB: u64 = 1 << 20;

/// Files of the tree that is built.
const SOURCES: usize = 60;

/// Unpacking and building a tree of C files, on XFS and on a mount, one loop device of the same backing.
pub(super) fn s0_2(args: &Args, report: &mut Report) -> Result<()> {
    for tool in ["cc", "make", "tar"] {
        let mut there = Command::new(tool);
        there.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        ensure!(there.status().is_ok(), "no {tool} here");
    }
    let testbed = members(args, "build", (1, 1024 * MIB), None)?;
    let archive = testbed.work.join("tree.tar");
    pack(&testbed.work.join("tree"), &archive)?;
    let own = Own { id: "S0.2", base: "xfs", unit: "s", rows: 2 };
    let rows = compare(args, report, own, &[0, 1], |report, system| {
        let (mount, name) = testbed.xfs_or_braid(*system)?;
        let (archive, dir) = (text(&archive)?, text(&mount.dir)?);
        let unpack = format!("tar xf {archive} -C {dir}");
        let build = format!("make -s -j2 -C {dir}/tree");
        for (phase, script) in [("untar", unpack), ("build", build)] {
            let row = sample(report, (name, phase), &at(&[]), || {
                let began = Instant::now();
                command("sh", &["-c", &script])?;
                Ok(began.elapsed().as_secs_f64())
            })?;
            row.less = true;
        }
        Ok(())
    })?;
    judge(report, &rows, "mount", ("S0.2 a tree unpacked and built", "1.30 on four disks", 0.909));
    take(report, rows, "S0.2");
    Ok(())
}

/// An archive of sources with a Makefile.
fn pack(tree: &Path, archive: &Path) -> Result<()> {
    std::fs::create_dir(tree)?;
    for n in 0..SOURCES {
        let part = |f| format!("static int part{f}(int x) {{ return x * {f} + {n}; }}\n");
        let parts = (0..40).map(part).join("");
        let sum = (0..40).map(|f| format!(" + part{f}(x)")).join("");
        let source = format!("{parts}int file{n}(int x) {{ return 0{sum}; }}\n");
        std::fs::write(tree.join(format!("file{n}.c")), source)?;
    }
    let declared = (0..SOURCES).map(|n| format!("int file{n}(int);\n")).join("");
    let sum = (0..SOURCES).map(|n| format!(" + file{n}({n})")).join("");
    let main = format!("{declared}int main(void) {{ return (0{sum}) == 1; }}\n");
    std::fs::write(tree.join("main.c"), main)?;
    let objects = (0..SOURCES).map(|n| format!(" file{n}.o")).join("");
    let rules = "program: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n%.o: %.c\n\tcc -c -O1 -o $@ $<\n";
    let makefile = format!("all: program\nOBJECTS ={objects} main.o\n{rules}");
    std::fs::write(tree.join("Makefile"), makefile)?;
    let parent = tree.parent().context("no parent")?;
    command("tar", &["cf", text(archive)?, "-C", text(parent)?, "tree"])?;
    std::fs::remove_dir_all(tree)?;
    Ok(())
}

/// A member fails: what is still there, mounted, and mounted again without it.
pub(super) fn s0_9(args: &Args, report: &mut Report) -> Result<()> {
    const FILES: usize = 50;
    let testbed = members(args, "failure", (2, 320 * MIB), None)?;
    let names = testbed.paths.iter().map(|p| text(p)).collect::<Result<Vec<_>>>()?;
    let [first, second] = names.as_slice() else { return Ok(()) };
    braid(&["create", "bench", "--force", "--mirror", "2", first, second])?;
    let mount = Mount::braid_again(&testbed.paths, testbed.work.join("mount"), None)?;
    let mut sums = Vec::new();
    for n in 0..FILES {
        let mut bytes = vec![0; 4096 * (n + 1)];
        Content::Verified { run: 9, generation: n as u64 }.fill(0, &mut bytes);
        std::fs::write(mount.dir.join(format!("f{n}")), &bytes)?;
        sums.push(xxh3_64(&bytes));
    }
    let whole = |dir: &Path| {
        let same = |(n, sum): (usize, &u64)| {
            std::fs::read(dir.join(format!("f{n}"))).is_ok_and(|b| xxh3_64(&b) == *sum)
        };
        sums.iter().enumerate().filter(|p| same(*p)).count()
    };
    braid(&["fail", text(&mount.dir)?, "1"])?;
    mount.drop_caches()?;
    let degraded = whole(&mount.dir);
    // Written out and back in, as a backup is.
    let out = testbed.work.join("copy");
    std::fs::create_dir(&out)?;
    for n in 0..FILES {
        std::fs::copy(mount.dir.join(format!("f{n}")), out.join(format!("f{n}")))?;
    }
    let copied = whole(&out);
    std::fs::remove_dir_all(&out)?;
    drop(mount);
    let left = [PathBuf::from(first)];
    let mount = Mount::braid_again(&left, testbed.work.join("mount"), None)?;
    let again = whole(&mount.dir);
    let original = "the whole volume is lost";
    for (what, count) in [
        ("S0.9 a member of a mirror fails: part of the files that is whole", degraded),
        ("S0.9 the same, mounted again without it", again),
        ("S0.9 the same, copied out and compared", copied),
    ] {
        let part = float(count as u64) / float(FILES as u64);
        report.verdicts.push(verdict(what, original, Goal::AtLeast(1.0), part));
    }
    report.note("S0.9: a stripe without redundancy keeps nothing of what stood on the member");
    Ok(())
}

/// Devices and nodes of the scaling study.
const NODES: [usize; 3] = [1, 2, 4];

/// n nodes on n slow devices, each with a file of its own: in one directory, and in one each.
pub(super) fn s4_3(args: &Args, report: &mut Report) -> Result<()> {
    const EACH: u64 = 48 * MIB;
    let mut sets = Vec::new();
    for count in NODES {
        let testbed =
            members(args, &format!("nodes{count}"), (count, 320 * MIB), Some(60_000_000))?;
        let mut mounts = Vec::new();
        for n in 0..count {
            let dir = testbed.work.join(format!("node{n}"));
            mounts.push(if n == 0 {
                Mount::braid(&testbed.paths, dir)?
            } else {
                Mount::braid_again(&testbed.paths, dir, None)?
            });
        }
        // Mounts go before their devices.
        sets.push((mounts, testbed));
    }
    let own = Own { id: "S4.3", base: "1 node", unit: "MB/s", rows: 4 };
    let rows = compare(args, report, own, &sets, |report, (mounts, _)| {
        let name = match mounts.len() {
            1 => "1 node".to_owned(),
            n => format!("{n} nodes"),
        };
        for shared in [true, false] {
            let mut paths = Vec::new();
            for (n, mount) in mounts.iter().enumerate() {
                let dir = if shared { "all".to_owned() } else { format!("own{n}") };
                std::fs::create_dir_all(mount.dir.join(&dir))?;
                paths.push(mount.dir.join(dir).join(format!("file{n}")));
            }
            let place = if shared { "one directory" } else { "a directory each" };
            for direction in [Direction::Write, Direction::Read] {
                let streams = paths.iter().map(|p| slowly(p, direction, EACH));
                let streams = streams.collect::<Result<Vec<_>>>()?;
                let phase = format!("{}, {place}", direction.word());
                let cell = Cell { name: &name, phase: &phase, at: at(&[]) };
                let (row, outcome) = cell.run(report, &streams, &Limits::default())?;
                if let Some(together) = outcome.mb_per_s_together() {
                    row.replace_rate(together);
                }
            }
            for path in &paths {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    })?;
    judge(report, &rows, "4 nodes", ("S4.3 speed-up, n nodes on n devices", "lost", 3.8));
    for word in ["write", "read"] {
        let of = |place: &str| {
            let row = rows.find("4 nodes", &format!("{word}, {place}"), &at(&[]));
            row.map(|r| r.rate.clone()).unwrap_or_default()
        };
        let ratio = of("one directory").ratio_to(&of("a directory each"));
        let what = format!("S4.4 4 nodes, {word}, files in one directory over one each");
        report.verdict((&what, "below 1; lost", ""), Goal::AtLeast(0.98), &ratio);
    }
    speed_ups(report, &rows);
    take(report, rows, "S4.3");
    Ok(())
}

/// A row for each point of the curves.
fn speed_ups(report: &mut Report, rows: &Report) {
    for row in &rows.rows {
        let Some(base) = rows.base_of(row) else { continue };
        let nodes = row.name.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
        let curve = report.row(&row.phase, "S4.3 speed-up over one node", &at(&[("nodes", nodes)]));
        "of one node".clone_into(&mut curve.unit);
        curve.rate = row.ratio_to(base);
    }
}

fn slowly(path: &Path, direction: Direction, bytes: u64) -> Result<Stream> {
    let write = direction == Direction::Write;
    let how = OpenMode { write, direct: true, overwrite: true, ..OpenMode::default() };
    let pattern = Pattern::sequential(0, bytes, MIB, !write);
    Ok(Stream { depth: 4, ..Stream::plain(Target::open(path, how)?, pattern) })
}

/// Small files stand in their inodes: what writing one costs beside making it.
pub(super) fn s4_6(args: &Args, report: &mut Report) -> Result<()> {
    const FILES: u32 = 1000;
    let testbed = members(args, "small", (1, 512 * MIB), None)?;
    let mount = Mount::braid(&testbed.paths, testbed.work.join("mount"))?;
    let kinds: [(&str, &[u8]); 2] = [("empty", &[]), ("1 KiB", &[7; 1024])];
    let own = Own { id: "S4.6", base: "1 KiB", unit: "files/s", rows: 1 };
    let rows = compare(args, report, own, &kinds, |report, (name, bytes)| {
        let dir = mount.dir.join("files");
        std::fs::create_dir(&dir)?;
        sample(report, (name, "made"), &at(&[]), || {
            let began = Instant::now();
            for n in 0..FILES {
                std::fs::File::create_new(dir.join(format!("f{n}")))?.write_all(bytes)?;
            }
            Ok(f64::from(FILES) / began.elapsed().as_secs_f64().max(1e-9))
        })?;
        Ok(std::fs::remove_dir_all(&dir)?)
    })?;
    let empty = rows.rows.iter().find(|r| r.name == "empty");
    let cost = empty.and_then(|r| Some(r.rate.ratio_to(&rows.base_of(r)?.rate)));
    let what = "S4.6 time to make, write and close a file of 1 KiB over making an empty one";
    let original = "saves a read; no figures";
    report.verdict((what, original, ""), Goal::AtMost(1.3), &cost.unwrap_or_default());
    take(report, rows, "S4.6");
    Ok(())
}

/// Locks: checked while they are cached, handed over, taken from a node that died.
pub(super) fn s4_7(args: &Args, report: &mut Report) -> Result<()> {
    let own = Own { id: "S4.7", base: "", unit: "per s", rows: 1 };
    let rows = compare(args, report, own, &["native"], |report, name| {
        sample(report, (name, "attributes under a cached lock"), &at(&[]), || cached(args))
            .map(drop)
    })?;
    let rates = rows.rows.first().map(|r| r.rate.0.iter().map(|r| r / 1e6).collect());
    let what = "S4.7 checks of a cached lock, millions a second (with the attributes it covers)";
    let rates = Samples(rates.unwrap_or_default());
    report.verdict((what, "not given", ""), Goal::AtLeast(1.0), &rates);
    take(report, rows, "S4.7");
    let (handed, took) = died(args)?;
    let what = "S4.7 a write on one node, then a read on another (two hand-overs), us";
    report.verdict((what, "not given", ""), Goal::Told, &handed);
    let what = "S4.7 a node that wrote a file is killed: seconds until another writes it";
    let (original, goal) = ("by clients, no time given", Goal::AtMost(LEASE));
    report.verdicts.push(verdict(what, original, goal, took));
    Ok(())
}

/// Seconds after which a silent node is not believed to live.
const LEASE: f64 = 10.0;

fn cached(args: &Args) -> Result<f64> {
    const CALLS: u32 = 300_000;
    let testbed = members(args, "locks", (1, 320 * MIB), None)?;
    let fs = ladder::fresh(ladder::fresh_pool(&testbed)?)?;
    let (attr, handle) = fs.create(fs.root(), b"f", 0o644, 2, &Cred::default())?;
    let began = Instant::now();
    for _ in 0..CALLS {
        fs.getattr(attr.ino)?;
    }
    let rate = f64::from(CALLS) / began.elapsed().as_secs_f64();
    fs.release(handle)?;
    fs.unmount()?;
    Ok(rate)
}

/// Microseconds of each of many writes on one node with a read on the other.
fn handed_over(one: &Mount, two: &Mount) -> Result<Samples> {
    const TURNS: u8 = 200;
    let mut took = Vec::new();
    std::fs::write(one.dir.join("turns"), [0; 4096])?;
    let writer = std::fs::OpenOptions::new().write(true).open(one.dir.join("turns"))?;
    let reader = std::fs::File::open(two.dir.join("turns"))?;
    for turn in 0..TURNS {
        let mut seen = [0; 4096];
        let began = Instant::now();
        writer.write_all_at(&[turn; 4096], 0)?;
        reader.read_exact_at(&mut seen, 0)?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
        ensure!(seen == [turn; 4096], "turn {turn}: the other node does not see what was written");
    }
    Ok(Samples(took))
}

/// Two nodes: what hand-overs take, and seconds until one writes what the other had when it died.
fn died(args: &Args) -> Result<(Samples, f64)> {
    let testbed = members(args, "died", (2, 320 * MIB), None)?;
    let one = Mount::braid(&testbed.paths, testbed.work.join("one"))?;
    let two = Mount::braid_again(&testbed.paths, testbed.work.join("two"), None)?;
    let handed = handed_over(&one, &two)?;
    std::fs::write(one.dir.join("f"), vec![1; 1 << 20])?;
    let server = i32::try_from(one.server()?)?;
    let began = Instant::now();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(server), nix::sys::signal::Signal::SIGKILL)?;
    // What is gone is not asked to unmount.
    let gone = one.dir.clone();
    std::mem::forget(one);
    command("umount", &["-l", text(&gone)?])?;
    std::fs::remove_dir(&gone).ok();
    std::fs::write(two.dir.join("f"), vec![2; 1 << 20])?;
    let took = began.elapsed().as_secs_f64();
    ensure!(std::fs::read(two.dir.join("f"))? == vec![2; 1 << 20], "f is not as it was written");
    Ok((handed, took))
}
