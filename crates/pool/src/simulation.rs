//! What `braid-sim`, and nothing else, decides for a pool: pauses, and where members' devices are.
//!
//! A run from a seed must be the same each time. So in a simulation a pool starts no threads,
//! nothing depends on the length of a pause, and the simulation says where devices are.

use std::sync::{Arc, OnceLock};

use braid_device::Device;
use braid_format::label::Member;

pub use crate::identity::{Source, SourceScope};

/// Where a pause is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// The thread holds nothing of the pool: other threads of its node may change the epoch.
    Free,
    /// A request is under way.
    Inside,
}

/// What a simulation does for a pool.
pub trait Simulation: Send + Sync {
    /// Instead of sleeping.
    fn pause(&self, pause: Pause);
    /// Instead of the seconds since 1970: these, unless it has a time of its own.
    fn seconds(&self) -> u64 {
        crate::clock::unix_seconds()
    }
    /// The device of a member that another node has let in.
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>>;
}

/// Opens the device of a member.
pub(crate) type Opener = Box<dyn Fn(&Member) -> Option<Arc<dyn Device>> + Send + Sync>;

/// Set at most once, before the pool is used.
#[derive(Default)]
pub(crate) struct Simulated(OnceLock<Arc<dyn Simulation>>);

impl Simulated {
    /// The simulation, if there is one.
    pub fn get(&self) -> Option<&Arc<dyn Simulation>> {
        self.0.get()
    }

    /// There is one from now on.
    pub fn set(&self, simulation: Arc<dyn Simulation>) {
        self.0.set(simulation).ok();
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Simulated").field(&self.0.get().is_some()).finish()
    }
}
