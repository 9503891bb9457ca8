//! Who may write the members, said by the members themselves: persistent reservations.
//!
//! A node registers a key of its own with every member, and each member is reserved for who is
//! registered (write exclusive, all registrants: the reservation lasts as long as anybody is
//! registered, so nobody's leaving opens a gap). To fence a node is to take its key away from every
//! member, with all that it has under way there.
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
//! By the kernel's disks the nodes of a host have one path, and so one key: the first node's, which the
//! others find and take on (`braid_device::scsi::PathReservations`). It is theirs on every member; who
//! takes it fences all of them, and the last that leaves gives it back.
//!
//! Invariants:
//! * a key is registered once with an open device, never again: what a fence took stays taken;
//! * a fence is complete only when every member of the newest epoch was asked by this node, and no
//!   epoch came between;
//! * members that failed since the victim last said which epoch it uses cannot be asked. It may have
//!   lost the others instead, and go on with those: so the members that were asked must be more than
//!   the others, or as many and the first of all among them. That is never so for both sides;
//! * a key that is gone already proves nothing: whoever took it may have died before what its node
//!   had under way was ended. A reset of the unit ends that.

use std::sync::Arc;

use braid_device::{Device, DeviceError, ReservationKind, Reservations};
use braid_format::Epoch;
use braid_format::label::{Label, Member, MemberState};
use parking_lot::Mutex;

use crate::error::PoolError;
use crate::redundancy::carriers;
use crate::topology::Topology;
use crate::{Inner, Pool};

/// What a new reservation is, if the member can; else the next.
const KINDS: [ReservationKind; 2] =
    [ReservationKind::WriteExclusiveAll, ReservationKind::WriteExclusiveRegistrants];

/// Most keys of this host's that are tried: another node of it may register, or leave, meanwhile, and
/// what died here has left its own.
const KEYS_MAX: u32 = 8;

/// Most times that a reservation is looked for: others may make and release theirs meanwhile.
const LOOKS_MAX: u32 = 16;

/// Which members have persistent reservations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reservable {
    /// All.
    All,
    /// All but these, by name: who is kept from the others can still write here.
    Some(Vec<String>),
    /// None.
    None,
}

/// How a fence is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FenceHow {
    /// It is the proof that nothing of the node is under way; else that is known already, and only
    /// its key is taken.
    pub prove: bool,
    /// Every member is reset besides: for those that do not end what they abort.
    pub reset: bool,
    /// The newest epoch that the node has said it uses; 0: not known. Members that failed later may still
    /// be members to it.
    pub used: Epoch,
}

/// The key that this node has registered; 0: none.
///
/// Who needs a topology too takes that first: epochs are exchanged with the topology held, and the
/// key is registered with their devices then.
#[derive(Debug, Default)]
pub(crate) struct OwnKey(
    Mutex<u64>,
    /// Devices of members that leave, and on which this node has something to do yet.
    Mutex<Vec<Arc<dyn Device>>>,
);

/// Devices of members that are in use, or may be from one moment to the next. Of one that is being
/// moved both: its successor is a member too.
fn used(topology: &Topology) -> Vec<Arc<dyn Device>> {
    let members = carriers(&topology.label).into_iter();
    members.filter_map(|i| topology.devices.get(i).cloned()).collect()
}

/// Reservations of a device: by them this node, or its whole host, is told from the others.
fn apart(device: &dyn Device) -> Option<&dyn Reservations> {
    device.reservations()
}

/// Whether a node that last used epoch `used` may go on with members that have failed here since.
///
/// # Errors
/// [`PoolError::Split`].
fn check_split(label: &Label, used: Epoch) -> Result<(), PoolError> {
    let since = |m: &Member| m.state_epoch > used;
    let lost = |m: &Member| m.state == MemberState::Failed && since(m);
    if !label.members.iter().any(lost) {
        return Ok(());
    }
    let holds = |m: &Member| {
        matches!(m.state, MemberState::Active | MemberState::Leaving | MemberState::Rebuilding)
            && !since(m)
    };
    let count = |which: &dyn Fn(&Member) -> bool| label.members.iter().filter(|m| which(m)).count();
    let (here, there) = (count(&holds), count(&lost));
    let first_is_here = label.members.iter().find(|m| holds(m) || lost(m)).is_some_and(holds);
    if here > there || here == there && first_is_here {
        return Ok(());
    }
    let all = label.members.iter().filter(|m| lost(m)).map(|m| m.path.clone());
    Err(PoolError::Split { members: all.collect() })
}

fn fenced(device: &dyn Device) -> DeviceError {
    DeviceError::Fenced { device: device.info().name.as_str().into() }
}

fn is_fenced(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Fenced { .. })
}

/// The reservation for who is registered that stands; makes one if there is none.
fn reserve(
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
            // The next look says so. Of two at once one is refused.
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
        new.retain(|d| apart(&**d).is_some_and(|r| r.registered() != *key));
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
        tracing::warn!(%error, "registrations with members that have left stay");
    }
}

/// Whether this process has registered `key` with a device, as far as it knows.
fn has(device: &Arc<dyn Device>, key: u64) -> bool {
    key != 0 && apart(&**device).is_some_and(|r| r.registered() == key)
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
fn register_all(devices: &[Arc<dyn Device>], key: u64) -> Result<Option<u64>, PoolError> {
    for device in devices {
        let path = || device.info().name.clone();
        let reservations =
            apart(&**device).ok_or_else(|| PoolError::NotReservable { path: path() })?;
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
        let Some(reservations) = apart(&**device) else { continue };
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
        let one = Arc::ptr_eq(now, was) || apart(&**now).is_some_and(Reservations::shares_path);
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
        let keys = apart(&**device).map_or(Ok(Vec::new()), Reservations::keys)?;
        if keys.iter().filter(|k| **k == key).count() < least {
            return Err(fenced(&**device).into());
        }
    }
    Ok(())
}

impl Inner {
    fn used(&self) -> Vec<Arc<dyn Device>> {
        used(&self.topology.read())
    }
    /// For those who must not wait for requests under way, nor for an epoch.
    fn used_in_snapshot(&self) -> Vec<Arc<dyn Device>> {
        used(&self.snapshot())
    }
}

impl Pool {
    /// Which members have persistent reservations. Waits for nothing.
    pub fn reservable(&self) -> Reservable {
        let used = self.0.used_in_snapshot();
        let cannot = used.iter().filter(|d| apart(&***d).is_none());
        let cannot: Vec<String> = cannot.map(|d| d.info().name.clone()).collect();
        match cannot.len() {
            0 => Reservable::All,
            n if n == used.len() => Reservable::None,
            _ => Reservable::Some(cannot),
        }
    }

    /// The key that this pool's handle has registered; 0: none.
    pub fn registered(&self) -> u64 {
        *self.0.key.0.lock()
    }

    /// Registers `key` with every member, and reserves each for who is registered; the key that is
    /// registered now: where others of this host share its path to the members it is theirs. From then
    /// on members that are new get it too.
    ///
    /// # Errors
    /// [`PoolError::NotReservable`] if a member cannot; [`PoolError::Reserved`] if one is reserved
    /// in another way; [`PoolError::OtherKey`] if this host has no one key; [`PoolError::Device`].
    /// Nothing is registered then.
    pub fn register(&self, mut key: u64) -> Result<u64, PoolError> {
        let topology = self.0.topology.read();
        let mut own = self.0.key.0.lock();
        let devices = used(&topology);
        for _ in 0..KEYS_MAX {
            let all = register_all(&devices, key);
            if !matches!(all, Ok(None)) {
                give_back(&devices, key);
            }
            let Some(other) = all? else {
                *own = key;
                return Ok(key);
            };
            tracing::info!("this host is registered with the key {other:#x} already");
            key = other;
        }
        let path = devices.first().map(|d| d.info().name.clone()).unwrap_or_default();
        Err(PoolError::OtherKey { path, key })
    }

    /// Ends what [`Pool::register`] began. What stays because a member does not answer is swept by
    /// others.
    pub fn unregister(&self) {
        let key = std::mem::take(&mut *self.0.key.0.lock());
        if key != 0 {
            give_back(&self.0.used(), key);
        }
    }

    /// Whether this node's key still stands on every member, reserved as it should be; a
    /// reservation that is gone is made again.
    ///
    /// # Errors
    /// [`PoolError::is_fenced`] if it does not; others if a member does not answer.
    pub fn uphold(&self) -> Result<(), PoolError> {
        let key = self.registered();
        if key == 0 {
            return Ok(());
        }
        for device in self.0.used_in_snapshot() {
            let Some(reservations) = apart(&*device) else { continue };
            if reservations.registered() != key {
                continue;
            }
            if !reservations.keys()?.contains(&key) {
                return Err(fenced(&*device).into());
            }
            reserve(&*device, reservations, key)?;
        }
        Ok(())
    }

    /// Takes the key `victim` from every member: on return who registered it can write nothing any
    /// more, and if it is the proof, nothing of it is under way.
    ///
    /// # Errors
    /// [`PoolError::NotReservable`]; [`PoolError::OwnKey`]: it is of this host too;
    /// [`PoolError::is_fenced`]: this node is itself; others if a member does not answer. The fence is
    /// then not complete.
    pub fn fence(&self, victim: u64, how: FenceHow) -> Result<(), PoolError> {
        loop {
            // The victim may have changed the pool before.
            self.follow()?;
            let tag = self.epoch_tag();
            if how.prove {
                check_split(&self.0.topology.read().label, how.used)?;
            }
            for device in self.0.used() {
                self.fence_one(&*device, victim, how)?;
            }
            if !self.follow()? && self.epoch_tag() == tag {
                return Ok(());
            }
        }
    }

    fn fence_one(&self, device: &dyn Device, victim: u64, how: FenceHow) -> Result<(), PoolError> {
        let path = || device.info().name.clone();
        let own = self.registered();
        if own != 0 && victim == own {
            return Err(PoolError::OwnKey { path: path() });
        }
        let reservations = apart(device)
            .filter(|_| own != 0 && victim != 0)
            .ok_or_else(|| PoolError::NotReservable { path: path() })?;
        let keys = reservations.keys()?;
        if !keys.contains(&own) {
            return Err(fenced(device).into());
        }
        let kind = reserve(device, reservations, own)?;
        let mut ended = !how.prove;
        if keys.contains(&victim) {
            match reservations.preempt_and_abort(own, victim, kind) {
                Ok(()) => ended = true,
                // Another was faster, unless it is this node that is fenced.
                Err(e) if is_fenced(&e) && reservations.keys()?.contains(&own) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if how.reset || !ended {
            tracing::info!(device = path(), "reset, so that nothing is under way there");
            reservations.reset()?;
        }
        Ok(())
    }

    /// This node has been fenced, as it knows: what its devices may never answer ends now.
    pub fn sever(&self) {
        for device in self.devices() {
            device.sever();
        }
    }

    /// Takes away all keys but those that `keep` names.
    ///
    /// # Errors
    /// As [`Pool::fence`].
    pub fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), PoolError> {
        let own = self.registered();
        for device in self.0.used() {
            let Some(reservations) = apart(&*device).filter(|_| own != 0) else { continue };
            let mut keys = reservations.keys()?;
            keys.sort_unstable();
            keys.dedup();
            for key in keys.into_iter().filter(|k| *k != own && !keep(*k)) {
                tracing::warn!(device = device.info().name, key, "a key that nobody has is taken");
                let kind = reserve(&*device, reservations, own)?;
                match reservations.preempt_and_abort(own, key, kind) {
                    Err(e) if is_fenced(&e) && reservations.keys()?.contains(&own) => {}
                    done => done?,
                }
            }
        }
        Ok(())
    }
}

/// Members that were registered by lives that are over, while nobody but this process may write them.
/// Dropped: nobody is registered any more.
#[derive(Debug)]
pub struct Seized {
    /// With the key that each has.
    devices: Vec<(Arc<dyn Device>, u64)>,
}

impl Drop for Seized {
    fn drop(&mut self) {
        for (device, key) in &self.devices {
            give_back(std::slice::from_ref(device), *key);
        }
    }
}

/// Whether anybody is registered with a device.
pub(crate) fn has_registrants(device: &dyn Device) -> Result<bool, PoolError> {
    let keys = apart(device).map(Reservations::keys).transpose()?;
    Ok(keys.is_some_and(|k| !k.is_empty()))
}

/// Takes over the devices with which anybody is registered.
///
/// # Errors
/// [`PoolError::Reserved`], [`PoolError::Device`].
pub(crate) fn seize(devices: &[Arc<dyn Device>]) -> Result<Seized, PoolError> {
    let key = 1 << 63 | uuid::Uuid::new_v4().as_u64_pair().0;
    let mut seized = Seized { devices: Vec::new() };
    for device in devices {
        let Some(reservations) = apart(&**device) else { continue };
        let mut keys = reservations.keys()?;
        if keys.is_empty() {
            continue;
        }
        // Of a path that this host has kept a key for, that one is taken on: the others go.
        let key = reservations.register_anyhow(key)?;
        seized.devices.push((device.clone(), key));
        let kind = reserve(&**device, reservations, key)?;
        keys.sort_unstable();
        keys.dedup();
        for other in keys.into_iter().filter(|k| *k != key) {
            match reservations.preempt_and_abort(key, other, kind) {
                Err(e) if is_fenced(&e) && reservations.keys()?.contains(&key) => {}
                done => done?,
            }
        }
    }
    Ok(seized)
}

impl Pool {
    /// Takes over the members with which anybody is registered, for a caller that knows that no
    /// node lives: those that died together have left their keys.
    ///
    /// # Errors
    /// [`PoolError::Reserved`], [`PoolError::Device`].
    pub fn seize(&self) -> Result<Seized, PoolError> {
        seize(&self.0.used())
    }
}

/// Ends registrations of this process's.
fn give_back(devices: &[Arc<dyn Device>], key: u64) {
    for device in devices.iter().filter(|d| has(d, key)) {
        if let Some(reservations) = apart(&**device) {
            give_back_one(reservations, key);
        }
    }
}

fn give_back_one(reservations: &dyn Reservations, key: u64) {
    match reservations.register(key, 0) {
        Err(e) if !is_fenced(&e) => tracing::warn!("a registration stays: {e}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_format::Bytes;

    use super::*;

    /// A label of `n` members, of which `lost` failed in epoch 2.
    fn label(n: usize, lost: &[usize]) -> Label {
        let mut label = Pool::for_tests(n, Bytes(8 << 20)).0.topology.read().label.clone();
        for m in lost {
            let member = &mut label.members[*m];
            (member.state, member.state_epoch) = (MemberState::Failed, Epoch(2));
        }
        label
    }

    /// Of two sides that have each lost what the other one has left, one may fence the other at most; one
    /// of them may if nothing is lost for both.
    #[test]
    fn never_do_both_sides_of_a_split_count_as_those_who_fence() {
        for n in 1..6_usize {
            for here in 0..1 << n {
                let side =
                    |all: usize| -> Vec<usize> { (0..n).filter(|m| all >> m & 1 == 1).collect() };
                let others = (1 << n) - 1 - here;
                let may = |lost: &[usize]| check_split(&label(n, lost), Epoch(1)).is_ok();
                assert_eq!((may(&side(others)), may(&side(here))), {
                    let first = here.count_ones() * 2 > u32::try_from(n).unwrap()
                        || here.count_ones() * 2 == u32::try_from(n).unwrap() && here & 1 == 1;
                    (first, !first)
                });
            }
        }
    }

    #[test]
    fn a_member_whose_failure_the_node_knew_of_is_no_place_to_go_on() {
        assert!(check_split(&label(2, &[0]), Epoch(1)).is_err());
        check_split(&label(2, &[0]), Epoch(2)).unwrap();
        check_split(&label(2, &[]), Epoch(0)).unwrap();
    }

    /// Those who watch the other nodes ask at each look, and an epoch may wait for what they see.
    #[test]
    fn who_asks_of_reservations_waits_for_no_epoch() {
        let pool = Pool::for_tests(2, Bytes(8 << 20));
        *pool.0.key.0.lock() = 1;
        let changing = pool.0.topology.write();
        let (said, answers) = std::sync::mpsc::channel();
        let asking = pool.clone();
        let asks = std::thread::spawn(move || {
            said.send((asking.reservable(), asking.uphold().is_ok())).unwrap();
        });
        let answer = answers.recv_timeout(Duration::from_mins(1));
        drop(changing);
        asks.join().unwrap();
        assert_eq!(answer, Ok((Reservable::None, true)));
    }
}
