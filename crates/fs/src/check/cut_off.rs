//! What cannot be repaired is cut off: a tree node with all below it, items of a tail or a leaf, an
//! extent, attributes. The next pass finds what has lost its name or its user by that.

use braid_format::BlockNo;
use braid_format::dinode::RawDinode;
use braid_format::tree::{RawExtent, RawIndexEntry};
use braid_format::xattr::RawXattrBlock;
use zerocopy::{FromBytes, IntoBytes};

use super::bodies::{change, items, put, table};
use super::checker::Checker;
use super::cut::{Cut, Part};
use crate::dir::page;
use crate::error::Result;
use crate::xattr::{pack, place};

/// Cuts everything off that a pass has found.
pub(super) fn apply(checker: &mut Checker, cuts: &[Cut]) -> Result<()> {
    for cut in cuts {
        let stands = cut.block.get() == cut.ino.get();
        let mut done = false;
        change(checker, cut.block, |body| done = take(body, stands, cut.what).is_some())?;
        if done {
            checker.cut(cut.line());
            checker.report.repaired += 1;
        }
    }
    Ok(())
}

/// `None`: it is not there (any more).
fn take(body: &mut [u8], dinode: bool, what: Part) -> Option<()> {
    match what {
        Part::AttributeBlock if !dinode => {
            let (head, _) = RawXattrBlock::mut_from_prefix(body).ok()?;
            head.next.set(0);
            return Some(());
        }
        Part::Attribute(block) => return attribute(body, dinode, block),
        Part::InlineAttributes | Part::AttributeBlock | Part::Permissions => {
            return attributes(body, what);
        }
        Part::EntriesBehind(n) => {
            let (area, count) = items(body, dinode)?;
            let used = |e: page::Entry<'_>| e.record.end;
            let kept =
                page::entries(area, count.min(n), 0..u64::MAX).map_while(std::result::Result::ok);
            let (mut end, mut kept_count) = (0, 0);
            for entry in kept {
                (end, kept_count) = (used(entry), kept_count + 1);
            }
            let bytes = area.get(..end)?.to_vec();
            put(body, dinode, (&bytes, kept_count));
            return Some(());
        }
        _ => {}
    }
    let (area, count) = items(body, dinode)?;
    let (bytes, left) = match what {
        Part::Child(block) => {
            let fits = count.min(area.len() / size_of::<RawIndexEntry>());
            let mut entries = table::<RawIndexEntry>(area, fits)?;
            let at = entries.iter().position(|e| e.child.get() == block.get())?;
            entries.remove(at);
            (entries.as_bytes().to_vec(), entries.len())
        }
        Part::IndexBehind(n) => {
            let entries = table::<RawIndexEntry>(area, count.min(n))?;
            (entries.as_bytes().to_vec(), entries.len())
        }
        Part::ExtentsBehind(n) => {
            let extents = table::<RawExtent>(area, count.min(n))?;
            (extents.as_bytes().to_vec(), extents.len())
        }
        Part::Extent(logical) => {
            let mut extents = table::<RawExtent>(area, count)?;
            let at = extents.iter().position(|e| e.logical.get() == logical)?;
            extents.remove(at);
            (extents.as_bytes().to_vec(), extents.len())
        }
        _ => return None,
    };
    put(body, dinode, (&bytes, left));
    Some(())
}

/// Attributes go, and with them what an access control list may have narrowed.
fn attributes(body: &mut [u8], what: Part) -> Option<()> {
    let (raw, _) = RawDinode::mut_from_prefix(body).ok()?;
    raw.mode.set(raw.mode.get() & !0o077);
    match what {
        Part::Permissions => return Some(()),
        Part::AttributeBlock => {
            raw.xattr_block.set(0);
            return Some(());
        }
        _ => {}
    }
    let len = usize::from(raw.xattr_len.get());
    raw.xattr_len.set(0);
    let from = body.len().saturating_sub(len).max(RawDinode::TAIL_AT);
    body.get_mut(from..)?.fill(0);
    Some(())
}

/// The attribute goes that has a value in `block`.
fn attribute(body: &mut [u8], dinode: bool, block: BlockNo) -> Option<()> {
    let body_len = body.len();
    let (from, len) = if dinode {
        let (raw, _) = RawDinode::read_from_prefix(body).ok()?;
        (place::inline(&raw, body)?, usize::from(raw.xattr_len.get()))
    } else {
        (size_of::<RawXattrBlock>(), place::page(body)?.0.len())
    };
    let area = body.get_mut(from..from + len)?;
    let mut all = pack::decode(area, body_len).ok()?;
    let before = all.len();
    all.retain(|a| !a.value.blocks().contains(&block));
    if all.len() == before {
        return None;
    }
    let bytes = pack::encode(&all).ok()?;
    area.fill(0);
    // Those in a dinode end where its body ends.
    let at = if dinode { len.checked_sub(bytes.len())? } else { 0 };
    area.get_mut(at..at + bytes.len())?.copy_from_slice(&bytes);
    if dinode {
        let (raw, _) = RawDinode::mut_from_prefix(body).ok()?;
        raw.xattr_len.set(u16::try_from(bytes.len()).ok()?);
    } else {
        let (head, _) = RawXattrBlock::mut_from_prefix(body).ok()?;
        head.used.set(u32::try_from(bytes.len()).ok()?);
    }
    Some(())
}
