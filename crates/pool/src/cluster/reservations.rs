//! Persistent reservations: the members themselves refuse the writes of nodes that are fenced.
//!
//! A node registers a key of its own with every member, and each member is reserved for registered nodes
//! (write exclusive, all registrants: the reservation lasts as long as any node is registered, so no gap
//! opens if one leaves). To fence a node is to take its key away from every member; that also aborts
//! what the node has under way there.
//!
//! ```text
//!  register      every member has the key, and a reservation      before the node's slot says so
//!  a new epoch   devices that are new get both, then those of members that stay are asked whether
//!                the key still stands: a fenced node does not come back by a new device
//!  it leaves     with a member that has left a node's key is given back when it uses it no more
//!  fence         preempt and abort on every member of the newest epoch
//!  unregister    after the slot is free
//! ```
//!
//! Nodes of one host share the kernel's path to a disk, and so one key: the first node's, which the
//! others find and use too (`braid_device::scsi::PathReservations`). To take it away fences all nodes of
//! the host; the last node that leaves gives it back.
//!
//! Invariants:
//! * a key is registered once with an open device, never again: what a fence took stays taken;
//! * a fence is complete only when every member of the newest epoch was asked by this node, and no
//!   epoch came between;
//! * members that failed since the victim last said which epoch it uses cannot be asked. It may have
//!   lost the others instead, and go on with those: so the members that were asked must be more than
//!   the others, or as many and the first of all among them. That is never so for both sides;
//! * a key that is gone already proves nothing: the node that took it may have died before the victim's
//!   requests were aborted. A reset of the unit aborts them.

use std::sync::Arc;

use braid_device::{Device, DeviceError, ReservationKind, Reservations};
use braid_format::label::{Member, MemberState};
use parking_lot::Mutex;

use crate::error::PoolError;
use crate::labels::{carriers, same_device};
use crate::topology::Topology;

/// The kinds of a new reservation: the first that the member supports.
const KINDS: [ReservationKind; 2] =
    [ReservationKind::WriteExclusiveAll, ReservationKind::WriteExclusiveRegistrants];

/// Most times that a reservation is looked for: others may make and release theirs meanwhile.
const LOOKS_MAX: u32 = 16;

/// The key that this node has registered; 0: none.
///
/// Lock order: the epoch in use, then this. An epoch is exchanged with the epoch in use held, and the key
/// is registered with its devices then.
#[derive(Debug, Default)]
pub(crate) struct OwnKey(
    pub Mutex<u64>,
    /// Devices of members that leave, and on which this node has something to do yet.
    Mutex<Vec<Arc<dyn Device>>>,
);

/// Devices of members that are in use, or may be from one moment to the next. Both devices of a
/// member that is being moved, because its successor is a member, too.
pub(crate) fn used(topology: &Topology) -> Vec<Arc<dyn Device>> {
    let members = carriers(&topology.label).into_iter();
    members.filter_map(|i| topology.devices.get(i).cloned()).collect()
}

/// The reservations of a device: by its key a device knows this node, or its whole host.
pub(crate) fn reservations_of(device: &dyn Device) -> Option<&dyn Reservations> {
    device.abilities().reservations
}

pub(crate) fn fenced(device: &dyn Device) -> DeviceError {
    DeviceError::Fenced { device: device.info().name.as_str().into() }
}

pub(crate) fn is_fenced(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Fenced { .. })
}

/// The kind of the reservation for registered nodes on a device; makes one if there is none.
pub(crate) fn reserve(
    device: &dyn Device,
    reservations: &dyn Reservations,
    own: u64,
) -> Result<ReservationKind, PoolError> {
    let mut kinds = KINDS.iter();
    let mut kind = kinds.next();
    for _ in 0..LOOKS_MAX {
        match reservations.reservation()? {
            Some(stands) if KINDS.contains(&stands.kind) => return Ok(stands.kind),
            Some(_) => break,
            None => {}
        }
        let Some(wanted) = kind else { break };
        match reservations.reserve(own, *wanted) {
            // The next look says so. If two nodes reserve at once, one is refused.
            Ok(()) => {}
            Err(e) if is_fenced(&e) => {
                if !reservations.keys()?.contains(&own) {
                    return Err(e.into());
                }
            }
            // It does not know this kind.
            Err(e) => {
                kind = kinds.next();
                if kind.is_none() {
                    return Err(e.into());
                }
            }
        }
    }
    Err(PoolError::Reserved { path: device.info().name.clone() })
}

impl OwnKey {
    /// Registers with devices that are new in `next`, the epoch after `before`; a member that is
    /// there already may have one.
    ///
    /// # Errors
    /// This node was fenced, or a device does not answer: no new one is registered.
    pub fn extend(&self, before: &Topology, next: &Topology) -> Result<(), PoolError> {
        let key = self.0.lock();
        if *key == 0 {
            return Ok(());
        }
        let mut new = used(next);
        new.retain(|d| reservations_of(&**d).is_some_and(|r| r.registered() != *key));
        // A path's key is not registered anew while anybody counts as its user who may have been fenced:
        // this node asks nothing more by the device of a member that has failed.
        let failed = before.label.members.iter().zip(&before.devices);
        let failed = failed.filter(|(m, d)| m.state == MemberState::Failed && has(d, *key));
        let again = |d: &Arc<dyn Device>| new.iter().any(|n| same_device(n, d));
        let old: Vec<_> = failed.map(|(_, d)| d.clone()).filter(again).collect();
        give_back(&old, *key);
        let done = join(*key, &new, (before, next));
        if done.is_err() {
            give_back(&new, *key);
        }
        done
    }

    /// A change to `next` has come to nothing: ends what [`OwnKey::extend`] has registered for it.
    pub fn retract(&self, before: &Topology, next: &Topology) {
        let stays = |d: &Arc<dyn Device>| before.devices.iter().any(|b| Arc::ptr_eq(b, d));
        let new: Vec<_> = next.devices.iter().filter(|d| !stays(d)).cloned().collect();
        give_back(&new, *self.0.lock());
    }

    /// Nothing uses the epoch `before` any more: ends registrations of devices in it whose members
    /// have been opened anew, or have left, unless this node has something to do there.
    pub fn part(&self, before: &Topology, now: &Topology) {
        let key = self.0.lock();
        let kept = self.1.lock();
        let left = before.label.members.iter().zip(&before.devices).filter(|(m, d)| {
            now.index_of(m.uuid).is_none()
                && has(d, *key)
                && !kept.iter().chain(&now.devices).any(|k| Arc::ptr_eq(k, d))
        });
        give_back_in_background(left.map(|(_, d)| d.clone()).collect(), *key);
        let anew = |(m, d): &(&Member, &Arc<dyn Device>)| {
            let now = now.index_of(m.uuid).and_then(|i| now.devices.get(usize::from(i.0)));
            now.is_some_and(|now| !Arc::ptr_eq(now, d) && has(now, *key))
        };
        let both = before.label.members.iter().zip(&before.devices);
        let old: Vec<_> = both.filter(anew).map(|(_, d)| d.clone()).collect();
        give_back(&old, *key);
    }

    /// The member of `device` is about to leave, and this node has something to do on it after that.
    pub fn keep(&self, device: &Arc<dyn Device>) {
        self.1.lock().push(device.clone());
    }

    /// That is done, or came to nothing; `left`: the member has left.
    pub fn let_go(&self, device: &Arc<dyn Device>, left: bool) {
        let key = self.0.lock();
        self.1.lock().retain(|k| !Arc::ptr_eq(k, device));
        if left && has(device, *key) {
            give_back_in_background(vec![device.clone()], *key);
        }
    }
}

/// Ends registrations of this process's with devices that may have failed: nobody waits for them.
fn give_back_in_background(devices: Vec<Arc<dyn Device>>, key: u64) {
    if devices.is_empty() {
        return;
    }
    let run = move || give_back(&devices, key);
    if let Err(error) = std::thread::Builder::new().name("unregister".to_owned()).spawn(run) {
        tracing::warn!(%error, "cannot end registrations with members that have left");
    }
}

/// Whether this process has registered `key` with a device, as far as it knows.
fn has(device: &Arc<dyn Device>, key: u64) -> bool {
    key != 0 && reservations_of(&**device).is_some_and(|r| r.registered() == key)
}

/// Registers `key` with a device: no other, whatever this host's path to it had.
fn take_on(
    device: &dyn Device,
    reservations: &dyn Reservations,
    key: u64,
) -> Result<(), PoolError> {
    let mut stands = reservations.register_anyhow(key)?;
    if stands != key {
        // If that ends it, nobody here used it.
        reservations.register(stands, 0)?;
        stands = reservations.register_anyhow(key)?;
    }
    if stands == key {
        return Ok(());
    }
    give_back_one(reservations, stands);
    Err(PoolError::OtherKey { path: device.info().name.clone(), key: stands })
}

/// Registers `key` with all devices, and reserves them; `Some`: at one of them this host's path is
/// registered with that key instead.
pub(crate) fn register_all(
    devices: &[Arc<dyn Device>],
    key: u64,
) -> Result<Option<u64>, PoolError> {
    for device in devices {
        let path = || device.info().name.clone();
        let reservations =
            reservations_of(&**device).ok_or_else(|| PoolError::NotReservable { path: path() })?;
        let stands = reservations.register_anyhow(key)?;
        if stands != key {
            give_back_one(reservations, stands);
            return Ok(Some(stands));
        }
        reserve(&**device, reservations, key)?;
    }
    Ok(None)
}

/// Registers `key` with the devices `new`, and sees whether it stands everywhere else.
fn join(
    key: u64,
    new: &[Arc<dyn Device>],
    (before, next): (&Topology, &Topology),
) -> Result<(), PoolError> {
    let Some(first) = new.first() else { return Ok(()) };
    for device in new {
        let Some(reservations) = reservations_of(&**device) else { continue };
        take_on(&**device, reservations, key)?;
        reserve(&**device, reservations, key)?;
    }
    let now = |i: usize| {
        let member = next.index_of(before.label.members.get(i)?.uuid)?;
        let stays = next.state(member) != MemberState::Failed;
        next.devices.get(usize::from(member.0)).filter(|d| stays && has(d, key))
    };
    let old = carriers(&before.label).into_iter();
    let old = old.filter_map(|i| Some((i, before.devices.get(i).filter(|d| has(d, key))?)));
    let old: Vec<_> = old.collect();
    // A device that was opened anew is registered beside what it was before: two have the key.
    let stay = old.iter().filter_map(|(i, was)| {
        let now = now(*i)?;
        let one =
            Arc::ptr_eq(now, was) || reservations_of(&**now).is_some_and(Reservations::shares_path);
        Some((now, if one { 1 } else { 2 }))
    });
    let mut asked: Vec<_> = stay.collect();
    if asked.is_empty() {
        // All are exchanged at once.
        asked = old.iter().map(|(_, was)| (*was, 1)).collect();
    }
    if asked.is_empty() {
        return Err(PoolError::NotReservable { path: first.info().name.clone() });
    }
    for (device, least) in asked {
        let keys = reservations_of(&**device).map_or(Ok(Vec::new()), Reservations::keys)?;
        if keys.iter().filter(|k| **k == key).count() < least {
            return Err(fenced(&**device).into());
        }
    }
    Ok(())
}

/// Members that were registered by lives that are over, while nobody but this process may write them.
/// Dropped: nobody is registered any more.
#[derive(Debug)]
pub struct TakenOver {
    /// With the key that each has.
    devices: Vec<(Arc<dyn Device>, u64)>,
}

impl Drop for TakenOver {
    fn drop(&mut self) {
        for (device, key) in &self.devices {
            give_back(std::slice::from_ref(device), *key);
        }
    }
}

/// Whether anybody is registered with a device.
pub(crate) fn has_registrants(device: &dyn Device) -> Result<bool, PoolError> {
    let keys = reservations_of(device).map(Reservations::keys).transpose()?;
    Ok(keys.is_some_and(|k| !k.is_empty()))
}

/// Takes over the devices with which anybody is registered, but for the keys `kept` by whole hosts.
///
/// # Errors
/// [`PoolError::Reserved`], [`PoolError::Device`].
pub(crate) fn take_over(devices: &[Arc<dyn Device>], kept: &[u64]) -> Result<TakenOver, PoolError> {
    let key = 1 << 63 | uuid::Uuid::new_v4().as_u64_pair().0;
    let mut taken_over = TakenOver { devices: Vec::new() };
    for device in devices {
        let Some(reservations) = reservations_of(&**device) else { continue };
        let mut keys = reservations.keys()?;
        if keys.is_empty() {
            continue;
        }
        // If this host has kept a key for the path, it uses that one, and removes the others.
        let key = reservations.register_anyhow(key)?;
        taken_over.devices.push((device.clone(), key));
        let kind = reserve(&**device, reservations, key)?;
        keys.sort_unstable();
        keys.dedup();
        let shared = reservations.shares_path();
        for other in keys.into_iter().filter(|k| *k != key && !(shared && kept.contains(k))) {
            match reservations.preempt_and_abort(key, other, kind) {
                Err(e) if is_fenced(&e) && reservations.keys()?.contains(&key) => {}
                done => done?,
            }
        }
    }
    Ok(taken_over)
}

/// Ends registrations of this process's.
pub(crate) fn give_back(devices: &[Arc<dyn Device>], key: u64) {
    for device in devices.iter().filter(|d| has(d, key)) {
        if let Some(reservations) = reservations_of(&**device) {
            give_back_one(reservations, key);
        }
    }
}

fn give_back_one(reservations: &dyn Reservations, key: u64) {
    match reservations.register(key, 0) {
        Err(e) if !is_fenced(&e) => tracing::warn!("cannot end a registration: {e}"),
        _ => {}
    }
}
