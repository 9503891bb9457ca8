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

use crate::cli::Common;
use crate::engine::Direction;
use crate::report::Report;
use crate::rig::streams::{self, Phase};
use crate::rig::{Backing, Loop, Mount};

const REQUEST: usize = 1 << 20;

/// Runs it.
pub(crate) fn run(common: &Common) -> Result<Report> {
    let mut report = Report::new("buffered");
    let mut add = |k: &str, v: String| report.setup.push((k.to_owned(), v));
    add("backing", format!("one loop device over a file in {}", common.dir.display()));
    add("job", format!("{} MiB in 1 MiB requests, buffered, 1 stream", common.size >> 20));
    let base = common.dir.join(format!("braid-bench-{}", std::process::id()));
    let backing = Backing::new(base.clone(), common.size + (512 << 20))?;
    let device = Loop::new(&backing.path)?;
    let dir = base.with_extension("dir");
    for _ in 0..common.repeats {
        {
            let mount = Mount::xfs(&device.path, dir.clone())?;
            measure(common, &mount, "xfs", &mut report)?;
        }
        let devices = [device.path.clone()];
        let mount = Mount::braid(&devices, dir.clone())?;
        measure(common, &mount, "mount", &mut report)?;
    }
    Ok(report)
}

fn measure(common: &Common, mount: &Mount, name: &str, report: &mut Report) -> Result<()> {
    let files = streams::files(&mount.dir, 1);
    let write = Phase {
        direction: Direction::Write,
        streams: 1,
        bytes: common.size,
        request: REQUEST,
        direct: false,
        sync: true,
    };
    streams::run(&files, write)?;
    for file in &files {
        std::fs::remove_file(file)?;
    }
    mount.drop_caches()?;
    report.add(name, "write+fsync", streams::run(&files, write)?);
    let read = Phase { direction: Direction::Read, sync: false, ..write };
    mount.drop_caches()?;
    streams::run(&files, read)?;
    mount.drop_caches()?;
    report.add(name, "cold read", streams::run(&files, read)?);
    Ok(())
}
