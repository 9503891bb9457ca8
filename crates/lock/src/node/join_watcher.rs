//! Watches and fences other nodes while this one joins, because it has no watcher yet. Recovering the
//! slot that it takes may have to wait for locks of a silent node, and every change of the pool waits
//! until each node uses the pool's epoch. It also hears which locks others wait for: they would wait
//! without end for what this node has and does not use, and this node perhaps for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::SlotRecord;

use super::fencer::Fencer;
use super::life::user_of;
use super::observation::{Heartbeats, Observer, SlotObservation, tag_of};
use super::slots::read_slots;
use super::waits::LONG;
use super::watch::{Watch, WatchAction, WatchEvent};
use super::wishes::{Wish, Wishes};
use super::{HostIdentity, JoinOptions, NodeStore, Recover};
use crate::dlock::Time;
use crate::error::LockError;

/// Between two heartbeats of a node that joins and waits for something new, and between two looks of one
/// whose locks others want.
pub(super) const PACE: Duration = Duration::from_millis(20);
/// So long after the last wish of another node it looks at that pace.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Looks at the other nodes, and fences those that are silent. It recovers nobody.
pub(super) struct JoinWatcher<'a> {
    pub store: &'a dyn NodeStore,
    pub options: &'a JoinOptions,
    pub identity: &'a HostIdentity,
    /// Who has the locks that others may want.
    pub recover: &'a dyn Recover,
    /// The slot that is being taken, or has just been.
    pub mine: &'a SlotRecord,
    /// Whether this node says in heartbeats that it lives: who cannot do so fences nobody.
    pub may_act: &'a (dyn Fn() -> bool + Sync),
}

impl JoinWatcher<'_> {
    /// Looks once in a beat, until `done`; only for wishes more often while others have some. A fence that
    /// is under way then is waited for.
    pub fn run(&self, done: &AtomicBool) {
        let (beat, mut behind) = (self.options.timing.beat(), HashMap::new());
        let mut watch = Watch::new(self.mine.life, self.identity.clone(), beat);
        let (origin, mut nonce) = (Instant::now(), self.mine.nonce);
        let (mut beats, mut wishes) = (Heartbeats::default(), Wishes::default());
        let (mut look, mut often) = (origin + beat, origin);
        while !done.load(Ordering::Acquire) {
            let now = Instant::now();
            let next = if now < often { look.min(now + PACE) } else { look };
            std::thread::park_timeout(next.saturating_duration_since(now));
            if Instant::now() < look {
                if self.look_for_wishes(&mut beats, origin.elapsed(), &mut wishes) {
                    often = Instant::now() + AFTERWARDS;
                }
                continue;
            }
            look = Instant::now() + beat;
            let mut events = match self.observe(&mut beats, origin.elapsed()) {
                Ok(observed) => {
                    self.log_lagging(&observed, &beats, &mut behind);
                    vec![WatchEvent::Observed(observed)]
                }
                Err(e) => {
                    tracing::warn!("cannot look at the other nodes: {e}");
                    continue;
                }
            };
            while let Some(event) = events.pop() {
                nonce = nonce.wrapping_add(1);
                for action in watch.step(origin.elapsed(), nonce, event) {
                    events.extend(self.perform(action));
                }
            }
            if self.pass_on(&beats, &mut wishes) {
                often = Instant::now() + AFTERWARDS;
            }
        }
    }

    /// Reads the heartbeats for what others wait for; whether there is something new.
    fn look_for_wishes(&self, beats: &mut Heartbeats, now: Time, wishes: &mut Wishes) -> bool {
        let Ok(bytes) = self.store.read_heartbeats() else { return false };
        for (slot, sector) in (0..).map(NodeId).zip(bytes.chunks_exact(self.store.sector_len())) {
            beats.note(now, slot, sector);
        }
        self.pass_on(beats, wishes)
    }

    /// What others wait for that this node may have.
    fn pass_on(&self, beats: &Heartbeats, wishes: &mut Wishes) -> bool {
        let news = wishes.look(beats.iter().filter(|beat| beat.life != self.mine.life));
        for Wish { lock, mode, overdue } in &news {
            self.recover.wished(*lock, *mode, *overdue);
        }
        !news.is_empty()
    }

    fn perform(&self, action: WatchAction) -> Option<WatchEvent> {
        match action {
            WatchAction::Fence(record) => {
                Some(WatchEvent::Fenced(record.life.slot, self.fence(&record)))
            }
            // Others are recovered once this node has its slot.
            WatchAction::Write { new, .. } => Some(WatchEvent::Wrote(new.life.slot, false)),
            WatchAction::Suspect(life) => {
                super::log_suspect(life);
                None
            }
            _ => None,
        }
    }

    /// Says once for whom this node waits before it can join: all changes wait until every node has taken
    /// note of the pool's epoch. `behind`: those who have not, since when, and whether that was said.
    fn log_lagging(
        &self,
        observed: &[SlotObservation],
        beats: &Heartbeats,
        behind: &mut HashMap<NodeId, (Instant, bool)>,
    ) {
        let tag = self.store.pool().epoch();
        for SlotObservation { record, lock_visible, life_locked, .. } in observed {
            let slot = record.life.slot;
            let uses_other = beats.of(record.acting()).is_some_and(|(beat, _)| tag_of(beat) != tag);
            let is_dead = *lock_visible && !life_locked;
            if user_of(record).is_none() || is_dead || !uses_other {
                behind.remove(&slot);
                continue;
            }
            let (since, said) = behind.entry(slot).or_insert_with(|| (Instant::now(), false));
            if since.elapsed() > LONG && !std::mem::replace(said, true) {
                let stopped = self.store.is_life_stopped(slot, record.pid);
                tracing::warn!(
                    "waiting until node {slot} ({}, process {}{}) takes note of a change of the pool: nobody can change anything before",
                    record.host,
                    record.pid,
                    if stopped { ", which is stopped" } else { "" },
                );
            }
        }
    }

    fn fencer(&self) -> Fencer<'_> {
        self.options.fencer(self.store, self.mine.fence_key, self.identity)
    }

    fn fence(&self, record: &SlotRecord) -> bool {
        if !(self.may_act)() {
            return false;
        }
        let life = record.acting();
        tracing::warn!(
            %life,
            host = record.host,
            "no heartbeat for too long: fencing it, for a recovery may wait for what it holds"
        );
        match self.fencer().fence(record, self.may_act) {
            Ok(method) => {
                tracing::warn!(%life, method = method.name(), "fenced");
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(%life, "not fenced: {e}");
                false
            }
        }
    }

    fn observe(
        &self,
        beats: &mut Heartbeats,
        now: Time,
    ) -> Result<Vec<SlotObservation>, LockError> {
        // One that cannot be read is nobody's that could be fenced.
        let records = read_slots(self.store, &[])?.records;
        let bytes = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let observer = Observer {
            me: self.mine.life,
            identity: self.identity,
            places: self.store.lock_places(),
            // Nodes with foreign locks were refused before.
            by_lock: false,
            means: self.fencer().means(),
            epoch: self.store.pool().epoch(),
        };
        let mut observed = Vec::with_capacity(records.len());
        for record in records {
            let slot = record.life.slot;
            let sector = bytes.chunks(self.store.sector_len()).nth(usize::from(slot.0));
            beats.note(now, slot, sector.unwrap_or_default());
            if slot == self.mine.life.slot {
                continue;
            }
            // Of other hosts nothing is seen.
            let seen = self.identity.sees_lock_of(&record, &observer.places);
            let locked = !seen || self.store.life_locked(slot).map_err(LockError::NodeStore)?;
            let proven = self.options.proofs.of(&record).is_some();
            observed.push(observer.observe(record, beats, locked, proven));
        }
        Ok(observed)
    }
}
