//! A sliding window of large requests on a pool, for one thread: streaming and benchmarks.

use std::collections::VecDeque;

use braid_device::{AlignedBuf, IoQueue, OwnedOp};
use braid_format::{ByteOffset, Bytes};

use crate::error::PoolError;
use crate::{Pool, PoolRequest};

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

/// Requests in flight on a pool, completed in any order.
#[derive(Debug)]
pub struct PoolQueue {
    pool: Pool,
    depth: usize,
    /// Requests that are one run on one member.
    whole: IoQueue,
    /// Requests over several members, not yet issued.
    split: Vec<(u64, ByteOffset, PoolOp)>,
    done: VecDeque<(u64, AlignedBuf, Result<(), PoolError>)>,
}

impl PoolQueue {
    /// A queue for at most `depth` requests at a time.
    ///
    /// # Errors
    /// [`PoolError::Queue`] when the kernel refuses it.
    pub fn new(pool: Pool, depth: usize) -> Result<Self, PoolError> {
        let whole = IoQueue::new(depth).map_err(|e| PoolError::Queue { source: Box::new(e) })?;
        Ok(Self { pool, depth, whole, split: Vec::with_capacity(depth), done: VecDeque::new() })
    }

    /// Requests submitted and not yet given back.
    pub fn in_flight(&self) -> usize {
        self.whole.in_flight() + self.split.len() + self.done.len()
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
        let first = inner.map.pieces(at, op.len()).next();
        let Some(p) = first.filter(|p| p.len == op.len()) else {
            self.split.push((token, at, op));
            return Ok(());
        };
        let op = match op {
            PoolOp::Read(buf) => OwnedOp::Read(buf),
            PoolOp::Write(buf) => OwnedOp::Write(buf),
        };
        self.whole
            .submit(token, inner.device(p.member).clone(), p.at, op)
            .map_err(|e| PoolError::Queue { source: Box::new(e) })
    }

    /// Waits for any request; gives back its token, its buffer and how it ended.
    ///
    /// # Panics
    /// When nothing is in flight.
    pub fn complete(&mut self) -> (u64, AlignedBuf, Result<(), PoolError>) {
        assert!(self.in_flight() != 0, "nothing is in flight");
        if self.done.is_empty() && !self.split.is_empty() {
            self.run_split();
        }
        self.done.pop_front().unwrap_or_else(|| {
            let (token, buf, result) = self.whole.complete();
            (token, buf, result.map_err(|e| PoolError::Device { source: Box::new(e) }))
        })
    }

    /// Issues all requests over several members at once.
    fn run_split(&mut self) {
        let mut split = std::mem::take(&mut self.split);
        let mut requests: Vec<PoolRequest<'_>> = split
            .iter_mut()
            .map(|(_, at, op)| match op {
                PoolOp::Read(buf) => PoolRequest::read(*at, buf),
                PoolOp::Write(buf) => PoolRequest::write(*at, buf),
            })
            .collect();
        self.pool.run(&mut requests);
        let results: Vec<_> = requests.into_iter().map(|r| r.result).collect();
        for ((token, _, op), result) in split.drain(..).zip(results) {
            let (PoolOp::Read(buf) | PoolOp::Write(buf)) = op;
            self.done.push_back((token, buf, result));
        }
        self.split = split;
    }
}
