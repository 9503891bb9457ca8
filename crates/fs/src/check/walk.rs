//! The walk over dinodes and their trees, in batches: each round reads up to [`BATCH`] bodies at
//! once, whatever they are.

use std::collections::{HashSet, VecDeque};

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_format::rgrp::BlockState;
use braid_format::superblock::RawSuperblock;
use braid_format::tree::{RawExtent, RawIndexEntry, RawNode};
use braid_format::xattr::RawXattrValue;
use braid_format::{BlockNo, InodeNo, NodeId};
use zerocopy::FromBytes;

use super::bodies::table;
use super::checker::{BATCH, Checker};
use super::cut::{Cut, Part};
use super::inodes::Info;
use super::mendable::Mendable;
use super::name::Name;
use super::space::Clash;
use crate::dir::{self, page};
use crate::error::Result;
use crate::groups::takes_slots;
use crate::tree::HEIGHT_MAX;
use crate::xattr::pack::{self, Attribute, Value};
use crate::xattr::{is_access_list, is_sound, place};

/// An inode that `/lost+found` takes.
pub(super) const NAMELESS: &str = "inode without a name";

/// One past the largest cookie.
const COOKIE_END: u64 = 1 << 63;

/// What a tree node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Extents,
    Directory,
    Attributes,
    /// A part of an attribute's value: the part's number is the node's `low`, its length `high`.
    Value {
        /// Of an access control list.
        acl: bool,
    },
}

/// A tree node to be read, and what its parent says of it.
#[derive(Debug, Clone, Copy)]
struct Node {
    block: u64,
    /// The node or dinode that refers to it.
    parent: u64,
    owner: u64,
    what: What,
    level: u16,
    low: u64,
    high: Option<u64>,
}
impl Node {
    /// Takes it off what it hangs on.
    fn cut(&self) -> Cut {
        let ino = InodeNo(self.owner);
        let child = BlockNo(self.block);
        let what = match self.what {
            What::Attributes => Part::AttributeBlock,
            What::Value { .. } => Part::Attribute(child),
            What::Extents | What::Directory => Part::Child(child),
        };
        Cut { ino, block: BlockNo(self.parent), what }
    }
    /// Takes away the permissions that an access control list may have narrowed, which goes with the
    /// node.
    fn narrows(&self) -> Option<Cut> {
        let ino = InodeNo(self.owner);
        let block = BlockNo(self.owner);
        match self.what {
            // If the first of its blocks is on the dinode, the same cut does it.
            What::Attributes if self.parent == self.owner => None,
            What::Attributes | What::Value { acl: true } => {
                Some(Cut { ino, block, what: Part::Permissions })
            }
            _ => None,
        }
    }
    /// Takes away all of it but the first `sound` items.
    fn cut_behind(&self, sound: usize) -> Cut {
        let in_dinode = self.block == self.owner;
        if sound == 0 && !in_dinode {
            return self.cut();
        }
        let what = match (self.level, self.what) {
            (1.., _) => Part::IndexBehind(sound),
            (0, What::Directory) => Part::EntriesBehind(sound),
            (0, _) => Part::ExtentsBehind(sound),
        };
        Cut { ino: InodeNo(self.owner), block: BlockNo(self.block), what }
    }
    fn kind(&self) -> MetaKind {
        match self.what {
            What::Attributes => MetaKind::Xattr,
            What::Value { .. } => MetaKind::XattrValue,
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
                // It is not known which list names it: all are emptied, and what they named is
                // found without a name.
                self.forget_orphans(found);
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
        Ok(())
    }
    /// All orphan lists are to be emptied.
    fn forget_orphans(&self, found: &mut Mendable) {
        for node in (0..self.volume.sb.node_slots.get()).map(NodeId) {
            for n in 0..RawSuperblock::ORPHAN_BLOCKS {
                let block = self.volume.node_area(node, RawSuperblock::AREA_ORPHANS + n);
                if !found.private.iter().any(|(known, _)| *known == block) {
                    found.private.push((block, MetaKind::Orphans));
                }
            }
        }
    }
    /// Dinodes that the bitmaps call used and no name leads to.
    pub(super) fn unreachable(
        &mut self,
        found: &mut Mendable,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let step = usize::try_from(self.volume.geo.slot_blocks()).unwrap_or(1);
        let mut candidates = Vec::new();
        for group in self.space.groups.iter().filter(|g| takes_slots(g.shape.kind)) {
            let slot = step as u64;
            let first = group.shape.first_block.next_multiple_of(slot) - group.shape.first_block;
            let state = |i: u64| crate::alloc::bits::get(&group.bits, i);
            // If the bitmap is damaged, the bodies decide.
            let slots = (first..group.shape.block_count)
                .step_by(step)
                .filter(|&i| !group.sound || state(i) == BlockState::MetaUsed);
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
            self.problem(BlockNo(ino), NAMELESS);
        }
        Ok(())
    }
    /// Names of inodes that are none, or whose dinode is damaged.
    pub(super) fn dangling(&mut self, found: &mut Mendable) {
        let root = self.volume.root().get();
        let bad = |(ino, info): (&u64, &Info)| (!info.sound && *ino != root).then_some(*ino);
        let bad: Vec<u64> = self.inodes.iter().filter_map(bad).collect();
        for name in bad.iter().flat_map(|ino| self.names_of(*ino)).collect::<Vec<_>>() {
            let (dir, to) = (name.dir, name.to);
            self.problem(name.block, format!("directory {dir} names {to}, which is not an inode"));
            found.entries.push(name);
        }
        found.root |= self.inodes.get(&root).is_none_or(|info| !info.sound);
    }
    /// All entries that lead to an inode.
    pub(super) fn names_of(&self, ino: u64) -> Vec<Name> {
        let first = self.inodes.get(&ino).and_then(|info| info.from);
        let more = self.more_names.get(&ino).into_iter().flatten().copied();
        first.into_iter().chain(more).collect()
    }
    /// Directories that no way leads to because they are in themselves: their names are dropped.
    pub(super) fn loops(&mut self, found: &mut Mendable) {
        let mut done: HashSet<u64> = HashSet::new();
        let lost = |info: &Info| info.nameless && info.links > 0;
        let starts: Vec<u64> =
            self.inodes.iter().filter(|(_, i)| lost(i) && i.is_dir()).map(|(n, _)| *n).collect();
        for start in starts {
            let (mut at, mut way) = (start, HashSet::new());
            while self.inodes.get(&at).is_some_and(lost) && !done.contains(&at) && way.insert(at) {
                at = self.inodes.get(&at).map_or(at, |info| info.parent);
            }
            if way.contains(&at) {
                self.problem(BlockNo(at), "directory that contains itself, and cannot be reached");
                found.entries.extend(self.names_of(at));
            }
            done.extend(way);
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
                    if let Item::Node(node) = item {
                        found.cuts.push(node.cut());
                        found.cuts.extend(node.narrows());
                    }
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
    /// A part of an inode is nonsense: `cut` takes it off.
    fn bad(&mut self, block: u64, text: &str, cut: Cut, found: &mut Mendable) {
        self.problem(BlockNo(block), text);
        self.spoil(cut.ino.get(), found);
        found.cuts.push(cut);
    }

    fn dinode(&mut self, ino: u64, body: &[u8], queue: &mut Queue, found: &mut Mendable) {
        let Ok((raw, _)) = RawDinode::read_from_prefix(body) else { return };
        let slot = self.volume.geo.slot_blocks();
        let is_dir = raw.mode.get() >> 12 & 15 == 4;
        let what = if is_dir { What::Directory } else { What::Extents };
        let height = raw.tree_height.get();
        let capacity = raw.tail_capacity(body.len());
        if !layout_fits(&raw, capacity) || height > HEIGHT_MAX {
            // As if it were unreadable.
            self.problem(BlockNo(ino), "layout of the dinode");
            return;
        }
        if !self.mark(ino, ino, slot, BlockState::MetaUsed, found) {
            return;
        }
        self.inodes.entry(ino).or_default().load(&raw);
        self.report.inodes += 1;
        self.report.directories += u64::from(is_dir);
        let place =
            Node { block: ino, parent: ino, owner: ino, what, level: height, low: 0, high: None };
        let area = place::inline(&raw, body).and_then(|from| body.get(from..));
        if !area.is_some_and(|area| self.attributes(place, area, queue, found)) {
            let cut = Cut { ino: InodeNo(ino), block: BlockNo(ino), what: Part::InlineAttributes };
            self.bad(ino, "attributes in the dinode", cut, found);
        }
        if raw.xattr_block.get() != 0 {
            let block = raw.xattr_block.get();
            let node = Node { block, what: What::Attributes, level: 0, ..place };
            self.follow(node, queue, found);
        }
        let tail = body.get(RawDinode::TAIL_AT..).and_then(|t| t.get(..capacity)).unwrap_or(&[]);
        let count = usize::from(raw.tail_count.get());
        if !matches!(Layout::from_u16(raw.layout.get()), Some(Layout::None | Layout::Stuffed)) {
            self.contents(place, tail, count, queue, found);
        }
    }
    fn node(&mut self, node: Node, body: &[u8], queue: &mut Queue, found: &mut Mendable) {
        match node.what {
            What::Attributes => return self.attribute_block(node, body, queue, found),
            What::Value { .. } => {
                let right = place::part(body).is_some_and(|(part, bytes)| {
                    u64::from(part) == node.low && Some(bytes.len() as u64) == node.high
                });
                if !right {
                    found.cuts.extend(node.narrows());
                    self.bad(node.block, "part of an attribute's value", node.cut(), found);
                }
                return;
            }
            What::Extents | What::Directory => {}
        }
        let Ok((head, rest)) = RawNode::read_from_prefix(body) else { return };
        if head.level.get() != node.level {
            self.bad(node.block, "level of a tree node", node.cut(), found);
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
        } else {
            found.cuts.push(node.cut());
            found.cuts.extend(node.narrows());
        }
    }
    /// One of an inode's attribute blocks.
    fn attribute_block(
        &mut self,
        node: Node,
        body: &[u8],
        queue: &mut Queue,
        found: &mut Mendable,
    ) {
        let page = place::page(body);
        if !page.is_some_and(|(area, _)| self.attributes(node, area, queue, found)) {
            found.cuts.extend(node.narrows());
            self.bad(node.block, "attributes", node.cut(), found);
            return;
        }
        if let Some(next) = page.and_then(|(_, next)| next) {
            let next = Node { block: next.get(), parent: node.block, ..node };
            self.follow(next, queue, found);
        }
    }
    /// Attributes in a dinode or an attribute block: whether they are sound, each for itself. Queues the
    /// blocks of their values if they are.
    fn attributes(
        &mut self,
        at: Node,
        area: &[u8],
        queue: &mut Queue,
        found: &mut Mendable,
    ) -> bool {
        let body_len = self.volume.geo.body_len();
        let Ok(all) = pack::decode(area, body_len) else { return false };
        let sound = |a: &Attribute| match &a.value {
            Value::Short(value) => is_sound(&a.name, value),
            Value::Long { .. } => true,
        };
        if !all.iter().all(sound) {
            return false;
        }
        for attribute in &all {
            let full = RawXattrValue::capacity(body_len);
            let acl = is_access_list(&attribute.name);
            let mut left = attribute.value.len();
            for (low, block) in (0..).zip(attribute.value.blocks()) {
                let (high, what) = (Some(left.min(full) as u64), What::Value { acl });
                left = left.saturating_sub(full);
                let block = block.get();
                let node = Node { block, parent: at.block, what, level: 0, low, high, ..at };
                self.follow(node, queue, found);
            }
        }
        true
    }
    /// The contents of a tail or a tree node.
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
            self.bad(node.block, "count of a tree node", node.cut_behind(0), found);
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
                self.bad(node.block, "order of index entries", node.cut_behind(i), found);
                return;
            }
            let block = entry.child.get();
            let level = node.level - 1;
            let child = Node { block, parent: node.block, level, low, high, ..node };
            self.follow(child, queue, found);
        }
    }
    fn extents(&mut self, node: Node, bytes: &[u8], count: usize, found: &mut Mendable) {
        let Some(extents) = table::<RawExtent>(bytes, count) else {
            self.bad(node.block, "count of extents", node.cut_behind(0), found);
            return;
        };
        let mut low = node.low;
        for (i, e) in extents.iter().enumerate() {
            let (logical, len) = (e.logical.get(), u64::from(e.len.get()));
            let end = logical.checked_add(len).filter(|&end| node.high.is_none_or(|h| end <= h));
            let known = e.flags.get() & !(RawExtent::UNWRITTEN | RawExtent::SHARED) == 0;
            let Some(end) = end.filter(|_| len > 0 && logical >= low && known) else {
                self.bad(node.block, "order of extents", node.cut_behind(i), found);
                return;
            };
            low = end;
            if let Some(info) = self.inodes.get_mut(&node.owner) {
                info.blocks += len;
            }
            if self.mark(node.owner, e.physical.get(), len, BlockState::Data, found) {
                self.report.data_blocks += len;
            } else {
                let (ino, block) = (InodeNo(node.owner), BlockNo(node.block));
                found.cuts.push(Cut { ino, block, what: Part::Extent(logical) });
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
        for (i, entry) in page::entries(bytes, count, bounds).enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(what) => {
                    self.bad(node.block, what, node.cut_behind(i), found);
                    return;
                }
            };
            let hash = dir::hash(seed, entry.name);
            let fits = dir::check_name(entry.name).is_ok()
                && entry.cookie >= hash
                && entry.cookie - hash < dir::WINDOW;
            let place = Name {
                dir: InodeNo(node.owner),
                block: BlockNo(node.block),
                cookie: entry.cookie,
                to: entry.ino.get(),
                kind: entry.kind,
            };
            if !fits || !names.insert(entry.name.to_vec()) {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                let text = format!("directory {}: entry {name:?} is not one", node.owner);
                self.problem(place.block, text);
                found.entries.push(place);
            }
            self.entry(place, queue, found);
        }
    }
    fn entry(&mut self, place: Name, queue: &mut Queue, found: &mut Mendable) {
        let (dir, ino, kind) = (place.dir.get(), place.to, place.kind);
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
        if known.from.is_none() {
            known.from = Some(place);
        } else {
            self.more_names.entry(ino).or_default().push(place);
        }
        if new {
            queue.push_back(Item::Dinode(ino));
        }
    }
}

/// Whether a dinode's layout is one that an inode of its type may have.
fn layout_fits(raw: &RawDinode, capacity: usize) -> bool {
    let kind = raw.mode.get() >> 12 & 15;
    match Layout::from_u16(raw.layout.get()) {
        None => false,
        Some(Layout::None) => !matches!(kind, 4 | 8 | 10),
        Some(Layout::Stuffed) => kind != 4 && raw.size.get() <= capacity as u64,
        Some(Layout::Extents) => kind == 8 || kind == 10,
        Some(Layout::DirStuffed) => kind == 4 && raw.tree_height.get() == 0,
        Some(Layout::DirHashed) => kind == 4,
    }
}
