//! `braid unmount`

use std::collections::HashSet;
use std::fmt;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use braid_pool::device::{MountTable, TableEntry};
use nix::mount::{MntFlags, umount2};
use rustix::fs::{Mode, OFlags};

use crate::control::session::NOTHING_CHANGED;
use crate::nfs::{Order, State, list};
use crate::process::in_use;
use crate::process::mounts::{self, Mount, MountEnd};
use crate::process::others;
use crate::terminal::answer::{self, say, warning};

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
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// Longest wait for the node to leave.
const LEAVE_MAX: Duration = Duration::from_mins(2);
/// After each such time the command looks for another mount that keeps the node.
const LOOK: Duration = Duration::from_secs(2);

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(other) = others::at(&args.dir)
        && !rustix::process::geteuid().is_root()
    {
        bail!("{other}; root may unmount it, too");
    }
    let dir = mounts::resolved(&args.dir).with_context(|| args.dir.display().to_string())?;
    let mount = refuse_others(&dir)?;
    answer::add("mount_point", &dir);
    let device = mount.as_ref().map(|mount| mount.device);
    // In another mount namespace the same directory may be another mount.
    let is_here = |m: &Mount| m.device.is_none() || device.is_none() || m.device == device;
    let mut all = mounts::mounts().into_iter().chain(mounts::remotes());
    let server = all.find(|m| m.mount_point == dir && is_here(m));
    if let (Some(server), false) = (&server, args.lazy) {
        refuse_exported(server)?;
    }
    if args.dry_run {
        return planned(&dir, mount.as_ref(), args);
    }
    if mount.as_ref().is_some_and(TableEntry::is_of_another_user) && server.is_none() {
        warning!(
            "{}: mounted by another user: the node may go on writing for a while after this command has ended",
            dir.display()
        );
    }
    let copies = mount.as_ref().map_or_else(HashSet::new, copies_of);
    detach(&dir, args)?;
    if let (Some(server), false) = (server, args.lazy) {
        let kept = || holder((mount.as_ref()?, &copies), server.server.id());
        wait_until_left((&dir, &server), &server.server.ended()?, kept)?;
        judge(&dir, server.ending())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What would be done. The kernel refuses while a program uses the directory; so that is looked for.
fn planned(dir: &Path, mount: Option<&TableEntry>, args: &Args) -> Result<ExitCode> {
    let shown = dir.display();
    let Some(mount) = mount else { bail!("{shown}: nothing is mounted there") };
    let user = if args.lazy { Ok(None) } else { in_use::user_soon(mount) };
    if let Err(time) = user {
        warning!("{shown}: whether a program uses it could not be seen within {time:?}");
    }
    if let Ok(Some((pid, command))) = user {
        let command = command.escape_debug();
        bail!("{shown}: in use by process {pid} ({command}); --lazy detaches anyway");
    }
    say!("{shown} would be unmounted; its node would write everything and leave the pool");
    say!("{NOTHING_CHANGED}");
    Ok(ExitCode::SUCCESS)
}

/// Passes on how the node has left.
fn judge(dir: &Path, ending: Option<MountEnd>) -> Result<()> {
    let dir = dir.display();
    let Some(MountEnd { problem, left }) = ending else {
        bail!(
            "{dir}: unmounted, but the process that served it ended before it could say how it has left; if it was \
             killed, another node, or the next mount, recovers what it had in its journal"
        );
    };
    if let Some(problem) = problem {
        bail!("{dir}: unmounted, but it was not left in order: {problem}");
    }
    for what in &left {
        warning!("{dir}: unmounted, but this was left for later: {what}");
    }
    answer::add("left_for_later", left);
    Ok(())
}

/// A server has what it exports open, and its clients would get errors.
fn refuse_exported(mount: &Mount) -> Result<()> {
    let Some(view) = list::of_node(&mount.server).and_then(|noted| noted.order(&Order::Look).ok())
    else {
        return Ok(());
    };
    if matches!(view.state, State::Failed(_)) {
        return Ok(());
    }
    let (dir, pool) = (mount.mount_point.display(), &mount.pool);
    bail!(
        "{dir}: exported by NFS on port {}. `braid export {dir} --stop` ends that for all clients; --lazy unmounts \
         all the same, and the exports of {pool} end, too",
        view.server.port
    )
}

/// Waits until the node's process has ended, and says what that waits for if it takes long. `kept`: what else keeps its file system mounted.
fn wait_until_left(
    (dir, server): (&Path, &Mount),
    ended: &Receiver<()>,
    kept: impl Fn() -> Option<Holder>,
) -> Result<()> {
    let begun = Instant::now();
    let (mut seen, mut said) = (None, None);
    while begun.elapsed() < LEAVE_MAX {
        if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let waits_for = server.waits_for();
        if waits_for != said {
            if let Some(waits_for) = &waits_for {
                warning!("{}: unmounted, and its node waits: {waits_for}", dir.display());
            }
            said = waits_for;
        }
        // Seen twice: a process that ends while its mount namespace is read may just have held it, and a
        // mount that has begun since, with the same device number, has no note yet.
        let held = kept();
        if let (Some(before), Some(holder)) = (&seen, &held)
            && before == holder
        {
            bail!("{}: unmounted here, but the node goes on: {holder}", dir.display());
        }
        seen = held;
    }
    bail!("{}: unmounted, but its process still writes after {LEAVE_MAX:?}", dir.display());
}

/// What keeps a file system mounted: a directory, and a process in whose mount namespace that is.
#[derive(PartialEq)]
struct Holder {
    pid: u32,
    command: String,
    dir: PathBuf,
    /// This process's own mount namespace.
    here: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command, dir, here } = self;
        // Anybody may name a process as he likes.
        let (command, dir) = (command.escape_debug(), dir.display());
        if *here {
            return write!(f, "it is mounted on {dir}, too; unmount that as well");
        }
        write!(
            f,
            "process {pid} ({command}) has it mounted on {dir} in a mount namespace of its own. End that process, or \
             unmount there: nsenter -t {pid} -m umount {dir}"
        )
    }
}

/// Numbers of the other mounts of a file system in this mount namespace.
fn copies_of(mount: &TableEntry) -> HashSet<u64> {
    let table = MountTable::own().unwrap_or_default();
    let others = table.iter().filter(|m| m.device == mount.device && m.id != mount.id);
    others.map(|m| m.id).collect()
}

/// A process that keeps the file system of `mount`, which the process `server` serves, mounted in whatever
/// mount namespace; in this one only by `copies` that were there before.
fn holder((mount, copies): (&TableEntry, &HashSet<u64>), server: &str) -> Option<Holder> {
    // The number of an unmounted file system is free: another pool's mount may have it at once.
    let is_another = |m: &Mount| m.device == Some(mount.device) && m.server.id() != server;
    if mounts::mounts().iter().chain(&mounts::remotes()).any(is_another) {
        return None;
    }
    let of = |m: &TableEntry| (m.device, m.kind.clone(), m.source.clone());
    let is_same = |m: &TableEntry| of(m) == of(mount);
    let own = std::fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen = HashSet::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let proc = entry.path();
        // One process of each namespace is enough.
        let Ok(namespace) = std::fs::read_link(proc.join("ns/mnt")) else { continue };
        let here = own.as_ref() == Some(&namespace);
        if !seen.insert(namespace) {
            continue;
        }
        let table = MountTable::at(&proc).unwrap_or_default();
        let mut held = table.iter().filter(|m| is_same(m) && (!here || copies.contains(&m.id)));
        if let Some(dir) = held.next().map(|m| m.dir.clone()) {
            let command = std::fs::read_to_string(proc.join("comm")).unwrap_or_default();
            return Some(Holder { pid, command: command.trim().to_owned(), dir, here });
        }
    }
    None
}

/// Only mounts of pools are this command's, whatever else root may unmount. The kernel tells what a
/// path leads to without asking the file system. Returns the mount, if it is known.
fn refuse_others(dir: &Path) -> Result<Option<TableEntry>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // A dead mount may say nothing, and must still be unmounted.
    let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(None) };
    let about = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let about = std::fs::read_to_string(about).unwrap_or_default();
    let id = about.lines().find_map(|l| l.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    let table = MountTable::own().unwrap_or_default();
    match table.iter().find(|m| Some(m.id) == id) {
        Some(mount) if mount.kind != "fuse.braid" => {
            bail!("{}: no pool is mounted there", dir.display())
        }
        mount => Ok(mount.cloned()),
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
                "{}: in use (a program has files open there, or has it as working directory); --lazy detaches anyway",
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
