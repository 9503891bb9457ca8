//! The process that holds a liveness byte, found in `/proc`, and how it is ended.
//!
//! A process's number alone names nobody: another process may have it by now, and in another PID namespace
//! it is another's in any case. So a process counts as the holder only if what the kernel says of it agrees
//! in both:
//! * one of its open files has the kernel lock on that byte, at one of the places where that lock would be;
//! * in its own PID namespace it has the number that the holder gave itself.
//!
//! It is ended by a descriptor of the process, which is that process's or nobody's, whatever becomes of its
//! number.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_format::node::LockPlace;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use crate::host_locks::{liveness_byte, lock_place};

/// A process of this host that holds a liveness byte.
#[derive(Debug)]
pub struct LockHolder {
    number: u32,
    process: OwnedFd,
    /// Its directory in `/proc`.
    dir: File,
}

impl LockHolder {
    /// The process that holds `byte` at one of `places` and gave its number as `number`. `None`: this
    /// process sees none, or has the byte itself.
    pub fn find(byte: u64, places: &[LockPlace], number: u32) -> Option<Self> {
        Self::at(number, byte, places).or_else(|| {
            let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let numbers = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
            let mut others = numbers.filter(|n| *n != number).filter_map(Self::open);
            others.find(|holder| holder.is(byte, places, number))
        })
    }
    /// The same, if it has that number here, too.
    pub fn at(number: u32, byte: u64, places: &[LockPlace]) -> Option<Self> {
        Self::open(number).filter(|holder| holder.is(byte, places, number))
    }
    fn open(number: u32) -> Option<Self> {
        if number == std::process::id() {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let dir = File::open(format!("/proc/{number}")).ok()?;
        Some(Self { number, process, dir })
    }
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }
    fn status(&self) -> String {
        std::fs::read_to_string(self.path().join("status")).unwrap_or_default()
    }
    fn is(&self, byte: u64, places: &[LockPlace], number: u32) -> bool {
        own_number(&self.status()) == Some(number) && self.holds(byte, places)
    }

    /// Its number, as this process sees it.
    pub fn number(&self) -> u32 {
        self.number
    }
    /// Whether it holds `byte` at one of `places` now.
    pub fn holds(&self, byte: u64, places: &[LockPlace]) -> bool {
        let files = std::fs::read_dir(self.path().join("fdinfo")).into_iter().flatten().flatten();
        let mut locked = files.filter(|file| {
            let info = std::fs::read_to_string(file.path());
            info.is_ok_and(|info| info.lines().any(|l| liveness_byte(l) == Some(byte)))
        });
        locked.any(|file| {
            let file = self.path().join("fd").join(file.file_name());
            places_of(&file).iter().any(|place| places.contains(place))
        })
    }
    /// Whether it is stopped, by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        is_stopped(&self.status())
    }
    /// Sends it SIGKILL.
    ///
    /// # Errors
    /// The kernel's: it may be another user's. One that has ended is no error.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.process, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }
    /// Waits until its last thread has ended; false if `time` is over before.
    pub fn ends_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&self.process, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        poll(&mut polled, time.as_ref()).is_ok_and(|ended| ended > 0)
    }
}

/// Where a lock on an open file of a process counts: at its inode; and at the directory that it is in, by
/// which locks for units of targets are known.
fn places_of(file: &Path) -> Vec<LockPlace> {
    let Ok(own) = std::fs::metadata(file).and_then(|meta| lock_place(&meta)) else {
        return Vec::new();
    };
    let path = std::fs::read_link(file).unwrap_or_default();
    let place = |path: &Path| std::fs::metadata(path).and_then(|meta| lock_place(&meta)).ok();
    // Its name may be another file's here.
    let named = place(&path).filter(|named| *named == own);
    let directory = named.and_then(|_| place(path.parent()?));
    std::iter::once(own).chain(directory).collect()
}

/// In a `status` of `/proc`: the number of a process in its own PID namespace.
fn own_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// In a `status` of `/proc`: whether a signal or a debugger has stopped the process.
fn is_stopped(status: &str) -> bool {
    let state = status.lines().find_map(|l| l.strip_prefix("State:"));
    state.is_some_and(|state| matches!(state.trim_start().get(..1), Some("T" | "t")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command};

    use braid_testkit::wait_until;

    use super::*;
    use crate::{Device, FileDevice, OpenOptions};

    /// A process that inherits an open file with a liveness lock; killed when dropped.
    struct Holder(Child);
    impl Drop for Holder {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }

    fn holder(path: &Path, byte: u64) -> Holder {
        // Python's fcntl.lockf takes locks of the process; these are of the open file.
        let script = "import fcntl,struct,sys,time
f = open(sys.argv[1], 'r+b'); at = (1 << 62) + int(sys.argv[2])
fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, at, 1, 0)); time.sleep(600)";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).arg(byte.to_string());
        Holder(command.spawn().unwrap())
    }
    #[test]
    fn who_holds_a_byte_is_found_by_its_lock_and_its_number_and_by_no_less() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
        let places = [device.info().lock_place.unwrap()];
        let _own = device.abilities().locks.lock_byte(9).unwrap().unwrap();
        assert!(LockHolder::find(9, &places, std::process::id()).is_none(), "never this process");
        let child = holder(&path, 7);
        let number = child.0.id();
        wait_until("it has its lock", || device.abilities().locks.byte_locked(7).unwrap());
        let found = LockHolder::find(7, &places, number).unwrap();
        assert!(found.number() == number && found.holds(7, &places) && !found.is_stopped());
        assert!(LockHolder::find(8, &places, number).is_none(), "another byte");
        assert!(LockHolder::find(7, &places, number + 1).is_none(), "another number");
        let elsewhere = LockPlace { inode: places[0].inode + 1, ..places[0] };
        assert!(LockHolder::find(7, &[elsewhere], number).is_none(), "another file");
        let pid = Pid::from_raw(number.cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        wait_until("it is stopped", || found.is_stopped());
        assert!(!found.ends_within(Duration::from_millis(1)));
        found.kill().unwrap();
        assert!(found.ends_within(Duration::from_mins(1)));
        wait_until("its lock is gone", || !device.abilities().locks.byte_locked(7).unwrap());
        drop(child);
        found.kill().unwrap();
        assert!(!found.holds(7, &places));
    }

    /// As for the files that stand for units of targets.
    #[test]
    fn a_lock_counts_at_the_directory_of_its_file_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit");
        std::fs::File::create(&path).unwrap();
        let child = holder(&path, 3);
        let place = lock_place(&dir.path().metadata().unwrap()).unwrap();
        wait_until("it is found", || LockHolder::find(3, &[place], child.0.id()).is_some());
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status = |state: &str, numbers: &str| {
            format!("Name:\tbraid\nState:\t{state}\nPid:\t7\nNSpid:\t{numbers}\nThreads:\t1\n")
        };
        assert_eq!(own_number(&status("S (sleeping)", "7")), Some(7));
        assert_eq!(own_number(&status("S (sleeping)", "7\t1")), Some(1), "of a container");
        assert_eq!(own_number("Name:\tbraid\n"), None);
        for (state, stopped) in
            [("S (sleeping)", false), ("T (stopped)", true), ("t (tracing stop)", true)]
        {
            assert_eq!(is_stopped(&status(state, "7")), stopped, "{state}");
        }
    }
}
