//! One node's way to the devices and to the others.

use std::sync::{Arc, OnceLock, Weak};

use braid_format::features::Features;
use braid_format::label::Member;
use braid_format::lock_record::Life;
use braid_format::{ByteOffset, Bytes, NodeId};
use braid_pool::device::{
    Abilities, Command, Completion, Device, DeviceError, DeviceInfo, FaultyDevice,
};
use braid_pool::simulation::{Pause, Simulation};
use braid_pool::{EpochTag, HeldRegions, Others, Pool, PoolError, RegionHold, RegionLocks};

use super::acts::LOCK;
use super::world::{Blocked, Ended, World};
use crate::regions::{COUNT, Try};

/// A device as one node reaches it.
#[derive(Debug)]
pub(super) struct Wire {
    world: Arc<World>,
    node: usize,
    disk: usize,
    faulty: Arc<FaultyDevice>,
}

impl Wire {
    pub fn of(world: &Arc<World>, node: usize, disk: usize) -> Option<Arc<dyn Device>> {
        let faulty = world.state().disks.get(disk)?.faulty.clone();
        Some(Arc::new(Self { world: world.clone(), node, disk, faulty }))
    }

    fn error(&self, operation: &'static str, at: ByteOffset) -> DeviceError {
        DeviceError::Injected { device: self.info().name.as_str().into(), operation, at }
    }

    fn pass(
        &self,
        operation: &'static str,
        at: ByteOffset,
        changes: bool,
    ) -> Result<(), DeviceError> {
        let passed = self.world.point(self.node, changes);
        let lost = self.world.state().disks.get(self.disk).is_none_or(|d| d.lost);
        if passed.is_err() || lost { Err(self.error(operation, at)) } else { Ok(()) }
    }

    /// Whether a sector of the range cannot be read.
    fn is_bad(&self, at: ByteOffset, len: Bytes) -> bool {
        let (from, to) = (at.0 / 512, (at.0 + len.0) / 512);
        let state = self.world.state();
        state.disks.get(self.disk).is_some_and(|d| d.bad.range(from..to).next().is_some())
    }

    /// Whether the disk gives no space back.
    fn keeps(&self) -> bool {
        self.world.state().disks.get(self.disk).is_some_and(|d| d.keeps)
    }

    fn written(&self, at: ByteOffset, len: Bytes) {
        let mut state = self.world.state();
        let (from, to) = (at.0 / 512, (at.0 + len.0) / 512);
        if let Some(disk) = state.disks.get_mut(self.disk) {
            disk.bad.retain(|s| !(from..to).contains(s));
        }
    }
}

impl Device for Wire {
    fn info(&self) -> &DeviceInfo {
        self.faulty.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let (name, len) = (command.name(), command.len());
        if matches!(command, Command::Write(_)) && len > Bytes(LOCK) {
            self.world.let_others(self.node);
        }
        let reads = matches!(command, Command::Read(_));
        self.pass(name, at, !reads)?;
        if reads && self.is_bad(at, len) {
            return Err(self.error(name, at));
        }
        if matches!(command, Command::Deallocate(_)) && self.keeps() {
            return Ok(Completion::Unsupported);
        }
        let mends =
            matches!(command, Command::Write(_) | Command::WriteZeroes(_) | Command::Deallocate(_));
        let completion = self.faulty.submit(at, command)?;
        if mends && completion == Completion::Done {
            self.written(at, len);
        }
        Ok(completion)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.faulty.abilities()
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What a node's pool asks.
pub(super) struct Port {
    pub world: Arc<World>,
    pub me: usize,
    life: Life,
    /// The pool itself, which must not keep itself alive.
    pool: OnceLock<Box<dyn Fn() -> Option<Pool> + Send + Sync>>,
    this: Weak<Self>,
}

/// Regions that one request holds.
struct RegionGuard {
    world: Arc<World>,
    me: usize,
    regions: Vec<u64>,
}
impl RegionGuard {
    fn let_go(&mut self) {
        let mut state = self.world.state();
        for region in self.regions.drain(..) {
            state.regions.release(region, self.me);
        }
    }
}

impl Port {
    pub fn new(world: &Arc<World>, me: usize) -> Arc<Self> {
        let life = world.state().life(me);
        Arc::new_cyclic(|this| Self {
            world: world.clone(),
            me,
            life,
            pool: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// The pool whose port this is: kept by `keeper`.
    pub fn serve(&self, keeper: &Arc<Pool>) {
        let keeper = Arc::downgrade(keeper);
        self.pool.set(Box::new(move || keeper.upgrade().map(|p| Pool::clone(&p)))).ok();
    }

    fn pool(&self) -> Option<Pool> {
        self.pool.get().and_then(|pool| pool())
    }

    /// What a node does besides its requests: it follows epochs, and gives regions up that others
    /// want.
    pub fn duties(&self) {
        let Some(pool) = self.pool() else { return };
        let mine = pool.epoch_tag();
        let behind = {
            let mut state = self.world.state();
            let newer = |n: &super::world::Node| n.joined && n.tag.epoch > mine.epoch;
            let behind = state.nodes.iter().any(newer);
            behind && !state.rng.permille(500)
        };
        if behind && let Err(error) = pool.follow() {
            self.unless_ended(format!("node {} cannot follow: {error}", self.me));
        }
        // What it held in its life before is not its own until that is recovered.
        let recovers = |n: &super::world::Node| n.recovers == Some(self.me);
        if self.world.state().nodes.get(self.me).is_some_and(recovers) {
            return;
        }
        let idle = self.world.state().regions.idle(self.me, false);
        for (region, exclusive) in idle {
            self.give_up(&pool, region, exclusive);
        }
    }

    /// Gives a region up that nobody here uses.
    pub fn give_up(&self, pool: &Pool, region: u64, exclusive: bool) {
        if exclusive && let Err(error) = pool.give_up_regions() {
            self.unless_ended(format!("node {} cannot give regions up: {error}", self.me));
            return;
        }
        let mut state = self.world.state();
        if !state.has_ended(self.me) {
            state.regions.give_up(region, self.me);
        }
    }

    fn unless_ended(&self, what: String) {
        let mut state = self.world.state();
        if !state.has_ended(self.me) && !state.report.overloaded {
            state.fail(what);
        }
    }

    fn closed(_: Ended) -> PoolError {
        PoolError::Closed
    }
}

impl Simulation for Port {
    fn pause(&self, pause: Pause) {
        if pause == Pause::Free {
            self.duties();
        }
        self.world.wait(self.me).ok();
    }
    /// A run takes no time.
    fn seconds(&self) -> u64 {
        1 << 30
    }
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>> {
        let disk = self.world.state().disk_named(&member.path)?;
        Wire::of(&self.world, self.me, disk)
    }
}

impl Others for Port {
    fn me(&self) -> Life {
        self.life
    }
    fn is_gone(&self, life: Life) -> bool {
        let state = self.world.state();
        let slot = usize::from(life.slot.0);
        let joined = state.nodes.get(slot).is_some_and(|n| n.joined);
        !joined || state.life(slot) != life
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        let state = self.world.state();
        let mut others = state.nodes.iter().enumerate().filter(|(i, _)| *i != self.me);
        others.all(|(_, n)| !n.joined || n.tag == tag)
    }
    fn who_lacks(&self, _: Features) -> Result<Vec<NodeId>, PoolError> {
        Ok(Vec::new())
    }
    fn adopt(&self) {}
    fn announce(&self) {
        let Some(tag) = self.pool().map(|p| p.epoch_tag()) else { return };
        if let Some(node) = self.world.state().nodes.get_mut(self.me) {
            node.tag = tag;
        }
    }
    fn has_ended(&self) -> bool {
        self.world.state().has_ended(self.me)
    }
}

impl RegionLocks for Port {
    fn count(&self) -> u64 {
        COUNT
    }
    /// What is granted here is durable at once.
    fn grants(&self) -> u64 {
        0
    }
    fn hold(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError> {
        let mut held = RegionGuard { world: self.world.clone(), me: self.me, regions: Vec::new() };
        let mut locks = locks.iter();
        let all = locks.clone();
        while let Some((region, hold)) = locks.next() {
            loop {
                let mut state = self.world.state();
                if state.has_ended(self.me) {
                    return Err(PoolError::Closed);
                }
                let but = state.counting_for_nothing(self.me);
                if state.regions.try_hold(*region, self.me, *hold, &but) == Try::Held {
                    held.regions.push(*region);
                    break;
                }
                let dead = state.blocked_by_dead(*region, self.me);
                if dead == Blocked::Unattended {
                    // Its recovery is a step of some node, perhaps of this one.
                    if let Some(n) = state.nodes.get_mut(self.me) {
                        n.aborted = true;
                    }
                    return Err(PoolError::Closed);
                }
                drop(state);
                if dead == Blocked::Recovering && !held.regions.is_empty() {
                    // Who recovers it may want what this node has.
                    held.let_go();
                    locks = all.clone();
                    self.duties();
                    self.world.wait(self.me).map_err(Self::closed)?;
                    break;
                }
                self.duties();
                self.world.wait(self.me).map_err(Self::closed)?;
            }
        }
        Ok(Box::new(held))
    }
    /// What dead nodes hold counts for nothing to who recovers one: see [`Self::hold`].
    fn hold_to_recover(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError> {
        self.hold(locks)
    }
}

impl Port {
    /// Makes `pool` one that this node uses beside others.
    pub fn share(&self, pool: &Pool) {
        let Some(this) = self.this.upgrade() else { return };
        pool.share(this.clone(), this);
    }
}
