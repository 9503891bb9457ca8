//! Fences are carried out here: how a node is known to be dead whose silence proves nothing.
//!
//! | | method | is had when | is the proof because |
//! |---|---|---|---|
//! | 1 | its kernel lock | it is of this host: its process is ended if it is silent and has not ended | its last descriptor is closed (see [`super::watch`]) |
//! | 2 | reservations | it and this node registered with every member | every member has ended what it had under way, and refuses it from now on |
//! | 3 | a command | this node has been given one | whoever wrote it says so: exit code 0 means that the host is off |
//! | 4 | the operator | somebody says so | as 3 |
//!
//! They are tried in this order: if one fails, the next is tried, unless it failed because this
//! node itself is fenced. [`super::fencing`] decides that.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::node::{Heartbeat, SlotRecord};
use braid_format::{Epoch, NodeId};
use braid_pool::{FenceHow, Reservable};
use parking_lot::RwLock;
use thiserror::Error;

use super::fencing::{Action, Event, FenceMethod, Fencing, Means, Why};
use super::{HostIdentity, NodeStore, Timing};
use crate::Life;
use crate::error::StoreError;

/// A silent node of this host is watched for so many beats more before its process is killed.
const LOOKED_AT_BEATS: u32 = 4;
/// Between two looks whether a process that was killed has let its lock go.
const ENDED_LOOK: Duration = Duration::from_millis(20);

/// How a node may fence others, besides what it registers with the members.
#[derive(Debug, Clone, Default)]
pub struct FenceOptions {
    /// A program that turns a host off: is called with host name, slot and incarnation; exit code 0
    /// means that the host is dead.
    pub command: Option<PathBuf>,
    /// Members are reset after a fence by reservation: for those that do not end what they abort.
    pub reset: bool,
}

/// Who this process knows to be fenced, and how. Shared by all of it that asks who is dead.
///
/// A proof is of who acts by a slot, with the random name of that one node: who died while it took a
/// slot over leaves no trace of its incarnation, which the next life of the slot has again.
#[derive(Debug, Clone, Default)]
pub struct Proofs(Arc<RwLock<Vec<Proof>>>);

#[derive(Debug)]
struct Proof {
    life: Life,
    node: [u8; 16],
    method: FenceMethod,
}

impl Proofs {
    /// How who acts by the slot of `record` is known to be fenced.
    ///
    /// What a person has said is in the slot itself ([`SlotRecord::vouched`]): it holds for everybody.
    pub fn of(&self, record: &SlotRecord) -> Option<FenceMethod> {
        let who = (record.acting(), record.node_uuid);
        let own = self.0.read().iter().find(|p| (p.life, p.node) == who).map(|p| p.method);
        own.or_else(|| record.vouched.then_some(FenceMethod::Operator))
    }
    /// Who acts by the slot of `record` is fenced.
    pub fn add(&self, record: &SlotRecord, method: FenceMethod) {
        let life = record.acting();
        let mut all = self.0.write();
        // One slot, one proof: that of its last life.
        all.retain(|p| p.life.slot != life.slot);
        all.push(Proof { life, node: record.node_uuid, method });
    }
}

/// Why a node is not fenced.
#[derive(Debug, Error)]
pub enum NotFenced {
    /// By reservation.
    #[error("by reservation: {0}")]
    Reservation(#[source] StoreError),
    /// By command.
    #[error("{}: {what}", command.display())]
    Command {
        /// Which.
        command: PathBuf,
        /// What it did.
        what: String,
    },
    /// This node may not act itself: others may be about to do the same to it.
    #[error("this node has withdrawn, or cannot say that it lives")]
    MayNotAct,
    /// By the end of its process.
    #[error("its process: {0}")]
    Process(String),
    /// There is no method.
    #[error("there is no way to do so: turn its host off, then `braid fence {} --confirm`", slot)]
    NoMethod {
        /// Its slot.
        slot: NodeId,
    },
}

/// The key of a life: never 0, and another for each file system, slot and incarnation.
pub fn key_of(fs: uuid::Uuid, life: Life) -> u64 {
    let (high, _) = fs.as_u64_pair();
    1 << 63 | (high >> 49) << 48 | u64::from(life.slot.0) << 32 | u64::from(life.incarnation.0)
}

/// A node that fences others.
pub(super) struct Fencer<'a> {
    pub store: &'a dyn NodeStore,
    pub options: &'a FenceOptions,
    pub timing: Timing,
    /// This node's own key; 0: none.
    pub key: u64,
    /// This node's host: no command turns that off.
    pub identity: &'a HostIdentity,
}

impl Fencer<'_> {
    /// What it has to fence others with. The members are asked.
    pub fn means(&self) -> Means {
        let reserves = self.key != 0 && self.store.pool().reservable() == Reservable::All;
        Means {
            key: if reserves { self.key } else { 0 },
            command: self.options.command.is_some(),
            host: self.identity.host.clone(),
        }
    }
    /// Fences it. `may_act`: whether this node may act, which a method that takes long may change.
    ///
    /// # Errors
    /// What kept the last method from it.
    pub fn fence(
        &self,
        record: &SlotRecord,
        may_act: &dyn Fn() -> bool,
    ) -> Result<FenceMethod, NotFenced> {
        let here = self.sees_process(record);
        let mut fencing = Fencing::new(self.means(), Box::new(record.clone()), here);
        let (mut event, mut failed) = (Event::Begin { may_act: may_act() }, None);
        loop {
            event = match fencing.step(event) {
                Action::EndProcess => match self.end_process(record, may_act) {
                    Ok(()) => Event::ProcessEnded,
                    Err(e) => {
                        failed = Some(e);
                        Event::ProcessStays { may_act: may_act() }
                    }
                },
                Action::Preempt => match self.preempt(record) {
                    Ok(()) => Event::Preempted,
                    Err(e) => {
                        let self_fenced = e.is_fenced();
                        failed = Some(NotFenced::Reservation(e));
                        Event::NotPreempted { self_fenced, may_act: may_act() }
                    }
                },
                Action::Call => {
                    if let Some(NotFenced::Reservation(e)) = &failed {
                        let slot = record.life.slot;
                        tracing::warn!(%slot, "not fenced by reservation: {e}");
                    }
                    let called = self.call(record);
                    failed = called.err();
                    Event::Called(failed.is_none())
                }
                Action::TakeKey => {
                    self.forget(record);
                    Event::KeyTaken
                }
                Action::Fenced(method) => return Ok(method),
                Action::NotFenced(Why::MayNotAct) => return Err(NotFenced::MayNotAct),
                Action::NotFenced(_) => {
                    let none = NotFenced::NoMethod { slot: record.life.slot };
                    return Err(failed.unwrap_or(none));
                }
            }
        }
    }
    /// Whether a process of this host is seen to hold the liveness lock of the slot's node.
    fn sees_process(&self, record: &SlotRecord) -> bool {
        self.identity.sees_lock_of(record, &self.store.lock_places())
            && self.store.life_locked(record.life.slot).unwrap_or(false)
    }
    /// Ends the process of a silent node of this host, and waits until its liveness lock is gone.
    ///
    /// Whoever was stopped with its host goes on with it: so the node is looked at for some beats more
    /// first. Nobody else is hit: the process holds that lock, and the slot names it, at the end of that
    /// time as at its beginning.
    fn end_process(
        &self,
        record: &SlotRecord,
        may_act: &dyn Fn() -> bool,
    ) -> Result<(), NotFenced> {
        let (slot, failed) = (record.life.slot, |why: &str| NotFenced::Process(why.to_owned()));
        let Some(holder) = self.store.life_holder(slot, record.pid) else {
            return Err(failed(
                "it is not seen here: it is in another container or of another user; end it there",
            ));
        };
        let shown = || {
            let beats = self.store.read_heartbeats().unwrap_or_default();
            let sector = beats.chunks(self.store.sector_len()).nth(usize::from(slot.0));
            let stands = self.store.read_slot(slot).ok();
            let stands = stands.and_then(|bytes| SlotRecord::decode(&bytes, slot).ok());
            (sector.map(<[u8]>::to_vec), stands.as_ref() == Some(record))
        };
        let (timing, before) = (Timing::of_slot(record.io_timeout), shown());
        std::thread::sleep(timing.beat() * LOOKED_AT_BEATS);
        let (beat, same) = shown();
        if before.0 != beat || !(before.1 && same) {
            return Err(failed("it goes on"));
        }
        if !self.store.holds_life(&holder, slot) {
            return Err(failed("it has just ended"));
        }
        if !may_act() {
            return Err(NotFenced::MayNotAct);
        }
        let (pid, stopped) = (holder.number(), holder.is_stopped());
        tracing::warn!(
            %slot, pid, stopped, mount_point = record.mount_point,
            "this node of this host has shown no heartbeat for too long: its process is killed, so that others can recover it"
        );
        holder.kill().map_err(|e| NotFenced::Process(format!("cannot kill process {pid}: {e}")))?;
        let ended = || !self.store.life_locked(slot).unwrap_or(true);
        let until = Instant::now() + timing.io_timeout();
        holder.ends_within(timing.io_timeout());
        while !ended() {
            if Instant::now() >= until {
                return Err(NotFenced::Process(format!(
                    "process {pid} was killed and has not ended: it waits for a device that does not answer, is dumping core, or its cgroup is frozen (a paused container)"
                )));
            }
            std::thread::sleep(ENDED_LOOK);
        }
        Ok(())
    }
    fn preempt(&self, record: &SlotRecord) -> Result<(), StoreError> {
        let epoch_seen = self.last_epoch(record.life.slot);
        let how = FenceHow { prove: true, reset: self.options.reset, epoch_seen };
        self.store.pool().fence(record.fence_key, how)
    }
    /// Takes the key of a node that is known to be dead, unless this node, of the same host, has it too.
    pub fn forget(&self, record: &SlotRecord) {
        if self.key == 0 || record.fence_key == 0 || record.fence_key == self.key {
            return;
        }
        let how = FenceHow { prove: false, reset: false, epoch_seen: Epoch(0) };
        if let Err(e) = self.store.pool().fence(record.fence_key, how) {
            tracing::warn!(slot = %record.life.slot, "a dead node's key stays: {e}");
        }
    }
    /// The epoch that the node of a slot last said it uses; 0: not known.
    fn last_epoch(&self, slot: NodeId) -> Epoch {
        let all = self.store.read_heartbeats().unwrap_or_default();
        let sector = all.chunks(self.store.sector_len()).nth(usize::from(slot.0));
        let beat = sector.and_then(|sector| Heartbeat::decode(sector, slot).ok());
        Epoch(beat.map_or(0, |beat| beat.pool_epoch.into()))
    }
    fn call(&self, record: &SlotRecord) -> Result<(), NotFenced> {
        let Some(command) = &self.options.command else {
            return Err(NotFenced::NoMethod { slot: record.life.slot });
        };
        let failed = |what: String| NotFenced::Command { command: command.clone(), what };
        let life = record.acting();
        let (slot, incarnation) = (life.slot.0.to_string(), life.incarnation.0.to_string());
        tracing::warn!(command = %command.display(), host = record.host, slot, "called to fence a node");
        let mut child = Command::new(command)
            .args([&record.host, &slot, &incarnation])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        // Hosts take their time to go down; but nobody waits for ever.
        let until = Instant::now() + (self.timing.io_timeout() * 6).max(Duration::from_mins(1));
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(failed(status.to_string())),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(failed("did not end in time".to_owned()));
                }
                Err(e) => return Err(failed(e.to_string())),
            }
        }
    }
}
