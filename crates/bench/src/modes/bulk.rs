//! The bulk data service beside what bounds it: the mount on the server, and the wire between the hosts.
//!
//! One pool has a node that mounts it and one that serves it. In each round one plain TCP stream goes over the wire,
//! then the mount is measured, then a mount from the server over the same wire. The row *limit* is the less of the
//! first two in the same round: a perfect service reaches it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use braid_pool::device::AlignedBuf;

use super::ladder::{SLACK, over};
use super::streams::Phase;
use super::{Cell, Measure, RoundPlan, RunOptions, at};
use crate::arguments::{Common, size};
use crate::engine::{Calls, Content, Direction, Layer, Limits, Pattern, Stream};
use crate::report::{Parameters, Report};
use crate::testbed::Mount;
use crate::testbed::kernel;
use crate::testbed::members::Members;
use crate::testbed::service::{Reach, Service};
use crate::testbed::wire::plain_stream;

/// The rows of a mount from the server.
pub(crate) const BULK: &str = "bulk";
const LIMIT: &str = "limit";
const WIRE: &str = "wire";
const MOUNT: &str = "mount";
/// Of a request.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 64 << 20;

/// How a mount is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Written through the page cache, with an fsync at the end, inside the measured time.
    Buffered,
    /// Each request is durable when it is answered (`O_DIRECT`, `O_DSYNC`).
    Durable,
    /// Read past the client's cache (`O_DIRECT`).
    Read,
}

impl Job {
    pub const ALL: [Self; 3] = [Self::Buffered, Self::Durable, Self::Read];

    /// As its rows are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered write+fsync",
            Self::Durable => "durable write",
            Self::Read => "read",
        }
    }
}

/// A mount from `braid serve` against the mount on the server and one TCP stream over the same wire
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Request size
    #[arg(long, default_value = "4M", value_parser = size)]
    request: u64,
    /// A modelled wire: so many bytes per second in each direction. Default: as fast as this host's loopback
    #[arg(long, value_name = "RATE", value_parser = size)]
    wire: Option<u64>,
    /// With TLS and certificates
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn check(&self) -> Result<()> {
        self.common.check()?;
        kernel::devices(&self.common)?;
        kernel::mountable()?;
        let whole = self.request.is_power_of_two() && (LEAST..=MOST).contains(&self.request);
        ensure!(whole, "--request: a power of two from 64K to 64M");
        ensure!(self.wire.is_none_or(|rate| rate >= 1 << 20), "--wire: at least 1M");
        let each = self.common.size / self.common.streams as u64;
        ensure!(each >= self.request, "--size: less than one request for each stream");
        Ok(())
    }
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("bulk").against(LIMIT, "MB/s");
        let c = &self.common;
        report.fact("backing", format!("{} ({} files)", c.dir.display(), c.members));
        let request = crate::report::table::size(crate::statistics::float(self.request));
        let (size, streams) = (c.size >> 20, c.streams);
        report.fact("job", format!("{size} MiB in requests of {request}, {streams} streams"));
        let wire = match self.wire {
            None => "loopback; server, client and wire share this machine's processors".to_owned(),
            Some(rate) => format!("modelled: {} MB/s in each direction", rate / 1_000_000),
        };
        report.fact("wire", wire);
        report.fact("encryption", if self.tls { "TLS" } else { "none" });
        if let Some(rate) = c.throttle {
            report.fact("throttle", format!("{} MB/s per device", rate / 1_000_000));
        }
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        self.check()?;
        let c = &self.common;
        let bytes = (2 * c.size + SLACK) / c.members as u64 / MOST * MOST + 2 * MOST;
        let devices = Members::new(&c.dir, "bulk", (c.members, bytes), c.device_kind())?;
        let mount = Mount::braid(&devices.paths, devices.work.join("mount"))?;
        let reach = Reach { wire: self.wire, tls: self.tls };
        let service = Service::new(&devices.paths, &devices.work, reach)?;
        let remote = service.mount(devices.work.join("remote"))?;
        let job = |mount: &Mount, name, report: &mut Report, job| {
            Streams { devices: &devices, dir: &mount.dir, request: self.request, common: c }
                .measure(report, (name, job), at(&[]))
        };
        how.rounds(report, RoundPlan::new(1, 4 * Job::ALL.len()), |report, _, _| {
            for one in Job::ALL {
                let wire = wire(report, one, (self.wire, c.size))?;
                let mount = job(&mount, MOUNT, report, one)?;
                report.sample(LIMIT, one.name(), &at(&[]), wire.min(mount));
                job(&remote, BULK, report, one)?;
            }
            Ok(())
        })
    }
}

/// One more repeat of a plain stream, MB/s.
fn wire(report: &mut Report, job: Job, (rate, bytes): (Option<u64>, u64)) -> Result<f64> {
    crate::progress::row(format!("{WIRE} {}", job.name()));
    let rate = plain_stream(rate, bytes, job == Job::Read)? / 1e6;
    crate::progress::row_done();
    report.sample(WIRE, job.name(), &at(&[]), rate);
    Ok(rate)
}

/// Streams on files in a directory.
pub(crate) struct Streams<'a> {
    pub devices: &'a Members,
    pub dir: &'a Path,
    pub request: u64,
    pub common: &'a Common,
}

impl Streams<'_> {
    /// One more repeat of a row, MB/s. What is read was written by the jobs before.
    pub fn measure(
        &self,
        report: &mut Report,
        (name, job): (&str, Job),
        at: Parameters,
    ) -> Result<f64> {
        let bytes = self.common.size / self.common.streams as u64 / self.request * self.request;
        let files = super::streams::files(self.dir, self.common.streams);
        let pattern = Pattern::sequential(0, bytes, self.request, job == Job::Read);
        let streams = if job == Job::Buffered {
            let (direction, request) = (Direction::Write, self.request);
            let phase = Phase { direction, bytes, request, direct: false, sync: true };
            phase.streams(&files)?
        } else {
            let one = |path: &PathBuf| {
                let file = Arc::new(DirectFile::open(path, job == Job::Durable)?);
                let target = over(self.devices, &path.display().to_string(), Layer::Calls(file))?;
                Ok(Stream { content: Content::Byte(0x5a), ..Stream::plain(target, pattern) })
            };
            files.iter().map(one).collect::<Result<Vec<_>>>()?
        };
        let cell = Cell { name, phase: job.name(), at };
        let (row, _) = cell.run(report, &streams, &Limits::ordinary())?;
        let cache = if job == Job::Buffered { "buffered" } else { "direct" };
        row.cache = Some(cache.to_owned());
        row.rate.0.last().copied().context("no sample")
    }
}

/// A file that is read and written past the page cache, and durably if it is to be written.
#[derive(Debug)]
struct DirectFile {
    file: File,
    path: PathBuf,
}

impl DirectFile {
    fn open(path: &Path, write: bool) -> Result<Self> {
        let durable = if write { libc::O_DSYNC } else { 0 };
        let mut how = OpenOptions::new();
        how.read(true).write(write).custom_flags(libc::O_DIRECT | durable);
        let file = how.open(path).with_context(|| path.display().to_string())?;
        Ok(Self { file, path: path.to_owned() })
    }
    fn said(&self, at: u64, error: &std::io::Error) -> String {
        format!("{}, byte {at}: {error}", self.path.display())
    }
}

impl Calls for DirectFile {
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<(), String> {
        self.file.read_exact_at(buf, at).map_err(|e| self.said(at, &e))
    }
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), String> {
        self.file.write_all_at(buf, at).map_err(|e| self.said(at, &e))
    }
}
