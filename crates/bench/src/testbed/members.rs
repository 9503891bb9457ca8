//! Devices that a mode makes for a pool or a file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use braid_pool::device::{Device, FileDevice, OpenOptions};

use super::kernel::Kernel;
use super::{Backing, Loop, Mount};
use crate::arguments::DeviceKind;

/// Devices of one run.
#[derive(Debug)]
pub(crate) struct Members {
    /// Declared before the backings: loops go first.
    pub loops: Vec<Loop>,
    _backings: Vec<Backing>,
    pub paths: Vec<PathBuf>,
    /// A directory of its own, removed with what is in it.
    pub work: PathBuf,
}

impl Members {
    /// So many over files in a new directory in `dir`, each of so many bytes.
    ///
    /// # Errors
    /// There is no room, or no right.
    pub fn new(
        dir: &Path,
        name: &str,
        (members, bytes): (usize, u64),
        kind: DeviceKind,
    ) -> Result<Self> {
        let work = dir.join(format!("braid-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&work)?;
        let backings = (0..members)
            .map(|n| Backing::new(work.join(format!("disk{n}")), bytes))
            .collect::<Result<Vec<_>>>()?;
        let mut testbed = Self {
            loops: Vec::new(),
            paths: backings.iter().map(|b| b.path.clone()).collect(),
            _backings: backings,
            work,
        };
        if kind != DeviceKind::File {
            for path in &testbed.paths {
                let mut device = Loop::new(path)?;
                if let DeviceKind::Throttled { read, write } = kind {
                    device.throttle(read, write)?;
                }
                testbed.loops.push(device);
            }
            testbed.paths = testbed.loops.iter().map(|l| l.path.clone()).collect();
        }
        Ok(testbed)
    }
    /// A fresh XFS on one device, as system 0, or a fresh Braid mount; with the name of its rows.
    pub fn xfs_or_braid(&self, system: usize) -> Result<(Mount, &'static str)> {
        let dir = self.work.join("mount");
        if system > 0 {
            return Ok((Mount::braid(&self.paths, dir)?, "mount"));
        }
        Ok((Mount::kernel(Kernel::Xfs, &self.paths, dir)?, "xfs"))
    }
    /// All of them as block devices, for as long as the first is kept: loop devices over the files,
    /// if they are not loop devices already.
    ///
    /// # Errors
    /// There are no more loop devices, or no right.
    pub fn block_devices(&self) -> Result<(Vec<Loop>, Vec<PathBuf>)> {
        if !self.loops.is_empty() {
            return Ok((Vec::new(), self.paths.clone()));
        }
        let made = self.paths.iter().map(|p| Loop::new(p)).collect::<Result<Vec<_>>>()?;
        let paths = made.iter().map(|l| l.path.clone()).collect();
        Ok((made, paths))
    }
    /// All of them, open.
    pub fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
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
impl Drop for Members {
    fn drop(&mut self) {
        self.loops.clear();
        for entry in std::fs::read_dir(&self.work).into_iter().flatten().flatten() {
            std::fs::remove_file(entry.path()).ok();
        }
        std::fs::remove_dir(&self.work).ok();
    }
}
