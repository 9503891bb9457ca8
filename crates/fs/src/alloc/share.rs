//! What this node knows of the space lock, and what it gives to others.

use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::LockNo;
use braid_format::rgrp::BlockState;

use crate::volume::Volume;

/// What this node knows of the space lock.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// `None`: no other node can come.
    pub(super) lock: Option<LockNo>,
    /// Held at least shared.
    pub(super) held: AtomicBool,
    /// Nothing is given any more.
    pub(super) closed: AtomicBool,
}

impl Share {
    pub fn new(volume: &Volume) -> Self {
        let common = volume.sb.node_slots.get() > 1;
        Self { lock: common.then(|| volume.space_lock()), ..Self::default() }
    }
    /// The space lock; `None`: no other node can come.
    pub fn lock(&self) -> Option<LockNo> {
        self.lock
    }
    /// Whether other nodes may have free space.
    pub fn is_common(&self) -> bool {
        self.lock.is_some()
    }
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
    pub(super) fn note(&self, held: bool) {
        self.held.store(held, Ordering::Release);
    }
    pub(super) fn is_held(&self) -> bool {
        self.lock.is_none() || self.held.load(Ordering::Acquire)
    }
}

/// Something takeable, out of its window on its way to its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReturnedPart {
    /// Group.
    pub group: u64,
    /// Window.
    pub place: u64,
    /// Where in it.
    pub at: u64,
    /// First block.
    pub start: u64,
    /// Blocks.
    pub len: u64,
    /// `Free`, or `MetaFree`: one slot.
    pub state: BlockState,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_volume::{Shape, TestVolume};

    #[test]
    fn the_space_lock_counts_only_where_other_nodes_can_come() {
        let of = |nodes| Share::new(&TestVolume::new(Shape { nodes, ..Shape::default() }).volume);
        let alone = of(1);
        assert!(!alone.is_common() && alone.is_held(), "nobody has to be asked");
        let common = of(2);
        assert!(common.is_common() && common.lock().is_some());
        assert!(!common.is_held());
        common.note(true);
        assert!(common.is_held());
        common.note(false);
        assert!(!common.is_held());
    }
}
