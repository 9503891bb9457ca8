//! A process: joins, beats, watches, recovers, leaves. The threads and sockets of
//! `braid_lock::node` in virtual time, over its real step.

use std::collections::HashMap;
use std::time::Duration;

use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_format::{Incarnation, NodeId};
use braid_fs::simulation::Metadata;
use braid_lock::dlock::Time;
use braid_lock::glock::Event as LockEvent;
use braid_lock::node::watch::{Recovery, SlotSight, Watch, WatchAction, WatchEvent, freed};
use braid_lock::{Me, Timing};

use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op};
use crate::locks::{Lock, Plan};
use crate::work::{Task, Work};
use crate::world::{Event, Pid, World};

/// Between two heartbeats, and two looks: of nodes of one host; of others, whose `io_timeout` is 40
/// times this.
pub(crate) const BEAT: Duration = Duration::from_millis(50);
pub(crate) const BEAT_OF_HOSTS: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Joining,
    Running,
    /// No new uses; everything is being put in place.
    Leaving,
    /// Dead, or has left.
    Gone,
}

/// What a request was for.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    JoinRead,
    /// Takes over a dead node's slot: what shall stand meanwhile, and at last.
    TakeWrite(Box<SlotRecord>, Box<SlotRecord>),
    TakeSettle(Box<SlotRecord>, Box<SlotRecord>),
    JoinWrite(Box<SlotRecord>),
    JoinSettle(Box<SlotRecord>),
    /// When it was issued.
    Beat(Time),
    /// After its lease was over: whether the slot is its own still, and the beat that said so.
    Renew(Time),
    Sight,
    WatchWrite(Box<SlotRecord>),
    WatchSettle(Box<SlotRecord>),
    LeaveWrite(Box<SlotRecord>),
    LeaveSettle,
    /// Of these devices, the ones from here: so that no power cut makes the slot free again.
    JoinFlush(u16),
    Lock(usize),
    /// Of a lane.
    Work(usize),
}
impl Purpose {
    /// Failures of these reads are handled as in the real code.
    pub(crate) fn may_fail(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Work(_) | Self::Sight | Self::JoinRead)
    }
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub(crate) struct Process {
    pub(crate) node: u16,
    pub(crate) me: Option<Me>,
    pub(crate) state: State,
    pub(crate) fenced: bool,
    /// It left in good order: its liveness lock went with it.
    pub(crate) left: bool,
    /// Its slot shows that it is over.
    pub(crate) recovered: bool,
    pub(crate) stalled_until: Time,
    pub(crate) in_flight: u32,
    pub(crate) tokens: u64,
    pub(crate) requests: HashMap<u64, Purpose>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) work: Option<Work>,
    /// Per thread, since when it waits for a lock.
    pub(crate) waits: Vec<Option<Time>>,
    pub(crate) plans: Vec<Plan>,
    /// The slot that it is taking over: what stands there, and what shall stand.
    taking: Option<(Box<SlotRecord>, Box<SlotRecord>)>,
    watch: Option<Watch>,
    mine: Option<Box<SlotRecord>>,
    slots: Vec<SlotRecord>,
    beats: Vec<Option<Heartbeat>>,
    sequence: u64,
    /// It leaves, and nobody uses a lock any more: none is taken or given up from now on.
    pub(crate) stopped: bool,
    /// Its journal is being closed.
    closing: bool,
    /// Power was cut: nothing of it lands any more.
    pub(crate) cut: bool,
    /// The life that it is, or wants to be.
    pub(crate) life: Option<Me>,
    /// It does nothing after this.
    pub(crate) lease: Time,
    /// Devices that refuse it, and how many requests it had issued before.
    pub(crate) barred: Vec<(u16, u64)>,
    /// Lives that it has fenced, each by the name of its node.
    pub(crate) proofs: Vec<(Me, [u8; 16])>,
    /// Its heartbeats have begun.
    pub(crate) beats_now: bool,
}

impl Process {
    /// Its slot says that it is its own.
    pub(crate) fn has_slot(&self) -> bool {
        self.mine.is_some()
    }
    pub(crate) fn says_dead(&self, life: Me) -> bool {
        self.slots.get(usize::from(life.slot.0)).is_some_and(|r| {
            r.life.incarnation > life.incarnation
                || (r.life == life && (r.state == SlotState::Free || r.is_replayed()))
        })
    }
}

fn bytes_of(record: &SlotRecord) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    record.encode(&mut bytes);
    bytes
}

impl World {
    pub(crate) fn start(&mut self, node: u16) {
        let locks = usize::from(self.cluster.locks);
        let threads = usize::from(self.cluster.threads);
        let pid = self.processes.len();
        self.processes.push(Process {
            node,
            me: None,
            state: State::Joining,
            fenced: false,
            left: false,
            recovered: false,
            stalled_until: Time::ZERO,
            in_flight: 0,
            tokens: 0,
            requests: HashMap::new(),
            locks: (0..locks).map(|l| Lock::new(self.disk.image.lock_no(l), threads)).collect(),
            work: Some(Work::new(self.disk.image.clone(), threads)),
            waits: vec![None; threads],
            plans: vec![Plan::default(); threads],
            taking: None,
            watch: None,
            mine: None,
            slots: Vec::new(),
            beats: vec![None; usize::from(self.cluster.slots)],
            sequence: 0,
            stopped: false,
            closing: false,
            cut: false,
            life: None,
            lease: Time::ZERO,
            barred: Vec::new(),
            proofs: Vec::new(),
            beats_now: false,
        });
        self.submit(pid, Address::Slots, Op::Read, Purpose::JoinRead);
    }

    pub(crate) fn answered(&mut self, pid: Pid, token: u64, answer: Answer) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(purpose) = process.requests.remove(&token) else {
            return self.fail(format!("process {pid} is answered twice"));
        };
        if answer == Answer::Fenced {
            return self.gives_up(pid, &"it has been fenced");
        }
        match (purpose, answer) {
            (Purpose::Lock(lock), answer) => self.lock_answered(pid, lock, answer),
            (Purpose::Work(lane), answer) => self.work_answered(pid, lane, answer),
            (Purpose::JoinFlush(device), _) => self.join_flush(pid, device + 1),
            (Purpose::Beat(issued), answer) => self.beat_answered(pid, issued, &answer),
            (Purpose::Renew(issued), answer) => self.renewed(pid, issued, &answer),
            (Purpose::Sight, Answer::Done(bytes)) => {
                self.see(pid, &bytes);
                self.after(self.beat_len(), Event::Look { pid });
            }
            (Purpose::Sight, _) => self.after(self.beat_len(), Event::Look { pid }),
            (Purpose::JoinRead, Answer::Done(bytes)) => self.claim(pid, &bytes),
            (Purpose::JoinRead, _) => self.join_again(pid),
            (Purpose::TakeWrite(taking, mine), Answer::Failed) => {
                let slot = Address::Slot(mine.life.slot.0);
                self.submit(pid, slot, Op::Read, Purpose::TakeSettle(taking, mine));
            }
            (Purpose::TakeWrite(taking, mine), answer) => {
                let done = stands(&answer, &taking);
                self.taken(pid, &taking, &mine, done);
            }
            (Purpose::TakeSettle(taking, mine), answer) => {
                let done = answer == Answer::Done(bytes_of(&taking));
                self.taken(pid, &taking, &mine, done);
            }
            (Purpose::JoinWrite(new), Answer::Failed) => {
                let slot = Address::Slot(new.life.slot.0);
                self.submit(pid, slot, Op::Read, Purpose::JoinSettle(new));
            }
            (Purpose::JoinWrite(new), answer) => {
                let done = stands(&answer, &new);
                self.joined(pid, new, done);
            }
            (Purpose::JoinSettle(new), answer) => {
                let done = answer == Answer::Done(bytes_of(&new));
                self.joined(pid, new, done);
            }
            (Purpose::WatchWrite(new), Answer::Failed) => {
                let slot = Address::Slot(new.life.slot.0);
                self.submit(pid, slot, Op::Read, Purpose::WatchSettle(new));
            }
            (Purpose::WatchWrite(new), answer) => {
                self.wrote_slot(pid, new.life.slot, stands(&answer, &new));
            }
            (Purpose::WatchSettle(new), answer) => {
                let done = answer == Answer::Done(bytes_of(&new));
                self.wrote_slot(pid, new.life.slot, done);
            }
            (Purpose::LeaveWrite(new), Answer::Failed) => {
                let slot = Address::Slot(new.life.slot.0);
                self.submit(pid, slot, Op::Read, Purpose::LeaveSettle);
            }
            (Purpose::LeaveWrite(_) | Purpose::LeaveSettle, _) => self.has_left(pid),
        }
    }

    /// Chooses a free slot, or if there is none one whose process is dead, and takes its
    /// liveness lock.
    fn claim(&mut self, pid: Pid, bytes: &[u8]) {
        let mut slots = self.decode_slots(bytes);
        let own = self.identity_of(pid);
        // Of an earlier boot: the power cut has ended all.
        let of_host = |r: &SlotRecord| own.is_boot_of(r) || own.is_earlier_boot_of(r);
        slots.retain(|r| {
            !self.lives.contains_key(&self.life_key(pid, r.life.slot.0))
                && (r.state == SlotState::Free || of_host(r))
        });
        let free: Vec<_> = slots.iter().filter(|r| r.state == SlotState::Free).collect();
        if !free.is_empty() {
            let old = (*self.random.pick(&free)).clone();
            let mine = self.next_life(pid, &old);
            return self.write_slot(pid, &old, &mine, Purpose::JoinWrite(mine.clone()));
        }
        let own = |r: &SlotRecord| r.recoverer.is_none_or(|by| by.slot == r.life.slot);
        slots.retain(own);
        if slots.is_empty() {
            return self.join_again(pid);
        }
        let old = self.random.pick(&slots).clone();
        let mine = self.next_life(pid, &old);
        let mut taking = mine.clone();
        taking.state = SlotState::Recovering;
        taking.recoverer = Some(mine.life);
        taking.life = old.life;
        taking.nonce = self.nonce();
        self.write_slot(pid, &old, &taking, Purpose::TakeWrite(taking.clone(), mine));
    }

    fn write_slot(&mut self, pid: Pid, old: &SlotRecord, new: &SlotRecord, purpose: Purpose) {
        let op = Op::CompareAndWrite { expected: bytes_of(old), new: bytes_of(new) };
        self.submit(pid, Address::Slot(new.life.slot.0), op, purpose);
    }

    fn next_life(&mut self, pid: Pid, old: &SlotRecord) -> Box<SlotRecord> {
        let slot = old.life.slot;
        self.lives.insert(self.life_key(pid, slot.0), pid);
        let last = old.recoverer.filter(|by| by.slot == slot).unwrap_or(old.life);
        let host = self.identity_of(pid);
        let life = Me { slot, incarnation: Incarnation(last.incarnation.0 + 1) };
        let lease = self.now + Timing::of_beat(self.beat_len()).lease();
        if let Some(process) = self.processes.get_mut(pid) {
            (process.life, process.lease) = (Some(life), lease);
        }
        Box::new(SlotRecord {
            life,
            state: SlotState::Active,
            recoverer: None,
            node_uuid: (pid as u128 + 1).to_le_bytes(),
            nonce: self.nonce(),
            boot_id: host.boot_id,
            machine_id: host.machine_id,
            host: host.host,
            io_timeout: Timing::of_beat(self.beat_len()).milliseconds(),
            ..old.clone()
        })
    }

    /// The dead node's slot is ours to recover, or not.
    fn taken(&mut self, pid: Pid, taking: &SlotRecord, mine: &SlotRecord, done: bool) {
        if !done {
            return self.join_again(pid);
        }
        if let Some(process) = self.processes.get_mut(pid) {
            process.taking = Some((Box::new(taking.clone()), Box::new(mine.clone())));
        }
        self.begin_beats(pid);
        self.begin_recovery(pid, taking.life);
    }

    fn join_again(&mut self, pid: Pid) {
        self.lives.retain(|_, holder| *holder != pid);
        let pause = self.random.time(Duration::from_millis(100));
        let Some(process) = self.processes.get_mut(pid) else { return };
        // The process as such goes on; it is simpler to start another in its place.
        process.state = State::Gone;
        process.left = true;
        process.work = None;
        let node = process.node;
        self.after(pause, Event::Start(node));
    }

    fn joined(&mut self, pid: Pid, mine: Box<SlotRecord>, done: bool) {
        if !done {
            return self.join_again(pid);
        }
        let me = mine.life;
        if self.processes.iter().any(|p| p.me == Some(me)) {
            return self.fail(format!("{me:?} lives twice"));
        }
        let Some(process) = self.processes.get_mut(pid) else { return };
        process.mine = Some(mine);
        self.begin_beats(pid);
        self.join_flush(pid, 0);
    }
    /// Its slot names it: on hosts of their own the others wait for its beats from now on.
    fn begin_beats(&mut self, pid: Pid) {
        let hosts = self.cluster.hosts;
        let Some(process) = self.processes.get_mut(pid) else { return };
        if hosts && !std::mem::replace(&mut process.beats_now, true) {
            self.after(Duration::ZERO, Event::Beat { pid });
        }
    }
    /// Until its slot is durably its own, a power cut may give the same life to another.
    fn join_flush(&mut self, pid: Pid, device: u16) {
        if device < self.cluster.devices {
            let address = Address::Device(device);
            return self.submit(pid, address, Op::Flush, Purpose::JoinFlush(device));
        }
        let Some(process) = self.processes.get_mut(pid) else { return };
        let me = process.mine.as_ref().map(|mine| mine.life);
        process.me = me;
        self.note(|| format!("process {pid} is {me:?}"));
        // One that was stopped for long while it joined may have been recovered meanwhile.
        let over = me.map(|me| self.disk.slot(me.slot.0).map(|record| is_over(&record, me)));
        match over.transpose() {
            Err(e) => return self.fail(e),
            Ok(over) => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.recovered = over == Some(true);
                }
            }
        }
        self.work(pid, Task::Open);
    }
    /// The journal is its own: it runs.
    pub(crate) fn opened(&mut self, pid: Pid, metadata: Metadata) {
        let (identity, beat) = (self.identity_of(pid), self.beat_len());
        let Some(process) = self.processes.get_mut(pid) else { return };
        let begins = !std::mem::replace(&mut process.beats_now, true);
        let (Some(me), Some(work)) = (process.me, &mut process.work) else { return };
        work.metadata = Some(metadata);
        process.state = State::Running;
        process.watch = Some(Watch::new(me, identity, beat));
        if begins {
            self.after(Duration::ZERO, Event::Beat { pid });
        }
        self.after(beat / 2, Event::Look { pid });
        for thread in 0..usize::from(self.cluster.threads) {
            let pause = self.random.time(Duration::from_millis(20));
            self.after(pause, Event::Thread { pid, thread });
        }
    }
    /// It cannot go on: as a crash, but by its own decision.
    pub(crate) fn gives_up(&mut self, pid: Pid, why: &dyn std::fmt::Display) {
        self.note(|| format!("process {pid} gives up: {why}"));
        self.crash(pid);
    }

    pub(crate) fn beat(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(life) = process.me.or(process.life) else { return };
        process.sequence += 1;
        let beat = Heartbeat {
            life,
            pool_epoch: 1,
            pool_change: 0,
            sequence: process.sequence,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            wishes: process.locks.iter().filter_map(Lock::wish).collect(),
        };
        let mut bytes = vec![0; LEN];
        beat.encode(&mut bytes);
        self.submit(pid, Address::Beat(life.slot.0), Op::Write(bytes), Purpose::Beat(self.now));
        self.after(self.beat_len(), Event::Beat { pid });
        // Work does not follow the beat of faster ones.
        let often = if self.cluster.hosts { 40 } else { 8 };
        match self.random.below(often) {
            0 => self.commit(pid),
            1 if self.cluster.checkpoints => self.checkpoint(pid),
            _ => {}
        }
    }

    fn decode_slots(&mut self, bytes: &[u8]) -> Vec<SlotRecord> {
        let sectors = bytes.chunks_exact(LEN);
        let decoded: Result<Vec<_>, _> = (0..self.cluster.slots)
            .zip(sectors)
            .map(|(slot, sector)| SlotRecord::decode(sector, NodeId(slot)))
            .collect();
        decoded.unwrap_or_else(|e| {
            self.fail(e.to_string());
            Vec::new()
        })
    }

    fn see(&mut self, pid: Pid, bytes: &[u8]) {
        let slots = self.decode_slots(bytes);
        let beats = bytes.chunks_exact(LEN).skip(slots.len());
        let beats: Vec<Option<Heartbeat>> = (0..self.cluster.slots)
            .zip(beats)
            .map(|(slot, sector)| Heartbeat::decode(sector, NodeId(slot)).ok())
            .collect();
        let sight = slots
            .iter()
            .zip(&beats)
            .map(|(record, beat)| SlotSight {
                record: record.clone(),
                sequence: beat.as_ref().filter(|b| b.life == record.acting()).map(|b| b.sequence),
                life_locked: self.sees_alive(pid, record),
                witnessed: self.identity_of(pid).is_boot_of(record),
                stranger: false,
                proven: self.has_proven(pid, record),
                fenceable: self.cluster.hosts,
            })
            .collect();
        let Some(process) = self.processes.get_mut(pid) else { return };
        process.slots = slots;
        process.beats = beats;
        // A leaving node watches until it frees its slot.
        if process.mine.is_some() {
            self.watch(pid, WatchEvent::Sight(sight));
        }
        self.heed_wishes(pid);
    }

    /// As `Membership` does: nodes in the way look; sometimes everybody does, for a late write may
    /// have made one a holder that does not know.
    fn heed_wishes(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(pid) else { return };
        let others = process.beats.iter().flatten().filter(|b| Some(b.life) != process.me);
        let wishes: Vec<_> = others.flat_map(|b| b.wishes.clone()).collect();
        for (lock, mode) in wishes {
            let stubborn = self.random.below(8) == 0;
            let Some(process) = self.processes.get(pid) else { return };
            let found = process.locks.iter().position(|l| l.number() == lock);
            let Some(at) = found else { continue };
            self.step(pid, at, if stubborn { LockEvent::Look } else { LockEvent::Wished(mode) });
        }
    }

    pub(crate) fn watch(&mut self, pid: Pid, event: WatchEvent) {
        let (now, nonce) = (self.now, self.nonce());
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(watch) = &mut process.watch else { return };
        for action in watch.step(now, nonce, event) {
            match action {
                WatchAction::Write { expected, new } => {
                    self.write_slot(pid, &expected, &new, Purpose::WatchWrite(new.clone()));
                }
                WatchAction::Recover(dead) => self.begin_recovery(pid, dead.life),
                // Nothing here needs locks after the replay.
                WatchAction::Finish(_) => self.watch(pid, WatchEvent::Finished(Recovery::Done)),
                WatchAction::Fence(record) => self.begin_fence(pid, &record),
                WatchAction::Suspect(life) => {
                    // Of an earlier boot: not yet recovered.
                    if !self.processes.iter().any(|p| p.me == Some(life) && p.cut) {
                        self.fail(format!("{life:?} is suspected on its own host"));
                    }
                }
                WatchAction::Distrust(life) | WatchAction::Stranger(life) => {
                    self.fail(format!("{life:?} beats, and its liveness lock is not seen"));
                }
                WatchAction::Evicted if self.cluster.hosts => {
                    self.gives_up(pid, &"its slot was taken from it");
                    return;
                }
                WatchAction::Evicted => {
                    self.fail(format!("process {pid} was evicted although it lives"));
                }
                WatchAction::Gone(_) => {
                    for lock in 0..usize::from(self.cluster.locks) {
                        if self.lock_waits(pid, lock) {
                            self.step(pid, lock, LockEvent::Look);
                        }
                    }
                }
            }
        }
    }

    fn wrote_slot(&mut self, pid: Pid, slot: NodeId, done: bool) {
        self.watch(pid, WatchEvent::Wrote(slot, done));
        self.leave_if_done(pid);
    }

    fn begin_recovery(&mut self, pid: Pid, dead: Me) {
        if self.check_fenced(pid, dead) {
            self.note(|| format!("process {pid} recovers {dead:?}"));
            if self.cluster.sabotage == Some(Sabotage::SkipReplay) {
                return self.recovered_by(pid, dead, true);
            }
            self.work(pid, Task::Recover { dead });
        }
    }

    /// Nothing of `dead` is under way any more.
    fn check_fenced(&mut self, pid: Pid, dead: Me) -> bool {
        let owner = self.processes.iter().find(|p| p.me == Some(dead));
        // A life whose claim landed late never was a process.
        let fenced = owner
            .is_none_or(|p| (p.state == State::Gone || self.cluster.hosts) && (p.fenced || p.left));
        if !fenced {
            self.fail(format!("process {pid} recovers {dead:?}, which is not fenced"));
        }
        fenced
    }

    pub(crate) fn recovered_by(&mut self, pid: Pid, dead: Me, done: bool) {
        self.note(|| format!("process {pid} has recovered {dead:?}: {done}"));
        let lease = self.now + Timing::of_beat(self.beat_len()).lease();
        let Some(process) = self.processes.get_mut(pid) else { return };
        match process.taking.take() {
            Some((taking, mine)) if done => {
                process.lease = lease;
                self.write_slot(pid, &taking, &mine, Purpose::JoinWrite(mine.clone()));
            }
            Some(_) => self.gives_up(pid, &"cannot recover the slot that it wants"),
            None => {
                let outcome = if done { Recovery::Done } else { Recovery::Failed };
                self.watch(pid, WatchEvent::Recovered(dead.slot, outcome));
                self.leave_if_done(pid);
            }
        }
    }

    /// A slot changed on the device: whose life is over?
    pub(crate) fn slot_changed(&mut self, slot: u16) {
        let record = match self.disk.slot(slot) {
            Ok(record) => record,
            Err(e) => return self.fail(e),
        };
        let mut over = Vec::new();
        for process in &mut self.processes {
            if let Some(me) = process.me
                && me.slot == record.life.slot
                && !process.recovered
                && is_over(&record, me)
            {
                process.recovered = true;
                over.push(me);
            }
        }
        for me in over {
            self.check_recovered(me);
        }
    }

    pub(crate) fn leave(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(pid)
            && process.state == State::Running
        {
            process.state = State::Leaving;
            self.note(|| format!("process {pid} leaves"));
            self.leave_if_done(pid);
        }
    }

    /// Once nothing is used, waited for or dirty, the slot is freed. A recovery under way is
    /// waited for as well.
    pub(crate) fn leave_if_done(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let recovering = process.watch.as_ref().is_some_and(Watch::is_recovering);
        if process.state != State::Leaving || recovering {
            return;
        }
        if process.locks.iter().any(Lock::in_use) {
            return;
        }
        process.stopped = true;
        if let Some(lock) = process.locks.iter().position(|l| !l.settled()) {
            self.settle_for_leave(pid, lock);
        } else if !std::mem::replace(&mut process.closing, true) {
            self.work(pid, Task::Close);
        }
    }
    /// The journal is clean.
    pub(crate) fn closed(&mut self, pid: Pid) {
        let nonce = self.nonce();
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(mine) = process.mine.take() else { return };
        let new = Box::new(freed(&mine, nonce));
        self.write_slot(pid, &mine, &new, Purpose::LeaveWrite(new.clone()));
    }

    /// Whether or not the slot was freed: nothing dirty is left, so others may recover it.
    fn has_left(&mut self, pid: Pid) {
        self.lives.retain(|_, holder| *holder != pid);
        let Some(process) = self.processes.get_mut(pid) else { return };
        process.state = State::Gone;
        process.left = true;
        process.work = None;
        let node = process.node;
        self.note(|| format!("process {pid} has left"));
        let pause = self.random.time(Duration::from_millis(300));
        self.after(pause, Event::Start(node));
    }
}

/// The slot of `life` shows that it was recovered, or left.
fn is_over(record: &SlotRecord, life: Me) -> bool {
    life.incarnation < record.life.incarnation
        || record.state == SlotState::Free
        || record.is_replayed()
}

fn stands(answer: &Answer, new: &SlotRecord) -> bool {
    match answer {
        Answer::Done(_) => true,
        Answer::Mismatch(stands) => *stands == bytes_of(new),
        Answer::Failed | Answer::Fenced => false,
    }
}
