//! Bodies of metadata as a repair reads and changes them.

use braid_format::BlockNo;
use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaHeader;
use braid_format::tree::RawNode;
use braid_pool::device::AlignedBuf;
use zerocopy::{FromBytes, IntoBytes};

use super::checker::Checker;
use crate::error::Result;

/// A body to be written, its header but not its checksum in place.
pub(super) type Image = (BlockNo, AlignedBuf);

/// The first `count` structures in `bytes`.
pub(super) fn table<T: FromBytes>(bytes: &[u8], count: usize) -> Option<Vec<T>> {
    let size = size_of::<T>();
    let bytes = bytes.get(..count.checked_mul(size)?)?;
    Some(bytes.chunks_exact(size).filter_map(|b| T::read_from_bytes(b).ok()).collect())
}

/// The items of a dinode's tail, or of a tree node: their area, and how many there are said to be.
pub(super) fn items(body: &[u8], dinode: bool) -> Option<(&[u8], usize)> {
    if dinode {
        let (raw, _) = RawDinode::read_from_prefix(body).ok()?;
        let tail = body.get(RawDinode::TAIL_AT..)?.get(..raw.tail_capacity(body.len()))?;
        return Some((tail, raw.tail_count.get().into()));
    }
    let (head, _) = RawNode::read_from_prefix(body).ok()?;
    Some((body.get(size_of::<RawNode>()..)?, head.count.get().into()))
}

/// Replaces the items that are there. A tree of which nothing is left becomes an empty
/// tail.
pub(super) fn put(body: &mut [u8], dinode: bool, (bytes, count): (&[u8], usize)) {
    let from = if dinode { RawDinode::TAIL_AT } else { size_of::<RawNode>() };
    let Some(len) = items(body, dinode).map(|(area, _)| area.len()) else { return };
    let Some(area) = body.get_mut(from..from + len) else { return };
    let Some((used, rest)) = area.split_at_mut_checked(bytes.len()) else { return };
    used.copy_from_slice(bytes);
    rest.fill(0);
    let count = u16::try_from(count).unwrap_or(0);
    if dinode {
        let Ok((raw, _)) = RawDinode::mut_from_prefix(body) else { return };
        raw.tail_count.set(count);
        if count == 0 && raw.tree_height.get() > 0 {
            raw.tree_height.set(0);
            if raw.layout.get() == Layout::DirHashed as u16 {
                raw.layout.set(Layout::DirStuffed as u16);
            }
        }
    } else if let Ok((head, _)) = RawNode::mut_from_prefix(body) {
        head.count.set(count);
        if head.used.get() != 0 {
            head.used.set(u32::try_from(bytes.len()).unwrap_or(0));
        }
    }
}

/// Seals and writes.
pub(super) fn write(checker: &Checker, mut images: Vec<Image>) -> Result<()> {
    for (_, body) in &mut images {
        MetaHeader::seal(body);
    }
    let refs: Vec<(BlockNo, &[u8])> = images.iter().map(|(b, body)| (*b, &**body)).collect();
    checker.volume.write_bodies(&refs)
}

/// Changes a sound body in place.
pub(super) fn change(checker: &Checker, block: BlockNo, f: impl FnOnce(&mut [u8])) -> Result<bool> {
    let Some(Ok((mut body, mut header, _))) = checker.read(&[block])?.pop() else {
        return Ok(false);
    };
    f(&mut body);
    header.generation.set(header.generation.get().saturating_add(1));
    let _ = header.write_to_prefix(&mut body);
    write(checker, vec![(block, body)])?;
    Ok(true)
}
