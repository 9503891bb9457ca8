//! Bitmaps against use.

use std::sync::Arc;

use braid_format::label::SubpoolKind;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::rgrp::{BlockState, RawRgrp};
use braid_format::{BlockNo, LockNo};

use super::{BATCH, Checker, Mendable};
use crate::alloc::{Counters, bits, check_group_header, fits};
use crate::error::Result;
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

impl Checker {
    /// Reads headers and bitmaps, then applies windows and free logs.
    pub(super) fn groups(&mut self, found: &mut Mendable) -> Result<()> {
        for index in 0..self.space.groups.len() {
            self.group(index, found)?;
        }
        for private in std::mem::take(&mut self.space.private) {
            self.apply(&private, found);
            self.space.private.push(private);
        }
        Ok(())
    }
    fn group(&mut self, index: usize, found: &mut Mendable) -> Result<()> {
        let Some(shape) = self.space.groups.get(index).map(|g| g.shape) else { return Ok(()) };
        if shape.block_count == 0 {
            return Ok(());
        }
        let slot = self.volume.geo.slot_blocks();
        let owner = LockNo::from(shape.start).get();
        let blocks: Vec<BlockNo> =
            (0..=shape.bitmap_slots).map(|i| BlockNo(shape.start.get() + i * slot)).collect();
        let mut bits = Vec::new();
        let mut raw = None;
        let mut lines = Vec::new();
        for part in blocks.chunks(BATCH) {
            for (&block, body) in part.iter().zip(self.read(part)?) {
                let head = block == shape.start;
                let kind = if head { MetaKind::Rgrp } else { MetaKind::Bitmap };
                match body {
                    Ok((body, h, k)) if k == kind && h.owner.get() == owner => {
                        if !head {
                            bits.extend_from_slice(body.get(MetaHeader::LEN..).unwrap_or(&[]));
                            continue;
                        }
                        match check_group_header(block, index as u64, &shape, &body) {
                            Ok(r) => raw = Some(r),
                            Err(e) => lines.push((block, e.to_string())),
                        }
                    }
                    Ok((_, _, k)) => {
                        lines.push((block, format!("{} instead of {}", k.name(), kind.name())));
                    }
                    Err(e) => lines.push((block, format!("{}: {e}", kind.name()))),
                }
            }
        }
        let sound = lines.is_empty();
        if let Some(raw) = raw.filter(|_| sound) {
            let count = |state| bits::count(&bits, 0, shape.block_count, state);
            for (name, says, is) in [
                ("free blocks", raw.free_blocks.get(), count(BlockState::Free)),
                ("free metadata", raw.free_meta.get(), count(BlockState::MetaFree)),
            ] {
                if says != is {
                    lines.push((shape.start, format!("group counts {says} {name}, bitmap {is}")));
                }
            }
        }
        if !takes_slots(shape.kind) {
            for state in [BlockState::MetaFree, BlockState::MetaUsed] {
                let n = bits::count(&bits, 0, shape.block_count, state);
                if n > 0 {
                    lines.push((shape.start, format!("{n} block(s) of file data called metadata")));
                }
            }
        }
        found.space += lines.len() as u64;
        for (block, text) in lines {
            self.problem(block, text);
        }
        if let Some(g) = self.space.groups.get_mut(index) {
            (g.bits, g.sound, g.raw) = (bits, sound, raw);
        }
        Ok(())
    }
    /// What a window or a log entry says of its blocks becomes what the group says.
    fn apply(&mut self, private: &Private, found: &mut Mendable) {
        let mut clash = None;
        let (mut misplaced, mut hidden) = (false, false);
        let (block, start) = match private {
            Private::Window { block, start, len, bits: window } => {
                let Some((group, at)) = self.space.locate(*start, *len) else {
                    self.problem(*block, "window outside all groups");
                    found.space += 1;
                    return;
                };
                for state in [BlockState::Free, BlockState::MetaFree, BlockState::MetaUsed] {
                    for (from, n) in bits::runs(window, 0, *len, state) {
                        // What is free in a group for metadata is for chunks.
                        misplaced |= state != BlockState::Free && !fits(group.shape.kind, state);
                        hidden |= state != BlockState::Free
                            && bits::count(&group.bits, at + from, at + from + n, BlockState::Data)
                                > 0;
                        clash = clash.or(overlay(&mut group.bits, at + from, n, state));
                    }
                }
                (*block, group.shape.first_block)
            }
            Private::Freed { block, start, len, state } => {
                let Some((group, at)) = self.space.locate(*start, *len) else {
                    self.problem(*block, format!("freed run {start}+{len} outside all groups"));
                    found.space += 1;
                    return;
                };
                misplaced |= !fits(group.shape.kind, *state);
                clash = overlay(&mut group.bits, at, *len, *state);
                (*block, group.shape.first_block)
            }
        };
        if let Some(at) = clash {
            self.problem(block, format!("frees block {}, which is free already", start + at));
            found.space += 1;
        }
        if hidden {
            self.problem(block, "metadata slots that their group calls data");
            found.space += 1;
        }
        if misplaced {
            self.problem(block, "free blocks of the wrong kind for their group");
            found.space += 1;
        }
    }
    /// The bitmaps, with windows and logs applied, against what the walk saw.
    pub(super) fn compare_space(&mut self, found: &mut Mendable) {
        let mut lines = Vec::new();
        for group in self.space.groups.iter().filter(|g| g.sound) {
            for (at, len, says, seen) in differences(group) {
                let start = group.shape.first_block + at;
                found.exposed |= seen != BlockState::Free;
                let text = match (says, seen) {
                    (BlockState::Data, BlockState::Free) => "data blocks that nothing refers to",
                    (BlockState::MetaUsed, BlockState::Free) => {
                        "metadata blocks that nothing refers to"
                    }
                    (_, BlockState::Data) => "file data that the bitmap does not call data",
                    _ => "metadata in use that the bitmap does not call so",
                };
                lines.push((BlockNo(start), format!("{len} block(s): {text}")));
            }
        }
        found.space += lines.len() as u64;
        for (block, text) in lines {
            self.problem(block, text);
        }
    }
    /// Every free metadata slot must hold a sound body of kind `Free`: the next user continues its
    /// generation.
    pub(super) fn free_slots(&mut self, found: &mut Mendable) -> Result<()> {
        let step = usize::try_from(self.volume.geo.slot_blocks()).unwrap_or(1);
        for index in 0..self.space.groups.len() {
            let Some(group) = self.space.groups.get(index).filter(|g| g.sound) else { continue };
            let metadata = takes_slots(group.shape.kind);
            let blocks: Vec<BlockNo> =
                bits::runs(&group.bits, 0, group.shape.block_count, BlockState::MetaFree)
                    .flat_map(|(start, n)| (start..start + n).step_by(step))
                    .filter(|&i| bits::get(&group.seen, i) == BlockState::Free)
                    .map(|i| BlockNo(group.shape.first_block + i))
                    .collect();
            for part in blocks.chunks(BATCH) {
                for (&block, body) in part.iter().zip(self.read(part)?) {
                    match body {
                        Ok((_, _, MetaKind::Free)) => {}
                        Ok((_, _, kind)) => {
                            self.problem(
                                block,
                                format!("free metadata block holds a {}", kind.name()),
                            );
                            // It might belong to what is cut off: the next pass tells.
                            if metadata && !found.unsure {
                                found.free.push(block);
                            }
                        }
                        Err(e) => {
                            self.problem(block, format!("free metadata block: {e}"));
                            // A group of file data has none, whatever its bitmap says.
                            if metadata {
                                found.free.push(block);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
    /// The cluster's counters.
    pub(super) fn compare_counters(&mut self, found: &mut Mendable) {
        if self.space.groups.iter().any(|g| !g.sound) {
            return;
        }
        let (free, meta) = self.space.free(|g| &g.bits);
        let inodes = self.report.inodes;
        let counted = self.space.counted;
        let block = BlockNo::from(
            self.volume.named(braid_format::superblock::RawSuperblock::NAMED_COUNTERS),
        );
        for (name, says, is) in [
            ("free blocks", counted.free, free),
            ("inodes", counted.inodes, inodes),
            ("free metadata blocks", counted.meta, meta),
        ] {
            if says != is {
                self.problem(block, format!("counters say {says} {name}, there are {is}"));
                found.space += 1;
            }
        }
    }
}

/// Lays a state over blocks, by the rule of a window's return; gives the first that was free
/// already.
fn overlay(bits: &mut [u8], start: u64, len: u64, state: BlockState) -> Option<u64> {
    let mut clash = None;
    for i in start..start + len {
        let old = bits::get(bits, i);
        let free = matches!(old, BlockState::Free | BlockState::MetaFree);
        match state {
            BlockState::MetaUsed if old == BlockState::Data => bits::set(bits, i, state),
            BlockState::Free | BlockState::MetaFree => {
                if free {
                    clash = clash.or(Some(i));
                }
                bits::set(bits, i, state);
            }
            _ => {}
        }
    }
    clash
}

/// Runs where bitmap and walk differ: (start, length, bitmap, walk).
fn differences(group: &GroupMap) -> Vec<(u64, u64, BlockState, BlockState)> {
    let mut out: Vec<(u64, u64, BlockState, BlockState)> = Vec::new();
    for (byte, (a, b)) in (0_u64..).zip(group.bits.iter().zip(&group.seen)) {
        if a == b {
            continue;
        }
        let from = byte * PER_BYTE;
        for i in from..(from + PER_BYTE).min(group.shape.block_count) {
            let (says, seen) = (bits::get(&group.bits, i), bits::get(&group.seen, i));
            let same = says == seen || says == BlockState::MetaFree && seen == BlockState::Free;
            if same {
                continue;
            }
            match out.last_mut() {
                Some((s, l, x, y)) if *s + *l == i && (*x, *y) == (says, seen) => *l += 1,
                _ => out.push((i, 1, says, seen)),
            }
        }
    }
    out
}
