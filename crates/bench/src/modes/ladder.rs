//! The ladder: the same sequential job on every layer, from the bare devices to the mount and, if it is named, a mount
//! from a server, and on file systems of the kernel for comparison. Each kernel file system has one loop device on the
//! same kind of backing file; one that can stripe by itself is also measured over all members.
//!
//! Every device is written once beforehand, so that no layer pays for the first touch of its memory. All
//! layers are measured in turn in every round.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use braid_format::{Bytes, StripeUnit};
use braid_fs::make::{MakeOptions, make};
use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};
use braid_pool::device::AlignedBuf;
use braid_pool::{CreateOptions, Pool};

use super::{Cell, Measure, RoundPlan, RunOptions, at};
use crate::arguments::{Common, DeviceKind, size};
use crate::engine::{Calls, Content, Direction, Layer, Limits, OpenMode, Pattern, Stream, Target};
use crate::modes::streams::{self, Phase};
use crate::report::Report;
use crate::testbed::kernel::{self, Beside, Kernel};
use crate::testbed::members::Members;
use crate::testbed::service::{Reach, Service};
use crate::testbed::{Mount, make_braid};

/// Of a request.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 64 << 20;
/// Requests in flight per member, raw; the pool and the file system get as many bytes in flight.
const DEPTH_PER_MEMBER: usize = 4;
/// Room for labels, journals and resource groups beside the data.
pub(crate) const SLACK: u64 = 512 << 20;
/// Where raw data begins: beyond the labels, so that what is there stays a pool.
pub(crate) const RAW_FROM: u64 = 8 << 20;

/// What a reader must know of the rows of btrfs.
const CHECKSUMS: &str = "btrfs keeps checksums of data: on kernels from 6.15 on its direct writes go through the page \
                         cache, and to the device before they return";

const PHASES: [(Direction, &str); 2] = [(Direction::Write, "write"), (Direction::Read, "read")];

/// What Braid is made of, from below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rung {
    /// All devices at once.
    Raw,
    /// The pool on them.
    Pool,
    /// The file system through its API, in this process.
    Native,
    /// The mounted file system, as programs use it.
    Mount,
    /// A mount from `braid serve` on this host, over loopback and without TLS: what a host without the disks uses.
    Bulk,
}
impl Rung {
    /// As its rows are called.
    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Pool => "pool",
            Self::Native => "native",
            Self::Mount => "mount",
            Self::Bulk => "bulk",
        }
    }
}

/// Raw devices, pool, file system (native API) and mount, and other file systems for comparison:
/// sequential, direct
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Layers to measure. Ratios are to raw, or to the first layer if raw is not measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "raw,pool,native,mount")]
    layers: Vec<Rung>,
    /// File systems of the kernel to measure too (root): each on one loop device, btrfs also striped
    /// over all members. Default: xfs, if it can be made here
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SYSTEMS")]
    beside: Option<Vec<Beside>>,
    /// Request size. The pool has a stripe unit of 256 KiB
    #[arg(long, default_value = "1M", value_parser = size)]
    request: u64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    /// All layers, and beside them what is possible.
    pub fn new(common: Common) -> Self {
        let layers = vec![Rung::Raw, Rung::Pool, Rung::Native, Rung::Mount];
        Self { layers, beside: None, request: 1 << 20, common }
    }
    /// The name of the layer that all else is compared with.
    fn base(&self) -> &'static str {
        let first = self.layers.first().copied().unwrap_or(Rung::Raw);
        if self.layers.contains(&Rung::Raw) { Rung::Raw.name() } else { first.name() }
    }
    /// Bytes of each stream.
    fn each(&self) -> u64 {
        self.common.size / self.common.streams as u64 / self.request * self.request
    }
    /// What stands beside the layers: what is named must be possible, what is not is left out and said.
    fn beside(&self, report: &mut Report) -> Result<Vec<Kernel>> {
        let mut systems = kernel::beside(self.beside.as_deref().unwrap_or(&[Beside::Xfs]))?;
        self.keep(report, &mut systems, Kernel::possible)?;
        Ok(systems)
    }
    /// Leaves out what is not possible, or fails if it was named.
    fn keep(
        &self,
        report: &mut Report,
        systems: &mut Vec<Kernel>,
        possible: impl Fn(Kernel) -> Result<()>,
    ) -> Result<()> {
        for system in std::mem::take(systems) {
            match possible(system) {
                Ok(()) => systems.push(system),
                Err(e) if self.beside.is_none() => {
                    report.note(format!("{} is not measured: {e:#}", system.name()));
                }
                Err(e) => return Err(e.context(format!("--beside {}", system.name()))),
            }
        }
        Ok(())
    }
    /// What the layers need, before anything is made.
    fn check(&self) -> Result<()> {
        self.common.check()?;
        let whole = self.request.is_power_of_two() && (LEAST..=MOST).contains(&self.request);
        ensure!(whole, "--request: a power of two from 4K to 64M");
        let each = threads(&self.common) as u64;
        ensure!(
            self.common.size / self.request >= each,
            "--size: less than one request for each of {each} threads"
        );
        ensure!(!self.layers.is_empty(), "--layers: none is named");
        kernel::once("--layers", &self.layers)?;
        kernel::devices(&self.common)?;
        for mounted in [Rung::Mount, Rung::Bulk] {
            if self.layers.contains(&mounted) {
                kernel::mountable().with_context(|| format!("layer {}", mounted.name()))?;
            }
        }
        Ok(())
    }
}

/// What takes a turn in each round.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Layer(Rung),
    /// On one loop device.
    One(Kernel),
    /// Striped by itself over all members.
    All(Kernel),
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("ladder").against(self.base(), "MB/s");
        let c = &self.common;
        report.fact("backing", format!("{} ({} files)", c.dir.display(), c.members));
        let request = crate::report::table::size(crate::statistics::float(self.request));
        let (size, streams) = (c.size >> 20, c.streams);
        let job = format!("{size} MiB in requests of {request}, direct, {streams} streams");
        report.fact("job", job);
        report.fact("engine", braid_pool::device::default_engine());
        if c.loop_devices {
            report.fact("devices", "loop devices over files");
        }
        if let Some(rate) = c.throttle {
            report.fact("throttle", format!("{} MB/s per device", rate / 1_000_000));
        }
        if !self.layers.contains(&Rung::Raw) {
            report.fact("ratios", format!("to {}; raw is not measured", self.base()));
        }
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        let c = &self.common;
        self.check()?;
        let mut systems = self.beside(report)?;
        let room = systems.iter().map(|s| s.room(c.size)).max().unwrap_or(0) + c.size + SLACK;
        let each = room / c.members as u64 / MOST * MOST + 2 * MOST;
        let single = if systems.is_empty() { 0 } else { room };
        crate::engine::room(&c.dir.join("backing"), each * c.members as u64 + single)?;
        let testbed = Members::new(&c.dir, "pool", (c.members, each), c.device_kind())?;
        let kind =
            if c.device_kind() == DeviceKind::File { DeviceKind::Loop } else { c.device_kind() };
        let beside = || Members::new(&c.dir, "beside", (1, room), kind);
        let one = (!systems.is_empty()).then(beside).transpose()?;
        self.keep(report, &mut systems, |system| {
            one.as_ref().map_or(Ok(()), |one| on_one(one, system).map(drop))?;
            if c.members > 1 && system.stripes() {
                striped(&testbed, system, |_| Ok(()))
            } else {
                Ok(())
            }
        })?;
        let mut turns: Vec<_> = self.layers.iter().copied().map(Turn::Layer).collect();
        for system in systems {
            turns.push(Turn::One(system));
            if c.members > 1 && system.stripes() {
                turns.push(Turn::All(system));
            }
            if system == Kernel::Btrfs {
                report.note(CHECKSUMS);
            }
        }
        how.rounds(report, RoundPlan::new(turns.len(), PHASES.len()), |report, _, turn| {
            match (turns.get(turn), &one) {
                (Some(Turn::Layer(Rung::Raw)), _) => raw(self, &testbed, report),
                (Some(Turn::Layer(Rung::Pool)), _) => pool(self, &testbed, report),
                (Some(Turn::Layer(Rung::Native)), _) => native(self, &testbed, report),
                (Some(Turn::Layer(Rung::Mount)), _) => mounted(self, &testbed, report),
                (Some(Turn::Layer(Rung::Bulk)), _) => served(self, &testbed, report),
                (Some(Turn::One(system)), Some(one)) => {
                    let name = format!("{} (1 loop)", system.name());
                    measure_streams(self, &on_one(one, *system)?, &name, report)
                }
                (Some(Turn::All(system)), _) => all(*system, self, &testbed, report),
                _ => Ok(()),
            }
        })
    }
}

/// Writes, then reads, of a layer; what its pool asked the members for is told.
fn phases(report: &mut Report, name: &str, pool: Option<&Pool>, streams: &[Stream]) -> Result<()> {
    for (direction, phase) in PHASES {
        let reads = if direction == Direction::Read { 100 } else { 0 };
        let turned = |s: &Stream| Stream { pattern: Pattern { reads, ..s.pattern }, ..s.clone() };
        let streams: Vec<_> = streams.iter().map(turned).collect();
        let before = pool.map(Pool::issued);
        let (row, _) =
            Cell { name, phase, at: at(&[]) }.run(report, &streams, &Limits::ordinary())?;
        row.cache = Some("direct".to_owned());
        if let Some((before, pool)) = before.zip(pool) {
            report.add_issued(name, phase, &before, &pool.issued());
        }
    }
    Ok(())
}

fn stream(target: &Arc<Target>, pattern: Pattern, depth: usize) -> Stream {
    Stream { depth, content: Content::Byte(0), ..Stream::plain(target.clone(), pattern) }
}

/// Threads of the layers whose requests overlap: the same number for each member, at least as many as
/// the layers above have streams.
fn threads(common: &Common) -> usize {
    common.streams.next_multiple_of(common.members)
}

/// All devices at once, each sequentially, through the same engine that the pool uses: at least as
/// many threads as the layers above have streams, so that no layer has more of the processors. A
/// thread keeps to one device, so that none waits behind another.
fn raw(args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    let Args { common, request, .. } = args;
    let how = OpenMode { write: true, direct: true, force: true, ..OpenMode::default() };
    let open = |path: &PathBuf| Ok(Target::open(path, how)?);
    let devices = testbed.paths.iter().map(open).collect::<Result<Vec<_>>>()?;
    let each = threads(common) / devices.len();
    let share = common.size / request / (each * devices.len()) as u64 * request;
    let mut streams = Vec::new();
    for n in 0..each as u64 {
        let pattern = Pattern::sequential(RAW_FROM + n * share, share, *request, true);
        streams.extend(devices.iter().map(|target| stream(target, pattern, DEPTH_PER_MEMBER)));
    }
    phases(report, "raw", None, &streams)
}

/// A pool of all devices, made anew.
pub(crate) fn fresh_pool(testbed: &Members) -> Result<Pool> {
    let stripe_unit = StripeUnit::new(Bytes(256 << 10)).context("stripe unit")?;
    let options = CreateOptions { stripe_unit, force: true, ..CreateOptions::new("bench") };
    Ok(Pool::create(testbed.devices()?, &options)?)
}

/// A layer over the devices.
pub(crate) fn over(testbed: &Members, name: &str, layer: Layer) -> Result<Arc<Target>> {
    let devices = testbed.devices()?;
    let first = devices.first().context("no devices")?;
    Ok(Target::over(layer, name, first.info()))
}

/// As many threads as [`raw`] has, each with a share of the job, as many requests under way, and so with
/// buffers that take as much of the processors' caches.
fn pool(args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    let pool = fresh_pool(testbed)?;
    let target = over(testbed, "pool", Layer::Pool(pool.clone()))?;
    let (request, count) = (args.request, threads(&args.common) as u64);
    let share = args.common.size / request / count * request;
    let one = |n| Pattern::sequential(n * share, share, request, true);
    let streams: Vec<_> = (0..count).map(|n| stream(&target, one(n), DEPTH_PER_MEMBER)).collect();
    phases(report, "pool", Some(&pool), &streams)
}

/// An open file of a file system in this process.
struct NativeFile {
    fs: Fs,
    handle: u64,
}
impl std::fmt::Debug for NativeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeFile").field("handle", &self.handle).finish_non_exhaustive()
    }
}
impl NativeFile {
    fn whole(&self, n: usize, len: usize, at: u64) -> Result<(), String> {
        let short = || format!("handle {}: {n} bytes of {len} at {at}", self.handle);
        if n == len { Ok(()) } else { Err(short()) }
    }
}
impl Calls for NativeFile {
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<(), String> {
        let n = self.fs.read(self.handle, at, buf).map_err(|e| e.to_string())?;
        self.whole(n, buf.len(), at)
    }
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), String> {
        let flags = WriteFlags { direct: true, ..WriteFlags::default() };
        let n = self.fs.write(self.handle, at, buf, flags).map_err(|e| e.to_string())?;
        self.whole(n, buf.len(), at)
    }
}

/// A file system in this process, made anew.
pub(crate) fn fresh(pool: Pool) -> Result<Fs> {
    make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
    Ok(Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?)
}

/// A file system in this process, made anew on all devices, with open files in its root.
pub(crate) struct NativeFiles {
    pub targets: Vec<Arc<Target>>,
    pool: Pool,
    fs: Fs,
    handles: Vec<u64>,
}
impl NativeFiles {
    pub fn new(testbed: &Members, count: usize) -> Result<Self> {
        const O_RDWR: i32 = 2;
        let pool = fresh_pool(testbed)?;
        let fs = fresh(pool.clone())?;
        let mut files = Self { targets: Vec::new(), pool, fs, handles: Vec::new() };
        for n in 0..count {
            let (fs, name) = (files.fs.clone(), format!("stream{n}"));
            let made = fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default())?;
            let file = Arc::new(NativeFile { fs, handle: made.1 });
            files.handles.push(made.1);
            files.targets.push(over(testbed, &name, Layer::Calls(file))?);
        }
        Ok(files)
    }
    /// Closes them, and takes the file system down.
    pub fn end(self) -> Result<()> {
        drop(self.targets);
        for handle in self.handles {
            self.fs.release(handle)?;
        }
        Ok(self.fs.unmount()?)
    }
}

/// The file system's own API in this process: one file per stream, one thread each.
fn native(args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    let files = NativeFiles::new(testbed, args.common.streams)?;
    let pattern = Pattern::sequential(0, args.each(), args.request, true);
    let streams: Vec<_> = files.targets.iter().map(|target| stream(target, pattern, 1)).collect();
    phases(report, "native", Some(&files.pool), &streams)?;
    drop(streams);
    files.end()
}

/// Ordinary programs on the mount.
fn mounted(args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    let mount = Mount::braid(&testbed.paths, testbed.work.join("mount"))?;
    measure_streams(args, &mount, "mount", report)
}

/// The same on a mount from a server.
fn served(args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    make_braid(&testbed.paths)?;
    let service = Service::new(&testbed.paths, &testbed.work, Reach { wire: None, tls: false })?;
    let mount = service.mount(testbed.work.join("mount"))?;
    measure_streams(args, &mount, Rung::Bulk.name(), report)
}

fn measure_streams(args: &Args, mount: &Mount, name: &str, report: &mut Report) -> Result<()> {
    let files = streams::files(&mount.dir, args.common.streams);
    for (direction, phase) in PHASES {
        let (bytes, request) = (args.each(), args.request);
        let job = Phase { direction, bytes, request, direct: true, sync: false };
        job.measure(&files, report, (name, phase, "direct"))?;
    }
    Ok(())
}

/// A file system of the kernel on one loop device of the same backing.
fn on_one(one: &Members, system: Kernel) -> Result<Mount> {
    Mount::kernel(system, &one.paths, one.work.join("mount"))
}

/// A file system of the kernel that stripes by itself, freshly made on all members.
fn striped(
    testbed: &Members,
    system: Kernel,
    with: impl FnOnce(&Mount) -> Result<()>,
) -> Result<()> {
    let (_loops, paths) = testbed.block_devices()?;
    let mount = Mount::kernel(system, &paths, testbed.work.join("mount"))?;
    with(&mount)
}

fn all(system: Kernel, args: &Args, testbed: &Members, report: &mut Report) -> Result<()> {
    let name = format!("{} ({} loops, raid0)", system.name(), args.common.members);
    striped(testbed, system, |mount| measure_streams(args, mount, &name, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str]) -> Args {
        crate::modes::typed(words)
    }

    #[test]
    fn ratios_are_to_raw_or_to_the_first_layer_that_is_named_and_that_is_said() {
        for (layers, base, said) in [
            ("raw,pool,native,mount", "raw", None),
            ("mount,raw", "raw", None),
            ("native,pool", "native", Some("to native; raw is not measured")),
            ("mount", "mount", Some("to mount; raw is not measured")),
        ] {
            let report = typed(&["--layers", layers]).begin();
            assert_eq!(report.base, base, "{layers}");
            let ratios = report.setup.iter().find(|(key, _)| key == "ratios");
            assert_eq!(ratios.map(|(_, value)| value.as_str()), said, "{layers}");
        }
    }
    #[test]
    fn what_is_not_possible_is_a_note_unless_it_was_named() {
        let impossible = |_| anyhow::bail!("no such package");
        let mut report = Report::new("ladder");
        let mut systems = vec![Kernel::Xfs];
        typed(&[]).keep(&mut report, &mut systems, impossible).unwrap();
        assert_eq!(report.notes, ["xfs is not measured: no such package"]);
        assert!(systems.is_empty());
        let named = typed(&["--beside", "xfs"]);
        let error = named.keep(&mut report, &mut vec![Kernel::Xfs], impossible).unwrap_err();
        assert_eq!(format!("{error:#}"), "--beside xfs: no such package");
    }
}
