//! How a thread gets its next request.
//!
//! A program that makes one call after another waits for each answer, and putting a thread to
//! sleep and waking it again costs more than most calls. So one thread at a time asks the device
//! again and again for a moment before it goes to sleep, as long as that has lately been worth it.
//! All others sleep, each in an `epoll` of its own, of which the kernel wakes one per request.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::reply::Device;

/// Longest time that a thread asks before it sleeps: two or three times what sleeping and waking
/// cost.
const PATIENCE: Duration = Duration::from_micros(50);
/// What success adds to, and failure takes from, the hope that asking is worth it.
const HOPE_MAX: u32 = 16;
/// Without hope, every so many-th time it is tried all the same.
const TRY_EVERY: u32 = 64;

/// What the threads of one mount share.
#[derive(Debug)]
pub struct Intake {
    device: Device,
    /// Somebody is asking.
    asking: AtomicBool,
    hope: AtomicU32,
    sleeps: AtomicU32,
}

/// One thread's place to sleep.
#[derive(Debug)]
pub struct Bed {
    epoll: OwnedFd,
}

impl Intake {
    /// For a device whose greeting is done.
    ///
    /// # Errors
    /// The device cannot be made non-blocking.
    pub fn new(device: Device) -> Result<Self, Errno> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        let (asking, hope, sleeps) = Default::default();
        Ok(Self { device, asking, hope, sleeps })
    }
    /// For a new thread.
    ///
    /// # Errors
    /// No descriptor, or no memory.
    pub fn bed(&self) -> Result<Bed, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let events = EventFlags::IN | EventFlags::EXCLUSIVE;
        epoll::add(&epoll, &self.device, EventData::new_u64(0), events)?;
        Ok(Bed { epoll })
    }
    /// The next request: its length in `space`.
    ///
    /// # Errors
    /// `ENODEV`: unmounted. `ENOENT`: the request was withdrawn meanwhile; ask again.
    pub fn next(&self, bed: &Bed, space: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match self.read(space) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
            if let Some(done) = self.ask(space) {
                return done;
            }
            let mut events =
                [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
            match epoll::wait(&bed.epoll, &mut events, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    fn read(&self, space: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.device, space)
    }
    /// Asks for a while, if nobody else does and it is likely to be worth it.
    fn ask(&self, space: &mut [u8]) -> Option<Result<usize, Errno>> {
        let hope = self.hope.load(Ordering::Relaxed);
        let turn = self.sleeps.fetch_add(1, Ordering::Relaxed);
        if hope == 0 && !turn.is_multiple_of(TRY_EVERY) {
            return None;
        }
        if self.asking.swap(true, Ordering::Acquire) {
            return None;
        }
        let found = self.ask_until(Instant::now() + PATIENCE, space);
        self.asking.store(false, Ordering::Release);
        let hope = if found.is_some() { (hope + 4).min(HOPE_MAX) } else { hope.saturating_sub(1) };
        self.hope.store(hope, Ordering::Relaxed);
        found
    }
    fn ask_until(&self, end: Instant, space: &mut [u8]) -> Option<Result<usize, Errno>> {
        while Instant::now() < end {
            match self.read(space) {
                // Whoever else wants this processor goes first.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                done => return Some(done),
            }
        }
        None
    }
}
