//! Where an inode's attributes stand, and how they are changed.
//!
//! ```text
//!  dinode: | RawDinode | tail ... | attributes |        while they fit, and no block was needed yet
//!  dinode: | RawDinode, xattr_block | tail ... |        then
//!                         |
//!                         +-> | attributes ... | -> | attributes ... |        kind Xattr
//!                                     |
//!                    long value:      +-> | part 0 | | part 1 | ...           kind XattrValue
//! ```
//! All of these blocks are metadata under the inode's lock, so a change of any of them is one
//! transaction: a crash keeps a value as it was or as it became, and nothing has to be flushed. A value
//! that is replaced is written over its own blocks. An attribute never crosses from one block into the
//! next: a change touches the attribute's block, its value, and at most one more block.

use std::sync::Arc;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_format::tree::{RawExtent, RawIndexEntry};
use braid_format::xattr::{RawXattrBlock, RawXattrValue};
use braid_format::{BlockNo, LockNo};
use zerocopy::FromBytes;

use super::pack::{self, Attribute, Record, VALUE_MAX, Value};
use crate::alloc::Reservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{Locked, now, raw_time};
use crate::meta::Tx;

/// Bytes of an inode's names, each with a NUL: what one answer to listxattr(2) may have
/// (`XATTR_LIST_MAX`).
const LIST_MAX: usize = 65_536;
/// Bytes of an inode's values together: 16 of the largest.
const VALUES_MAX: usize = 16 * VALUE_MAX;
/// Attribute blocks of an inode, at most. A new one is taken only when an attribute fits in none that is
/// there, so each is half full at least at that moment, of what [`LIST_MAX`] and [`VALUES_MAX`] allow.
const CHAIN_MAX: usize = 1024;
/// Blocks that one transaction of [`remove_some`] frees, or one more value's.
const REMOVED_AT_ONCE: usize = 16;
/// Blocks of attributes that are freed in one transaction with the dinode, at most.
pub(crate) const FREED_WITH_DINODE: usize = 8;

/// Where attributes stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    Dinode,
    Block(BlockNo),
    /// A block that is still to be taken.
    New,
}

/// The attributes of one place.
#[derive(Debug)]
struct Page {
    home: Home,
    all: Vec<Attribute>,
    /// The next block.
    next: Option<BlockNo>,
    changed: bool,
}

pub(super) fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

/// Whether the inode has attributes.
pub(super) fn has_any(inode: &Locked) -> bool {
    let st = inode.st();
    st.raw.xattr_len.get() != 0 || st.raw.xattr_block.get() != 0
}

/// The attributes in an attribute block's body, and the next block; `None`: their length is wrong.
pub(crate) fn page(body: &[u8]) -> Option<(&[u8], Option<BlockNo>)> {
    let (head, rest) = RawXattrBlock::ref_from_prefix(body).ok()?;
    let area = rest.get(..usize::try_from(head.used.get()).ok()?)?;
    let next = head.next.get();
    Some((area, (next != 0).then_some(BlockNo(next))))
}

/// The attributes at the end of a dinode's body; `None`: their length is wrong.
pub(crate) fn inline(raw: &RawDinode, body: &[u8]) -> Option<usize> {
    let len = usize::from(raw.xattr_len.get());
    body.len().checked_sub(len).filter(|&at| at >= RawDinode::TAIL_AT)
}

/// The part of a value in a value block's body: which one it is, and its bytes.
pub(crate) fn part(body: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = RawXattrValue::ref_from_prefix(body).ok()?;
    Some((head.part.get(), rest.get(..usize::try_from(head.len.get()).ok()?)?))
}

/// The first attribute block, if the inode has one.
fn block_of(inode: &Locked) -> Option<BlockNo> {
    let block = inode.st().raw.xattr_block.get();
    (block != 0).then_some(BlockNo(block))
}

/// Is shown a place, the bytes of its attributes, and the next block; `true`: has seen enough.
type Seen<'a> = dyn FnMut(Home, &[u8], Option<BlockNo>) -> Result<bool> + 'a;

/// Shows each place's attributes, until `f` has seen enough (`true`).
fn areas(core: &Core, inode: &Locked, f: &mut Seen<'_>) -> Result<()> {
    let mut at = block_of(inode);
    if at.is_none() {
        let block = inode.inode.block();
        let body = inode.body(&core.meta)?;
        let from = inline(&inode.st().raw, &body);
        let area = from.and_then(|from| body.get(from..));
        let area = area.ok_or_else(|| bad(block, "length of attributes"))?;
        return f(Home::Dinode, area, None).map(|_| ());
    }
    for _ in 0..CHAIN_MAX {
        let Some(block) = at else { return Ok(()) };
        let body = core.meta.read(block, inode.lock_no(), MetaKind::Xattr)?;
        let (area, next) = page(&body).ok_or_else(|| bad(block, "length of attributes"))?;
        if f(Home::Block(block), area, next)? {
            return Ok(());
        }
        at = next;
    }
    let block = at.unwrap_or(inode.inode.block());
    Err(bad(block, "more attribute blocks than an inode may have"))
}

/// Shows each attribute, until `f` returns something.
fn each<T>(
    core: &Core,
    inode: &Locked,
    f: &mut dyn FnMut(Record<'_>) -> Option<T>,
) -> Result<Option<T>> {
    let body_len = core.volume.geo.body_len();
    let mut found = None;
    areas(core, inode, &mut |home, area, _| {
        let at = match home {
            Home::Block(block) => block,
            Home::Dinode | Home::New => inode.inode.block(),
        };
        for record in pack::records(area, body_len) {
            found = f(record.map_err(|what| bad(at, what))?);
            if found.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })?;
    Ok(found)
}

/// An attribute's value, or where that is.
pub(super) fn find(core: &Core, inode: &Locked, name: &[u8]) -> Result<Option<Value>> {
    each(core, inode, &mut |record| (record.name == name).then(|| record.value()))
}

/// Shows each name.
pub(super) fn names(core: &Core, inode: &Locked, f: &mut dyn FnMut(&[u8])) -> Result<()> {
    let none: Option<()> = each(core, inode, &mut |record| {
        f(record.name);
        None
    })?;
    debug_assert!(none.is_none());
    Ok(())
}

/// The bytes of a value that [`find`] found.
pub(super) fn read(core: &Core, inode: &Locked, value: Value) -> Result<Vec<u8>> {
    let (len, blocks) = match value {
        Value::Short(bytes) => return Ok(bytes),
        Value::Long { len, blocks } => (len, blocks),
    };
    let mut out = Vec::with_capacity(len);
    for (n, &block) in (0..).zip(&blocks) {
        let body = core.meta.read(block, inode.lock_no(), MetaKind::XattrValue)?;
        let (found, bytes) = part(&body).ok_or_else(|| bad(block, "length of a value"))?;
        if found != n {
            return Err(bad(block, "another part of a value"));
        }
        out.extend_from_slice(bytes);
    }
    if out.len() != len {
        return Err(bad(inode.inode.block(), "length of a value"));
    }
    Ok(out)
}

/// All attributes. There is always a page; it is the dinode's, or none is.
fn load(core: &Core, inode: &Locked) -> Result<Vec<Page>> {
    let body_len = core.volume.geo.body_len();
    let mut pages = Vec::new();
    areas(core, inode, &mut |home, area, next| {
        let at = if let Home::Block(block) = home { block } else { inode.inode.block() };
        let all = pack::decode(area, body_len).map_err(|what| bad(at, what))?;
        pages.push(Page { home, all, next, changed: false });
        Ok(false)
    })?;
    Ok(pages)
}

/// All blocks of an inode's attributes, each of them read: a transaction that frees them meets no
/// damage.
pub(crate) fn held(core: &Core, inode: &Locked) -> Result<Vec<BlockNo>> {
    let mut held = Vec::new();
    if !has_any(inode) {
        return Ok(held);
    }
    for page in load(core, inode)? {
        for block in page.all.iter().flat_map(|a| a.value.blocks()) {
            core.meta.read(*block, inode.lock_no(), MetaKind::XattrValue)?;
            held.push(*block);
        }
        if let Home::Block(block) = page.home {
            held.push(block);
        }
    }
    Ok(held)
}

/// Bytes of the tail that are in use, or that dirty contents may come to use.
fn tail_used(core: &Core, inode: &Locked) -> Result<usize> {
    let layout = inode.layout()?;
    let (size, disk_size, height, count) = {
        let st = inode.st();
        let raw = &st.raw;
        (raw.size.get(), st.disk_size, raw.tree_height.get(), usize::from(raw.tail_count.get()))
    };
    Ok(match layout {
        Layout::None => 0,
        Layout::Stuffed => usize::try_from(size.max(disk_size)).unwrap_or(usize::MAX),
        Layout::Extents | Layout::DirHashed | Layout::DirStuffed if height > 0 => {
            count * size_of::<RawIndexEntry>()
        }
        Layout::Extents => count * size_of::<RawExtent>(),
        Layout::DirStuffed | Layout::DirHashed => {
            let mut reader = crate::inode_tree::Reader { meta: &core.meta, inode: &inode.inode };
            crate::dir::tail_used(&mut reader)?
        }
    })
}

/// What one transaction does.
struct Change<'a> {
    pages: Vec<Page>,
    /// A long value to be written for the attribute of this name.
    write: Option<(&'a [u8], &'a [u8])>,
    /// Value blocks that it is written over.
    kept: Vec<BlockNo>,
    /// Value blocks that it does not need.
    freed: Vec<BlockNo>,
    /// Attribute blocks with nothing in them any more.
    emptied: Vec<BlockNo>,
}

/// Sets an attribute, or removes it (`None`), and the mode with it. Exclusive lock held, no transaction
/// open.
///
/// # Errors
/// `AttributeSpace`; `NoSpace`.
pub(super) fn put(
    core: &Arc<Core>,
    inode: &Locked,
    (name, value): (&[u8], Option<&[u8]>),
    mode: Option<u32>,
) -> Result<()> {
    core.kernel.changed_as_asked(inode.ino());
    // Dirty contents have reserved the room that they need in the tail: let them have it first.
    if inode.inode.data.is_dirty() {
        crate::writeback::flush_inode(core, inode)?;
    }
    let mut pages = load(core, inode)?;
    let mut old = None;
    for (n, page) in pages.iter_mut().enumerate() {
        if let Some(at) = page.all.iter().position(|a| a.name == name) {
            page.changed = true;
            old = Some((n, page.all.remove(at).value));
            break;
        }
    }
    let (mut freed, page) = match old {
        Some((n, value)) => (value.blocks().to_vec(), n),
        None => (Vec::new(), 0),
    };
    let (mut write, mut kept) = (None, Vec::new());
    if let Some(value) = value {
        check_room(&pages, name, value)?;
        let body_len = core.volume.geo.body_len();
        let mut new = Attribute { name: name.to_vec(), value: Value::Short(value.to_vec()) };
        if new.room() > RawDinode::xattr_inline_max(body_len) {
            let count = pack::blocks_for(value.len(), body_len);
            kept = freed.drain(..count.min(freed.len())).collect();
            // Its place is known once the blocks are taken.
            new.value = Value::Long { len: value.len(), blocks: vec![BlockNo(0); count] };
            write = Some((name, value));
        }
        pack::encode(std::slice::from_ref(&new)).map_err(Error::Invalid)?;
        settle(core, inode, (&mut pages, page), new)?;
    }
    apply(core, inode, Change { pages, write, kept, freed, emptied: Vec::new() }, mode)
}

/// Names and values stay within their bounds with one more attribute.
fn check_room(pages: &[Page], name: &[u8], value: &[u8]) -> Result<()> {
    let all = || pages.iter().flat_map(|page| &page.all);
    let names: usize = all().map(|a| a.name.len() + 1).sum();
    let values: usize = all().map(|a| a.value.len()).sum();
    let fits = names + name.len() < LIST_MAX && values + value.len() <= VALUES_MAX;
    if fits { Ok(()) } else { Err(Error::AttributeSpace) }
}

/// Finds room for an attribute: in page `first`, in any other, or in a new one.
fn settle(
    core: &Core,
    inode: &Locked,
    (pages, first): (&mut Vec<Page>, usize),
    new: Attribute,
) -> Result<()> {
    let body_len = core.volume.geo.body_len();
    let capacity = body_len - size_of::<RawXattrBlock>();
    if let [page] = &mut pages[..]
        && page.home == Home::Dinode
    {
        page.all.push(new);
        page.changed = true;
        let total = pack::total(&page.all);
        let fits = total <= RawDinode::xattr_inline_max(body_len)
            && tail_used(core, inode)? <= body_len - RawDinode::TAIL_AT - total;
        if !fits {
            // What was in the dinode and one attribute more are less than a block.
            page.home = Home::New;
        }
        return if total <= capacity { Ok(()) } else { Err(Error::AttributeSpace) };
    }
    let room = new.room();
    let fits = |page: &Page| pack::total(&page.all) + room <= capacity;
    let at =
        if pages.get(first).is_some_and(fits) { Some(first) } else { pages.iter().position(fits) };
    if let Some(page) = at.and_then(|at| pages.get_mut(at)) {
        page.all.push(new);
        page.changed = true;
    } else if pages.len() < CHAIN_MAX {
        pages.insert(0, Page { home: Home::New, all: vec![new], next: None, changed: true });
    } else {
        return Err(Error::AttributeSpace);
    }
    Ok(())
}

/// Takes some of an unused inode's attributes away, so that the rest can be freed in one transaction at
/// last. Exclusive lock held, no transaction open.
pub(crate) fn remove_some(core: &Arc<Core>, inode: &Locked) -> Result<()> {
    let mut pages = load(core, inode)?;
    let mut freed = Vec::new();
    if let Some(page) = pages.last_mut() {
        page.changed = true;
        while freed.len() < REMOVED_AT_ONCE
            && let Some(attribute) = page.all.pop()
        {
            freed.extend_from_slice(attribute.value.blocks());
        }
    }
    let change = Change { pages, write: None, kept: Vec::new(), freed, emptied: Vec::new() };
    apply(core, inode, change, None)
}

/// Carries a change out, in one transaction.
fn apply(
    core: &Arc<Core>,
    inode: &Locked,
    mut change: Change<'_>,
    mode: Option<u32>,
) -> Result<()> {
    // Damage is met before anything is changed.
    for block in change.kept.iter().chain(&change.freed) {
        core.meta.read(*block, inode.lock_no(), MetaKind::XattrValue)?;
    }
    for page in change.pages.extract_if(.., |page| page.all.is_empty()) {
        if let Home::Block(block) = page.home {
            change.emptied.push(block);
        }
    }
    let mut next = None;
    for page in change.pages.iter_mut().rev() {
        page.changed |= page.next != next;
        page.next = next;
        if let Home::Block(block) = page.home {
            next = Some(block);
        }
    }
    let parts = change
        .write
        .map_or(0, |(_, value)| pack::blocks_for(value.len(), core.volume.geo.body_len()));
    let new_pages = change.pages.iter().filter(|page| page.home == Home::New).count();
    let slots = (parts - change.kept.len() + new_pages) as u64;
    let frees = (change.freed.len() + change.emptied.len()) as u64;
    let mut r = core.alloc.reserve(0, slots, frees)?;
    let mut tx = core.meta.begin()?;
    if let Some(mode) = mode {
        inode.st_mut().raw.mode = mode.into();
    }
    let done = write(core, (&mut tx, &mut r), inode, change);
    let slot_blocks = core.volume.geo.slot_blocks();
    let done = done.and_then(|(first, inline)| {
        {
            let mut st = inode.st_mut();
            let blocks = st.raw.blocks.get().saturating_add(slots * slot_blocks);
            st.raw.blocks = blocks.saturating_sub(frees * slot_blocks).into();
            st.raw.xattr_block = first.map_or(0, BlockNo::get).into();
        }
        set_inline(&mut tx, inode, &inline)
    });
    drop(tx);
    core.sealed(done)
}

/// Writes a long value: over `kept`, and into blocks taken for the rest. All its blocks.
pub(super) fn write_value(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    lock: LockNo,
    (value, kept): (&[u8], &[BlockNo]),
) -> Result<Vec<BlockNo>> {
    let capacity = RawXattrValue::capacity(core.volume.geo.body_len());
    let mut blocks = Vec::new();
    for (n, bytes) in (0_u32..).zip(value.chunks(capacity)) {
        let fill = |body: &mut [u8]| {
            let Ok((head, rest)) = RawXattrValue::mut_from_prefix(body) else { return };
            head.part = n.into();
            head.len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).into();
            if let Some((to, rest)) = rest.split_at_mut_checked(bytes.len()) {
                to.copy_from_slice(bytes);
                rest.fill(0);
            }
        };
        if let Some(&block) = kept.get(blocks.len()) {
            tx.modify(block, lock, MetaKind::XattrValue, fill)?;
            blocks.push(block);
        } else {
            let block = core.alloc.take_slot(tx, r)?;
            tx.create(block, lock, MetaKind::XattrValue, fill)?;
            blocks.push(block);
        }
    }
    Ok(blocks)
}

/// The transaction of [`apply`], without the dinode: the first attribute block, and what goes into
/// the dinode.
fn write(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    inode: &Locked,
    mut change: Change<'_>,
) -> Result<(Option<BlockNo>, Vec<u8>)> {
    let lock = inode.lock_no();
    if let Some((name, value)) = change.write {
        let taken = write_value(core, (&mut *tx, &mut *r), lock, (value, &change.kept))?;
        let mut all = change.pages.iter_mut().flat_map(|page| &mut page.all);
        if let Some(attribute) = all.find(|a| a.name == name) {
            attribute.value = Value::Long { len: value.len(), blocks: taken };
        }
    }
    for &block in change.freed.iter().chain(&change.emptied) {
        tx.free(block, lock)?;
        core.alloc.free_slot(tx, r, block, false)?;
    }
    let (mut first, mut inline) = (None, Vec::new());
    for page in change.pages.iter().rev() {
        let encoded = || pack::encode(&page.all).map_err(|what| bad(inode.inode.block(), what));
        let fill = |bytes: Vec<u8>| {
            move |body: &mut [u8]| {
                let Ok((head, rest)) = RawXattrBlock::mut_from_prefix(body) else { return };
                head.used = u32::try_from(bytes.len()).unwrap_or(u32::MAX).into();
                head.next = page.next.map_or(0, BlockNo::get).into();
                if let Some((to, rest)) = rest.split_at_mut_checked(bytes.len()) {
                    to.copy_from_slice(&bytes);
                    rest.fill(0);
                }
            }
        };
        match page.home {
            Home::Dinode => inline = encoded()?,
            Home::Block(block) => {
                if page.changed {
                    tx.modify(block, lock, MetaKind::Xattr, fill(encoded()?))?;
                }
                first = Some(block);
            }
            Home::New => {
                let block = core.alloc.take_slot(tx, r)?;
                tx.create(block, lock, MetaKind::Xattr, fill(encoded()?))?;
                first = Some(block);
            }
        }
    }
    Ok((first, inline))
}

/// Puts `bytes` at the end of the dinode's body in place of the attributes there.
fn set_inline(tx: &mut Tx<'_>, inode: &Locked, bytes: &[u8]) -> Result<()> {
    let len = u16::try_from(bytes.len())
        .map_err(|_| bad(inode.inode.block(), "attributes longer than a dinode can say"))?;
    let old = {
        let mut st = inode.st_mut();
        let old = usize::from(st.raw.xattr_len.get());
        st.raw.xattr_len = len.into();
        st.raw.ctime = raw_time(now());
        old
    };
    inode.modify_body(tx, |body| {
        let end = body.len();
        if let Some(area) = body.get_mut(end.saturating_sub(old)..) {
            area.fill(0);
        }
        if let Some(area) = body.get_mut(end.saturating_sub(bytes.len())..) {
            area.copy_from_slice(bytes);
        }
    })
}
