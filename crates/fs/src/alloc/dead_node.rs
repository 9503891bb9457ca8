//! What a dead node has of space goes back; it is looked at from outside.

use std::sync::Arc;

use braid_format::meta::MetaKind;
use braid_format::rgrp::BlockState;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, LockNo, NodeId};
use braid_lock::LockManager;

use super::log;
use super::private::{self, Private};
use crate::error::{Error, Result};
use crate::meta::Meta;
use crate::volume::Volume;

/// The runs in a free log's block, for the checker: (start, length, state).
pub(crate) fn free_log_entries(
    body: &[u8],
    block: BlockNo,
) -> std::result::Result<Vec<(u64, u64, BlockState)>, braid_format::FormatError> {
    let entries = log::decode(body, block)?;
    Ok(entries.into_iter().map(|(_, f)| (f.start, f.len, f.state)).collect())
}

/// After replay of dead `node`'s journal, on the recoverer: returns its windows, applies its free
/// log, folds in its counters. Idempotent. The recoverer's transactions change the dead node's
/// private blocks; they are in place on return, and no longer cached here.
///
/// # Errors
/// The slot must then stay in recovery; it is tried again.
pub(crate) fn reclaim(
    volume: &Arc<Volume>,
    meta: &Meta,
    locks: &Arc<LockManager>,
    node: NodeId,
) -> Result<()> {
    let private = Private { volume, meta, locks, node };
    for place in 0..RawSuperblock::WINDOWS {
        if let Some(window) = private.read_window(place)? {
            private.return_windows(window.group, &[window])?;
        }
    }
    let entries = private.read_log()?;
    if !entries.is_empty() {
        private.drain(&entries, &|_| Vec::new(), &mut |_| {})?;
    }
    private.fold()?;
    let blocks = private.all_blocks();
    meta.sync_blocks(&blocks)?;
    for block in blocks {
        meta.drop_owner(LockNo::from(block));
    }
    Ok(())
}

/// Reads what a node has of space in its private blocks, its journal being replayed, and changes
/// nothing.
///
/// # Errors
/// The first that is damaged.
pub(crate) fn inspect(volume: &Volume, node: NodeId) -> Result<()> {
    let at = |n| volume.node_area(node, n);
    for n in 0..RawSuperblock::WINDOWS {
        let block = at(RawSuperblock::AREA_WINDOWS + n);
        let body = volume.read_private(block, MetaKind::Window)?;
        private::window_head(volume, block, &body)?;
    }
    for n in 0..RawSuperblock::FREELOG_BLOCKS {
        let block = at(RawSuperblock::AREA_FREELOG + n);
        let body = volume.read_private(block, MetaKind::FreeLog)?;
        log::decode(&body, block).map_err(|source| Error::Damaged { block, source })?;
    }
    volume.read_private(at(RawSuperblock::AREA_INFO), MetaKind::NodeInfo).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_hears_of_each_freed_run() {
        let mut body = vec![0; 3584];
        let runs = [(7, 3, BlockState::Free), (70, 1, BlockState::MetaFree)];
        for (index, (start, len, state)) in [0, 5].into_iter().zip(runs) {
            let raw = log::encode(Some(log::Freed { start, len, state }), BlockNo(1)).unwrap();
            log::write(&mut body, index, &raw);
        }
        assert_eq!(free_log_entries(&body, BlockNo(1)).unwrap(), runs);
    }
}
