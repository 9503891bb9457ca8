//! Requests of programs that have been killed: their waits for other nodes end with `EINTR`.
//!
//! The kernel says once of a request that a signal has come for its program (INTERRUPT), whatever
//! signal it is, and lets the program go on only when the request is answered. Programs do not
//! expect `EINTR` of files, so a request is interrupted only when its program is about to end: the
//! kernel then shows SIGKILL pending for each of its threads. A program that has got another signal
//! may be killed later, and the kernel does not report that. So such requests are checked until
//! they are answered. A request that no thread has begun ([`crate::transport::queue`]) is answered
//! at once.
//!
//! A request that is interrupted may wait for something else than a lock, and be in the middle of a change:
//! for a member that does not answer, for a node that has not taken note of a change of the pool. It is
//! seen through, but its program need not wait for that: [`PATIENCE`] later the program gets its `EINTR`
//! from here, and what the thread answers in the end nobody hears ([`BY_OTHERS`]). The thread keeps the
//! locks that it has, so what others do to the file comes after it.
//!
//! INTERRUPT only makes this quick. It may be read before its request has got to a thread, or while the
//! request is between the queue and a thread, and the kernel sends none for a request that goes to a ring
//! just then. So every request that lasts longer than [`SLOW_LOOK`] is looked at, too.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use braid_fs::lock::interrupt::{Interrupt, Scope};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::transport::queue::QueuedRequests;
use crate::transport::reply::{Device, Reply, Way};

/// Between two looks at programs that have got a signal while they wait.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at all requests. One that was under way at the last look, too, is looked at.
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// An INTERRUPT may be read before the request that it names has got to its thread.
const EARLY: Duration = Duration::from_secs(1);
/// Interrupted requests that are looked at: those of threads, those in the queue, and some that came early.
const SUSPECTS_MAX: usize = 4096;
/// Waits for locks that are looked at each time. Programs may have thousands.
const PARKED_MAX: usize = 256;
/// Signals that end a program with a core dump: SIGQUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
const CORE: [u32; 10] = [3, 4, 5, 6, 7, 8, 11, 24, 25, 31];
const KILL: u32 = 9;
/// How long an interrupted request may take to end before its program is let go.
const PATIENCE: Duration = Duration::from_secs(1);
/// Beside a thread's number, which is below 2^22: an INTERRUPT ends the wait, whatever the signal, as of a
/// lock that a program waits for.
pub const ANY_SIGNAL: u32 = 1 << 31;
/// Beside it too: its answer may come from another thread than the one that is at it. The kernel takes the
/// first of two, and tells whoever comes second that there is no such request. Not where an answer is bound
/// to a thread's ring, nor of pages that the kernel writes back, which would count as lost.
pub const BY_OTHERS: u32 = 1 << 30;
/// Beside it too: the program ends, or has ended, if it has no memory any more. A program's end closes its files, and
/// nobody is told what comes of that. Then no signal is pending, and the kernel sends no INTERRUPT. Not of other
/// requests: a thread of the kernel has no memory either.
pub const AT_EXIT: u32 = 1 << 29;
/// The thread's number.
const THREAD: u32 = !(ANY_SIGNAL | BY_OTHERS | AT_EXIT);

struct Suspect {
    unique: u64,
    /// Where the answer goes if the request still waits in the queue.
    device: Device,
    since: Instant,
    /// When it was interrupted.
    tripped: Option<Instant>,
}

/// Requests that wait without a thread: for locks of other programs.
pub trait Parked: Send + Sync {
    /// They, each with its program's thread.
    fn whose(&self) -> Vec<(u64, u32)>;
    /// Ends one, if it still waits.
    fn end(&self, unique: u64);
}

#[derive(Default)]
struct State {
    suspects: Vec<Suspect>,
    closed: bool,
}

/// Requests under way, by the threads that answer them, and those in the queue.
pub struct KilledPrograms {
    queues: Vec<Arc<dyn QueuedRequests>>,
    /// Where answers to requests in the queue go.
    device: OnceLock<Weak<OwnedFd>>,
    threads: Mutex<Vec<Interrupt>>,
    parked: OnceLock<Weak<dyn Parked>>,
    /// The last wait for a lock that was looked at.
    last_parked: AtomicU64,
    state: Mutex<State>,
    called: Condvar,
}

impl std::fmt::Debug for KilledPrograms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KilledPrograms").finish_non_exhaustive()
    }
}

/// A thread's place; it goes with the thread.
pub struct Watched<'a> {
    of: &'a KilledPrograms,
    interrupt: Interrupt,
    _scope: Scope,
}

impl KilledPrograms {
    /// None. Requests that no thread has begun are in `queues`.
    pub fn new(queues: Vec<Arc<dyn QueuedRequests>>) -> Self {
        let (device, threads, parked, last_parked, state, called) = Default::default();
        Self { queues, device, threads, parked, last_parked, state, called }
    }
    /// Looks at these, too.
    pub fn look_at(&self, parked: Weak<impl Parked + 'static>) {
        self.parked.get_or_init(|| parked);
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
        state.suspects.push(Suspect { unique, device, since: Instant::now(), tripped: None });
        self.called.notify_one();
    }
    /// The mount is gone.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.called.notify_all();
    }

    fn watch(&self) {
        let (mut before, mut looked) = (HashMap::new(), Instant::now());
        let mut state = self.state.lock();
        while !state.closed {
            let suspects = std::mem::take(&mut state.suspects);
            drop(state);
            let queued = if suspects.is_empty() { HashMap::new() } else { self.queued() };
            let stay =
                suspects.into_iter().filter_map(|s| self.look(s, &queued)).collect::<Vec<_>>();
            if looked.elapsed() >= SLOW_LOOK {
                before = self.look_at_all(&before, &is_killed);
                self.look_at_parked(&is_killed);
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
    /// The threads that wait for requests that no thread answers yet.
    pub fn queued(&self) -> HashMap<u64, u32> {
        self.queues.iter().flat_map(|queue| queue.whose()).collect()
    }
    /// Takes such a request out of its queue: whoever does answers it.
    fn remove(&self, unique: u64) -> bool {
        self.queues.iter().any(|queue| queue.remove(unique))
    }
    /// Ends the requests that were under way `before` and whose threads are killed; lets go of those that
    /// it wanted to end then. Those that are under way now, and whether it wanted to end them.
    fn look_at_all(
        &self,
        before: &HashMap<u64, bool>,
        killed: &dyn Fn(u32) -> bool,
    ) -> HashMap<u64, bool> {
        let mut now = HashMap::new();
        let device = self.device.get().and_then(Weak::upgrade);
        let threads = self.threads.lock().clone();
        for interrupt in threads {
            let (unique, whose) = (interrupt.under_way(), interrupt.whose());
            if unique == 0 {
                continue;
            }
            let ends = before.contains_key(&unique) && killed(whose & (THREAD | AT_EXIT));
            now.insert(unique, ends);
            if ends {
                interrupt.trip(unique);
                let tripped = before.get(&unique) == Some(&true);
                if let Some(device) = device.as_ref().filter(|_| tripped) {
                    answer_in_place(device, unique, whose);
                }
            }
        }
        for (unique, thread) in self.queued() {
            now.insert(unique, false);
            if let Some(device) = &device
                && before.contains_key(&unique)
                && killed(thread)
                && self.remove(unique)
            {
                Reply { way: Way::Device(device), unique }.error(Errno::INTR);
            }
        }
        now
    }
    /// Ends waits for locks of programs that are killed: of some of them, the next ones at the next look.
    /// An INTERRUPT may have been forgotten that came before its request, and there is no second one.
    fn look_at_parked(&self, killed: &dyn Fn(u32) -> bool) {
        let Some(parked) = self.parked.get().and_then(Weak::upgrade) else { return };
        let mut waits = parked.whose();
        waits.sort_unstable();
        let last = self.last_parked.load(Ordering::Relaxed);
        let next = waits.partition_point(|(unique, _)| *unique <= last);
        waits.rotate_left(next);
        waits.truncate(PARKED_MAX);
        if let Some((unique, _)) = waits.last() {
            self.last_parked.store(*unique, Ordering::Relaxed);
        }
        for (unique, thread) in waits {
            if killed(thread) {
                parked.end(unique);
            }
        }
    }
    /// The request, if it is to be looked at again. `queued`: the threads that wait for those in the queue.
    fn look(&self, mut suspect: Suspect, queued: &HashMap<u64, u32>) -> Option<Suspect> {
        let unique = suspect.unique;
        if let Some(thread) = queued.get(&unique) {
            let ends = is_dying(*thread) && self.remove(unique);
            if ends {
                Reply { way: Way::Device(&suspect.device), unique }.error(Errno::INTR);
            }
            // Later the look at all requests finds it, if its program is killed: a user may have thousands.
            return (!ends && suspect.since.elapsed() < EARLY).then_some(suspect);
        }
        let threads = self.threads.lock();
        let at = threads.iter().find(|i| i.under_way() == unique).cloned();
        drop(threads);
        let Some(interrupt) = at else {
            return (suspect.since.elapsed() < EARLY).then_some(suspect);
        };
        let whose = interrupt.whose();
        let dying = is_dying(whose & THREAD);
        if dying || whose & ANY_SIGNAL != 0 {
            interrupt.trip(unique);
        }
        if dying {
            let tripped = *suspect.tripped.get_or_insert_with(Instant::now);
            if tripped.elapsed() >= PATIENCE && answer_in_place(&suspect.device, unique, whose) {
                return None;
            }
        }
        Some(suspect)
    }
}

/// Answers a request whose program is killed, instead of the thread that is at it. Whether that may be.
fn answer_in_place(device: &Device, unique: u64, whose: u32) -> bool {
    let may_be = whose & BY_OTHERS != 0;
    if may_be {
        tracing::debug!(
            unique,
            "a program was killed, and does not wait for the end of its request"
        );
        Reply { way: Way::Device(device), unique }.error(Errno::INTR);
    }
    may_be
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

/// Whether a thread is about to end, or its program is ending, if that counts ([`AT_EXIT`]). A thread that has ended
/// may have left a request that serves others, such as a readahead.
fn is_killed(whose: u32) -> bool {
    let (thread, at_exit) = (whose & THREAD, whose & AT_EXIT != 0);
    let ends = |status: String| has_fatal(&status) || at_exit && !has_memory(&status);
    thread != 0 && status_of(thread).is_ok_and(ends)
}

/// Whether what the kernel says of a thread or process (proc(5), *status*) shows that it has memory, as all have that run
/// a program: the kernel takes it from one that ends before it closes its files. (*stat* says outright that it ends, but
/// its readers may wait for a program that is being started.)
pub fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
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
    fn a_program_that_ends_has_no_memory() {
        let me = std::process::id();
        assert!(!is_killed(me) && !is_killed(me | AT_EXIT));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = |whose| {
            let end = Instant::now() + Duration::from_secs(10);
            while !is_killed(whose) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            is_killed(whose)
        };
        assert!(ended(child.id() | AT_EXIT), "it has ended, and nobody has asked for its status");
        assert!(!is_killed(child.id()), "by no signal");
        child.wait().unwrap();
    }

    /// Where answers go, and those that went there.
    fn answers() -> (Device, std::fs::File) {
        let (from, to) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&from, true).unwrap();
        (Arc::new(to.into()), OwnedFd::from(from).into())
    }

    #[test]
    fn a_killed_program_does_not_wait_for_what_is_seen_through() {
        use braid_fs::lock::interrupt::{self, Uninterruptible};
        use std::io::Read;

        let killed = Arc::new(KilledPrograms::new(Vec::new()));
        let (device, mut heard) = answers();
        let _place = killed.place(&device);
        let mut answer = [0; 16];
        for (whose, hears) in [(10, false), (0xa | BY_OTHERS, true)] {
            interrupt::begin(4, whose);
            let _changing = Uninterruptible::begin();
            let first = killed.look_at_all(&HashMap::from([(4, false)]), &|thread| thread == 10);
            assert_eq!(first, HashMap::from([(4, true)]));
            assert!(!interrupt::is_interrupted());
            heard.read(&mut answer).unwrap_err();
            killed.look_at_all(&first, &|thread| thread == 10);
            assert_eq!(heard.read(&mut answer).is_ok(), hears);
            interrupt::end();
            assert!(killed.look_at_all(&first, &|_| true).is_empty());
        }
        assert_eq!(answer[8..], 4_u64.to_ne_bytes());
        killed.close();
    }

    #[test]
    fn all_waits_for_locks_are_looked_at_some_at_a_time() {
        #[derive(Default)]
        struct Waits(Mutex<HashMap<u64, u32>>);
        impl Parked for Waits {
            fn whose(&self) -> Vec<(u64, u32)> {
                self.0.lock().iter().map(|(unique, thread)| (*unique, *thread)).collect()
            }
            fn end(&self, unique: u64) {
                self.0.lock().remove(&unique);
            }
        }
        let killed = KilledPrograms::new(Vec::new());
        killed.look_at_parked(&|_| true);
        let waits = Arc::new(Waits::default());
        killed.look_at(Arc::downgrade(&waits));
        let all = 3 * PARKED_MAX as u64;
        // The programs of thread 7 are killed: their waits are the last.
        waits.0.lock().extend((0..all).map(|n| (n, if n < all - 10 { 6 } else { 7 })));
        let looked = std::cell::Cell::new(0);
        for _ in 0..3 {
            killed.look_at_parked(&|thread| {
                looked.set(looked.get() + 1);
                thread == 7
            });
        }
        assert_eq!(looked.get(), all);
        assert_eq!(waits.whose().len() as u64, all - 10);
        assert!(waits.whose().iter().all(|(_, thread)| *thread == 6));
    }

    #[test]
    fn a_request_of_a_killed_program_ends_even_if_no_interrupt_names_it() {
        use braid_fs::lock::interrupt;
        use zerocopy::IntoBytes;

        use crate::abi::InHeader;
        use crate::transport::queue::RequestQueue;
        use crate::transport::space::{Kept, Space};

        let queue = Arc::<RequestQueue>::default();
        let killed = Arc::new(KilledPrograms::new(vec![queue.clone()]));
        let device: Device = Arc::new(std::fs::File::create("/dev/null").unwrap().into());
        let _place = killed.place(&device);
        interrupt::begin(4, 0xa | ANY_SIGNAL);
        for (unique, pid) in [(6, 11), (8, 12)] {
            let message = InHeader { unique, pid, ..InHeader::default() };
            let mut space = Space::new(4096);
            space.put(Kept::Short(message.as_bytes().into()));
            assert!(queue.push(&mut space));
        }
        let under_way = HashMap::from([(4, false), (6, false), (8, false)]);
        let dying = |thread| thread == 10 || thread == 12;
        assert_eq!(killed.look_at_all(&HashMap::new(), &dying), under_way);
        assert!(!interrupt::is_interrupted() && queue.whose().len() == 2, "they have just begun");
        killed.look_at_all(&under_way, &|_| false);
        assert!(!interrupt::is_interrupted() && queue.whose().len() == 2, "nobody is killed");
        let tripped = killed.look_at_all(&under_way, &dying);
        assert!(interrupt::is_interrupted() && tripped[&4]);
        assert_eq!(queue.whose(), HashMap::from([(6, 11)]));
        interrupt::begin(14, 10);
        killed.look_at_all(&under_way, &dying);
        assert!(!interrupt::is_interrupted(), "another request of the same thread");
        interrupt::end();
        killed.close();
    }
}
