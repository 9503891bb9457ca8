//! Nodes of this host that were killed together with their guards, and do not end.
//!
//! A node's process that is killed may stay in the kernel: a thread of it waits for pages that the
//! node was to write, or for an answer that it was to give. Its guard ends that ([`super::guard`]),
//! unless it was killed, too, as at the end of a container or of a PID namespace. The dead process
//! then keeps its liveness lock, and no other node can recover it. So a command that needs that
//! lock looks for such processes:
//!
//! ```text
//!  every thread has ended, or must (it was killed, or is ending) and cannot
//!    └> it has /dev/fuse, a liveness lock, and the file `abort` of its connection, open
//!         └> that file is opened anew by way of the process, and ends the connection
//! ```
//!
//! * None of its threads runs a program any more, and no process that lives has that file open (a guard
//!   would, or a program that forks), so nobody answers on its connection: ending it takes nothing from
//!   anybody.
//! * The connection is no number that may be another one's by now: the node has the file of its own
//!   connection open from the moment it is mounted, and what is opened by way of that is the same file.
//! * All is read beneath one directory of `/proc`, kept open, which is that process's or nobody's.
//!
//! These cannot be ended in this way: a process that is not visible in this one's `/proc` (in
//! another container), one of another user, and one that waits for something else (a disk that does
//! not answer, another file system).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_fuse::has_memory;

use super::connection;

/// Between two looks of a mounted node at the others of its host.
const LOOK: Duration = Duration::from_millis(500);
/// A thread that only ends is gone by then.
const ENDS_WITHIN: Duration = Duration::from_millis(250);
/// How long a process may take to end once its connection is gone.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at a process.
const STEP: Duration = Duration::from_millis(20);

/// File system type of fusectl (linux/magic.h).
const FUSECTL: u64 = 0x6573_5543;
/// A task that is ending (`PF_EXITING`, linux/sched.h).
const EXITING: u64 = 4;
/// The bit of SIGKILL among signals.
const KILLED: u64 = 1 << 8;

/// Ends the connections of all nodes' processes that were killed and do not end, as far as this process
/// sees them, and waits for their end.
pub fn end_all() {
    let dead: Vec<_> = processes().filter_map(|dir| Node::open(&dir)).collect();
    for node in &dead {
        if !node.is_gone_within(ENDS_WITHIN) && !is_open_elsewhere(&node.abort) {
            node.end();
            node.is_gone_within(GONE_WITHIN);
        }
    }
}

/// The directories of all processes in `/proc`.
fn processes() -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter(|e| number(&e.file_name()).is_some()).map(|e| e.path())
}

/// Whether a process that lives has this file of fusectl open.
fn is_open_elsewhere(abort: &File) -> bool {
    let id = |m: std::fs::Metadata| (m.dev(), m.ino());
    let Ok(own) = abort.metadata().map(id) else { return true };
    let has_it = |dir: &Path| {
        let fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let mut aborts = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|f| is_abort(&f)));
        aborts.any(|fd| std::fs::metadata(fd.path()).is_ok_and(|m| id(m) == own))
    };
    let lives = |dir: &Path| {
        let status = std::fs::read_to_string(dir.join("status"));
        status.is_ok_and(|status| has_memory(&status))
    };
    let me = std::process::id();
    let others = processes().filter(|dir| dir.file_name().and_then(number) != Some(me));
    others.into_iter().any(|dir| lives(&dir) && has_it(&dir))
}

fn number(name: &OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// Runs [`end_all`] from time to time while `needed`, until it is dropped.
#[derive(Debug)]
pub struct LeftBehindWatch(Option<(Sender<()>, JoinHandle<()>)>);

impl LeftBehindWatch {
    /// Without a thread there is none: it is only said.
    pub fn start(needed: impl Fn() -> bool + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let work = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if needed() {
                    end_all();
                }
            }
        };
        let thread = std::thread::Builder::new().name("left-behind".into()).spawn(work);
        let warn = |e: &io::Error| {
            tracing::warn!("cannot start the search for nodes that do not end: {e}");
        };
        Self(thread.inspect_err(warn).ok().map(|thread| (stop, thread)))
    }
}

impl Drop for LeftBehindWatch {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            thread.join().ok();
        }
    }
}

/// A node's process that is dead and has not ended, by its directory in `/proc`.
#[derive(Debug)]
struct Node {
    name: PathBuf,
    process: Process,
    /// Ends its connection.
    abort: File,
}

/// A process, by its directory in `/proc`: never another one's, whatever becomes of its number.
#[derive(Debug)]
struct Process(File);

impl Process {
    fn open(dir: &Path) -> Option<Self> {
        File::open(dir).ok().map(Self)
    }
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
    /// Whether it is of this user (what another one's process has open says nothing; its directory's
    /// owner does not tell, if it may not be dumped), its first thread neither runs nor sleeps so that
    /// a signal would wake it, and it has no memory any more. One file is read, which the kernel never makes wait: `stat`, `fd` and `exe`
    /// of a process that waits for a dead disk may.
    fn may_be_left_behind(&self) -> bool {
        let status = std::fs::read_to_string(self.path().join("status"));
        status.is_ok_and(|status| {
            is_of_user(&status, rustix::process::geteuid().as_raw())
                && cannot_be_woken(&status)
                && !has_memory(&status)
        })
    }
    /// Whether its first thread has ended or will not run its program any more.
    fn seems_dead(&self) -> bool {
        let stat = std::fs::read_to_string(self.path().join("stat"));
        stat.is_ok_and(|stat| is_dying(&stat) == Some(true))
    }
    /// Its threads that are there.
    fn threads(&self) -> Option<Vec<PathBuf>> {
        let all = std::fs::read_dir(self.path().join("task")).ok()?;
        Some(all.flatten().map(|e| e.path()).collect())
    }
    /// Whether none of its threads can run a program any more, and one has not ended; `None`: it is gone.
    fn is_dead(&self) -> Option<bool> {
        let mut left = false;
        for thread in self.threads()? {
            let Ok(stat) = std::fs::read_to_string(thread.join("stat")) else { continue };
            if !is_dying(&stat)? {
                return Some(false);
            }
            left |= !has_ended(&stat);
        }
        Some(left)
    }
}

impl Node {
    /// `None`: it is no node's, it lives, or it has ended.
    fn open(dir: &Path) -> Option<Self> {
        let process = Process::open(dir)?;
        if !process.may_be_left_behind() || !process.seems_dead() || process.is_dead() != Some(true)
        {
            return None;
        }
        let abort = process.threads()?.iter().find_map(|thread| abort_of(thread))?;
        Some(Self { name: dir.to_owned(), process, abort })
    }
    fn is_gone_within(&self, time: Duration) -> bool {
        let begun = Instant::now();
        while self.process.is_dead() == Some(true) {
            if begun.elapsed() > time {
                return false;
            }
            std::thread::sleep(STEP);
        }
        true
    }
    /// Ends its connection.
    fn end(&self) {
        let process = self.name.display();
        match connection::abort(&self.abort) {
            Ok(()) => tracing::warn!(
                %process,
                "a node's process was killed and could not end, and its guard is gone: ending its connection with the kernel"
            ),
            Err(error) => tracing::warn!(
                %process,
                %error,
                "a node's process was killed and does not end, and its connection with the kernel cannot be ended"
            ),
        }
    }
}

/// The fields of a `stat` of `/proc` after the name.
fn words(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(") ")?.1.split(' ').collect())
}

/// In a `status` of `/proc`: whether all its identities are this user's.
fn is_of_user(status: &str, user: u32) -> bool {
    let ids = status.lines().find_map(|l| l.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id.parse() == Ok(user)))
}

/// In a `status` of `/proc`: whether the task has ended, or waits for something that no signal ends.
fn cannot_be_woken(status: &str) -> bool {
    let state = status.lines().find_map(|l| l.strip_prefix("State:"));
    state.is_none_or(|state| matches!(state.trim_start().get(..1), Some("D" | "Z" | "X") | None))
}

fn has_ended(stat: &str) -> bool {
    words(stat).is_none_or(|w| matches!(w.first(), None | Some(&("Z" | "X"))))
}

/// Whether a task has ended or will not run its program any more. `None`: it makes no sense.
fn is_dying(stat: &str) -> Option<bool> {
    let words = words(stat)?;
    let value = |at: usize| words.get(at)?.parse::<u64>().ok();
    let (flags, pending) = (value(6)?, value(28)?);
    Some(has_ended(stat) || flags & EXITING != 0 || pending & KILLED != 0)
}

/// The file that ends the connection of the node whose thread this is; `None`: it is no node's, or it has
/// closed its files.
fn abort_of(thread: &Path) -> Option<File> {
    let fds = thread.join("fd");
    let (mut serves, mut lives, mut abort) = (false, false, None);
    for fd in std::fs::read_dir(&fds).ok()?.flatten() {
        let Ok(file) = std::fs::read_link(fd.path()) else { continue };
        serves |= file == Path::new("/dev/fuse");
        let info = std::fs::read_to_string(thread.join("fdinfo").join(fd.file_name()));
        lives |= info.is_ok_and(|info| has_liveness_lock(&info));
        if is_abort(&file) {
            abort = abort.or_else(|| open_abort(&fd.path()));
        }
    }
    abort.filter(|_| serves && lives)
}

/// Whether a file is called `NUMBER/abort`, as those of fusectl are.
fn is_abort(file: &Path) -> bool {
    let connection = file.parent().and_then(Path::file_name);
    file.file_name() == Some("abort".as_ref()) && connection.and_then(number).is_some()
}

/// Opens the file that another process has open there, if it is fusectl's. What else may be called so (a FIFO, a
/// device) is not opened: that could wait, or do something.
fn open_abort(fd: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    let looked = open(fd, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = u64::try_from(rustix::fs::fstatfs(&looked).ok()?.f_type).ok()?;
    if kind != FUSECTL {
        return None;
    }
    let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
    File::options().write(true).open(path).ok()
}

/// In what `fdinfo` says of a file.
fn has_liveness_lock(info: &str) -> bool {
    info.lines().any(|line| braid_device::liveness_byte(line).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_will_run_no_more_is_told_from_one_that_may() {
        let stat = |state: &str, flags: u64, pending: u64| {
            format!("7 (a) b) {state} 1 7 7 0 -1 {flags} {} {pending} 0", ["0"; 21].join(" "))
        };
        for (state, flags, pending, dying, ended) in [
            ("S", 0x40_0040, 0, false, false),
            ("T", 0, 1 << 14, false, false),
            ("D", 0, 1 << 8, true, false),
            ("D", 4, 0, true, false),
            ("Z", 4, 0, true, true),
        ] {
            let stat = stat(state, flags, pending);
            assert_eq!((is_dying(&stat), has_ended(&stat)), (Some(dying), ended), "{stat}");
        }
        assert_eq!(is_dying("7 (a) S 1"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(is_dying(&own), Some(false));
    }

    #[test]
    fn a_liveness_lock_is_told_from_others() {
        let info =
            |lock: &str| format!("pos:\t0\nflags:\t02\nmnt_id:\t30\nino:\t5\nlock:\t{lock}\n");
        for (lock, is) in [
            ("1: OFDLCK ADVISORY  WRITE -1 fd:01:5 4611686018427387905 4611686018427387905", true),
            ("1: OFDLCK ADVISORY  WRITE -1 fd:01:5 4096 4607", false),
            ("1: POSIX  ADVISORY  WRITE 7 fd:01:5 4611686018427387905 EOF", false),
            ("1: FLOCK  ADVISORY  READ 7 fd:01:5 0 EOF", false),
        ] {
            assert_eq!(has_liveness_lock(&info(lock)), is, "{lock}");
        }
        assert!(!has_liveness_lock("pos:\t0\n"));
    }

    #[test]
    fn only_tasks_that_no_signal_wakes_are_looked_at_closely() {
        for (state, looked_at) in [
            ("S (sleeping)", false),
            ("R (running)", false),
            ("T (stopped)", false),
            ("I (idle)", false),
            ("D (disk sleep)", true),
            ("Z (zombie)", true),
            ("X (dead)", true),
        ] {
            let status = format!("Name:\ta\nUmask:\t0022\nState:\t{state}\nTgid:\t7\n");
            assert_eq!(cannot_be_woken(&status), looked_at, "{state}");
        }
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(!cannot_be_woken(&own), "{own}");
    }

    #[test]
    fn a_process_of_another_user_is_none_of_ours() {
        let status =
            |ids: &str| format!("Name:\tbraid\nState:\tD\nUid:\t{ids}\nGid:\t0\t0\t0\t0\n");
        assert!(is_of_user(&status("7\t7\t7\t7"), 7));
        assert!(!is_of_user(&status("7\t0\t0\t0"), 0));
        assert!(!is_of_user("Name:\tbraid\n", 0));
    }

    /// Nobody reads from it, so a program that opens it for writing waits.
    #[test]
    fn what_is_called_like_the_file_of_a_connection_is_not_opened() {
        use rustix::fs::{Mode, OFlags, open};
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("1")).unwrap();
        let fifo = dir.path().join("1/abort");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success() && is_abort(&fifo));
        let held = open(&fifo, OFlags::PATH, Mode::empty()).unwrap();
        let fd = format!("/proc/self/fd/{}", held.as_raw_fd());
        assert!(open_abort(Path::new(&fd)).is_none());
    }

    #[test]
    fn nobody_who_lives_is_ended() {
        assert!(Node::open(Path::new("/proc/self")).is_none());
        let own = Process::open(Path::new("/proc/self")).unwrap();
        assert_eq!((own.seems_dead(), own.is_dead()), (false, Some(false)));
    }
}
