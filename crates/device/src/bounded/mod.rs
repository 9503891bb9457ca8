//! A disk of the kernel, or a file, that is given up when it answers nothing.
//!
//! Nothing ends a request that the kernel has taken. So a thread of its own waits for each request (a *worker*),
//! with memory that belongs to the request: the kernel may write into it at any later time. Who asked waits for
//! the worker, for a bounded time. If a request takes longer, the device is *given up* for good: who waits gets
//! [`DeviceError::Silent`], and so does whoever asks anything later. A pool then goes on without that member, or
//! its node withdraws.
//!
//! What was given up may still be done, at any later time: its outcome is unknown. So
//! * nothing is asked of the device any more, so that nothing new meets it there;
//! * the node's liveness bytes on the device stay held until the last such request has ended, even if the node
//!   lets them go; if the process ends, the kernel does the same. So nobody of this host recovers the node
//!   before. Nodes of other hosts fence it, as always.
//!
//! Time in which this process stood still does not count.

mod request;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::ByteOffset;

use crate::abilities::HeldByte;
use crate::error::Silent;
use crate::{
    Abilities, AnswerBound, ByteLockGuard, Command, Completion, Device, DeviceError, DeviceInfo,
    LivenessLocks, Op, Route, Threaded, UnderWay,
};
use request::{GivenUp, Job, Ticket, Waited, What};
use workers::Workers;

/// A disk has so much time at least: its own way to put up with an error may take that long.
const LEAST: Duration = Duration::from_secs(10);
/// What a sound disk may take long over has so many times the bound.
const SLOW_FACTOR: u32 = 5;
/// A stretch of waiting: so long it takes at most until who waits sees that the device was given up.
const STRETCH: Duration = Duration::from_millis(250);

/// The bound of devices that are opened from now on, in milliseconds; 0: none.
static BOUND_MS: AtomicU64 = AtomicU64::new(0);

/// Disks of the kernel and files that this process opens from now on are given up if they do not answer within
/// `time` (10 s at least; a node sets it anew, see [`AnswerBound`]).
pub fn give_up_silent(time: Duration) {
    BOUND_MS.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// `device`, given up if it does not answer, where that was asked for.
pub(crate) fn as_asked(device: Arc<dyn Device>) -> Arc<dyn Device> {
    match BOUND_MS.load(Ordering::Relaxed) {
        0 => device,
        ms => BoundedDevice::over(device, Duration::from_millis(ms).max(LEAST)),
    }
}

/// See the module.
#[derive(Debug)]
pub struct BoundedDevice(Arc<Workers>);

/// A request that is under way.
#[derive(Debug)]
struct Begun(Result<(Arc<Ticket>, bool), DeviceError>);

impl BoundedDevice {
    /// `device`, given up if it does not answer within `time`.
    pub fn over(device: Arc<dyn Device>, time: Duration) -> Arc<dyn Device> {
        Arc::new(Self(Arc::new(Workers::new(device, time))))
    }
    fn silent(&self, time: Duration) -> DeviceError {
        DeviceError::Silent { device: self.info().name.as_str().into(), silent: Silent(time) }
    }
    /// Begins a request of `len` bytes, which are `data` if there are such.
    fn begin(&self, at: ByteOffset, what: What, len: usize, data: Option<&[u8]>) -> Begun {
        if let Some(time) = self.given_up() {
            return Begun(Err(self.silent(time)));
        }
        let slow = what.is_slow();
        let mut memory = self.0.memory(len);
        if let Some(data) = data {
            memory.split_at_mut(len).0.copy_from_slice(data);
        }
        Begun(Ok((self.0.begin(Job { at, what, memory, len }), slow)))
    }
    /// Waits for its end. What it read goes to `into`.
    fn end(&self, under_way: Begun, into: Option<&mut [u8]>) -> Result<Completion, DeviceError> {
        let (ticket, slow) = under_way.0?;
        let (job, result) = self.wait(&ticket, slow)?;
        if let (Some(into), Ok(_)) = (into, &result) {
            into.copy_from_slice(job.memory.split_at(job.len).0);
        }
        self.0.keep(job.memory);
        result
    }
    fn wait(
        &self,
        ticket: &Ticket,
        slow: bool,
    ) -> Result<(Job, Result<Completion, DeviceError>), DeviceError> {
        let mut waited = Duration::ZERO;
        loop {
            let begun = Instant::now();
            match ticket.wait(STRETCH) {
                Waited::Ended(job, result) => return Ok((job, result)),
                Waited::UnderWay => waited += begun.elapsed().min(STRETCH * 2),
                Waited::Waits => {}
            }
            let bound = self.0.bound() * if slow { SLOW_FACTOR } else { 1 };
            if waited < bound && self.0.given_up().is_none() {
                continue;
            }
            let given_up = ticket.give_up(|| self.0.one_more_late());
            if let GivenUp::Ended(job, result) = given_up {
                return Ok((job, result));
            }
            if self.0.give_up() {
                tracing::error!(
                    device = self.info().name,
                    "has not answered for {:.0} s: nothing is asked of it any more; what was under way may still be done",
                    waited.as_secs_f64()
                );
            }
            return Err(self.silent(waited));
        }
    }
}

/// A liveness byte of a node.
struct LivenessByte(Option<ByteLockGuard>, Arc<Workers>);

impl HeldByte for LivenessByte {
    fn leave(&mut self) {
        if let Some(byte) = &mut self.0 {
            byte.leaves();
        }
    }
}

impl Drop for LivenessByte {
    fn drop(&mut self) {
        if let Some(byte) = self.0.take() {
            self.1.let_go(byte);
        }
    }
}

impl Drop for BoundedDevice {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Device for BoundedDevice {
    fn info(&self) -> &DeviceInfo {
        self.0.device.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let what = match command {
            Command::Read(buf) => {
                return self.end(self.begin(at, What::Read, buf.len(), None), Some(buf));
            }
            Command::Write(buf) => {
                return self.end(self.begin(at, What::Write, buf.len(), Some(buf)), None);
            }
            Command::CompareAndWrite { expected, new } => {
                let what = What::CompareAndWrite(expected.to_vec());
                return self.end(self.begin(at, what, new.len(), Some(new)), None);
            }
            Command::Flush => What::Flush,
            Command::Discard(len) => What::Discard(len),
            Command::WriteZeroes(len) => What::WriteZeroes(len),
            Command::Deallocate(len) => What::Deallocate(len),
        };
        self.end(self.begin(at, what, 0, None), None)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities { locks: self, bound: Some(self), ..self.0.device.abilities() }
    }
    fn route(&self) -> Route<'_> {
        Route::Threads(self, None)
    }
}

impl Threaded for BoundedDevice {
    fn start(&self, at: ByteOffset, op: &Op<'_>) -> Box<dyn UnderWay + '_> {
        let begun = match op {
            Op::Read(buf) => self.begin(at, What::Read, buf.len(), None),
            Op::Write(buf) => self.begin(at, What::Write, buf.len(), Some(buf)),
            Op::Flush => self.begin(at, What::Flush, 0, None),
        };
        Box::new((self, begun))
    }
}

impl UnderWay for (&BoundedDevice, Begun) {
    fn finish(self: Box<Self>, op: &mut Op<'_>) -> Result<(), DeviceError> {
        let (device, begun) = *self;
        let into = match op {
            Op::Read(buf) => Some(&mut **buf),
            _ => None,
        };
        device.end(begun, into).map(|_| ())
    }
}

impl AnswerBound for BoundedDevice {
    fn answers_within(&self, time: Duration) {
        self.0.set_bound(time.max(LEAST));
    }
    fn given_up(&self) -> Option<Duration> {
        Some(self.0.given_up()?.elapsed() + self.0.bound())
    }
    fn has_late(&self) -> bool {
        self.0.has_late()
    }
}

impl LivenessLocks for BoundedDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        let held = self.0.device.abilities().locks.lock_byte(byte)?;
        Ok(held.map(|held| ByteLockGuard::new(LivenessByte(Some(held), self.0.clone()))))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.0.device.abilities().locks.byte_locked(byte)
    }
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.0.device.abilities().locks.byte_held(byte)
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.0.device.abilities().locks.settle_byte(byte)
    }
}

#[cfg(test)]
mod tests;
