//! A pass of `check`: compares the allocation bitmaps with the blocks that the walk of the trees saw.

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, LockNo};

use super::checker::{BATCH, Checker};
use super::mendable::Mendable;
use super::space::{GroupMap, Private};
use crate::alloc::{bits, check_group_header, fits};
use crate::error::Result;
use crate::groups::{PER_BYTE, takes_slots};

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
    /// Overwrites the bits of a group, in memory, with those of a window or free-log entry in it: of their
    /// blocks they count, not the group.
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
