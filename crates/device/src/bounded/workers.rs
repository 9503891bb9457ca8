//! The threads that have a device do requests, and may hang in it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::request::{Job, Ticket};
use crate::{AlignedBuf, ByteLockGuard, Device};

/// Most threads of a device: so many requests it has at a time.
const WORKERS_MAX: usize = 128;
/// A thread that has nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);
/// Memory for a worker's stack.
const STACK: usize = 256 << 10;
/// Bytes of buffers that stay for the next request.
const KEPT_MAX: usize = 4 << 20;
/// Smaller buffers are made as fast as they are found.
const KEPT_MIN: usize = 128 << 10;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Ticket>>,
    workers: usize,
    idle: usize,
    closed: bool,
}

/// What was given up and is still under way.
#[derive(Debug, Default)]
struct Late {
    requests: usize,
    /// Liveness bytes that were to be let go: not before the last of those requests has ended.
    bytes: Vec<ByteLockGuard>,
}

/// A device, and its threads: they share this.
#[derive(Debug)]
pub struct Workers {
    pub device: Arc<dyn Device>,
    queue: Mutex<Queue>,
    work: Condvar,
    late: Mutex<Late>,
    kept: Mutex<Vec<AlignedBuf>>,
    /// How long a request may take, in milliseconds.
    bound: AtomicU64,
    given_up: Mutex<Option<Instant>>,
}

impl Workers {
    pub fn new(device: Arc<dyn Device>, bound: Duration) -> Self {
        let workers = Self {
            device,
            queue: Mutex::default(),
            work: Condvar::new(),
            late: Mutex::default(),
            kept: Mutex::default(),
            bound: AtomicU64::new(0),
            given_up: Mutex::default(),
        };
        workers.set_bound(bound);
        workers
    }
    pub fn set_bound(&self, bound: Duration) {
        self.bound.store(u64::try_from(bound.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    pub fn bound(&self) -> Duration {
        Duration::from_millis(self.bound.load(Ordering::Relaxed))
    }
    /// Since when nothing is asked of the device any more.
    pub fn given_up(&self) -> Option<Instant> {
        *self.given_up.lock()
    }
    /// From now on nothing is asked of the device; whether that is new.
    pub fn give_up(&self) -> bool {
        let mut since = self.given_up.lock();
        let new = since.is_none();
        since.get_or_insert_with(Instant::now);
        new
    }
    /// Memory of `len` bytes at least, of whatever contents.
    pub fn memory(&self, len: usize) -> AlignedBuf {
        if len < KEPT_MIN {
            return AlignedBuf::zeroed(len);
        }
        let mut kept = self.kept.lock();
        let fits = kept.iter().position(|buf| buf.len() >= len);
        fits.map_or_else(|| AlignedBuf::zeroed(len), |at| kept.swap_remove(at))
    }
    pub fn keep(&self, memory: AlignedBuf) {
        let mut kept = self.kept.lock();
        let bytes: usize = kept.iter().map(|buf| buf.len()).sum();
        if memory.len() >= KEPT_MIN && bytes + memory.len() <= KEPT_MAX {
            kept.push(memory);
        }
    }
    /// Has a thread do `job`.
    pub fn begin(self: &Arc<Self>, job: Job) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::new(job));
        let mut queue = self.queue.lock();
        queue.waiting.push_back(ticket.clone());
        if queue.waiting.len() > queue.idle && queue.workers < WORKERS_MAX {
            let own = self.clone();
            let worker = std::thread::Builder::new().name("disk".into()).stack_size(STACK);
            // Without one more thread the others have to do it.
            if worker.spawn(move || own.work()).is_ok() {
                queue.workers += 1;
            }
        }
        drop(queue);
        self.work.notify_one();
        ticket
    }
    fn work(&self) {
        while let Some(ticket) = self.next() {
            if ticket.run(&*self.device) {
                self.one_less_late();
            }
        }
    }
    fn next(&self) -> Option<Arc<Ticket>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(ticket) = queue.waiting.pop_front() {
                return Some(ticket);
            }
            queue.idle += 1;
            let timed_out = !queue.closed && self.work.wait_for(&mut queue, IDLE).timed_out();
            queue.idle -= 1;
            if queue.waiting.is_empty() && (timed_out || queue.closed) {
                queue.workers -= 1;
                return None;
            }
        }
    }
    /// The threads end.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.work.notify_all();
    }
    /// A request that is under way was given up.
    pub fn one_more_late(&self) {
        self.late.lock().requests += 1;
    }
    fn one_less_late(&self) {
        let mut late = self.late.lock();
        late.requests = late.requests.saturating_sub(1);
        if late.requests == 0 {
            late.bytes.clear();
        }
    }
    /// Whether a request that was given up is still under way.
    pub fn has_late(&self) -> bool {
        self.late.lock().requests > 0
    }
    /// Lets a liveness byte go, or keeps it until nothing can land any more.
    pub fn let_go(&self, byte: ByteLockGuard) {
        let mut late = self.late.lock();
        if late.requests == 0 {
            drop(late);
            return drop(byte);
        }
        late.bytes.push(byte);
    }
}
