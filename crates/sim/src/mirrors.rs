//! A pool of its own for each node, where contents of files stand on mirrors ([`Cluster::mirrors`]): the real code
//! of epochs, of the redundancy log, and of writes that nodes make at once. What the pools ask of each other
//! is answered here, without messages: which node lives, which epoch it uses, and locks on regions.
//!
//! A pool's own locks are those of threads: a lane that holds one must not stop where another lane of its node
//! wants it. So of one node only one lane runs at a time, until its job ends or it waits for other nodes
//! (`work`).
//!
//! [`Cluster::mirrors`]: crate::Cluster::mirrors

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use braid_format::label::{Member, MemberState};
use braid_format::{MemberIndex, NodeId};
use braid_fs::Error;
use braid_fs::simulation::{Metadata, Places, Replayed, Writer, replay};
use braid_lock::Life;
use braid_pool::device::Device;
use braid_pool::simulation::{Pause, Simulation};
use braid_pool::{EpochTag, HeldRegions, Hold, Others, Pool, PoolError, RegionLocks};

use crate::image::Image;
use crate::lane::{Request, ask};
use crate::regions::{COUNT, Regions, Try};
use crate::world::Pid;

/// A node, as the pools of the others see it.
#[derive(Default)]
struct Peer {
    life: Option<Life>,
    /// The epoch that it says it uses, once it uses the pool, and what it knows of the members then.
    epoch: Option<(EpochTag, Vec<(MemberIndex, MemberState)>)>,
    /// Its process has ended.
    ended: bool,
    /// Nothing of it is under way any more.
    gone: bool,
}

#[derive(Default)]
struct State {
    nodes: Vec<Peer>,
    regions: Regions,
    /// Who recovers a log that is not empty: one at a time.
    recovers: Option<Pid>,
    seconds: u64,
}

impl State {
    fn peer(&mut self, pid: Pid) -> &mut Peer {
        if self.nodes.len() <= pid {
            self.nodes.resize_with(pid + 1, Peer::default);
        }
        self.nodes.get_mut(pid).expect("it is there now")
    }
    fn has_ended(&self, pid: Pid) -> bool {
        self.nodes.get(pid).is_none_or(|p| p.ended)
    }
    /// Nodes that are gone, and do not hold this region exclusively.
    fn gone_beside(&self, region: u64, pid: Pid) -> Vec<Pid> {
        let others = self.nodes.iter().enumerate().filter(|(n, p)| *n != pid && p.gone);
        others.map(|(n, _)| n).filter(|n| !self.regions.is_exclusive(region, *n)).collect()
    }
    fn is_kept_by_dead(&self, region: u64, pid: Pid) -> bool {
        let mut others = self.nodes.iter().enumerate().filter(|(n, p)| *n != pid && p.gone);
        others.any(|(n, _)| self.regions.is_exclusive(region, n))
    }
}

/// What all nodes' pools know of each other.
#[derive(Default)]
pub(crate) struct Peers(Mutex<State>);

impl Peers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A process has a life, or wants to have it.
    pub(crate) fn lives(&self, pid: Pid, life: Life) {
        self.state().peer(pid).life = Some(life);
    }
    pub(crate) fn ended(&self, pid: Pid) {
        self.state().peer(pid).ended = true;
    }
    /// Nothing of it is under way any more.
    pub(crate) fn gone(&self, pid: Pid) {
        self.state().peer(pid).gone = true;
    }
    /// It has left in good order, or never was there.
    pub(crate) fn left(&self, pid: Pid) {
        let mut state = self.state();
        (state.peer(pid).ended, state.peer(pid).gone) = (true, true);
        state.regions.forget(pid);
    }
    pub(crate) fn set_seconds(&self, seconds: u64) {
        self.state().seconds = seconds;
    }
    /// Another node uses a newer epoch.
    pub(crate) fn is_behind(&self, pid: Pid) -> bool {
        let state = self.state();
        let epoch = |p: &Peer| p.epoch.as_ref().filter(|_| !p.gone).map_or(0, |e| e.0.epoch);
        let mine = state.nodes.get(pid).and_then(|p| p.epoch.as_ref()).map(|e| e.0.epoch);
        mine.is_some_and(|mine| state.nodes.iter().any(|p| epoch(p) > mine))
    }
    /// Nobody uses the pool.
    pub(crate) fn are_gone(&self) -> bool {
        self.state().nodes.iter().all(|p| p.gone || p.epoch.is_none())
    }
    /// Power is cut: which epoch is in force is not known any more.
    pub(crate) fn forget_epochs(&self) {
        self.state().nodes.iter_mut().for_each(|p| p.epoch = None);
    }
    /// The members in the newest epoch that somebody has used; nothing if that is not known.
    pub(crate) fn members(&self) -> Vec<(MemberIndex, MemberState)> {
        let state = self.state();
        let known = state.nodes.iter().filter_map(|p| p.epoch.as_ref());
        known.max_by_key(|e| e.0.epoch).map_or_else(Vec::new, |e| e.1.clone())
    }
    /// Every node that lives uses the same epoch.
    pub(crate) fn agree(&self) -> bool {
        let state = self.state();
        let mut tags = state.nodes.iter().filter(|p| !p.gone).filter_map(|p| p.epoch.as_ref());
        let first = tags.next().map(|e| e.0);
        tags.all(|e| Some(e.0) == first)
    }
    /// Regions that a node has for nothing, and others want; whether exclusively.
    pub(crate) fn idle(&self, pid: Pid) -> Vec<(u64, bool)> {
        self.state().regions.idle(pid, false)
    }
    pub(crate) fn give_up(&self, region: u64, pid: Pid) {
        self.state().regions.give_up(region, pid);
    }
}

/// A node's pool, and the file system on it.
pub(crate) struct Own {
    pool: Arc<Pool>,
    pub(crate) places: Places,
    port: Arc<Port>,
}

/// What a node's pool asks.
pub(crate) struct Port {
    peers: Arc<Peers>,
    pid: Pid,
    devices: Vec<Arc<dyn Device>>,
    /// It must not keep itself alive.
    pool: OnceLock<Weak<Pool>>,
}

/// Regions that a request holds.
struct Guard {
    peers: Arc<Peers>,
    pid: Pid,
    regions: Vec<u64>,
}
impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.peers.state();
        for region in self.regions.drain(..) {
            state.regions.release(region, self.pid);
        }
    }
}

/// A recovery that others wait for.
struct Recovers(Arc<Peers>);
impl Drop for Recovers {
    fn drop(&mut self) {
        self.0.state().recovers = None;
    }
}

fn pause(free: bool) -> Result<(), PoolError> {
    match ask(Request::Pause { free }) {
        Some(Ok(_)) => Ok(()),
        _ => Err(PoolError::Closed),
    }
}

/// Puts a pool together from those of its devices that a search would find.
fn assemble(mut devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
    loop {
        let error = match Pool::assemble(devices.clone()) {
            Ok(pool) => return Ok(pool),
            Err(error) => error,
        };
        let (PoolError::NotAMember { path, .. }
        | PoolError::Removed { path, .. }
        | PoolError::LabelsDamaged { path, .. }) = &error
        else {
            return Err(error);
        };
        devices.retain(|d| d.info().name != *path);
    }
}

impl Own {
    /// Puts the pool together from what is on the devices.
    pub(crate) fn assemble(
        image: &Image,
        peers: &Arc<Peers>,
        pid: Pid,
    ) -> Result<Arc<Self>, Error> {
        let devices = image.devices();
        let pool = assemble(devices.clone())?;
        let (peers, pool) = (peers.clone(), Arc::new(pool));
        let port = Arc::new(Port { peers, pid, devices, pool: OnceLock::new() });
        port.pool.set(Arc::downgrade(&pool)).ok();
        pool.simulate(port.clone());
        let places = Places::open(Pool::clone(&pool))?;
        Ok(Arc::new(Self { pool, places, port }))
    }
    /// Others may use the pool, too, from now on, and see which epoch this node uses.
    fn share(&self) -> Result<(), PoolError> {
        if !self.pool.is_shared() {
            self.port.announce();
            self.pool.share(self.port.clone(), self.port.clone());
        }
        // Who has changed the pool before did not wait for this node.
        self.pool.follow().map(drop)
    }
    pub(crate) fn open(&self, me: Life, cache: braid_format::Bytes) -> Result<Metadata, Error> {
        self.share()?;
        self.pool.heal_labels()?;
        self.pool.attach(me.slot.get())?;
        Metadata::open(&self.places, me.slot, me.incarnation, cache)
    }
    /// As whoever recovers a dead node, and may not have a redundancy log of its own yet.
    pub(crate) fn recover(&self, dead: Life) -> Result<Replayed, Error> {
        self.share()?;
        let slot = dead.slot.get();
        let alone = if self.pool.is_log_empty(slot)? { None } else { Some(self.port.recovers()?) };
        let attached = self.pool.is_attached();
        if attached {
            self.pool.recover_log(slot)?;
        } else {
            self.pool.attach(slot)?;
        }
        self.port.forget(dead.slot);
        drop(alone);
        let done = replay(&self.places, dead.slot, Writer::Life(dead.incarnation))?;
        if !attached {
            self.pool.detach()?;
        }
        Ok(done)
    }
    /// Everything is equal and durable.
    pub(crate) fn detach(&self) -> Result<(), Error> {
        Ok(self.pool.detach()?)
    }
    pub(crate) fn follow(&self) -> Result<(), Error> {
        Ok(self.pool.follow().map(drop)?)
    }
    /// The device of a member that has failed comes back in its place, and holds nothing.
    pub(crate) fn replace(&self, member: MemberIndex) -> Result<(), Error> {
        let device = self.port.devices.get(usize::from(member.0)).cloned();
        let device = device.ok_or(PoolError::NoSuchMember { member })?;
        Ok(self.pool.replace(member, device, true)?)
    }
    pub(crate) fn rebuild(&self, member: MemberIndex) -> Result<(), Error> {
        Ok(self.pool.rebuild(member, &|_| true).map(drop)?)
    }
    /// What a region is given up with that was held exclusively.
    pub(crate) fn give_up(&self, region: u64) -> Result<(), Error> {
        self.pool.give_up_regions()?;
        self.port.peers.give_up(region, self.port.pid);
        Ok(())
    }
    /// All logs, by nobody but the recovery.
    pub(crate) fn recover_all(&self, slots: u16) -> Result<(), Error> {
        self.pool.heal_labels()?;
        (0..slots).try_for_each(|slot| self.pool.recover_log(slot).map(drop))?;
        Ok(())
    }
    pub(crate) fn member_states(&self) -> Vec<(MemberIndex, MemberState)> {
        self.pool.member_states()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.pool.unshare();
    }
}

impl Port {
    /// Takes all of these regions, or none.
    fn try_hold(&self, locks: &[(u64, Hold)], recovers: bool) -> Result<Option<Guard>, PoolError> {
        let mut held = Guard { peers: self.peers.clone(), pid: self.pid, regions: Vec::new() };
        let mut state = self.peers.state();
        if state.has_ended(self.pid) {
            return Err(PoolError::Closed);
        }
        for (region, hold) in locks {
            // What a dead node holds exclusively keeps all others away, and is its recoverer's.
            if recovers && state.is_kept_by_dead(*region, self.pid) {
                continue;
            }
            let but = state.gone_beside(*region, self.pid);
            if state.regions.try_hold(*region, self.pid, *hold, &but) == Try::Wait {
                drop(state);
                return Ok(None);
            }
            held.regions.push(*region);
        }
        Ok(Some(held))
    }
    fn take(&self, locks: &[(u64, Hold)], recovers: bool) -> Result<HeldRegions, PoolError> {
        loop {
            if let Some(held) = self.try_hold(locks, recovers)? {
                return Ok(Box::new(held));
            }
            pause(true)?;
        }
    }
    /// One recovery at a time.
    fn recovers(&self) -> Result<Recovers, PoolError> {
        loop {
            {
                let mut state = self.peers.state();
                let free = state.recovers.is_none_or(|pid| state.has_ended(pid));
                if state.has_ended(self.pid) {
                    return Err(PoolError::Closed);
                }
                if free {
                    state.recovers = Some(self.pid);
                    return Ok(Recovers(self.peers.clone()));
                }
            }
            pause(true)?;
        }
    }
    /// The dead lives of a slot are recovered: they hold nothing.
    fn forget(&self, slot: NodeId) {
        let mut state = self.peers.state();
        let of_slot = |p: &Peer| p.gone && p.life.is_some_and(|life| life.slot == slot);
        let dead: Vec<Pid> =
            state.nodes.iter().enumerate().filter(|(_, p)| of_slot(p)).map(|(n, _)| n).collect();
        for pid in dead {
            state.regions.forget(pid);
        }
    }
}

impl Simulation for Port {
    fn pause(&self, length: Pause) {
        // Who has ended finds that out by itself.
        pause(length == Pause::Free).ok();
    }
    fn seconds(&self) -> u64 {
        self.peers.state().seconds
    }
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>> {
        self.devices.iter().find(|d| d.info().name == member.path).cloned()
    }
}

impl Others for Port {
    fn me(&self) -> Life {
        let life = self.peers.state().peer(self.pid).life;
        life.expect("who shares a pool has a life")
    }
    fn is_gone(&self, life: Life) -> bool {
        let state = self.peers.state();
        !state.nodes.iter().any(|p| p.life == Some(life) && !p.gone)
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        let state = self.peers.state();
        let mut others = state.nodes.iter().enumerate().filter(|(n, p)| *n != self.pid && !p.gone);
        others.all(|(_, p)| p.epoch.as_ref().is_none_or(|e| e.0 == tag))
    }
    fn adopt(&self) {}
    fn announce(&self) {
        let Some(pool) = self.pool.get().and_then(Weak::upgrade) else { return };
        let epoch = (pool.epoch_tag(), pool.member_states());
        let mut state = self.peers.state();
        if !state.has_ended(self.pid) {
            state.peer(self.pid).epoch = Some(epoch);
        }
    }
    fn has_ended(&self) -> bool {
        self.peers.state().has_ended(self.pid)
    }
}

impl RegionLocks for Port {
    fn count(&self) -> u64 {
        COUNT
    }
    fn hold(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError> {
        self.take(locks, false)
    }
    fn hold_to_recover(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError> {
        self.take(locks, true)
    }
}
