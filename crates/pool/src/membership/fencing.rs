//! Fencing nodes by persistent reservations of the members: see [`crate::cluster::reservations`].

use std::sync::Arc;

use braid_device::Device;
use braid_format::Epoch;
use braid_format::label::{Label, Member, MemberState};

use crate::cluster::reservations::{
    TakenOver, fenced, give_back, is_fenced, register_all, reservations_of, reserve, take_over,
    used,
};
use crate::error::PoolError;
use crate::pool::{Pool, PoolState};

/// Most keys of this host's that are tried: another node of it may register, or leave, meanwhile, and
/// what died here has left its own.
const KEYS_MAX: u32 = 8;

/// Which members have persistent reservations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reservable {
    /// All.
    All,
    /// All but these, by name: a node that is fenced from the others can still write here.
    Some(Vec<String>),
    /// None.
    None,
}

/// How a fence is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FenceHow {
    /// The fence must prove that nothing of the node is under way. Otherwise that is known already,
    /// and only its key is removed.
    pub prove: bool,
    /// Every member is reset besides: for those that do not end what they abort.
    pub reset: bool,
    /// The newest epoch that the node has said it uses; 0: not known. Members that failed later may still
    /// be members to it.
    pub epoch_seen: Epoch,
}

/// Whether a node that last used epoch `epoch_seen` may go on with members that have failed here since.
///
/// # Errors
/// [`PoolError::Split`].
fn check_split(label: &Label, epoch_seen: Epoch) -> Result<(), PoolError> {
    let since = |m: &Member| m.state_epoch > epoch_seen;
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

impl PoolState {
    fn used(&self) -> Vec<Arc<dyn Device>> {
        used(&self.epochs.read())
    }
    /// The same, without waiting for requests under way or for an epoch.
    fn used_in_snapshot(&self) -> Vec<Arc<dyn Device>> {
        used(&self.epochs.snapshot())
    }
}

impl Pool {
    /// Which members have persistent reservations. Waits for nothing.
    pub fn reservable(&self) -> Reservable {
        let used = self.0.used_in_snapshot();
        let cannot = used.iter().filter(|d| reservations_of(&***d).is_none());
        let cannot: Vec<String> = cannot.map(|d| d.info().name.clone()).collect();
        match cannot.len() {
            0 => Reservable::All,
            n if n == used.len() => Reservable::None,
            _ => Reservable::Some(cannot),
        }
    }

    /// The key that this pool's handle has registered; 0: none.
    pub fn registered(&self) -> u64 {
        *self.0.cluster.key.0.lock()
    }

    /// Registers `key` with every member, and reserves each member for registered nodes. Returns the key
    /// that is registered now: if other nodes of this host share its path to the members, it is theirs.
    /// Members that join later get it too.
    ///
    /// # Errors
    /// [`PoolError::NotReservable`] if a member cannot; [`PoolError::Reserved`] if one is reserved
    /// in another way; [`PoolError::OtherKey`] if this host has no one key; [`PoolError::Device`].
    /// Nothing is registered then.
    pub fn register(&self, mut key: u64) -> Result<u64, PoolError> {
        let topology = self.0.epochs.read();
        let mut own = self.0.cluster.key.0.lock();
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
        let key = std::mem::take(&mut *self.0.cluster.key.0.lock());
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
            let Some(reservations) = reservations_of(&*device) else { continue };
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

    /// Takes the key `victim` from every member: on return the node that registered it can write nothing,
    /// and if the fence is the proof, nothing of that node is under way.
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
                check_split(&self.0.epochs.read().label, how.epoch_seen)?;
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
        let reservations = reservations_of(device)
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
            if let Some(session) = device.abilities().session {
                session.sever();
            }
        }
    }

    /// Takes away all keys but those that `keep` names.
    ///
    /// # Errors
    /// As [`Pool::fence`].
    pub fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), PoolError> {
        let own = self.registered();
        for device in self.0.used() {
            let Some(reservations) = reservations_of(&*device).filter(|_| own != 0) else {
                continue;
            };
            let mut keys = reservations.keys()?;
            keys.sort_unstable();
            keys.dedup();
            for key in keys.into_iter().filter(|k| *k != own && !keep(*k)) {
                tracing::warn!(device = device.info().name, key, "removing a key that no node has");
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

impl Pool {
    /// Takes over the members with which anybody is registered, for a caller that knows that no
    /// node lives: those that died together have left their keys.
    ///
    /// # Errors
    /// [`PoolError::Reserved`], [`PoolError::Device`].
    pub fn take_over(&self) -> Result<TakenOver, PoolError> {
        take_over(&self.0.used(), &[])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_format::Bytes;

    use super::*;

    /// A label of `n` members, of which `lost` failed in epoch 2.
    fn label(n: usize, lost: &[usize]) -> Label {
        let mut label = Pool::for_tests(n, Bytes(8 << 20)).0.epochs.read().label.clone();
        for m in lost {
            let member = &mut label.members[*m];
            (member.state, member.state_epoch) = (MemberState::Failed, Epoch(2));
        }
        label
    }

    /// If two sides have each lost the members that the other one still has, at most one of them
    /// may fence the other. If nothing is lost for both, exactly one may.
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

    /// The watcher asks at each look, and an epoch may wait for what the watcher sees.
    #[test]
    fn who_asks_of_reservations_waits_for_no_epoch() {
        let pool = Pool::for_tests(2, Bytes(8 << 20));
        *pool.0.cluster.key.0.lock() = 1;
        let changing = pool.0.epochs.write();
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
