//! What a node does under its locks: a state machine, so that it runs in virtual time. The first
//! one counts; a journal and a file system join by implementing [`NodeWork`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use braid_lock::{Me, Mode};

use crate::Sabotage;

/// A lock, counted from zero.
pub type LockIndex = usize;

/// First data sector: one for each lock from here.
pub(crate) const DATA: u64 = 100_000;

/// A place for data: device, sector.
pub type Place = (u16, u64);

/// What happened to the work of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkEvent {
    /// Thread `thread` holds the lock; answer with `UseDone`.
    Use {
        /// Which thread.
        thread: usize,
        /// Which lock.
        lock: LockIndex,
        /// In which mode.
        mode: Mode,
    },
    /// Give the lock's caches up down to `to`: answer with `Demoted` when all is in place and
    /// stable. No user is in the way.
    Demote {
        /// Which lock.
        lock: LockIndex,
        /// What may be kept.
        to: Mode,
    },
    /// Put in place what a fenced node left behind; answer with `Recovered`.
    Recover {
        /// Who.
        dead: Me,
    },
    /// Answer to `Io`: the bytes read (empty for others), or a failure.
    Done {
        /// Which request.
        token: u64,
        /// Its outcome.
        result: Result<Vec<u8>, ()>,
    },
}

/// A request for data. Failures of writes are not injected: a write that failed makes a node
/// withdraw, which is a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkIo {
    /// Read a sector.
    Read,
    /// Write a sector.
    Write(Vec<u8>),
    /// Make the device's completed writes stable.
    Flush,
}

/// What the work wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkAction {
    /// A request.
    Io {
        /// Comes back with the answer.
        token: u64,
        /// Under which lock.
        lock: LockIndex,
        /// Where.
        place: Place,
        /// What.
        io: WorkIo,
    },
    /// The thread has done what it took the lock for.
    UseDone {
        /// Which thread.
        thread: usize,
        /// Which lock.
        lock: LockIndex,
    },
    /// The caches are given up.
    Demoted {
        /// Which lock.
        lock: LockIndex,
    },
    /// The dead node's work is in place.
    Recovered {
        /// Who.
        dead: Me,
    },
    /// An invariant of the work broke.
    Broken(String),
}

/// The seam for what runs above the locks.
pub trait NodeWork {
    /// Takes an event, says what to do.
    fn step(&mut self, event: WorkEvent) -> Vec<WorkAction>;
}

/// What everybody knows of the counters: for checking only.
#[derive(Debug, Default)]
pub struct Oracle {
    counters: Vec<Truth>,
}

#[derive(Debug, Clone, Default)]
struct Truth {
    /// Highest value known to be stable.
    stable: u64,
    /// Latest value anybody has set, and who.
    latest: u64,
    by: Option<Me>,
    /// That one has died: its latest values may be lost, down to what is stable.
    uncertain: bool,
}

impl Oracle {
    /// For so many counters.
    pub fn new(counters: usize) -> Self {
        Self { counters: vec![Truth::default(); counters] }
    }
    /// A process has died.
    pub fn died(&mut self, life: Me) {
        for truth in &mut self.counters {
            truth.uncertain |= truth.by == Some(life);
        }
    }
    /// Acknowledged increments so far.
    pub fn stable_total(&self) -> u64 {
        self.counters.iter().map(|t| t.stable).sum()
    }
    fn observe(&mut self, lock: LockIndex, value: u64) -> Result<(), String> {
        let Some(truth) = self.counters.get_mut(lock) else { return Ok(()) };
        let allowed = if truth.uncertain { truth.stable } else { truth.latest }..=truth.latest;
        if !allowed.contains(&value) {
            return Err(format!("counter {lock} reads {value}, allowed are {allowed:?}"));
        }
        (truth.latest, truth.uncertain) = (value, false);
        Ok(())
    }
    fn set(&mut self, lock: LockIndex, value: u64, by: Me) {
        if let Some(truth) = self.counters.get_mut(lock) {
            (truth.latest, truth.by) = (value, Some(by));
        }
    }
    fn stable(&mut self, lock: LockIndex, value: u64) {
        if let Some(truth) = self.counters.get_mut(lock) {
            truth.stable = truth.stable.max(value);
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cache {
    value: u64,
    dirty: bool,
}

#[derive(Debug, Clone)]
enum Pending {
    Load { thread: usize, lock: LockIndex, mode: Mode },
    Write { lock: LockIndex, to: Mode, value: u64 },
    Flush { lock: LockIndex, to: Mode, value: u64 },
}

/// One counter under each lock, cached, written when the lock is given up.
pub struct Counters {
    me: Me,
    devices: u16,
    oracle: Rc<RefCell<Oracle>>,
    cache: HashMap<LockIndex, Cache>,
    pending: HashMap<u64, Pending>,
    tokens: u64,
    sabotage: Option<Sabotage>,
}

impl Counters {
    /// The work of `me`.
    pub fn new(
        me: Me,
        devices: u16,
        oracle: Rc<RefCell<Oracle>>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let (cache, pending) = (HashMap::new(), HashMap::new());
        Self { me, devices, oracle, cache, pending, tokens: 0, sabotage }
    }
    fn place(&self, lock: LockIndex) -> Place {
        let lock = u64::try_from(lock).unwrap_or(0);
        let device = u16::try_from(lock + 1).unwrap_or(0) % self.devices;
        (device, DATA + lock)
    }
    fn io(&mut self, pending: Pending, io: WorkIo) -> WorkAction {
        let lock = match &pending {
            Pending::Load { lock, .. }
            | Pending::Write { lock, .. }
            | Pending::Flush { lock, .. } => *lock,
        };
        self.tokens += 1;
        self.pending.insert(self.tokens, pending);
        WorkAction::Io { token: self.tokens, lock, place: self.place(lock), io }
    }
    fn use_it(&mut self, thread: usize, lock: LockIndex, mode: Mode) -> WorkAction {
        let Some(cache) = self.cache.get_mut(&lock) else {
            return self.io(Pending::Load { thread, lock, mode }, WorkIo::Read);
        };
        let mut oracle = self.oracle.borrow_mut();
        if let Err(broken) = oracle.observe(lock, cache.value) {
            return WorkAction::Broken(format!("{:?}: {broken}", self.me));
        }
        if mode == Mode::Exclusive {
            cache.value += 1;
            cache.dirty = true;
            oracle.set(lock, cache.value, self.me);
        }
        WorkAction::UseDone { thread, lock }
    }
    fn demote(&mut self, lock: LockIndex, to: Mode) -> Vec<WorkAction> {
        match self.cache.get(&lock) {
            Some(Cache { value, dirty: true }) if self.sabotage != Some(Sabotage::KeepDirty) => {
                let value = *value;
                let bytes = value.to_le_bytes().to_vec();
                let write = self.io(Pending::Write { lock, to, value }, WorkIo::Write(bytes));
                if self.sabotage == Some(Sabotage::ReleaseEarly) {
                    return vec![write, WorkAction::Demoted { lock }];
                }
                vec![write]
            }
            _ => vec![self.demoted(lock, to)],
        }
    }
    fn demoted(&mut self, lock: LockIndex, to: Mode) -> WorkAction {
        if to == Mode::Unlocked {
            self.cache.remove(&lock);
        }
        WorkAction::Demoted { lock }
    }
    fn done(&mut self, token: u64, result: Result<Vec<u8>, ()>) -> WorkAction {
        let Some(pending) = self.pending.remove(&token) else {
            return WorkAction::Broken("answer to nothing".to_owned());
        };
        match (pending, result) {
            (Pending::Load { thread, lock, mode }, Ok(bytes)) => {
                let bytes: [u8; 8] =
                    bytes.get(..8).and_then(|b| b.try_into().ok()).unwrap_or([0; 8]);
                let value = u64::from_le_bytes(bytes);
                // Another thread may have loaded, and changed, it meanwhile.
                self.cache.entry(lock).or_insert(Cache { value, dirty: false });
                self.use_it(thread, lock, mode)
            }
            (load @ Pending::Load { .. }, Err(())) => self.io(load, WorkIo::Read),
            (Pending::Write { lock, to, value }, _) => {
                self.io(Pending::Flush { lock, to, value }, WorkIo::Flush)
            }
            (Pending::Flush { lock, to, value }, _) => {
                self.oracle.borrow_mut().stable(lock, value);
                if let Some(cache) = self.cache.get_mut(&lock) {
                    cache.dirty = false;
                }
                self.demoted(lock, to)
            }
        }
    }
}

impl NodeWork for Counters {
    fn step(&mut self, event: WorkEvent) -> Vec<WorkAction> {
        match event {
            WorkEvent::Use { thread, lock, mode } => vec![self.use_it(thread, lock, mode)],
            WorkEvent::Demote { lock, to } => self.demote(lock, to),
            // Counters are written in place, whole: nothing to replay.
            WorkEvent::Recover { dead } => vec![WorkAction::Recovered { dead }],
            WorkEvent::Done { token, result } => vec![self.done(token, result)],
        }
    }
}
