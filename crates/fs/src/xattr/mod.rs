//! Extended attributes: all of an inode's stand together, at the end of its dinode's body while
//! they and the tail fit, else in one attribute block (until the last one goes).
//!
//! Values are opaque here, those of `security.` and `trusted.` too; ACLs are not ([`acl`]).

pub(crate) mod acl;
mod pack;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::{RawExtent, RawIndexEntry};
use braid_format::{BlockNo, InodeNo};

use crate::alloc::Reservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{Locked, now, raw_time};
use crate::meta::Tx;
use acl::Acl;
use pack::Attribute;

/// Longest name.
const NAME_MAX: usize = 255;
/// Largest value that the kernel passes on.
const VALUE_MAX: usize = 65_536;
/// Fail when the attribute is there.
const CREATE: i32 = 1;
/// Fail when it is not.
const REPLACE: i32 = 2;
/// Of an access list: the program may not have the set-group-ID bit stay. Not of setxattr(2).
pub const KILL_GROUP: i32 = 1 << 16;
const S_ISGID: u32 = 0o2_000;
const S_IFLNK: u32 = 0o120_000;
/// What file capabilities are kept in.
const CAPABILITY: &[u8] = b"security.capability";
/// Where attributes begin in an attribute block: after the header and their byte count.
const BLOCK_AT: usize = MetaHeader::LEN + size_of::<u64>();

/// Refuses names outside the namespaces that are kept.
fn check_name(name: &[u8]) -> Result<()> {
    const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::Range);
    }
    let known = SPACES.iter().any(|s| name.len() > s.len() && name.starts_with(s));
    if known || is_acl(name) {
        Ok(())
    } else {
        Err(Error::NotSupported("namespace of an attribute"))
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Whether an attribute's value is one that could have been set.
pub(crate) fn is_sound(name: &[u8], value: &[u8]) -> bool {
    !is_acl(name) || matches!(Acl::decode(value), Ok(Some(_)))
}

fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

/// The attribute block, if the inode has one.
fn block_of(inode: &Locked) -> Option<BlockNo> {
    let block = inode.st().raw.xattr_block.get();
    (block != 0).then_some(BlockNo(block))
}

/// All attributes of a locked inode.
fn load(core: &Core, inode: &Locked) -> Result<Vec<Attribute>> {
    if let Some(block) = block_of(inode) {
        let body = core.meta.read(block, inode.lock_no(), MetaKind::Xattr)?;
        let len = body
            .get(MetaHeader::LEN..BLOCK_AT)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
            .and_then(|len| usize::try_from(len).ok());
        let area = len.and_then(|len| body.get(BLOCK_AT..)?.get(..len));
        return pack::decode(area.ok_or_else(|| bad(block, "length of attributes"))?)
            .map_err(|what| bad(block, what));
    }
    let len = usize::from(inode.st().raw.xattr_len.get());
    if len == 0 {
        return Ok(Vec::new());
    }
    let block = inode.inode.block();
    let body = inode.body(&core.meta)?;
    let start = body.len().checked_sub(len).filter(|&at| at >= RawDinode::TAIL_AT);
    let area = start.and_then(|at| body.get(at..));
    pack::decode(area.ok_or_else(|| bad(block, "length of attributes"))?)
        .map_err(|what| bad(block, what))
}

/// An attribute's value.
///
/// # Errors
/// `NoAttribute`.
pub(crate) fn get(core: &Arc<Core>, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    let inode = core.lock_shared(ino)?;
    if name == acl::ACCESS {
        let mode = inode.st().raw.mode.get();
        let kept = load_acl(core, &inode, name)?.ok_or(Error::NoAttribute)?;
        return Ok(kept.with_mode(mode).encode());
    }
    let found = load(core, &inode)?.into_iter().find(|a| a.name == name);
    found.map(|a| a.value).ok_or(Error::NoAttribute)
}

/// A list of a locked inode, as it was set.
fn load_acl(core: &Core, inode: &Locked, name: &[u8]) -> Result<Option<Acl>> {
    if !has_any(inode) {
        return Ok(None);
    }
    match load(core, inode)?.into_iter().find(|a| a.name == name) {
        None => Ok(None),
        Some(found) => Acl::decode(&found.value).map_err(|what| bad(inode.inode.block(), what)),
    }
}

/// The list that what is made in a locked directory gets.
pub(crate) fn default_acl(core: &Core, dir: &Locked) -> Result<Option<Acl>> {
    load_acl(core, dir, acl::DEFAULT)
}

/// Attributes of a new inode: its access list, and the list that it passes on. They fit in its dinode
/// ([`acl_max`]).
pub(crate) fn of_new(access: Option<&Acl>, default: Option<&Acl>) -> Vec<u8> {
    let named = [(acl::ACCESS, access), (acl::DEFAULT, default)];
    let all: Vec<Attribute> = named
        .into_iter()
        .filter_map(|(name, acl)| Some((name, acl?)))
        .map(|(name, acl)| Attribute { name: name.to_vec(), value: acl.encode() })
        .collect();
    pack::encode(&all)
}

/// Most bytes of a list: two of them fit in a dinode.
fn acl_max(core: &Core) -> usize {
    let room = RawDinode::xattr_inline_max(core.volume.geo.body_len()) / 2;
    room.saturating_sub(pack::len_of(acl::DEFAULT.len(), 0) + 8)
}

/// Sets or, with an empty one, removes a list; the mode follows an access list. `keeps_group`: the
/// program may have the set-group-ID bit stay.
fn set_acl(
    core: &Arc<Core>,
    ino: InodeNo,
    name: &[u8],
    value: &[u8],
    keeps_group: bool,
) -> Result<()> {
    let new = Acl::decode(value).map_err(Error::Invalid)?;
    if value.len() > acl_max(core) {
        return Err(Error::AttributeSpace);
    }
    let inode = core.lock_exclusive(ino)?;
    if inode.file_type() == S_IFLNK || name == acl::DEFAULT && !inode.is_dir() && new.is_some() {
        return Err(Error::NotSupported("an ACL of such an inode"));
    }
    let _changes = core.changes(ino);
    let mut all = load(core, &inode)?;
    let before = all.len();
    all.retain(|a| a.name != name);
    let mut mode = None;
    if let Some(new) = new {
        if name == acl::ACCESS {
            let bits = new.to_mode(inode.st().raw.mode.get());
            mode = Some(if keeps_group { bits } else { bits & !S_ISGID });
        }
        if name == acl::DEFAULT || !new.is_minimal() {
            all.push(Attribute { name: name.to_vec(), value: new.encode() });
        }
    }
    if all.is_empty() && before == 0 {
        return match mode {
            Some(mode) => set_mode(core, &inode, mode),
            None => Ok(()),
        };
    }
    store(core, &inode, &all, mode)
}

/// Sets the mode alone.
fn set_mode(core: &Core, inode: &Locked, mode: u32) -> Result<()> {
    let mut tx = core.meta.begin()?;
    let done = inode.update(&mut tx, |raw| {
        raw.mode = mode.into();
        raw.ctime = raw_time(now());
    });
    drop(tx);
    if let Err(e) = &done {
        core.withdraw(e);
    }
    done
}

/// All names, each followed by a NUL.
pub(crate) fn list(core: &Arc<Core>, ino: InodeNo) -> Result<Vec<u8>> {
    let inode = core.lock_shared(ino)?;
    let mut out = Vec::new();
    for attribute in load(core, &inode)? {
        out.extend_from_slice(&attribute.name);
        out.push(0);
    }
    Ok(out)
}

/// Sets an attribute. `flags`: `XATTR_CREATE` (1), `XATTR_REPLACE` (2).
///
/// # Errors
/// `Exists`, `NoAttribute` as the flags say; `AttributeSpace` when all attributes of the inode
/// together do not fit in a block.
pub(crate) fn set(
    core: &Arc<Core>,
    ino: InodeNo,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Result<()> {
    check_name(name)?;
    if is_acl(name) {
        return set_acl(core, ino, name, value, flags & KILL_GROUP == 0);
    }
    if !matches!(flags, 0 | CREATE | REPLACE) {
        return Err(Error::Invalid("flags of setxattr"));
    }
    if value.len() > VALUE_MAX {
        return Err(Error::Range);
    }
    let inode = core.lock_exclusive(ino)?;
    let mut all = load(core, &inode)?;
    match all.iter_mut().find(|a| a.name == name) {
        Some(_) if flags == CREATE => return Err(Error::Exists),
        None if flags == REPLACE => return Err(Error::NoAttribute),
        Some(there) => there.value = value.to_vec(),
        None => all.push(Attribute { name: name.to_vec(), value: value.to_vec() }),
    }
    store(core, &inode, &all, None)
}

/// Removes an attribute. A list that is not there is removed already.
///
/// # Errors
/// `NoAttribute`.
pub(crate) fn remove(core: &Arc<Core>, ino: InodeNo, name: &[u8]) -> Result<()> {
    check_name(name)?;
    if is_acl(name) {
        return set_acl(core, ino, name, acl::NONE, true);
    }
    let inode = core.lock_exclusive(ino)?;
    let mut all = load(core, &inode)?;
    let before = all.len();
    all.retain(|a| a.name != name);
    if all.len() == before {
        return Err(Error::NoAttribute);
    }
    store(core, &inode, &all, None)
}

/// Takes a file's capabilities away, as every write, truncation and change of owner must. Exclusive
/// lock held, no transaction open.
pub(crate) fn drop_capability(core: &Arc<Core>, inode: &Locked) -> Result<()> {
    if !has_any(inode) {
        return Ok(());
    }
    let mut all = load(core, inode)?;
    let before = all.len();
    all.retain(|a| a.name != CAPABILITY);
    if all.len() == before { Ok(()) } else { store(core, inode, &all, None) }
}

/// Whether the inode's file, run, gives capabilities.
pub(crate) fn has_capability(core: &Core, inode: &Locked) -> Result<bool> {
    Ok(has_any(inode) && load(core, inode)?.iter().any(|a| a.name == CAPABILITY))
}

fn has_any(inode: &Locked) -> bool {
    let st = inode.st();
    st.raw.xattr_len.get() != 0 || st.raw.xattr_block.get() != 0
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
            let mut reader = crate::tree::Reader { meta: &core.meta, inode: &inode.inode };
            crate::dir::tail_used(&mut reader)?
        }
    })
}

/// Where attributes are to stand.
#[derive(Debug, Clone, Copy)]
enum Target {
    Inline,
    /// In the block that is there, or in a new one.
    Block(Option<BlockNo>),
}

/// Writes all attributes back, wherever they fit, and a mode with them.
fn store(core: &Arc<Core>, inode: &Locked, all: &[Attribute], mode: Option<u32>) -> Result<()> {
    // Dirty contents were promised the room they need in the tail: let them have it first.
    if inode.inode.data.is_dirty() {
        crate::data::flush_inode(core, inode)?;
    }
    let body_len = core.volume.geo.body_len();
    let total = pack::total(all);
    let block = block_of(inode);
    let inline = total <= RawDinode::xattr_inline_max(body_len)
        && tail_used(core, inode)? <= body_len - RawDinode::TAIL_AT - total;
    let target = match block {
        Some(_) if all.is_empty() => Target::Inline,
        None if inline => Target::Inline,
        _ if total <= body_len - BLOCK_AT => Target::Block(block),
        _ => return Err(Error::AttributeSpace),
    };
    let new_slot = u64::from(matches!(target, Target::Block(None)));
    let frees = u64::from(matches!(target, Target::Inline) && block.is_some());
    let mut r = core.alloc.reserve(0, new_slot, frees)?;
    let mut tx = core.meta.begin()?;
    if let Some(mode) = mode {
        inode.st_mut().raw.mode = mode.into();
    }
    let done = write(core, (&mut tx, &mut r), inode, &pack::encode(all), target);
    drop(tx);
    core.sealed(done)
}

/// The transaction of [`store`].
fn write(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    inode: &Locked,
    bytes: &[u8],
    target: Target,
) -> Result<()> {
    let lock = inode.lock_no();
    let slot_blocks = core.volume.geo.slot_blocks();
    match target {
        Target::Inline => {
            if let Some(block) = block_of(inode) {
                tx.free(block, lock)?;
                core.alloc.free_slot(tx, r, block, false)?;
                let mut st = inode.st_mut();
                st.raw.xattr_block = 0.into();
                st.raw.blocks = st.raw.blocks.get().saturating_sub(slot_blocks).into();
            }
            set_inline(tx, inode, bytes)
        }
        Target::Block(there) => {
            let fill = |body: &mut [u8]| {
                let Some((head, area)) = body.split_at_mut_checked(BLOCK_AT) else { return };
                if let Some(len) = head.get_mut(MetaHeader::LEN..) {
                    len.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
                }
                if let Some((to, rest)) = area.split_at_mut_checked(bytes.len()) {
                    to.copy_from_slice(bytes);
                    rest.fill(0);
                }
            };
            if let Some(block) = there {
                tx.modify(block, lock, MetaKind::Xattr, fill)?;
                return inode.update(tx, |raw| raw.ctime = raw_time(now()));
            }
            let block = core.alloc.take_slot(tx, r)?;
            tx.create(block, lock, MetaKind::Xattr, fill)?;
            {
                let mut st = inode.st_mut();
                st.raw.xattr_block = block.get().into();
                st.raw.blocks = st.raw.blocks.get().saturating_add(slot_blocks).into();
            }
            set_inline(tx, inode, &[])
        }
    }
}

/// Puts `bytes` at the end of the dinode's body in place of the inline attributes there.
fn set_inline(tx: &mut Tx<'_>, inode: &Locked, bytes: &[u8]) -> Result<()> {
    let old = {
        let mut st = inode.st_mut();
        let old = usize::from(st.raw.xattr_len.get());
        st.raw.xattr_len = u16::try_from(bytes.len()).unwrap_or(0).into();
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
