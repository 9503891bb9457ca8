//! Who asks for a file's new size: a program, or the kernel after an asynchronous write that failed.
//!
//! If a write by AIO or io_uring fails that seemed to make the file longer, the kernel sets the size to
//! what it thinks it was (`fuse_direct_IO`, fs/fuse/file.c). Another node may have made the file longer
//! since: what it wrote, and perhaps synchronized, would be cut off. The request is the same as that of
//! ftruncate(2), but the thread that waits for the answer is not in that system call.
//!
//! Nor is a thread whose program dumps its core: the kernel empties the file before it writes (`do_coredump`,
//! fs/coredump.c), and writes nothing if that fails. The system call that the thread was in last may be any. But
//! no other thread of the program runs then: all others have been killed before.

use std::time::{Duration, Instant};

/// A thread that has just asked may not wait yet.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);

/// Numbers of the system call: of this machine, and, the same on all that the kernel runs them on, of
/// programs of 32 bits (`ftruncate`, `ftruncate64`).
const FTRUNCATE: [i64; 3] = [libc::SYS_ftruncate, 93, 194];

/// In a mask of signals.
const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);

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

/// Whether what the kernel says of a thread (proc(5), *status*) shows that it writes a core dump. The other threads
/// of its program that have not ended yet have been sent SIGKILL, each for itself.
fn dumps_core(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let pending = field("SigPnd:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    field("CoreDumping:") == Some("1") && pending.is_some_and(|mask| mask & SIGKILL == 0)
}

/// Whether a program may have asked by thread `pid` that a file it has open get this size, or the kernel for a core
/// dump. If the thread cannot be seen, it may.
pub(super) fn is_wanted(pid: u32, size: u64) -> bool {
    let dumps = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|status| dumps_core(&status))
    };
    let asked = Instant::now();
    loop {
        let said = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        match said.map_or(Doing::Unknown, |said| doing(&said)) {
            Doing::Waits(number) => return FTRUNCATE.contains(&number) || size == 0 && dumps(),
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
    fn who_dumps_a_core_is_told_from_its_other_threads() {
        let says = |dumping: &str, pending: u64, shared: u64| {
            dumps_core(&format!(
                "Name:\tx\n{dumping}THP_enabled:\t1\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\n"
            ))
        };
        let dumping = "CoreDumping:\t1\n";
        assert!(says(dumping, 0, 0));
        assert!(says(dumping, 1 << 10, 1 << 8), "the dump is to be broken off");
        assert!(!says(dumping, 1 << 8, 0), "another thread, which is to end");
        assert!(!says("CoreDumping:\t0\n", 0, 0));
        assert!(!says("", 0, 0) && !dumps_core("") && !dumps_core(dumping));
    }

    #[test]
    fn whoever_is_not_there_or_runs_may_want_it() {
        assert!(is_wanted(0, 9));
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let (begun, wanted) = (Instant::now(), is_wanted(child.id(), 9));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wanted && begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    }

    #[test]
    fn who_waits_in_another_call_does_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let begun = Instant::now();
        while is_wanted(child.id(), 9) {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
        assert!(!is_wanted(child.id(), 0), "it dumps no core");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
