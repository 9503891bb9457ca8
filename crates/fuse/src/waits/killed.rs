//! Requests of programs that have been killed: their waits for other nodes end with `EINTR`.
//!
//! The kernel says once of a request that a signal has come for its program (INTERRUPT), whatever signal
//! it is, and lets the program go on only when the request is answered. Programs do not expect `EINTR` of
//! files, so a request is interrupted only when its program is about to end: the kernel then shows SIGKILL
//! pending for each of its threads. One that has got another signal may be killed later, and of that
//! nothing is said: such requests are looked at until they are answered. A request that no thread has
//! begun ([`crate::transport::queue`]) is answered at once.
//!
//! INTERRUPT only makes this quick. It may be read before its request has got to a thread, or while the
//! request is between the queue and a thread, and the kernel sends none for a request that goes to a ring
//! just then. So every request that lasts longer than [`SLOW_LOOK`] is looked at, too.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use braid_fs::lock::interrupt::{Interrupt, Scope};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::transport::queue::RequestQueue;
use crate::transport::reply::{Device, Reply, Way};

/// Between two looks at programs that have got a signal while they wait.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at all requests. One that was under way at the last look, too, is looked at.
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// An INTERRUPT may be read before the request that it names has got to its thread.
const EARLY: Duration = Duration::from_secs(1);
/// Interrupted requests that are looked at: those of threads, those in the queue, and some that came early.
const SUSPECTS_MAX: usize = 4096;
/// Signals that end a program with a core dump: SIGQUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
const CORE: [u32; 10] = [3, 4, 5, 6, 7, 8, 11, 24, 25, 31];
const KILL: u32 = 9;
/// Beside a thread's number, which is below 2^22: an INTERRUPT ends the wait, whatever the signal, as of a
/// lock that a program waits for.
pub const ANY_SIGNAL: u32 = 1 << 31;

struct Suspect {
    unique: u64,
    /// Where the answer goes if the request still waits in the queue.
    device: Device,
    since: Instant,
}

#[derive(Default)]
struct State {
    suspects: Vec<Suspect>,
    closed: bool,
}

/// Requests under way, by the threads that answer them, and those in the queue.
pub struct Killed {
    queue: Arc<RequestQueue>,
    /// Where answers to requests in the queue go.
    device: OnceLock<Weak<OwnedFd>>,
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
pub struct Watched<'a> {
    of: &'a Killed,
    interrupt: Interrupt,
    _scope: Scope,
}

impl Killed {
    /// None. Requests that no thread answers yet stand in `queue`.
    pub fn new(queue: Arc<RequestQueue>) -> Self {
        let (device, threads, state, called) = Default::default();
        Self { queue, device, threads, state, called }
    }
    /// For a thread that answers requests of the mount of `device`, as long as it lives.
    pub fn place(self: &Arc<Self>, device: &Device) -> Watched<'_> {
        let interrupt = Interrupt::of_requests();
        self.threads.lock().push(interrupt.clone());
        let scope = interrupt.scope();
        if self.device.set(Arc::downgrade(device)).is_ok() {
            self.start();
        }
        Watched { of: self, interrupt, _scope: scope }
    }
    fn start(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fuse-killed".into());
        if let Err(error) = thread.spawn(move || this.watch()) {
            tracing::warn!(%error, "cannot start a thread: programs that wait cannot be killed");
        }
    }
    /// A signal has come for the program of the request `unique`.
    pub fn interrupted(&self, unique: u64, device: &Device) {
        let mut state = self.state.lock();
        if state.closed || state.suspects.len() >= SUSPECTS_MAX {
            return;
        }
        let device = Arc::clone(device);
        state.suspects.push(Suspect { unique, device, since: Instant::now() });
        self.called.notify_one();
    }
    /// The mount is gone.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.called.notify_all();
    }

    fn watch(&self) {
        let (mut before, mut looked) = (HashSet::new(), Instant::now());
        let mut state = self.state.lock();
        while !state.closed {
            let suspects = std::mem::take(&mut state.suspects);
            drop(state);
            let queued = if suspects.is_empty() { HashMap::new() } else { self.queue.whose() };
            let stay: Vec<_> = suspects.into_iter().filter(|s| self.look(s, &queued)).collect();
            if looked.elapsed() >= SLOW_LOOK {
                before = self.look_at_all(&before, &is_killed);
                looked = Instant::now();
            }
            state = self.state.lock();
            state.suspects.extend(stay);
            if !state.closed {
                let time = if state.suspects.is_empty() { SLOW_LOOK } else { LOOK };
                self.called.wait_for(&mut state, time);
            }
        }
    }
    /// Ends the requests that were under way `before` and whose threads are killed. Those that are under
    /// way now.
    fn look_at_all(&self, before: &HashSet<u64>, killed: &dyn Fn(u32) -> bool) -> HashSet<u64> {
        let mut now = HashSet::new();
        let threads = self.threads.lock().clone();
        for interrupt in threads {
            let unique = interrupt.current();
            if unique != 0 {
                now.insert(unique);
                if before.contains(&unique) && killed(interrupt.whose() & !ANY_SIGNAL) {
                    interrupt.trip(unique);
                }
            }
        }
        let device = self.device.get().and_then(Weak::upgrade);
        for (unique, thread) in self.queue.whose() {
            now.insert(unique);
            if let Some(device) = &device
                && before.contains(&unique)
                && killed(thread)
                && self.queue.remove(unique)
            {
                Reply { way: Way::Device(device), unique }.error(Errno::INTR);
            }
        }
        now
    }
    /// Whether a request is to be looked at again. `queued`: the threads that wait for those in the queue.
    fn look(&self, suspect: &Suspect, queued: &HashMap<u64, u32>) -> bool {
        let unique = suspect.unique;
        if let Some(thread) = queued.get(&unique) {
            let ends = is_dying(*thread) && self.queue.remove(unique);
            if ends {
                Reply { way: Way::Device(&suspect.device), unique }.error(Errno::INTR);
            }
            return !ends;
        }
        let threads = self.threads.lock();
        let at = threads.iter().find(|i| i.current() == unique).cloned();
        drop(threads);
        let Some(interrupt) = at else { return suspect.since.elapsed() < EARLY };
        let whose = interrupt.whose();
        if whose & ANY_SIGNAL != 0 || is_dying(whose) {
            interrupt.trip(unique);
        }
        true
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.of.threads.lock().retain(|i| !i.is(&self.interrupt));
    }
}

/// Whether the thread of an interrupted request is about to end, or has ended. 0: one that this process
/// cannot see.
fn is_dying(thread: u32) -> bool {
    thread != 0
        && match status_of(thread) {
            Ok(status) => has_fatal(&status),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
}

/// Whether a thread is about to end. One that has ended may have left a request for others, such as a
/// readahead.
fn is_killed(thread: u32) -> bool {
    thread != 0 && status_of(thread).is_ok_and(|status| has_fatal(&status))
}

/// What the kernel says of a thread (proc(5), *status*).
fn status_of(thread: u32) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
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

    #[test]
    fn a_request_of_a_killed_program_ends_even_if_no_interrupt_names_it() {
        use braid_fs::lock::interrupt;
        use zerocopy::IntoBytes;

        use crate::abi::InHeader;
        use crate::transport::space::{Kept, Space};

        let queue = Arc::<RequestQueue>::default();
        let killed = Arc::new(Killed::new(Arc::clone(&queue)));
        let device: Device = Arc::new(std::fs::File::create("/dev/null").unwrap().into());
        let _place = killed.place(&device);
        interrupt::begin(4, 10 | ANY_SIGNAL);
        for (unique, pid) in [(6, 11), (8, 12)] {
            let message = InHeader { unique, pid, ..InHeader::default() };
            let mut space = Space::new(4096);
            space.put(Kept::Short(message.as_bytes().into()));
            assert!(queue.push(&mut space));
        }
        let under_way = HashSet::from([4, 6, 8]);
        let dying = |thread| thread == 10 || thread == 12;
        assert_eq!(killed.look_at_all(&HashSet::new(), &dying), under_way);
        assert!(!interrupt::is_interrupted() && queue.whose().len() == 2, "they have just begun");
        killed.look_at_all(&under_way, &|_| false);
        assert!(!interrupt::is_interrupted() && queue.whose().len() == 2, "nobody is killed");
        killed.look_at_all(&under_way, &dying);
        assert!(interrupt::is_interrupted());
        assert_eq!(queue.whose(), HashMap::from([(6, 11)]));
        interrupt::begin(14, 10);
        killed.look_at_all(&under_way, &dying);
        assert!(!interrupt::is_interrupted(), "another request of the same thread");
        interrupt::end();
        killed.close();
    }
}
