//! A node's redundancy log: what makes copies equal and parity right again after a crash.
//!
//! Before the first write to a region of the pool (16 MiB or more) the region is noted, durably.
//! After a crash only noted regions are compared ([`intents`]). Before a part of a parity row
//! changes, its new bytes and new parity are logged, durably, and after a crash they are written
//! again ([`redo`]). So the other bytes of the row can be computed from its parity even if a member
//! is lost in the same crash: there is no write hole.
//!
//! A log has one replica more than the number of members that the pool can lose. All replicas hold
//! the same, and recovery reads all of them ([`super::log_recovery`]). Layout: [`braid_format::redundancy`].

pub(crate) mod intents;
pub(crate) mod redo;
pub(crate) mod replicas;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use braid_format::Bytes;

use self::intents::Intents;
use self::redo::Redo;

/// The log of this node.
#[derive(Debug)]
pub(crate) struct Log {
    pub slot: u16,
    pub intents: Intents,
    pub redo: Arc<Redo>,
}

impl Log {
    /// The same log where the pool has `size` bytes. It must be written to its replicas before the new
    /// bytes are.
    pub fn resized(&self, size: Bytes) -> Self {
        let (slot, redo) = (self.slot, self.redo.clone());
        Self { slot, intents: self.intents.resized(size), redo }
    }
}
