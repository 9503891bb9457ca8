//! The operator confirms that a node's host is off, while no node of this host has the pool mounted. The
//! confirmation is written into the node's slot, for all nodes to see.
//!
//! It is taken for a node of this host, too, whose process has ended and whose lock still counts as held:
//! because what it sent to the target of a unit may still be under way, and cannot be ended from here (the
//! target is gone). It is never taken where a process that lives holds the lock, or heartbeats come.

use std::time::Instant;

use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_format::{Incarnation, NodeId};
use braid_pool::Reservable;

use super::fencer::{FenceOptions, Fencer, key_of};
use super::slots::{decode_slot, write_slot};
use super::{FenceMethod, HostIdentity, NodeStore, Timing};
use crate::Life;
use crate::error::LockError;

/// Notes in the slot that its node is dead, by the word of a person who has seen to it that its host is
/// off. Every node, and the next one to join, takes that for a fence. Waits for as long as the node may
/// be silent while it lives (5/4 of its `io_timeout`), and takes its key from the members if they have
/// reservations.
///
/// # Errors
/// [`LockError::NotDead`]: it shows signs of life, a process of this host holds its lock, or it is being
/// recovered by another node, which is the one to speak of. [`LockError::NodeStore`].
pub fn vouch(store: &dyn NodeStore, slot: NodeId) -> Result<FenceMethod, LockError> {
    let (record, seen) = may_vouch(store, slot)?;
    settle(store, &record, seen)?;
    if record.vouched {
        return Ok(FenceMethod::Operator);
    }
    match record_vouch(store, &record) {
        // Its lock would be seen here, and is gone: nothing more is needed on this host.
        Err(e) if seen && !matches!(e, LockError::NotDead { .. }) => {
            tracing::warn!(%slot, "it is known to be dead on this host alone: {e}");
            Ok(FenceMethod::Operator)
        }
        said => said,
    }
}

/// What [`vouch`] would refuse, after as long a wait; nothing is changed.
///
/// # Errors
/// As there.
pub fn plan_vouch(store: &dyn NodeStore, slot: NodeId) -> Result<(), LockError> {
    may_vouch(store, slot).map(drop)
}

/// The slot, if a person's word for it counts; and whether its lock would be seen here.
fn may_vouch(store: &dyn NodeStore, slot: NodeId) -> Result<(SlotRecord, bool), LockError> {
    let slots = store.slots();
    if slot.0 >= slots {
        return Err(LockError::NoSuchSlot { slot, slots });
    }
    let record = read(store, slot)?;
    let refuse = |why: &str| Err(LockError::NotDead { slot, why: why.into() });
    if record.state == SlotState::Free {
        return refuse("nobody has it");
    }
    let this = super::watch::this_host();
    let seen = this.sees_lock_of(&record, &store.lock_places());
    refuse_if_it_lives_here(store, &this, &record)?;
    if record.recoverer.is_some_and(|by| by.slot != slot) {
        return refuse(
            "it is fenced already, and another node recovers it (`braid nodes` says which): if that one's host is off, give the word for it instead",
        );
    }
    if !record.vouched {
        await_silence(store, &record)?;
    }
    refuse_if_it_lives_elsewhere(store, &record, seen)?;
    Ok((record, seen))
}

/// Takes its key from the members, if they have reservations, and notes the word in its slot.
fn record_vouch(store: &dyn NodeStore, record: &SlotRecord) -> Result<FenceMethod, LockError> {
    let slot = record.life.slot;
    let registered = store.pool().reservable() == Reservable::All;
    let mut key = 0;
    if registered {
        // A name that whoever takes old keys away leaves alone.
        let next = Incarnation(record.last_named().0.wrapping_add(1));
        let own = key_of(store.fs_uuid(), Life { slot, incarnation: next });
        key = store.pool().register(own).map_err(LockError::NodeStore)?;
    }
    let noted = note(store, record, key);
    if registered {
        store.pool().unregister();
    }
    noted
}

/// Refuses a person's word for a node of this host whose process lives: it holds the node's lock, where it
/// would be seen on these devices, or on others of which these are copies, or other device nodes.
///
/// # Errors
/// [`LockError::NotDead`], which names the process where it is found. [`LockError::NodeStore`].
pub(super) fn refuse_if_it_lives_here(
    store: &dyn NodeStore,
    this: &HostIdentity,
    record: &SlotRecord,
) -> Result<(), LockError> {
    let slot = record.life.slot;
    let seen = this.sees_lock_of(record, &store.lock_places());
    if seen && store.life_held(slot).map_err(LockError::NodeStore)? {
        return Err(held(store, record));
    }
    let active = !seen && this.is_boot_of(record) && record.state == SlotState::Active;
    match active.then(|| store.life_elsewhere(record)).flatten() {
        Some(holder) => Err(lives_here(record, Some(holder.number()))),
        None => Ok(()),
    }
}

/// Refuses a person's word for a node that is silent on these devices and shows in another way that it lives, or did a
/// moment ago. `seen`: its lock would be seen here.
///
/// # Errors
/// [`LockError::NotDead`], [`LockError::NodeStore`].
pub(super) fn refuse_if_it_lives_elsewhere(
    store: &dyn NodeStore,
    record: &SlotRecord,
    seen: bool,
) -> Result<(), LockError> {
    let slot = record.life.slot;
    if seen || !store.life_held(slot).map_err(LockError::NodeStore)? {
        return Ok(());
    }
    let why = "it is silent on these devices, and something else shows that it lives: its lease in etcd, which ends 10 s after its process, or a lock on this host. End it, or turn its host off, wait for that, and try again. If these are copies of the pool's devices, use them where nothing of the original can be reached (docs/GUIDE.md, \"Back up\")";
    Err(LockError::NotDead { slot, why: why.into() })
}

/// A process of this host that lives holds the lock of a slot, where these devices show it.
fn held(store: &dyn NodeStore, record: &SlotRecord) -> LockError {
    let holder = store.life_holder(record.life.slot, record.pid);
    lives_here(record, holder.map(|holder| holder.number()))
}

fn lives_here(record: &SlotRecord, process: Option<u32>) -> LockError {
    let process =
        process.map_or_else(|| "that process".to_owned(), |number| format!("process {number}"));
    let unmount = match &*record.mount_point {
        "" => String::new(),
        dir => format!("unmount {dir}, or "),
    };
    let why = format!(
        "it is of this host, and its process holds its lock: {unmount}end {process}, then it is known to be dead"
    );
    LockError::NotDead { slot: record.life.slot, why: why.into() }
}

/// Lets go of the lock of a slot whose node was of this host and has died. `seen`: its lock would be seen
/// here, so that one that lives is found.
pub(super) fn settle(
    store: &dyn NodeStore,
    record: &SlotRecord,
    seen: bool,
) -> Result<(), LockError> {
    let settled = store.settle_life(record.life.slot).map_err(LockError::NodeStore)?;
    if settled || !seen { Ok(()) } else { Err(held(store, record)) }
}

fn read(store: &dyn NodeStore, slot: NodeId) -> Result<SlotRecord, LockError> {
    let sector = store.read_slot(slot).map_err(LockError::NodeStore)?;
    decode_slot(store, slot, &sector)
}

/// Waits until the node must have shown a heartbeat if it lived.
fn await_silence(store: &dyn NodeStore, record: &SlotRecord) -> Result<(), LockError> {
    let (slot, life) = (record.life.slot, record.acting());
    let timing = Timing::of_slot(record.io_timeout);
    let last = || -> Result<Option<u64>, LockError> {
        let beats = store.read_heartbeats().map_err(LockError::NodeStore)?;
        let sector = beats.chunks_exact(store.sector_len()).nth(usize::from(slot.0));
        let beat = sector.and_then(|s| Heartbeat::decode(s, slot).ok());
        Ok(beat.filter(|b| b.life == life).map(|b| b.sequence))
    };
    let (before, begun) = (last()?, Instant::now());
    while begun.elapsed() < timing.suspect_after() {
        std::thread::sleep(timing.beat().max(timing.suspect_after() / 10));
        // Torn by its own write counts as one, too.
        if last()? != before || read(store, slot)? != *record {
            return Err(LockError::NotDead {
                slot,
                why: "it shows heartbeats, or its slot has just been changed: turn its host off, and look at `braid nodes`".into(),
            });
        }
    }
    Ok(())
}

fn note(store: &dyn NodeStore, record: &SlotRecord, key: u64) -> Result<FenceMethod, LockError> {
    let options = FenceOptions::default();
    let (timing, identity) = (Timing::of_slot(record.io_timeout), super::watch::this_host());
    let fencer = Fencer { store, options: &options, timing, key, identity: &identity };
    let mut method = FenceMethod::Operator;
    if fencer.means().first_for(record) == FenceMethod::Reservation {
        match fencer.fence(record, &|| true) {
            Ok(by) => method = by,
            // The word of a person is enough. What its host still has under way in the devices was
            // there before it was turned off.
            Err(e) => tracing::warn!(slot = %record.life.slot, "not fenced by reservation: {e}"),
        }
    }
    let nonce = record.nonce.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let new = SlotRecord { vouched: true, nonce, ..record.clone() };
    if write_slot(store, record, &new)? {
        return Ok(method);
    }
    let why = "its slot has just been changed: look at `braid nodes`, and say it again";
    Err(LockError::NotDead { slot: record.life.slot, why: why.into() })
}
