//! Buffered streams, as most programs run them: written with an fsync inside the measured time,
//! read cold (the kernel's caches dropped). The mount and XFS each stand on one loop device of the
//! same backing.
//!
//! Each phase is rehearsed, unmeasured, and the caches dropped, right before it is measured. The
//! page cache then fills memory that it has just given back. In a virtual machine memory that was
//! never touched, or that the host took back because it lay idle, costs several times what a
//! read does; and without a rehearsal only one side pays for it: XFS reads into the pages that its
//! own writes filled, while writes to the mount leave none.

use anyhow::Result;

use super::{How, Measure, Turns};
use crate::cli::Common;
use crate::engine::Direction;
use crate::report::Report;
use crate::rig::streams::{self, Phase};
use crate::rig::{Backing, Loop, Mount};

/// Buffered streams against XFS on one loop device: cold read, write with fsync
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
        let mut report = Report::new("buffered").against("xfs", "MB/s");
        let (dir, size) = (self.common.dir.display(), self.common.size >> 20);
        report.fact("backing", format!("one loop device over a file in {dir}"));
        report.fact("job", format!("{size} MiB in 1 MiB requests, buffered, 1 stream"));
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        let common = &self.common;
        common.check()?;
        let base = common.dir.join(format!("braid-bench-{}", std::process::id()));
        let backing = Backing::new(base.clone(), common.size + (512 << 20))?;
        let device = Loop::new(&backing.path)?;
        let dir = base.with_extension("dir");
        self.how.rounds(report, Turns::new(2, 2), |report, _, system| {
            let (mount, name) = if system == 0 {
                (Mount::xfs(&device.path, dir.clone())?, "xfs")
            } else {
                (Mount::braid(std::slice::from_ref(&device.path), dir.clone())?, "mount")
            };
            phases(common, &mount, name, report)
        })
    }
}

fn phases(common: &Common, mount: &Mount, name: &str, report: &mut Report) -> Result<()> {
    let files = streams::files(&mount.dir, 1);
    let write = Phase {
        direction: Direction::Write,
        bytes: common.size,
        request: 1 << 20,
        direct: false,
        sync: true,
    };
    write.rehearse(&files)?;
    for file in &files {
        std::fs::remove_file(file)?;
    }
    mount.drop_caches()?;
    write.measure(&files, report, (name, "write+fsync", "new file, all caches dropped"))?;
    let read = Phase { direction: Direction::Read, sync: false, ..write };
    mount.drop_caches()?;
    read.rehearse(&files)?;
    mount.drop_caches()?;
    read.measure(&files, report, (name, "cold read", "cold (all caches dropped)"))
}
