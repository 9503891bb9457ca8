//! The ladder: the same sequential job on every layer, from the bare devices to the mount, with
//! XFS on a loop device of the same backing beside it. Devices are freshly written once before, so
//! that no layer pays for first touch; layers are measured in turn in every round.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use braid_format::{Bytes, StripeUnit};
use braid_fs::make::{MakeOptions, make};
use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};
use braid_pool::device::AlignedBuf;
use braid_pool::{CreateOptions, Pool};

use super::{Cell, How, Measure, Turns, at};
use crate::cli::Common;
use crate::engine::{Calls, Content, Direction, Layer, Limits, Pattern, Stream, Target, Use};
use crate::report::Report;
use crate::rig::members::Members;
use crate::rig::streams::{self, Phase};
use crate::rig::{Backing, Loop, Mount};

/// Bytes per request.
const REQUEST: u64 = 1 << 20;
/// Requests in flight per member, raw; the pool and the file system get as many bytes in flight.
const DEPTH_PER_MEMBER: usize = 4;
/// Room for labels, journals and resource groups beside the data.
pub(crate) const SLACK: u64 = 512 << 20;
/// Where raw data begins: beyond the labels, so that what is there stays a pool.
pub(crate) const RAW_FROM: u64 = 8 << 20;

const PHASES: [(Direction, &str); 2] = [(Direction::Write, "write"), (Direction::Read, "read")];

/// Raw devices -> pool -> file system (native) -> mount, and XFS beside them: sequential, 1 MiB,
/// direct
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub how: How,
}

impl Measure for Args {
    fn how(&self) -> &How {
        &self.how
    }
    fn begin(&self) -> Report {
        let mut report = Report::new("ladder").against("raw", "MB/s");
        let c = &self.common;
        report.fact("backing", format!("{} ({} files)", c.dir.display(), c.members));
        let size = c.size >> 20;
        report.fact("job", format!("{size} MiB in 1 MiB requests, direct, {} streams", c.streams));
        report.fact("engine", braid_pool::device::default_engine());
        if c.loop_devices {
            report.fact("devices", "loop devices over files");
        }
        if let Some(rate) = c.throttle {
            report.fact("throttle", format!("{} MB/s per device", rate / 1_000_000));
        }
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        let c = &self.common;
        c.check()?;
        let bytes = (c.size + SLACK) / c.members as u64 / REQUEST * REQUEST + (64 << 20);
        let rig = Members::new(c, "pool", (c.members, bytes))?;
        let xfs = xfs_possible().then(|| XfsRig::new(c)).transpose()?;
        let turns = Turns::new(4 + usize::from(xfs.is_some()), PHASES.len());
        self.how.rounds(report, turns, |report, _, layer| match layer {
            0 => raw(c, &rig, report),
            1 => pool(c, &rig, report),
            2 => native(c, &rig, report),
            3 => mounted(c, &rig, report),
            _ => xfs.as_ref().map_or(Ok(()), |xfs| xfs.measure(c, report)),
        })
    }
}

/// Large buffers of ordinary pages, as programs have them, and as all layers have here. Under a
/// throttle in huge pages: the block layer makes a request of every 64 or so scattered pages, and
/// charges each.
fn limits(common: &Common) -> Limits {
    Limits { ordinary_pages: common.throttle.is_none(), ..Limits::default() }
}

/// Splits the job into one contiguous share of the same size for each of `count` streams.
fn shares(common: &Common, count: usize) -> impl Iterator<Item = Pattern> {
    let share = common.size / REQUEST / count as u64 * REQUEST;
    (0..count as u64).map(move |n| Pattern::sequential(n * share, share, REQUEST, true))
}

fn stream(target: &Arc<Target>, pattern: Pattern, direction: Direction) -> Stream {
    let mut pattern = pattern;
    pattern.reads = if direction == Direction::Read { 100 } else { 0 };
    Stream { content: Content::Byte(0), ..Stream::plain(target.clone(), pattern) }
}

fn cell(
    report: &mut Report,
    (name, phase): (&str, &str),
    streams: &[Stream],
    common: &Common,
) -> Result<()> {
    let (row, _) = Cell { name, phase, at: at(&[]) }.run(report, streams, &limits(common))?;
    row.cache = Some("direct".to_owned());
    Ok(())
}

/// Threads of the layers whose requests overlap: the same number for each member, at least as many as
/// the layers above have streams.
fn threads(common: &Common) -> usize {
    common.streams.next_multiple_of(common.members)
}

/// All devices at once, each sequentially, through the same engine that the pool uses: at least as
/// many threads as the layers above have streams, so that no layer has more of the processors. A
/// thread keeps to one device, so that none waits behind another.
fn raw(common: &Common, rig: &Members, report: &mut Report) -> Result<()> {
    let how = Use { write: true, direct: true, force: true, ..Use::default() };
    let open = |path: &PathBuf| Ok(Target::keep(path, how)?);
    let devices = rig.paths.iter().map(open).collect::<Result<Vec<_>>>()?;
    let each = threads(common) / devices.len();
    let share = common.size / REQUEST / (each * devices.len()) as u64 * REQUEST;
    for (direction, name) in PHASES {
        let mut streams = Vec::new();
        for n in 0..each as u64 {
            for target in &devices {
                let from = RAW_FROM + n * share;
                let pattern = Pattern::sequential(from, share, REQUEST, true);
                let depth = DEPTH_PER_MEMBER;
                streams.push(Stream { depth, ..stream(target, pattern, direction) });
            }
        }
        cell(report, ("raw", name), &streams, common)?;
    }
    Ok(())
}

/// A pool of all devices, made anew.
///
/// # Errors
/// It cannot be made.
pub(crate) fn fresh_pool(rig: &Members) -> Result<Pool> {
    let stripe_unit = StripeUnit::new(Bytes(256 << 10)).context("stripe unit")?;
    let options = CreateOptions { stripe_unit, force: true, ..CreateOptions::new("bench") };
    Ok(Pool::create(rig.devices()?, &options)?)
}

/// A layer over the devices.
///
/// # Errors
/// They cannot be opened.
pub(crate) fn over(rig: &Members, name: &str, layer: Layer) -> Result<Arc<Target>> {
    let devices = rig.devices()?;
    let first = devices.first().context("no devices")?;
    Ok(Target::over(layer, name, first.info()))
}

/// As many threads as [`raw`] has, each with as many requests under way and so with buffers that
/// take as much of the processors' caches.
fn pool(common: &Common, rig: &Members, report: &mut Report) -> Result<()> {
    let pool = fresh_pool(rig)?;
    let target = over(rig, "pool", Layer::Pool(pool.clone()))?;
    let count = threads(common);
    for (direction, name) in PHASES {
        let one = |p| Stream { depth: DEPTH_PER_MEMBER, ..stream(&target, p, direction) };
        let streams: Vec<_> = shares(common, count).map(one).collect();
        let before = pool.issued();
        cell(report, ("pool", name), &streams, common)?;
        report.add_issued("pool", name, &before, &pool.issued());
    }
    Ok(())
}

/// An open file of a file system in this process.
pub(crate) struct NativeFile {
    fs: Fs,
    handle: u64,
}
impl std::fmt::Debug for NativeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeFile").field("handle", &self.handle).finish_non_exhaustive()
    }
}
impl NativeFile {
    /// A new one in the root, and its handle, which whoever made it releases.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(fs: &Fs, name: &str) -> Result<(Arc<Self>, u64)> {
        const O_RDWR: i32 = 2;
        let made = fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default())?;
        Ok((Arc::new(Self { fs: fs.clone(), handle: made.1 }), made.1))
    }
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
///
/// # Errors
/// It cannot be made or mounted.
pub(crate) fn fresh(pool: Pool) -> Result<Fs> {
    make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
    Ok(Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?)
}

/// The file system's own API in this process: one file per stream, one thread each.
fn native(common: &Common, rig: &Members, report: &mut Report) -> Result<()> {
    let pool = fresh_pool(rig)?;
    let asked = pool.clone();
    let fs = fresh(pool)?;
    let mut targets = Vec::new();
    let mut handles = Vec::new();
    for n in 0..common.streams {
        let name = format!("stream{n}");
        let (file, handle) = NativeFile::create(&fs, &name)?;
        handles.push(handle);
        targets.push(over(rig, &name, Layer::Calls(file))?);
    }
    let bytes = common.size / common.streams as u64 / REQUEST * REQUEST;
    let pattern = Pattern::sequential(0, bytes, REQUEST, true);
    for (direction, name) in PHASES {
        let streams: Vec<_> = targets.iter().map(|t| stream(t, pattern, direction)).collect();
        let before = asked.issued();
        cell(report, ("native", name), &streams, common)?;
        report.add_issued("native", name, &before, &asked.issued());
    }
    drop(targets);
    for handle in handles {
        fs.release(handle)?;
    }
    fs.unmount()?;
    Ok(())
}

/// Ordinary programs on the mount.
fn mounted(common: &Common, rig: &Members, report: &mut Report) -> Result<()> {
    let mount = Mount::braid(&rig.paths, rig.work.join("mount"))?;
    measure_streams(common, &mount, "mount", report)
}

fn measure_streams(common: &Common, mount: &Mount, name: &str, report: &mut Report) -> Result<()> {
    let files = streams::files(&mount.dir, common.streams);
    for (direction, phase_name) in PHASES {
        let phase = Phase {
            direction,
            bytes: common.size / common.streams as u64 / REQUEST * REQUEST,
            request: REQUEST,
            direct: true,
            sync: false,
        };
        phase.measure(&files, report, (name, phase_name, "direct"))?;
    }
    Ok(())
}

/// Loop devices and mkfs.xfs need root and the package.
fn xfs_possible() -> bool {
    rustix::process::geteuid().is_root()
        && ["/sbin/mkfs.xfs", "/usr/sbin/mkfs.xfs"].iter().any(|p| std::path::Path::new(p).exists())
        && std::path::Path::new("/dev/loop-control").exists()
}

/// XFS on one loop device of the same backing.
struct XfsRig {
    device: Loop,
    _backing: Backing,
    dir: PathBuf,
}
impl XfsRig {
    fn new(common: &Common) -> Result<Self> {
        let path = common.dir.join(format!("braid-bench-{}-xfs", std::process::id()));
        let backing = Backing::new(path.clone(), common.size + SLACK)?;
        let mut device = Loop::new(&backing.path)?;
        if let Some(rate) = common.throttle {
            device.throttle(rate)?;
        }
        Ok(Self { device, _backing: backing, dir: path.with_extension("dir") })
    }
    fn measure(&self, common: &Common, report: &mut Report) -> Result<()> {
        let mount = Mount::xfs(&self.device.path, self.dir.clone())?;
        measure_streams(common, &mount, "xfs (1 loop)", report)
    }
}
