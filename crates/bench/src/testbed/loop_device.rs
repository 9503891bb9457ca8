//! Backing files, and loop devices over them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::commands::{command, text};

/// A backing file, every block written once so that no first-touch cost is measured.
#[derive(Debug)]
pub(crate) struct Backing {
    pub path: PathBuf,
}
impl Backing {
    pub fn new(path: PathBuf, bytes: u64) -> Result<Self> {
        // Before memory or a disk is filled in vain.
        crate::engine::room(&path, bytes)?;
        let file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        let backing = Self { path };
        fill(&file, bytes)?;
        Ok(backing)
    }
    /// Nothing is written: where first touch does not count.
    pub fn sparse(path: PathBuf, bytes: u64) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        let backing = Self { path };
        file.set_len(bytes)?;
        Ok(backing)
    }
}
impl Drop for Backing {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

fn fill(file: &File, bytes: u64) -> Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let n = zeros.len().min(usize::try_from(bytes - at)?);
        file.write_all_at(&zeros[..n], at)?;
        crate::progress::check_interrupted()?;
        at += n as u64;
    }
    file.sync_all()?;
    Ok(())
}

/// A loop device over a file, direct if the backing can.
#[derive(Debug)]
pub(crate) struct Loop {
    pub path: PathBuf,
    throttled: Option<String>,
}
impl Loop {
    /// Where version 1 of the control groups limits devices.
    pub(super) const THROTTLES: &str = "/sys/fs/cgroup/blkio";

    pub fn new(backing: &Path) -> Result<Self> {
        let backing = text(backing)?;
        let direct = command("losetup", &["--find", "--show", "--direct-io=on", backing]);
        let path = match direct {
            Ok(path) => path,
            Err(_) => command("losetup", &["--find", "--show", backing])?,
        };
        Ok(Self { path: PathBuf::from(path), throttled: None })
    }
    /// Limits the device to so many bytes per second in each direction (cgroup v1 blkio, this
    /// process and its children).
    pub fn throttle(&mut self, read: u64, write: u64) -> Result<()> {
        let device = command("lsblk", &["-dno", "MAJ:MIN", text(&self.path)?])?;
        let device = device.trim().to_owned();
        for (file, rate) in [("read_bps_device", read), ("write_bps_device", write)] {
            let path = format!("{}/blkio.throttle.{file}", Self::THROTTLES);
            std::fs::write(&path, format!("{device} {rate}"))
                .with_context(|| format!("cannot throttle through {path}"))?;
        }
        self.throttled = Some(device);
        Ok(())
    }
    /// Bytes that it has given so far.
    pub fn bytes_read(&self) -> Result<u64> {
        let name = self.path.file_name().context("a device has a name")?;
        let path = Path::new("/sys/class/block").join(name).join("stat");
        let stat = std::fs::read_to_string(&path)?;
        let sectors = stat.split_whitespace().nth(2).and_then(|f| f.parse::<u64>().ok());
        Ok(sectors.with_context(|| path.display().to_string())?.saturating_mul(512))
    }
}
impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(device) = &self.throttled {
            for file in ["read_bps_device", "write_bps_device"] {
                let path = format!("{}/blkio.throttle.{file}", Self::THROTTLES);
                std::fs::write(path, format!("{device} 0")).ok();
            }
        }
        if let Ok(path) = text(&self.path) {
            command("losetup", &["-d", path]).ok();
        }
    }
}
