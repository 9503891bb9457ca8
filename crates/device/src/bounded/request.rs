//! A request whose memory is its own, and how it ends.

use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};
use parking_lot::{Condvar, Mutex};

use crate::{AlignedBuf, Command, Completion, Device, DeviceError};

/// What is done.
#[derive(Debug)]
pub enum What {
    /// Fill the memory.
    Read,
    /// Write the memory.
    Write,
    /// Make durable.
    Flush,
    /// Write the memory, if this stands there.
    CompareAndWrite(Vec<u8>),
    /// A range is not needed.
    Discard(Bytes),
    /// A range is to read as zeros.
    WriteZeroes(Bytes),
    /// The same, and its space is given back.
    Deallocate(Bytes),
}

impl What {
    /// Whether it may take long although the disk is sound: a compare-and-write may wait for a lock of
    /// another process.
    pub fn is_slow(&self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }
}

/// A request, with memory of which it uses the first `len` bytes.
#[derive(Debug)]
pub struct Job {
    pub at: ByteOffset,
    pub what: What,
    pub memory: AlignedBuf,
    pub len: usize,
}

impl Job {
    /// Has `device` do it.
    fn run(&mut self, device: &dyn Device) -> Result<Completion, DeviceError> {
        let Self { at, what, memory, len } = self;
        let memory = memory.split_at_mut(*len).0;
        let command = match what {
            What::Read => Command::Read(memory),
            What::Write => Command::Write(memory),
            What::Flush => Command::Flush,
            What::CompareAndWrite(expected) => Command::CompareAndWrite { expected, new: memory },
            What::Discard(len) => Command::Discard(*len),
            What::WriteZeroes(len) => Command::WriteZeroes(*len),
            What::Deallocate(len) => Command::Deallocate(*len),
        };
        device.submit(*at, command)
    }
}

/// ```text
///  Waits ── a worker takes it ──> UnderWay ── the device answers ──> Ended ── taken by who waits ──> Gone
///    └── given up ──> Gone           └── given up ──> Late ── the device answers ──> Gone
/// ```
#[derive(Debug)]
enum State {
    Waits(Job),
    UnderWay,
    Ended(Job, Result<Completion, DeviceError>),
    /// Nobody waits any more, and the device may still do it.
    Late,
    Gone,
}

/// A request that somebody waits for.
#[derive(Debug)]
pub struct Ticket {
    state: Mutex<State>,
    ended: Condvar,
}

/// How a wait went on.
pub enum Waited {
    /// The request has ended.
    Ended(Job, Result<Completion, DeviceError>),
    /// It has been under way for all of this stretch.
    UnderWay,
    /// No worker has taken it yet.
    Waits,
}

/// What became of a request that is given up.
pub enum GivenUp {
    /// The device never gets it, or may do it later.
    Over,
    /// It has just ended.
    Ended(Job, Result<Completion, DeviceError>),
}

impl Ticket {
    pub fn new(job: Job) -> Self {
        Self { state: Mutex::new(State::Waits(job)), ended: Condvar::new() }
    }
    /// By a worker: does the request, if somebody still waits for it. True: nobody did any more when it ended.
    pub fn run(&self, device: &dyn Device) -> bool {
        let mut job = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::UnderWay) {
                State::Waits(job) => job,
                other => {
                    *state = other;
                    return false;
                }
            }
        };
        let result = job.run(device);
        let mut state = self.state.lock();
        if matches!(*state, State::Late) {
            *state = State::Gone;
            return true;
        }
        *state = State::Ended(job, result);
        self.ended.notify_all();
        false
    }
    /// Waits for the end, for `time` at most.
    pub fn wait(&self, time: Duration) -> Waited {
        let mut state = self.state.lock();
        let end = Instant::now() + time;
        while !matches!(*state, State::Ended(..))
            && !self.ended.wait_until(&mut state, end).timed_out()
        {}
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(job, result) => Waited::Ended(job, result),
            other => {
                let waits = matches!(other, State::Waits(_));
                *state = other;
                if waits { Waited::Waits } else { Waited::UnderWay }
            }
        }
    }
    /// Waits no more. `late` is called if the device may still do the request, before it has.
    pub fn give_up(&self, late: impl FnOnce()) -> GivenUp {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(job, result) => GivenUp::Ended(job, result),
            State::UnderWay => {
                *state = State::Late;
                late();
                GivenUp::Over
            }
            State::Waits(_) | State::Late | State::Gone => GivenUp::Over,
        }
    }
}
