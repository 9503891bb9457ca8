//! A cluster in virtual time: several nodes, several devices, one seed, one thread. It runs the
//! real step functions (`braid_lock::dlock`, `braid_lock::node::watch`) and the real record
//! formats; only threads, sockets, kernel locks and devices are simulated. The same seed gives the
//! same run, to the last event: `cargo run -p braid-sim -- SEED --trace`.
//!
//! # Permitted faults
//! Whatever is not listed is a bug if it happens.
//! * **Crash.** A node's process dies at any moment. What it has in flight may land, within
//!   [`Faults::late_max`], or never. Its liveness lock is released when nothing of it is in flight
//!   any more (the kernel closes descriptors after their I/O), and not before.
//! * **Unknown compare-and-write.** The issuer is told of a failure; the write has landed, never
//!   will, or lands within `late_max` while the issuer goes on.
//! * **Failed read.**
//! * **Slow I/O.** Any request may take up to `late_max`.
//! * **Hints** are lost, doubled, late, or about a lock that nobody asked for.
//! * **Stall.** A node is stopped for up to [`Faults::stall_max`] (as by SIGSTOP) and then goes on
//!   as if nothing had happened; its I/O lands meanwhile.
//! * **Leave and join.** Nodes leave in good order and come back, also after a crash, in any slot.
//! * A recoverer may crash at any step of a recovery.
//!
//! Not permitted here: torn, lost or misdirected writes (`braid-device`'s faulty device has them),
//! loss of power of a device, silence taken for death (all nodes are on one host).
//!
//! # Checked at every event that could change it
//! * exclusion: of all lives not yet recovered, none believes in EX beside another's belief;
//! * belief: no life believes in more than the record on the device gives it;
//! * protection: a data write lands only while its life holds EX in the record on the device;
//! * one owner: no two processes live in a slot, and a recovery begins only after the fence;
//! * [`work`]'s own: no acknowledged value is lost, every read sees the latest write.
//!
//! Faults cease after [`Faults::until`]; [`Faults::patience`] later every thread that waited has been
//! served, every dead node recovered, every node joined.

#![forbid(unsafe_code)]

mod check;
mod disk;
mod locks;
mod node;
mod random;
pub mod work;
mod world;

use std::time::Duration;

pub use random::Random;
pub use world::{Failure, Report};

/// How much goes wrong, and for how long.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Faults cease then.
    pub until: Duration,
    /// The run goes on for so long after that; in its last quarter nobody still waits who waited
    /// at its beginning, and every dead node has been recovered.
    pub patience: Duration,
    /// Longest delay of a request, and of what a dead process had in flight.
    pub late_max: Duration,
    /// Longest stall.
    pub stall_max: Duration,
    /// Of a thousand requests, how many fail for their issuer.
    pub failing: u64,
    /// Of a thousand requests, how many are slow.
    pub slow: u64,
    /// Of a thousand hints, how many are lost.
    pub hints_lost: u64,
    /// Mean time between crashes, stalls and leaves, of the whole cluster; zero: none.
    pub trouble_every: Duration,
}

/// A cluster to simulate.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u16,
    /// Slots, at least as many.
    pub slots: u16,
    /// Locks.
    pub locks: u16,
    /// Threads on each node.
    pub threads: u16,
    /// Devices.
    pub devices: u16,
    /// What goes wrong.
    pub faults: Faults,
    /// A bug put in on purpose, to see that it is found.
    pub sabotage: Option<Sabotage>,
}

/// Bugs that the checkers must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A demotion does not write what is dirty.
    KeepDirty,
    /// A lock is given up while the write of what it covers is under way.
    ReleaseEarly,
    /// A dead process lets its liveness lock go while requests are in flight.
    FenceEarly,
    /// Living lives are taken for dead.
    BreakLiving,
}

impl Cluster {
    /// A small cluster, all of whose sizes and faults follow from the seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x00c1_0573);
        let nodes = r.small(2, 4);
        let ms = Duration::from_millis;
        let faults = Faults {
            until: ms(1500),
            patience: ms(2000),
            late_max: ms(r.below(300) + 1),
            stall_max: ms(r.below(800) + 1),
            failing: r.below(30) * r.below(2),
            slow: r.below(50),
            hints_lost: *r.pick(&[0, 100, 500, 1000]),
            trouble_every: ms(*r.pick(&[0, 100, 200, 400])),
        };
        Self {
            nodes,
            slots: nodes + r.small(0, 2),
            locks: r.small(1, 4),
            threads: r.small(1, 2),
            devices: r.small(1, 3),
            faults,
            sabotage: None,
        }
    }
}

/// Runs one cluster from one seed.
///
/// # Errors
/// The first invariant that broke, with the events before it when `trace` is set.
pub fn run(seed: u64, cluster: &Cluster, trace: bool) -> Result<Report, Box<Failure>> {
    world::World::new(seed, cluster, trace).run()
}
