//! Memory of the process that serves a mount: many inodes held, then one large file streamed in
//! and out, then the inodes looked at again. Peak and present resident size after each step.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::Common;
use crate::engine::Direction;
use crate::report::Report;
use crate::rig::streams::{self, Phase};
use crate::rig::{Backing, Mount};

const REQUEST: usize = 1 << 20;
/// Room for journals, resource groups and dinodes beside the stream.
const SLACK: u64 = 1 << 30;
/// Bytes on the devices per empty file, at most.
const FILE_BYTES: u64 = 8 << 10;

/// Runs it.
pub(crate) fn run(common: &Common) -> Result<Report> {
    let mut report = Report::new("memory");
    let mut add = |k: &str, v: String| report.setup.push((k.to_owned(), v));
    add("backing", format!("{} ({} sparse files)", common.dir.display(), common.members));
    add("job", format!("{} empty files held, {} MiB streamed", common.files, common.size >> 20));
    add("options", common.mount_options.clone().unwrap_or_else(|| "defaults".to_owned()));
    let bytes = common.size + SLACK + common.files as u64 * FILE_BYTES;
    let base = common.dir.join(format!("braid-bench-{}", std::process::id()));
    let backings = (0..common.members)
        .map(|n| {
            let path = base.with_extension(format!("memory{n}"));
            Backing::sparse(path, bytes / common.members as u64)
        })
        .collect::<Result<Vec<_>>>()?;
    let paths: Vec<_> = backings.iter().map(|b| b.path.clone()).collect();
    for _ in 0..common.repeats {
        let options = common.mount_options.as_deref();
        let mount = Mount::braid_with(&paths, base.with_extension("dir"), options)?;
        measure(common, &mount, &mut report)?;
    }
    Ok(report)
}

fn measure(common: &Common, mount: &Mount, report: &mut Report) -> Result<()> {
    let server = mount.server()?;
    let mut note = |step: &str| -> Result<()> {
        report.add_rate("peak", step, resident(server, "VmHWM")?);
        report.add_rate("present", step, resident(server, "VmRSS")?);
        Ok(())
    };
    note("mounted")?;
    let dir = mount.dir.join("many");
    std::fs::create_dir(&dir)?;
    for n in 0..common.files {
        File::create_new(dir.join(format!("file{n:06}")))?;
    }
    note("files made")?;
    let files = streams::files(&mount.dir, 1);
    let phase = Phase {
        direction: Direction::Write,
        streams: 1,
        bytes: common.size / REQUEST as u64 * REQUEST as u64,
        request: REQUEST,
        direct: false,
        sync: true,
    };
    streams::run(&files, phase)?;
    note("streamed in")?;
    mount.drop_caches()?;
    streams::run(&files, Phase { direction: Direction::Read, sync: false, ..phase })?;
    note("streamed out")?;
    look_at_all(&dir)?;
    note("looked at all")
}

fn look_at_all(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        entry?.metadata()?;
    }
    Ok(())
}

/// A field of /proc/PID/status, in MiB.
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
fn resident(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.with_context(|| format!("/proc/{pid}/status has no {field}"))? as f64 / 1024.0)
}
