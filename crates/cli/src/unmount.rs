//! `braid unmount`

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};

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
