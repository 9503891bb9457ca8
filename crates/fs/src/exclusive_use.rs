//! Exclusive use of a file system: no node has it mounted, and none can join, until the claim is dropped.
//! `create` and `check` need it, and a mount that declares members lost.

use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};
use braid_lock::etcd::{EtcdClaim, EtcdError, LockDomain};
use braid_lock::{LockError, NodeStore, Timing};
use braid_pool::{Pool, PoolByteLock};

use crate::error::{Error, Result};
use crate::external_store::lock_lives;
use crate::volume::Volume;

/// Keeps nodes and other checks away until it is dropped.
pub(crate) struct Claim {
    _lives: Vec<PoolByteLock>,
    /// From other hosts.
    _away: Option<EtcdClaim>,
}

/// Refuses while a node may have the file system mounted: checking beside it would see half of
/// what it does, and replaying its journal would undo what it did. Takes the liveness locks of all
/// slots, so that no node joins, and no second check begins, before the answer is dropped.
pub(crate) fn claim(volume: &Volume) -> Result<Claim> {
    claim_slots(volume, take_lives(volume)?)
}

/// As [`claim`]; and whether the store that the locks should be in had lost them: with `repair` it
/// is then made again. Nothing is written before nobody is known to live.
pub(crate) fn enter(volume: &Volume, repair: bool) -> Result<(Claim, bool)> {
    let lives = take_lives(volume)?;
    let lost = find_store(volume, repair)?;
    Ok((claim_slots(volume, lives)?, lost))
}

/// The liveness locks of all slots: no node of this host lives.
fn take_lives(volume: &Volume) -> Result<Vec<PoolByteLock>> {
    let (taken, busy) = lock_lives(&volume.pool, volume.sb.node_slots.get())?;
    let Some(&slot) = busy.first() else { return Ok(taken) };
    let store = volume.node_store(volume.node_areas()?);
    let record = store.read_slot(slot).ok().and_then(|b| SlotRecord::decode(&b, slot).ok());
    match record.filter(|r| r.state != SlotState::Free) {
        Some(record) => Err(Error::Mounted { slot, host: record.host.into(), away: false }),
        // Joining just now, or another check, or a record that cannot be read.
        None => Err(Error::SlotBusy(slot)),
    }
}

/// No node is alive whose liveness lock cannot be seen here: on another host, or on this one with
/// other device nodes. A node of an earlier boot of this machine must be silent for as long as it
/// could write. The same holds for the unknown node of a slot that cannot be read.
fn claim_slots(volume: &Volume, lives: Vec<PoolByteLock>) -> Result<Claim> {
    let store = volume.node_store(volume.node_areas()?);
    let (this, places) = (braid_lock::node::watch::this_host(), store.lock_places());
    let domain = LockDomain::new(&this, &places);
    let away = volume.external_store.as_ref().map(|s| s.etcd.claim(domain)).transpose()?;
    let (mut silent, mut time) = (Vec::new(), Duration::ZERO);
    // If the kernel's locks are what excludes others, a node that does not see them was refused.
    let usual = Timing::default();
    let unknown =
        if store.emulates_compare_and_write() { usual.beat() * 8 } else { usual.fence_after() };
    for slot in (0..volume.sb.node_slots.get()).map(NodeId) {
        let bytes = store.read_slot(slot).map_err(LockError::NodeStore)?;
        let (host, long) = match SlotRecord::decode(&bytes, slot) {
            Ok(record) if is_known_dead(&record) => continue,
            Ok(record) if this.sees_lock_of(&record, &places) => continue,
            Ok(record) if this.is_earlier_boot_of(&record) => {
                (record.host, Timing::of_slot(record.io_timeout).fence_after())
            }
            Ok(record) => {
                return Err(Error::Mounted { slot, host: record.host.into(), away: true });
            }
            Err(_) => ("(unknown)".to_owned(), unknown),
        };
        silent.push((slot, host));
        time = time.max(long);
    }
    refuse_beating(&*store, &silent, time)?;
    Ok(Claim { _lives: lives, _away: away })
}

/// Whether the store that the locks should be in had lost them: with `repair` it is then made
/// again. No node of this host lives.
fn find_store(volume: &Volume, repair: bool) -> Result<bool> {
    let Some(store) = &volume.external_store else { return Ok(false) };
    match store.etcd.confirm() {
        Err(EtcdError::NotThis { .. }) if repair => {
            let nodes = volume.node_store(volume.node_areas()?);
            // Longer than between two beats of any node.
            let all = |n| (NodeId(n), "(unknown)".to_owned());
            let all: Vec<_> = (0..nodes.slots()).map(all).collect();
            refuse_beating(&*nodes, &all, Timing::default().lease())?;
            store.etcd.renew(&volume.pool.info().name, volume.sb.node_slots.get())?;
            Ok(true)
        }
        found => Ok(found.map(|()| false)?),
    }
}

/// Whether a node shows on the devices of `pool` that it lives: the process `pid` of this host, mounted
/// elsewhere by `slot` in a pool of the same identity. Otherwise these devices are copies of the ones that it
/// uses. Waits for some of its heartbeats, unless its lock is seen at once.
///
/// # Errors
/// No usable file system, or a device failed.
pub fn shows_life(pool: Pool, slot: NodeId, pid: u32) -> Result<bool> {
    /// Heartbeats that a node may be late.
    const BEATS: u32 = 4;
    let volume = Volume::open(pool)?;
    let store = volume.node_store(volume.node_areas()?);
    if slot.0 >= store.slots() {
        return Ok(false);
    }
    let bytes = store.read_slot(slot).map_err(LockError::NodeStore)?;
    let record = SlotRecord::decode(&bytes, slot);
    let Some(record) = record.ok().filter(|r| r.state == SlotState::Active && r.pid == pid) else {
        return Ok(false);
    };
    if store.life_held(slot).map_err(LockError::NodeStore)? {
        return Ok(true);
    }
    let time = Timing::of_slot(record.io_timeout).beat() * BEATS;
    match refuse_beating(&*store, &[(slot, record.host)], time) {
        Err(Error::Mounted { .. }) => Ok(true),
        silent => silent.map(|()| false),
    }
}

/// Refuses if a heartbeat of these slots, which belong to these hosts, changes during `time`. Used
/// if nothing else shows which nodes are alive.
pub(crate) fn refuse_beating(
    nodes: &dyn NodeStore,
    slots: &[(NodeId, String)],
    time: Duration,
) -> Result<()> {
    /// Between two looks.
    const LOOK: Duration = Duration::from_millis(500);
    let read = || nodes.read_heartbeats().map_err(LockError::NodeStore);
    if slots.is_empty() {
        return Ok(());
    }
    let before = read()?;
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
        let after = read()?;
        let sector = |all: &[u8], slot: NodeId| {
            all.chunks(nodes.sector_len()).nth(usize::from(slot.0)).map(<[u8]>::to_vec)
        };
        let beats = |slot| sector(&before, slot) != sector(&after, slot);
        if let Some((slot, host)) = slots.iter().find(|(slot, _)| beats(*slot)) {
            return Err(Error::Mounted { slot: *slot, host: host.as_str().into(), away: true });
        }
    }
}

/// Whether the slot need not be watched: no node has it, or the operator has confirmed that its
/// host is off. A node that another one was recovering is fenced already; what is left to know is
/// in the recoverer's own slot.
fn is_known_dead(record: &SlotRecord) -> bool {
    let fenced = record.recoverer.is_some_and(|by| by.slot != record.life.slot);
    record.state == SlotState::Free || record.vouched || fenced
}
