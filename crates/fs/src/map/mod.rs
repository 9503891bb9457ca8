//! A file's extents: which pool blocks hold which file blocks.
//!
//! Extents stand sorted in the dinode's tail (`tree_height` 0) or in leaves. An extent lies wholly
//! in the key range of its leaf, so a lookup of any block needs one descent; one that crosses a
//! leaf's edge is stored as two. Neighbours that continue each other are merged within a leaf.
//!
//! All changes go through [`splice`], which replaces what is in a range by other extents. What
//! comes from disk is verified: order, overlap, bounds of the leaf, and that blocks lie in resource
//! groups.

#[cfg(test)]
mod tests;

use std::ops::Range;

use braid_format::BlockNo;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::{RawExtent, RawNode};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::tree::{self, Nodes, NodesMut, Path, Root};

/// Bytes of one extent.
const EXTENT: usize = size_of::<RawExtent>();
/// Blocks of one extent.
const LEN_MAX: u64 = u32::MAX as u64;
/// End of the file blocks there can be: sizes are below 2^63 and blocks at least 4 KiB.
pub(crate) const LOGICAL_END: u64 = 1 << 51;

/// A run of file blocks in consecutive pool blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First file block.
    pub logical: u64,
    /// First pool block.
    pub physical: BlockNo,
    /// Blocks.
    pub len: u64,
    /// Allocated, reads as zero.
    pub unwritten: bool,
    /// In use by other files too.
    pub shared: bool,
}

impl Extent {
    /// One past the last file block.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.len)
    }
    /// The part inside `range`, which it overlaps.
    pub fn clipped(&self, range: &Range<u64>) -> Self {
        let logical = self.logical.max(range.start);
        let skipped = logical - self.logical;
        Self {
            logical,
            physical: BlockNo(self.physical.get() + skipped),
            len: self.end().min(range.end) - logical,
            ..*self
        }
    }
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.logical < range.end && range.start < self.end()
    }
    fn continued_by(&self, next: &Self) -> bool {
        self.end() == next.logical
            && self.physical.get() + self.len == next.physical.get()
            && (self.unwritten, self.shared) == (next.unwritten, next.shared)
            && self.len + next.len <= LEN_MAX
    }
    fn raw(&self) -> RawExtent {
        let flags = if self.unwritten { RawExtent::UNWRITTEN } else { 0 }
            | if self.shared { RawExtent::SHARED } else { 0 };
        RawExtent {
            logical: self.logical.into(),
            physical: self.physical.get().into(),
            len: u32::try_from(self.len).unwrap_or(u32::MAX).into(),
            flags: flags.into(),
        }
    }
}

/// Pool blocks that may hold data: hostile extents stop here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// First block of the first resource group that may hold data.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// The extents of one leaf (or of the tail), and the keys it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Smallest file block covered.
    pub low: u64,
    /// One past the largest.
    pub high: u64,
    /// Sorted, apart.
    pub extents: Vec<Extent>,
}

fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

/// Decodes `count` extents, all inside `keys`.
fn decode(
    bytes: &[u8],
    count: usize,
    block: BlockNo,
    keys: Range<u64>,
    bounds: Bounds,
) -> Result<Vec<Extent>> {
    let raw = count
        .checked_mul(EXTENT)
        .and_then(|len| bytes.get(..len))
        .and_then(|b| <[RawExtent]>::ref_from_bytes(b).ok())
        .ok_or_else(|| bad(block, "count of extents"))?;
    let mut out = Vec::with_capacity(count + 3);
    let mut at = keys.start;
    for e in raw {
        let (logical, physical) = (e.logical.get(), e.physical.get());
        let (len, flags) = (u64::from(e.len.get()), e.flags.get());
        if flags & !(RawExtent::UNWRITTEN | RawExtent::SHARED) != 0 {
            return Err(bad(block, "flags of an extent"));
        }
        let end = logical.checked_add(len);
        if len == 0 || logical < at || end.is_none_or(|end| end > keys.end.min(LOGICAL_END)) {
            return Err(bad(block, "order of extents"));
        }
        let inside = physical >= bounds.start
            && physical.checked_add(len).is_some_and(|end| end <= bounds.end);
        if !inside {
            return Err(bad(block, "blocks of an extent"));
        }
        at = logical + len;
        out.push(Extent {
            logical,
            physical: BlockNo(physical),
            len,
            unwritten: flags & RawExtent::UNWRITTEN != 0,
            shared: flags & RawExtent::SHARED != 0,
        });
    }
    Ok(out)
}

fn tail_extents(root: &Root, body: &[u8], bounds: Bounds) -> Result<Vec<Extent>> {
    let tail = body
        .get(root.tail_at..)
        .and_then(|t| t.get(..root.capacity))
        .ok_or_else(|| bad(root.block, "tail"))?;
    decode(tail, usize::from(root.count), root.block, 0..LOGICAL_END, bounds)
}

fn leaf_extents(nodes: &mut impl Nodes, path: &Path, bounds: Bounds) -> Result<Vec<Extent>> {
    let body = nodes.read(path.leaf, MetaKind::ExtentLeaf)?;
    let (head, rest) =
        RawNode::read_from_prefix(&body).map_err(|_| bad(path.leaf, "extent leaf too short"))?;
    if head.level.get() != 0 {
        return Err(bad(path.leaf, "level of an extent leaf"));
    }
    decode(rest, usize::from(head.count.get()), path.leaf, keys_of(path), bounds)
}

fn keys_of(path: &Path) -> Range<u64> {
    path.low..path.next.unwrap_or(LOGICAL_END)
}

/// The leaf (or tail) that covers file block `at`, decoded.
pub(crate) fn part(nodes: &mut impl Nodes, bounds: Bounds, at: u64) -> Result<Part> {
    let (root, body) = nodes.root()?;
    if root.height == 0 {
        let extents = tail_extents(&root, &body, bounds)?;
        return Ok(Part { low: 0, high: LOGICAL_END, extents });
    }
    let path = tree::descend(nodes, at)?;
    let extents = leaf_extents(nodes, &path, bounds)?;
    let keys = keys_of(&path);
    Ok(Part { low: keys.start, high: keys.end, extents })
}

/// Replaces what is in `range` of `list` by `new`; what was there goes to `removed`.
fn cut(
    list: &[Extent],
    range: &Range<u64>,
    new: &[Extent],
    removed: &mut Vec<Extent>,
) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(list.len() + new.len() + 2);
    let mut push = |e: Extent| match out.last_mut() {
        Some(last) if last.continued_by(&e) => last.len += e.len,
        _ => out.push(e),
    };
    for e in list.iter().filter(|e| e.logical < range.start) {
        push(e.clipped(&(0..range.start)));
    }
    for e in new {
        push(*e);
    }
    for e in list {
        if e.overlaps(range) {
            removed.push(e.clipped(range));
        }
        if e.end() > range.end {
            push(e.clipped(&(range.end..u64::MAX)));
        }
    }
    out
}

fn encode(extents: &[Extent]) -> Vec<u8> {
    let raw: Vec<RawExtent> = extents.iter().map(Extent::raw).collect();
    raw.as_bytes().to_vec()
}

fn fill_leaf(body: &mut [u8], extents: &[Extent]) {
    let count = u16::try_from(extents.len()).unwrap_or(u16::MAX);
    let bytes = encode(extents);
    let (head, rest) = body.split_at_mut(size_of::<RawNode>());
    if let Some(fields) = head.get_mut(MetaHeader::LEN..) {
        fields.fill(0);
        if let Some(at) = fields.get_mut(2..4) {
            at.copy_from_slice(&count.to_le_bytes());
        }
    }
    let (used, unused) = rest.split_at_mut(bytes.len());
    used.copy_from_slice(&bytes);
    unused.fill(0);
}

/// Extents that a leaf with a body of `body_len` holds.
pub(crate) fn leaf_capacity(body_len: usize) -> usize {
    body_len.saturating_sub(size_of::<RawNode>()) / EXTENT
}

/// Replaces what is in `range` of file blocks by `new` (sorted, apart, inside `range`; may be
/// none). Returns what was there. Blocks are neither freed nor counted here.
///
/// Slots: see [`slots_bound`]. With `new` empty, up to [`tree::frees_for_remove`] free-log entries
/// for each leaf touched, and [`tree::slots_for_insert`] slots.
///
/// # Errors
/// What is on disk contradicts itself; fatal after the first change.
pub(crate) fn splice(
    nodes: &mut impl NodesMut,
    bounds: Bounds,
    range: Range<u64>,
    new: &[Extent],
) -> Result<Vec<Extent>> {
    let mut removed = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let (root, body) = nodes.root()?;
        if root.height == 0 {
            let list = tail_extents(&root, &body, bounds)?;
            let list = cut(&list, &(at..range.end), &clip(new, &(at..range.end)), &mut removed);
            store_tail(nodes, &root, &list)?;
            break;
        }
        let path = tree::descend(nodes, at)?;
        let part = at..range.end.min(path.next.unwrap_or(u64::MAX));
        if at == range.start {
            readable(nodes, bounds, part.end..range.end)?;
        }
        at = part.end;
        let list = leaf_extents(nodes, &path, bounds)?;
        let before = removed.len();
        let fresh = clip(new, &part);
        let list = cut(&list, &part, &fresh, &mut removed);
        if fresh.is_empty() && removed.len() == before {
            continue;
        }
        store_leaf(nodes, path, &list)?;
    }
    if new.is_empty() && !removed.is_empty() {
        back_to_tail(nodes, bounds)?;
    }
    Ok(removed)
}

/// Reads all leaves of `range`: damage among them is met before anything is changed, and so is an error
/// of this file alone. Costs nothing for a change within one leaf, whose `range` beyond it is empty.
pub(crate) fn readable(nodes: &mut impl NodesMut, bounds: Bounds, range: Range<u64>) -> Result<()> {
    if range.is_empty() || nodes.root()?.0.height == 0 {
        return Ok(());
    }
    let mut at = range.start;
    while at < range.end {
        let path = tree::descend(nodes, at)?;
        leaf_extents(nodes, &path, bounds)?;
        at = path.next.unwrap_or(u64::MAX);
    }
    Ok(())
}

/// After entries were taken away: a last leaf that fits well moves back into the tail.
fn back_to_tail(nodes: &mut impl NodesMut, bounds: Bounds) -> Result<()> {
    let (root, _) = nodes.root()?;
    if root.height == 0 {
        return Ok(());
    }
    // Nothing has to be done here: a damaged node stays as it is, and its next reader reports it.
    let path = match tree::descend(nodes, 0) {
        Err(e) if e.damaged_block().is_some() => return Ok(()),
        path => path?,
    };
    if !tree::is_only_leaf(&path) {
        return Ok(());
    }
    let list = match leaf_extents(nodes, &path, bounds) {
        Err(e) if e.damaged_block().is_some() => return Ok(()),
        list => list?,
    };
    if list.len() * EXTENT > root.capacity / 2 {
        return Ok(());
    }
    tree::remove_leaf(nodes, path)?;
    let count = u16::try_from(list.len()).unwrap_or(u16::MAX);
    nodes.set_tail(0, count, &encode(&list))
}

fn clip(list: &[Extent], range: &Range<u64>) -> Vec<Extent> {
    list.iter().filter(|e| e.overlaps(range)).map(|e| e.clipped(range)).collect()
}

/// Writes the tail; what does not fit moves to leaves.
fn store_tail(nodes: &mut impl NodesMut, root: &Root, list: &[Extent]) -> Result<()> {
    if list.len() <= root.capacity / EXTENT {
        let count = u16::try_from(list.len()).unwrap_or(u16::MAX);
        return nodes.set_tail(0, count, &encode(list));
    }
    let capacity = leaf_capacity(nodes.body_len()).max(1);
    let (first, rest) = list.split_at(list.len().min(capacity));
    let leaf = nodes.create(MetaKind::ExtentLeaf, &mut |body| fill_leaf(body, first))?;
    tree::root_one_child(nodes, leaf)?;
    append_leaves(nodes, first, rest, capacity)
}

/// Writes a leaf: splits it when it overflows, removes it when it is empty.
fn store_leaf(nodes: &mut impl NodesMut, path: Path, list: &[Extent]) -> Result<()> {
    let capacity = leaf_capacity(nodes.body_len()).max(1);
    if list.is_empty() {
        return tree::remove_leaf(nodes, path);
    }
    // At the end of a file leaves are left full; elsewhere the parts are of equal size.
    let parts = list.len().div_ceil(capacity);
    let size = if path.next.is_none() { capacity } else { list.len().div_ceil(parts) };
    let (first, rest) = list.split_at(list.len().min(size));
    nodes.modify(path.leaf, MetaKind::ExtentLeaf, &mut |body| fill_leaf(body, first))?;
    append_leaves(nodes, first, rest, size)
}

/// Puts `rest` into new leaves after the leaf that holds `before` (not empty).
fn append_leaves(
    nodes: &mut impl NodesMut,
    before: &[Extent],
    rest: &[Extent],
    size: usize,
) -> Result<()> {
    let mut previous = before;
    for chunk in rest.chunks(size.max(1)) {
        let (Some(left), Some(right)) = (previous.first(), chunk.first()) else { break };
        let path = tree::descend(nodes, left.logical)?;
        let leaf = nodes.create(MetaKind::ExtentLeaf, &mut |body| fill_leaf(body, chunk))?;
        tree::insert_after(nodes, path, right.logical, leaf)?;
        previous = chunk;
    }
    Ok(())
}

/// What a flush will ask of a tree.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    /// Blocks to allocate: each may become an extent of its own.
    pub blocks: u64,
    /// Separate places where extents are inserted or split.
    pub places: u64,
}

/// Most slots that `load` may take in a tree with this root: a reservation made when data is dirtied,
/// so that the flush cannot fail.
pub(crate) fn slots_bound(root: &Root, body_len: usize, load: Load) -> u64 {
    if load.blocks == 0 && load.places == 0 {
        return 0;
    }
    let added = load.blocks.saturating_add(load.places.saturating_mul(2));
    let leaf = leaf_capacity(body_len).max(2) as u64;
    let index = (body_len.saturating_sub(size_of::<RawNode>()) / 16).max(2) as u64;
    if root.height == 0 {
        // Inline attributes set meanwhile may take half of the tail.
        let tail = body_len.saturating_sub(root.tail_at) / 2;
        let room = (root.capacity.min(tail) / EXTENT) as u64;
        if u64::from(root.count).saturating_add(added) <= room {
            return 0;
        }
    }
    let count = u64::from(root.count).max(1);
    let leaves = match root.height {
        0 => 1,
        1 => count,
        2 => count.saturating_mul(index),
        _ => u64::MAX,
    };
    // Every leaf touched may be full and split at once; then a split takes half a leaf's entries.
    let new_leaves =
        load.places.min(leaves).saturating_add(added.div_ceil(leaf / 2)).saturating_add(2);
    let new_index = new_leaves.div_ceil(index / 2).saturating_add(u64::from(root.height) * 2 + 2);
    new_leaves.saturating_add(new_index)
}
