//! Volumes under faults, from one seed: the real code of `braid_pool` on memory devices that lose
//! what was not flushed, tear writes between sectors, fail, rot, and are cut off from power.
//!
//! A run makes a pool of a random shape and lives through a few *eras*. An era begins with what is on
//! the devices: the pool is put together (without members that are gone), the logs of its nodes are
//! recovered. One to three nodes then use it, and change it: writes of all sizes, reads, flushes,
//! compare-and-writes, space given back; members fail, rot, are taken out, replaced, filled, moved, added, removed. It ends
//! in order or by a power cut at any write of anything; nodes die at any write, others recover their
//! logs. Each node runs in a thread of its own, of which one is awake: every request to a
//! device, every wait for a region or an epoch is a place where another goes on, by the seed.
//! Fillers and movers run in one thread here ([`braid_pool::simulation`]). What is random in labels is drawn from
//! the seed too (it decides which of two changes of one epoch counts): so a seed is the same run each time.
//!
//! `BRAID_SIM_VOLUMES=SEED..SEED cargo test -p braid-sim --test volumes` runs other seeds than CI
//! does; `BRAID_SIM_TELL=1` tells every step; `BRAID_SIM_IDENTITIES=N` draws other identities.
//!
//! # Checked
//! * Every read gives what was written last, and of a write that has not ended, or failed, old or
//!   new in every sector.
//! * After a power cut everything is there that had been flushed; of what was written since, each
//!   sector is of one of these writes or as before. (What stood on a member that is away, and was
//!   written with its whole row, and not flushed, may be neither: nothing else may.)
//! * Copies and parity agree after every recovery and at the end: a scrub finds nothing to do.
//! * Rot that can be decided is found by a scrub, and healed; of one copy of a mirror it is so by who
//!   recovers after a power cut, and by who fills a member. Rot in one copy of a log or of a label
//!   harms nobody after a power cut.
//! * Bytes that were given back are as before, or zeros, on all copies.
//! * Of all compare-and-writes from one value one succeeds.
//! * Where several nodes write the same blocks of a mirror at once, all copies are the same when the last of
//!   them has returned; what is read is of a write that no other has followed ([`run_concurrent`]).
//! * No member that fails is noticed by a user, as long as the layout can spare it. Otherwise: errors,
//!   and no panic.
//! * Nobody waits for ever, and at the end of an era all nodes use one epoch.

mod acts;
mod concurrent;
mod discard;
mod model;
mod node;
mod rot;
mod shape;
mod steps;
mod verify;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What runs did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeReport {
    /// Steps.
    pub steps: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Reads compared.
    pub reads: u64,
    /// Flushes.
    pub flushes: u64,
    /// Compare-and-writes that succeeded.
    pub exchanges: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Nodes that died alone, and logs that others recovered.
    pub deaths: u64,
    /// Logs recovered by survivors.
    pub recoveries: u64,
    /// Assemblies without a member.
    pub degraded: u64,
    /// Members filled.
    pub rebuilt: u64,
    /// Fillings that were stopped or failed.
    pub unbuilt: u64,
    /// Members moved.
    pub moved: u64,
    /// Moves given up.
    pub unmoved: u64,
    /// Members removed.
    pub removed: u64,
    /// Times that space was added.
    pub added: u64,
    /// Members replaced, by hand or by a spare.
    pub replaced: u64,
    /// Faults of devices.
    pub faults: u64,
    /// Rot healed.
    pub rot: u64,
    /// Of that, after a power cut, after a member was filled, and after one was moved.
    pub rot_survived: [u64; 3],
    /// Times that space was given back.
    pub discards: u64,
    /// Of those, times that all of it went back.
    pub discarded: u64,
    /// Changes that were refused or failed.
    pub refused: u64,
    /// More failed than the layout can spare.
    pub overloaded: bool,
    /// Members that went offline.
    pub offline: u64,
    /// Of those, members that came back and lacked only a part.
    pub caught_up: u64,
    /// Writes of a block that another node was writing.
    pub met: u64,
    /// Of every step, in its order. (Summed up for several runs.)
    pub hash: u64,
}

impl std::ops::AddAssign<&VolumeReport> for VolumeReport {
    fn add_assign(&mut self, o: &VolumeReport) {
        self.steps += o.steps;
        self.writes += o.writes;
        self.reads += o.reads;
        self.flushes += o.flushes;
        self.exchanges += o.exchanges;
        self.power_cuts += o.power_cuts;
        self.deaths += o.deaths;
        self.recoveries += o.recoveries;
        self.degraded += o.degraded;
        self.rebuilt += o.rebuilt;
        self.unbuilt += o.unbuilt;
        self.moved += o.moved;
        self.unmoved += o.unmoved;
        self.removed += o.removed;
        self.added += o.added;
        self.replaced += o.replaced;
        self.faults += o.faults;
        self.rot += o.rot;
        self.rot_survived.iter_mut().zip(o.rot_survived).for_each(|(all, one)| *all += one);
        self.discards += o.discards;
        self.discarded += o.discarded;
        self.refused += o.refused;
        self.overloaded |= o.overloaded;
        self.offline += o.offline;
        self.caught_up += o.caught_up;
        self.met += o.met;
        self.hash = self.hash.wrapping_add(o.hash);
    }
}

/// Why a run failed.
#[derive(Debug)]
pub struct VolumeFailure {
    seed: u64,
    what: String,
    /// By which it is run again.
    test: &'static str,
    told: Vec<String>,
}

impl fmt::Display for VolumeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.told {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        let (from, to) = (self.seed, self.seed + 1);
        write!(
            f,
            "again: BRAID_SIM_VOLUMES={from}..{to} cargo test -p braid-sim --test volumes {}",
            self.test
        )
    }
}

/// Runs one volume from one seed.
///
/// # Errors
/// The first thing that must not be, with the steps before it.
pub fn run_volume(seed: u64) -> Result<VolumeReport, Box<VolumeFailure>> {
    run_shape(seed, &shape::Shape::from_seed(seed), false)
}

/// As [`run_volume`]; every step is told on standard error.
///
/// # Errors
/// As there.
pub fn trace_volume(seed: u64) -> Result<VolumeReport, Box<VolumeFailure>> {
    run_shape(seed, &shape::Shape::from_seed(seed), true)
}

/// As [`run_volume`], of nodes that do little but change locks while members are filled and moved;
/// and whoever writes a chunk there lets the others go on before.
///
/// # Errors
/// As there.
pub fn run_contended(seed: u64) -> Result<VolumeReport, Box<VolumeFailure>> {
    run_shape(seed, &shape::Shape::contended(seed), false)
}

/// As [`run_volume`], of nodes that write the same few blocks of mirrors at once. `split`: as it was once,
/// by writes that do not look at the copies afterwards.
///
/// # Errors
/// As there.
pub fn run_concurrent(seed: u64, split: bool) -> Result<VolumeReport, Box<VolumeFailure>> {
    run_shape(seed, &shape::Shape { split, ..shape::Shape::concurrent(seed) }, false)
}

/// As [`run_volume`], of members that go offline for a while. `trace`: every step is told on standard error.
///
/// # Errors
/// As there.
pub fn run_offline(seed: u64, trace: bool) -> Result<VolumeReport, Box<VolumeFailure>> {
    run_shape(seed, &shape::Shape::offline(seed), trace)
}

fn run_shape(
    seed: u64,
    shape: &shape::Shape,
    trace: bool,
) -> Result<VolumeReport, Box<VolumeFailure>> {
    let world = world::World::new(seed, shape.nodes);
    world.state().traced |= trace;
    world.state().small_regions = shape.offline;
    let _drawn = world.draw_identities();
    let ended = catch_unwind(AssertUnwindSafe(|| steps::run(&world, shape)));
    let mut state = world.state();
    if let Err(panic) = ended {
        state.fail(format!("panic: {}", crate::lane::text_of(&*panic)));
    }
    match state.failure.take() {
        Some(what) => {
            let test = match shape {
                shape::Shape { contended: true, .. } => "contended",
                shape::Shape { concurrent: true, .. } => "written_at_once",
                shape::Shape { offline: true, .. } => "offline",
                _ => "seeds",
            };
            Err(Box::new(VolumeFailure { seed, what, test, told: state.told() }))
        }
        None => Ok(state.report.clone()),
    }
}
