//! The walk over dinodes and their trees, in batches: each round reads up to [`BATCH`] bodies at
//! once, whatever they are.

use std::collections::{HashSet, VecDeque};

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_format::rgrp::BlockState;
use braid_format::tree::{RawExtent, RawIndexEntry, RawNode};
use braid_format::xattr::RawXattr;
use braid_format::{BlockNo, InodeNo};
use zerocopy::FromBytes;

use super::space::Clash;
use super::{BATCH, Checker, Mendable};
use crate::dir::{self, page};
use crate::error::Result;
use crate::groups::takes_slots;
use crate::tree::HEIGHT_MAX;

/// One past the largest cookie.
const COOKIE_END: u64 = 1 << 63;

/// A directory entry that leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadEntry {
    pub dir: InodeNo,
    /// The dinode or leaf in which it stands.
    pub block: BlockNo,
    pub cookie: u64,
}

/// What a tree node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Extents,
    Directory,
    Attributes,
}

/// A tree node to be read, and what its parent says of it.
#[derive(Debug, Clone, Copy)]
struct Node {
    block: u64,
    owner: u64,
    what: What,
    level: u16,
    low: u64,
    high: Option<u64>,
}
impl Node {
    fn kind(&self) -> MetaKind {
        match self.what {
            What::Attributes => MetaKind::Xattr,
            _ if self.level > 0 => MetaKind::Index,
            What::Extents => MetaKind::ExtentLeaf,
            What::Directory => MetaKind::DirLeaf,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Item {
    Dinode(u64),
    Node(Node),
}
impl Item {
    fn block(&self) -> BlockNo {
        match self {
            Self::Dinode(n) => BlockNo(*n),
            Self::Node(node) => BlockNo(node.block),
        }
    }
}

type Queue = VecDeque<Item>;

impl Checker {
    /// From the root, then from the inodes on orphan lists that have no links.
    pub(super) fn walk(
        &mut self,
        orphans: &[InodeNo],
        found: &mut Mendable,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let root = self.volume.root().get();
        let mut queue = Queue::new();
        self.inodes.entry(root).or_default();
        queue.push_back(Item::Dinode(root));
        self.run_queue(&mut queue, found, progress)?;
        for ino in orphans {
            let slot = self.volume.geo.slot_blocks();
            if !self.space.may_hold_slot(ino.get(), slot) {
                self.problem(BlockNo::from(*ino), "an orphan list names it: not an inode");
                continue;
            }
            if self.inodes.contains_key(&ino.get()) {
                continue;
            }
            // A number on the list counts only if an inode without links stands there.
            let listed = match self.read(&[BlockNo::from(*ino)])?.pop() {
                Some(Ok((body, _, MetaKind::Dinode))) => {
                    RawDinode::read_from_prefix(&body).is_ok_and(|(raw, _)| raw.nlink.get() == 0)
                }
                _ => false,
            };
            if listed {
                self.inodes.entry(ino.get()).or_default().orphan = true;
                queue.push_back(Item::Dinode(ino.get()));
                self.run_queue(&mut queue, found, progress)?;
            }
        }
        self.dangling(found);
        Ok(())
    }
    /// Dinodes that the bitmaps call used and no name leads to.
    pub(super) fn unreachable(
        &mut self,
        found: &mut Mendable,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let step = usize::try_from(self.volume.geo.slot_blocks()).unwrap_or(1);
        let mut candidates = Vec::new();
        for group in self.space.groups.iter().filter(|g| g.sound) {
            let used = crate::alloc::bits::runs(
                &group.bits,
                0,
                group.shape.block_count,
                BlockState::MetaUsed,
            );
            let slots = used.flat_map(|(start, n)| (start..start + n).step_by(step));
            candidates.extend(
                slots
                    .filter(|&i| crate::alloc::bits::get(&group.seen, i) == BlockState::Free)
                    .map(|i| BlockNo(group.shape.first_block + i)),
            );
        }
        let mut queue = Queue::new();
        for part in candidates.chunks(BATCH) {
            for (&block, body) in part.iter().zip(self.read(part)?) {
                if let Ok((_, h, MetaKind::Dinode)) = body
                    && h.owner.get() == block.get()
                    && !self.inodes.contains_key(&block.get())
                {
                    self.inodes.entry(block.get()).or_default().nameless = true;
                    queue.push_back(Item::Dinode(block.get()));
                }
            }
        }
        self.run_queue(&mut queue, found, progress)?;
        let nameless: Vec<u64> = self
            .inodes
            .iter()
            .filter(|(_, info)| info.nameless && info.links == 0)
            .map(|(ino, _)| *ino)
            .collect();
        for ino in nameless {
            self.problem(BlockNo(ino), "inode without a name");
        }
        Ok(())
    }
    /// Names of inodes that are none.
    fn dangling(&mut self, found: &mut Mendable) {
        let bad: Vec<(u64, BadEntry)> = self
            .inodes
            .iter()
            .filter(|(_, info)| !info.sound)
            .filter_map(|(ino, info)| Some((*ino, info.from?)))
            .collect();
        for (ino, entry) in bad {
            let dir = entry.dir;
            self.problem(entry.block, format!("directory {dir} names {ino}, which is no inode"));
            found.entries.push(entry);
        }
    }

    fn run_queue(
        &mut self,
        queue: &mut Queue,
        found: &mut Mendable,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        while !queue.is_empty() {
            let items: Vec<Item> = queue.drain(..queue.len().min(BATCH)).collect();
            let blocks: Vec<BlockNo> = items.iter().map(Item::block).collect();
            for (item, body) in items.into_iter().zip(self.read(&blocks)?) {
                let block = item.block();
                let (kind, owner) = match &item {
                    Item::Dinode(n) => (MetaKind::Dinode, *n),
                    Item::Node(node) => (node.kind(), node.owner),
                };
                let problem = match &body {
                    Ok((_, h, k)) if *k == kind && h.owner.get() == owner => None,
                    Ok((_, _, k)) if *k != kind => {
                        Some(format!("{} instead of {}", k.name(), kind.name()))
                    }
                    Ok((_, h, _)) => Some(format!("belongs to {}, not to {owner}", h.owner)),
                    Err(e) => Some(format!("{}: {e}", kind.name())),
                };
                if let Some(text) = problem {
                    // The entry that leads to a slot that is no dinode is reported by itself.
                    self.problem(block, text);
                    self.spoil(owner, found);
                    continue;
                }
                let Ok((body, _, _)) = body else { continue };
                match item {
                    Item::Dinode(ino) => self.dinode(ino, &body, queue, found),
                    Item::Node(node) => self.node(node, &body, queue, found),
                }
            }
            let done = self.report.inodes;
            progress(done, self.total.max(done));
        }
        Ok(())
    }
    /// Part of an inode could not be read: its blocks are not all known.
    fn spoil(&mut self, ino: u64, found: &mut Mendable) {
        found.unsure = true;
        if let Some(info) = self.inodes.get_mut(&ino) {
            info.bad = true;
        }
    }
    fn mark(
        &mut self,
        by: u64,
        start: u64,
        len: u64,
        state: BlockState,
        found: &mut Mendable,
    ) -> bool {
        match self.space.mark(start, len, state) {
            Ok(()) => true,
            Err(Clash::Outside) => {
                self.problem(
                    BlockNo(start),
                    format!("inode {by} uses {len} block(s) outside all groups"),
                );
                self.spoil(by, found);
                false
            }
            Err(Clash::Misplaced(kind)) => {
                let place = if takes_slots(kind) { "metadata" } else { "file data" };
                self.problem(
                    BlockNo(start),
                    format!("inode {by} uses {len} block(s) in a group for {place} only"),
                );
                self.spoil(by, found);
                false
            }
            Err(Clash::Twice(block)) => {
                self.problem(block, format!("inode {by} uses it, and so does another"));
                self.spoil(by, found);
                false
            }
        }
    }
    fn bad(&mut self, ino: u64, block: u64, text: &str, found: &mut Mendable) {
        self.problem(BlockNo(block), text);
        self.spoil(ino, found);
    }

    fn dinode(&mut self, ino: u64, body: &[u8], queue: &mut Queue, found: &mut Mendable) {
        let Ok((raw, _)) = RawDinode::read_from_prefix(body) else { return };
        let slot = self.volume.geo.slot_blocks();
        let known = self.inodes.entry(ino).or_default();
        known.load(&raw);
        let is_dir = known.is_dir();
        self.report.inodes += 1;
        self.report.directories += u64::from(is_dir);
        self.mark(ino, ino, slot, BlockState::MetaUsed, found);
        if !inline_attributes(&raw, body) {
            self.bad(ino, ino, "attributes in the dinode", found);
        }
        if raw.xattr_block.get() != 0 {
            let node = Node {
                block: raw.xattr_block.get(),
                owner: ino,
                what: What::Attributes,
                level: 0,
                low: 0,
                high: None,
            };
            self.follow(node, queue, found);
        }
        let capacity = raw.tail_capacity(body.len());
        let tail = body.get(RawDinode::TAIL_AT..).and_then(|t| t.get(..capacity)).unwrap_or(&[]);
        let count = usize::from(raw.tail_count.get());
        let height = raw.tree_height.get();
        let layout = Layout::from_u16(raw.layout.get());
        let what = if is_dir { What::Directory } else { What::Extents };
        let fits = match layout {
            None => false,
            Some(Layout::None) => !matches!(raw.mode.get() >> 12, 4 | 8 | 10),
            Some(Layout::Stuffed) => !is_dir && raw.size.get() <= capacity as u64,
            Some(Layout::Extents) => {
                raw.mode.get() >> 12 & 15 == 8 || raw.mode.get() >> 12 & 15 == 10
            }
            Some(Layout::DirStuffed) => is_dir && height == 0,
            Some(Layout::DirHashed) => is_dir,
        };
        if !fits || height > HEIGHT_MAX {
            self.bad(ino, ino, "layout of the dinode", found);
            return;
        }
        if matches!(layout, Some(Layout::None | Layout::Stuffed)) {
            return;
        }
        let place = Node { block: ino, owner: ino, what, level: height, low: 0, high: None };
        self.contents(place, tail, count, queue, found);
    }
    fn node(&mut self, node: Node, body: &[u8], queue: &mut Queue, found: &mut Mendable) {
        if node.what == What::Attributes {
            if !attribute_block(body) {
                self.bad(node.owner, node.block, "attributes", found);
            }
            return;
        }
        let Ok((head, rest)) = RawNode::read_from_prefix(body) else { return };
        if head.level.get() != node.level {
            self.bad(node.owner, node.block, "level of a tree node", found);
            return;
        }
        self.contents(node, rest, usize::from(head.count.get()), queue, found);
    }
    /// Queues a slot of an inode, once.
    fn follow(&mut self, node: Node, queue: &mut Queue, found: &mut Mendable) {
        let slot = self.volume.geo.slot_blocks();
        if let Some(info) = self.inodes.get_mut(&node.owner) {
            info.blocks += slot;
        }
        if self.mark(node.owner, node.block, slot, BlockState::MetaUsed, found) {
            queue.push_back(Item::Node(node));
        }
    }
    /// What stands in a tail or a tree node.
    fn contents(
        &mut self,
        node: Node,
        bytes: &[u8],
        count: usize,
        queue: &mut Queue,
        found: &mut Mendable,
    ) {
        if node.level > 0 {
            self.index(node, bytes, count, queue, found);
        } else if node.what == What::Directory {
            self.entries(node, bytes, count, queue, found);
        } else {
            self.extents(node, bytes, count, found);
        }
    }
    fn index(
        &mut self,
        node: Node,
        bytes: &[u8],
        count: usize,
        queue: &mut Queue,
        found: &mut Mendable,
    ) {
        let entries = table::<RawIndexEntry>(bytes, count);
        let Some(entries) = entries.filter(|e| !e.is_empty()) else {
            self.bad(node.owner, node.block, "count of a tree node", found);
            return;
        };
        for (i, entry) in entries.iter().enumerate() {
            let key = entry.key.get();
            let next = entries.get(i + 1).map(|e| e.key.get());
            let low = if i == 0 { node.low } else { key };
            let high = next.or(node.high);
            let ordered = next.is_none_or(|n| n > key)
                && (i == 0 || key > node.low)
                && node.high.is_none_or(|h| key < h);
            if !ordered {
                self.bad(node.owner, node.block, "order of index entries", found);
                return;
            }
            let child = Node { block: entry.child.get(), level: node.level - 1, low, high, ..node };
            self.follow(child, queue, found);
        }
    }
    fn extents(&mut self, node: Node, bytes: &[u8], count: usize, found: &mut Mendable) {
        let Some(extents) = table::<RawExtent>(bytes, count) else {
            self.bad(node.owner, node.block, "count of extents", found);
            return;
        };
        let mut low = node.low;
        for e in &extents {
            let (logical, len) = (e.logical.get(), u64::from(e.len.get()));
            let end = logical.checked_add(len).filter(|&end| node.high.is_none_or(|h| end <= h));
            let known = e.flags.get() & !(RawExtent::UNWRITTEN | RawExtent::SHARED) == 0;
            let Some(end) = end.filter(|_| len > 0 && logical >= low && known) else {
                self.bad(node.owner, node.block, "order of extents", found);
                return;
            };
            low = end;
            if let Some(info) = self.inodes.get_mut(&node.owner) {
                info.blocks += len;
            }
            if self.mark(node.owner, e.physical.get(), len, BlockState::Data, found) {
                self.report.data_blocks += len;
            }
        }
    }
    fn entries(
        &mut self,
        node: Node,
        bytes: &[u8],
        count: usize,
        queue: &mut Queue,
        found: &mut Mendable,
    ) {
        let seed = self.volume.sb.hash_seed.get();
        let bounds = node.low.max(dir::DOT_DOT + 1)..node.high.unwrap_or(COOKIE_END);
        let mut names = HashSet::new();
        for entry in page::entries(bytes, count, bounds) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(what) => {
                    self.bad(node.owner, node.block, what, found);
                    return;
                }
            };
            let hash = dir::hash(seed, entry.name);
            let fits = dir::check_name(entry.name).is_ok()
                && entry.cookie >= hash
                && entry.cookie - hash < dir::WINDOW;
            let place = BadEntry {
                dir: InodeNo(node.owner),
                block: BlockNo(node.block),
                cookie: entry.cookie,
            };
            if !fits || !names.insert(entry.name.to_vec()) {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                let text = format!("directory {}: entry {name:?} is not one", node.owner);
                self.problem(place.block, text);
                found.entries.push(place);
            }
            self.entry(node.owner, place, entry.ino.get(), entry.kind, queue, found);
        }
    }
    fn entry(
        &mut self,
        dir: u64,
        place: BadEntry,
        ino: u64,
        kind: u32,
        queue: &mut Queue,
        found: &mut Mendable,
    ) {
        if let Some(info) = self.inodes.get_mut(&dir) {
            info.entries += 1;
            info.subdirs += u32::from(kind == 4);
        }
        let slot = self.volume.geo.slot_blocks();
        if !ino.is_multiple_of(slot) || !self.space.may_hold_slot(ino, slot) {
            let text = format!("directory {dir} names {ino}, which cannot be an inode");
            self.problem(place.block, text);
            found.entries.push(place);
            return;
        }
        if ino == self.volume.root().get() {
            self.problem(place.block, format!("directory {dir} names the root"));
            found.entries.push(place);
            return;
        }
        let new = !self.inodes.contains_key(&ino);
        let known = self.inodes.entry(ino).or_default();
        known.links += 1;
        known.kinds |= 1_u32.checked_shl(kind).unwrap_or(1);
        known.parent = dir;
        known.from = Some(place);
        if new {
            queue.push_back(Item::Dinode(ino));
        }
    }
}

/// The first `count` structures in `bytes`.
fn table<T: FromBytes>(bytes: &[u8], count: usize) -> Option<Vec<T>> {
    let size = size_of::<T>();
    let bytes = bytes.get(..count.checked_mul(size)?)?;
    Some(bytes.chunks_exact(size).filter_map(|b| T::read_from_bytes(b).ok()).collect())
}

/// Whether `bytes` are attributes, one after the other.
fn attributes(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let Ok((head, _)) = RawXattr::read_from_prefix(bytes) else { return false };
        let len = usize::from(head.record_len.get());
        let inner = size_of::<RawXattr>()
            + usize::from(head.name_len.get())
            + usize::from(head.value_len.get());
        if head.name_len.get() == 0 || len < inner {
            return false;
        }
        let (name, value) = (usize::from(head.name_len.get()), usize::from(head.value_len.get()));
        let named = bytes.get(size_of::<RawXattr>()..inner).and_then(|b| b.split_at_checked(name));
        if !named.is_some_and(|(name, v)| v.len() == value && crate::xattr::is_sound(name, v)) {
            return false;
        }
        let Some(rest) = bytes.get(len..) else { return false };
        bytes = rest;
    }
    true
}
fn inline_attributes(raw: &RawDinode, body: &[u8]) -> bool {
    let len = usize::from(raw.xattr_len.get());
    let start = body.len().checked_sub(len).filter(|&s| s >= RawDinode::TAIL_AT);
    start.and_then(|s| body.get(s..)).is_some_and(attributes)
}
fn attribute_block(body: &[u8]) -> bool {
    const HEAD: usize = braid_format::meta::MetaHeader::LEN;
    let used = body
        .get(HEAD..HEAD + 8)
        .map(|b| b.iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte)));
    let used = used.and_then(|n| usize::try_from(n).ok());
    used.and_then(|n| body.get(HEAD + 8..)?.get(..n)).is_some_and(attributes)
}
