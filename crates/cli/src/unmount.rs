//! `braid unmount`

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};
use rustix::fs::{Mode, OFlags};

use crate::runtime;

/// Unmount, and wait until this node has written everything and left the pool.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where it is mounted
    pub dir: PathBuf,
    /// Detach now even if files are open; the node leaves when the last is closed
    #[arg(long)]
    pub lazy: bool,
    /// Programs that wait for an answer of the file system get an error first
    #[arg(long)]
    pub force: bool,
}

/// Longest wait for the node to leave.
const LEAVE_MAX: Duration = Duration::from_mins(2);

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Not canonicalize(): that would ask the file system, which may be dead.
    let dir = std::path::absolute(&args.dir)?;
    refuse_others(&dir)?;
    let server = runtime::mounts().into_iter().find(|m| m.mount_point == dir);
    let waiter = server.as_ref().and_then(|m| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(m.pid).ok()?)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    });
    detach(&dir, args)?;
    if let (Some(pidfd), false) = (waiter, args.lazy) {
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        let wait = rustix::time::Timespec { tv_sec: LEAVE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        if rustix::event::poll(&mut fds, Some(&wait))? == 0 {
            bail!("{}: unmounted, but its process still writes after {LEAVE_MAX:?}", dir.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Only mounts of pools are this command's, whatever else root may unmount. The kernel tells what a
/// path leads to without asking the file system.
fn refuse_others(dir: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Of a dead mount nothing may be said: unmounting is what it needs.
    let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(()) };
    let about = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let about = std::fs::read_to_string(about).unwrap_or_default();
    let id = about.lines().find_map(|l| l.strip_prefix("mnt_id:")).map(str::trim);
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = table.lines().find(|l| l.split(' ').next() == id).and_then(|l| {
        let (_, after) = l.split_once(" - ")?;
        after.split(' ').next()
    });
    match kind {
        Some(kind) if kind != "fuse.braid" => bail!("{}: no pool is mounted there", dir.display()),
        _ => Ok(()),
    }
}

fn detach(dir: &Path, args: &Args) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let mut flags = MntFlags::empty();
        flags.set(MntFlags::MNT_DETACH, args.lazy);
        flags.set(MntFlags::MNT_FORCE, args.force);
        return match umount2(dir, flags) {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::EBUSY) => bail!(
                "{}: in use (a program has files open there or stands in it); --lazy detaches anyway",
                dir.display()
            ),
            Err(nix::errno::Errno::EINVAL) => bail!("{}: nothing is mounted there", dir.display()),
            Err(e) => Err(e).with_context(|| format!("cannot unmount {}", dir.display())),
        };
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if args.lazy {
        command.arg("-z");
    }
    let status = command.arg("--").arg(dir).status().context("cannot run fusermount3")?;
    if !status.success() {
        bail!("cannot unmount {}", dir.display());
    }
    Ok(())
}
