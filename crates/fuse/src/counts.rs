//! Counts of the kernel's requests, by operation: how many, how long until the file system was done with them,
//! bytes, errors; and by program, as long as somebody looks. And which are under way, and what these wait for.
//!
//! Threads count in shards, so that they seldom write the same cache line. Nothing here waits for anything but
//! the map of programs, which is not used unless somebody looks.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use braid_device::tasks::{self, Awaited, Begun, Doing, KINDS, Task, Watched};
use braid_device::{TimeCounters, Times};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::abi::op;

/// Operations have numbers below this.
const OPCODES: usize = 64;
/// Most shards.
const SHARDS_MAX: usize = 16;
/// Programs are counted for so long after somebody has looked.
const LOOK: Duration = Duration::from_secs(15);
/// Most programs that are told apart.
const PROGRAMS_MAX: usize = 4096;

/// What one operation's requests came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// How long the file system took for each. What a program then waits for another program's file lock, and
    /// what goes on behind an answer, is not part of it.
    pub times: Times,
    /// Requests that are being answered.
    pub in_progress: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// Requests answered by EIO.
    pub errors_io: u64,
    /// Requests answered by ENOSPC, EDQUOT or EFBIG.
    pub errors_space: u64,
    /// Requests answered by another error: mostly what programs expect, as of a name that is not there.
    pub errors_other: u64,
}

/// What one program's requests came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    /// How many there were.
    pub requests: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// How long they took together, in nanoseconds.
    pub nanos: u64,
    /// How long of it they waited for what, in nanoseconds: by kind of [`Awaited`].
    pub waited: [u64; KINDS],
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestUnderWay {
    /// Which operation.
    pub operation: &'static str,
    /// Whose: a thread of a program; 0: the kernel's own.
    pub thread: u32,
    /// Which file, by the kernel's number: 1 is the root directory, others are inodes.
    pub node: u64,
    /// How long it has been under way.
    pub time: Duration,
    /// What it waits for, and how long already; `None`: for nothing that is known.
    pub awaited: Option<(Awaited, Duration)>,
    /// How long it has waited altogether, by kind of [`Awaited`].
    pub waited: [Duration; KINDS],
}

/// Requests that no thread answers at the moment.
pub(crate) trait Unanswered: Send + Sync {
    /// Those that wait for a lock of another program: thread, file, and for how long.
    fn for_locks(&self) -> Vec<(u32, u64, Duration)>;
    /// Those that wait until a thread is free: the programs' threads.
    fn for_threads(&self) -> Vec<u32>;
}

/// What requests without a thread wait for.
#[derive(Debug, Clone, Default)]
pub struct WaitingRequests {
    /// Those that wait for a lock of another program (fcntl or flock): thread, file by the kernel's number, and for how
    /// long.
    pub for_locks: Vec<(u32, u64, Duration)>,
    /// Those that wait until a thread is free, because all are busy, or all of their user's: the programs' threads.
    pub for_threads: Vec<u32>,
}

#[derive(Debug, Default)]
struct Operation {
    begun: AtomicU64,
    times: TimeCounters,
    bytes: AtomicU64,
    errors_io: AtomicU64,
    errors_space: AtomicU64,
    errors_other: AtomicU64,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    operations: [Operation; OPCODES],
}

/// The counts, kept while requests are answered.
pub struct RequestCounters {
    shards: Box<[Shard]>,
    epoch: Instant,
    /// Until when programs are counted, in milliseconds since `epoch`.
    programs_until: AtomicU64,
    programs: Mutex<HashMap<u32, ProgramCounts>>,
    /// The threads that answer.
    threads: Mutex<Vec<Watched>>,
    unanswered: OnceLock<Weak<dyn Unanswered>>,
}

impl std::fmt::Debug for RequestCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestCounters").finish_non_exhaustive()
    }
}

impl Default for RequestCounters {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = processors.next_power_of_two().min(SHARDS_MAX);
        let shard = || Shard { operations: std::array::from_fn(|_| Operation::default()) };
        Self {
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            epoch: Instant::now(),
            programs_until: AtomicU64::new(0),
            programs: Mutex::default(),
            threads: Mutex::default(),
            unanswered: OnceLock::new(),
        }
    }
}

/// The place of this thread among all, for as long as it lives.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PLACE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    PLACE.with(|place| *place)
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    all: &'a RequestCounters,
    operation: Option<&'a Operation>,
    opcode: u32,
    pid: u32,
    task: Begun,
}

impl RequestCounters {
    /// A request that came just now, from thread `pid`, about the file that the kernel calls `node`; this thread
    /// answers it.
    pub(crate) fn begin(&self, opcode: u32, pid: u32, node: u64) -> Counted<'_> {
        self.watch_this_thread();
        let shard = self.shards.get(place() % self.shards.len());
        let operation = shard.and_then(|shard| shard.operations.get(opcode as usize));
        if let Some(operation) = operation {
            operation.begun.fetch_add(1, Ordering::Relaxed);
        }
        let task = tasks::begin(Task { operation: opcode, thread: pid, file: node });
        Counted { all: self, operation, opcode, pid, task }
    }
    fn watch_this_thread(&self) {
        thread_local!(static WATCHED_BY: Cell<usize> = const { Cell::new(0) });
        let me = std::ptr::from_ref(self).addr();
        if WATCHED_BY.replace(me) != me {
            let mut threads = self.threads.lock();
            threads.retain(Watched::lives);
            threads.push(Watched::this_thread());
        }
    }
    /// From now on these are told of, too.
    pub(crate) fn tell_of(&self, unanswered: Weak<dyn Unanswered>) {
        // A session serves once.
        let _ = self.unanswered.set(unanswered);
    }
    /// The requests that threads answer just now, the oldest first.
    pub fn under_way(&self) -> Vec<RequestUnderWay> {
        let threads = self.threads.lock().clone();
        let mut all: Vec<RequestUnderWay> =
            threads.iter().filter_map(|thread| under_way(&thread.now()?)).collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.time));
        all
    }
    /// The requests that no thread answers just now.
    pub fn waiting(&self) -> WaitingRequests {
        let all = self.unanswered.get().and_then(Weak::upgrade);
        all.map_or_else(WaitingRequests::default, |all| WaitingRequests {
            for_locks: all.for_locks(),
            for_threads: all.for_threads(),
        })
    }
    /// What was counted so far, of each operation that there was.
    pub fn operations(&self) -> Vec<(&'static str, OperationCounts)> {
        let mut all: Vec<(&'static str, OperationCounts)> = Vec::new();
        for (opcode, name) in NAMES {
            let mut sum = OperationCounts::default();
            let mut begun = 0;
            for shard in &self.shards {
                let Some(operation) = shard.operations.get(opcode as usize) else { continue };
                // Ends first: what ends between the two looks counts as under way, not as less than nothing.
                operation.add_to(&mut sum);
                begun += operation.begun.load(Ordering::Relaxed);
            }
            sum.in_progress = begun.saturating_sub(sum.times.count());
            if begun == 0 {
                continue;
            }
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => known.add(&sum),
                None => all.push((name, sum)),
            }
        }
        all
    }
    /// What each program's requests came to, by the number of its process, since somebody looks: they are
    /// counted for some seconds after each look. Process 0 is the kernel itself.
    pub fn programs(&self) -> Vec<(u32, ProgramCounts)> {
        let until = self.epoch.elapsed() + LOOK;
        let before = self.programs_until.swap(millis(until), Ordering::Relaxed);
        let mut programs = self.programs.lock();
        if before < millis(self.epoch.elapsed()) {
            // Those of an earlier time are of nobody's interest.
            programs.clear();
        }
        programs.iter().map(|(pid, counts)| (*pid, *counts)).collect()
    }
    fn count_program(&self, pid: u32, one: &ProgramCounts) {
        let mut programs = self.programs.lock();
        if programs.len() >= PROGRAMS_MAX && !programs.contains_key(&pid) {
            return;
        }
        let all = programs.entry(pid).or_default();
        all.requests += one.requests;
        all.read += one.read;
        all.written += one.written;
        all.nanos += one.nanos;
        for (all, one) in all.waited.iter_mut().zip(one.waited) {
            *all += one;
        }
    }
}

fn under_way(doing: &Doing) -> Option<RequestUnderWay> {
    let (_, operation) = NAMES.iter().find(|(opcode, _)| *opcode == doing.task.operation)?;
    let awaited = doing.awaited.map(|(awaited, since)| (awaited, since.elapsed()));
    let mut waited = doing.waited;
    if let Some((awaited, time)) = awaited {
        waited[awaited.kind()] += time;
    }
    Some(RequestUnderWay {
        operation,
        thread: doing.task.thread,
        node: doing.task.file,
        time: doing.begun.elapsed(),
        awaited,
        waited,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counted<'_> {
    /// The file system is done with it: it has moved so many bytes, or failed.
    pub(crate) fn end(self, bytes: u64, error: Option<Errno>) {
        let Some(operation) = self.operation else { return };
        let took = self.task.time();
        operation.times.note(took);
        if bytes != 0 {
            operation.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let errors = match error {
            None => None,
            Some(Errno::IO) => Some(&operation.errors_io),
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Some(&operation.errors_space),
            Some(_) => Some(&operation.errors_other),
        };
        if let Some(errors) = errors {
            errors.fetch_add(1, Ordering::Relaxed);
        }
        let until = self.all.programs_until.load(Ordering::Relaxed);
        if until != 0 && millis(self.all.epoch.elapsed()) < until {
            let nanos = nanoseconds(took);
            let (read, written) = match self.opcode {
                op::READ => (bytes, 0),
                _ => (0, bytes),
            };
            let waited = self.task.waited().map(nanoseconds);
            let one = ProgramCounts { requests: 1, read, written, nanos, waited };
            self.all.count_program(self.pid, &one);
        }
    }
}

impl Operation {
    fn add_to(&self, sum: &mut OperationCounts) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        sum.add(&OperationCounts {
            times: self.times.now(),
            in_progress: 0,
            bytes: of(&self.bytes),
            errors_io: of(&self.errors_io),
            errors_space: of(&self.errors_space),
            errors_other: of(&self.errors_other),
        });
    }
}

impl OperationCounts {
    fn add(&mut self, other: &Self) {
        self.times = self.times.each(&other.times, u64::saturating_add);
        self.in_progress += other.in_progress;
        self.bytes += other.bytes;
        self.errors_io += other.errors_io;
        self.errors_space += other.errors_space;
        self.errors_other += other.errors_other;
    }
}

/// What is counted, by its number, under which name.
const NAMES: [(u32, &str); 42] = [
    (op::READ, "read"),
    (op::WRITE, "write"),
    (op::LOOKUP, "lookup"),
    (op::GETATTR, "getattr"),
    (op::STATX, "getattr"),
    (op::SETATTR, "setattr"),
    (op::OPEN, "open"),
    (op::CREATE, "create"),
    (op::TMPFILE, "create"),
    (op::RELEASE, "release"),
    (op::FLUSH, "flush"),
    (op::FSYNC, "fsync"),
    (op::FSYNCDIR, "fsync"),
    (op::SYNCFS, "syncfs"),
    (op::OPENDIR, "opendir"),
    (op::READDIR, "readdir"),
    (op::READDIRPLUS, "readdir"),
    (op::RELEASEDIR, "releasedir"),
    (op::MKDIR, "mkdir"),
    (op::RMDIR, "rmdir"),
    (op::MKNOD, "mknod"),
    (op::LINK, "link"),
    (op::UNLINK, "unlink"),
    (op::RENAME, "rename"),
    (op::RENAME2, "rename"),
    (op::SYMLINK, "symlink"),
    (op::READLINK, "readlink"),
    (op::FALLOCATE, "fallocate"),
    (op::LSEEK, "lseek"),
    (op::COPY_FILE_RANGE, "copy_file_range"),
    (op::COPY_FILE_RANGE_64, "copy_file_range"),
    (op::GETXATTR, "getxattr"),
    (op::SETXATTR, "setxattr"),
    (op::LISTXATTR, "listxattr"),
    (op::REMOVEXATTR, "removexattr"),
    (op::GETLK, "getlk"),
    (op::SETLK, "setlk"),
    (op::SETLKW, "setlk"),
    (op::STATFS, "statfs"),
    (op::IOCTL, "ioctl"),
    (op::FORGET, "forget"),
    (op::BATCH_FORGET, "forget"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &RequestCounters, name: &str) -> OperationCounts {
        all.operations()
            .into_iter()
            .find(|(n, _)| *n == name)
            .map_or_else(Default::default, |o| o.1)
    }

    #[test]
    fn requests_are_counted_by_operation_whatever_thread_answers_them() {
        let all = RequestCounters::default();
        assert!(all.operations().is_empty());
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| all.begin(op::READ, 7, 1).end(4096, None));
            }
        });
        let under_way = all.begin(op::READ, 7, 1);
        let read = of(&all, "read");
        assert_eq!((read.times.count(), read.bytes, read.in_progress), (20, 20 << 12, 1));
        under_way.end(0, Some(Errno::IO));
        for errno in [Errno::NOSPC, Errno::NOENT, Errno::EXIST] {
            all.begin(op::RENAME2, 7, 1).end(0, Some(errno));
        }
        all.begin(op::RENAME, 7, 1).end(0, None);
        let (read, rename) = (of(&all, "read"), of(&all, "rename"));
        assert_eq!((read.in_progress, read.errors_io, read.errors_other), (0, 1, 0));
        assert_eq!((rename.times.count(), rename.errors_space, rename.errors_other), (4, 1, 2));
        // Whatever number the kernel may send.
        all.begin(4096, 7, 1).end(1, None);
        all.begin(u32::MAX, 7, 1).end(1, None);
        assert_eq!(all.operations().len(), 2);
    }

    #[test]
    fn programs_are_counted_once_somebody_looks() {
        let all = RequestCounters::default();
        all.begin(op::READ, 7, 1).end(4096, None);
        assert_eq!(all.programs(), []);
        all.begin(op::READ, 7, 1).end(4096, None);
        all.begin(op::WRITE, 7, 1).end(512, None);
        all.begin(op::WRITE, 8, 1).end(1, None);
        let mut programs = all.programs();
        programs.sort_by_key(|p| p.0);
        let seen: Vec<_> =
            programs.iter().map(|(p, c)| (*p, c.requests, c.read, c.written)).collect();
        assert_eq!(seen, [(7, 2, 4096, 512), (8, 1, 0, 1)]);
        // Nobody has looked for long.
        all.programs_until.store(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(3));
        all.begin(op::WRITE, 8, 1).end(1, None);
        assert_eq!(all.programs(), []);
    }

    #[test]
    fn what_is_under_way_is_told_with_what_it_waits_for() {
        let all = RequestCounters::default();
        all.programs();
        let request = all.begin(op::FSYNC, 7, 99);
        {
            let _waits = tasks::wait(Awaited::Commit);
            std::thread::sleep(Duration::from_millis(3));
            // Asked by another thread, as always.
            std::thread::scope(|scope| {
                let look = || {
                    let [one] = all.under_way()[..] else { panic!("one request") };
                    assert_eq!((one.operation, one.thread, one.node), ("fsync", 7, 99));
                    let (awaited, time) = one.awaited.unwrap();
                    assert!(awaited == Awaited::Commit && time >= Duration::from_millis(3));
                    assert!(one.waited[awaited.kind()] >= time && one.time >= time);
                };
                scope.spawn(look).join().unwrap();
            });
        }
        request.end(0, None);
        assert!(all.under_way().is_empty() && all.waiting().for_threads.is_empty());
        let (_, program) = all.programs()[0];
        assert!(program.waited[Awaited::Commit.kind()] >= 3_000_000, "{program:?}");
        assert_eq!(program.waited.iter().filter(|waited| **waited > 0).count(), 1);
        // Threads that have ended are looked at no more.
        for _ in 0..50 {
            std::thread::scope(|s| drop(s.spawn(|| all.begin(op::READ, 7, 1).end(1, None))));
        }
        assert!(all.threads.lock().len() < 5);
    }

    #[test]
    fn every_operation_that_is_answered_has_a_name() {
        let handled = include_str!("handlers/mod.rs");
        let arms = handled.lines().filter_map(|line| line.trim().strip_prefix("op::"));
        let arms: Vec<&str> =
            arms.filter_map(|arm| arm.split_once(" => ")).map(|(op, _)| op).collect();
        let named = include_str!("counts.rs");
        // Not asked for by programs.
        let own = ["DESTROY", "INTERRUPT", "NOTIFY_REPLY"];
        let ops =
            arms.iter().flat_map(|arm| arm.split(" | ")).map(|op| op.trim_start_matches("op::"));
        let ops: Vec<&str> = ops.filter(|op| !own.contains(op)).collect();
        assert!(ops.len() >= 40, "{ops:?}");
        for op in ops {
            assert!(named.contains(&format!("(op::{op}, \"")), "{op}");
        }
    }
}
