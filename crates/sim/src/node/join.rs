//! How a process comes by a slot: does what the steps of `braid_lock::node::join` say.

use std::sync::Arc;
use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};
use braid_lock::node::NotRecovered;
use braid_lock::node::join::{Action, Event, Join, Joined, Joiner, Look};
use braid_lock::node::slot_write::Outcome;
use braid_lock::node::watch::Watch;
use braid_lock::{Life, LockError, StoreError};

use super::slots::For;
use super::{Purpose, State};
use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op};
use crate::work::Task;
use crate::world::{Event as WorldEvent, Pid, World};

/// What a look of a join is at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reads {
    Slots,
    Heartbeats,
    Copies,
}

pub(super) fn failed() -> LockError {
    let why = std::io::Error::other("the device failed");
    LockError::NodeStore(StoreError::Device(Arc::new(why)))
}

impl World {
    pub(crate) fn begin_join(&mut self, pid: Pid) {
        let join = Join::new(Joiner {
            identity: self.identity_of(pid),
            timing: self.timing(),
            slot: None,
            slots: self.cluster.slots,
            sector_len: LEN,
            fs: uuid::Uuid::nil(),
        });
        if let Some(member) = self.member(pid) {
            member.join = Some(join);
        }
        self.join_step(pid, Event::Begin);
    }

    /// A pause of the join is over.
    pub(crate) fn join_goes_on(&mut self, pid: Pid) {
        self.join_step(pid, Event::Done);
    }
    pub(super) fn join_read(&mut self, pid: Pid, reads: Reads, answer: Answer) {
        let Answer::Done(mut bytes) = answer else {
            return self.join_step(pid, Event::Failed(failed()));
        };
        let beats = bytes.split_off(usize::from(self.cluster.slots) * LEN);
        let event = match reads {
            Reads::Slots => {
                let (records, places) = (self.decode_slots(&bytes), self.places_of(pid));
                if self.fails_for_one(&records) {
                    return self.join_step(pid, Event::Failed(failed()));
                }
                Event::Slots(Look { records, places, by_lock: false })
            }
            Reads::Heartbeats => Event::Heartbeats(beats),
            Reads::Copies => Event::Copies(vec![beats]),
        };
        self.join_step(pid, event);
    }
    pub(super) fn join_wrote(&mut self, pid: Pid, outcome: Outcome) {
        let failed = Event::Failed(failed());
        let event = if outcome == Outcome::Failed { failed } else { Event::Wrote(outcome) };
        self.join_step(pid, event);
    }
    pub(super) fn fenced_to_join(&mut self, pid: Pid, fenced: bool) {
        self.join_step(pid, Event::Is(fenced));
    }
    pub(super) fn recovered_to_join(&mut self, pid: Pid, done: bool) {
        self.end_beats(pid);
        if let Some(member) = self.member(pid) {
            member.watch = None;
            member.fencings.clear();
        }
        let failed = || NotRecovered::Failed("a read failed".into());
        let how = if done { Ok(()) } else { Err(failed()) };
        self.join_step(pid, Event::Recovered(how));
    }

    fn join_step(&mut self, pid: Pid, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let now = self.clock(pid);
            let Some(join) = self.member(pid).and_then(|m| m.join.as_mut()) else { return };
            let action = join.step(now, event);
            next = self.join_action(pid, action);
        }
    }
    /// Does what is done at once, and gives back the answer; begins what is answered later.
    fn join_action(&mut self, pid: Pid, action: Action) -> Option<Event> {
        match action {
            Action::ReadSlots | Action::ReadSlot(_) => self.join_look(pid, Reads::Slots),
            Action::ReadHeartbeats => self.join_look(pid, Reads::Heartbeats),
            Action::ReadHeartbeatCopies => self.join_look(pid, Reads::Copies),
            Action::IsLifeLocked(slot) => Some(Event::Is(self.is_life_locked(pid, slot))),
            // Nobody changes the members here.
            // Who joins fences nobody but the node whose slot it takes.
            Action::IsFenced(_) | Action::IsLifePartlyLocked(_) | Action::IsBehind(_) => {
                Some(Event::Is(false))
            }
            Action::Sleep(pause)
            | Action::AwaitSlot { pause, .. }
            | Action::AwaitBehind { pause, .. } => {
                self.after(pause, WorldEvent::Join { pid });
                None
            }
            Action::LockLife(slot) => Some(Event::Is(self.lock_life(pid, slot))),
            Action::Follow if self.cluster.mirrors.is_some() => {
                self.work(pid, Task::Follow { joins: true });
                None
            }
            Action::Confirm | Action::Follow => Some(Event::Done),
            Action::Prepare(life) => Some(Event::Prepared(self.prepare(pid, life))),
            Action::Register(key) => {
                let key = if self.cluster.hosts { key } else { 0 };
                let member = self.member(pid)?;
                member.key = key;
                Some(Event::Registered(key))
            }
            Action::Fence(..) if self.cluster.sabotage == Some(Sabotage::TrustSilence) => {
                Some(Event::Is(true))
            }
            Action::Fence(record, _) => {
                self.begin_fence(pid, record);
                None
            }
            Action::Write { expected, new } => {
                let now = self.now;
                self.member(pid)?.begun = now;
                self.write_slot(pid, &expected, &new, For::Join);
                None
            }
            Action::TakeKey(record, _) => {
                self.take_key(pid, &record);
                Some(Event::Done)
            }
            Action::Recover { dead, .. } => {
                self.begin_beats(pid, 0);
                self.watch_to_join(pid);
                self.begin_recovery(pid, dead.life);
                None
            }
            Action::LetGo { .. } => {
                self.let_life_go(pid);
                Some(Event::Done)
            }
            Action::End(Ok(mine)) => {
                self.joined(pid, mine);
                None
            }
            Action::End(Err(e)) => {
                self.note(|| format!("process {pid} cannot join: {e}"));
                self.join_again(pid);
                None
            }
        }
    }

    /// While it recovers whose slot it takes, and until it runs, it fences those that are silent.
    pub(super) fn watch_to_join(&mut self, pid: Pid) {
        if self.cluster.mirrors.is_none() {
            return;
        }
        let (identity, beat) = (self.identity_of(pid), self.beat_len());
        let Some(member) = self.member(pid) else { return };
        let Some(life) = member.life else { return };
        member.watch = Some(Watch::new(life, identity, beat));
        if !std::mem::replace(&mut member.looks, true) {
            self.after(beat, WorldEvent::Look { pid });
        }
    }
    fn join_look(&mut self, pid: Pid, reads: Reads) -> Option<Event> {
        self.submit(pid, Address::Slots, Op::Read, Purpose::Join(reads));
        None
    }
    fn lock_life(&mut self, pid: Pid, slot: NodeId) -> bool {
        let place = self.place_of(pid);
        let free = !self.lives.contains_key(&(place, slot.0));
        if free {
            self.lives.insert((place, slot.0), pid);
        }
        free
    }
    /// Its liveness lock, and its key.
    pub(super) fn let_life_go(&mut self, pid: Pid) {
        self.lives.retain(|_, holder| *holder != pid);
        if let Some(member) = self.member(pid) {
            (member.key, member.life) = (0, None);
        }
    }
    fn prepare(&mut self, pid: Pid, life: Life) -> Box<SlotRecord> {
        let (host, nonce) = (self.identity_of(pid), self.nonce());
        let lock_places = vec![self.place_of(pid)];
        self.peers.lives(pid, life);
        if let Some(member) = self.member(pid) {
            member.life = Some(life);
        }
        Box::new(SlotRecord {
            life,
            state: SlotState::Active,
            node_uuid: (pid as u128 + 1).to_le_bytes(),
            nonce,
            boot_id: host.boot_id,
            machine_id: host.machine_id,
            host: host.host,
            io_timeout: self.timing().milliseconds(),
            lock_places,
            ..SlotRecord::free(life.slot)
        })
    }

    fn joined(&mut self, pid: Pid, mine: Joined) {
        let me = mine.life;
        if self.processes.iter().any(|p| p.me == Some(me)) {
            return self.fail(format!("{me:?} lives twice"));
        }
        let Some(member) = self.member(pid) else { return };
        member.join = None;
        member.mine = Some(mine);
        self.join_flush(pid, 0);
    }
    fn join_again(&mut self, pid: Pid) {
        self.let_life_go(pid);
        let pause = self.random.time(Duration::from_millis(100));
        let Some(process) = self.processes.get_mut(pid) else { return };
        // The process as such goes on; it is simpler to start another in its place.
        process.state = State::Gone;
        process.left = true;
        process.work = None;
        process.member.join = None;
        let node = process.node;
        self.peers.left(pid);
        self.after(pause, WorldEvent::Start(node));
    }
}
