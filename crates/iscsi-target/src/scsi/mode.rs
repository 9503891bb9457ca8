//! MODE SENSE: the caching and the control page. Nothing can be changed.

use super::command::{Command, be16};
use crate::outcome::{Done, Outcome, Refusal};
use crate::sense::Sense;

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const ALL: u8 = 0x3f;

/// What both lengths of the command have in common.
fn pages(c: &Command<'_>) -> Result<Vec<u8>, Refusal> {
    let (control, page, sub) = (c.cdb[2] >> 6, c.cdb[2] & 0x3f, c.cdb[3]);
    if control == 3 {
        // Values are not saved.
        return Err(Sense { code: 0x39, ..Sense::field(2) }.into());
    }
    if sub != 0 && sub != 0xff || ![CACHING, CONTROL, ALL].contains(&page) {
        return Err(Sense::field(2).into());
    }
    let mut bytes = Vec::new();
    // 1: which bits can be changed: none.
    let values = control != 1;
    if page == CACHING || page == ALL {
        let mut b = [0; 20];
        (b[0], b[1]) = (CACHING, 18);
        b[2] = if values && c.lun.write_cache { 0x04 } else { 0 };
        bytes.extend(b);
    }
    if page == CONTROL || page == ALL {
        let mut b = [0; 12];
        (b[0], b[1]) = (CONTROL, 10);
        // Commands may run in any order; a task that somebody else aborts is answered.
        (b[3], b[5]) = if values { (0x10, 0x40) } else { (0, 0) };
        bytes.extend(b);
    }
    Ok(bytes)
}

/// Write protection; DPO and FUA are understood.
fn specific(c: &Command<'_>) -> u8 {
    let protected = if c.lun.device.info().read_only { 0x80 } else { 0 };
    protected | 0x10
}

/// Blocks and their size, unless the initiator would rather not know.
fn descriptor(c: &Command<'_>) -> Vec<u8> {
    if c.cdb[1] & 0x08 != 0 {
        return Vec::new();
    }
    let blocks = u32::try_from(c.lun.blocks()).unwrap_or(u32::MAX);
    let sector = u32::try_from(c.lun.sector()).unwrap_or(0);
    [blocks.to_be_bytes(), sector.to_be_bytes()].concat()
}

/// MODE SENSE (6).
pub(super) fn sense6(c: &Command<'_>) -> Outcome {
    let (pages, descriptor) = (pages(c)?, descriptor(c));
    let count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let len = count(3 + descriptor.len() + pages.len());
    let mut bytes = vec![len, 0, specific(c), count(descriptor.len())];
    bytes.extend(descriptor);
    bytes.extend(pages);
    Ok(Done::small(bytes, usize::from(c.cdb[4])))
}

/// MODE SENSE (10).
pub(super) fn sense10(c: &Command<'_>) -> Outcome {
    let (pages, descriptor) = (pages(c)?, descriptor(c));
    let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let mut bytes = count(6 + descriptor.len() + pages.len()).to_vec();
    bytes.extend([0, specific(c), 0, 0]);
    bytes.extend(count(descriptor.len()));
    bytes.extend(descriptor);
    bytes.extend(pages);
    Ok(Done::small(bytes, usize::from(be16(c.cdb, 7))))
}
