//! The testbed: backing files, loop devices, throttles, mounts. Each is taken down when it is dropped.

mod commands;
pub(crate) mod kernel;
mod loop_device;
pub(crate) mod members;
pub(crate) mod memory_limit;
pub(crate) mod service;
pub(crate) mod wire;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use kernel::Kernel;

pub(crate) use commands::{braid, command, text};
pub(crate) use loop_device::{Backing, Loop};

/// Makes a Braid pool on `devices`.
pub(crate) fn make_braid(devices: &[PathBuf]) -> Result<()> {
    let names = devices.iter().map(|d| text(d)).collect::<Result<Vec<_>>>()?;
    braid(&[["create", "bench", "--force"].as_slice(), &names].concat()).map(drop)
}

/// A directory with something mounted on it.
#[derive(Debug)]
pub(crate) struct Mount {
    pub dir: PathBuf,
    unmount: Unmount,
}
#[derive(Debug)]
enum Unmount {
    Kernel,
    Braid,
}
impl Mount {
    /// A file system of the kernel, freshly made, on `devices`: on one, or striped by itself over
    /// several. Needs root.
    ///
    /// # Errors
    /// Its `mkfs` is missing (its package is named), the kernel does not have it, it cannot stripe,
    /// or the devices are too small for it.
    pub fn kernel(system: Kernel, devices: &[PathBuf], dir: PathBuf) -> Result<Self> {
        system.possible()?;
        let names = devices.iter().map(|d| text(d)).collect::<Result<Vec<_>>>()?;
        let (program, words) = system.make(&names)?;
        command(&program, &words)?;
        std::fs::create_dir_all(&dir)?;
        let options = system.options(&names);
        let first = names.first().context("no devices")?;
        let mut words = vec!["-t", system.name(), first, text(&dir)?];
        if !options.is_empty() {
            words.extend(["-o", &options]);
        }
        if let Err(e) = command("mount", &words) {
            std::fs::remove_dir(&dir).ok();
            return Err(e);
        }
        Ok(Self { dir, unmount: Unmount::Kernel })
    }
    pub fn xfs(device: &Path, dir: PathBuf) -> Result<Self> {
        Self::kernel(Kernel::Xfs, &[device.to_owned()], dir)
    }
    /// A Braid pool, freshly made, on `devices`, served by a process of its own.
    pub fn braid(devices: &[PathBuf], dir: PathBuf) -> Result<Self> {
        Self::braid_with(devices, dir, None)
    }
    /// The same, with `-o` options.
    pub fn braid_with(devices: &[PathBuf], dir: PathBuf, options: Option<&str>) -> Result<Self> {
        make_braid(devices)?;
        Self::braid_again(devices, dir, options)
    }
    /// What `braid mount` has mounted there.
    fn of_braid(dir: PathBuf) -> Self {
        Self { dir, unmount: Unmount::Braid }
    }
    /// A Braid pool that is there already.
    pub fn braid_again(devices: &[PathBuf], dir: PathBuf, options: Option<&str>) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let names = devices.iter().map(|d| text(d)).collect::<Result<Vec<_>>>()?;
        let mut words = [&["mount"], names.as_slice(), &[text(&dir)?]].concat();
        if let Some(options) = options {
            words.extend(["-o", options]);
        }
        braid(&words)?;
        Ok(Self::of_braid(dir))
    }
    /// The process that serves a Braid mount.
    pub fn server(&self) -> Result<u32> {
        let status: serde_json::Value = serde_json::from_str(&braid(&["status", "--json"])?)?;
        let mounts = status["mounts"].as_array().context("no mounts")?;
        let mount = mounts.iter().find(|m| m["mount_point"].as_str() == self.dir.to_str());
        let pid = mount.and_then(|m| m["pid"].as_u64()).context("the mount is not listed")?;
        Ok(u32::try_from(pid)?)
    }
    /// Drops what the kernel caches of the file system's files.
    pub fn drop_caches(&self) -> Result<()> {
        command("sync", &["-f", text(&self.dir)?])?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches: not root?")
    }
}
impl Drop for Mount {
    fn drop(&mut self) {
        let done = text(&self.dir).and_then(|dir| match self.unmount {
            Unmount::Kernel => command("umount", &[dir]),
            Unmount::Braid => braid(&["unmount", dir]),
        });
        if let Err(e) = done {
            eprintln!("braid bench: {e:#}");
        }
        std::fs::remove_dir(&self.dir).ok();
    }
}
