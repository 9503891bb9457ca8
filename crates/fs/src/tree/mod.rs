//! Index nodes of the B+trees whose root is in a dinode's tail: extents keyed by file block,
//! directory entries keyed by cookie. What the leaves hold is the caller's business.
//!
//! `tree_height` 0: the tail holds the leaf's contents itself. `tree_height` h > 0: the tail holds
//! `tail_count` index entries (never none) whose children are of level h-1; leaves are level 0.
//! ```text
//!  height 0        height 1                 height 2
//!  tail: contents  tail: [k,c] [k,c]        tail: [k,c] [k,c]
//!                         |     |                  |     |
//!                        leaf  leaf              Index  Index      level 1
//!                                                |   |   |  |
//!                                              leaf ...   leaf     level 0
//! ```
//! Entry i of a node covers the keys from its own up to the next entry's; the first covers all
//! below it too. What comes from disk is verified on each read: kind and owner (by the metadata
//! cache), level (one less than the parent's, so a descent ends), count, order, and that keys lie
//! between the parent's. A violation is [`Error::Inconsistent`] and names the node.
//!
//! Nothing here rolls back: callers validate first, reserve [`slots_for_insert`] slots and
//! [`frees_for_remove`] free-log entries, and treat an error of a change as fatal.

#[cfg(test)]
pub(crate) mod memory;
#[cfg(test)]
mod tests;

use braid_format::BlockNo;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::{RawIndexEntry, RawNode};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::meta::Body;

/// Highest tree there can be: with the smallest nodes this covers 2^64 keys many times over.
pub(crate) const HEIGHT_MAX: u16 = 12;

/// Bytes of one index entry.
const ENTRY: usize = size_of::<RawIndexEntry>();

/// A root as it is in a dinode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root {
    /// Slot of the dinode.
    pub block: BlockNo,
    /// `tree_height`.
    pub height: u16,
    /// `tail_count`.
    pub count: u16,
    /// Where the tail begins in the body.
    pub tail_at: usize,
    /// Bytes of the tail that contents may take.
    pub capacity: usize,
}

/// Nodes to read: of the cache, or as an open transaction sees them.
pub(crate) trait Nodes {
    /// The root's place and counts, and the dinode's body.
    fn root(&mut self) -> Result<(Root, Body)>;
    /// A node's body, verified to be of `kind` and of this tree.
    fn read(&mut self, block: BlockNo, kind: MetaKind) -> Result<Body>;
}

/// Nodes to change, inside a transaction.
pub(crate) trait NodesMut: Nodes {
    /// Bytes of a node's body.
    fn body_len(&self) -> usize;
    /// Changes a node.
    fn modify(
        &mut self,
        block: BlockNo,
        kind: MetaKind,
        f: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()>;
    /// Makes a node in a slot of the reservation: zeros and a header, then `f`.
    fn create(&mut self, kind: MetaKind, f: &mut dyn FnMut(&mut [u8])) -> Result<BlockNo>;
    /// Frees a node's slot.
    fn free(&mut self, block: BlockNo) -> Result<()>;
    /// Replaces the tail (the rest of it becomes zero), `tree_height` and `tail_count`.
    fn set_tail(&mut self, height: u16, count: u16, contents: &[u8]) -> Result<()>;
}

/// Slots that one leaf split and the insertion of the new leaf may take, in a tree of `height`.
pub(crate) fn slots_for_insert(height: u16) -> u64 {
    u64::from(height) + 2
}
/// Free-log entries that the removal of one leaf may take, in a tree of `height`: the leaf, the
/// index nodes that it leaves empty, and those whose place the root takes.
pub(crate) fn frees_for_remove(height: u16) -> u64 {
    2 * u64::from(height) + 1
}

/// One node on the way down, and the entry taken there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// `None`: the root.
    node: Option<BlockNo>,
    /// Level of the node.
    level: u16,
    /// Entry taken.
    pos: usize,
    /// Entries in the node.
    count: usize,
    /// Smallest key that the node covers.
    low: u64,
}

/// The way to a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    steps: Vec<Step>,
    /// The leaf's slot.
    pub leaf: BlockNo,
    /// Smallest key that the leaf covers.
    pub low: u64,
    /// Key with which the next leaf begins: `descend` to it to go on. `None`: the last leaf.
    pub next: Option<u64>,
}

impl Path {
    /// Whether the leaf is the first child of the node right above it.
    pub fn is_first_child(&self) -> bool {
        self.steps.last().is_none_or(|s| s.pos == 0)
    }
}

fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

/// `count` entries of `bytes`, verified: order, and all keys but the first inside (`low`, `high`).
fn verified(
    bytes: &[u8],
    count: usize,
    block: BlockNo,
    (low, high): (u64, Option<u64>),
) -> Result<&[RawIndexEntry]> {
    let entries = count
        .checked_mul(ENTRY)
        .and_then(|len| bytes.get(..len))
        .and_then(|b| <[RawIndexEntry]>::ref_from_bytes(b).ok())
        .ok_or_else(|| bad(block, "count of index entries"))?;
    if entries.is_empty() {
        return Err(bad(block, "index node without entries"));
    }
    let mut before: Option<u64> = None;
    for (i, entry) in entries.iter().enumerate() {
        let key = entry.key.get();
        let ordered = before.is_none_or(|b| b < key);
        let inside = (i == 0 || key > low) && high.is_none_or(|h| key < h);
        if !ordered || !inside {
            return Err(bad(block, "order of index entries"));
        }
        if entry.child.get() == 0 || entry.child.get() == block.get() {
            return Err(bad(block, "child of an index entry"));
        }
        before = Some(key);
    }
    Ok(entries)
}

/// The root's entries.
fn root_entries<'a>(root: &Root, body: &'a [u8]) -> Result<&'a [RawIndexEntry]> {
    if root.height == 0 || root.height > HEIGHT_MAX {
        return Err(bad(root.block, "tree height"));
    }
    let tail = body
        .get(root.tail_at..)
        .and_then(|t| t.get(..root.capacity))
        .ok_or_else(|| bad(root.block, "tail"))?;
    verified(tail, usize::from(root.count), root.block, (0, None))
}

/// An index node's entries.
fn node_entries(
    body: &[u8],
    block: BlockNo,
    level: u16,
    bounds: (u64, Option<u64>),
) -> Result<&[RawIndexEntry]> {
    let (head, rest) =
        RawNode::read_from_prefix(body).map_err(|_| bad(block, "index node too short"))?;
    if head.level.get() != level {
        return Err(bad(block, "level of an index node"));
    }
    verified(rest, usize::from(head.count.get()), block, bounds)
}

/// The way to the leaf that covers `key`. The tree's height is at least 1.
///
/// # Errors
/// `Inconsistent` when a node on the way is not what it must be; what reading gives.
pub(crate) fn descend(nodes: &mut impl Nodes, key: u64) -> Result<Path> {
    let (root, mut body) = nodes.root()?;
    let mut entries = root_entries(&root, &body)?;
    let mut steps = Vec::with_capacity(usize::from(root.height));
    let (mut node, mut level) = (None, root.height);
    let (mut low, mut high) = (0, None);
    loop {
        let pos = entries.partition_point(|e| e.key.get() <= key).saturating_sub(1);
        let entry =
            *entries.get(pos).ok_or_else(|| bad(root.block, "index node without entries"))?;
        steps.push(Step { node, level, pos, count: entries.len(), low });
        if pos > 0 {
            low = entry.key.get();
        }
        high = entries.get(pos + 1).map(|e| e.key.get()).or(high);
        let child = BlockNo(entry.child.get());
        level -= 1;
        if level == 0 {
            return Ok(Path { steps, leaf: child, low, next: high });
        }
        body = nodes.read(child, MetaKind::Index)?;
        entries = node_entries(&body, child, level, (low, high))?;
        node = Some(child);
    }
}

/// Writes `entries` as the contents of an index node of `level`.
fn fill_node(body: &mut [u8], level: u16, entries: &[RawIndexEntry]) {
    let count = u16::try_from(entries.len()).unwrap_or(u16::MAX);
    let bytes = entries.as_bytes();
    let (head, rest) = body.split_at_mut(size_of::<RawNode>());
    if let Some(fields) = head.get_mut(MetaHeader::LEN..) {
        fields.fill(0);
        if let Some(at) = fields.get_mut(..2) {
            at.copy_from_slice(&level.to_le_bytes());
        }
        if let Some(at) = fields.get_mut(2..4) {
            at.copy_from_slice(&count.to_le_bytes());
        }
    }
    let (used, unused) = rest.split_at_mut(bytes.len());
    used.copy_from_slice(bytes);
    unused.fill(0);
}

fn entry(key: u64, child: BlockNo) -> RawIndexEntry {
    RawIndexEntry { key: key.into(), child: child.get().into() }
}

/// The entries of the node at `step`, to change.
fn load(nodes: &mut impl Nodes, step: &Step) -> Result<Vec<RawIndexEntry>> {
    match step.node {
        None => {
            let (root, body) = nodes.root()?;
            Ok(root_entries(&root, &body)?.to_vec())
        }
        Some(block) => {
            let body = nodes.read(block, MetaKind::Index)?;
            Ok(node_entries(&body, block, step.level, (step.low, None))?.to_vec())
        }
    }
}

/// Writes the entries of the node at `step`; they fit.
fn store(nodes: &mut impl NodesMut, step: &Step, entries: &[RawIndexEntry]) -> Result<()> {
    match step.node {
        None => {
            let count = u16::try_from(entries.len()).unwrap_or(u16::MAX);
            nodes.set_tail(step.level, count, entries.as_bytes())
        }
        Some(block) => {
            nodes.modify(block, MetaKind::Index, &mut |body| fill_node(body, step.level, entries))
        }
    }
}

/// Entries that fit in a node.
fn node_capacity(nodes: &impl NodesMut) -> usize {
    nodes.body_len().saturating_sub(size_of::<RawNode>()) / ENTRY
}

/// From "the tail holds contents" to "the tail holds one child", which the caller has made (kind
/// and contents are the caller's) from the tail's contents.
pub(crate) fn root_one_child(nodes: &mut impl NodesMut, child: BlockNo) -> Result<()> {
    nodes.set_tail(1, 1, entry(0, child).as_bytes())
}

/// Inserts `child`, which begins with `key`, right after the leaf of `path` (which covered `key`
/// until now: the caller has split it). Index nodes split upward; the root grows. `path` is used
/// up: other paths into this tree are void after it.
///
/// # Errors
/// Fatal ones only, given the reservation.
///
/// # Panics
/// If the leaf of `path` does not cover `key`, or `key` is its first: that is the caller's mistake.
pub(crate) fn insert_after(
    nodes: &mut impl NodesMut,
    path: Path,
    key: u64,
    child: BlockNo,
) -> Result<()> {
    assert!(key > path.low && path.next.is_none_or(|n| key < n), "key outside of the split leaf");
    let mut steps = path.steps;
    let mut new = entry(key, child);
    while let Some(step) = steps.pop() {
        let mut entries = load(nodes, &step)?;
        // The first entry also covers what lies below its key: say so before something goes
        // between.
        if let Some(first) = entries.first_mut()
            && first.key.get() > step.low
        {
            first.key = step.low.into();
        }
        let at = (step.pos + 1).min(entries.len());
        entries.insert(at, new);
        let capacity = match step.node {
            None => nodes.root()?.0.capacity / ENTRY,
            Some(_) => node_capacity(nodes),
        };
        if entries.len() <= capacity {
            return store(nodes, &step, &entries);
        }
        if step.node.is_none() {
            return grow(nodes, &step, &entries);
        }
        // Appending leaves the left node full: files and cookies in order fill their nodes.
        let cut = if at + 1 == entries.len() { at } else { entries.len() / 2 };
        let (left, right) = entries.split_at(cut);
        let right_key = right.first().map_or(0, |e| e.key.get());
        let right_block =
            nodes.create(MetaKind::Index, &mut |body| fill_node(body, step.level, right))?;
        store(nodes, &step, left)?;
        new = entry(right_key, right_block);
    }
    Err(bad(child, "descent without a root"))
}

/// Moves the root's entries (one too many for it) down into new nodes.
fn grow(nodes: &mut impl NodesMut, step: &Step, entries: &[RawIndexEntry]) -> Result<()> {
    if step.level >= HEIGHT_MAX {
        return Err(bad(nodes.root()?.0.block, "tree height"));
    }
    // One node holds more than a root, except where inline attributes are absent and nodes tiny.
    let parts = entries.len().div_ceil(node_capacity(nodes).max(1)).max(1);
    let mut above = Vec::with_capacity(parts);
    for part in entries.chunks(entries.len().div_ceil(parts)) {
        let block = nodes.create(MetaKind::Index, &mut |body| fill_node(body, step.level, part))?;
        above.push(entry(part.first().map_or(0, |e| e.key.get()), block));
    }
    let count = u16::try_from(above.len()).unwrap_or(u16::MAX);
    nodes.set_tail(step.level + 1, count, above.as_bytes())
}

/// Removes the leaf of `path` from the tree and frees its slot. Index nodes that become empty go
/// too; the root shrinks; when nothing is left the tail is empty at height 0. `path` is used up.
pub(crate) fn remove_leaf(nodes: &mut impl NodesMut, path: Path) -> Result<()> {
    nodes.free(path.leaf)?;
    let mut steps = path.steps;
    while let Some(step) = steps.pop() {
        let mut entries = load(nodes, &step)?;
        if step.pos >= entries.len() {
            return Err(bad(path.leaf, "index entry vanished"));
        }
        entries.remove(step.pos);
        if !entries.is_empty() {
            store(nodes, &step, &entries)?;
            return shrink(nodes);
        }
        match step.node {
            Some(block) => nodes.free(block)?,
            None => return nodes.set_tail(0, 0, &[]),
        }
    }
    Ok(())
}

/// While the root has a single index node below, takes that node's place if its entries fit well.
fn shrink(nodes: &mut impl NodesMut) -> Result<()> {
    loop {
        let (root, body) = nodes.root()?;
        let entries = root_entries(&root, &body)?;
        let [only] = entries else { return Ok(()) };
        if root.height < 2 {
            return Ok(());
        }
        let block = BlockNo(only.child.get());
        let below = nodes.read(block, MetaKind::Index)?;
        let moved = node_entries(&below, block, root.height - 1, (0, None))?;
        // Some room is left, so that the next insertion does not grow the root again.
        if moved.len() * ENTRY > root.capacity / 4 * 3 {
            return Ok(());
        }
        let count = u16::try_from(moved.len()).unwrap_or(u16::MAX);
        nodes.set_tail(root.height - 1, count, moved.as_bytes())?;
        nodes.free(block)?;
    }
}

/// Whether the leaf of `path` is the only one in the tree.
pub(crate) fn is_only_leaf(path: &Path) -> bool {
    path.steps.iter().all(|s| s.count == 1)
}
