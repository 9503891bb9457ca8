//! What keeps a redundant pool whole: taking failed members out, and locks on mirrors.

use std::sync::Arc;

use braid_device::{CawOutcome, Device, DeviceError};
use braid_format::label::{Label, MemberState};
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};

use crate::Inner;
use crate::atomic_records::is_record;
use crate::clock::unix_seconds;
use crate::error::PoolError;
use crate::group::engine::{FailedMembers, Lost};
use crate::group::{Group, Shape};
use crate::log::Reach;
use crate::log::recover::{Found, Recovered};
use crate::log::redo::flush_all;
use crate::map::Place;
use crate::simulation::fresh;
use crate::topology::Topology;
use crate::verifier::{ChecksumVerifier, NoChecksums};

/// Most times in a row that a compare-and-write whose answer was lost is looked at again: a device
/// that always loses them has failed.
const UNKNOWN_MAX: u32 = 8;

/// A compare-and-write on all copies of a mirror.
#[derive(Debug, Clone, Copy)]
struct Exchange<'a> {
    /// Offset in the group.
    at: u64,
    expected: &'a [u8],
    new: &'a [u8],
}

/// A label for the epoch after `label`'s, with nothing else changed.
pub(crate) fn next_epoch(label: &Label) -> Label {
    let mut next = label.clone();
    next.epoch = Epoch(label.epoch.0.saturating_add(1));
    next.change_id = fresh();
    next.changed = unix_seconds();
    next
}

/// Members whose labels carry an epoch: all but those that failed.
pub(crate) fn carriers(label: &Label) -> Vec<usize> {
    let carries = |(_, m): &(usize, &braid_format::label::Member)| m.state != MemberState::Failed;
    label.members.iter().enumerate().filter(carries).map(|(i, _)| i).collect()
}

impl Inner {
    /// Recovers slot `slot`'s log; for its own node, keeps it to be written.
    ///
    /// What it may change is held against other nodes, by this node or still by the dead life.
    fn recover(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
        attach: bool,
    ) -> Result<Recovered, PoolError> {
        loop {
            let found = Found::read(&*self.enter()?, slot);
            let _held = match self.shared() {
                Some(shared) => {
                    let locks = found.locks(&self.topology.read(), shared.regions.count());
                    Some(shared.regions.hold_to_recover(&locks)?)
                }
                None => None,
            };
            let mut lost = FailedMembers::new();
            let recovered = found.make_whole(|| self.enter(), verifier, &mut lost)?;
            if let Some((recovered, log)) = recovered.filter(|_| lost.is_empty()) {
                if attach {
                    self.topology.write().log = Some(Arc::new(log));
                }
                return Ok(recovered);
            }
            self.fail_members(&lost)?;
        }
    }

    /// Forgets noted regions that are no longer written, after a flush.
    pub fn clean_log(&self) {
        let Ok(topology) = self.enter_alone() else { return };
        let mut lost = Lost::new();
        // Copies that differ must be compared if this node dies now.
        if let Some(log) = topology.log.as_ref().filter(|_| self.divergent.is_none()) {
            log.intents.clean(&topology, log.slot, &mut lost);
        }
        let lost = topology.named(&lost);
        drop(topology);
        if !lost.is_empty()
            && let Err(error) = self.fail_members(&lost)
        {
            tracing::error!(%error, "a member failed while the redundancy log was cleaned");
        }
    }

    /// What a region is given up with: no record of this node's log names it any more, so that what
    /// others write there is not undone by a recovery of this node.
    pub fn empty_ring(&self) -> Result<(), PoolError> {
        let topology = self.topology.read();
        let mut lost = Lost::new();
        if let Some(log) = &topology.log {
            log.redo.checkpoint(&topology, log.slot, &mut lost)?;
        }
        let lost = topology.named(&lost);
        drop(topology);
        if lost.is_empty() { Ok(()) } else { self.fail_members(&lost) }
    }

    /// Empties the log: all members hold the same, durably.
    fn detach(&self) -> Result<(), PoolError> {
        loop {
            let mut topology = self.enter_alone()?;
            let Some(log) = topology.log.clone() else { return Ok(()) };
            let mut lost = Lost::new();
            flush_all(&topology, &mut lost)?;
            if lost.is_empty() {
                log.redo.checkpoint(&topology, log.slot, &mut lost)?;
                log.intents.forget(&topology, log.slot, &mut lost)?;
            }
            if lost.is_empty() {
                topology.log = None;
                return Ok(());
            }
            let lost = topology.named(&lost);
            drop(topology);
            self.fail_members(&lost)?;
        }
    }

    /// [`crate::Pool::compare_and_write`] where the sector stands on a mirror. The first copy in
    /// sync decides; the others follow before the call returns, each brought to what stands on the
    /// first, by compare-and-write, so that a slower follower never takes a newer one back. (Each
    /// value is written only once: a lock record carries a nonce.)
    pub fn compare_and_write_mirrored(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, PoolError> {
        let mut again = false;
        loop {
            let topology = self.enter()?;
            let len = Bytes::from(new.len());
            let past = PoolError::PastEnd { at, len, size: topology.map.size() };
            if topology.map.is_holed(at, len) {
                return Err(PoolError::Hole { at, len });
            }
            let piece = topology.map.pieces(at, len).next().filter(|p| p.len == len).ok_or(past)?;
            let index = match piece.place {
                Place::Group(index) => index,
                Place::Member(member) => {
                    let device = topology.device(member);
                    return Ok(device.compare_and_write(piece.at, expected, new)?);
                }
            };
            let group = topology.map.group(index);
            if group.shape != Shape::Mirror {
                return Err(PoolError::LockOnParity { at });
            }
            if topology.provisional {
                return Err(PoolError::Provisional { name: topology.label.name.clone() });
            }
            if topology.is_filled(group) && !is_record(expected) {
                return Err(PoolError::NoRecord { at });
            }
            let range = (piece.at.0, piece.at.0 + len.0);
            let held = topology.lock(index, vec![range]);
            let exchange = Exchange { at: piece.at.0, expected, new };
            let mut lost = Lost::new();
            // After a crash the copies may differ, as after any write.
            if let Some(log) = &topology.log {
                log.intents.note(&topology, log.slot, &[(at.0, at.0 + len.0)], &mut lost)?;
            }
            let outcome = exchange.run(&topology, group, again, &mut lost);
            drop(held);
            let lost = topology.named(&lost);
            drop(topology);
            if !lost.is_empty() {
                self.fail_members(&lost)?;
            }
            self.check_migration()?;
            match outcome {
                Some(outcome) => return Ok(outcome),
                None => again = true,
            }
        }
    }
}

/// Makes everything in place durable and writes the log to its replicas of this epoch.
pub(crate) fn relocate_log(topology: &Topology, lost: &mut Lost) -> Result<(), PoolError> {
    let Some(log) = &topology.log else { return Ok(()) };
    flush_all(topology, lost)?;
    log.intents.rewrite(topology, log.slot, Reach::Replicas, lost)?;
    log.redo.relocate(topology, log.slot, lost)
}

impl Exchange<'_> {
    /// On the deciding copy, then on the others; `None` when the deciding copy failed. `again`: it
    /// did before, and this one may have got the new bytes then, though not all others have.
    fn run(
        &self,
        topology: &Topology,
        group: &Group,
        again: bool,
        lost: &mut Lost,
    ) -> Option<CawOutcome> {
        let first = topology.copies(group).next()?;
        let (arbiter, place) = group.at(first, self.at);
        let device = topology.device(arbiter);
        let mut unknown = 0;
        loop {
            match device.compare_and_write(place, self.expected, self.new) {
                Ok(CawOutcome::Written) => break,
                Ok(CawOutcome::Mismatch(found)) if (again || unknown != 0) && found == self.new => {
                    break;
                }
                Ok(mismatch) => return Some(mismatch),
                // Of two against the same bytes one lands: no value is written twice.
                Err(DeviceError::Unknown { .. }) if unknown < UNKNOWN_MAX => unknown += 1,
                Err(error) => {
                    lost.push((arbiter, error));
                    return None;
                }
            }
        }
        for column in (0..group.columns.len()).filter(|c| *c != first) {
            let (member, there) = group.at(column, self.at);
            if !topology.writable(member) {
                continue;
            }
            let follower = &**topology.device(member);
            match follow(&**device, place, follower, there, self.new.len()) {
                Ok(()) => {}
                Err(Side::Arbiter(error)) => {
                    lost.push((arbiter, error));
                    return None;
                }
                Err(Side::Follower(error)) => lost.push((member, error)),
            }
        }
        Some(CawOutcome::Written)
    }
}

/// Which of two copies failed.
pub(crate) enum Side {
    Arbiter(DeviceError),
    Follower(DeviceError),
}

/// Brings a sector of `follower` to what stands on `arbiter`.
pub(crate) fn follow(
    arbiter: &dyn Device,
    place: ByteOffset,
    follower: &dyn Device,
    there: ByteOffset,
    len: usize,
) -> Result<(), Side> {
    let (mut wanted, mut found) = (vec![0; len], vec![0; len]);
    follower.read(there, &mut found).map_err(Side::Follower)?;
    let mut unknown = 0;
    loop {
        arbiter.read(place, &mut wanted).map_err(Side::Arbiter)?;
        if found == wanted {
            return Ok(());
        }
        match follower.compare_and_write(there, &found, &wanted) {
            Ok(CawOutcome::Written) => found.copy_from_slice(&wanted),
            Ok(CawOutcome::Mismatch(now)) => found = now,
            Err(DeviceError::Unknown { .. }) if unknown < UNKNOWN_MAX => {
                unknown += 1;
                follower.read(there, &mut found).map_err(Side::Follower)?;
            }
            Err(error) => return Err(Side::Follower(error)),
        }
    }
}

impl crate::Pool {
    /// Begins to keep the redundancy log of node slot `slot`, after recovering what stands in it.
    /// From now on a crash at any moment leaves nothing unequal that [`crate::Pool::recover_log`]
    /// does not find. A pool without redundancy has no log. Where there are other nodes this waits
    /// until all use one epoch.
    ///
    /// # Errors
    /// [`PoolError::NoLog`] when the pool was made for fewer slots; [`PoolError::Device`];
    /// [`PoolError::Closed`]: this node has withdrawn.
    pub fn attach(&self, slot: u16) -> Result<Recovered, PoolError> {
        self.attach_with(slot, &NoChecksums)
    }

    /// As [`Pool::attach`](crate::Pool::attach); `verifier` is asked which copy is good where copies differ that
    /// have to be made equal. Without one the first of two counts, though it may have rotted.
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::Pool::attach).
    pub fn attach_with(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<Recovered, PoolError> {
        self.check_log(slot)?;
        if !self.0.redundant {
            // It may stand on labels that this node alone can see, and has to show to the others.
            self.0.await_settled()?;
            return Ok(Recovered::default());
        }
        self.0.recover(slot, verifier, true)
    }

    /// Makes whole what the node of slot `slot` left unequal when it died, and lets a move begin again
    /// ([`crate::Pool::restart_migration`]). The slot's node is known to be dead or fenced, and nobody else
    /// recovers it. It may be repeated.
    ///
    /// # Errors
    /// As [`crate::Pool::attach`].
    pub fn recover_log(&self, slot: u16) -> Result<Recovered, PoolError> {
        self.recover_log_with(slot, &NoChecksums)
    }

    /// As [`Pool::recover_log`](crate::Pool::recover_log), with a verifier as in
    /// [`Pool::attach_with`](crate::Pool::attach_with).
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::Pool::attach).
    pub fn recover_log_with(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<Recovered, PoolError> {
        self.check_log(slot)?;
        self.restart_migration()?;
        if !self.0.redundant {
            return Ok(Recovered::default());
        }
        self.0.recover(slot, verifier, false)
    }

    /// Whether [`Pool::recover_log`](crate::Pool::recover_log) of a slot would write nothing but the
    /// log itself. The slot's node is known to be dead or fenced, and nobody else recovers it: so it
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::Pool::attach).
    pub fn is_log_empty(&self, slot: u16) -> Result<bool, PoolError> {
        self.check_log(slot)?;
        if !self.0.redundant {
            return Ok(true);
        }
        let topology = self.0.enter()?;
        Found::read(&topology, slot).is_empty(&topology)
    }

    /// Ends the log that [`crate::Pool::attach`] began: everything is durable and equal, and a
    /// later recovery finds nothing to do. No request is under way afterwards that was not flushed.
    ///
    /// # Errors
    /// [`PoolError::Device`]; the log then stays as it is.
    pub fn detach(&self) -> Result<(), PoolError> {
        self.0.detach()
    }

    /// Called when a region that this node wrote rows of parity in is given up: see
    /// [`crate::RegionLocks`].
    ///
    /// # Errors
    /// [`PoolError::Device`]: the region must be kept.
    pub fn give_up_regions(&self) -> Result<(), PoolError> {
        self.0.empty_ring()
    }

    /// Whether this process keeps a redundancy log.
    pub fn is_attached(&self) -> bool {
        self.0.topology.read().log.is_some()
    }

    fn check_log(&self, slot: u16) -> Result<(), PoolError> {
        match self.info().log_slots {
            Some(slots) if u64::from(slot) >= slots => Err(PoolError::NoLog { slot, slots }),
            _ => Ok(()),
        }
    }

    /// What each member is just now, in member order.
    pub fn member_states(&self) -> Vec<(MemberIndex, MemberState)> {
        let topology = self.0.topology.read();
        topology.members().map(|m| (m, topology.state(m))).collect()
    }
}
