//! Lookup in a file's map, through a decoded copy of a few leaves.

use std::ops::Range;

use braid_format::BlockNo;
use braid_format::dinode::Layout;

use smallvec::SmallVec;

use super::held::HeldInode;
use crate::error::Result;
use crate::map::{self, Part};

/// Decoded extents kept for one inode.
const CACHED_MAX: usize = 64 << 10;

/// Part of a range: blocks that stand together, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First file block.
    pub logical: u64,
    /// Blocks.
    pub len: u64,
    /// First pool block; `None`: a hole.
    pub physical: Option<BlockNo>,
    /// Reads as zero, though it has blocks.
    pub unwritten: bool,
}

impl Piece {
    /// The blocks to read from, if it has contents.
    pub fn written(&self) -> Option<BlockNo> {
        self.physical.filter(|_| !self.unwritten)
    }
    /// One past the last file block.
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }
}

/// Pieces of a range; few.
pub(crate) type Pieces = SmallVec<[Piece; 2]>;

/// Adds the pieces of `range` that `part` covers; where it stopped.
fn cover(part: &Part, range: &Range<u64>, out: &mut Pieces) -> u64 {
    let end = range.end.min(part.high);
    let mut at = range.start;
    let hole = |logical: u64, to: u64| Piece {
        logical,
        len: to - logical,
        physical: None,
        unwritten: false,
    };
    let first = part.extents.partition_point(|e| e.end() <= at);
    for e in part.extents.iter().skip(first) {
        if at >= end || e.logical >= end {
            break;
        }
        if at < e.logical {
            out.push(hole(at, e.logical));
            at = e.logical;
        }
        let to = e.end().min(end);
        out.push(Piece {
            logical: at,
            len: to - at,
            physical: Some(BlockNo(e.physical.get() + (at - e.logical))),
            unwritten: e.unwritten,
        });
        at = to;
    }
    if at < end {
        out.push(hole(at, end));
        at = end;
    }
    at
}

impl HeldInode<'_> {
    /// What is in file blocks `range` (not empty): consecutive pieces that cover it. For ranges as
    /// long as one request; see [`HeldInode::lookup_some`].
    pub fn lookup(&self, range: Range<u64>) -> Result<Pieces> {
        let mut out = Pieces::new();
        let mut at = range.start;
        while at < range.end {
            at = self.cover_some(at..range.end, &mut out)?;
        }
        Ok(out)
    }
    /// As [`HeldInode::lookup`], but it may stop early (never at the start): bounded memory whatever the
    /// range. Go on where the last piece ends.
    pub fn lookup_some(&self, range: Range<u64>) -> Result<Pieces> {
        let mut out = Pieces::new();
        self.cover_some(range, &mut out)?;
        Ok(out)
    }
    /// Adds pieces from the start of `range` on; where it stopped.
    fn cover_some(&self, range: Range<u64>, out: &mut Pieces) -> Result<u64> {
        let none = Part { low: 0, high: u64::MAX, extents: Vec::new() };
        if range.start >= map::LOGICAL_END || self.view()?.layout != Layout::Extents {
            return Ok(cover(&none, &range, out));
        }
        loop {
            let cached = self.data().map.read();
            if let Some(part) = &*cached
                && part.low <= range.start
                && range.start < part.high
            {
                return Ok(cover(part, &range, out));
            }
            drop(cached);
            self.load_part(range.start)?;
        }
    }
    /// Decodes the leaf that covers `at` into the cache.
    fn load_part(&self, at: u64) -> Result<()> {
        // The write side keeps transactions out, which change several nodes one after the other.
        let mut cached = self.data().map.write();
        if cached.as_ref().is_some_and(|p| p.low <= at && at < p.high) {
            return Ok(());
        }
        let mut part = map::part(&mut self.reader(), self.bounds(), at)?;
        *cached = Some(match cached.take() {
            // Reading on: the leaves are neighbours.
            Some(mut before)
                if before.high == part.low
                    && before.extents.len() + part.extents.len() <= CACHED_MAX =>
            {
                before.extents.append(&mut part.extents);
                before.high = part.high;
                before
            }
            _ => part,
        });
        Ok(())
    }
    /// The block right before file block `at`, if it has one.
    pub fn block_before(&self, at: u64) -> Result<Option<BlockNo>> {
        let Some(before) = at.checked_sub(1) else { return Ok(None) };
        Ok(self.lookup(before..at)?.first().and_then(|p| p.physical))
    }
}
