//! Memory for messages with large contents, which is bounded for all threads together.
//!
//! A message comes into memory of the thread that reads it, as far as that goes, and the rest into memory
//! that is lent for it. A small message gives that back at once, another one when it is answered. Nobody
//! knows how large the next message is, so without memory for the largest nothing is read: the kernel
//! keeps what it asks for, and programs wait there.
//!
//! A message that has memory may wait for what another frees that is not read yet: a lock of
//! another node, which waits for pages of this node's kernel. So a reader that waits for memory
//! gets some beyond the bound if nothing came back for a while: soon, if a request that has memory
//! waits for a lock that other nodes have or want; late otherwise, because a device answers by itself.
//! Small messages then come
//! without a wait, until a large one fills that memory. As long as nothing comes back, the next
//! large messages are read sooner, because requests behind them wait for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{HugeBuf, memory_part};
use braid_fs::lock::interrupt;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::transport::request::{PAGES, REQUEST_START};

/// What part of the node's memory may be lent.
const PART: usize = 8;
/// So many of the largest messages have memory, however little there is.
const LEAST: usize = 2;
/// Memory beyond what the message at hand fills is given back, where more than half is taken, from this
/// size on.
const WORTH: usize = 128 << 10;
/// Nothing came back for so long while a request waits for another node: there is more.
const PATIENCE: Duration = Duration::from_millis(100);
/// Nothing came back since there was more for the last one.
const PATIENCE_AGAIN: Duration = Duration::from_millis(10);
/// The same while all wait for devices.
const PATIENCE_DEVICES: Duration = Duration::from_secs(2);

/// What is lent, and what may be.
#[derive(Debug)]
pub(crate) struct Payloads {
    /// Length of the largest message.
    max: usize,
    bound: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What was used last is at the end: it is in the processors' caches.
    free: Vec<Memory>,
    /// Bytes of memory that is free or lent, at most.
    taken: usize,
    /// How often memory came back from a message.
    returns: u64,
    /// The next large message has memory beyond the bound.
    beyond: bool,
    /// One had, and nothing came back since.
    was_beyond: bool,
}

#[derive(Debug)]
struct Memory {
    bytes: HugeBuf,
    /// Taken from the machine, at most.
    touched: usize,
}

impl Memory {
    /// What a message of `len` bytes takes of it.
    fn need(&self, len: usize) -> usize {
        if self.bytes.is_huge() { self.bytes.len() } else { REQUEST_START + len }
    }
}

/// Memory that is lent to one message, laid out like [`crate::transport::request::RequestBuf`].
#[derive(Debug)]
pub(crate) struct Payload {
    /// There until it is dropped.
    memory: Option<Memory>,
    /// Counts as taken.
    counted: usize,
    /// A message is in it.
    used: bool,
    of: Arc<Payloads>,
}

impl Payloads {
    /// For messages of at most `max` bytes.
    pub fn new(max: usize) -> Arc<Self> {
        let bound = memory_part(PART).max(LEAST * (max + HugeBuf::ALIGN));
        Arc::new(Self { max, bound, state: Mutex::default(), returned: Condvar::new() })
    }
    /// Memory for the next message, if there is.
    pub fn lend(self: &Arc<Self>) -> Option<Payload> {
        self.lend_of(&mut self.state.lock(), self.bound)
    }
    /// The same; waits for it.
    pub fn wait(self: &Arc<Self>) -> Payload {
        let mut state = self.state.lock();
        let (mut seen, mut since) = (state.returns, Instant::now());
        loop {
            let bound = if state.beyond { usize::MAX } else { self.bound };
            if let Some(payload) = self.lend_of(&mut state, bound) {
                return payload;
            }
            let patience = if state.was_beyond { PATIENCE_AGAIN } else { PATIENCE };
            self.returned.wait_for(&mut state, patience);
            if state.returns != seen {
                (seen, since) = (state.returns, Instant::now());
                continue;
            }
            let nothing_came = since.elapsed();
            state.beyond |= nothing_came >= PATIENCE_DEVICES
                || nothing_came >= patience
                    && MutexGuard::unlocked(&mut state, interrupt::others_are_waited_for);
        }
    }
    fn lend_of(self: &Arc<Self>, state: &mut State, bound: usize) -> Option<Payload> {
        loop {
            let last = state.free.last();
            let more = last.map_or(REQUEST_START + self.max, |m| m.need(self.max) - m.touched);
            if state.taken.saturating_add(more) <= bound {
                break;
            }
            if state.free.len() < 2 {
                return None;
            }
            state.taken -= state.free.remove(0).touched;
        }
        let memory = state.free.pop().unwrap_or_else(|| {
            let bytes = HugeBuf::within(&PAGES, REQUEST_START + self.max);
            Memory { bytes, touched: 0 }
        });
        let counted = memory.need(self.max);
        state.taken += counted - memory.touched;
        Some(Payload { memory: Some(memory), counted, used: false, of: Arc::clone(self) })
    }
    /// Gives what is not lent back to the machine.
    pub fn give_back(&self) {
        let mut state = self.state.lock();
        let free = std::mem::take(&mut state.free);
        state.taken -= free.iter().map(|m| m.touched).sum::<usize>();
    }
}

impl Payload {
    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |m| &mut *m.bytes)
    }
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &*m.bytes)
    }
    /// A message of `len` bytes is in it: only that counts from now on.
    pub fn keep(&mut self, len: usize) {
        let Some(memory) = &mut self.memory else { return };
        self.used = true;
        let need = memory.need(len);
        let mut state = self.of.state.lock();
        state.was_beyond |= state.beyond;
        state.beyond = false;
        let short = state.taken > self.of.bound / 2;
        if short && memory.touched > need + WORTH {
            memory.bytes.discard_from(need);
            memory.touched = need;
        }
        memory.touched = memory.touched.max(need);
        state.taken -= self.counted - memory.touched;
        self.counted = memory.touched;
        drop(state);
        // A waiting reader may want the part that this message does not fill.
        self.of.returned.notify_one();
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut state = self.of.state.lock();
        state.taken -= self.counted - memory.touched;
        if self.used {
            state.returns += 1;
            (state.beyond, state.was_beyond) = (false, false);
        }
        if state.taken > self.of.bound {
            state.taken -= memory.touched;
            drop(state);
            drop(memory);
        } else {
            state.free.push(memory);
            drop(state);
        }
        self.of.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const MIB: usize = 1 << 20;

    fn payloads(bound: usize) -> Arc<Payloads> {
        let state = Mutex::default();
        Arc::new(Payloads { max: MIB, bound, state, returned: Condvar::new() })
    }

    #[test]
    fn what_is_lent_is_bounded_by_what_messages_fill() {
        // For some buffers the kernel was asked for huge pages, and a small message takes a whole
        // huge page.
        let all = payloads(64 * MIB);
        let lend = |len| {
            all.lend().map(|mut p| {
                p.keep(len);
                p
            })
        };
        let large: Vec<_> = std::iter::from_fn(|| lend(MIB)).collect();
        assert!((31..=63).contains(&large.len()), "{}", large.len());
        assert!(all.state.lock().taken <= all.bound);
        drop(large);
        assert!(all.state.lock().taken <= all.bound);
        // Memory that was filled before does not count for what fills less of it.
        let small: Vec<_> = std::iter::from_fn(|| lend(16 << 10)).take(200).collect();
        assert!(small.len() > 100, "{}", small.len());
        assert!(all.state.lock().taken <= all.bound);
        drop(small);
        all.give_back();
        assert_eq!(all.state.lock().taken, 0);
    }

    #[test]
    fn memory_that_comes_back_goes_to_who_waits() {
        let all = payloads(4 * MIB);
        let mut lent: Vec<_> = std::iter::from_fn(|| all.lend()).collect();
        lent.iter_mut().for_each(|p| p.keep(MIB));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(all.wait()));
            std::thread::sleep(Duration::from_millis(20));
            lent.pop();
            waits.join().unwrap();
        });
        assert!(all.state.lock().taken <= all.bound);
    }

    #[test]
    fn there_is_more_for_what_frees_a_lock() {
        let all = payloads(4 * MIB);
        let lent: Vec<_> = std::iter::from_fn(|| all.lend()).collect();
        let begun = Instant::now();
        interrupt::count_waits(true);
        let for_others = Arc::new(AtomicBool::new(false));
        let waits = {
            let for_others = for_others.clone();
            interrupt::counted_wait(move || for_others.load(Ordering::Relaxed))
        };
        interrupt::count_waits(false);
        // A wait for a thread of this node does not count.
        let mut beyond = std::thread::scope(|scope| {
            let waits = scope.spawn(|| all.wait());
            std::thread::sleep(PATIENCE * 3);
            assert!(!waits.is_finished());
            for_others.store(true, Ordering::Relaxed);
            waits.join().unwrap()
        });
        assert!(begun.elapsed() < PATIENCE_DEVICES);
        assert!(all.state.lock().taken > all.bound);
        // Small messages give their memory back as it is: then the next small ones no longer wait,
        // but a large one does.
        let begun = Instant::now();
        for _ in 0..100 {
            drop(beyond);
            beyond = all.wait();
        }
        assert!(begun.elapsed() < 100 * PATIENCE);
        beyond.keep(MIB);
        assert!(!all.state.lock().beyond && all.state.lock().was_beyond);
        drop((beyond, lent, waits));
        assert!(!all.state.lock().was_beyond);
        assert!(all.state.lock().taken <= all.bound);
    }
}
