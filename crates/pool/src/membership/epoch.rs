//! How all nodes that use a pool agree on each change of it: one epoch for all.
//!
//! ```text
//!  the node that changes the pool                 every other node
//!  claims the change on every member that stays   (its own changes meet the claim, and wait)
//!    and checks that the epoch is still its own
//!  writes the new labels, in two phases
//!  uses the new epoch, and announces it in its    sees another epoch in a heartbeat: lets its requests
//!    heartbeat; removes the claims                  end, reads the labels, uses the new epoch, and
//!                                                   announces it
//!  ------ the epoch is *settled* once every living node has announced that it uses it ------
//! ```
//! From its change of epoch until the settlement a node changes nothing. Reads are right in both
//! epochs. So no node skips a member that another node still reads, and no two nodes
//! compare-and-write on different copies of one lock. If a node dies on the way, the others wait
//! until it is fenced.
//!
//! A node that follows a change sees labels, but not whether they are durable: the node that wrote
//! them may have died before it flushed them. So before its first change the follower makes the
//! epoch *durable* ([`crate::membership::label_repair`]). Without that, a power cut could bring back
//! members that have missed what the follower wrote. Until the epoch is durable the change may
//! still come to nothing; the follower then goes back ([`crate::membership::epoch_rollback`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::Device;
use braid_format::features::Features;
use braid_format::label::{Label, Member, MemberState};
use braid_format::lock_record::Life;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use uuid::Uuid;

use super::claims::{Claims, moved};
use super::epoch_rollback::take_back;
use super::joining::Joining;
use super::log_replicas::relocate_log;
use super::unfinished_epoch::{Open, Refused};
use crate::devices::absent::{AbsentDevice, ShortDevice};
use crate::devices::is_late;
use crate::error::PoolError;
use crate::labels::{
    Found, assess_labels, carriers, end_marks, id, own_uuid, same_device, try_copies, write_second,
};
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::simulation::Pause;
use crate::topology::{FailedMembers, Lost, Topology};

/// First and longest pause between two looks at the other nodes.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// After so many the labels of the epoch are looked at once more.
const PAUSES: u32 = 64;

impl PoolState {
    /// The epoch in use, settled and durable: for everything that changes the pool.
    ///
    /// # Errors
    /// This node has withdrawn while it waited for the others; or the epoch cannot be made to stay.
    pub fn enter(&self) -> Result<RwLockReadGuard<'_, EpochInUse>, PoolError> {
        loop {
            let topology = self.epochs.read();
            if topology.ready() {
                return Ok(topology);
            }
            drop(topology);
            self.await_ready()?;
        }
    }

    /// As [`PoolState::enter`], while nobody else uses it.
    pub fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, EpochInUse>, PoolError> {
        loop {
            let topology = self.epochs.write();
            if topology.ready() {
                return Ok(topology);
            }
            drop(topology);
            self.await_ready()?;
        }
    }

    /// Waits until the epoch in use is settled, and makes it durable.
    ///
    /// # Errors
    /// As [`PoolState::enter`].
    pub fn await_ready(&self) -> Result<(), PoolError> {
        self.await_settled()?;
        self.make_durable()
    }

    /// The epoch in use, settled: for changing it.
    pub fn enter_to_change(&self) -> Result<RwLockWriteGuard<'_, EpochInUse>, PoolError> {
        loop {
            let topology = self.epochs.write();
            if topology.settled.load(Ordering::Acquire) {
                return Ok(topology);
            }
            drop(topology);
            self.await_settled()?;
        }
    }

    /// Waits until every other node uses the epoch that this one uses.
    ///
    /// # Errors
    /// This node has withdrawn.
    pub fn await_settled(&self) -> Result<(), PoolError> {
        self.await_settled_unless(&|| false).map(drop)
    }

    /// As [`PoolState::await_settled`]; false if `over`, which is asked again and again, was true before.
    ///
    /// # Errors
    /// As there.
    pub fn await_settled_unless(&self, over: &dyn Fn() -> bool) -> Result<bool, PoolError> {
        let (mut pause, mut pauses, wait) = (PAUSE, 0_u32, self.cluster.leave.others_wait());
        loop {
            // One thread asks, for all that wait.
            let turn = self.epochs.settling.lock();
            let tag = {
                let topology = self.epochs.read();
                if topology.settled.load(Ordering::Acquire) {
                    return Ok(true);
                }
                topology.tag()
            };
            let shared = self.cluster.shared();
            if shared.as_ref().is_some_and(|s| s.others.has_ended()) {
                return Err(PoolError::Closed);
            }
            if shared.is_none_or(|s| s.others.all_use(tag)) {
                let topology = self.epochs.read();
                if topology.tag() == tag {
                    topology.settled.store(true, Ordering::Release);
                }
                continue;
            }
            drop(turn);
            if over() {
                return Ok(false);
            }
            wait.check()?;
            pauses += 1;
            if pauses % PAUSES == 0 && !self.epochs.read().durable.load(Ordering::Acquire) {
                // The epoch may stand on labels of joining devices, written by a node that died: only
                // a node that opened the pool later sees them, and it could not heal them then.
                match self.try_heal_labels(&FailedMembers::new()) {
                    Err(PoolError::EpochMoved { by, .. }) => self.give_way(by)?,
                    Err(error) => tracing::warn!(%error, "labels are not healed"),
                    Ok(failed) if failed.is_empty() => {}
                    // It may be that of a change which has come to nothing with this member.
                    Ok(_) => drop(self.follow()?),
                }
            }
            self.pause(pause, Pause::Free);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Calls `once`, which ends in [`PoolState::change`], until no other node's change comes between.
    ///
    /// # Errors
    /// Those of `once`.
    pub fn changing<T>(
        &self,
        mut once: impl FnMut() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        // What is asked for is judged by the newest epoch there is.
        if self.cluster.shared().is_some() {
            self.follow()?;
        }
        loop {
            self.await_ready()?;
            drop(self.mend_labels(&FailedMembers::new())?);
            match once() {
                Err(PoolError::EpochMoved { by, .. }) => self.give_way(by)?,
                done => {
                    let done = done?;
                    self.await_settled()?;
                    return Ok(done);
                }
            }
        }
    }

    /// Another node changes the pool just now, or has done so, or died over it: `by`.
    pub fn give_way(&self, by: Option<Life>) -> Result<(), PoolError> {
        if !self.is_known_gone(by) && !self.follow()? {
            self.pause(PAUSE_MAX, Pause::Free);
        }
        Ok(())
    }

    /// Whether a claim is of a life that is gone: it counts for nothing from now on. No topology is
    /// held.
    pub fn is_known_gone(&self, by: Option<Life>) -> bool {
        let (Some(by), Some(shared)) = (by, self.cluster.shared()) else { return false };
        let is_gone = shared.others.is_gone(by);
        if is_gone {
            let mut gone = self.cluster.gone.lock();
            if !gone.contains(&by) {
                gone.push(by);
            }
        }
        is_gone
    }

    /// Puts `next` in force on all its carriers, with `devices`, and moves the redundancy log to
    /// its replicas there.
    ///
    /// # Errors
    /// A member fails while its label is written, or [`PoolError::EpochMoved`]: nothing has
    /// changed.
    pub fn change(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        next: Label,
        devices: Vec<Arc<dyn Device>>,
    ) -> Result<(), PoolError> {
        self.change_with(topology, next, devices, &Joining::NONE)
    }

    /// As [`PoolState::change`], where devices join that are nobody's: that is looked at, and what is on
    /// them is wiped, when no other node can change the pool.
    ///
    /// # Errors
    /// As there, and those of [`check_new`].
    pub fn change_with(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        next: Label,
        devices: Vec<Arc<dyn Device>>,
        joining: &Joining<'_>,
    ) -> Result<(), PoolError> {
        let lost = self.install(topology, (next, devices), joining).map_err(|e| e.1)?;
        if lost.is_empty() { Ok(()) } else { self.fail_members(&lost) }
    }

    /// As [`PoolState::change_with`]; says which member failed, and which failed after the change.
    pub fn install(
        &self,
        mut topology: RwLockWriteGuard<'_, EpochInUse>,
        (mut next, devices): (Label, Vec<Arc<dyn Device>>),
        joining: &Joining<'_>,
    ) -> Result<FailedMembers, Refused> {
        let whole = |e| (None, e);
        end_marks(&topology.label, &mut next);
        let shared = self.cluster.shared();
        if !topology.settled.load(Ordering::Acquire) {
            return Err(whole(moved(&topology)));
        }
        let next = EpochInUse::new(next, devices).map_err(whole)?.after(&topology);
        let has = |label: &Label| Features::of_label(label.features_incompat());
        self.cluster.check_known(has(&next.label).without(has(&topology.label))).map_err(whole)?;
        let gone = self.cluster.gone.lock().clone();
        let open: Open<'_> = &|m| self.open_member(m);
        let kept = next.carrying();
        let claims = shared.as_ref().map(|s| Claims::take(s, (&topology, &kept), &gone, open));
        let mut claims = claims.transpose()?;
        let seen = claims.as_ref().map_or(0, |c| c.seen);
        let next = self.above_attempts(next, seen);
        if let Some(claims) = &mut claims {
            claims.tries(next.label.epoch.0);
        }
        let _taken = joining.take(self, &topology).map_err(whole)?;
        self.epochs.attempted.store(next.label.epoch.0, Ordering::Release);
        // Before anybody can find the pool by its new members.
        self.cluster.liveness.join(&topology, &next);
        let unwritten = match self.write_labels(&topology, &next, joining) {
            Ok(unwritten) => unwritten,
            Err(refused) => {
                take_back(&topology, &next);
                joining.restore(&topology.label, &topology.devices);
                self.let_go(&topology, &next);
                // What stands of it now goes before anything is changed.
                topology.durable.store(false, Ordering::Release);
                return Err(refused);
            }
        };
        next.settled.store(shared.is_none(), Ordering::Release);
        next.durable.store(unwritten.is_empty(), Ordering::Release);
        let before = self.use_epoch(&mut topology, next);
        drop(claims);
        self.record_change(&before.label, &topology.label);
        let mut lost = Lost::new();
        let moved = relocate_log(&topology, &mut lost);
        let mut lost = topology.named(&lost);
        let (more, short) = topology.to_lose(unwritten);
        lost.extend(more);
        drop(topology);
        // The epoch is in use, whatever became of the log.
        self.say_epoch(&before);
        moved.map_err(whole)?;
        short.map_or(Ok(lost), Err)
    }

    /// Writes the labels of `next` on all its carriers, after registering with those that are new; the
    /// members that did not get their second label.
    ///
    /// When the first label of each member is durable, and some members have the second, the epoch is
    /// in force after a power cut: a member without its second label is no reason to go back. But a
    /// member that this epoch puts in use must have both labels, and is written first.
    fn write_labels(
        &self,
        topology: &Topology,
        next: &Topology,
        joining: &Joining<'_>,
    ) -> Result<Vec<(MemberIndex, PoolError)>, Refused> {
        let which = carriers(&next.label);
        let refused = |(member, error)| (next.uuid(member), error);
        let kept =
            self.cluster.key.extend(topology, next).and_then(|()| joining.keep(&topology.label));
        let first = kept
            .map_err(|e| (None, e))
            .and_then(|()| try_copies(&next.devices, &next.label, 0, &which).map_err(refused));
        if first.is_err() {
            joining.forget(&topology.label);
        }
        first?;
        let begins = |i: &usize| {
            let member = next.label.members.get(*i).map(|m| m.uuid);
            member.is_some_and(|m| next.uses(m) && !topology.uses(m))
        };
        let (new, others): (Vec<usize>, Vec<usize>) = which.into_iter().partition(begins);
        try_copies(&next.devices, &next.label, 1, &new).map_err(refused)?;
        let mut unwritten = write_second(&next.devices, &next.label, &others);
        if new.is_empty() && unwritten.len() == others.len() && !others.is_empty() {
            return Err(refused(unwritten.swap_remove(0)));
        }
        Ok(unwritten)
    }

    /// The change to `next` has come to nothing: what was taken on its new devices is theirs again.
    fn let_go(&self, topology: &Topology, next: &Topology) {
        self.cluster.liveness.part(topology);
        self.cluster.key.retract(topology, next);
    }

    /// `next`, with a number above those of changes that were broken off: a member that failed on
    /// the way may carry such a label, and would look as if it had been used since it failed.
    fn above_attempts(&self, mut next: EpochInUse, seen: u64) -> EpochInUse {
        let highest = self.epochs.attempted.load(Ordering::Acquire).max(seen);
        let planned = next.label.epoch;
        if planned.0 > highest {
            return next;
        }
        let mut label = next.label.clone();
        label.epoch = Epoch(highest.saturating_add(1));
        for m in label.members.iter_mut().filter(|m| m.state_epoch == planned) {
            m.state_epoch = label.epoch;
        }
        next.relabel(label);
        next
    }

    /// See [`crate::pool::Pool::follow`].
    pub fn follow(&self) -> Result<bool, PoolError> {
        let (devices, before) = {
            let topology = self.epochs.read();
            (topology.devices.clone(), topology.label.clone())
        };
        // A member that has failed may hang, and its labels do not count.
        let used = carriers(&before).into_iter().filter_map(|i| devices.get(i).cloned());
        let found: Vec<Found> = used.map(Found::read).collect();
        let ours = |f: &Found| f.newest().is_some_and(|l| l.pool == before.pool);
        let (found, others): (Vec<Found>, Vec<Found>) = found.into_iter().partition(ours);
        if found.is_empty() {
            // A node of another version has changed it.
            let other = others.iter().find_map(Found::of_another_version);
            return Err(other.unwrap_or(PoolError::NoLabels { name: before.name }));
        }
        let label = assess_labels(&found, true)?.label;
        let older = label.epoch < before.epoch;
        if id(&label) == id(&before) || older && !self.epochs.read().is_only_seen(&before) {
            return Ok(false);
        }
        let now = label.members.iter().map(|m| {
            let place = before.members.iter().position(|b| b.uuid == m.uuid);
            match place.and_then(|i| devices.get(i)) {
                Some(known) if m.state == MemberState::Failed => known.clone(),
                _ => self.device_of(m, &found),
            }
        });
        let now = now.collect();
        let next = EpochInUse::new(label, now)?;
        self.await_late((&before, &devices), &next);
        if older {
            return self.go_back(&before, next);
        }
        let topology = self.epochs.write();
        if id(&topology.label) != id(&before) {
            return Ok(true);
        }
        tracing::info!(
            pool = next.label.name,
            epoch = next.label.epoch.0,
            "another node has changed the pool"
        );
        self.use_seen(topology, next)?;
        Ok(true)
    }

    /// Waits until nothing can be done any more of what this node gave up on a device of a member that
    /// has failed, if that device is a member in `next`: nobody writes there before this node says that it
    /// uses `next`.
    fn await_late(&self, (before, devices): (&Label, &[Arc<dyn Device>]), next: &Topology) {
        let failed = before.members.iter().zip(devices);
        let failed = failed.filter(|(m, d)| m.state == MemberState::Failed && is_late(d));
        let used: Vec<_> =
            carriers(&next.label).into_iter().filter_map(|i| next.devices.get(i)).collect();
        let again = |d: &&Arc<dyn Device>| used.iter().any(|n| same_device(n, d));
        let mut said = false;
        for device in failed.map(|(_, d)| d).filter(again) {
            let ended = || self.cluster.shared().is_none_or(|s| s.others.has_ended());
            while is_late(device) && !ended() {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        path = device.info().name,
                        "a device is to be a member again, and has not yet ended what it was asked before it failed: this node waits for that"
                    );
                }
                self.pause(PAUSE_MAX, Pause::Free);
            }
        }
    }

    /// Uses `next`, which others have put in force, and says so.
    ///
    /// # Errors
    /// As [`crate::pool::Pool::follow`].
    pub fn use_seen(
        &self,
        mut topology: RwLockWriteGuard<'_, EpochInUse>,
        next: EpochInUse,
    ) -> Result<(), PoolError> {
        let next = next.after(&topology);
        let shared = self.cluster.shared();
        next.settled.store(shared.is_none(), Ordering::Release);
        next.durable.store(false, Ordering::Release);
        self.cluster.liveness.join(&topology, &next);
        if let Err(refused) = self.cluster.key.extend(&topology, &next) {
            self.let_go(&topology, &next);
            return Err(refused);
        }
        // The log is about to leave its former replicas, for good.
        next.flush_labels(&mut FailedMembers::new());
        let before = self.use_epoch(&mut topology, next);
        let mut lost = Lost::new();
        let moved = relocate_log(&topology, &mut lost);
        drop(topology);
        self.say_epoch(&before);
        moved?;
        if !lost.is_empty() {
            // The next change fails them: the settlement may need the calling thread.
            tracing::error!(?lost, "members failed while the log moved");
        }
        Ok(())
    }
}

impl PoolState {
    /// Makes `next` the epoch in use. Returns the snapshot of the epoch before it, by which heartbeats
    /// went until now.
    fn use_epoch(&self, topology: &mut EpochInUse, next: EpochInUse) -> Arc<Topology> {
        if let Some(migration) = topology.missed() {
            self.epochs.ended_migrations.lock().push(migration);
        }
        let leaves = leaves_members(&topology.label, &next.label);
        if leaves || topology.settled.load(Ordering::Acquire) {
            self.epochs.leaves_members.store(leaves, Ordering::Release);
        }
        *topology = next;
        let before = self.epochs.replace_snapshot(topology);
        self.cluster.liveness.part(topology);
        before
    }

    /// Tells the other nodes, by heartbeats, that this node uses the epoch in use: they wait for that.
    /// First it waits until nobody here uses `before`, the snapshot of the epoch before. So no
    /// heartbeat goes any more to a device that only that epoch has.
    fn say_epoch(&self, before: &Arc<Topology>) {
        let shared = self.cluster.shared();
        while Arc::strong_count(before) > 1 {
            self.pause(PAUSE, Pause::Free);
        }
        // Where heartbeats stood until now there may be something else from now on. The next one says
        // where they stand.
        for session in before.devices.iter().filter_map(|d| d.abilities().session) {
            session.repeats(ByteOffset(0), Bytes(0));
        }
        // Requests of windows may still be under way by them.
        if self.io.queued.load(Ordering::Acquire) == 0 {
            self.cluster.key.part(before, &self.epochs.snapshot());
        }
        // Of two epochs the later one is said last.
        let _turn = self.epochs.announcing.lock();
        let tag = self.epochs.snapshot().tag();
        if let Some(shared) = &shared {
            shared.others.adopt();
        }
        *self.epochs.announced.write() = tag;
        if let Some(shared) = &shared {
            shared.others.announce();
        }
    }

    /// The device of a member of a new epoch: one that is open, or found by its label.
    fn device_of(&self, member: &Member, open: &[Found]) -> Arc<dyn Device> {
        let carries = |f: &&Found| f.newest().and_then(own_uuid) == Some(member.uuid);
        let whole = |d: &Arc<dyn Device>| d.info().size >= member.device_size;
        let known = open.iter().find(carries).map(|f| f.device.clone());
        if let Some(known) = known.as_ref().filter(|d| whole(d)) {
            return known.clone();
        }
        // One that has grown is opened anew, by the name that it has here: the label's is that of the host where
        // it became a member.
        let here = known.as_ref().map(|d| d.info().name.clone());
        let member =
            &Member { path: here.unwrap_or_else(|| member.path.clone()), ..member.clone() };
        let found = self.open_member(member);
        if let Some(found) = found.as_ref().filter(|d| whole(d)) {
            return found.clone();
        }
        let Some(small) = found.or(known) else {
            // What is written to it will fail, and take it out again.
            tracing::error!(
                path = member.path,
                "this node does not reach a new member of the pool"
            );
            return AbsentDevice::of(member);
        };
        tracing::error!(
            path = small.info().name,
            seen = %small.info().size,
            has = %member.device_size,
            "this node does not see that a device has grown: let the host look at it again"
        );
        ShortDevice::over(small, member, self.opener())
    }
}

impl Topology {
    /// The members that have labels.
    pub fn carrying(&self) -> Vec<Uuid> {
        let label = &self.label;
        carriers(label).into_iter().filter_map(|i| Some(label.members.get(i)?.uuid)).collect()
    }
}

/// Whether a member that nodes write heartbeats to is used no more.
fn leaves_members(before: &Label, next: &Label) -> bool {
    let used = |label: &Label, uuid| {
        label.members.iter().any(|m| m.uuid == uuid && m.state != MemberState::Failed)
    };
    before.members.iter().any(|m| used(before, m.uuid) && !used(next, m.uuid))
}
