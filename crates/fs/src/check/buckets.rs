//! Buckets of program locks: chains of blocks. Nobody has the file system mounted, so their locks
//! are all old. A damaged bucket is emptied, and its further blocks are free.

use std::collections::BTreeSet;

use braid_format::BlockNo;
use braid_format::meta::MetaKind;
use braid_format::rgrp::BlockState;

use super::checker::Checker;
use super::mendable::Mendable;
use crate::error::Result;
use crate::plock_table;

impl Checker {
    /// Follows the chains that begin in `heads`, which are sound blocks.
    pub(super) fn buckets(&mut self, heads: &[BlockNo], found: &mut Mendable) -> Result<()> {
        for &head in heads {
            match self.chain(head)? {
                Ok(blocks) => self.mark_chain(head, &blocks, found),
                Err((block, text)) => {
                    self.problem(block, format!("program lock bucket {head}: {text}"));
                    found.private.push((head, MetaKind::Plock));
                }
            }
        }
        Ok(())
    }
    /// The blocks of a bucket behind its first one, or what is wrong with which of them.
    fn chain(
        &mut self,
        head: BlockNo,
    ) -> Result<std::result::Result<BTreeSet<BlockNo>, (BlockNo, String)>> {
        let slot = self.volume.geo.slot_blocks();
        let (mut blocks, mut at) = (BTreeSet::new(), head);
        loop {
            let (body, header) = match self.read(&[at])?.pop() {
                Some(Ok((body, header, MetaKind::Plock))) => (body, header),
                Some(Ok((_, _, kind))) => return Ok(Err((at, format!("holds a {}", kind.name())))),
                Some(Err(e)) => return Ok(Err((at, e.to_string()))),
                None => return Ok(Ok(blocks)),
            };
            if header.owner.get() != head.get() {
                return Ok(Err((at, format!("belongs to {}", header.owner))));
            }
            let next = match plock_table::next_block(&body) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(Ok(blocks)),
                Err(text) => return Ok(Err((at, text.to_owned()))),
            };
            if !self.space.may_hold_slot(next.get(), slot) || !next.get().is_multiple_of(slot) {
                return Ok(Err((at, format!("goes on in {next}, which is no metadata block"))));
            }
            if !blocks.insert(next) || blocks.len() > plock_table::BLOCKS_MAX {
                return Ok(Err((at, "the chain has no end".to_owned())));
            }
            at = next;
        }
    }
    fn mark_chain(&mut self, head: BlockNo, blocks: &BTreeSet<BlockNo>, found: &mut Mendable) {
        let slot = self.volume.geo.slot_blocks();
        for block in blocks {
            if self.space.mark(block.get(), slot, BlockState::MetaUsed).is_err() {
                let text = format!("program lock bucket {head} uses it, and so does another");
                self.problem(*block, text);
                found.private.push((head, MetaKind::Plock));
                found.unsure = true;
            }
        }
    }
}
