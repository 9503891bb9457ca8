//! The layers that serve requests, and the queue of requests in flight on each.

use std::fmt::Debug;
use std::sync::Arc;

use braid_format::ByteOffset;
use braid_pool::device::{AlignedBuf, Device, DeviceError, IoQueue, OwnedOp};
use braid_pool::{Pool, PoolOp, PoolQueue};

use super::direction::Direction;

#[derive(Debug, Clone)]
pub(crate) enum Layer {
    /// A file, a block device, a unit of a target.
    Device(Arc<dyn Device>),
    /// A pool: windows of its own, whatever the depth.
    Pool(Pool),
    /// Plain calls, one at a time.
    Calls(Arc<dyn Calls>),
}

pub(crate) trait Calls: Debug + Send + Sync {
    /// Fills `buf`.
    ///
    /// # Errors
    /// In words; fewer bytes are one.
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<(), String>;
    /// Writes all of `buf`.
    ///
    /// # Errors
    /// In words; fewer bytes are one.
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), String>;
}

impl Layer {
    /// The file or device, if it is one.
    pub fn device(&self) -> Option<&dyn Device> {
        if let Self::Device(device) = self { Some(&**device) } else { None }
    }
    pub fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<(), String> {
        match self {
            Self::Device(device) => device.read(ByteOffset(at), buf).map_err(|e| said(&e)),
            Self::Pool(pool) => pool.read(ByteOffset(at), buf).map_err(|e| e.to_string()),
            Self::Calls(calls) => calls.read(at, buf),
        }
    }
    pub fn write(&self, at: u64, buf: &[u8]) -> Result<(), String> {
        match self {
            Self::Device(device) => device.write(ByteOffset(at), buf).map_err(|e| said(&e)),
            Self::Pool(pool) => pool.write(ByteOffset(at), buf).map_err(|e| e.to_string()),
            Self::Calls(calls) => calls.write(at, buf),
        }
    }
    /// Makes what was written last; a layer without devices of its own does nothing.
    pub fn flush(&self) -> Result<(), String> {
        match self {
            Self::Device(device) => device.flush().map_err(|e| e.to_string()),
            Self::Pool(pool) => pool.flush().map_err(|e| e.to_string()),
            Self::Calls(_) => Ok(()),
        }
    }
    /// A window of so many requests; `None`: one at a time, by calls.
    pub(super) fn window(&self, depth: usize) -> anyhow::Result<Option<Window>> {
        Ok(match self {
            Self::Device(device) if depth > 1 => {
                let queue = Box::new(IoQueue::new(depth)?);
                Some(Window::Device { queue, device: device.clone() })
            }
            Self::Pool(pool) => Some(Window::Pool(PoolQueue::new(pool.clone(), depth.max(1))?)),
            _ => None,
        })
    }
}

pub(super) enum Window {
    Device { queue: Box<IoQueue>, device: Arc<dyn Device> },
    Pool(PoolQueue),
}

/// A request that is over: its name, its buffer, how it ended.
pub(super) type Over = (u64, AlignedBuf, Result<(), String>);

impl Window {
    /// Begins a request, at once: while the next is made, the device has this one. (Requests handed
    /// over together after each wait cost a little less processor time and a quarter of the rate
    /// of small ones: the device waits for the first, then the program for the last.)
    ///
    /// # Errors
    /// In words; the buffer is gone.
    pub fn push(
        &mut self,
        token: u64,
        at: u64,
        direction: Direction,
        buf: AlignedBuf,
    ) -> Result<(), String> {
        let at = ByteOffset(at);
        let reads = direction == Direction::Read;
        match self {
            Self::Device { queue, device } => {
                let op = if reads { OwnedOp::Read(buf) } else { OwnedOp::Write(buf) };
                queue.submit(token, device.clone(), at, op).map_err(|e| said(&e))
            }
            Self::Pool(queue) => {
                let op = if reads { PoolOp::Read(buf) } else { PoolOp::Write(buf) };
                queue.submit(token, at, op).map_err(|e| e.to_string())
            }
        }
    }
    /// Requests that are not yet over.
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Device { queue, .. } => queue.in_flight(),
            Self::Pool(queue) => queue.in_flight(),
        }
    }
    pub fn complete(&mut self) -> Over {
        match self {
            Self::Device { queue, .. } => in_words(queue.complete()),
            Self::Pool(queue) => of_pool(queue.complete()),
        }
    }
    /// The next one that is known to be over.
    pub fn completed(&mut self) -> Option<Over> {
        match self {
            Self::Device { queue, .. } => queue.completed().map(in_words),
            Self::Pool(queue) => queue.completed().map(of_pool),
        }
    }
}

fn in_words((token, buf, result): (u64, AlignedBuf, Result<(), DeviceError>)) -> Over {
    (token, buf, result.map_err(|e| said(&e)))
}

fn of_pool((token, buf, result): braid_pool::Completion) -> Over {
    (token, buf, result.map_err(|e| e.to_string()))
}

/// An error with what it means.
fn said(e: &DeviceError) -> String {
    let hint = match e {
        DeviceError::Io { source, .. } => match (source.raw_os_error(), source.kind()) {
            (Some(libc::ENOSPC), _) => " (full; what was written before stands)",
            (Some(libc::EDQUOT), _) => " (the quota is used up; what was written before stands)",
            (Some(libc::EFBIG), _) => " (longer than files may be there)",
            (_, std::io::ErrorKind::UnexpectedEof) => " (the file ends before)",
            _ => "",
        },
        _ => "",
    };
    format!("{e}{hint}")
}
