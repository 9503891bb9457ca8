//! Whose records may have to be replayed.

use braid_format::node::{SlotRecord, SlotState};
use braid_format::{FormatError, Incarnation, NodeId};
use braid_lock::LockError;

use crate::error::Result;
use crate::volume::Volume;

/// Whose records may have to be replayed. The slot says it: a life is in its slot, durably, before
/// its first record, and a slot is free only when all that was in its journal is in place. Records
/// of earlier lives stay in the ring. A block of one of their images may have become file data
/// since, so none of them may be put in place, whatever is lost of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The records of this life.
    Life(Incarnation),
    /// No records: the slot is free.
    Nobody,
    /// The slot cannot be read.
    Unknown,
    /// Slots are in a store that may have lost them, where metadata stays metadata.
    Any,
}

impl Writer {
    /// The life that writes, or wrote last, by a slot, as its record says.
    ///
    /// # Errors
    /// When a device fails.
    pub(crate) fn of_slot(volume: &Volume, slot: NodeId) -> Result<Self> {
        if volume.external_store.is_some() {
            return Ok(Self::Any);
        }
        let store = volume.node_store(volume.node_areas()?);
        let bytes = store.read_slot(slot).map_err(LockError::NodeStore)?;
        Ok(Self::of_record(SlotRecord::decode(&bytes, slot).ok().as_ref()))
    }
    /// As a slot's record says, if it can be read.
    pub fn of_record(record: Option<&SlotRecord>) -> Self {
        match record {
            Some(record) if record.state == SlotState::Free => Self::Nobody,
            Some(record) => Self::Life(record.life.incarnation),
            None => Self::Unknown,
        }
    }
    /// Whether records of this incarnation may have to be replayed.
    pub(super) fn may_be(self, incarnation: Incarnation) -> bool {
        match self {
            Self::Life(life) => life == incarnation,
            Self::Nobody => false,
            Self::Unknown | Self::Any => true,
        }
    }
    /// Whether a block that does not verify for this reason may be one that the writer changed. If it does
    /// not even look like metadata, it may be file data by now.
    pub(super) fn may_have_changed(self, damage: &FormatError) -> bool {
        self != Self::Unknown || matches!(damage, FormatError::ChecksumMismatch { .. })
    }
}
