//! What the nodes of a run share: whose turn it is, the devices, the power, who lives.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use braid_format::lock_record::Life;
use braid_format::{Bytes, Incarnation, NodeId};
use braid_pool::EpochTag;
use braid_pool::device::{Device, FaultPlan, FaultyDevice, MemoryDevice};
use braid_pool::simulation::SourceScope;

use super::VolumeReport;
use super::model::Model;
use crate::random::Random;
use crate::regions::Regions;

/// Steps that are told when a run fails.
const TOLD: usize = 40;
/// Times in a row that everybody waits before the run counts as stuck.
const IDLE_MAX: u64 = 50_000;
/// Requests of one era before it counts as endless.
const POINTS_MAX: u64 = 3_000_000;

/// A device, in whatever pool or none.
#[derive(Debug)]
pub(super) struct Disk {
    pub faulty: Arc<FaultyDevice>,
    /// Sectors that cannot be read until they are written.
    pub bad: BTreeSet<u64>,
    /// It will fail, or may have: it counts as lost where the pool's layout is asked what it spares.
    pub suspect: bool,
    /// It never comes back.
    pub lost: bool,
    /// It gives no space back, though it says so.
    pub keeps: bool,
}

/// A place for a node.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Node {
    /// Life in the slot.
    pub incarnation: u32,
    /// It uses the pool, or may: others wait for it.
    pub joined: bool,
    /// It issues nothing any more.
    pub dead: bool,
    /// It died with its log in use, and nobody has recovered that yet.
    pub unrecovered: bool,
    /// Requests until it dies.
    pub death: Option<u64>,
    /// The epoch that it says it uses, and its number.
    pub tag: EpochTag,
    /// The slot whose log it recovers.
    pub recovers: Option<usize>,
    /// A region that it waited for belongs to a dead node: its request was given up.
    pub aborted: bool,
    /// It has done all its steps.
    pub finished: bool,
    /// It fills or moves a member.
    pub fills: bool,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct State {
    pub rng: Random,
    /// For what is random in labels.
    identities: Random,
    turn: usize,
    active: Vec<bool>,
    /// Changes until the power goes.
    pub power: Option<u64>,
    /// Nothing reaches a device any more.
    pub off: bool,
    /// A sector of one copy has rotted, and nobody has healed that yet.
    pub rotten: bool,
    pub disks: Vec<Disk>,
    pub nodes: Vec<Node>,
    pub regions: Regions,
    pub model: Model,
    /// Writes under way: node, from, to, in sectors.
    pub busy: Vec<(usize, u64, u64)>,
    pub steps: u64,
    pub report: VolumeReport,
    pub failure: Option<String>,
    told: VecDeque<String>,
    /// Every step is told at once: `BRAID_SIM_TELL`.
    pub traced: bool,
    idle: u64,
    points: u64,
    /// Of a thousand requests, before how many another node goes on.
    pub switching: u64,
    /// Locks are changed while members are filled: see [`World::let_others`].
    pub contended: bool,
    /// Regions of the pool are small.
    pub small_regions: bool,
    /// Writes of what others write do not look at the copies afterwards.
    pub split: bool,
    /// Nodes that compare and write just now.
    pub exchanging: usize,
    /// Values given to writes.
    pub values: u64,
    /// Places and values from which a compare-and-write succeeded.
    pub exchanged: BTreeSet<(u64, u64)>,
}

/// See [`super`].
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    turned: Condvar,
}

/// The run has ended for who asks: no power, or its node is dead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended;

/// By a dead node's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    No,
    /// Somebody recovers the node.
    Recovering,
    /// Nobody does.
    Unattended,
}

/// `BRAID_SIM_IDENTITIES`: the same run with other identities.
fn other_identities() -> u64 {
    let told = std::env::var("BRAID_SIM_IDENTITIES").ok();
    told.and_then(|n| n.parse().ok()).map_or(0, |n: u64| Random::new(n).word())
}

impl World {
    pub fn new(seed: u64, nodes: usize) -> Arc<Self> {
        let state = State {
            rng: Random::new(seed ^ 0x0076_6f6c_756d_6573),
            identities: Random::new(seed ^ 0x6964_656e_7469_7479 ^ other_identities()),
            turn: 0,
            active: Vec::new(),
            power: None,
            off: false,
            rotten: false,
            disks: Vec::new(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            regions: Regions::default(),
            model: Model::default(),
            busy: Vec::new(),
            steps: 0,
            report: VolumeReport::default(),
            failure: None,
            told: VecDeque::new(),
            traced: std::env::var_os("BRAID_SIM_TELL").is_some(),
            idle: 0,
            points: 0,
            switching: 0,
            contended: false,
            small_regions: false,
            split: false,
            exchanging: 0,
            values: 0,
            exchanged: BTreeSet::new(),
        };
        Arc::new(Self { state: Mutex::new(state), turned: Condvar::new() })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is random in the labels that this thread writes is drawn while the result is held.
    pub fn draw_identities(self: &Arc<Self>) -> SourceScope {
        let world = self.clone();
        let small = self.state().small_regions;
        let scope = SourceScope::from(Box::new(move || {
            let mut state = world.state();
            u128::from(state.identities.word()) << 64 | u128::from(state.identities.word())
        }));
        scope.with_small_regions(small)
    }

    /// A new device of so many bytes.
    pub fn make_disk(&self, size: u64) -> usize {
        let mut state = self.state();
        let name = format!("d{}", state.disks.len());
        let memory = MemoryDevice::new(&name, Bytes(size), Bytes(512)) as Arc<dyn Device>;
        let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
        let faulty = FaultyDevice::new(memory, plan);
        let keeps = state.rng.below(10) == 0;
        let bad = BTreeSet::new();
        state.disks.push(Disk { faulty, bad, suspect: false, lost: false, keeps });
        state.disks.len() - 1
    }

    /// So many nodes begin to take turns.
    pub fn open_lanes(&self, lanes: usize) {
        let mut state = self.state();
        (state.turn, state.active) = (0, vec![true; lanes]);
        (state.idle, state.points) = (0, 0);
    }

    /// Waits for this node's first turn.
    pub fn first_turn(&self, me: usize) {
        let mut state = self.state();
        while state.turn != me {
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// This node takes no more turns.
    pub fn leave_lanes(&self, me: usize) {
        let mut state = self.state();
        if let Some(active) = state.active.get_mut(me) {
            *active = false;
        }
        if let Some(next) = state.pick() {
            state.turn = next;
        }
        self.turned.notify_all();
    }

    fn switch<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let Some(next) = state.pick().filter(|n| *n != me) else { return state };
        state.turn = next;
        self.turned.notify_all();
        while state.turn != me {
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Before a request of node `me` reaches a device: others may go on, the power may go, it may
    /// die.
    pub fn point(&self, me: usize, changes: bool) -> Result<(), Ended> {
        let mut state = self.state();
        state.idle = 0;
        state.points += 1;
        if state.points > POINTS_MAX {
            state.fail("this does not end".to_owned());
        }
        let often = state.switching;
        if state.rng.permille(often) {
            state = self.switch(state, me);
        }
        if changes {
            state.spend(me);
        }
        if state.has_ended(me) { Err(Ended) } else { Ok(()) }
    }

    /// Who fills or moves a member lets others go on, mostly, between what it has read and what it
    /// writes: the moment at which what they change may be written over.
    pub fn let_others(&self, me: usize) {
        let mut state = self.state();
        let fills = state.contended && state.nodes.get(me).is_some_and(|n| n.fills);
        if fills && state.rng.below(4) != 0 {
            drop(self.switch(state, me));
        }
    }

    /// Whether another node fills or moves a member.
    pub fn others_fill(&self, me: usize) -> bool {
        let state = self.state();
        state.nodes.iter().enumerate().any(|(i, n)| i != me && n.fills)
    }

    /// Somebody else must go on first.
    pub fn wait(&self, me: usize) -> Result<(), Ended> {
        let mut state = self.state();
        state.idle += 1;
        if state.idle > IDLE_MAX {
            let (nodes, regions) = (&state.nodes, &state.regions);
            let what = format!("all nodes wait for each other: {nodes:?}, {regions:?}");
            state.fail(what);
        }
        let state = self.switch(state, me);
        if state.has_ended(me) { Err(Ended) } else { Ok(()) }
    }
}

impl State {
    fn pick(&mut self) -> Option<usize> {
        let active: Vec<usize> =
            self.active.iter().enumerate().filter(|a| *a.1).map(|a| a.0).collect();
        if active.len() < 2 {
            return active.first().copied();
        }
        Some(*self.rng.pick(&active))
    }

    fn spend(&mut self, me: usize) {
        if let Some(power) = &mut self.power {
            match power.checked_sub(1) {
                Some(left) => *power = left,
                None => self.off = true,
            }
        }
        let Some(node) = self.nodes.get_mut(me) else { return };
        if let Some(death) = &mut node.death {
            match death.checked_sub(1) {
                Some(left) => *death = left,
                None => node.dead = true,
            }
        }
    }

    pub fn has_ended(&self, me: usize) -> bool {
        self.off || self.nodes.get(me).is_some_and(|n| n.dead)
    }

    /// Something broke: nothing goes on.
    pub fn fail(&mut self, what: String) {
        if self.report.overloaded && !what.contains("panic") && !what.contains("end") {
            return;
        }
        if self.failure.is_none() {
            self.tell(format!("FAILED: {what}"));
            self.failure = Some(what);
        }
        self.off = true;
    }

    pub fn tell(&mut self, what: String) {
        if self.traced {
            eprintln!("{what}");
        }
        let hash = |h: u64, word: u64| (h ^ word).wrapping_mul(0x0100_0000_01b3);
        // What is drawn follows from all.
        let drawn = hash(self.report.hash, self.rng.clone().word());
        self.report.hash = what.bytes().fold(drawn, |h, b| hash(h, b.into()));
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    pub fn told(&self) -> Vec<String> {
        self.told.iter().cloned().collect()
    }

    /// The life in a slot.
    pub fn life(&self, node: usize) -> Life {
        let incarnation = self.nodes.get(node).map_or(0, |n| n.incarnation);
        Life {
            slot: NodeId(u16::try_from(node).unwrap_or(0)),
            incarnation: Incarnation(incarnation),
        }
    }

    /// Whose regions count for nothing to `me`: those of all who are dead, while it recovers one. One
    /// recovers at a time, or two could wait for what the other's dead node holds.
    pub fn counting_for_nothing(&self, me: usize) -> Vec<usize> {
        if self.nodes.get(me).is_none_or(|n| n.recovers.is_none()) {
            return Vec::new();
        }
        let dead = self.nodes.iter().enumerate().filter(|(_, n)| !n.joined);
        dead.map(|(i, _)| i).collect()
    }

    /// Whether a dead node holds a region against `me`.
    pub fn blocked_by_dead(&self, region: u64, me: usize) -> Blocked {
        let mut blocked = Blocked::No;
        for (i, n) in self.nodes.iter().enumerate() {
            let recovered = self.nodes.iter().any(|o| o.recovers == Some(i));
            // A node that comes back recovers what it held before.
            let dead = i != me && (!n.joined || n.recovers == Some(i));
            if dead && self.regions.of(i).contains(&region) {
                if !recovered {
                    return Blocked::Unattended;
                }
                blocked = Blocked::Recovering;
            }
        }
        blocked
    }

    /// Devices that may fail, or have.
    pub fn suspects(&self) -> Vec<String> {
        let doubtful = |d: &&Disk| d.suspect || d.lost || !d.bad.is_empty();
        self.disks.iter().filter(doubtful).map(|d| d.faulty.info().name.clone()).collect()
    }

    /// A disk by its name.
    pub fn disk_named(&self, name: &str) -> Option<usize> {
        self.disks.iter().position(|d| d.faulty.info().name == name)
    }
}
