//! What keeps a redundant pool whole: taking failed members out, and locks on mirrors.

use braid_device::{CawOutcome, Device, DeviceError};
use braid_format::label::{Label, MemberState};
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use uuid::Uuid;

use crate::Inner;
use crate::clock::unix_seconds;
use crate::error::PoolError;
use crate::group::engine::Lost;
use crate::group::{Group, Shape};
use crate::map::Place;
use crate::members::write_epoch_on;
use crate::topology::Topology;

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
    next.epoch = Epoch(label.epoch.0 + 1);
    next.change_id = Uuid::new_v4();
    next.changed = unix_seconds();
    next
}

/// Members whose labels carry an epoch: all but those that failed.
pub(crate) fn carriers(label: &Label) -> Vec<usize> {
    let carries = |(_, m): &(usize, &braid_format::label::Member)| m.state != MemberState::Failed;
    label.members.iter().enumerate().filter(carries).map(|(i, _)| i).collect()
}

impl Inner {
    /// Takes members that failed out of the pool: on return the labels of all others say so,
    /// durably, and no request uses them any more.
    ///
    /// # Errors
    /// The failure of the member that cannot be spared, or what kept the labels from being
    /// written; the pool then goes on as it was.
    pub fn lose(&self, lost: &Lost) -> Result<(), PoolError> {
        let mut topology = self.topology.write();
        let mut lost = lost.clone();
        loop {
            let mut next = next_epoch(&topology.label);
            for (member, error) in &lost {
                // Another request may have been first.
                if topology.state(*member) == MemberState::Failed {
                    continue;
                }
                if !topology.can_lose(*member) {
                    return Err(error.clone().into());
                }
                if let Some(m) = next.members.get_mut(usize::from(member.0)) {
                    m.state = MemberState::Failed;
                    m.state_epoch = next.epoch;
                }
                tracing::error!(%error, member = topology.name(*member), "member failed");
            }
            if next.members == topology.label.members {
                return Ok(());
            }
            let devices = topology.devices.clone();
            let after = Topology::new(next, devices)?;
            match write_epoch_on(&after.devices, &after.label, &carriers(&after.label)) {
                Ok(()) => {
                    tracing::error!(
                        pool = after.label.name,
                        epoch = after.label.epoch.0,
                        "the pool goes on without the failed member; replace it soon"
                    );
                    *topology = after;
                    return Ok(());
                }
                // One more that fails, now with its label.
                Err((member, PoolError::Device { source }))
                    if !lost.iter().any(|(m, _)| *m == member) =>
                {
                    lost.push((member, *source));
                }
                Err((_, error)) => return Err(error),
            }
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
            let topology = self.topology.read();
            let len = Bytes::from(new.len());
            let past = PoolError::PastEnd { at, len, size: self.info.size };
            let piece = topology.map.pieces(at, len).next().filter(|p| p.len == len).ok_or(past)?;
            let Place::Group(index) = piece.place else { continue };
            let group = topology.map.group(index);
            if group.shape != Shape::Mirror {
                return Err(PoolError::LockOnParity { at });
            }
            let range = (piece.at.0, piece.at.0 + len.0);
            let held = topology.locks.get(usize::from(index)).map(|l| l.lock(vec![range]));
            let exchange = Exchange { at: piece.at.0, expected, new };
            let mut lost = Lost::new();
            let outcome = exchange.run(&topology, group, &mut lost);
            drop(held);
            drop(topology);
            if !lost.is_empty() {
                self.lose(&lost)?;
            }
            match outcome {
                // Of the first try, on a copy that then failed.
                Some(CawOutcome::Mismatch(found)) if again && found == new => {
                    return Ok(CawOutcome::Written);
                }
                Some(outcome) => return Ok(outcome),
                None => again = true,
            }
        }
    }
}

impl Exchange<'_> {
    /// On the deciding copy, then on the others; `None` when the deciding copy failed.
    fn run(&self, topology: &Topology, group: &Group, lost: &mut Lost) -> Option<CawOutcome> {
        let first = topology.copies(group).next()?;
        let (arbiter, place) = group.at(first, self.at);
        let device = topology.device(arbiter);
        match device.compare_and_write(place, self.expected, self.new) {
            Ok(CawOutcome::Written) => {}
            Ok(mismatch) => return Some(mismatch),
            Err(error) => {
                lost.push((arbiter, error));
                return None;
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
enum Side {
    Arbiter(DeviceError),
    Follower(DeviceError),
}

/// Brings a sector of `follower` to what stands on `arbiter`.
fn follow(
    arbiter: &dyn Device,
    place: ByteOffset,
    follower: &dyn Device,
    there: ByteOffset,
    len: usize,
) -> Result<(), Side> {
    let (mut wanted, mut found) = (vec![0; len], vec![0; len]);
    follower.read(there, &mut found).map_err(Side::Follower)?;
    loop {
        arbiter.read(place, &mut wanted).map_err(Side::Arbiter)?;
        if found == wanted {
            return Ok(());
        }
        match follower.compare_and_write(there, &found, &wanted).map_err(Side::Follower)? {
            CawOutcome::Written => found.copy_from_slice(&wanted),
            CawOutcome::Mismatch(now) => found = now,
        }
    }
}

impl crate::Pool {
    /// What each member is just now, in member order.
    pub fn member_states(&self) -> Vec<(MemberIndex, MemberState)> {
        let topology = self.0.topology.read();
        (0_u16..).zip(&topology.label.members).map(|(i, m)| (MemberIndex(i), m.state)).collect()
    }
}
