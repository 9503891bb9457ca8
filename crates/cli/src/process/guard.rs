//! `braid guard`, which nobody types: watches over the end of a mounted node's process.
//!
//! A node that is killed while the kernel drops its cached pages may not end: its last thread waits
//! in the kernel for pages to be written, and the one to write them was the node. Its liveness lock
//! would stay, and no other node could recover it. So each node has a guard, a process of its own
//! that sleeps until the node's first thread ends, and tells the kernel that nobody answers any
//! more if another thread then stays behind. (Without a guard the kernel learns it when the last
//! descriptor of `/dev/fuse` is closed, which that thread holds.)

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Signal as Death, getppid, set_parent_process_death_signal};

use crate::process::connection::{self, Connection};

/// Watch over a mounted node; standard input is the file that ends its connection with the kernel
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Process of the node
    node: i32,
}

/// Between two looks at a node that ends.
const LOOK: Duration = Duration::from_millis(50);
/// Looks at which a thread was still there, before it is taken to be stuck: a thread that only ends
/// is gone by then.
const LOOKS_STUCK: u32 = 5;
/// Looks after which there is nothing left to be done.
const LOOKS_MAX: u32 = 600;

/// The guard of this process; ends when dropped.
#[derive(Debug)]
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts one for the file system mounted at `mount_point`, which this process serves. To be
    /// called by the first thread. Without one a node works as well: it is only said.
    pub fn start(mount_point: &Path) -> Self {
        let started = Connection::of(mount_point).and_then(|connection| {
            let node = std::process::id().to_string();
            let mut command = Command::new(std::env::current_exe()?);
            // A process of its own group, so that a terminal's ^C is for the node alone.
            std::os::unix::process::CommandExt::arg0(&mut command, "braid");
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            command.args(["guard", &node]).current_dir("/");
            command.stdin(connection.abort).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().context("cannot start it")
        });
        Self(match started {
            Ok(child) => Some(child),
            Err(error) => {
                tracing::warn!("cannot start the guard of this node: {error:#}");
                None
            }
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// What says that a thread of the node has ended.
fn end() -> SigSet {
    SigSet::from(Signal::SIGTERM)
}

/// To be called before this process has a second thread, which would not inherit it: the signal that a guard waits
/// for then ends none of its threads.
///
/// It comes several times. Once the thread has ended that started the guard, the kernel takes another thread of the
/// node for the one that did, and tells of that one's end, too.
pub fn block_end() {
    // It fails for no valid set.
    end().thread_block().ok();
}

/// Runs it, in a process that has called [`block_end`].
pub fn run(args: &Args) -> Result<ExitCode> {
    set_parent_process_death_signal(Some(Death::TERM))?;
    // Once the node's last thread has gone, this process is another one's child.
    let is_there = || getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == args.node);
    if is_there() {
        end().wait()?;
    }
    let mut stuck = 0;
    for _ in 0..LOOKS_MAX {
        std::thread::sleep(LOOK);
        if !is_there() {
            break;
        }
        // On a busy machine its first thread may end later than others.
        let Some(node) = parent() else { break };
        stuck += u32::from(has_threads_left(node));
        if stuck == LOOKS_STUCK {
            connection::abort(std::io::stdin()).context("cannot end the node's connection")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of the process that started this one, in the namespace of the processes that /proc shows: in a container
/// it may be another one's than ours.
fn parent() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Whether a process's first thread has ended, and others have not.
fn has_threads_left(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    matches!(state, Some('Z' | 'X')) && tasks > 1
}
