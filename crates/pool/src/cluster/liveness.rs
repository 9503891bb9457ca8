//! Liveness bytes: byte locks on the members, which the kernel drops if the process that holds them
//! ends.
//!
//! A node holds its byte on every member in use, and on each member that joins: in a redundant pool
//! members may come and go, and a process that opens a copy of a member beside the others sees that it
//! bears no lock. A host that opens the pool with any one of these members sees the lock.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use braid_device::{ByteLockGuard, Device};
use braid_format::MemberIndex;
use braid_format::label::MemberState;
use braid_format::node::LockPlace;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::labels::same_device;
use crate::topology::Topology;

/// The bytes that this process holds: on which members.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(pub Mutex<BTreeMap<u64, Vec<(Uuid, ByteLockGuard)>>>);

/// Members whose bytes count.
pub(crate) fn bearers(topology: &Topology) -> Vec<MemberIndex> {
    topology.members().filter(|m| topology.state(*m) != MemberState::Failed).collect()
}

/// The failed members that stand on a device.
fn failed_on(topology: &Topology, device: &Arc<dyn Device>) -> Vec<Uuid> {
    let members = topology.label.members.iter().zip(&topology.devices);
    let failed = members.filter(|(m, d)| m.state == MemberState::Failed && same_device(d, device));
    failed.map(|(m, _)| m.uuid).collect()
}

pub(crate) fn distinct(places: &mut Vec<LockPlace>) {
    let mut seen = HashSet::new();
    places.retain(|p| seen.insert(*p));
}

/// Lets go those on members that are left, while the life goes on by the others.
fn leave(guards: &mut Vec<(Uuid, ByteLockGuard)>, is_left: impl Fn(&Uuid) -> bool) {
    guards.extract_if(.., |(uuid, _)| is_left(uuid)).for_each(|(_, guard)| guard.leave());
}

impl HeldBytes {
    /// Whether this process holds `byte` on a member.
    pub fn holds(&self, byte: u64, member: Uuid) -> bool {
        self.0.lock().get(&byte).is_some_and(|guards| guards.iter().any(|(m, _)| *m == member))
    }

    /// Releases those that are held on devices which are no longer members, or never became
    /// members.
    pub fn part(&self, topology: &Topology) {
        let member = |uuid: &Uuid| topology.label.members.iter().any(|m| m.uuid == *uuid);
        for guards in self.0.lock().values_mut() {
            leave(guards, |uuid| !member(uuid));
        }
    }

    /// Takes every held byte on members of `topology`, the epoch after `before`, that have joined. A device
    /// that was a member before and had failed is let go first: its byte was held by what it was then.
    pub fn join(&self, before: &Topology, topology: &Topology) {
        for (byte, guards) in self.0.lock().iter_mut() {
            for member in bearers(topology) {
                let Some(m) = topology.label.members.get(usize::from(member.0)) else { continue };
                if guards.iter().any(|(uuid, _)| *uuid == m.uuid) {
                    continue;
                }
                let was = failed_on(before, topology.device(member));
                leave(guards, |uuid| was.contains(uuid));
                match topology.device(member).abilities().locks.lock_byte(*byte) {
                    Ok(guard) => guards.extend(guard.map(|g| (m.uuid, g))),
                    Err(error) => {
                        tracing::warn!(%error, "liveness is not shown on a new member");
                    }
                }
            }
        }
    }
}
