//! Requests of programs that have been killed: their waits for other nodes end with `EINTR`.
//!
//! The kernel says once of a request that a signal has come for its program (INTERRUPT), whatever signal
//! it is, and lets the program go on only when the request is answered. Programs do not expect `EINTR` of
//! files, so a request is interrupted only when its program is about to end: the kernel then shows SIGKILL
//! pending for each of its threads. One that has got another signal may be killed later, and of that
//! nothing is said: such requests are looked at until they are answered. A request that no thread has
//! begun ([`crate::line`]) is answered at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_fs::lock::interrupt::{Interrupt, Scope};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::line::Line;
use crate::reply::{Device, Reply, Way};

/// Between two looks at programs that have got a signal while they wait.
const LOOK: Duration = Duration::from_millis(50);
/// An INTERRUPT may be read before the request that it names has got to its thread.
const EARLY: Duration = Duration::from_secs(1);
/// Interrupted requests that are looked at: those of threads, those in line, and some that came early.
const SUSPECTS_MAX: usize = 4096;
/// Signals that end a program with a core dump: SIGQUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
const CORE: [u32; 10] = [3, 4, 5, 6, 7, 8, 11, 24, 25, 31];
const KILL: u32 = 9;
/// Instead of a thread's number: any signal ends the wait, as of a lock that a program waits for.
pub const ANY_SIGNAL: u32 = u32::MAX;

struct Suspect {
    unique: u64,
    /// Where the answer goes if the request still stands in line.
    device: Device,
    since: Instant,
}

#[derive(Default)]
struct State {
    suspects: Vec<Suspect>,
    watched: bool,
    closed: bool,
}

/// Requests under way, by the threads that answer them, and those in line.
pub struct Killed {
    line: Arc<Line>,
    threads: Mutex<Vec<Interrupt>>,
    state: Mutex<State>,
    called: Condvar,
}

impl std::fmt::Debug for Killed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Killed").finish_non_exhaustive()
    }
}

/// A thread's place; it goes with the thread.
pub struct Place<'a> {
    of: &'a Killed,
    interrupt: Interrupt,
    _scope: Scope,
}

impl Killed {
    /// None. Requests that no thread answers yet stand in `line`.
    pub fn new(line: Arc<Line>) -> Self {
        let (threads, state, called) = Default::default();
        Self { line, threads, state, called }
    }
    /// For a thread that answers requests, as long as it lives.
    pub fn place(&self) -> Place<'_> {
        let interrupt = Interrupt::of_requests();
        self.threads.lock().push(interrupt.clone());
        let scope = interrupt.scope();
        Place { of: self, interrupt, _scope: scope }
    }
    /// A signal has come for the program of the request `unique`.
    pub fn interrupted(self: &Arc<Self>, unique: u64, device: &Device) {
        let mut state = self.state.lock();
        if state.closed || state.suspects.len() >= SUSPECTS_MAX {
            return;
        }
        let device = Arc::clone(device);
        state.suspects.push(Suspect { unique, device, since: Instant::now() });
        if !state.watched {
            let this = Arc::clone(self);
            let spawned = std::thread::Builder::new().name("fuse-killed".into());
            match spawned.spawn(move || this.watch()) {
                Ok(_) => state.watched = true,
                Err(error) => tracing::warn!(%error, "programs that wait cannot be killed"),
            }
        }
        self.called.notify_one();
    }
    /// The mount is gone.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.called.notify_all();
    }

    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            if state.suspects.is_empty() {
                self.called.wait(&mut state);
                continue;
            }
            let suspects = std::mem::take(&mut state.suspects);
            drop(state);
            let in_line = self.line.whose();
            let stay: Vec<_> = suspects.into_iter().filter(|s| self.look(s, &in_line)).collect();
            state = self.state.lock();
            state.suspects.extend(stay);
            if !state.closed {
                self.called.wait_for(&mut state, LOOK);
            }
        }
    }
    /// Whether a request is to be looked at again. `in_line`: the threads that wait for those in line.
    fn look(&self, suspect: &Suspect, in_line: &HashMap<u64, u32>) -> bool {
        let unique = suspect.unique;
        if let Some(thread) = in_line.get(&unique) {
            let ends = is_dying(*thread) && self.line.remove(unique);
            if ends {
                Reply { way: Way::Device(&suspect.device), unique }.error(Errno::INTR);
            }
            return !ends;
        }
        let threads = self.threads.lock();
        let at = threads.iter().find(|i| i.current() == unique).cloned();
        drop(threads);
        let Some(interrupt) = at else { return suspect.since.elapsed() < EARLY };
        if is_dying(interrupt.whose()) {
            interrupt.trip(unique);
        }
        true
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.of.threads.lock().retain(|i| !i.is(&self.interrupt));
    }
}

/// Whether a program's thread is about to end, or has ended. 0: one that this process cannot see.
fn is_dying(thread: u32) -> bool {
    match thread {
        0 => return false,
        ANY_SIGNAL => return true,
        _ => {}
    }
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_fatal(&status),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether what the kernel says of a thread shows a signal that ends it.
fn has_fatal(status: &str) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        u64::from_str_radix(line.map_or("0", str::trim), 16).unwrap_or(0)
    };
    let pending = field("SigPnd:") | field("ShdPnd:");
    let kept = field("SigBlk:") | field("SigIgn:") | field("SigCgt:");
    let bit = |signal: u32| 1_u64 << (signal - 1);
    let core = CORE.iter().fold(0, |all, signal| all | bit(*signal));
    pending & bit(KILL) != 0 || pending & core & !kept != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_end_a_program_count() {
        let says = |pending: u64, caught: u64| {
            has_fatal(&format!(
                "Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t{caught:016x}\n"
            ))
        };
        assert!(says(1 << 8, 0), "SIGKILL");
        assert!(says(1 << 8, u64::MAX));
        assert!(says(1 << 2, 0), "SIGQUIT");
        assert!(!says(1 << 2, 1 << 2), "SIGQUIT, caught");
        assert!(!says(1 << 13, 1 << 13), "SIGALRM");
        assert!(!says(1 << 13, 0), "the kernel makes it SIGKILL where it is fatal");
        assert!(!says(0, 0) && !has_fatal("") && !is_dying(0));
        assert!(!is_dying(std::process::id()));
    }
}
