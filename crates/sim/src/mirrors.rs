//! A pool of its own for each node, where contents of files stand on mirrors ([`Cluster::mirrors`]): the real code
//! of epochs, of the redundancy log, of writes that nodes make at once, of the locks on regions with their manager,
//! and of the recovery of dead nodes (`braid_fs::simulation::Sharing`). Which node lives and which epoch it uses
//! they see in slots and heartbeats ([`crate::nodes`]).
//!
//! A pool's own locks are those of threads: a lane that holds one must not stop where another lane of its node
//! wants it. So of one node only one lane runs at a time, until its job ends or it waits for other nodes
//! (`work`).
//!
//! [`Cluster::mirrors`]: crate::Cluster::mirrors

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use braid_format::label::{Member, MemberState};
use braid_format::node::LockPlace;
use braid_format::{ByteOffset, LockNo, MemberIndex};
use braid_fs::Error;
use braid_fs::simulation::{Link, Metadata, Places, Replayed, Sharing, Terms};
use braid_lock::dlock::Hint;
use braid_lock::{JoinOptions, Life, NotRecovered};
use braid_pool::device::Device;
use braid_pool::simulation::{Pause, Simulation};
use braid_pool::{EpochTag, Pool, PoolError};

use crate::disk::LEN;
use crate::image::{Image, SECTORS};
use crate::lane::{Request, ask};
use crate::nodes::{Nodes, Side};
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

/// A message about a region: from whom, to whom.
#[derive(Debug)]
pub(crate) struct Message {
    pub from: Pid,
    pub to: Life,
    pub lock: LockNo,
    pub hint: Hint,
}

#[derive(Default)]
struct State {
    nodes: Vec<Peer>,
    /// Messages that are to be sent.
    messages: Vec<Message>,
    /// Messages never arrive, and everybody knows.
    mute: bool,
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
    }
    pub(crate) fn set_seconds(&self, seconds: u64) {
        self.state().seconds = seconds;
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
    /// Messages never arrive from now on, and everybody knows.
    pub(crate) fn mute(&self) {
        self.state().mute = true;
    }
    pub(crate) fn take_messages(&self) -> Vec<Message> {
        std::mem::take(&mut self.state().messages)
    }
}

/// A node's pool, and the file system on it.
pub(crate) struct Own {
    pool: Arc<Pool>,
    pub(crate) places: Places,
    pub(crate) sharing: Sharing,
    port: Arc<Port>,
}

/// What a node knows before it puts its pool together.
#[derive(Debug, Clone)]
pub(crate) struct Knows {
    pub pid: Pid,
    pub join: JoinOptions,
    /// Where it looks for liveness locks.
    pub lock_places: Vec<LockPlace>,
    pub slots: u16,
    /// Nodes are fenced by keys.
    pub keys: bool,
    pub terms: Terms,
}

/// What a node's pool asks.
pub(crate) struct Port {
    peers: Arc<Peers>,
    pid: Pid,
    devices: Vec<Arc<dyn Device>>,
    /// It must not keep itself alive.
    pool: OnceLock<Weak<Pool>>,
}

/// Puts a pool together from those of its devices that a search would find.
fn assemble(mut devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
    loop {
        let error = match Pool::assemble(devices.clone()) {
            Ok(pool) => return Ok(pool),
            Err(error) => error,
        };
        // A search finds no device without labels.
        if let PoolError::LabelsLost { lost, .. } = &error {
            devices.retain(|d| !lost.iter().any(|m| m.path == d.info().name));
            continue;
        }
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
        knows: &Knows,
    ) -> Result<Arc<Self>, Error> {
        let devices = image.devices();
        let pool = assemble(devices.clone())?;
        let (peers, pool, pid) = (peers.clone(), Arc::new(pool), knows.pid);
        let port = Arc::new(Port { peers, pid, devices, pool: OnceLock::new() });
        port.pool.set(Arc::downgrade(&pool)).ok();
        pool.simulate(port.clone());
        let places = Places::open(Pool::clone(&pool))?;
        let side = Side { pool: Pool::clone(&pool), keys: knows.keys };
        let nodes = Nodes { side, slots: knows.slots, places: knows.lock_places.clone() };
        let sharing = Sharing::new(&places, Arc::new(nodes), knows.join.clone(), knows.terms);
        Ok(Arc::new(Self { pool, places, sharing, port }))
    }
    pub(crate) fn open(&self, me: Life, cache: braid_format::Bytes) -> Result<Metadata, Error> {
        self.port.note_epoch();
        self.sharing.start(me, Box::new(Linked(self.port.clone())))?;
        self.port.note_epoch();
        Metadata::open(&self.places, me.slot, me.incarnation, cache)
    }
    /// As whoever recovers a dead node, and may not have a redundancy log of its own yet.
    pub(crate) fn recover(&self, dead: Life, by: Life) -> Result<Replayed, NotRecovered> {
        self.port.note_epoch();
        self.sharing.recover(dead, by)
    }
    /// Everything is equal and durable.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        self.sharing.leave()
    }
    pub(crate) fn follow(&self) -> Result<(), Error> {
        self.pool.follow()?;
        self.port.note_epoch();
        Ok(())
    }
    /// The epoch that it says it uses.
    pub(crate) fn epoch(&self) -> EpochTag {
        self.pool.epoch_tag()
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
    /// All logs, by nobody but the recovery.
    pub(crate) fn recover_all(&self, slots: u16) -> Result<(), Error> {
        self.pool.heal_labels()?;
        (0..slots).try_for_each(|slot| self.pool.recover_log(slot).map(drop))?;
        Ok(())
    }
    /// Contents, past all caches.
    pub(crate) fn read(&self, at: ByteOffset) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; SECTORS * LEN];
        self.pool.read(at, &mut bytes)?;
        Ok(bytes)
    }
    pub(crate) fn member_states(&self) -> Vec<(MemberIndex, MemberState)> {
        self.pool.member_states()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.sharing.end();
        self.pool.unshare();
    }
}

impl Port {
    /// What it says of its epoch, and of the members in it.
    fn note_epoch(&self) {
        let Some(pool) = self.pool.get().and_then(Weak::upgrade) else { return };
        let epoch = (pool.epoch_tag(), pool.member_states());
        let mut state = self.peers.state();
        if !state.has_ended(self.pid) {
            state.peer(self.pid).epoch = Some(epoch);
        }
    }
}

impl Simulation for Port {
    fn pause(&self, length: Pause) {
        // Who has ended finds that out by itself.
        ask(Request::Pause { free: length == Pause::Free });
    }
    fn seconds(&self) -> u64 {
        self.peers.state().seconds
    }
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>> {
        self.devices.iter().find(|d| d.info().name == member.path).cloned()
    }
}

/// What the membership does for the locks of regions.
struct Linked(Arc<Port>);

impl Link for Linked {
    fn announce(&self) {
        self.0.note_epoch();
    }
    fn has_ended(&self) -> bool {
        self.0.peers.state().has_ended(self.0.pid)
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint) {
        let message = Message { from: self.0.pid, to, lock, hint: hint.clone() };
        self.0.peers.state().messages.push(message);
    }
    fn reaches(&self, life: Life) -> bool {
        let state = self.0.peers.state();
        !state.mute && state.nodes.iter().any(|p| p.life == Some(life) && !p.ended)
    }
}
