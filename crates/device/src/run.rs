//! Many requests at once.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

use crate::{AlignedBuf, Device, DeviceError};

/// What a request does.
#[derive(Debug)]
pub enum Op<'a> {
    /// Read into.
    Read(&'a mut [u8]),
    /// Write from.
    Write(&'a [u8]),
    /// Make durable.
    Flush,
}

/// A request and, after [`run`], its result.
#[derive(Debug)]
pub struct Request<'a> {
    /// Where to.
    pub device: &'a dyn Device,
    /// Where on it.
    pub at: ByteOffset,
    /// What.
    pub op: Op<'a>,
    /// How it ended.
    pub result: Result<(), DeviceError>,
}

/// Issues all requests at once and waits for all.
pub fn run(requests: &mut [Request<'_>]) {
    for r in requests {
        r.result = match &mut r.op {
            Op::Read(buf) => r.device.read(r.at, buf),
            Op::Write(buf) => r.device.write(r.at, buf),
            Op::Flush => r.device.flush(),
        };
    }
}

/// What an owned request does.
#[derive(Debug)]
pub enum OwnedOp {
    /// Read into.
    Read(AlignedBuf),
    /// Write from.
    Write(AlignedBuf),
}

/// Where a part of a request's buffer goes.
#[derive(Debug, Clone)]
pub struct Part {
    /// The device.
    pub device: Arc<dyn Device>,
    /// First byte on it.
    pub at: ByteOffset,
    /// Bytes, whole sectors.
    pub len: Bytes,
}

/// A sliding window of requests for one thread.
#[derive(Debug)]
pub struct IoQueue {
    done: VecDeque<(u64, AlignedBuf, Result<(), DeviceError>)>,
}
impl IoQueue {
    /// At most `depth` in flight.
    ///
    /// # Errors
    /// No ring could be made and no fallback either.
    pub fn new(depth: usize) -> Result<Self, DeviceError> {
        Ok(Self { done: VecDeque::with_capacity(depth) })
    }
    /// Starts a request.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn submit(
        &mut self,
        token: u64,
        device: Arc<dyn Device>,
        at: ByteOffset,
        op: OwnedOp,
    ) -> Result<(), DeviceError> {
        let len = match &op {
            OwnedOp::Read(buf) | OwnedOp::Write(buf) => buf.len(),
        };
        self.submit_parts(token, op, &[Part { device, at, len: Bytes::from(len) }])
    }
    /// Starts a request whose buffer goes to several places, part after part: one completion when
    /// all parts are done, with the first error. All parts are in flight at once; they count as
    /// one request of the window's depth. The parts' lengths add up to the buffer's.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn submit_parts(
        &mut self,
        token: u64,
        op: OwnedOp,
        parts: &[Part],
    ) -> Result<(), DeviceError> {
        let mut result = Ok(());
        let buf = match op {
            OwnedOp::Read(mut buf) => {
                let mut rest: &mut [u8] = &mut buf;
                for p in parts {
                    let (now, later) = rest.split_at_mut(p.len.to_usize());
                    result = result.and(p.device.read(p.at, now));
                    rest = later;
                }
                buf
            }
            OwnedOp::Write(buf) => {
                let mut rest: &[u8] = &buf;
                for p in parts {
                    let (now, later) = rest.split_at(p.len.to_usize());
                    result = result.and(p.device.write(p.at, now));
                    rest = later;
                }
                buf
            }
        };
        self.done.push_back((token, buf, result));
        Ok(())
    }
    /// Requests not yet taken out.
    pub fn in_flight(&self) -> usize {
        self.done.len()
    }
    /// Waits for one.
    ///
    /// # Panics
    /// If none is in flight.
    pub fn complete(&mut self) -> (u64, AlignedBuf, Result<(), DeviceError>) {
        self.done.pop_front().expect("a request in flight")
    }
}
