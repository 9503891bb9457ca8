//! Metadata operations of one process in a private directory: create and close empty files, stat
//! them, remove them. The mount and XFS each stand on one loop device of the same backing.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::cli::Common;
use crate::report::Report;
use crate::rig::{Backing, Loop, Mount};

/// Runs it.
pub(crate) fn run(common: &Common) -> Result<Report> {
    let mut report = Report::default();
    report.setup.push(("job".to_owned(), format!("{} empty files, one thread", common.files)));
    let base = common.dir.join(format!("braid-bench-{}", std::process::id()));
    let backing = Backing::new(base.clone(), 2 << 30)?;
    let device = Loop::new(&backing.path)?;
    let dir = base.with_extension("dir");
    for _ in 0..common.repeats {
        {
            let mount = Mount::xfs(&device.path, dir.clone())?;
            measure(common, &mount.dir, "xfs", &mut report)?;
        }
        let devices = [device.path.clone()];
        let mount = Mount::braid(&devices, dir.clone())?;
        measure(common, &mount.dir, "mount", &mut report)?;
    }
    Ok(report)
}

fn measure(common: &Common, dir: &Path, name: &str, report: &mut Report) -> Result<()> {
    let dir = dir.join("private");
    std::fs::create_dir(&dir)?;
    let paths: Vec<_> = (0..common.files).map(|n| dir.join(format!("file{n:06}"))).collect();
    let mut phase = |what: &str, work: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<()> {
        let began = Instant::now();
        for path in &paths {
            work(path)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of files")]
        let rate = paths.len() as f64 / began.elapsed().as_secs_f64();
        report.add_rate(name, what, rate);
        Ok(())
    };
    phase("create+close", &|p| File::create_new(p).map(drop))?;
    phase("stat", &|p| p.symlink_metadata().map(drop))?;
    phase("unlink", &|p| std::fs::remove_file(p))?;
    std::fs::remove_dir(&dir)?;
    Ok(())
}
