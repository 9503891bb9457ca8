//! Devices of a pool that a mode makes for itself.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use braid_pool::device::{Device, FileDevice, OpenOptions};

use super::{Backing, Loop};
use crate::arguments::Common;

/// Devices of one run.
#[derive(Debug)]
pub(crate) struct Members {
    /// Declared before the backings: loops go first.
    loops: Vec<Loop>,
    _backings: Vec<Backing>,
    pub paths: Vec<PathBuf>,
    /// A directory of its own, removed with what is in it.
    pub work: PathBuf,
}

impl Members {
    /// So many, each of so many bytes.
    ///
    /// # Errors
    /// There is no room, or no right.
    pub fn new(common: &Common, name: &str, (members, bytes): (usize, u64)) -> Result<Self> {
        let work = common.dir.join(format!("braid-bench-{}-{name}", std::process::id()));
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
        if common.loop_devices || common.throttle.is_some() {
            for path in &testbed.paths {
                let mut device = Loop::new(path)?;
                if let Some(rate) = common.throttle {
                    device.throttle(rate)?;
                }
                testbed.loops.push(device);
            }
            testbed.paths = testbed.loops.iter().map(|l| l.path.clone()).collect();
        }
        Ok(testbed)
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
    ///
    /// # Errors
    /// One cannot be opened.
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
