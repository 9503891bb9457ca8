//! Making inodes and links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::RawExtent;
use braid_format::{BlockNo, Bytes, InodeNo, LockNo};
use braid_lock::{Guard, Mode};
use braid_pool::device::AlignedBuf;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    LINKS_MAX, RETRIES, TARGET_MAX, add_entry, hand_out, kind_of, lock_named, mutable, probe,
    sealed, touch, vacant, writable,
};
use crate::alloc::{Reservation, Run};
use crate::attr::{Attr, Cred};
use crate::core::Core;
use crate::dir::{self, Place, Probe};
use crate::error::{Error, Result};
use crate::inode::{InodeState, Locked, now, raw_time, write_fixed};
use crate::meta::Tx;
use crate::mode::{
    S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, unprivileged,
};
use crate::orphan;
use crate::xattr::Inherited;

/// An inode to be made.
#[derive(Debug, Clone, Copy)]
struct New<'a> {
    /// Type and permissions, before the umask.
    mode: u32,
    rdev: u64,
    /// Of a symbolic link.
    target: &'a [u8],
    cred: &'a Cred,
}

/// Makes a regular file, FIFO, socket or device.
pub(crate) fn mknod(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    rdev: u64,
    cred: &Cred,
) -> Result<Attr> {
    let mode = if mode & S_IFMT == 0 { mode | S_IFREG } else { mode };
    if !matches!(mode & S_IFMT, S_IFIFO | S_IFCHR | S_IFBLK | S_IFREG | S_IFSOCK) {
        return Err(Error::Invalid("type of a new inode"));
    }
    named(core, dir, name, &New { mode, rdev, target: &[], cred }).map(|l| hand_out(core, &l))
}

/// Makes a directory.
pub(crate) fn mkdir(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    cred: &Cred,
) -> Result<Attr> {
    let mode = S_IFDIR | mode & !S_IFMT;
    named(core, dir, name, &New { mode, rdev: 0, target: &[], cred }).map(|l| hand_out(core, &l))
}

/// Makes a symbolic link to `target`.
///
/// # Errors
/// `NameTooLong` for a target of more than 4,095 bytes.
pub(crate) fn symlink(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    target: &[u8],
    cred: &Cred,
) -> Result<Attr> {
    if target.len() > TARGET_MAX {
        return Err(Error::NameTooLong);
    }
    if target.is_empty() {
        return Err(Error::NotFound);
    }
    let mode = S_IFLNK | 0o777;
    let cred = Cred { umask: 0, ..*cred };
    named(core, dir, name, &New { mode, rdev: 0, target, cred: &cred }).map(|l| hand_out(core, &l))
}

/// Makes a regular file, or finds the one there (unless `exclusive`). Returned still locked
/// exclusive, so that the caller can open it before anyone can delete it.
///
/// # Errors
/// `Stale` when another node has just made something there that only an ordinary open can judge:
/// not a regular file, or one that `cred` may not use for certain. The kernel then looks again.
pub(crate) fn create(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    cred: &Cred,
    exclusive: bool,
) -> Result<Locked> {
    let mode = S_IFREG | mode & !S_IFMT;
    let new = New { mode, rdev: 0, target: &[], cred };
    for _ in 0..RETRIES {
        match named(core, dir, name, &new) {
            Err(Error::Exists) if !exclusive => {}
            other => return other,
        }
        match lock_named(core, dir, name, Mode::Exclusive) {
            Ok(there) => {
                return match there.child.file_type() {
                    S_IFREG if surely_permitted(&there.child, cred) => Ok(there.child),
                    S_IFDIR => Err(Error::IsDirectory),
                    _ => Err(Error::Stale(there.child.ino())),
                };
            }
            // Removed meanwhile.
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::WouldBlock)
}

/// Whether `cred` may read and write the file, and a truncation would take nothing else away. The
/// program's further groups and capabilities are not known here.
fn surely_permitted(file: &Locked, cred: &Cred) -> bool {
    let st = file.st();
    let (mode, owner) = (st.raw.mode.get(), st.raw.uid.get());
    cred.uid == 0 || owner == cred.uid && mode & 0o600 == 0o600 && unprivileged(mode) == mode
}

/// Makes a regular file without a name, listed as an orphan. Returned locked exclusive.
pub(crate) fn tmpfile(core: &Arc<Core>, dir: InodeNo, mode: u32, cred: &Cred) -> Result<Locked> {
    orphan::with_room(core, || nameless(core, dir, mode, cred))
}

fn nameless(core: &Arc<Core>, dir: InodeNo, mode: u32, cred: &Cred) -> Result<Locked> {
    writable(core)?;
    let new = New { mode: S_IFREG | mode & !S_IFMT, rdev: 0, target: &[], cred };
    let inherited = {
        let dir = core.lock_shared(dir)?;
        dir.require_dir()?;
        InheritedAttrs::of(core, &dir, &new)?
    };
    let room = orphan::room(core, cred.uid, true)?;
    let mut r = core.alloc.reserve(0, 1 + inherited.attributes.slots(core), 0)?;
    let (slot, guard) = core.alloc.claim_dinode(&mut r)?;
    let mut raw = raw_inode(slot, &new, &inherited);
    raw.nlink = 0.into();
    raw.flags = RawDinode::FLAG_TMPFILE.into();
    let mut tx = match core.meta.begin() {
        Ok(tx) => tx,
        Err(e) => {
            core.alloc.unclaim_dinode(slot);
            return Err(e);
        }
    };
    let ino = InodeNo::from(slot);
    let done = inherit(core, (&mut tx, &mut r), &mut raw, (slot, &inherited.attributes))
        .and_then(|attributes| born(core, &mut tx, (slot, guard), raw, (&[], &attributes)))
        .and_then(|locked| orphan::list(core, &mut tx, room, ino).map(|()| locked));
    drop(tx);
    sealed(core, done)
}

/// Gives an inode one more name.
///
/// # Errors
/// `NotPermitted` for a directory, `NotFound` for an inode without a name that once had one.
pub(crate) fn link(
    core: &Arc<Core>,
    ino: InodeNo,
    new_dir: InodeNo,
    new_name: &[u8],
) -> Result<Attr> {
    writable(core)?;
    dir::check_name(new_name)?;
    if ino == new_dir {
        return Err(Error::NotPermitted);
    }
    let mut locked = core.lock_many(&[new_dir, ino])?;
    let (Some(inode), Some(dir)) = (locked.pop(), locked.pop()) else {
        return Err(Error::Stale(ino));
    };
    dir.require_dir()?;
    mutable(&dir, RawDinode::FLAG_IMMUTABLE)?;
    if inode.is_dir() {
        return Err(Error::NotPermitted);
    }
    mutable(&inode, RawDinode::FLAG_IMMUTABLE | RawDinode::FLAG_APPEND)?;
    let (links, flags) = {
        let st = inode.st();
        (st.raw.nlink.get(), st.raw.flags.get())
    };
    let unnamed = links == 0;
    if unnamed && flags & RawDinode::FLAG_TMPFILE == 0 {
        return Err(Error::NotFound);
    }
    if links >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    let place = vacant(core, &dir, new_name)?;
    let mut r = core.alloc.reserve(0, place.slots, 0)?;
    if unnamed {
        orphan::load(core)?;
    }
    let kind = kind_of(inode.file_type());
    let mut tx = core.meta.begin()?;
    core.kernel.changed_as_asked(ino);
    let done = (|| {
        inode.update(&mut tx, |raw| {
            raw.nlink = (links + 1).into();
            raw.flags = (flags & !RawDinode::FLAG_TMPFILE).into();
            touch(raw);
        })?;
        if unnamed {
            orphan::unlist(core, &mut tx, ino)?;
        }
        add_entry(core, (&mut tx, &mut r), &dir, place, (new_name, ino, kind))
    })();
    drop(tx);
    sealed(core, done)?;
    Ok(hand_out(core, &inode))
}

/// A whiteout that is to be: root's character device 0/0. Its slot, with the lock, goes back unless
/// it is used.
pub(super) struct Whiteout {
    core: Arc<Core>,
    slot: BlockNo,
    guard: Option<Guard>,
    raw: RawDinode,
    attributes: Inherited,
    /// Slots for what of its attributes does not fit in the dinode.
    beside: Reservation,
}

impl Whiteout {
    /// Of the directory `dir`. Before the transaction.
    pub fn new(core: &Arc<Core>, r: &mut Reservation, dir: &Locked) -> Result<Self> {
        let cred = Cred::default();
        let new = New { mode: S_IFCHR, rdev: 0, target: &[], cred: &cred };
        let inherited = InheritedAttrs::of(core, dir, &new)?;
        let beside = core.alloc.reserve(0, inherited.attributes.slots(core), 0)?;
        let (slot, guard) = core.alloc.claim_dinode(r)?;
        let raw = raw_inode(slot, &new, &inherited);
        let (core, attributes) = (Arc::clone(core), inherited.attributes);
        Ok(Self { core, slot, guard: Some(guard), raw, attributes, beside })
    }
    /// Makes it. Its entry is the caller's business.
    pub fn born(mut self, tx: &mut Tx<'_>) -> Result<Locked> {
        let guard = self.guard.take().ok_or(Error::Invalid("slot of a whiteout"))?;
        let (core, slot) = (self.core.clone(), self.slot);
        let to = (&mut *tx, &mut self.beside);
        let attributes = inherit(&core, to, &mut self.raw, (slot, &self.attributes))?;
        born(&core, tx, (slot, guard), self.raw, (&[], &attributes))
    }
}

impl Drop for Whiteout {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            self.core.alloc.unclaim_dinode(self.slot);
        }
    }
}

/// What a new inode takes from its directory.
#[derive(Debug)]
struct InheritedAttrs {
    parent: InodeNo,
    /// The group, when the directory passes it on.
    gid: Option<u32>,
    /// Type and permissions.
    mode: u32,
    /// Its ACLs.
    attributes: Inherited,
}

impl InheritedAttrs {
    /// The umask counts only if the directory has no default ACL. A symbolic link has none.
    fn of(core: &Core, dir: &Locked, new: &New<'_>) -> Result<Self> {
        let is_link = new.mode & S_IFMT == S_IFLNK;
        let default = if is_link { None } else { crate::xattr::default_acl(core, dir)? };
        let (mode, attributes) = match default {
            None => (new.mode & !new.cred.umask, Inherited::default()),
            Some(default) => {
                let (mode, access) = default.inherited(new.mode);
                let passed_on = (new.mode & S_IFMT == S_IFDIR).then_some(&default);
                (mode, Inherited::of(core, access.as_ref(), passed_on))
            }
        };
        let st = dir.st();
        let passes_on = st.raw.mode.get() & S_ISGID != 0;
        let gid = passes_on.then(|| st.raw.gid.get());
        Ok(Self { parent: dir.ino(), gid, mode, attributes })
    }
}

/// Makes an inode with a name.
fn named(core: &Arc<Core>, dir: InodeNo, name: &[u8], new: &New<'_>) -> Result<Locked> {
    writable(core)?;
    dir::check_name(name)?;
    let dir = core.lock_exclusive(dir)?;
    dir.require_dir()?;
    let place = match probe(core, &dir, name)? {
        Probe::Found(_) => return Err(Error::Exists),
        Probe::Absent(place) => place,
    };
    mutable(&dir, RawDinode::FLAG_IMMUTABLE)?;
    if new.mode & S_IFMT == S_IFDIR && dir.st().raw.nlink.get() >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    let body_len = core.volume.geo.body_len();
    let blocks = if new.target.len() > body_len.saturating_sub(RawDinode::TAIL_AT) {
        core.volume.geo.block_size.blocks_for(Bytes::from(new.target.len())).0
    } else {
        0
    };
    let inherited = InheritedAttrs::of(core, &dir, new)?;
    let slots = place.slots + 1 + inherited.attributes.slots(core);
    let mut r = core.alloc.reserve(blocks, slots, 0)?;
    let run = match blocks {
        0 => None,
        n => Some(write_target(core, &mut r, n, new.target)?),
    };
    let (slot, guard) = core.alloc.claim_dinode(&mut r)?;
    let tx = match core.meta.begin() {
        Ok(tx) => tx,
        Err(e) => {
            core.alloc.unclaim_dinode(slot);
            return Err(e);
        }
    };
    sealed(core, named_in(core, tx, r, (&dir, place, name), (slot, guard), (new, &inherited), run))
}

/// The transaction of [`named`].
fn named_in(
    core: &Arc<Core>,
    mut tx: Tx<'_>,
    mut r: Reservation,
    (dir, place, name): (&Locked, Place, &[u8]),
    (slot, guard): (BlockNo, Guard),
    (new, inherited): (&New<'_>, &InheritedAttrs),
    run: Option<Run>,
) -> Result<Locked> {
    let mut raw = raw_inode(slot, new, inherited);
    let locked = match run {
        None => {
            let attributes =
                inherit(core, (&mut tx, &mut r), &mut raw, (slot, &inherited.attributes))?;
            born(core, &mut tx, (slot, guard), raw, (new.target, &attributes))?
        }
        Some(run) => {
            let blocks = run.len;
            let extent = RawExtent {
                logical: 0.into(),
                physical: run.start.get().into(),
                len: u32::try_from(blocks).unwrap_or(u32::MAX).into(),
                flags: 0.into(),
            };
            core.alloc.commit_run(&mut tx, run, blocks)?;
            raw.layout = (Layout::Extents as u16).into();
            raw.tail_count = 1.into();
            raw.blocks = blocks.into();
            born(core, &mut tx, (slot, guard), raw, (extent.as_bytes(), &[]))?
        }
    };
    let entry = (name, locked.ino(), kind_of(new.mode));
    add_entry(core, (&mut tx, &mut r), dir, place, entry)?;
    Ok(locked)
}

/// Writes a long target into blocks that nobody refers to yet.
fn write_target(core: &Core, r: &mut Reservation, blocks: u64, target: &[u8]) -> Result<Run> {
    let run = core.alloc.claim(r, blocks, None)?;
    if run.len < blocks {
        // A target has at most one block; a claim of one is never cut.
        return Err(Error::NoSpace);
    }
    let size = core.volume.geo.block_size;
    let mut buf = AlignedBuf::zeroed(size.bytes_in(braid_format::BlockCount(blocks)).to_usize());
    if let Some(to) = buf.get_mut(..target.len()) {
        to.copy_from_slice(target);
    }
    if let Err(error) = core.volume.pool.write(size.offset_of(run.start), &buf) {
        // It may land yet.
        if !run.keep_back() {
            core.withdraw(&Error::KeptBack);
        }
        return Err(error.into());
    }
    core.meta.note_data_written();
    Ok(run)
}

/// The fixed part of a new dinode.
fn raw_inode(slot: BlockNo, new: &New<'_>, inherited: &InheritedAttrs) -> RawDinode {
    let kind = new.mode & S_IFMT;
    let is_dir = kind == S_IFDIR;
    let mut mode = inherited.mode;
    if is_dir && inherited.gid.is_some() {
        mode |= S_ISGID;
    }
    let layout = match kind {
        S_IFDIR => Layout::DirStuffed,
        S_IFREG | S_IFLNK => Layout::Stuffed,
        _ => Layout::None,
    };
    let time = raw_time(now());
    let mut raw = RawDinode::new_zeroed();
    raw.header = MetaHeader::new(MetaKind::Dinode, slot, LockNo::from(slot));
    raw.mode = mode.into();
    raw.uid = new.cred.uid.into();
    raw.gid = inherited.gid.unwrap_or(new.cred.gid).into();
    raw.nlink = if is_dir { 2 } else { 1 }.into();
    raw.size = (new.target.len() as u64).into();
    raw.atime = time;
    raw.mtime = time;
    raw.ctime = time;
    raw.btime = time;
    raw.rdev = new.rdev.into();
    raw.layout = (layout as u16).into();
    raw.inode_generation = generation(slot).into();
    raw.parent = inherited.parent.get().into();
    raw
}

/// A number that the slot's former inodes did not have: 31 bits, since NFS handles and old tools
/// know no more.
fn generation(slot: BlockNo) -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let t = now();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let seed = u64::from(t.nsec) ^ t.sec.unsigned_abs().rotate_left(32) ^ count.rotate_left(48);
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&slot.get().to_le_bytes(), seed);
    (hash & 0x7fff_ffff).max(1)
}

/// Writes what a new inode inherits: the bytes for the end of its body.
fn inherit(
    core: &Core,
    to: (&mut Tx<'_>, &mut Reservation),
    raw: &mut RawDinode,
    (slot, attributes): (BlockNo, &Inherited),
) -> Result<Vec<u8>> {
    let bytes = attributes.write(core, to, LockNo::from(slot))?;
    let slots = attributes.slots(core) * core.volume.geo.slot_blocks();
    raw.blocks = raw.blocks.get().saturating_add(slots).into();
    let len = u16::try_from(bytes.len()).map_err(|_| Error::AttributeSpace)?;
    raw.xattr_len = len.into();
    Ok(bytes)
}

/// Puts a new dinode in its slot and its inode in memory.
fn born(
    core: &Core,
    tx: &mut Tx<'_>,
    (slot, guard): (BlockNo, Guard),
    raw: RawDinode,
    (tail, attributes): (&[u8], &[u8]),
) -> Result<Locked> {
    core.alloc.commit_dinode(tx, slot)?;
    tx.create(slot, LockNo::from(slot), MetaKind::Dinode, |body| {
        write_fixed(body, &raw);
        let to = body.get_mut(RawDinode::TAIL_AT..).and_then(|t| t.get_mut(..tail.len()));
        if let Some(to) = to {
            to.copy_from_slice(tail);
        }
        let at = body.len().saturating_sub(attributes.len());
        if let Some(to) = body.get_mut(at..) {
            to.copy_from_slice(attributes);
        }
    })?;
    let inode = core.inodes.get(InodeNo::from(slot));
    inode.no_opener();
    inode.set_state(InodeState::new(raw));
    Ok(Locked { inode, guard })
}
