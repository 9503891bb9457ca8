//! The testbed: backing files, loop devices, throttles, mounts. Each is taken down when it is dropped.

pub(crate) mod kernel;
pub(crate) mod members;
pub(crate) mod memory_limit;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use kernel::Kernel;

/// Where administrators' programs are, whatever a user's PATH says.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a command; its error output is the error.
pub(crate) fn command(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env("PATH", SYSTEM_PATH)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A path as command-line text.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))
}

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
    const THROTTLES: &str = "/sys/fs/cgroup/blkio";

    pub fn new(backing: &Path) -> Result<Self> {
        let backing = text(backing)?;
        let direct = command("losetup", &["--find", "--show", "--direct-io=on", backing]);
        let path = match direct {
            Ok(path) => path,
            Err(_) => command("losetup", &["--find", "--show", backing])?,
        };
        Ok(Self { path: PathBuf::from(path), throttled: None })
    }
    /// Limits the device to `rate` bytes per second in each direction (cgroup v1 blkio, this
    /// process and its children).
    pub fn throttle(&mut self, rate: u64) -> Result<()> {
        let device = command("lsblk", &["-dno", "MAJ:MIN", text(&self.path)?])?;
        let device = device.trim().to_owned();
        for file in ["read_bps_device", "write_bps_device"] {
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
    /// XFS on one device.
    ///
    /// # Errors
    /// See [`Mount::kernel`].
    pub fn xfs(device: &Path, dir: PathBuf) -> Result<Self> {
        Self::kernel(Kernel::Xfs, &[device.to_owned()], dir)
    }
    /// A Braid pool, freshly made, on `devices`, served by a process of its own.
    pub fn braid(devices: &[PathBuf], dir: PathBuf) -> Result<Self> {
        Self::braid_with(devices, dir, None)
    }
    /// The same, with `-o` options.
    pub fn braid_with(devices: &[PathBuf], dir: PathBuf, options: Option<&str>) -> Result<Self> {
        let exe = std::env::current_exe()?;
        let names = devices.iter().map(|d| text(d)).collect::<Result<Vec<_>>>()?;
        let mut create = vec!["create", "bench", "--force"];
        create.extend(&names);
        command(text(&exe)?, &create)?;
        Self::braid_again(devices, dir, options)
    }
    /// A Braid pool that is there already.
    pub fn braid_again(devices: &[PathBuf], dir: PathBuf, options: Option<&str>) -> Result<Self> {
        let exe = std::env::current_exe()?;
        std::fs::create_dir_all(&dir)?;
        let mut mount = vec!["mount"];
        for device in devices {
            mount.push(text(device)?);
        }
        mount.push(text(&dir)?);
        if let Some(options) = options {
            mount.extend(["-o", options]);
        }
        command(text(&exe)?, &mount)?;
        Ok(Self { dir, unmount: Unmount::Braid })
    }
    /// The process that serves a Braid mount.
    pub fn server(&self) -> Result<u32> {
        let status = command(text(&std::env::current_exe()?)?, &["status", "--json"])?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
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
        let done = match (&self.unmount, text(&self.dir), std::env::current_exe()) {
            (Unmount::Kernel, Ok(dir), _) => command("umount", &[dir]).map(drop),
            (Unmount::Braid, Ok(dir), Ok(exe)) => {
                command(&exe.to_string_lossy(), &["unmount", dir]).map(drop)
            }
            _ => Ok(()),
        };
        if let Err(e) = done {
            eprintln!("braid bench: {e:#}");
        }
        std::fs::remove_dir(&self.dir).ok();
    }
}
