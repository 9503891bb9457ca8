//! The ladder: the same sequential job on every layer, from the bare devices to the mount, with
//! XFS on a loop device of the same backing beside it. Devices are freshly written once before, so
//! that no layer pays for first touch; layers are measured in turn in every repeat.

use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{Context, Result};
use braid_format::{ByteOffset, Bytes, StripeUnit};
use braid_fs::make::{MakeOptions, make};
use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};
use braid_pool::device::{AlignedBuf, Device, FileDevice, IoQueue, OpenOptions, OwnedOp};

use braid_pool::{CreateOptions, Pool, PoolOp, PoolQueue};

use crate::cli::Common;
use crate::engine::Direction;
use crate::report::{Figure, Report};
use crate::rig::streams::{self, Phase};
use crate::rig::{Backing, Loop, Mount};

/// Bytes per request.
const REQUEST: usize = 1 << 20;
/// Requests in flight per member, raw; the pool and the file system get as many bytes in flight.
const DEPTH_PER_MEMBER: usize = 4;
/// Room for labels, journals and resource groups beside the data.
const SLACK: u64 = 512 << 20;

const PHASES: [(Direction, &str); 2] = [(Direction::Write, "write"), (Direction::Read, "read")];

/// Devices of one run.
struct Rig {
    /// Declared before the backings: loops go first.
    loops: Vec<Loop>,
    _backings: Vec<Backing>,
    paths: Vec<PathBuf>,
    work: PathBuf,
}

impl Rig {
    fn new(common: &Common, name: &str, members: usize, bytes: u64) -> Result<Self> {
        let work = common.dir.join(format!("braid-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&work)?;
        let backings = (0..members)
            .map(|n| Backing::new(work.join(format!("disk{n}")), bytes))
            .collect::<Result<Vec<_>>>()?;
        let mut rig = Self {
            loops: Vec::new(),
            paths: backings.iter().map(|b| b.path.clone()).collect(),
            _backings: backings,
            work,
        };
        if common.loop_devices || common.throttle.is_some() {
            for path in &rig.paths {
                let mut device = Loop::new(path)?;
                if let Some(rate) = common.throttle {
                    device.throttle(rate)?;
                }
                rig.loops.push(device);
            }
            rig.paths = rig.loops.iter().map(|l| l.path.clone()).collect();
        }
        Ok(rig)
    }
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        self.paths
            .iter()
            .map(|p| {
                let device = FileDevice::open(p, OpenOptions::default())
                    .with_context(|| p.display().to_string())?;
                Ok(device as Arc<dyn Device>)
            })
            .collect()
    }
}
impl Drop for Rig {
    fn drop(&mut self) {
        self.loops.clear();
        for entry in std::fs::read_dir(&self.work).into_iter().flatten().flatten() {
            std::fs::remove_file(entry.path()).ok();
        }
        std::fs::remove_dir(&self.work).ok();
    }
}

/// Runs the ladder.
pub(crate) fn run(common: &Common) -> Result<Report> {
    let mut report = Report::new("ladder");
    let member_bytes = (common.size + SLACK) / common.members as u64 / REQUEST as u64
        * REQUEST as u64
        + (64 << 20);
    describe(&mut report, common);
    let rig = Rig::new(common, "pool", common.members, member_bytes)?;
    let xfs_rig = xfs_possible().then(|| XfsRig::new(common)).transpose()?;
    for repeat in 0..common.repeats {
        eprintln!("repeat {} of {}", repeat + 1, common.repeats);
        raw(common, &rig, &mut report)?;
        pool(common, &rig, &mut report)?;
        native(common, &rig, &mut report)?;
        mounted(common, &rig, &mut report)?;
        if let Some(xfs) = &xfs_rig {
            xfs.measure(common, &mut report)?;
        }
    }
    Ok(report)
}

fn describe(report: &mut Report, common: &Common) {
    let mut add = |k: &str, v: String| report.setup.push((k.to_owned(), v));
    add("backing", format!("{} ({} files)", common.dir.display(), common.members));
    add(
        "job",
        format!("{} MiB in 1 MiB requests, direct, {} streams", common.size >> 20, common.streams),
    );
    add("engine", braid_pool::device::default_engine().to_owned());
    add("repeats", common.repeats.to_string());
    if common.loop_devices {
        add("devices", "loop devices over files".to_owned());
    }
    if let Some(rate) = common.throttle {
        add("throttle", format!("{} MB/s per device", rate / 1_000_000));
    }
}

/// The clock, and the machine's CPU time, around `work`.
fn timed(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<Figure> {
    let cpu = crate::run::cpu::busy_seconds()?;
    let began = Instant::now();
    work()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Figure::new(bytes, seconds, crate::run::cpu::busy_seconds()? - cpu))
}

fn owned(direction: Direction, buffer: AlignedBuf) -> OwnedOp {
    match direction {
        Direction::Read => OwnedOp::Read(buffer),
        Direction::Write => OwnedOp::Write(buffer),
    }
}

fn pool_op(direction: Direction, buffer: AlignedBuf) -> PoolOp {
    match direction {
        Direction::Read => PoolOp::Read(buffer),
        Direction::Write => PoolOp::Write(buffer),
    }
}

/// All devices at once, each sequentially, through the same engine that the pool uses: at least as
/// many threads as the layers above have streams, so that no layer has more of the processors. A
/// thread keeps to one device, so that none waits behind another.
fn raw(common: &Common, rig: &Rig, report: &mut Report) -> Result<()> {
    let devices = rig.devices()?;
    let threads = devices.len() * common.streams.div_ceil(devices.len());
    let total = common.size / REQUEST as u64;
    for (direction, name) in PHASES {
        let figure = timed(moved(threads, total), || {
            in_threads(threads, total, |thread, numbers| {
                let device = &devices[thread % devices.len()];
                let share = numbers.end - numbers.start;
                let start = (8 << 20) + (thread / devices.len()) as u64 * share * REQUEST as u64;
                let mut queue = IoQueue::new(DEPTH_PER_MEMBER)?;
                let mut free = buffers(common, DEPTH_PER_MEMBER);
                for n in 0..share {
                    let buffer = match free.pop() {
                        Some(buffer) => buffer,
                        None => finish(queue.complete())?,
                    };
                    let at = ByteOffset(start + n * REQUEST as u64);
                    queue.submit(n, device.clone(), at, owned(direction, buffer))?;
                }
                while queue.in_flight() > 0 {
                    finish(queue.complete())?;
                }
                Ok(())
            })
        })?;
        report.add("raw", name, figure);
    }
    Ok(())
}

/// Of ordinary pages, as programs have them, and as all layers have here. Under a throttle in huge
/// pages: the block layer makes a request of every 64 or so scattered pages, and charges each.
fn buffers(common: &Common, count: usize) -> Vec<AlignedBuf> {
    let make = if common.throttle.is_some() { AlignedBuf::huge } else { AlignedBuf::zeroed };
    (0..count).map(|_| make(REQUEST)).collect()
}

/// Bytes that [`in_threads`] moves: the requests left over by equal shares are not made.
fn moved(threads: usize, total: u64) -> u64 {
    total / threads as u64 * (threads * REQUEST) as u64
}

/// Splits `total` requests into one contiguous share of the same size per thread; `work` gets the
/// thread's number and its requests'.
fn in_threads(
    threads: usize,
    total: u64,
    work: impl Fn(usize, std::ops::Range<u64>) -> Result<()> + Sync,
) -> Result<()> {
    let share = total / threads as u64;
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let first = thread as u64 * share;
                scope.spawn(move || work(thread, first..first + share))
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
        }
        Ok(())
    })
}

fn finish<E: std::error::Error + Send + Sync + 'static>(
    done: (u64, AlignedBuf, std::result::Result<(), E>),
) -> Result<AlignedBuf> {
    done.2?;
    Ok(done.1)
}

fn fresh_pool(rig: &Rig) -> Result<Pool> {
    let stripe_unit = StripeUnit::new(Bytes(256 << 10)).context("stripe unit")?;
    let options = CreateOptions { stripe_unit, force: true, ..CreateOptions::new("bench") };
    Ok(Pool::create(rig.devices()?, &options)?)
}

fn pool(common: &Common, rig: &Rig, report: &mut Report) -> Result<()> {
    let pool = fresh_pool(rig)?;
    let total = common.size / REQUEST as u64;
    for (direction, name) in PHASES {
        let before = pool.issued();
        let figure = timed(moved(common.streams, total), || {
            in_threads(common.streams, total, |_, numbers| {
                let depth = DEPTH_PER_MEMBER * common.members.div_ceil(common.streams);
                let mut queue = PoolQueue::new(pool.clone(), depth)?;
                let mut free = buffers(common, depth);
                for n in numbers {
                    let buffer = match free.pop() {
                        Some(buffer) => buffer,
                        None => finish(queue.complete())?,
                    };
                    queue.submit(n, ByteOffset(n * REQUEST as u64), pool_op(direction, buffer))?;
                }
                while queue.in_flight() > 0 {
                    finish(queue.complete())?;
                }
                Ok(())
            })
        })?;
        report.add("pool", name, figure);
        report.add_issued("pool", name, &before, &pool.issued());
    }
    Ok(())
}

/// The file system's own API in this process: one file per stream, one thread each.
fn native(common: &Common, rig: &Rig, report: &mut Report) -> Result<()> {
    let pool = fresh_pool(rig)?;
    make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
    let asked = pool.clone();
    let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;
    let bytes = common.size / common.streams as u64 / REQUEST as u64 * REQUEST as u64;
    let handles = (0..common.streams)
        .map(|n| {
            const O_RDWR: i32 = 2;
            let name = format!("stream{n}");
            Ok(fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default())?.1)
        })
        .collect::<Result<Vec<_>>>()?;
    for (direction, name) in PHASES {
        let start = Barrier::new(common.streams + 1);
        let before = asked.issued();
        let figure = std::thread::scope(|scope| {
            let workers: Vec<_> = handles
                .iter()
                .map(|&fh| {
                    let (fs, start) = (&fs, &start);
                    scope.spawn(move || native_stream(fs, fh, direction, bytes, start))
                })
                .collect();
            start.wait();
            timed(bytes * common.streams as u64, || {
                for worker in workers {
                    worker.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
                }
                Ok(())
            })
        })?;
        report.add("native", name, figure);
        report.add_issued("native", name, &before, &asked.issued());
    }
    for fh in handles {
        fs.release(fh)?;
    }
    fs.unmount()?;
    Ok(())
}

fn native_stream(
    fs: &Fs,
    fh: u64,
    direction: Direction,
    bytes: u64,
    start: &Barrier,
) -> Result<()> {
    let mut buffer = AlignedBuf::zeroed(REQUEST);
    start.wait();
    let mut at = 0;
    while at < bytes {
        let n = match direction {
            Direction::Write => {
                let flags = WriteFlags { direct: true, ..WriteFlags::default() };
                fs.write(fh, at, &buffer, flags)?
            }
            Direction::Read => fs.read(fh, at, &mut buffer)?,
        };
        anyhow::ensure!(n == REQUEST, "short transfer of {n} bytes at {at}");
        at += n as u64;
    }
    Ok(())
}

/// Ordinary programs on the mount.
fn mounted(common: &Common, rig: &Rig, report: &mut Report) -> Result<()> {
    let mount = Mount::braid(&rig.paths, rig.work.join("mount"))?;
    measure_streams(common, &mount, "mount", report)
}

fn measure_streams(common: &Common, mount: &Mount, name: &str, report: &mut Report) -> Result<()> {
    let files = streams::files(&mount.dir, common.streams);
    for (direction, phase_name) in PHASES {
        let phase = Phase {
            direction,
            streams: common.streams,
            bytes: common.size / common.streams as u64 / REQUEST as u64 * REQUEST as u64,
            request: REQUEST,
            direct: true,
            sync: false,
        };
        report.add(name, phase_name, streams::run(&files, phase)?);
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
