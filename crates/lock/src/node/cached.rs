//! Slot records that are kept for callers that look at them often.

use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};

use super::NodeStore;
use super::life::is_over;
use crate::Life;
use crate::simulation;

/// A slot is read again when its life matters and the last look is older than this.
const STALE: Duration = Duration::from_millis(20);

/// A slot's record, and when it was read.
pub(super) struct Cached {
    pub record: SlotRecord,
    read: Instant,
}

impl Cached {
    pub fn now(record: SlotRecord) -> Self {
        Self { record, read: simulation::now() }
    }
    /// Of a slot that was never read: any life of it may be going on.
    pub fn unknown(slot: NodeId) -> Self {
        Self::now(SlotRecord { state: SlotState::Active, ..SlotRecord::free(slot) })
    }
    /// Read from the store; `None` if it cannot be.
    pub fn read(store: &dyn NodeStore, slot: NodeId) -> Option<Self> {
        let bytes = store.read_slot(slot).ok()?;
        SlotRecord::decode(&bytes, slot).ok().map(Self::now)
    }
    /// Whether `life` is over; `None` if this is too old to tell that it is not.
    pub fn is_over(&self, life: Life) -> Option<bool> {
        let over = is_over(&self.record, life);
        (over || simulation::since(self.read) < STALE).then_some(over)
    }
}
