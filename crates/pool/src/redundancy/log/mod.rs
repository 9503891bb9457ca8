//! A node's redundancy log: what makes copies equal and parity right again after a crash.
//!
//! Before the first write to a region of the pool (16 MiB or more) the region is noted, durably.
//! After a crash only noted regions are compared ([`intents`]). Before a part of a parity row
//! changes, its new bytes and new parity are logged, durably, and after a crash they are written
//! again ([`redo`]). So the other bytes of the row can be computed from its parity even if a member
//! is lost in the same crash: there is no write hole.
//!
//! While a member is offline, each region is noted once more before the first write to it, in another
//! place, and stays noted: that is what the member has missed ([`super::missed`]).
//!
//! Intents and redo have one replica more than the number of members that the pool can lose; what was missed
//! stands on every member in sync. All copies say the same, and recovery reads all of them
//! ([`super::log_recovery`]). Layout: [`braid_format::redundancy`].

pub(crate) mod intents;
pub(crate) mod redo;
pub(crate) mod replicas;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use braid_format::Bytes;

use self::intents::Intents;
use self::redo::Redo;
use self::replicas::Reach;
use crate::error::PoolError;
use crate::topology::{Lost, Topology};

/// The log of this node.
#[derive(Debug)]
pub(crate) struct Log {
    pub slot: u16,
    pub intents: Intents,
    /// What was written since a member went offline; forgotten some time after none is any more.
    pub missed: Intents,
    pub redo: Arc<Redo>,
}

impl Log {
    /// The same log where the pool has `size` bytes. It must be written to its replicas before the new
    /// bytes are.
    pub fn resized(&self, size: Bytes) -> Self {
        let (slot, redo) = (self.slot, self.redo.clone());
        let (intents, missed) = (self.intents.resized(size), self.missed.resized(size));
        Self { slot, intents, missed, redo }
    }

    /// Notes, durably, that the pool's bytes of `ranges` (from, to) are about to be written. No I/O when
    /// they are noted already.
    ///
    /// # Errors
    /// The log cannot be written anywhere: nothing may be written.
    pub fn note(
        &self,
        topology: &Topology,
        ranges: &[(u64, u64)],
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        if topology.notes_missed {
            self.missed.note(topology, self.slot, ranges, lost)?;
        }
        self.intents.note(topology, self.slot, ranges, lost)
    }

    /// The log is about to be used in `topology`: if a member is offline there, what may not be durable on it
    /// counts as missed. Durable on return.
    ///
    /// # Errors
    /// The log cannot be written anywhere.
    pub fn renew_missed(&self, topology: &Topology, lost: &mut Lost) -> Result<(), PoolError> {
        if !topology.notes_missed {
            // It is kept: this epoch may be taken back.
            return Ok(());
        }
        self.missed.absorb(&self.intents);
        self.missed.rewrite(topology, self.slot, Reach::Everywhere, lost)
    }

    /// Forgets what was missed, if no member is offline in `topology`, an epoch that stays.
    ///
    /// # Errors
    /// The log cannot be written anywhere.
    pub fn end_missed(&self, topology: &Topology, lost: &mut Lost) -> Result<(), PoolError> {
        if topology.notes_missed || self.missed.is_empty() {
            return Ok(());
        }
        self.missed.forget(topology, self.slot, lost)
    }
}
