//! A sliding window of large requests on a pool, for one thread: streaming and benchmarks.

use braid_device::{AlignedBuf, IoQueue, OwnedOp, Part};
use braid_format::{ByteOffset, Bytes};

use crate::Pool;
use crate::error::PoolError;

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

/// Requests in flight on a pool, completed in any order. A request over several members is one
/// device request per piece, all in flight at once.
#[derive(Debug)]
pub struct PoolQueue {
    pool: Pool,
    depth: usize,
    queue: IoQueue,
    /// Kept from request to request, so that none allocates.
    parts: Vec<Part>,
}

impl PoolQueue {
    /// A queue for at most `depth` requests at a time.
    ///
    /// # Errors
    /// [`PoolError::Queue`] when the kernel refuses it.
    pub fn new(pool: Pool, depth: usize) -> Result<Self, PoolError> {
        let queue = IoQueue::new(depth).map_err(|e| PoolError::Queue { source: Box::new(e) })?;
        Ok(Self { pool, depth, queue, parts: Vec::new() })
    }

    /// Requests submitted and not yet given back.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
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
        inner.check(at, op.len())?;
        self.parts.extend(inner.map.pieces(at, op.len()).map(|p| Part {
            device: inner.device(p.member).clone(),
            at: p.at,
            len: p.len,
        }));
        let op = match op {
            PoolOp::Read(buf) => OwnedOp::Read(buf),
            PoolOp::Write(buf) => OwnedOp::Write(buf),
        };
        let started = self.queue.submit_parts(token, op, &self.parts);
        self.parts.clear();
        started.map_err(|e| PoolError::Queue { source: Box::new(e) })
    }

    /// Waits for any request; gives back its token, its buffer and how it ended.
    ///
    /// # Panics
    /// When nothing is in flight.
    pub fn complete(&mut self) -> (u64, AlignedBuf, Result<(), PoolError>) {
        assert!(self.in_flight() != 0, "nothing is in flight");
        let (token, buf, result) = self.queue.complete();
        (token, buf, result.map_err(PoolError::from))
    }
}
