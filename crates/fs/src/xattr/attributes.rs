//! Attributes and access control lists are read, set and removed.

use std::sync::Arc;

use braid_format::dinode::RawDinode;
use braid_format::{BlockNo, InodeNo, LockNo};

use super::acl::{self, Acl};
use super::pack::{self, Attribute, NAME_MAX, VALUE_MAX, Value};
use super::place::{self, bad, has_any};
use crate::alloc::Reservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{Locked, now, raw_time};
use crate::meta::Tx;
use crate::mode::{S_IFLNK, S_ISGID};

/// Longest access control list: the kernel passes no more than a page of 4 KiB between itself and a
/// FUSE file system, and refuses to check permissions against a longer one.
const ACL_MAX: usize = 4096;

/// Fail when the attribute is there.
pub(super) const CREATE: i32 = 1;

/// Fail when it is not.
pub(super) const REPLACE: i32 = 2;

/// For an access list: the program is not allowed to keep the set-group-ID bit. Not of setxattr(2).
pub const KILL_GROUP: i32 = 1 << 16;

/// What file capabilities are kept in.
const CAPABILITY: &[u8] = b"security.capability";

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

/// Whether an attribute is a list that permissions are checked against.
pub(crate) fn is_access_list(name: &[u8]) -> bool {
    name == acl::ACCESS
}

/// Whether an attribute's value is one that could have been set.
pub(crate) fn is_sound(name: &[u8], value: &[u8]) -> bool {
    !is_acl(name) || matches!(Acl::decode(value), Ok(Some(_)))
}

/// The value of one of a locked inode's attributes.
fn find(core: &Core, inode: &Locked, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if !has_any(inode) {
        return Ok(None);
    }
    match place::find(core, inode, name)? {
        Some(value) => place::read(core, inode, value).map(Some),
        None => Ok(None),
    }
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
    find(core, &inode, name)?.ok_or(Error::NoAttribute)
}

/// A list of a locked inode, as it was set.
fn load_acl(core: &Core, inode: &Locked, name: &[u8]) -> Result<Option<Acl>> {
    match find(core, inode, name)? {
        None => Ok(None),
        Some(value) => Acl::decode(&value).map_err(|what| bad(inode.inode.block(), what)),
    }
}

/// The list that what is made in a locked directory gets.
pub(crate) fn default_acl(core: &Core, dir: &Locked) -> Result<Option<Acl>> {
    load_acl(core, dir, acl::DEFAULT)
}

/// Attributes of a new inode: its access list, and the list that it passes on.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    lists: Vec<Attribute>,
    /// They do not fit in the dinode together: each gets blocks of its own.
    long: bool,
}

impl Inherited {
    /// Of an inode with these lists.
    pub fn of(core: &Core, access: Option<&Acl>, default: Option<&Acl>) -> Self {
        let named = [(acl::ACCESS, access), (acl::DEFAULT, default)];
        let lists: Vec<Attribute> = named
            .into_iter()
            .filter_map(|(name, acl)| Some((name, acl?)))
            .map(|(name, acl)| Attribute { name: name.to_vec(), value: Value::Short(acl.encode()) })
            .collect();
        let long = pack::total(&lists) > RawDinode::xattr_inline_max(core.volume.geo.body_len());
        Self { lists, long }
    }
    /// Metadata slots that they take.
    pub fn slots(&self, core: &Core) -> u64 {
        let body_len = core.volume.geo.body_len();
        let blocks = |a: &Attribute| pack::blocks_for(a.value.len(), body_len) as u64;
        if self.long { self.lists.iter().map(blocks).sum() } else { 0 }
    }
    /// Writes what does not fit in the dinode; the bytes for the end of the dinode's body. `lock` is the
    /// new inode's.
    pub fn write(
        &self,
        core: &Core,
        (tx, r): (&mut Tx<'_>, &mut Reservation),
        lock: LockNo,
    ) -> Result<Vec<u8>> {
        let mut all = self.lists.clone();
        for attribute in all.iter_mut().filter(|_| self.long) {
            if let Value::Short(bytes) = &attribute.value {
                let blocks = place::write_value(core, (&mut *tx, &mut *r), lock, (bytes, &[]))?;
                attribute.value = Value::Long { len: bytes.len(), blocks };
            }
        }
        pack::encode(&all).map_err(|what| bad(BlockNo(lock.get()), what))
    }
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
    if value.len() > ACL_MAX {
        return Err(Error::AttributeSpace);
    }
    let inode = core.lock_exclusive(ino)?;
    if inode.file_type() == S_IFLNK || name == acl::DEFAULT && !inode.is_dir() && new.is_some() {
        return Err(Error::NotSupported("an ACL of such an inode"));
    }
    let _changes = core.changes(ino);
    let (mut mode, mut kept) = (None, None);
    if let Some(new) = new {
        if name == acl::ACCESS {
            let bits = new.to_mode(inode.st().raw.mode.get());
            mode = Some(if keeps_group { bits } else { bits & !S_ISGID });
        }
        if name == acl::DEFAULT || !new.is_minimal() {
            kept = Some(new.encode());
        }
    }
    if kept.is_none() && place::find(core, &inode, name)?.is_none() {
        return match mode {
            Some(mode) => set_mode(core, &inode, mode),
            None => Ok(()),
        };
    }
    place::put(core, &inode, (name, kept.as_deref()), mode)
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
    place::names(core, &inode, &mut |name| {
        out.extend_from_slice(name);
        out.push(0);
    })?;
    Ok(out)
}

/// Sets an attribute. `flags`: `XATTR_CREATE` (1), `XATTR_REPLACE` (2).
///
/// # Errors
/// `Exists`, `NoAttribute` as the flags say; `AttributeSpace` when the inode's names would be more than
/// [`LIST_MAX`], or its values more than [`VALUES_MAX`].
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
    if flags != 0 {
        match place::find(core, &inode, name)? {
            Some(_) if flags == CREATE => return Err(Error::Exists),
            None if flags == REPLACE => return Err(Error::NoAttribute),
            _ => {}
        }
    }
    place::put(core, &inode, (name, Some(value)), None)
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
    if place::find(core, &inode, name)?.is_none() {
        return Err(Error::NoAttribute);
    }
    place::put(core, &inode, (name, None), None)
}

/// Takes a file's capabilities away, as every write, truncation and change of owner must. Exclusive
/// lock held, no transaction open.
pub(crate) fn drop_capability(core: &Arc<Core>, inode: &Locked) -> Result<()> {
    if !has_capability(core, inode)? {
        return Ok(());
    }
    place::put(core, inode, (CAPABILITY, None), None)
}

/// Whether the inode's file, run, gives capabilities.
pub(crate) fn has_capability(core: &Core, inode: &Locked) -> Result<bool> {
    Ok(has_any(inode) && place::find(core, inode, CAPABILITY)?.is_some())
}
