//! Node areas in memory, for tests of nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use braid_device::{DeviceError, Moment};
use braid_format::NodeId;
use braid_format::node::{LockPlace, SlotRecord};
use braid_pool::{EpochTag, FenceHow, PoolError, Reservable};
use parking_lot::Mutex;

use super::{NodeStore, PoolSide};
use crate::error::StoreError;
use crate::store::{CawOutcome, Sector};

/// How often is tried what waits.
const AGAIN: Duration = Duration::from_millis(5);

/// Node areas in memory, and as much of a pool as nodes need, for tests: each handle stands for one
/// process; [`Self::process`] makes another on the same host.
#[derive(Debug, Clone)]
pub struct MemoryNodes {
    shared: Arc<Mutex<Shared>>,
    process: usize,
    uuid: uuid::Uuid,
}

#[derive(Debug, Default)]
struct Shared {
    slots: Vec<Sector>,
    beats: Vec<Sector>,
    /// Who has the liveness lock of a slot, at each place where such locks are.
    lives: HashMap<(u64, NodeId), usize>,
    processes: Vec<Process>,
    /// Registered keys, and whose they are; none where the areas have no reservations.
    keys: Option<Vec<(u64, usize)>>,
    /// Fences fail.
    deaf: bool,
    /// Slots cannot be changed.
    frozen: bool,
    /// Compare-and-write is made of locks.
    by_lock: bool,
    /// Reads of slots and heartbeats, and heartbeats written.
    requests: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts and knobs of a test")]
#[derive(Debug, Default)]
struct Process {
    broken: bool,
    /// Where its locks are.
    place: u64,
    /// Its key was taken.
    fenced: bool,
    /// It changes nothing any more.
    refuses: bool,
    /// Until when it may change slots, once that was said.
    lease: Option<Moment>,
    /// Its heartbeats do not land.
    hushed: bool,
    epoch: EpochTag,
    /// Following a change of the pool does not end.
    stalled: bool,
    follows: u32,
}

struct LifeGuard {
    shared: Arc<Mutex<Shared>>,
    slot: NodeId,
    process: usize,
}
impl Drop for LifeGuard {
    fn drop(&mut self) {
        let lives = &mut self.shared.lock().lives;
        lives.retain(|(_, slot), process| (*slot, *process) != (self.slot, self.process));
    }
}

impl Shared {
    fn keys(&mut self) -> &mut Vec<(u64, usize)> {
        self.keys.get_or_insert_default()
    }
}

fn other_error(what: &'static str) -> StoreError {
    StoreError::Device(Arc::new(std::io::Error::other(what)))
}

impl MemoryNodes {
    const LEN: usize = 512;

    /// Areas of `slots` free slots.
    pub fn new(slots: u16) -> Self {
        let slot = |n| {
            let mut sector = vec![0; Self::LEN];
            SlotRecord::free(NodeId(n)).encode(&mut sector);
            sector
        };
        let shared = Shared {
            slots: (0..slots).map(slot).collect(),
            beats: vec![vec![0; Self::LEN]; usize::from(slots)],
            processes: vec![Process::default()],
            ..Shared::default()
        };
        let shared = Arc::new(Mutex::new(shared));
        Self { shared, process: 0, uuid: uuid::Uuid::new_v4() }
    }
    /// The areas have reservations from now on.
    pub fn with_reservations(&self) {
        self.shared.lock().keys = Some(Vec::new());
    }
    /// Registered keys.
    pub fn keys(&self) -> Vec<u64> {
        self.shared.lock().keys.iter().flatten().map(|k| k.0).collect()
    }
    /// How often slots or heartbeats were read, in one piece, and heartbeats were written, by all processes.
    pub fn requests(&self) -> u64 {
        self.shared.lock().requests
    }
    /// Fences fail, or do so no more.
    pub fn deafen(&self, deaf: bool) {
        self.shared.lock().deaf = deaf;
    }
    /// Slots cannot be changed any more: the device does not know how.
    pub fn freeze(&self) {
        self.shared.lock().frozen = true;
    }
    /// This process locks another place than others do, as in a container with device nodes of its own
    /// or when a member was replaced. What it holds it holds there from now on.
    pub fn lock_elsewhere(&self, place: u64) {
        self.of_process(|p| p.place = place);
        let mut shared = self.shared.lock();
        let moved = |((_, slot), process)| ((place, slot), process);
        let (mine, others): (HashMap<_, _>, HashMap<_, _>) =
            shared.lives.drain().partition(|(_, process)| *process == self.process);
        shared.lives = others.into_iter().chain(mine.into_iter().map(moved)).collect();
    }
    /// Slots are compared and written under locks: processes that lock different places must not do so.
    pub fn compare_by_lock(&self) {
        self.shared.lock().by_lock = true;
    }
    /// Whoever has the liveness lock of `slot` loses it, and lives on.
    pub fn lose_lock(&self, slot: NodeId) {
        self.shared.lock().lives.retain(|(_, s), _| *s != slot);
    }
    /// A bit of a slot flips.
    pub fn spoil(&self, slot: NodeId) {
        let mut shared = self.shared.lock();
        let sector = shared.slots.get_mut(usize::from(slot.0));
        if let Some(byte) = sector.and_then(|s| s.get_mut(100)) {
            *byte ^= 1;
        }
    }
    /// This process's heartbeats do not land, nor fail, or do so again.
    pub fn hush(&self, hushed: bool) {
        self.of_process(|p| p.hushed = hushed);
    }
    /// This process uses an epoch that others do not.
    pub fn use_epoch(&self, epoch: EpochTag) {
        self.of_process(|p| p.epoch = epoch);
    }
    /// Following a change of the pool does not end in this process, or does so again.
    pub fn stall(&self, stalled: bool) {
        self.of_process(|p| p.stalled = stalled);
    }
    /// How often this process began to follow changes of the pool.
    pub fn follows(&self) -> u32 {
        self.of_process(|p| p.follows)
    }
    /// The same areas, seen by another process.
    #[must_use]
    pub fn process(&self) -> Self {
        let mut shared = self.shared.lock();
        shared.processes.push(Process::default());
        let process = shared.processes.len() - 1;
        Self { process, shared: self.shared.clone(), uuid: self.uuid }
    }
    /// The process dies: its liveness locks are gone, its I/O fails.
    pub fn kill(&self) {
        self.of_process(|p| p.broken = true);
        self.shared.lock().lives.retain(|_, process| *process != self.process);
    }
    fn of_process<T: Default>(&self, f: impl FnOnce(&mut Process) -> T) -> T {
        self.shared.lock().processes.get_mut(self.process).map(f).unwrap_or_default()
    }
    /// As [`Self::with`], for a change.
    fn change<T>(
        &self,
        slot: NodeId,
        f: impl FnOnce(&mut Shared, usize) -> T,
    ) -> Result<T, StoreError> {
        match self.of_process(|p| (p.refuses, p.fenced)) {
            (true, _) => Err(PoolError::Closed.into()),
            (_, true) => Err(DeviceError::Fenced { device: "memory".into() }.into()),
            _ => self.with(slot, f),
        }
    }
    fn with<T>(
        &self,
        slot: NodeId,
        f: impl FnOnce(&mut Shared, usize) -> T,
    ) -> Result<T, StoreError> {
        let mut shared = self.shared.lock();
        let at = usize::from(slot.0);
        let broken = shared.processes.get(self.process).is_none_or(|p| p.broken);
        if broken || at >= shared.slots.len() {
            return Err(other_error("dead process"));
        }
        Ok(f(&mut shared, at))
    }
    /// Waits, as changes do, while `waits`.
    fn wait(&self, waits: impl Fn(&Process) -> bool) -> Result<(), StoreError> {
        let waits = |s: &mut Shared, _| s.processes.get(self.process).is_some_and(&waits);
        while self.change(NodeId(0), waits)? {
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }
}

impl NodeStore for MemoryNodes {
    fn slots(&self) -> u16 {
        u16::try_from(self.shared.lock().slots.len()).unwrap_or(u16::MAX)
    }
    fn sector_len(&self) -> usize {
        Self::LEN
    }
    fn fs_uuid(&self) -> uuid::Uuid {
        self.uuid
    }
    fn read_slots(&self) -> Result<Vec<u8>, StoreError> {
        self.with(NodeId(0), |s, _| {
            s.requests += 1;
            s.slots.concat()
        })
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        self.with(slot, |s, at| s.slots.get(at).cloned().unwrap_or_default())
    }
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        self.wait(|p| p.lease.is_some_and(|until| Moment::now() >= until))?;
        self.change(slot, |s, at| match s.slots.get_mut(at) {
            _ if s.frozen => Err(other_error("no such command")),
            Some(stands) if stands.as_slice() == expected => {
                stands.copy_from_slice(new);
                Ok(CawOutcome::Written)
            }
            other => Ok(CawOutcome::Mismatch(other.cloned().unwrap_or_default())),
        })?
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        self.with(NodeId(0), |s, _| {
            s.requests += 1;
            s.beats.concat()
        })
    }
    fn read_slots_and_heartbeats(&self) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        self.with(NodeId(0), |s, _| {
            s.requests += 1;
            (s.slots.concat(), s.beats.concat())
        })
    }
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
        self.wait(|p| p.hushed)?;
        self.change(slot, |s, at| {
            s.requests += 1;
            if let Some(beat) = s.beats.get_mut(at) {
                beat.copy_from_slice(bytes);
            }
        })
    }
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let place = self.of_process(|p| p.place);
        self.with(slot, |s, _| {
            if s.lives.contains_key(&(place, slot)) {
                return None;
            }
            s.lives.insert((place, slot), self.process);
            let life = LifeGuard { shared: self.shared.clone(), slot, process: self.process };
            Some(Box::new(life) as Box<dyn Send + Sync>)
        })
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        let key = (self.of_process(|p| p.place), slot);
        self.with(slot, |s, _| s.lives.get(&key).is_some_and(|p| *p != self.process))
    }
    fn lock_places(&self) -> Vec<LockPlace> {
        let inode = self.of_process(|p| p.place);
        vec![LockPlace { kernel: 1, device: 0, inode }]
    }
    fn held_places(&self, _: NodeId) -> Vec<LockPlace> {
        self.lock_places()
    }
    fn emulates_compare_and_write(&self) -> bool {
        self.shared.lock().by_lock
    }
    fn pool(&self) -> &dyn PoolSide {
        self
    }
}

impl PoolSide for MemoryNodes {
    fn epoch_without_members(&self) -> Option<EpochTag> {
        Some(self.epoch())
    }
    fn epoch(&self) -> EpochTag {
        self.of_process(|p| p.epoch)
    }
    fn follow(&self) -> Result<bool, StoreError> {
        self.of_process(|p| p.follows += 1);
        while self.of_process(|p| p.stalled) {
            std::thread::sleep(AGAIN);
        }
        Ok(false)
    }
    fn flush(&self) -> Result<(), StoreError> {
        self.with(NodeId(0), |_, _| ())
    }
    fn reservable(&self) -> Reservable {
        let some = self.shared.lock().keys.is_some();
        if some { Reservable::All } else { Reservable::None }
    }
    fn register(&self, key: u64) -> Result<u64, StoreError> {
        self.shared.lock().keys().push((key, self.process));
        Ok(key)
    }
    fn unregister(&self) {
        if let Some(keys) = &mut self.shared.lock().keys {
            keys.retain(|k| k.1 != self.process);
        }
    }
    fn uphold(&self) -> Result<(), StoreError> {
        self.change(NodeId(0), |_, _| ())
    }
    fn fence(&self, key: u64, _: FenceHow) -> Result<(), StoreError> {
        self.change(NodeId(0), |s, _| {
            if s.deaf || s.keys.is_none() {
                return Err(StoreError::Unfenceable);
            }
            let (taken, stay) = std::mem::take(s.keys()).into_iter().partition(|k| k.0 == key);
            *s.keys() = stay;
            let taken: Vec<(u64, usize)> = taken;
            for (_, process) in taken {
                if let Some(process) = s.processes.get_mut(process) {
                    process.fenced = true;
                }
            }
            Ok(())
        })?
    }
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        let over: Vec<u64> = self.keys().into_iter().filter(|k| !keep(*k)).collect();
        let own = |k: &(u64, usize)| k.1 == self.process;
        self.shared.lock().keys().retain(|k| own(k) || !over.contains(&k.0));
        Ok(())
    }
    fn lease(&self, until: Moment) {
        self.of_process(|p| p.lease = Some(until));
    }
    fn refuse(&self) {
        self.of_process(|p| p.refuses = true);
    }
    /// Nothing here waits for an answer that never comes.
    fn sever(&self) {}
}
