//! How the thread that leads gets the next request.
//!
//! A program that makes one call after another waits for each answer, and putting a thread to
//! sleep and waking it again costs more than most calls. So the leader asks the device again and
//! again for a moment before it goes to sleep, as long as that has lately been worth it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::transport::reply::Device;
use crate::transport::space::Space;

/// Longest time that the leader asks before it sleeps: a few times what sleeping and waking cost.
const PATIENCE: Duration = Duration::from_micros(50);
/// A request that is found by polling adds this much to the estimate that polling is worthwhile;
/// one that did not come in time subtracts 1.
const HOPE: u32 = 4;
/// Bound of it.
const HOPE_MAX: u32 = 16;
/// Without hope, every so many-th time it is tried all the same.
const TRY_EVERY: u32 = 64;
/// What a request behind another adds to the belief that several programs are at work; one alone
/// takes 1.
const CROWD: u32 = 2;
/// From here on they do.
const CROWDED: u32 = 8;

/// The device, and what has been learnt about the requests that come from it.
#[derive(Debug)]
pub struct RequestPoller {
    device: Device,
    hope: AtomicU32,
    crowd: AtomicU32,
    sleeps: AtomicU32,
}

impl RequestPoller {
    /// For a device whose greeting is done.
    ///
    /// # Errors
    /// The device cannot be made non-blocking.
    pub fn new(device: Device) -> Result<Self, Errno> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        let (hope, crowd, sleeps) = Default::default();
        Ok(Self { device, hope, crowd, sleeps })
    }
    /// Whether requests lately waited in the queue.
    pub fn crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) >= CROWDED
    }
    /// The next request: its length. For one thread at a time: others that sleep at the
    /// device would be woken, at the programs' expense, for requests that the first one takes.
    ///
    /// # Errors
    /// `ENODEV`: unmounted. `ENOENT`: the request was withdrawn meanwhile; ask again.
    pub fn next(&self, space: &mut Space) -> Result<usize, Errno> {
        let first = self.read(space);
        // The program that was answered last may be this quick: only a second one makes a crowd.
        let crowd = first.is_ok() && self.pending();
        learn(&self.crowd, crowd, CROWD, 2 * CROWDED);
        if first != Err(Errno::AGAIN) {
            return first;
        }
        if let Some(done) = self.ask(space) {
            return done;
        }
        loop {
            let mut readable = [PollFd::new(&self.device, PollFlags::IN)];
            match poll(&mut readable, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            match self.read(space) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
    }
    /// A request that waits in the queue, for a thread that does not lead, if requests lately did: it
    /// need not be called for it. `None`: there is none.
    pub fn beside(&self, space: &mut Space) -> Option<Result<usize, Errno>> {
        if !self.crowded() {
            return None;
        }
        let taken = self.read(space);
        if taken == Err(Errno::AGAIN) {
            return None;
        }
        learn(&self.crowd, taken.is_ok(), CROWD, 2 * CROWDED);
        Some(taken)
    }
    fn pending(&self) -> bool {
        let mut readable = [PollFd::new(&self.device, PollFlags::IN)];
        poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }
    fn read(&self, space: &mut Space) -> Result<usize, Errno> {
        rustix::io::readv(&self.device, &mut space.slices())
    }
    /// Asks for a while, if that is likely to be worth it.
    fn ask(&self, space: &mut Space) -> Option<Result<usize, Errno>> {
        let turn = self.sleeps.fetch_add(1, Ordering::Relaxed);
        if self.hope.load(Ordering::Relaxed) == 0 && !turn.is_multiple_of(TRY_EVERY) {
            return None;
        }
        let found = self.ask_until(Instant::now() + PATIENCE, space);
        learn(&self.hope, found.is_some(), HOPE, HOPE_MAX);
        found
    }
    fn ask_until(&self, end: Instant, space: &mut Space) -> Option<Result<usize, Errno>> {
        while Instant::now() < end {
            match self.read(space) {
                // Other threads that want this processor go first.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                done => return Some(done),
            }
        }
        None
    }
}

/// Adds `gain` on success, takes 1 otherwise. That of one of two threads may be lost.
fn learn(what: &AtomicU32, success: bool, gain: u32, max: u32) {
    let old = what.load(Ordering::Relaxed);
    let new = if success { (old + gain).min(max) } else { old.saturating_sub(1) };
    what.store(new, Ordering::Relaxed);
}
