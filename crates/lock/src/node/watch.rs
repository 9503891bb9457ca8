//! Who is dead, and who recovers whom: a pure state machine over what the watcher sees.
//!
//! ```text
//!                      lock gone twice, no new beat (this kernel sees its lock)
//!   Active(other) ---- earlier boot of this machine, silent -------> Claim --written--> Recover
//!        |                                                             ^                   |
//!        | silent, and its lock, if that is seen here, still held       |                   v
//!        v                                            Recovering(by a dead node)    say: replayed
//!      Fence ---- done, or the operator vouches: proven ---------------^                   |
//!        | no way to do so                                                                 v
//!        v                                                              Finish --> Free the slot
//!     Suspect: said once, nothing is done
//! ```
//!
//! Each slot has a task of its own. Recovering a redundancy log may wait for regions of a node that is
//! silent and not fenced yet, finishing takes locks that another dead node may hold: neither keeps the
//! watcher from looking, nor from fencing and recovering further nodes.
//!
//! Invariants:
//! * recovery begins only after a fence: the liveness lock of a process ends with its last descriptor,
//!   so nothing of it is in flight any more. That holds only where both nodes lock one inode under one
//!   kernel, which the slot says; and a node whose heartbeats come while its lock is not seen is never
//!   again believed dead for the lack of that lock;
//! * any other node is never dead by silence alone, but for those of an earlier boot of this machine; one
//!   whose lock is seen here, and held, is fenced by ending its process;
//! * one recoverer of a slot at a time: the claim is a compare-and-write against the record seen;
//! * a slot is freed only by its recoverer, or by its own node;
//! * a recoverer's own journal is replayed before what it was recovering is looked at: it may have
//!   changed the windows of the dead one;
//! * a recovery is finished only by a node that has ended its first half itself: that the journal is
//!   replayed, which the slot says from then on, does not say that what was begun again is done;
//! * every step may be repeated: a recoverer that dies leaves a record that says so.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{SlotDamage, SlotRecord, SlotState};

use super::Timing;
pub use super::host::{HostIdentity, this_host};
pub use super::life::freed;
use super::life::has_no_journal;
pub use super::observation::SlotObservation;
use crate::Life;
use crate::dlock::Time;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WatchEvent {
    /// A look at all slots.
    Observed(Vec<SlotObservation>),
    /// Answer to [`WatchAction::Write`] of this slot: whether the new record stands.
    Wrote(NodeId, bool),
    /// Answer to [`WatchAction::Fence`] of this slot's node: whether it is fenced. The next look says so
    /// too.
    Fenced(NodeId, bool),
    /// Answer to [`WatchAction::Recover`] of this slot's node.
    Recovered(NodeId, Recovery),
    /// Answer to [`WatchAction::Finish`].
    Finished(Recovery),
}

/// How a recovery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// All is in place and stable.
    Done,
    /// Perhaps it works next time.
    Failed,
    /// It cannot go on before this is repaired.
    Damaged(SlotDamage),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WatchAction {
    /// Compare-and-write a slot record.
    Write {
        /// What was seen.
        expected: Box<SlotRecord>,
        /// What shall stand.
        new: Box<SlotRecord>,
    },
    /// Fence the node in this slot, which is silent: of another host, or of this one and its process has
    /// not ended.
    Fence(Box<SlotRecord>),
    /// Recover a fenced node, as far as that needs no lock.
    Recover(Box<SlotRecord>),
    /// End what a recovered node had begun.
    Finish(Box<SlotRecord>),
    /// Say that a node has been silent for long and nothing can be done without a fence.
    Suspect(Life),
    /// Our own slot is no longer ours: stop everything.
    Evicted,
    /// Somebody was recovered or left: who waits for its locks looks again.
    Gone(Life),
    /// Its heartbeats come while its liveness lock is not seen: say so.
    Distrust(Life),
    /// It lives, and changes records under locks that exclude nobody here: stop everything.
    ForeignLocks(Life),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Track {
    life: Life,
    /// Whose heartbeats these are: the node's, or those of who takes its slot over.
    actor: Life,
    sequence: Option<u64>,
    /// Since when the sequence stands still.
    since: Time,
    /// Looks in a row at which the liveness lock was gone and no beat had come.
    unlocked: u32,
    /// When that was so first.
    unlocked_since: Time,
    /// Of these, at which a new beat had come.
    beats_unlocked: u32,
    /// The actor has beaten without its lock: the lock says nothing about it.
    distrusted: bool,
    /// New beats in a row while its locks were foreign; at first so many that one more is too many.
    foreign_beats: u32,
    suspected: bool,
    gone: bool,
}

impl Track {
    /// Whether its liveness lock was seen to be held, at a look.
    fn note_lock(&mut self, now: Time, held: bool) {
        if held {
            (self.unlocked, self.beats_unlocked) = (0, 0);
            return;
        }
        if self.unlocked == 0 {
            self.unlocked_since = now;
        }
        self.unlocked += 1;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    Fencing(Life),
    Claiming(Box<SlotRecord>),
    Recovering(Box<SlotRecord>),
    /// Saying that the journal is replayed.
    Publishing(Box<SlotRecord>),
    Freeing(Box<SlotRecord>),
    /// Writing down what is damaged.
    Noting,
}

/// A recovery whose second half is under way, beside whatever else is done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Finishing {
    record: Box<SlotRecord>,
    /// How it ended, until that can be written down.
    ended: Option<Recovery>,
}

/// A recovery that did not succeed is not begun again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause {
    life: Life,
    until: Time,
    /// Beats.
    length: u32,
}

/// The watcher of one node.
#[derive(Debug, Clone)]
pub struct Watch {
    me: Life,
    identity: HostIdentity,
    beat: Duration,
    tracks: HashMap<NodeId, Track>,
    pauses: HashMap<NodeId, Pause>,
    /// What is under way for each slot.
    tasks: BTreeMap<NodeId, Task>,
    /// The lives whose recovery has come so far here, since they were claimed last, that it can be finished.
    recovered: HashMap<NodeId, Life>,
    finishing: Option<Finishing>,
    /// When it looked last.
    looked: Option<Time>,
    /// In what time the next look is due after that.
    rest: Duration,
    /// Whose liveness locks were seen to be held then, and say whether they live.
    locked: Vec<NodeId>,
}

impl Watch {
    /// Looks in a row without liveness lock, over a beat at least, that prove death, of a node whose lock
    /// would be seen, if it shows no heartbeat for as long as one that lives may need for that.
    pub const LOOKS: u32 = 2;
    /// New beats in a row without liveness lock, after the first look without it, by which the lock is
    /// found to say nothing. The first of them may have been written before the lock was let go.
    pub const BEATS_DISTRUSTED: u32 = 2;
    /// New beats in a row by which a node that shared its locks with this one before is known to do so no
    /// more: an `io_timeout`. When the members that carry the locks change, each node writes that into its
    /// own slot, which takes one compare-and-write; no node needs longer for one and keeps its lease.
    pub const BEATS_FOREIGN: u32 = Timing::BEATS;
    /// Beats without a look, where one in each beat was meant, after which what was not seen meanwhile counts for
    /// nothing.
    pub const GAP_BEATS: u32 = 4;
    /// Longest pause between two attempts to recover a node, in beats.
    pub const PAUSE_BEATS_MAX: u32 = 240;
    /// Beats between two looks while all is quiet and every other node's liveness lock is seen: that says
    /// sooner than any look that a node has died.
    pub const QUIET_BEATS: u32 = 6;
    /// The same, if there is a node whose lock is not seen: its heartbeats alone say that it lives.
    pub const QUIET_BEATS_UNSEEN: u32 = 2;
    /// Beats without a new heartbeat of a node after which it is looked at in each beat.
    pub const SILENT_BEATS: u32 = 3;
    /// Most nodes that are fenced at a time. Apart from the recoveries: those may wait for a fence.
    pub const FENCES_MAX: usize = 4;
    /// Most nodes that are claimed and recovered at a time.
    pub const RECOVERIES_MAX: usize = 32;

    /// The watcher of `me` on the host `identity`, with `beat` between heartbeats.
    pub fn new(me: Life, identity: HostIdentity, beat: Duration) -> Self {
        Self {
            me,
            identity,
            beat,
            tracks: HashMap::new(),
            pauses: HashMap::new(),
            tasks: BTreeMap::new(),
            recovered: HashMap::new(),
            finishing: None,
            looked: None,
            rest: beat,
            locked: Vec::new(),
        }
    }
    /// In what time after a look the next one is due, if all else is quiet: a beat, unless everybody is seen to be
    /// well. It is due at once if one of [`Self::locked`] lets its liveness lock go. No fence begins later for this
    /// than with a look in each beat, once the last heartbeat was seen.
    pub fn rest(&self) -> Duration {
        if self.is_recovering() { self.beat } else { self.rest }
    }
    /// The slots whose liveness locks were seen to be held at the last look, and end with their nodes.
    pub fn locked(&self) -> &[NodeId] {
        &self.locked
    }
    /// A recovery is under way here, or something else that is to be seen through.
    pub fn is_recovering(&self) -> bool {
        !self.tasks.is_empty() || self.finishing.is_some()
    }
    /// A dead node's slot is this one's, and it is at work on it.
    pub fn has_claimed(&self) -> bool {
        let of_slot =
            |t: &Task| matches!(t, Task::Recovering(_) | Task::Publishing(_) | Task::Freeing(_));
        self.finishing.is_some() || self.tasks.values().any(of_slot)
    }

    /// Takes an event, says what to do. `nonce` was never used before in a slot record: for the
    /// write that this step may issue.
    pub fn step(&mut self, now: Time, nonce: u64, event: WatchEvent) -> Vec<WatchAction> {
        match event {
            WatchEvent::Observed(slots) => self.look(now, nonce, &slots),
            WatchEvent::Wrote(slot, written) => self.wrote(slot, written),
            WatchEvent::Fenced(slot, fenced) => self.fenced(now, slot, fenced),
            WatchEvent::Recovered(slot, outcome) => self.recovered(now, nonce, slot, outcome),
            WatchEvent::Finished(outcome) => self.finished(now, nonce, outcome),
        }
    }

    fn look(&mut self, now: Time, nonce: u64, slots: &[SlotObservation]) -> Vec<WatchAction> {
        let mut out = Vec::new();
        self.forgive(now);
        for observed in slots {
            self.track(now, observed, &mut out);
        }
        self.plan(now, slots);
        if let Some(mine) = slots.iter().find(|s| s.record.life.slot == self.me.slot)
            && (mine.record.life != self.me
                || mine.record.state != SlotState::Active
                || mine.record.vouched)
        {
            out.push(WatchAction::Evicted);
            return out;
        }
        self.begin_fences(now, slots, &mut out);
        out.extend(self.end_finishing(now, nonce));
        // If another node was finishing a dead node, too, that is recovered from the beginning: the other
        // may have been writing by the dead node's redundancy log, to take its slot.
        let (recovered, left): (Vec<_>, Vec<_>) = slots
            .iter()
            .filter(|s| self.is_due(now, s, slots))
            .map(|s| &s.record)
            .partition(|r| self.has_recovered(r));
        let fencing = self.fences_under_way();
        let most = (fencing + Self::RECOVERIES_MAX).saturating_sub(self.tasks.len());
        // Each write of this step needs a nonce of its own in its slot only.
        for dead in left.into_iter().take(most) {
            out.push(self.claim(dead, nonce));
        }
        if let Some(dead) = recovered.first().filter(|_| self.finishing.is_none()) {
            out.push(self.finish(Box::new((*dead).clone())));
        }
        out
    }

    /// When to look next, and at which locks meanwhile.
    fn plan(&mut self, now: Time, slots: &[SlotObservation]) {
        let taken = |s: &&SlotObservation| {
            s.record.state != SlotState::Free && s.record.life.slot != self.me.slot
        };
        let others = || slots.iter().filter(taken);
        let rest = others().map(|s| self.rest_for(now, s)).min();
        let locked = others().filter(|s| s.life_locked && self.trusts_lock(s));
        let locked = locked.map(|s| s.record.life.slot).collect();
        // Alone, a node looks for those who come.
        self.rest = rest.unwrap_or(self.beat * Self::QUIET_BEATS);
        self.locked = locked;
    }

    /// In what time a slot is to be looked at again.
    fn rest_for(&self, now: Time, observed: &SlotObservation) -> Duration {
        let record = &observed.record;
        let timing = Timing::of_slot(record.io_timeout);
        let beat = self.beat.min(timing.beat());
        let Some(track) = self.tracks.get(&record.life.slot) else { return beat };
        let left = |time: Duration| (track.since + time).saturating_sub(now);
        let trusted = self.trusts_lock(observed);
        if trusted && !observed.life_locked {
            // It has died, unless it shows another heartbeat by then.
            let unlocked = track.unlocked_since + timing.beat();
            let due = left(timing.shows_within()).max(unlocked.saturating_sub(now));
            return if due.is_zero() { beat } else { due };
        }
        let odd = record.state != SlotState::Active
            || record.vouched
            || observed.proven
            || observed.foreign_locks
            || (track.distrusted && observed.lock_visible)
            || now.saturating_sub(track.since) >= beat * Self::SILENT_BEATS;
        let beats = match (odd, trusted) {
            (true, _) => 1,
            (false, true) => Self::QUIET_BEATS,
            (false, false) => Self::QUIET_BEATS_UNSEEN,
        };
        // Whoever may be fenced then is seen in time.
        let suspect = left(timing.suspect_after() + Duration::from_millis(1));
        let due = beat * beats;
        if suspect.is_zero() { due } else { due.min(suspect) }
    }

    fn fences_under_way(&self) -> usize {
        self.tasks.values().filter(|t| matches!(t, Task::Fencing(_))).count()
    }

    fn begin_fences(&mut self, now: Time, slots: &[SlotObservation], out: &mut Vec<WatchAction>) {
        let most = Self::FENCES_MAX.saturating_sub(self.fences_under_way());
        let to_fence = slots.iter().filter(|s| self.is_to_fence(now, s, slots));
        let records: Vec<_> = to_fence.map(|s| s.record.clone()).take(most).collect();
        for record in records {
            self.tasks.insert(record.life.slot, Task::Fencing(record.life));
            out.push(WatchAction::Fence(Box::new(record)));
        }
    }

    /// Whether a slot's recovery is to be begun or gone on with.
    fn is_due(&self, now: Time, observed: &SlotObservation, slots: &[SlotObservation]) -> bool {
        let life = observed.record.life;
        life.slot != self.me.slot
            && !self.pauses(now, life)
            && !self.is_busy_with(observed)
            && self.finishing.as_ref().is_none_or(|f| f.record.life.slot != life.slot)
            && self.needs_recovery(now, observed, slots)
    }

    /// Whether something is under way for a slot that must end first. A fence need not, once there is
    /// other proof: a command that turns a host off may take minutes.
    fn is_busy_with(&self, observed: &SlotObservation) -> bool {
        match self.tasks.get(&observed.record.life.slot) {
            None => false,
            Some(Task::Fencing(_)) => !observed.proven,
            Some(_) => true,
        }
    }

    /// Whether nothing is left to do for a dead node but to finish its recovery. A claim keeps what the slot
    /// says of the journal, so that alone would also hold for one that failed here, or whose outcome is unknown.
    fn has_recovered(&self, record: &SlotRecord) -> bool {
        let here = self.recovered.get(&record.life.slot) == Some(&record.life);
        here && record.is_replayed() && record.recoverer == Some(self.me)
    }

    fn claim(&mut self, dead: &SlotRecord, nonce: u64) -> WatchAction {
        self.recovered.remove(&dead.life.slot);
        let expected = Box::new(dead.clone());
        let mut new = expected.clone();
        new.state = SlotState::Recovering;
        new.recoverer = Some(self.me);
        new.nonce = nonce;
        self.tasks.insert(dead.life.slot, Task::Claiming(new.clone()));
        WatchAction::Write { expected, new }
    }

    fn finish(&mut self, record: Box<SlotRecord>) -> WatchAction {
        self.finishing = Some(Finishing { record: record.clone(), ended: None });
        WatchAction::Finish(record)
    }

    /// While nobody looked, nobody was silent: perhaps no node could reach the devices. All of that time
    /// counts for half a beat: on a host that is so busy that every look comes late, a dead node is found
    /// at the third, and not when the host is quiet again.
    fn forgive(&mut self, now: Time) {
        let gap = now.saturating_sub(self.looked.unwrap_or(now));
        self.looked = Some(now);
        // What it meant to rest is no gap.
        if gap > self.rest + self.beat * (Self::GAP_BEATS - 1) {
            for track in self.tracks.values_mut() {
                track.since += gap.saturating_sub(self.beat / 2);
            }
        }
    }

    /// Whether the absence of its lock says that a node is dead.
    fn trusts_lock(&self, observed: &SlotObservation) -> bool {
        let track = self.tracks.get(&observed.record.life.slot);
        let actor = observed.record.acting();
        let distrusted = track.is_some_and(|t| t.actor == actor && t.distrusted);
        observed.lock_visible && !distrusted
    }

    /// Whether a node has shown no beat for as long as its own timers say.
    fn is_silent(&self, now: Time, record: &SlotRecord, more: Duration) -> bool {
        let silent = Timing::of_slot(record.io_timeout).suspect_after() + more;
        let track = self.tracks.get(&record.life.slot);
        track.is_some_and(|t| t.life == record.life && now.saturating_sub(t.since) > silent)
    }

    /// Whether it is this node's turn to fence: the living one in the lowest slot does so first,
    /// each further one an `io_timeout` later.
    fn is_to_fence(
        &self,
        now: Time,
        observed: &SlotObservation,
        slots: &[SlotObservation],
    ) -> bool {
        let record = &observed.record;
        let taken = record.recoverer.is_some_and(|by| by.slot != record.life.slot);
        let candidate = record.state != SlotState::Free
            && !taken
            && record.life.slot != self.me.slot
            && !self.tasks.contains_key(&record.life.slot)
            && (observed.life_locked || !self.trusts_lock(observed))
            && observed.fenceable
            && !observed.proven
            && !self.pauses(now, record.life);
        if !candidate || !self.is_silent(now, record, Duration::ZERO) {
            return false;
        }
        let before = slots.iter().map(|s| &s.record).filter(|r| {
            r.state == SlotState::Active
                && r.life.slot < self.me.slot
                && r.life.slot != record.life.slot
                && !self.is_silent(now, r, Duration::ZERO)
        });
        let turn = u32::try_from(before.count()).unwrap_or(u32::MAX);
        let each = Timing::of_slot(record.io_timeout).io_timeout();
        self.is_silent(now, record, each.saturating_mul(turn))
    }

    fn fenced(&mut self, now: Time, slot: NodeId, fenced: bool) -> Vec<WatchAction> {
        // It may be claimed already, by other proof.
        if let Some(Task::Fencing(life)) = self.tasks.get(&slot).cloned() {
            self.tasks.remove(&slot);
            if !fenced {
                self.pause(now, life);
            }
        }
        Vec::new()
    }

    fn track(&mut self, now: Time, observed: &SlotObservation, out: &mut Vec<WatchAction>) {
        let (life, actor) = (observed.record.life, observed.record.acting());
        let fresh = Track {
            life,
            actor,
            sequence: observed.sequence,
            since: now,
            unlocked: 0,
            unlocked_since: now,
            beats_unlocked: 0,
            distrusted: false,
            foreign_beats: if observed.foreign_locks { Self::BEATS_FOREIGN - 1 } else { 0 },
            suspected: false,
            gone: false,
        };
        let before = self.tracks.insert(life.slot, fresh);
        let Some(track) = self.tracks.get_mut(&life.slot) else { return };
        if let Some(before) = before {
            if before.life != life && !before.gone {
                out.push(WatchAction::Gone(before.life));
            }
            let same = (before.life, before.actor) == (life, actor);
            let beat = before.sequence.is_some() && observed.sequence.is_some();
            if same && before.sequence == observed.sequence {
                *track = before;
            } else if before.life == life {
                (track.gone, track.distrusted) = (before.gone, same && before.distrusted);
                if same && beat && before.unlocked > 0 && !observed.life_locked {
                    track.beats_unlocked = before.beats_unlocked + 1;
                }
                if same && observed.foreign_locks {
                    track.foreign_beats = before.foreign_beats + u32::from(beat);
                }
            }
            if !observed.foreign_locks {
                track.foreign_beats = 0;
            } else if track.foreign_beats >= Self::BEATS_FOREIGN {
                out.push(WatchAction::ForeignLocks(life));
            }
        }
        match observed.record.state {
            SlotState::Free => {
                if !track.gone {
                    track.gone = true;
                    out.push(WatchAction::Gone(life));
                }
            }
            SlotState::Active | SlotState::Recovering => {
                track.gone = false;
                track.note_lock(now, observed.life_locked);
                if track.beats_unlocked >= Self::BEATS_DISTRUSTED && !track.distrusted {
                    track.distrusted = true;
                    if observed.lock_visible {
                        out.push(WatchAction::Distrust(life));
                    }
                }
                let suspect = Timing::of_slot(observed.record.io_timeout).suspect_after();
                let silent = now.saturating_sub(track.since) > suspect;
                let here = observed.lock_visible && !track.distrusted
                    || self.identity.is_earlier_boot_of(&observed.record);
                let known = observed.proven || observed.fenceable;
                if silent && !here && !known && !track.suspected && life != self.me {
                    track.suspected = true;
                    out.push(WatchAction::Suspect(life));
                }
            }
        }
    }

    fn pauses(&self, now: Time, life: Life) -> bool {
        self.pauses.get(&life.slot).is_some_and(|p| p.life == life && now < p.until)
    }
    fn pause(&mut self, now: Time, life: Life) {
        let before = self.pauses.get(&life.slot).filter(|p| p.life == life);
        let length = before.map_or(1, |p| (p.length * 2).min(Self::PAUSE_BEATS_MAX));
        self.pauses.insert(life.slot, Pause { life, until: now + self.beat * length, length });
    }

    fn needs_recovery(
        &self,
        now: Time,
        observed: &SlotObservation,
        slots: &[SlotObservation],
    ) -> bool {
        let record = &observed.record;
        match (record.state, record.recoverer) {
            (SlotState::Free, _) => false,
            (SlotState::Active, _) | (SlotState::Recovering, None) => {
                self.is_proven_dead(now, observed)
            }
            // It takes the slot over itself and is named in the record like a node that lives in it.
            (SlotState::Recovering, Some(by)) if by.slot == record.life.slot => {
                self.is_proven_dead(now, observed)
            }
            (SlotState::Recovering, Some(by)) if by == self.me => true,
            (SlotState::Recovering, Some(by)) => {
                let recoverer = slots.iter().find(|s| s.record.life.slot == by.slot);
                // One whose slot cannot be read may be at work.
                recoverer.is_some_and(|r| r.record.life != by || has_no_journal(&r.record))
            }
        }
    }

    /// The process that is named in the record can issue nothing any more, and nothing of it is in
    /// flight.
    fn is_proven_dead(&self, now: Time, observed: &SlotObservation) -> bool {
        if observed.proven {
            return true;
        }
        let Some(track) = self.tracks.get(&observed.record.life.slot) else { return false };
        if observed.life_locked {
            return false;
        }
        let (timing, silent) =
            (Timing::of_slot(observed.record.io_timeout), now.saturating_sub(track.since));
        if self.trusts_lock(observed) {
            let unlocked = now.saturating_sub(track.unlocked_since);
            return track.unlocked >= Self::LOOKS
                && unlocked >= timing.beat()
                && silent >= timing.shows_within();
        }
        // A clone that is not told from this machine may live: so where it can be fenced, it is.
        self.identity.is_earlier_boot_of(&observed.record)
            && !observed.fenceable
            && silent > timing.fence_after()
    }

    fn wrote(&mut self, slot: NodeId, written: bool) -> Vec<WatchAction> {
        match self.tasks.remove(&slot) {
            Some(Task::Claiming(record)) if written => {
                self.tasks.insert(slot, Task::Recovering(record.clone()));
                vec![WatchAction::Recover(record)]
            }
            Some(Task::Publishing(record)) if written => {
                let mut out = vec![WatchAction::Gone(record.life)];
                if self.finishing.is_none() {
                    out.push(self.finish(record));
                }
                out
            }
            Some(Task::Freeing(record)) if written => vec![WatchAction::Gone(record.life)],
            // Another was faster, or the outcome is unknown: the next look shows it.
            _ => Vec::new(),
        }
    }

    fn recovered(
        &mut self,
        now: Time,
        nonce: u64,
        slot: NodeId,
        outcome: Recovery,
    ) -> Vec<WatchAction> {
        let Some(Task::Recovering(record)) = self.tasks.remove(&slot) else { return Vec::new() };
        let write = match outcome {
            Recovery::Done => {
                self.pauses.remove(&slot);
                self.recovered.insert(slot, record.life);
                let old = (*record).clone();
                let new = Box::new(SlotRecord { replayed: true, damage: None, nonce, ..old });
                self.tasks.insert(slot, Task::Publishing(new.clone()));
                Some(WatchAction::Write { expected: record, new })
            }
            failed => self.failed(now, nonce, record, failed),
        };
        write.into_iter().collect()
    }

    fn finished(&mut self, now: Time, nonce: u64, outcome: Recovery) -> Vec<WatchAction> {
        if let Some(finishing) = &mut self.finishing {
            finishing.ended = Some(outcome);
        }
        self.end_finishing(now, nonce).into_iter().collect()
    }

    /// Writes down how a recovery ended, if one did.
    fn end_finishing(&mut self, now: Time, nonce: u64) -> Option<WatchAction> {
        let Finishing { record, ended } = self.finishing.take_if(|f| f.ended.is_some())?;
        match ended? {
            Recovery::Done => {
                self.pauses.remove(&record.life.slot);
                let new = Box::new(freed(&record, nonce));
                self.tasks.insert(record.life.slot, Task::Freeing(new.clone()));
                Some(WatchAction::Write { expected: record, new })
            }
            failed => self.failed(now, nonce, record, failed),
        }
    }

    /// A recovery is not to be gone on with for a while; damage is noted, once.
    fn failed(
        &mut self,
        now: Time,
        nonce: u64,
        record: Box<SlotRecord>,
        outcome: Recovery,
    ) -> Option<WatchAction> {
        self.pause(now, record.life);
        match outcome {
            Recovery::Damaged(damage) if record.damage != Some(damage) => {
                self.tasks.insert(record.life.slot, Task::Noting);
                let old = (*record).clone();
                let replayed = old.replayed || damage.replayed;
                let new = SlotRecord { replayed, damage: Some(damage), nonce, ..old };
                Some(WatchAction::Write { expected: record, new: Box::new(new) })
            }
            // The slot says that we recover it: a later look begins again.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::Incarnation;

    const BEAT: Duration = Duration::from_millis(250);

    fn me(slot: u16, incarnation: u32) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) }
    }
    fn identity(boot: u8) -> HostIdentity {
        HostIdentity { boot_id: [boot; 16], machine_id: [7; 16], host: "h".to_owned() }
    }
    fn active(life: Life, boot: u8) -> SlotObservation {
        let mut record = SlotRecord::free(life.slot);
        record.life = life;
        record.state = SlotState::Active;
        record.boot_id = [boot; 16];
        record.machine_id = [7; 16];
        record.host = "h".to_owned();
        SlotObservation {
            record,
            sequence: Some(1),
            life_locked: true,
            lock_visible: boot == 1,
            foreign_locks: false,
            proven: false,
            fenceable: false,
        }
    }
    fn watch() -> Watch {
        Watch::new(me(0, 1), identity(1), BEAT)
    }
    /// The action that writes a slot, at a look.
    fn claims(actions: &[WatchAction]) -> Option<Life> {
        actions.iter().find_map(|a| match a {
            WatchAction::Write { new, .. } if new.state == SlotState::Recovering => Some(new.life),
            _ => None,
        })
    }

    /// The action that begins a recovery.
    fn recovers(actions: &[WatchAction]) -> Option<Life> {
        actions.iter().find_map(|a| match a {
            WatchAction::Recover(record) => Some(record.life),
            _ => None,
        })
    }
    fn fences(actions: &[WatchAction]) -> Option<Life> {
        actions.iter().find_map(|a| match a {
            WatchAction::Fence(record) => Some(record.life),
            _ => None,
        })
    }
    /// A node of another host that can be fenced, and is silent.
    fn elsewhere(life: Life) -> SlotObservation {
        let mut other = active(life, 2);
        other.record.host = "elsewhere".to_owned();
        (other.life_locked, other.fenceable) = (false, true);
        other
    }
    /// Beats until a node is suspect, by the usual timers.
    fn suspect_beats() -> u32 {
        let timing = Timing::default();
        assert_eq!(timing.beat(), BEAT);
        u32::try_from(timing.suspect_after().as_millis() / BEAT.as_millis()).unwrap()
    }

    #[test]
    fn a_silent_node_of_another_host_is_fenced_before_it_is_recovered() {
        let mut w = watch();
        let mut slots = vec![active(me(0, 1), 1), elsewhere(me(1, 1))];
        let mut at = None;
        for n in 0..200 {
            let actions = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
            assert_eq!(claims(&actions), None);
            if fences(&actions) == Some(me(1, 1)) {
                at = Some(n);
                break;
            }
        }
        let at = at.unwrap();
        assert_eq!(at, suspect_beats() + 1);
        // It fails: again, after a pause.
        assert_eq!(w.step(BEAT * at, 9, WatchEvent::Fenced(NodeId(1), false)), vec![]);
        assert_eq!(w.step(BEAT * at, 9, WatchEvent::Observed(slots.clone())), vec![]);
        let again = w.step(BEAT * (at + 1), 9, WatchEvent::Observed(slots.clone()));
        assert_eq!(fences(&again), Some(me(1, 1)));
        assert_eq!(w.step(BEAT * (at + 2), 9, WatchEvent::Observed(slots.clone())), vec![]);
        w.step(BEAT * (at + 2), 9, WatchEvent::Fenced(NodeId(1), true));
        slots[1].proven = true;
        let actions = w.step(BEAT * (at + 3), 9, WatchEvent::Observed(slots));
        assert_eq!(claims(&actions), Some(me(1, 1)));
        let actions = w.step(BEAT * (at + 3), 9, WatchEvent::Wrote(NodeId(1), true));
        assert_eq!(recovers(&actions), Some(me(1, 1)));
    }

    /// Looks as the watcher does, by `rest` and glances, at a node that beats and dies at `dies`. When it acts, and how
    /// often it had looked before the death.
    fn watched(other: &SlotObservation, dies: Time) -> (Time, usize) {
        const GLANCE: Duration = BEAT.checked_div(4).unwrap();
        let timing = Timing::default();
        let (mut w, mut looks) = (watch(), 0);
        let (mut now, mut due) = (Time::ZERO, Time::ZERO);
        loop {
            let dead = now >= dies;
            let gone = dead && w.locked().contains(&other.record.life.slot);
            if now >= due || gone {
                let mut seen = other.clone();
                seen.life_locked &= !dead;
                let beats = now.min(dies).as_nanos() / timing.quiet_beat().as_nanos();
                seen.sequence = Some(u64::try_from(beats).unwrap());
                let slots = vec![active(me(0, 1), 1), seen];
                let said = w.step(now, 9, WatchEvent::Observed(slots));
                if claims(&said).or(fences(&said)).is_some() {
                    return (now, looks);
                }
                due = now + w.rest();
                looks += usize::from(!dead);
            }
            assert!(now < dies + timing.fence_after(), "{other:?}");
            now = (now + GLANCE).min(due.max(now + Duration::from_millis(1)));
        }
    }

    #[test]
    fn deaths_are_noticed_as_soon_where_nobody_looks_often() {
        let (seconds, timing) = (20, Timing::default());
        let here = active(me(1, 1), 1);
        for n in 0..60 {
            let dies = Duration::from_secs(seconds) + Duration::from_millis(23) * n;
            let (at, looks) = watched(&here, dies);
            let late = at.saturating_sub(dies);
            assert!(late >= BEAT && late <= BEAT * Watch::LOOKS, "{late:?}");
            assert!((13..=15).contains(&looks), "{looks}");
            // As with a look in each beat: within one the last heartbeat is seen, at the next its age.
            let (at, looks) = watched(&elsewhere(me(1, 1)), dies);
            let silent = at.saturating_sub(dies);
            assert!(silent + timing.quiet_beat() > timing.suspect_after(), "{silent:?}");
            assert!(silent <= timing.suspect_after() + BEAT * 2, "{silent:?}");
            assert!((39..=44).contains(&looks), "{looks}");
        }
    }

    #[test]
    fn whoever_is_not_well_is_looked_at_in_each_beat() {
        let mut w = watch();
        let mut rest = |now: u32, other: &SlotObservation| {
            let slots = vec![active(me(0, 1), 1), other.clone()];
            w.step(BEAT * now, 9, WatchEvent::Observed(slots));
            w.rest()
        };
        let mut other = active(me(1, 1), 1);
        assert_eq!(rest(0, &other), BEAT * Watch::QUIET_BEATS);
        assert_eq!(rest(5, &other), BEAT, "it has shown no new heartbeat");
        other.sequence = Some(2);
        assert_eq!(rest(6, &other), BEAT * Watch::QUIET_BEATS);
        other.foreign_locks = true;
        assert_eq!(rest(7, &other), BEAT);
        (other.foreign_locks, other.record.state) = (false, SlotState::Recovering);
        assert_eq!(rest(8, &other), BEAT);
        assert!(BEAT * (Watch::QUIET_BEATS + 1) < Timing::default().seen_within());
        let mut alone = watch();
        alone.step(BEAT, 9, WatchEvent::Observed(vec![active(me(0, 1), 1)]));
        assert_eq!(alone.rest(), BEAT * Watch::QUIET_BEATS);
    }

    /// Two hosts lose power, one comes back: what its dead node left may need what the other host's
    /// node holds, so its recovery waits until that one is fenced.
    #[test]
    fn recoveries_that_wait_keep_nobody_from_being_fenced_and_recovered() {
        let mut w = Watch::new(me(5, 1), identity(1), BEAT);
        let dead = |life| SlotObservation { life_locked: false, ..active(life, 1) };
        // 0, 1: of this host. 2, 3: of another one. 4: of a third, which nobody here can fence.
        let mut slots = vec![dead(me(0, 1)), dead(me(1, 1)), elsewhere(me(2, 1))];
        slots.extend([elsewhere(me(3, 1)), elsewhere(me(4, 1)), active(me(5, 1), 1)]);
        slots[4].fenceable = false;
        let (mut fenced, mut recovered, mut suspected) = (Vec::new(), Vec::new(), false);
        for n in 0..suspect_beats() + 20 {
            slots[5].sequence = Some(u64::from(n));
            let mut actions = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
            while let Some(action) = actions.pop() {
                match action {
                    WatchAction::Write { ref new, .. } => {
                        let slot = new.life.slot;
                        assert!(stand(&mut slots, &[action]));
                        actions.extend(w.step(BEAT * n, 9, WatchEvent::Wrote(slot, true)));
                    }
                    // None of them ever ends.
                    WatchAction::Recover(record) => recovered.push(record.life.slot.0),
                    WatchAction::Fence(record) => {
                        let slot = record.life.slot;
                        fenced.push(slot.0);
                        slots[usize::from(slot.0)].proven = true;
                        actions.extend(w.step(BEAT * n, 9, WatchEvent::Fenced(slot, true)));
                    }
                    WatchAction::Suspect(life) => suspected |= life == me(4, 1),
                    action => panic!("{action:?}"),
                }
            }
        }
        recovered.sort_unstable();
        fenced.sort_unstable();
        assert_eq!((recovered, fenced, suspected), (vec![0, 1, 2, 3], vec![2, 3], true));
        // The operator vouches for it, then.
        slots[4].record.vouched = true;
        slots[4].proven = true;
        let now = BEAT * (suspect_beats() + 21);
        assert_eq!(claims(&w.step(now, 9, WatchEvent::Observed(slots.clone()))), Some(me(4, 1)));
        // As a node that is only slow learns that a person took it for dead.
        let mut w = Watch::new(me(4, 1), identity(2), BEAT);
        assert!(w.step(now, 9, WatchEvent::Observed(slots)).contains(&WatchAction::Evicted));
    }

    /// A command that turns a host off may take minutes.
    #[test]
    fn what_the_operator_vouches_for_waits_for_no_fence_under_way() {
        let mut w = watch();
        let mut slots = vec![active(me(0, 1), 1), elsewhere(me(1, 1))];
        let n = suspect_beats() + 1;
        for n in 0..=n {
            w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
        }
        assert!(w.is_recovering());
        slots[1].proven = true;
        let actions = w.step(BEAT * (n + 1), 9, WatchEvent::Observed(slots));
        assert_eq!(claims(&actions), Some(me(1, 1)));
        assert_eq!(w.step(BEAT * (n + 2), 9, WatchEvent::Fenced(NodeId(1), false)), vec![]);
        let actions = w.step(BEAT * (n + 2), 9, WatchEvent::Wrote(NodeId(1), true));
        assert_eq!(recovers(&actions), Some(me(1, 1)));
    }

    /// Its process does not end by itself: it is stopped. One whose lock is gone is dead already.
    #[test]
    fn a_silent_node_of_this_host_is_fenced_while_its_lock_is_held() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        other.fenceable = true;
        let mut slots = vec![active(me(0, 1), 1), other];
        let look = |w: &mut Watch, n: u32, slots: &[SlotObservation]| {
            w.step(BEAT * n, 9, WatchEvent::Observed(slots.to_vec()))
        };
        let at = (0..200).find(|n| fences(&look(&mut w, *n, &slots)).is_some()).unwrap();
        assert_eq!(at, suspect_beats() + 1);
        w.step(BEAT * at, 9, WatchEvent::Fenced(NodeId(1), true));
        slots[1].proven = true;
        assert_eq!(claims(&look(&mut w, at + 1, &slots)), Some(me(1, 1)));
        // The same where the process was ended by somebody else.
        let mut w = watch();
        (slots[1].proven, slots[1].life_locked) = (false, false);
        let said: Vec<_> = (0..3).flat_map(|n| look(&mut w, n, &slots)).collect();
        assert_eq!((claims(&said), fences(&said)), (Some(me(1, 1)), None));
    }

    #[test]
    fn that_the_operator_vouches_is_enough() {
        let mut w = watch();
        let mut other = elsewhere(me(1, 1));
        (other.fenceable, other.proven) = (false, true);
        let slots = vec![active(me(0, 1), 1), other];
        assert_eq!(claims(&w.step(BEAT, 9, WatchEvent::Observed(slots))), Some(me(1, 1)));
    }

    #[test]
    fn one_after_the_other_fences() {
        // Slots 0 and 1 live: 0 comes first, then 1; if 0 is silent too, 1 need not wait.
        for first_lives in [true, false] {
            let mut w = Watch::new(me(1, 1), identity(1), BEAT);
            let mut at = None;
            for n in 0..400 {
                let mut first = elsewhere(me(0, 1));
                first.fenceable = false;
                first.sequence = first_lives.then_some(u64::from(n));
                let slots = vec![first, active(me(1, 1), 1), elsewhere(me(2, 1))];
                if fences(&w.step(BEAT * n, 9, WatchEvent::Observed(slots))) == Some(me(2, 1)) {
                    at = Some(n);
                    break;
                }
            }
            let turn = if first_lives { 40 } else { 0 };
            assert_eq!(at, Some(suspect_beats() + turn + 1));
        }
    }

    #[test]
    fn a_node_is_silent_by_its_own_timers() {
        let mut w = watch();
        let mut other = elsewhere(me(1, 1));
        other.record.io_timeout = Timing::of(Duration::from_secs(20)).milliseconds();
        let slots = vec![active(me(0, 1), 1), other];
        let fenced = (0..400)
            .find(|n| fences(&w.step(BEAT * *n, 9, WatchEvent::Observed(slots.clone()))).is_some());
        assert_eq!(fenced, Some(2 * suspect_beats() + 1));
    }

    #[test]
    fn who_did_not_look_has_seen_no_silence() {
        // Everybody stood still, or the devices did: the others must first have time to beat.
        let mut w = watch();
        let slots = vec![active(me(0, 1), 1), elsewhere(me(1, 1))];
        w.step(BEAT, 9, WatchEvent::Observed(slots.clone()));
        let woken = 1000;
        for n in woken..woken + suspect_beats() {
            assert_eq!(w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone())), vec![], "{n}");
        }
        let n = woken + suspect_beats() + 1;
        assert!(fences(&w.step(BEAT * n, 9, WatchEvent::Observed(slots))).is_some());
    }

    #[test]
    fn a_process_of_this_host_is_dead_when_its_lock_is_gone_at_two_looks() {
        let mut w = watch();
        let mut slots = vec![active(me(0, 1), 1), active(me(1, 4), 1)];
        for n in 0..10 {
            assert_eq!(w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone())), vec![]);
        }
        slots[1].life_locked = false;
        assert_eq!(w.step(BEAT * 10, 9, WatchEvent::Observed(slots.clone())), vec![]);
        let actions = w.step(BEAT * 11, 9, WatchEvent::Observed(slots.clone()));
        assert_eq!(claims(&actions), Some(me(1, 4)));
        assert_eq!(
            recovers(&w.step(BEAT * 11, 9, WatchEvent::Wrote(NodeId(1), true))),
            Some(me(1, 4))
        );
        let saying = w.step(BEAT * 12, 9, WatchEvent::Recovered(NodeId(1), Recovery::Done));
        let [WatchAction::Write { expected, new }] = &saying[..] else { panic!("{saying:?}") };
        assert_eq!(expected.state, SlotState::Recovering);
        assert_eq!((new.state, new.replayed), (SlotState::Recovering, true));
        slots[1].record = (**new).clone();
        // Its locks are free from here on.
        let said = w.step(BEAT * 12, 9, WatchEvent::Wrote(NodeId(1), true));
        let finish = WatchAction::Finish(Box::new(slots[1].record.clone()));
        assert_eq!(said, vec![WatchAction::Gone(me(1, 4)), finish]);
        assert!(w.has_claimed());
        assert_eq!(w.step(BEAT * 13, 9, WatchEvent::Observed(slots.clone())), vec![]);
        let freeing = w.step(BEAT * 14, 9, WatchEvent::Finished(Recovery::Done));
        let [WatchAction::Write { expected, new }] = &freeing[..] else { panic!("{freeing:?}") };
        assert_eq!(**expected, slots[1].record);
        assert_eq!((new.state, new.life, new.replayed), (SlotState::Free, me(1, 4), false));
        let done = w.step(BEAT * 12, 9, WatchEvent::Wrote(NodeId(1), true));
        assert_eq!(done, vec![WatchAction::Gone(me(1, 4))]);
    }

    /// Each look comes so late that what was not seen before it is not held against anybody.
    #[test]
    fn on_a_busy_host_a_dead_process_is_found_all_the_same() {
        let mut w = watch();
        let late = BEAT * (Watch::GAP_BEATS + 1);
        let mut slots = vec![active(me(0, 1), 1), active(me(1, 4), 1)];
        for n in 0..10 {
            slots[1].sequence = Some(u64::from(n));
            assert_eq!(w.step(late * n, 9, WatchEvent::Observed(slots.clone())), vec![]);
        }
        slots[1].life_locked = false;
        let found = (10..20)
            .find(|n| claims(&w.step(late * *n, 9, WatchEvent::Observed(slots.clone()))).is_some());
        assert_eq!(found, Some(11));
        // But one late look alone says nothing: it may have been late with its beat as well.
        let mut w = watch();
        let mut slots = vec![active(me(0, 1), 1), active(me(1, 4), 1)];
        for (n, at) in [0, 1, 2, 2 + 2 * Watch::GAP_BEATS].into_iter().enumerate() {
            slots[1].life_locked = n < 2;
            slots[1].sequence = (n < 3).then_some(n as u64).or(Some(2));
            assert_eq!(w.step(BEAT * at, 9, WatchEvent::Observed(slots.clone())), vec![], "{at}");
        }
    }

    /// A node whose lock is held on another inode, or under a kernel that only has the same name.
    #[test]
    fn a_lock_that_is_not_seen_proves_nothing_of_a_node_that_locks_elsewhere() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        (other.life_locked, other.lock_visible) = (false, false);
        for n in 0..500 {
            let slots = vec![active(me(0, 1), 1), other.clone()];
            let said = w.step(BEAT * n, 9, WatchEvent::Observed(slots));
            assert_eq!(claims(&said), None);
        }
        // It is fenced like any other, if it can be.
        other.fenceable = true;
        let slots = vec![active(me(0, 1), 1), other];
        assert_eq!(fences(&w.step(BEAT * 500, 9, WatchEvent::Observed(slots))), Some(me(1, 1)));
    }
    #[test]
    fn a_node_that_has_beaten_without_its_lock_is_not_dead_when_it_stalls() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        other.life_locked = false;
        let mut said = Vec::new();
        for n in 0..300 {
            other.sequence = Some(u64::from(n.min(4)));
            let slots = vec![active(me(0, 1), 1), other.clone()];
            said.extend(w.step(BEAT * n, 9, WatchEvent::Observed(slots)));
        }
        assert_eq!(said, [WatchAction::Distrust(me(1, 1)), WatchAction::Suspect(me(1, 1))]);
    }
    #[test]
    fn beats_of_who_takes_a_slot_over_are_not_those_of_its_dead_node() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        let mut said = Vec::new();
        // Dies; is taken over by a node that dies before it beats; is recovered by another.
        for n in 0..12 {
            other.life_locked = n < 2;
            match n {
                0..3 => other.sequence = Some(n),
                3 => {
                    other.record.state = SlotState::Recovering;
                    (other.record.recoverer, other.sequence) = (Some(me(1, 2)), None);
                }
                4 => (other.record.recoverer, other.sequence) = (Some(me(2, 1)), Some(2)),
                _ => {}
            }
            let third = active(me(2, 1), 1);
            let slots = vec![active(me(0, 1), 1), other.clone(), third];
            said.extend(w.step(BEAT * u32::try_from(n).unwrap(), 9, WatchEvent::Observed(slots)));
        }
        assert_eq!(said, []);
    }
    /// It has all of its time to show its first beat.
    #[test]
    fn who_takes_a_slot_over_is_not_silent_since_its_dead_node_was() {
        let mut w = watch();
        let mut other = active(me(1, 1), 3);
        (other.sequence, other.fenceable) = (None, true);
        let silent = Timing::of_beat(BEAT).suspect_after().as_millis() / BEAT.as_millis();
        let silent = u32::try_from(silent).unwrap();
        for n in 0..silent * 3 / 2 {
            if n == silent - 1 {
                other.record.state = SlotState::Recovering;
                other.record.recoverer = Some(me(1, 2));
            }
            let slots = vec![active(me(0, 1), 1), other.clone()];
            let said = w.step(BEAT * n, 9, WatchEvent::Observed(slots));
            assert_eq!(fences(&said), None, "{n} beats");
        }
    }
    #[test]
    fn a_last_beat_that_is_seen_after_the_lock_went_keeps_nobody_alive() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        let mut at = None;
        for n in 0..20 {
            // The lock goes between the reading of the beats and the look at the lock.
            other.life_locked = n < 5;
            other.sequence = Some(u64::from(n.min(6)));
            let slots = vec![active(me(0, 1), 1), other.clone()];
            let said = w.step(BEAT * n, 9, WatchEvent::Observed(slots));
            at = at.or(claims(&said).map(|_| n));
        }
        assert_eq!(at, Some(8));
    }
    #[test]
    fn an_earlier_boot_is_fenced_if_it_can_be() {
        let mut w = watch();
        let mut other = active(me(1, 1), 2);
        (other.life_locked, other.fenceable) = (false, true);
        let mut said = Vec::new();
        for n in 0..200 {
            let slots = vec![active(me(0, 1), 1), other.clone()];
            let now = w.step(BEAT * n, 9, WatchEvent::Observed(slots));
            if fences(&now).is_some() {
                w.step(BEAT * n, 9, WatchEvent::Fenced(NodeId(1), false));
            }
            said.extend(now);
        }
        assert!(fences(&said).is_some() && claims(&said).is_none(), "{said:?}");
    }
    #[test]
    fn a_living_node_with_foreign_locks_ends_this_one() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        (other.life_locked, other.lock_visible, other.foreign_locks) = (false, false, true);
        let observed = |other: &SlotObservation| {
            WatchEvent::Observed(vec![active(me(0, 1), 1), other.clone()])
        };
        assert_eq!(w.step(BEAT, 9, observed(&other)), vec![]);
        assert_eq!(w.step(BEAT * 2, 9, observed(&other)), vec![]);
        other.sequence = Some(2);
        assert_eq!(
            w.step(BEAT * 3, 9, observed(&other)),
            vec![WatchAction::ForeignLocks(me(1, 1))]
        );
    }
    /// The members that carry the locks have changed, and its slot does not say so yet.
    #[test]
    fn who_has_shared_its_locks_has_time_to_say_where_they_are_now() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        let mut look = |n, foreign_locks| {
            (other.sequence, other.foreign_locks) = (Some(u64::from(n)), foreign_locks);
            let slots = vec![active(me(0, 1), 1), other.clone()];
            w.step(BEAT * n, 9, WatchEvent::Observed(slots))
        };
        for n in 1..Watch::BEATS_FOREIGN {
            assert_eq!(look(n, n > 1), vec![], "{n}");
        }
        // It has said so.
        assert_eq!(look(100, false), vec![]);
        for n in 1..Watch::BEATS_FOREIGN {
            assert_eq!(look(100 + n, true), vec![], "{n}");
        }
        let n = 100 + Watch::BEATS_FOREIGN;
        assert_eq!(look(n, true), vec![WatchAction::ForeignLocks(me(1, 1))]);
    }
    #[test]
    fn a_beat_without_a_lock_is_life() {
        let mut w = watch();
        for n in 0..50 {
            let mut other = active(me(1, 1), 1);
            other.life_locked = false;
            other.sequence = Some(u64::from(n));
            let slots = vec![active(me(0, 1), 1), other];
            let said = w.step(BEAT * n, 9, WatchEvent::Observed(slots));
            assert!(said.iter().all(|a| *a == WatchAction::Distrust(me(1, 1))), "{said:?}");
        }
    }

    #[test]
    fn silence_of_another_host_without_a_fence_is_only_suspicion() {
        let mut w = watch();
        let mut other = active(me(1, 1), 2);
        other.record.host = "elsewhere".to_owned();
        other.life_locked = false;
        let mut said = Vec::new();
        for n in 0..100 {
            let slots = vec![active(me(0, 1), 1), other.clone()];
            said.extend(w.step(BEAT * n, 9, WatchEvent::Observed(slots)));
        }
        assert_eq!(said, vec![WatchAction::Suspect(me(1, 1))]);
    }

    #[test]
    fn an_earlier_boot_of_this_host_is_dead_after_silence() {
        let mut w = watch();
        let mut other = active(me(1, 1), 2);
        other.life_locked = false;
        let mut at = None;
        for n in 0..200 {
            let slots = vec![active(me(0, 1), 1), other.clone()];
            if claims(&w.step(BEAT * n, 9, WatchEvent::Observed(slots))).is_some() {
                at = Some(n);
                break;
            }
        }
        let quiet = Timing::of_beat(BEAT).fence_after().as_millis() / BEAT.as_millis();
        assert_eq!(at.map(u128::from), Some(quiet + 1));
    }

    #[test]
    fn a_dead_recoverer_is_replaced_and_a_living_one_is_not() {
        let mut w = watch();
        let mut dead = active(me(2, 1), 1);
        dead.record.state = SlotState::Recovering;
        dead.record.recoverer = Some(me(1, 1));
        dead.life_locked = false;
        let mut recoverer = active(me(1, 1), 1);
        for n in 0..5 {
            let slots = vec![active(me(0, 1), 1), recoverer.clone(), dead.clone()];
            assert_eq!(w.step(BEAT * n, 9, WatchEvent::Observed(slots)), vec![]);
        }
        recoverer.record = freed(&recoverer.record, 9);
        let slots = vec![active(me(0, 1), 1), recoverer, dead];
        assert_eq!(claims(&w.step(BEAT * 5, 9, WatchEvent::Observed(slots))), Some(me(2, 1)));
    }

    #[test]
    fn losing_the_race_or_failing_begins_again() {
        let mut w = watch();
        let mut other = active(me(1, 1), 1);
        other.life_locked = false;
        let slots = vec![active(me(0, 1), 1), other];
        w.step(BEAT, 9, WatchEvent::Observed(slots.clone()));
        assert!(claims(&w.step(BEAT * 3, 9, WatchEvent::Observed(slots.clone()))).is_some());
        assert_eq!(w.step(BEAT * 3, 9, WatchEvent::Wrote(NodeId(1), false)), vec![]);
        assert!(claims(&w.step(BEAT * 4, 9, WatchEvent::Observed(slots.clone()))).is_some());
        w.step(BEAT * 4, 9, WatchEvent::Wrote(NodeId(1), true));
        assert!(w.is_recovering());
        assert_eq!(w.step(BEAT * 5, 9, WatchEvent::Recovered(NodeId(1), Recovery::Failed)), vec![]);
        let mut slots = slots;
        slots[1].record.state = SlotState::Recovering;
        slots[1].record.recoverer = Some(me(0, 1));
        assert!(claims(&w.step(BEAT * 6, 9, WatchEvent::Observed(slots))).is_some());
    }

    #[test]
    fn a_recoverer_that_died_too_comes_first() {
        // 0 is dead, 2 was recovering it and is dead: 2 may have changed what was 0's.
        let mut w = Watch::new(me(1, 1), identity(1), BEAT);
        let mut first = active(me(0, 1), 1);
        first.record.state = SlotState::Recovering;
        first.record.recoverer = Some(me(2, 1));
        first.life_locked = false;
        let mut second = active(me(2, 1), 1);
        second.life_locked = false;
        let mut slots = vec![first, active(me(1, 1), 1), second];
        w.step(BEAT, 9, WatchEvent::Observed(slots.clone()));
        let actions = w.step(BEAT * 3, 9, WatchEvent::Observed(slots.clone()));
        assert_eq!(claims(&actions), Some(me(2, 1)));
        w.step(BEAT * 3, 9, WatchEvent::Wrote(NodeId(2), true));
        slots[2].record.state = SlotState::Recovering;
        slots[2].record.recoverer = Some(me(1, 1));
        // Its journal is damaged: nothing is known of the first one's windows.
        let damage = SlotDamage {
            block: braid_format::BlockNo(5),
            part: braid_format::node::DamagedPart::Journal,
            replayed: false,
        };
        w.step(BEAT * 4, 9, WatchEvent::Recovered(NodeId(2), Recovery::Damaged(damage)));
        w.step(BEAT * 4, 9, WatchEvent::Wrote(NodeId(2), true));
        slots[2].record.damage = Some(damage);
        assert_eq!(claims(&w.step(BEAT * 4, 9, WatchEvent::Observed(slots.clone()))), None);
        slots[2].record.damage = Some(SlotDamage { replayed: true, ..damage });
        let actions = w.step(BEAT * 4, 9, WatchEvent::Observed(slots));
        assert_eq!(claims(&actions), Some(me(0, 1)));
    }

    /// What a device would do with a write of the watcher's.
    fn stand(slots: &mut [SlotObservation], actions: &[WatchAction]) -> bool {
        let mut wrote = false;
        for action in actions {
            if let WatchAction::Write { expected, new } = action {
                let slot = &mut slots[usize::from(new.life.slot.0)].record;
                assert_eq!(slot, &**expected);
                *slot = (**new).clone();
                wrote = true;
            }
        }
        wrote
    }

    #[test]
    fn of_many_that_died_all_journals_come_before_anything_that_may_wait() {
        let mut w = watch();
        let dead = |life| SlotObservation { life_locked: false, ..active(life, 1) };
        // 1 was recovering 2, and 3 was recovering 1.
        let mut slots = vec![active(me(0, 1), 1), dead(me(1, 1)), dead(me(2, 1)), dead(me(3, 1))];
        for (slot, by) in [(1, me(3, 1)), (2, me(1, 1))] {
            (slots[slot].record.state, slots[slot].record.recoverer) =
                (SlotState::Recovering, Some(by));
        }
        slots.push(active(me(4, 1), 1));
        let mut recovered = Vec::new();
        let mut finishes = Vec::new();
        for n in 1..40 {
            // The last one dies while the first recovery is being finished, which never ends.
            slots[4].life_locked = finishes.is_empty();
            let mut actions = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
            while let Some(action) = actions.first().cloned() {
                let rest = actions.split_off(1);
                actions = match action {
                    WatchAction::Write { ref new, .. } => {
                        let slot = new.life.slot;
                        assert!(stand(&mut slots, &[action]));
                        w.step(BEAT * n, 9, WatchEvent::Wrote(slot, true))
                    }
                    WatchAction::Recover(record) => {
                        recovered.push(record.life.slot.0);
                        w.step(BEAT * n, 9, WatchEvent::Recovered(record.life.slot, Recovery::Done))
                    }
                    WatchAction::Finish(record) => {
                        finishes.push(record.life.slot.0);
                        Vec::new()
                    }
                    _ => Vec::new(),
                };
                actions.extend(rest);
            }
        }
        assert_eq!(recovered, [3, 1, 2, 4]);
        assert_eq!(finishes, [3]);
        assert!(slots[1..].iter().all(|s| s.record.is_replayed()));
        // It ends after all: one after the other is finished and free.
        let mut next = w.step(BEAT * 40, 9, WatchEvent::Finished(Recovery::Done));
        for n in 41..80 {
            while let Some(WatchAction::Write { new, .. }) = next.first().cloned() {
                assert!(stand(&mut slots, &next));
                next = w.step(BEAT * n, 9, WatchEvent::Wrote(new.life.slot, true));
            }
            next = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
            let begun = next.iter().find_map(|a| match a {
                WatchAction::Finish(record) => Some(record.life.slot.0),
                _ => None,
            });
            if let Some(slot) = begun {
                finishes.push(slot);
                next = w.step(BEAT * n, 9, WatchEvent::Finished(Recovery::Done));
            }
        }
        assert_eq!(finishes, [3, 1, 2, 4]);
        assert!(slots[1..].iter().all(|s| s.record.state == SlotState::Free));
        assert!(!w.is_recovering());
    }

    #[test]
    fn who_died_while_finishing_leaves_all_of_it_to_be_done_again() {
        let mut w = watch();
        let dead = |life| SlotObservation { life_locked: false, ..active(life, 1) };
        let mut slots = vec![active(me(0, 1), 1), dead(me(1, 1)), dead(me(2, 1))];
        // 1 had died before: 2 was finishing it; then another life that was about to take its slot.
        for (begin, by) in [(1, me(2, 1)), (61, me(1, 2))] {
            let record = &mut slots[1].record;
            (record.state, record.recoverer) = (SlotState::Recovering, Some(by));
            record.replayed = true;
            let (mut recovered, mut actions) = (Vec::new(), Vec::new());
            for n in begin..begin + 60 {
                if actions.is_empty() {
                    actions = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
                }
                actions = match actions.first().cloned() {
                    Some(WatchAction::Recover(record)) => {
                        recovered.push(record.life.slot.0);
                        let slot = record.life.slot;
                        w.step(BEAT * n, 9, WatchEvent::Recovered(slot, Recovery::Done))
                    }
                    Some(WatchAction::Gone(_)) => actions.split_off(1),
                    Some(WatchAction::Finish(_)) => {
                        w.step(BEAT * n, 9, WatchEvent::Finished(Recovery::Done))
                    }
                    Some(WatchAction::Write { new, .. }) => {
                        assert!(stand(&mut slots, &actions));
                        w.step(BEAT * n, 9, WatchEvent::Wrote(new.life.slot, true))
                    }
                    _ => Vec::new(),
                };
            }
            let all: &[u16] = if by == me(2, 1) { &[2, 1] } else { &[1] };
            assert_eq!(recovered, all);
            assert!(slots[1..].iter().all(|s| s.record.state == SlotState::Free));
        }
    }

    #[test]
    fn what_another_node_had_replayed_is_not_finished_before_it_is_recovered_again() {
        let mut w = watch();
        let mut dead = active(me(1, 1), 1);
        (dead.record.state, dead.record.recoverer) = (SlotState::Recovering, Some(me(2, 1)));
        dead.record.replayed = true;
        let mut by = active(me(2, 1), 1);
        by.record = freed(&by.record, 9);
        let mut slots = vec![active(me(0, 1), 1), dead, by];
        let slot = NodeId(1);
        // The claim stands, but nobody says so here; then it fails; then the journal is damaged.
        let damage = SlotDamage {
            block: braid_format::BlockNo(5),
            part: braid_format::node::DamagedPart::JournalHeader,
            replayed: false,
        };
        let failures = [None, Some(Recovery::Failed), Some(Recovery::Damaged(damage))];
        for (n, failure) in (1..).zip(failures) {
            let actions = w.step(BEAT * (n * 10), 9, WatchEvent::Observed(slots.clone()));
            assert_eq!(claims(&actions), Some(me(1, 1)));
            assert!(stand(&mut slots, &actions));
            let claimed = w.step(BEAT * (n * 10), 9, WatchEvent::Wrote(slot, failure.is_some()));
            let Some(failure) = failure else { continue };
            assert_eq!(recovers(&claimed), Some(me(1, 1)));
            let noted = w.step(BEAT * (n * 10), 9, WatchEvent::Recovered(slot, failure));
            if stand(&mut slots, &noted) {
                w.step(BEAT * (n * 10), 9, WatchEvent::Wrote(slot, true));
            }
        }
        let record = &slots[1].record;
        assert_eq!((record.recoverer, record.replayed), (Some(me(0, 1)), true));
        assert_eq!(record.damage, Some(damage));
        // It succeeds, and is finished.
        let actions = w.step(BEAT * 50, 9, WatchEvent::Observed(slots.clone()));
        assert!(stand(&mut slots, &actions));
        w.step(BEAT * 50, 9, WatchEvent::Wrote(slot, true));
        let said = w.step(BEAT * 50, 9, WatchEvent::Recovered(slot, Recovery::Done));
        assert!(stand(&mut slots, &said));
        let next = w.step(BEAT * 50, 9, WatchEvent::Wrote(slot, true));
        assert!(matches!(next[..], [WatchAction::Gone(_), WatchAction::Finish(_)]), "{next:?}");
    }

    #[test]
    fn damage_met_after_the_replay_is_noted_and_only_the_rest_tried_again() {
        let mut w = watch();
        let mut dead = active(me(1, 1), 1);
        dead.life_locked = false;
        (dead.record.state, dead.record.recoverer) = (SlotState::Recovering, Some(me(0, 1)));
        dead.record.replayed = true;
        w.recovered.insert(NodeId(1), me(1, 1));
        let mut slots = vec![active(me(0, 1), 1), dead];
        let part = braid_format::node::DamagedPart::Window;
        let damage = SlotDamage { block: braid_format::BlockNo(77), part, replayed: true };
        let finish = |slots: &[SlotObservation]| {
            vec![WatchAction::Finish(Box::new(slots[1].record.clone()))]
        };
        assert_eq!(w.step(BEAT, 9, WatchEvent::Observed(slots.clone())), finish(&slots));
        let noting = w.step(BEAT, 9, WatchEvent::Finished(Recovery::Damaged(damage)));
        assert!(stand(&mut slots, &noting));
        assert_eq!((slots[1].record.damage, slots[1].record.replayed), (Some(damage), true));
        w.step(BEAT, 9, WatchEvent::Wrote(NodeId(1), true));
        assert_eq!(w.step(BEAT, 9, WatchEvent::Observed(slots.clone())), vec![]);
        assert_eq!(w.step(BEAT * 3, 9, WatchEvent::Observed(slots.clone())), finish(&slots));
        // The same again is not written again.
        assert_eq!(w.step(BEAT * 3, 9, WatchEvent::Finished(Recovery::Damaged(damage))), vec![]);
        assert_eq!(w.step(BEAT * 6, 9, WatchEvent::Observed(slots.clone())), finish(&slots));
        let freeing = w.step(BEAT * 6, 9, WatchEvent::Finished(Recovery::Done));
        assert!(stand(&mut slots, &freeing));
        assert_eq!((slots[1].record.state, slots[1].record.damage), (SlotState::Free, None));
    }

    #[test]
    fn damage_is_written_down_once_and_tried_again_less_and_less_often() {
        let mut w = watch();
        let mut dead = active(me(1, 1), 1);
        dead.life_locked = false;
        let mut slots = vec![active(me(0, 1), 1), dead];
        let damage = SlotDamage {
            block: braid_format::BlockNo(77),
            part: braid_format::node::DamagedPart::Journal,
            replayed: false,
        };
        let (mut tries, mut notes) = (Vec::new(), 0);
        for n in 1..2000 {
            let actions = w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
            let [WatchAction::Write { new, .. }] = &actions[..] else { continue };
            tries.push(n);
            slots[1].record = (**new).clone();
            w.step(BEAT * n, 9, WatchEvent::Wrote(NodeId(1), true));
            let answer = Recovery::Damaged(damage);
            for action in w.step(BEAT * n, 9, WatchEvent::Recovered(NodeId(1), answer)) {
                let WatchAction::Write { new, .. } = action else { panic!("{action:?}") };
                assert_eq!((new.state, new.damage), (SlotState::Recovering, Some(damage)));
                slots[1].record = *new;
                notes += 1;
                w.step(BEAT * n, 9, WatchEvent::Wrote(NodeId(1), true));
            }
        }
        assert_eq!(notes, 1);
        assert_eq!(tries[..6], [3, 4, 6, 10, 18, 34]);
        let gaps = tries.windows(2).map(|w| w[1] - w[0]);
        assert_eq!(gaps.max(), Some(Watch::PAUSE_BEATS_MAX));
        // Repaired meanwhile.
        let n = 2000 + Watch::PAUSE_BEATS_MAX;
        w.step(BEAT * n, 9, WatchEvent::Observed(slots.clone()));
        w.step(BEAT * n, 9, WatchEvent::Wrote(NodeId(1), true));
        let done = w.step(BEAT * n, 9, WatchEvent::Recovered(NodeId(1), Recovery::Done));
        let [WatchAction::Write { new, .. }] = &done[..] else { panic!("{done:?}") };
        assert_eq!((new.state, new.replayed, new.damage), (SlotState::Recovering, true, None));
    }

    #[test]
    fn a_node_that_lost_its_slot_is_told() {
        let mut w = watch();
        let slots = vec![active(me(0, 2), 1)];
        assert!(w.step(BEAT, 9, WatchEvent::Observed(slots)).contains(&WatchAction::Evicted));
    }
}
