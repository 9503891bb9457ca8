//! Resident memory of the process that serves a mount: many inodes are held, a large file is written and read,
//! then all inodes are looked up again. Peak and present size are taken after each step.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::meta::FILES_MAX;
use super::{Measure, RoundPlan, RunOptions};
use crate::arguments::Common;
use crate::modes::streams::{self, Phase};
use crate::report::Report;
use crate::testbed::{Backing, Mount};

/// Room for journals, resource groups and dinodes beside the stream.
const SLACK: u64 = 1 << 30;
/// Bytes on the devices per empty file, at most.
const FILE_BYTES: u64 = 8 << 10;

/// Resident memory of a mount's process while it holds many inodes and streams a large file
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Mount options, such as memory=256M
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    mount_options: Option<String>,
    /// Number of files
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    #[command(flatten)]
    common: Common,
}

/// What is looked at, in order.
const STEPS: [&str; 5] = ["mounted", "files made", "streamed in", "streamed out", "looked at all"];

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("memory").against("", "MiB");
        let c = &self.common;
        report.fact("backing", format!("{} ({} sparse files)", c.dir.display(), c.members));
        let size = c.size >> 20;
        report.fact("job", format!("{} empty files held, {size} MiB streamed", self.files));
        let options = self.mount_options.clone();
        report.fact("options", options.unwrap_or_else(|| "defaults".to_owned()));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        let common = &self.common;
        common.check()?;
        ensure!(self.files <= FILES_MAX, "--files: {FILES_MAX} at most");
        let bytes = common.size + SLACK + self.files as u64 * FILE_BYTES;
        let base = common.dir.join(format!("braid-bench-{}", std::process::id()));
        let backings = (0..common.members)
            .map(|n| {
                let path = base.with_extension(format!("memory{n}"));
                Backing::sparse(path, bytes / common.members as u64)
            })
            .collect::<Result<Vec<_>>>()?;
        let paths: Vec<_> = backings.iter().map(|b| b.path.clone()).collect();
        how.rounds(report, RoundPlan::new(1, STEPS.len()), |report, _, _| {
            let options = self.mount_options.as_deref();
            let mount = Mount::braid_with(&paths, base.with_extension("dir"), options)?;
            self.steps(&mount, report)
        })
    }
}

impl Args {
    fn steps(&self, mount: &Mount, report: &mut Report) -> Result<()> {
        let server = mount.server()?;
        let dir = mount.dir.join("many");
        let files = streams::files(&mount.dir, 1);
        let write = Phase::written(self.common.size);
        for (n, step) in STEPS.into_iter().enumerate() {
            crate::progress::row(step.to_owned());
            match n {
                0 => {}
                1 => make_files(&dir, self.files)?,
                2 => write.rehearse(&files)?,
                3 => {
                    mount.drop_caches()?;
                    write.read().rehearse(&files)?;
                }
                _ => look_at_all(&dir)?,
            }
            for (name, field) in [("peak", "VmHWM"), ("present", "VmRSS")] {
                report.sample(name, step, &super::at(&[]), resident(server, field)?).less = true;
            }
            crate::progress::row_done();
        }
        Ok(())
    }
}

fn make_files(dir: &Path, files: usize) -> Result<()> {
    std::fs::create_dir(dir)?;
    for n in 0..files {
        File::create_new(dir.join(format!("file{n:06}")))?;
        crate::progress::check_interrupted()?;
    }
    Ok(())
}

fn look_at_all(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        entry?.metadata()?;
    }
    Ok(())
}

/// A field of /proc/PID/status, in MiB.
fn resident(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kib = kib.with_context(|| format!("/proc/{pid}/status has no {field}"))?;
    Ok(crate::statistics::float(kib) / 1024.0)
}
