//! A sliding window of large requests on a pool, for one thread: streaming and benchmarks.
//!
//! A pool without redundancy is served by one ring, with no thread and no allocation per request.
//! A write to a mirror or parity group is more than one step, and must be seen through when a
//! member fails: there each request of the window runs on a thread of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use braid_device::{AlignedBuf, IoQueue, OwnedOp, Part};
use braid_format::{ByteOffset, Bytes};
use parking_lot::{Condvar, Mutex};

use crate::error::PoolError;
use crate::layout::map::Place;
use crate::pool::Pool;

/// What to do with a buffer that the queue owns until it is done.
#[derive(Debug)]
pub enum PoolOp {
    /// Fill it.
    Read(AlignedBuf),
    /// Write it.
    Write(AlignedBuf),
}
impl PoolOp {
    fn len(&self) -> Bytes {
        match self {
            Self::Read(buf) | Self::Write(buf) => Bytes::from(buf.len()),
        }
    }
}

/// A request that has ended: its token, its buffer, and how it ended.
pub type Completion = (u64, AlignedBuf, Result<(), PoolError>);

/// Requests in flight on a pool, completed in any order. A request over several members is one
/// device request per piece, all in flight at once; pieces of a request that are adjacent on a member
/// go to it together, as far as it takes them at once.
#[derive(Debug)]
pub struct PoolQueue {
    pool: Pool,
    depth: usize,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Ring {
        queue: Box<IoQueue>,
        /// Kept from request to request, so that none allocates.
        parts: Vec<Part>,
    },
    Workers(Workers),
}

impl PoolQueue {
    /// A queue for at most `depth` requests at a time.
    ///
    /// # Errors
    /// [`PoolError::Queue`] when the kernel refuses it.
    pub fn new(pool: Pool, depth: usize) -> Result<Self, PoolError> {
        let engine = if pool.0.redundancy.present {
            Engine::Workers(Workers::new(&pool, depth)?)
        } else {
            let queue =
                IoQueue::new(depth).map_err(|e| PoolError::Queue { source: Box::new(e) })?;
            Engine::Ring { queue: Box::new(queue), parts: Vec::new() }
        };
        Ok(Self { pool, depth, engine })
    }

    /// Requests submitted and not yet given back.
    pub fn in_flight(&self) -> usize {
        match &self.engine {
            Engine::Ring { queue, .. } => queue.in_flight(),
            Engine::Workers(workers) => workers.in_flight,
        }
    }

    /// Whether the window is full: complete one before submitting another.
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.depth
    }

    /// Submits a request. An error of the device comes with its completion.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`], [`PoolError::Queue`].
    ///
    /// # Panics
    /// When the window is full.
    pub fn submit(&mut self, token: u64, at: ByteOffset, op: PoolOp) -> Result<(), PoolError> {
        assert!(!self.is_full(), "the window is full: complete a request first");
        let inner = &self.pool.0;
        let topology = inner.epochs.read();
        inner.check(&topology, at, op.len())?;
        let (queue, parts) = match &mut self.engine {
            Engine::Ring { queue, parts } => (queue, parts),
            Engine::Workers(workers) => {
                workers.submit(token, at, op);
                return Ok(());
            }
        };
        let member = |place| match place {
            Place::Member(m) => topology.device(m).clone(),
            Place::Group(_) => unreachable!("a pool without redundancy has no groups"),
        };
        parts.extend(topology.map.pieces(at, op.len()).map(|p| Part {
            device: member(p.place),
            at: p.at,
            len: p.len,
        }));
        let op = match op {
            PoolOp::Read(buf) => OwnedOp::Read(buf),
            PoolOp::Write(buf) => OwnedOp::Write(buf),
        };
        let started = queue.submit_parts(token, op, parts);
        parts.clear();
        if started.is_ok() {
            inner.io.queued.fetch_add(1, Ordering::AcqRel);
        }
        started.map_err(|e| PoolError::Queue { source: Box::new(e) })
    }

    /// Waits for any request; gives back its token, its buffer and how it ended.
    ///
    /// # Panics
    /// When nothing is in flight.
    pub fn complete(&mut self) -> Completion {
        assert!(self.in_flight() != 0, "nothing is in flight");
        match &mut self.engine {
            Engine::Ring { queue, .. } => {
                let (token, buf, result) = queue.complete();
                self.pool.0.io.queued.fetch_sub(1, Ordering::AcqRel);
                (token, buf, result.map_err(PoolError::from))
            }
            Engine::Workers(workers) => workers.complete(),
        }
    }

    /// The next of those that are known to be done, as [`PoolQueue::complete`], which alone looks for
    /// more.
    pub fn completed(&mut self) -> Option<Completion> {
        match &mut self.engine {
            Engine::Ring { queue, .. } => {
                let (token, buf, result) = queue.completed()?;
                self.pool.0.io.queued.fetch_sub(1, Ordering::AcqRel);
                Some((token, buf, result.map_err(PoolError::from)))
            }
            Engine::Workers(workers) => workers.completed(),
        }
    }
}

impl Drop for PoolQueue {
    fn drop(&mut self) {
        while matches!(self.engine, Engine::Ring { .. }) && self.in_flight() > 0 {
            drop(self.complete());
        }
    }
}

/// Threads that run one request each.
#[derive(Debug)]
struct Workers {
    jobs: Arc<JobQueue>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct JobQueue {
    state: Mutex<Jobs>,
    submitted: Condvar,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    open: VecDeque<(u64, ByteOffset, PoolOp)>,
    done: VecDeque<Completion>,
    closed: bool,
}

impl Workers {
    /// Fewer threads than `depth` do the same work, more slowly.
    fn new(pool: &Pool, depth: usize) -> Result<Self, PoolError> {
        let jobs = Arc::new(JobQueue::default());
        let mut threads = Vec::with_capacity(depth);
        for _ in 0..depth {
            let (jobs, pool) = (jobs.clone(), pool.clone());
            let thread = std::thread::Builder::new().name("request".into());
            match thread.spawn(move || jobs.work(&pool)) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => {
                    return Err(PoolError::NoThread { source: Arc::new(error) });
                }
                Err(error) => {
                    tracing::warn!(%error, started = threads.len(), "no more threads for requests");
                    break;
                }
            }
        }
        Ok(Self { jobs, threads, in_flight: 0 })
    }

    fn submit(&mut self, token: u64, at: ByteOffset, op: PoolOp) {
        self.in_flight += 1;
        self.jobs.state.lock().open.push_back((token, at, op));
        self.jobs.submitted.notify_one();
    }

    fn completed(&mut self) -> Option<Completion> {
        let done = self.jobs.state.lock().done.pop_front()?;
        self.in_flight -= 1;
        Some(done)
    }

    fn complete(&mut self) -> Completion {
        let mut state = self.jobs.state.lock();
        loop {
            if let Some(done) = state.done.pop_front() {
                self.in_flight -= 1;
                return done;
            }
            self.jobs.finished.wait(&mut state);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs.state.lock().closed = true;
        self.jobs.submitted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has been reported there.
            let _ = thread.join();
        }
    }
}

impl JobQueue {
    fn work(&self, pool: &Pool) {
        loop {
            let (token, at, op) = {
                let mut state = self.state.lock();
                loop {
                    if let Some(order) = state.open.pop_front() {
                        break order;
                    }
                    if state.closed {
                        return;
                    }
                    self.submitted.wait(&mut state);
                }
            };
            let done = match op {
                PoolOp::Read(mut buf) => {
                    let result = pool.read(at, &mut buf);
                    (token, buf, result)
                }
                PoolOp::Write(buf) => {
                    let result = pool.write(at, &buf);
                    (token, buf, result)
                }
            };
            self.state.lock().done.push_back(done);
            self.finished.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_device::{Device, MemoryDevice};

    use super::*;
    use crate::assembly::create::CreateOptions;

    #[test]
    fn what_is_under_way_is_given_back_whole_and_once() {
        let disk = |n| MemoryDevice::new(&format!("disk{n}"), Bytes(64 << 20), Bytes(512));
        let devices = (0..2).map(|n| disk(n) as Arc<dyn Device>).collect();
        let pool = Pool::create(devices, &CreateOptions::new("test")).expect("a pool");
        let mut queue = PoolQueue::new(pool.clone(), 8).expect("a window");
        for n in 0..8_u8 {
            let mut buf = AlignedBuf::zeroed(1 << 20);
            buf.fill(n + 1);
            queue
                .submit(n.into(), ByteOffset(u64::from(n) << 20), PoolOp::Write(buf))
                .expect("room");
        }
        assert!(queue.is_full());
        let mut seen = vec![queue.complete().0];
        while queue.in_flight() > 0 {
            let next = queue.completed().unwrap_or_else(|| queue.complete());
            next.2.expect("written");
            seen.push(next.0);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        assert!(queue.completed().is_none());
        drop(queue);
        let mut buf = AlignedBuf::zeroed(8 << 20);
        pool.read(ByteOffset(0), &mut buf).expect("read");
        assert!(buf.chunks(1 << 20).zip(1..).all(|(part, n)| part.iter().all(|b| *b == n)));
    }
}
