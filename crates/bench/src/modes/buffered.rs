//! Buffered streams, as most programs have them: written with an fsync inside the measured time, and read cold.
//! The mount and the kernel's file systems use the same loop device.
//!
//! The page cache fills memory, and the cost of memory differs: in a virtual machine, memory that was never
//! touched, or that the host has taken back, costs several times as much as the read itself. It costs a
//! processor that fills it more than a device that does. So files are read cold in two ways:
//!
//! * *Little memory*: the reader may use a part of the file's size (a memory cgroup). After an unmeasured read
//!   each page goes into recently used memory, as with files larger than memory.
//! * *All caches dropped*: also after an unmeasured read. How much of the freed memory the host has taken back
//!   by then is left to chance.

use anyhow::{Context, Result, ensure};

use super::ladder::SLACK;
use super::{Measure, RunOptions};
use crate::arguments::{Common, DeviceKind};
use crate::modes::streams::{self, Phase};
use crate::report::Report;
use crate::testbed::kernel::{self, Beside, Kernel};
use crate::testbed::members::Members;
use crate::testbed::memory_limit::MemoryLimit;
use crate::testbed::{Loop, Mount};

/// Less would not hold the windows.
const LEAST: u64 = 64 << 20;
/// The rows of Braid's mount.
const MOUNT: &str = "mount";
/// The part of the bytes, in percent, that the device must have given for a read to be called cold.
const COLD: u64 = 95;

/// What a reader in little memory has of it: a part of the file's size, and enough for two of the
/// largest windows that the kernel reads ahead.
fn little(size: u64) -> Option<u64> {
    let part = size / 4;
    (part >= LEAST).then_some(part)
}

/// Buffered streams against XFS, or other file systems, on one loop device: cold read, write with fsync
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// File systems of the kernel to measure too; the mount is compared with the first of them
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SYSTEMS", default_value = "xfs")]
    beside: Vec<Beside>,
    #[command(flatten)]
    common: Common,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let first = kernel::beside(&self.beside).ok().and_then(|s| s.first().copied());
        let mut report = Report::new("buffered").against(first.map_or(MOUNT, Kernel::name), "MB/s");
        let (dir, size) = (self.common.dir.display(), self.common.size >> 20);
        report.fact("backing", format!("one loop device over a file in {dir}"));
        report.fact("job", format!("{size} MiB in 1 MiB requests, buffered, 1 stream"));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        let common = &self.common;
        common.check()?;
        let systems = kernel::beside(&self.beside)?;
        kernel::devices(common)?;
        kernel::loops()?;
        kernel::mountable()?;
        for system in &systems {
            system.possible().with_context(|| format!("--beside {}", system.name()))?;
        }
        let room = systems.iter().map(|s| s.room(common.size)).max().unwrap_or(0);
        let bytes = common.size + room + SLACK;
        let testbed = Members::new(&common.dir, "buffered", (1, bytes), DeviceKind::Loop)?;
        let device = testbed.loops.first().context("no device")?;
        let mount_point = || testbed.work.join("mount");
        for system in &systems {
            let tried = Mount::kernel(*system, &testbed.paths, mount_point());
            tried.with_context(|| format!("--beside {}", system.name()))?;
        }
        let turns: Vec<_> = systems.into_iter().map(Some).chain([None]).collect();
        how.compare(report, &turns, 3, |report, turn| {
            let (mount, name) = match turn {
                Some(system) => {
                    (Mount::kernel(*system, &testbed.paths, mount_point())?, system.name())
                }
                None => (Mount::braid(&testbed.paths, mount_point())?, MOUNT),
            };
            phases(common, &mount, (name, device), report)
        })
    }
}

fn phases(
    common: &Common,
    mount: &Mount,
    (name, device): (&str, &Loop),
    report: &mut Report,
) -> Result<()> {
    let files = streams::files(&mount.dir, 1);
    let write = Phase::written(common.size);
    write.rehearse(&files)?;
    for file in &files {
        std::fs::remove_file(file)?;
    }
    mount.drop_caches()?;
    write.measure(&files, report, (name, "write+fsync", "new file, all caches dropped"))?;
    let read = write.read();
    mount.drop_caches()?;
    read.rehearse(&files)?;
    mount.drop_caches()?;
    read.measure(&files, report, (name, "cold read", "cold (all caches dropped)"))?;
    let Some(held) = little(common.size) else {
        report.note(format!(
            "files larger than memory are read from --size {}M on",
            (4 * LEAST) >> 20
        ));
        return Ok(());
    };
    let _held = match MemoryLimit::new(held) {
        Ok(held) => held,
        Err(e) => {
            report.note(format!("files larger than memory are not read: {e:#}"));
            return Ok(());
        }
    };
    mount.drop_caches()?;
    read.rehearse(&files)?;
    let before = device.bytes_read()?;
    let cache = format!("cold (read before in {} MiB)", held >> 20);
    read.measure(&files, report, (name, "cold read, little memory", &cache))?;
    let given = device.bytes_read()?.saturating_sub(before);
    // A part that stayed in memory would be measured as the device's.
    ensure!(
        given >= common.size / 100 * COLD,
        "not cold: of {} bytes {name} read {given} from the device; use a larger --size",
        common.size
    );
    Ok(())
}
