//! Groups all of whose free blocks have been discarded.

use std::time::Duration;

use braid_format::{Epoch, Generation};

/// A group as it was when all that is free in it had been discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trimmed {
    /// The generation of its header: every change of its bitmap increments it.
    pub(super) generation: Generation,
    /// Another device may stand in a member's place since.
    pub(super) epoch: Epoch,
    pub(super) least: u64,
}

/// After this time a group's lock is given up for nodes that wait.
pub(super) const HOLD: Duration = Duration::from_millis(50);
