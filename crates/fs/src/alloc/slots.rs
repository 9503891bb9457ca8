//! Which blocks are metadata slots, as their groups say.

use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, LockNo};
use braid_lock::{Local, Mode};

use super::group::state_of;
use super::inner::Alloc;
use crate::error::Result;

impl Alloc {
    /// Whether a metadata slot begins at `block`, used or free, of whatever node. While this node lives a
    /// slot stays one ([`crate::unused_metadata`]), so the answer stays true when it is yes.
    ///
    /// Takes the lock of the block's group, shared, and reads one bitmap slot; neither touches a device
    /// if this node has the lock and the slot in memory. Call without a resource group's lock.
    ///
    /// # Errors
    /// Those of the lock; the bitmap is damaged.
    pub fn is_slot(&self, block: BlockNo) -> Result<bool> {
        let inner = &self.inner;
        let Some(index) = inner.volume.rgrp_of(block) else { return Ok(false) };
        let lock = LockNo::from(inner.volume.rgrp(index));
        let _guard = inner.locks.acquire(lock, Mode::Shared, Local::Shared)?;
        let state = state_of(&inner.volume, &inner.meta, index, block)?;
        Ok(matches!(state, Some(BlockState::MetaFree | BlockState::MetaUsed)))
    }
}
