//! Refuses a device that is a copy of a member (`cp`, a snapshot, a clone) while a node lives on the
//! original: what the two nodes write would stand on different devices. A living node's liveness lock
//! is on each member that it uses, and its heartbeats are in each copy of them.
//!
//! A node that uses another epoch of the pool has its lock on the members of that one. It is waited for, for
//! as long as it may live without a heartbeat: others of its host have ended it then.

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};

use super::actions::{Action, Event, Flow, Joiner, Look, Step, act, unasked};
use super::foreign_locks::FOREIGN_LOCK_BEATS;
use crate::error::LockError;
use crate::node::Timing;

/// Looks, a beat apart, after which a node's lock that only some members bear tells of a copy: one look
/// alone may meet a member that joins or leaves.
const PARTLY_LOOKS: u32 = 4;

/// Beats after which a node whose heartbeats stand still in all copies counts as one that does not beat.
const SILENT_BEATS: u32 = 4;

pub(super) struct CopyCheck {
    joiner: Joiner,
    /// What was read first.
    look: Option<Look>,
    /// Nodes that may live, and of which it is not asked yet whether they do.
    unasked: Vec<SlotRecord>,
    /// Those that may.
    others: Vec<SlotRecord>,
    state: State,
}

enum State {
    Reading,
    /// Is its lock there?
    Locked(SlotRecord),
    /// Of which of the others the lock is looked at on each member, and how often it was on some only.
    Partly(usize, u32),
    /// The same. Does it use another epoch?
    Behind(usize, u32),
    /// Heartbeats: as each copy has them at first, the node that beat in some copies only, and how often
    /// was looked.
    Copies(Option<Vec<Vec<u8>>>, Option<usize>, u32),
}

impl CopyCheck {
    pub fn new(joiner: &Joiner) -> Self {
        Self {
            joiner: joiner.clone(),
            look: None,
            unasked: Vec::new(),
            others: Vec::new(),
            state: State::Reading,
        }
    }
    /// Ends with what was read.
    ///
    /// # Errors
    /// [`LockError::CopiedMember`], [`LockError::Behind`].
    pub fn step(&mut self, event: Option<Event>) -> Flow<Look> {
        let Some(event) = event else { return act(Action::ReadSlots) };
        match std::mem::replace(&mut self.state, State::Reading) {
            State::Reading => {
                let look = event.slots()?;
                let active = |r: &&SlotRecord| r.state == SlotState::Active;
                self.unasked = look.records.iter().filter(active).rev().cloned().collect();
                self.look = Some(look);
                self.ask()
            }
            State::Locked(record) => {
                if event.is()? {
                    self.others.push(record);
                }
                self.ask()
            }
            State::Partly(at, looks) => match event {
                Event::Is(true) if looks + 1 >= PARTLY_LOOKS => self.ask_behind(at, looks + 1),
                Event::Is(true) => {
                    self.state = State::Partly(at, looks + 1);
                    act(Action::Sleep(self.joiner.timing.beat()))
                }
                Event::Is(false) => self.ask_partly(at + 1, 0),
                Event::Done => self.ask_partly(at, looks),
                Event::Failed(e) => Err(e),
                other => unasked(&other),
            },
            State::Behind(at, looks) => {
                if event.is()? {
                    self.await_behind(at, looks)
                } else {
                    self.refuse(at)
                }
            }
            State::Copies(before, beating, looks) => match event {
                Event::Copies(copies) => self.compare(before, copies, beating, looks),
                Event::Done => self.read_copies(before, beating, looks),
                Event::Failed(e) => Err(e),
                other => unasked(&other),
            },
        }
    }

    /// Which nodes may live: of those whose lock would be seen here, the ones that have it.
    fn ask(&mut self) -> Flow<Look> {
        while let Some(record) = self.unasked.pop() {
            let places = self.look.as_ref().map_or(&[][..], |look| &look.places);
            if self.joiner.identity.sees_lock_of(&record, places) {
                let slot = record.life.slot;
                self.state = State::Locked(record);
                return act(Action::IsLifeLocked(slot));
            }
            self.others.push(record);
        }
        self.ask_partly(0, 0)
    }
    fn ask_partly(&mut self, at: usize, looks: u32) -> Flow<Look> {
        if let Some(record) = self.others.get(at) {
            self.state = State::Partly(at, looks);
            return act(Action::IsLifePartlyLocked(record.life.slot));
        }
        if self.others.is_empty() { self.end() } else { self.read_copies(None, None, 0) }
    }
    fn ask_behind(&mut self, at: usize, looks: u32) -> Flow<Look> {
        let Some(record) = self.others.get(at) else { return self.end() };
        self.state = State::Behind(at, looks);
        act(Action::IsBehind(Box::new(record.clone())))
    }
    fn await_behind(&mut self, at: usize, looks: u32) -> Flow<Look> {
        let Some(record) = self.others.get(at) else { return self.end() };
        let pause = self.joiner.timing.beat();
        if pause * (looks - PARTLY_LOOKS) > Timing::of_slot(record.io_timeout).fence_after() {
            return Err(LockError::Behind { node: record.life, pid: record.pid });
        }
        self.state = State::Partly(at, looks);
        let pid = (looks == PARTLY_LOOKS).then_some(record.pid);
        act(Action::AwaitBehind { slot: record.life.slot, pid, pause })
    }
    fn read_copies(
        &mut self,
        before: Option<Vec<Vec<u8>>>,
        beating: Option<usize>,
        looks: u32,
    ) -> Flow<Look> {
        self.state = State::Copies(before, beating, looks);
        act(Action::ReadHeartbeatCopies)
    }
    fn compare(
        &mut self,
        before: Option<Vec<Vec<u8>>>,
        now: Vec<Vec<u8>>,
        beating: Option<usize>,
        looks: u32,
    ) -> Flow<Look> {
        let Some(before) = before else {
            // One copy has nothing to be compared with.
            return if now.len() < 2 { self.end() } else { self.pause(now, beating, looks) };
        };
        let looks = looks + 1;
        let Some((most, copies)) = self.most_beating(&before, &now) else { return self.end() };
        let beating = match copies {
            0 if looks >= SILENT_BEATS => return self.end(),
            0 => beating,
            // One node that beats in all copies shows that they are of one pool.
            copies if copies >= before.len().min(now.len()) => return self.end(),
            _ => Some(most),
        };
        if looks < FOREIGN_LOCK_BEATS {
            return self.pause(before, beating, looks);
        }
        match beating {
            Some(at) => self.refuse(at),
            None => self.end(),
        }
    }
    fn pause(&mut self, before: Vec<Vec<u8>>, beating: Option<usize>, looks: u32) -> Flow<Look> {
        self.state = State::Copies(Some(before), beating, looks);
        act(Action::Sleep(self.joiner.timing.beat()))
    }
    /// The node whose heartbeats have gone on in most copies, and in how many.
    fn most_beating(&self, before: &[Vec<u8>], now: &[Vec<u8>]) -> Option<(usize, usize)> {
        let len = self.joiner.sector_len;
        let sector = |copy: &[u8], slot: NodeId| {
            copy.chunks(len).nth(usize::from(slot.0)).map(<[u8]>::to_vec)
        };
        let copies_with_beat = |record: &SlotRecord| {
            let slot = record.life.slot;
            let pairs = before.iter().zip(now);
            pairs.filter(|(old, new)| sector(old, slot) != sector(new, slot)).count()
        };
        let counted = self.others.iter().map(copies_with_beat).enumerate();
        counted.max_by_key(|(_, copies)| *copies)
    }
    fn refuse(&mut self, at: usize) -> Flow<Look> {
        let Some(r) = self.others.get(at) else { return self.end() };
        Err(LockError::CopiedMember { node: r.life, host: r.host.as_str().into() })
    }
    #[expect(clippy::unnecessary_wraps, reason = "what every step answers with")]
    fn end(&mut self) -> Flow<Look> {
        let none = Look { records: Vec::new(), places: Vec::new(), by_lock: false };
        Ok(Step::End(self.look.take().unwrap_or(none)))
    }
}
