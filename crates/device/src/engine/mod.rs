//! How transfers reach the kernel: `io_uring`, or threads that call `pread` and `pwrite` where it
//! is refused (seccomp profiles of containers, `kernel.io_uring_disabled`, old kernels) or where
//! `BRAID_NO_URING` is set.
//!
//! [`Flight`] drives either: it starts transfers, keeps the number in flight bounded, carries on
//! after short and interrupted ones, and waits for all of them before it is dropped.
//!
//! ```text
//!            start            issue (room)         completion: all bytes, or an error
//!  caller ----------> waiting -----------> kernel ------------------------------------> done
//!           joined       ^                   |
//!           or cut       +-------------------+  short, interrupted, next piece of a bounce;
//!                                               what was joined and failed, each by itself
//! ```
//!
//! What is started together and stands side by side on a device becomes one call, wherever its
//! memory is: the units of a stripe that a large request has on one member. A call is never larger
//! than what the device takes at once ([`RingTarget`](crate::RingTarget) says it): the kernel would
//! have to cut it, which it does not do without waiting, so that a ring begins such a call twice,
//! first in vain and then in a worker thread. A device that is throttled counts both.
//!
//! When is the engine worth its price? Microseconds per request (processor time in brackets),
//! Linux 6.18, two busy cores, random places, O_DIRECT; a plain call against the ring:
//!
//! | request | ext4 on virtio, call | ring | tmpfs, call | ring |
//! |---|---|---|---|---|
//! | read 512 B, alone | 74 (27) | 90 (33) | 0.9 (0.8) | 11 (6.9) |
//! | read 4 KiB, alone | 75 (25) | 84 (30) | 1.4 (1.1) | 12 (7.9) |
//! | write 512 B, alone | 75 (32) | 60 (20) | 0.9 (0.8) | 9.7 (6.5) |
//! | write 4 KiB, alone | 57 (26) | 68 (25) | 1.0 (1.0) | 8.8 (6.5) |
//! | read 4 KiB, 2 at once on 2 devices | 74 (24) | 44 (15) | 1.2 (1.1) | 7.2 (5.2) |
//! | read 4 KiB, 32 at once on 4 devices | 75 (20) | 22 (4) | 2.1 (1.3) | 4.9 (3.3) |
//! | write 4 KiB, 32 at once on 4 devices | 62 (23) | 24 (8) | 1.9 (1.1) | 7.6 (3.3) |
//! | read 256 KiB, 4 at once on 4 devices | 386 (52) | 330 (28) | 23 (22) | 41 (26) |
//! | write 256 KiB, 4 at once on 4 devices | 138 (59) | 96 (25) | 53 (28) | 77 (31) |
//! | read 1 MiB, 4 at once on 4 devices | 1569 (172) | 1583 (100) | 89 (78) | 160 (92) |
//! | write 1 MiB, 4 at once on 4 devices | 418 (96) | 414 (61) | 234 (112) | 235 (118) |
//!
//! So: one request is a call; two and more go to the ring, with less processor time at every size;
//! but tmpfs never completes at once in a ring, only in a worker thread, and files on it are always
//! served by calls.
//!
//! To repeat it: `cargo run --release -p braid-device --example engines -- DIR...` (for tmpfs with
//! `in_memory` in `file` forced to false).

mod call;
mod ring;
mod threads;
mod transfer;

use std::collections::VecDeque;
use std::sync::OnceLock;

pub(crate) use call::DEPTH;
pub(crate) use transfer::Transfer;

use call::Call;
use ring::Ring;
use threads::{Threads, perform};
use transfer::Next;

/// Environment variable that forbids `io_uring` when set and not empty.
const NO_URING: &str = "BRAID_NO_URING";

/// How many of those that wait are looked at for one to join: the units of a row, in a wide stripe.
const JOIN_REACH: usize = 64;

/// What an engine is asked to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Uring,
    Pread,
}

/// The kind of engine that this process uses: decided once.
pub(crate) fn engine_kind() -> EngineKind {
    static KIND: OnceLock<EngineKind> = OnceLock::new();
    *KIND.get_or_init(|| {
        if std::env::var_os(NO_URING).is_some_and(|v| !v.is_empty()) {
            return EngineKind::Pread;
        }
        match Ring::probe() {
            Ok(()) => EngineKind::Uring,
            Err(e) => {
                tracing::info!("io_uring is refused ({e}): requests go through pread and pwrite");
                EngineKind::Pread
            }
        }
    })
}

/// The engine that files and block devices use on this machine: `io_uring` or `pread`.
pub fn default_engine() -> &'static str {
    match engine_kind() {
        EngineKind::Uring => "io_uring",
        EngineKind::Pread => "pread",
    }
}

#[derive(Debug)]
enum Engine {
    Ring(Box<Ring>),
    Threads(Threads),
}
impl Engine {
    fn new(kind: EngineKind) -> Self {
        if kind == EngineKind::Uring {
            match Ring::new() {
                Ok(ring) => return Self::Ring(Box::new(ring)),
                // Out of descriptors or lockable memory: slower is better than not at all.
                Err(e) => tracing::warn!("no io_uring for this thread ({e}): using pread"),
            }
        }
        Self::Threads(Threads::new())
    }
    /// # Safety
    /// See [`Call`].
    unsafe fn push(&mut self, token: u32, call: &Call) {
        match self {
            // SAFETY: the caller's promise.
            Self::Ring(r) => unsafe { r.push(token, call) },
            // SAFETY: the caller's promise.
            Self::Threads(t) => unsafe { t.push(token, call) },
        }
    }
    fn wait(&mut self, at_least: usize, done: &mut Vec<(u32, i32)>) {
        match self {
            Self::Ring(r) => r.wait(at_least, done),
            Self::Threads(t) => t.wait(at_least, done),
        }
    }
}

/// How long [`Flight::reap`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Only hands over what was started.
    No,
    /// Until at least one transfer is done (if any is in flight).
    One,
    /// Until all are done.
    All,
}

/// Transfers on their way, at most [`DEPTH`] of them in the kernel.
#[derive(Debug)]
pub(crate) struct Flight {
    kind: EngineKind,
    /// Made for the first transfer that needs one.
    engine: Option<Engine>,
    /// By slot; a slot is free when it is on `free`.
    transfers: Vec<Transfer>,
    free: Vec<u32>,
    /// Slots that have something to issue.
    ready: VecDeque<u32>,
    /// Slots of transfers that are plain calls of this thread, as long as the engine has its own.
    calls: VecDeque<u32>,
    /// Calls the engine has.
    issued: usize,
    /// Kept from call to call, so that none allocates.
    events: Vec<(u32, i32)>,
    process: u32,
}

impl Flight {
    pub fn new(kind: EngineKind) -> Self {
        Self {
            kind,
            engine: None,
            transfers: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            calls: VecDeque::new(),
            issued: 0,
            events: Vec::new(),
            process: std::process::id(),
        }
    }
    /// Whether this process made it: a ring and its threads do not survive a `fork`.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
    /// Transfers not done.
    pub fn pending(&self) -> usize {
        self.transfers.len() - self.free.len()
    }
    /// Takes a transfer, which goes to the kernel with the next [`Self::reap`]; how often that will
    /// report its owner: once for each call that it is cut into.
    ///
    /// # Safety
    /// Until `reap` has reported all of that or [`Self::drain`] returns, its memory stays allocated
    /// and is touched by nobody else, and its descriptor stays open and its counters where they are.
    pub unsafe fn start(&mut self, transfer: Transfer) -> usize {
        let mut pieces = 1;
        let mut rest = transfer;
        while let Some(first) = rest.cut() {
            self.take(first);
            pieces += 1;
        }
        self.take(rest);
        pieces
    }
    /// Joins a transfer to one that waits, or gives it a slot.
    fn take(&mut self, transfer: Transfer) {
        let waiting = if transfer.is_call() { &self.calls } else { &self.ready };
        for slot in waiting.iter().rev().take(JOIN_REACH) {
            if self.transfers[*slot as usize].join(&transfer) {
                return;
            }
        }
        self.place(transfer);
    }
    fn place(&mut self, transfer: Transfer) {
        let is_call = transfer.is_call();
        let slot = if let Some(slot) = self.free.pop() {
            self.transfers[slot as usize].become_another(transfer);
            slot
        } else {
            self.transfers.push(transfer);
            u32::try_from(self.transfers.len() - 1).expect("fewer than 2^32 transfers")
        };
        (if is_call { &mut self.calls } else { &mut self.ready }).push_back(slot);
    }
    fn issue(&mut self) {
        while self.issued < DEPTH {
            let Some(slot) = self.ready.pop_front() else { break };
            let call = self.transfers[slot as usize].call();
            let engine = self.engine.get_or_insert_with(|| Engine::new(self.kind));
            // SAFETY: `start`'s caller keeps the memory and the descriptor; a bounce buffer and the
            // list of vectors are owned by the transfer, which stays in its slot until it is done,
            // and lie on the heap.
            unsafe { engine.push(slot, &call) };
            self.issued += 1;
        }
        if let (Some(engine), false) = (&mut self.engine, self.calls.is_empty()) {
            engine.wait(0, &mut self.events);
        }
        while let Some(slot) = self.calls.pop_front() {
            let call = self.transfers[slot as usize].call();
            // SAFETY: as above.
            self.events.push((slot, unsafe { perform(&call) }));
            self.issued += 1;
        }
    }
    /// Issues what is ready, waits, and calls `done(owner, result)` for each finished transfer.
    pub fn reap(&mut self, wait: Wait, mut done: impl FnMut(u32, std::io::Result<()>)) {
        loop {
            self.issue();
            let at_least = match wait {
                Wait::No => 0,
                Wait::One => 1.min(self.issued),
                // With more to issue, the next goes down as soon as there is room.
                Wait::All if !self.ready.is_empty() => 1.min(self.issued),
                Wait::All => self.issued,
            };
            if let Some(engine) = &mut self.engine {
                engine.wait(at_least, &mut self.events);
            }
            let mut finished = 0;
            while let Some((slot, result)) = self.events.pop() {
                self.issued -= 1;
                finished += self.completed(slot, result, &mut done);
            }
            let enough = match wait {
                Wait::No => {
                    self.calls.is_empty() && (self.ready.is_empty() || self.issued == DEPTH)
                }
                Wait::One => finished > 0 || self.pending() == 0,
                Wait::All => self.pending() == 0,
            };
            if enough {
                return;
            }
        }
    }
    /// Takes in what the kernel said of the call in `slot`; how many were reported to `done`.
    fn completed(
        &mut self,
        slot: u32,
        result: i32,
        done: &mut impl FnMut(u32, std::io::Result<()>),
    ) -> usize {
        let transfer = &mut self.transfers[slot as usize];
        match transfer.completed(result) {
            Next::Again => {
                let is_call = transfer.is_call();
                (if is_call { &mut self.calls } else { &mut self.ready }).push_back(slot);
                0
            }
            Next::Done(result) => {
                let reported = transfer.report(result, done);
                let alone = transfer.unjoin();
                transfer.release();
                self.free.push(slot);
                for t in alone {
                    self.place(t);
                }
                reported
            }
        }
    }
    /// Waits until the kernel has given everything back.
    pub fn drain(&mut self) {
        if self.is_ours() {
            self.reap(Wait::All, |_, _| ());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.drain();
    }
}
