//! Bitmaps as they are on disk, and as the walk saw their blocks in use.

use std::sync::Arc;

use braid_format::BlockNo;
use braid_format::label::SubpoolKind;
use braid_format::rgrp::{BlockState, RawRgrp};

use crate::alloc::{Counters, bits, fits};
use crate::groups::{GroupShape, Groups, PER_BYTE, takes_data, takes_slots};
use crate::unused_metadata::is_worth_it;
use crate::volume::Volume;

/// What a node's private blocks say beside the groups.
#[derive(Debug)]
pub(super) enum Private {
    /// A window: `block` is the window block.
    Window { block: BlockNo, start: u64, len: u64, bits: Box<[u8]> },
    /// An entry of a free log in `block`.
    Freed { block: BlockNo, start: u64, len: u64, state: BlockState },
}

/// A group as read.
#[derive(Debug)]
pub(super) struct GroupMap {
    pub shape: GroupShape,
    /// As the bitmaps say; then with windows and logs applied.
    pub bits: Vec<u8>,
    /// As the walk saw: `Data` and `MetaUsed`, else `Free`.
    pub seen: Vec<u8>,
    /// Header and bitmaps are sound.
    pub sound: bool,
    /// The header, if it is sound.
    pub raw: Option<RawRgrp>,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Space {
    pub groups: Vec<GroupMap>,
    pub private: Vec<Private>,
    /// Sum of the cluster's counters and the nodes' changes.
    pub counted: Counters,
    places: Arc<Groups>,
}

/// A block that lies in no group, is used already, or lies in a group that is not for such use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clash {
    Outside,
    Twice(BlockNo),
    Misplaced(SubpoolKind),
}

impl Space {
    pub fn new(volume: &Volume) -> Self {
        // What has left keeps its number, and has nothing.
        let there = |i, shape: GroupShape| {
            if volume.groups.is_gone(i) {
                return GroupShape { block_count: 0, bitmap_slots: 0, ..shape };
            }
            shape
        };
        let shapes = (0..volume.groups.count())
            .map_while(|i| volume.group_shape(i).map(|shape| there(i, shape)));
        let groups = shapes
            .map(|shape| {
                let bytes =
                    usize::try_from(shape.block_count.div_ceil(PER_BYTE)).unwrap_or(0).max(1);
                let (bits, seen) = (Vec::new(), vec![0; bytes]);
                GroupMap { shape, bits, seen, sound: true, raw: None }
            })
            .collect();
        Self {
            groups,
            private: Vec::new(),
            counted: Counters::default(),
            places: volume.groups.clone(),
        }
    }
    /// The group in whose blocks a run lies wholly, and the run's place there.
    pub fn locate(&mut self, start: u64, len: u64) -> Option<(&mut GroupMap, u64)> {
        let index = usize::try_from(self.places.of_block(BlockNo(start))?).ok()?;
        let group = self.groups.get_mut(index)?;
        let at = group.shape.local(start, len)?;
        Some((group, at))
    }
    /// Whether a metadata slot may be at `start`, which lies in a group.
    pub fn may_hold_slot(&mut self, start: u64, len: u64) -> bool {
        self.locate(start, len).is_some_and(|(g, _)| takes_slots(g.shape.kind))
    }
    /// What the cluster's counters must be of `bits`: free blocks; free slots, and free blocks of groups
    /// for metadata alone.
    pub fn free(&self, bits: impl Fn(&GroupMap) -> &[u8]) -> (u64, u64) {
        let count = |g: &GroupMap, state| bits::count(bits(g), 0, g.shape.block_count, state);
        self.groups.iter().fold((0, 0), |(free, meta), g| {
            let slots = count(g, BlockState::MetaFree);
            if takes_data(g.shape.kind) {
                return (free + count(g, BlockState::Free), meta + slots);
            }
            (free, meta + count(g, BlockState::Free) + slots)
        })
    }
    /// Whether a good part of the blocks that may hold data are free slots, a chunk or more together.
    pub fn has_unused(&self, volume: &Volume) -> bool {
        let both = |g: &&GroupMap| takes_data(g.shape.kind) && takes_slots(g.shape.kind);
        let chunk = volume.geo.chunk_blocks();
        let unused = self.groups.iter().filter(both).map(|g| {
            let runs = bits::runs(&g.bits, 0, g.shape.block_count, BlockState::MetaFree);
            runs.map(|(_, n)| n).filter(|n| *n >= chunk).sum::<u64>()
        });
        is_worth_it(unused.sum(), volume.groups.totals().0, true)
    }
    /// Notes that a run is used: data may go on from one group to the next.
    pub fn mark(
        &mut self,
        start: u64,
        len: u64,
        state: BlockState,
    ) -> std::result::Result<(), Clash> {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let data = state == BlockState::Data;
            let part = if data { self.places.part(at, end - at) } else { end - at };
            self.mark_part(at, part, state)?;
            at += part;
        }
        Ok(())
    }
    fn mark_part(
        &mut self,
        start: u64,
        len: u64,
        state: BlockState,
    ) -> std::result::Result<(), Clash> {
        let Some((group, at)) = self.locate(start, len) else { return Err(Clash::Outside) };
        if !fits(group.shape.kind, state) {
            return Err(Clash::Misplaced(group.shape.kind));
        }
        let free: u64 = bits::count(&group.seen, at, at + len, BlockState::Free);
        if free != len {
            let used = (at..at + len).find(|&i| bits::get(&group.seen, i) != BlockState::Free);
            let block = group.shape.first_block + used.unwrap_or(at);
            return Err(Clash::Twice(BlockNo(block)));
        }
        bits::fill(&mut group.seen, at, len, state);
        Ok(())
    }
}
