//! Who asks for a file's new size: a program, or the kernel after an asynchronous write that failed.
//!
//! If a write by AIO or io_uring fails that seemed to make the file longer, the kernel sets the size to
//! what it thinks it was (`fuse_direct_IO`, fs/fuse/file.c). Another node may have made the file longer
//! since: what it wrote, and perhaps synchronized, would be cut off. The request is the same as that of
//! ftruncate(2), but the thread that waits for the answer is not in that system call.

use std::time::{Duration, Instant};

/// A thread that has just asked may not wait yet.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);

/// Numbers of the system call: of this machine, and, the same on all that the kernel runs them on, of
/// programs of 32 bits (`ftruncate`, `ftruncate64`).
const FTRUNCATE: [i64; 3] = [libc::SYS_ftruncate, 93, 194];

/// What a thread is doing.
#[derive(Debug, PartialEq, Eq)]
enum Doing {
    /// It waits in the system call of this number (negative: in none).
    Waits(i64),
    /// It runs.
    Runs,
    /// It cannot be seen: it is in another PID namespace, or of another user.
    Unknown,
}

/// From `/proc/PID/syscall`: the number and arguments, or `running`.
fn doing(said: &str) -> Doing {
    let first = said.split_whitespace().next();
    match first {
        Some("running") => Doing::Runs,
        Some(number) => number.parse().map_or(Doing::Unknown, Doing::Waits),
        None => Doing::Unknown,
    }
}

/// Whether a program may have asked by thread `pid` that the size of a file it has open be set. If it
/// cannot be seen, it may.
pub(super) fn is_wanted(pid: u32) -> bool {
    let asked = Instant::now();
    loop {
        let said = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        match said.map_or(Doing::Unknown, |said| doing(&said)) {
            Doing::Waits(number) => return FTRUNCATE.contains(&number),
            Doing::Runs if asked.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Doing::Runs | Doing::Unknown => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_thread_does_is_read_from_what_the_kernel_says() {
        let waits = "77 0x3 0x1000 0x0 0x0 0x0 0x0 0x7ffc 0x7f\n";
        assert_eq!(doing(waits), Doing::Waits(77));
        assert_eq!(doing("-1 0x7ffc 0x7f\n"), Doing::Waits(-1));
        assert_eq!(doing("running\n"), Doing::Runs);
        assert_eq!(doing(""), Doing::Unknown);
        assert_eq!(doing("elsewhere"), Doing::Unknown);
    }

    #[test]
    fn whoever_is_not_there_or_runs_may_want_it() {
        assert!(is_wanted(0));
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let (begun, wanted) = (Instant::now(), is_wanted(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wanted && begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    }

    #[test]
    fn who_waits_in_another_call_does_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let begun = Instant::now();
        while is_wanted(child.id()) {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
