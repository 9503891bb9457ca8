//! Attributes of inodes and entries of directories, as they are sent.

use braid_format::InodeNo;
use braid_fs::{Attr, SetAttr, StatFs, Time, TimeSet};

use super::fields::{FieldReader, FieldWriter, NAME_MAX};

fn put_time(to: &mut FieldWriter, time: Time) {
    to.u64(time.sec.cast_unsigned()).u32(time.nsec);
}

fn take_time(from: &mut FieldReader<'_>) -> Option<Time> {
    let (sec, nsec) = (from.u64()?.cast_signed(), from.u32()?);
    (nsec < 1_000_000_000).then_some(Time { sec, nsec })
}

/// Attributes: 112 bytes.
pub fn put_attr(to: &mut FieldWriter, attr: &Attr) {
    to.u64(attr.ino.0).u64(attr.generation).u64(attr.size).u64(attr.blocks512);
    for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
        put_time(to, time);
    }
    to.u32(attr.mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
    to.u64(attr.rdev).u32(attr.blksize).u32(attr.flags);
}

pub fn take_attr(from: &mut FieldReader<'_>) -> Option<Attr> {
    Some(Attr {
        ino: InodeNo(from.u64()?),
        generation: from.u64()?,
        size: from.u64()?,
        blocks512: from.u64()?,
        atime: take_time(from)?,
        mtime: take_time(from)?,
        ctime: take_time(from)?,
        btime: take_time(from)?,
        mode: from.u32()?,
        nlink: from.u32()?,
        uid: from.u32()?,
        gid: from.u32()?,
        rdev: from.u64()?,
        blksize: from.u32()?,
        flags: from.u32()?,
    })
}

/// Bits that say which fields follow.
const MODE: u32 = 1;
const UID: u32 = 2;
const GID: u32 = 4;
const SIZE: u32 = 8;
const ATIME: u32 = 16;
const ATIME_NOW: u32 = 32;
const MTIME: u32 = 64;
const MTIME_NOW: u32 = 128;
const KILL: u32 = 256;
const KNOWN: u32 = 511;

/// What is to be changed: bits, then the fields that they name.
pub fn put_set(to: &mut FieldWriter, set: &SetAttr) {
    let when = |time: Option<TimeSet>, at: u32, now: u32| match time {
        None => 0,
        Some(TimeSet::At(_)) => at,
        Some(TimeSet::Now) => now,
    };
    let bit = |there: bool, bit: u32| if there { bit } else { 0 };
    to.u32(
        bit(set.mode.is_some(), MODE)
            | bit(set.uid.is_some(), UID)
            | bit(set.gid.is_some(), GID)
            | bit(set.size.is_some(), SIZE)
            | when(set.atime, ATIME, ATIME_NOW)
            | when(set.mtime, MTIME, MTIME_NOW)
            | bit(set.kill_privileges, KILL),
    );
    for value in [set.mode, set.uid, set.gid].into_iter().flatten() {
        to.u32(value);
    }
    if let Some(size) = set.size {
        to.u64(size);
    }
    for time in [set.atime, set.mtime] {
        if let Some(TimeSet::At(time)) = time {
            put_time(to, time);
        }
    }
}

pub fn take_set(from: &mut FieldReader<'_>) -> Option<SetAttr> {
    let bits = from.u32()?;
    let both = |a: u32, b: u32| bits & (a | b) == a | b;
    if bits & !KNOWN != 0 || both(ATIME, ATIME_NOW) || both(MTIME, MTIME_NOW) {
        return None;
    }
    let has = |bit: u32| bits & bit != 0;
    let mut set = SetAttr { kill_privileges: has(KILL), ..SetAttr::default() };
    for (bit, field) in [(MODE, &mut set.mode), (UID, &mut set.uid), (GID, &mut set.gid)] {
        if has(bit) {
            *field = Some(from.u32()?);
        }
    }
    if has(SIZE) {
        set.size = Some(from.u64()?);
    }
    for (at, now, field) in [(ATIME, ATIME_NOW, &mut set.atime), (MTIME, MTIME_NOW, &mut set.mtime)]
    {
        if has(now) {
            *field = Some(TimeSet::Now);
        } else if has(at) {
            *field = Some(TimeSet::At(take_time(from)?));
        }
    }
    Some(set)
}

/// Totals of the file system: 48 bytes.
pub fn put_totals(to: &mut FieldWriter, totals: &StatFs) {
    to.u64(totals.blocks).u64(totals.free).u64(totals.available);
    to.u64(totals.files).u64(totals.files_free).u32(totals.block_size).u32(totals.name_max);
}

pub fn take_totals(from: &mut FieldReader<'_>) -> Option<StatFs> {
    Some(StatFs {
        blocks: from.u64()?,
        free: from.u64()?,
        available: from.u64()?,
        files: from.u64()?,
        files_free: from.u64()?,
        block_size: from.u32()?,
        name_max: from.u32()?,
    })
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: InodeNo,
    /// Where to go on after this entry.
    pub next: u64,
    /// `DT_*`.
    pub kind: u32,
    /// The name.
    pub name: Vec<u8>,
    /// Attributes, if they were sent with it.
    pub attr: Option<Attr>,
}

/// Puts an entry behind others, if there is room in `most` bytes.
pub fn write_entry(to: &mut Vec<u8>, most: usize, entry: &braid_fs::DirEntry<'_>) -> bool {
    let mut fields = FieldWriter::default();
    put_entry(&mut fields, entry);
    append(to, most, &fields.finish())
}

/// The same, with its attributes if it has any.
pub fn write_listed(to: &mut Vec<u8>, most: usize, entry: &braid_fs::DirEntry<'_>) -> bool {
    let mut fields = FieldWriter::default();
    put_entry(&mut fields, entry);
    fields.u8(u8::from(entry.attr.is_some()));
    if let Some(attr) = &entry.attr {
        put_attr(&mut fields, attr);
    }
    append(to, most, &fields.finish())
}

fn put_entry(to: &mut FieldWriter, entry: &braid_fs::DirEntry<'_>) {
    to.u64(entry.ino.0).u64(entry.next).u32(entry.kind).bytes(entry.name);
}

fn append(to: &mut Vec<u8>, most: usize, bytes: &[u8]) -> bool {
    let fits = to.len() + bytes.len() <= most;
    if fits {
        to.extend_from_slice(bytes);
    }
    fits
}

/// The entries that a reply holds. `None`: they cannot be read.
pub fn read_entries(data: &[u8]) -> Option<Vec<Entry>> {
    take_entries(data, |_| Some(None))
}

/// The same, with attributes.
pub fn read_listed(data: &[u8]) -> Option<Vec<Entry>> {
    take_entries(data, |from| match from.u8()? {
        0 => Some(None),
        1 => take_attr(from).map(Some),
        _ => None,
    })
}

fn take_entries(
    data: &[u8],
    attr: impl Fn(&mut FieldReader<'_>) -> Option<Option<Attr>>,
) -> Option<Vec<Entry>> {
    let mut from = FieldReader::new(data);
    let mut entries = Vec::new();
    while !from.is_empty() {
        let (ino, next, kind) = (InodeNo(from.u64()?), from.u64()?, from.u32()?);
        let name = from.bytes(NAME_MAX)?.to_vec();
        entries.push(Entry { ino, next, kind, name, attr: attr(&mut from)? });
    }
    Some(entries)
}
