//! What a unit is: readiness, size, provisioning, and which units there are.

#![expect(clippy::unnecessary_wraps, reason = "rows of the table of commands are alike")]

use std::sync::Arc;

use super::command::{Command, be32, be64};
use super::rw::Span;
use crate::lun::Lun;
use crate::outcome::{Done, Outcome};
use crate::pdu::Cdb;
use crate::sense::Sense;

pub(super) const REQUEST_SENSE: u8 = 0x03;
pub(super) const REPORT_LUNS: u8 = 0xa0;

/// TEST UNIT READY.
pub(super) fn ready(_: &Command<'_>) -> Outcome {
    Ok(Done::GOOD)
}

/// REQUEST SENSE: the next unit attention, if there is one.
pub(super) fn request_sense(c: &Command<'_>) -> Outcome {
    if c.cdb[1] & 1 != 0 {
        return Err(Sense::field(1).into());
    }
    let sense = c.lun.take_attention(c.nexus).map_or(Sense::NONE, |a| Sense::attention(a.0, a.1));
    Ok(Done::small(sense.bytes().to_vec(), usize::from(c.cdb[4])))
}

/// READ CAPACITY (10).
pub(super) fn capacity10(c: &Command<'_>) -> Outcome {
    let last = u32::try_from(c.lun.blocks() - 1).unwrap_or(u32::MAX);
    let sector = u32::try_from(c.lun.sector()).unwrap_or(0);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend(sector.to_be_bytes());
    Ok(Done::small(bytes, usize::MAX))
}

/// READ CAPACITY (16).
pub(super) fn capacity16(c: &Command<'_>) -> Outcome {
    let info = c.lun.device.info();
    let sector = u32::try_from(c.lun.sector()).unwrap_or(0);
    let mut bytes = (c.lun.blocks() - 1).to_be_bytes().to_vec();
    bytes.extend(sector.to_be_bytes());
    bytes.resize(32, 0);
    let per_physical = (info.physical_sector.get() / info.sector.get()).max(1);
    bytes[13] = u8::try_from(per_physical.trailing_zeros()).unwrap_or(0) & 0x0f;
    if info.caps.discard {
        // Thin; and what is unmapped reads as zeros.
        bytes[14] = if info.caps.deallocate { 0xc0 } else { 0x80 };
    }
    Ok(Done::small(bytes, be32(c.cdb, 10) as usize))
}

/// GET LBA STATUS: the device does not say what it holds; so all of it.
pub(super) fn lba_status(c: &Command<'_>) -> Outcome {
    let lba = be64(c.cdb, 2);
    let span = Span { lba, blocks: 1, flags: 0 }.in_range(c)?;
    let blocks = u32::try_from(c.lun.blocks() - span.lba).unwrap_or(u32::MAX);
    let mut bytes = 20_u32.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(lba.to_be_bytes());
    bytes.extend(blocks.to_be_bytes());
    bytes.extend([0; 4]);
    Ok(Done::small(bytes, be32(c.cdb, 10) as usize))
}

/// REPORT LUNS, on a unit that exists.
pub(super) fn report_luns(c: &Command<'_>) -> Outcome {
    report_luns_of(c.cdb, &c.target.luns)
}

/// REPORT LUNS.
pub(super) fn report_luns_of(cdb: &Cdb, luns: &[Arc<Lun>]) -> Outcome {
    let limit = be32(cdb, 6) as usize;
    if limit < 16 {
        return Err(Sense::field(6).into());
    }
    let numbers: Vec<u16> = match cdb[2] {
        0 | 2 => luns.iter().map(|l| l.number).collect(),
        // Well-known units: none.
        1 => Vec::new(),
        _ => return Err(Sense::field(2).into()),
    };
    let mut bytes = vec![0; 8];
    for number in &numbers {
        // Peripheral addressing: at most 256 units.
        bytes.extend(u64::from(*number).to_be_bytes().into_iter().skip(6));
        bytes.extend([0; 6]);
    }
    let len = u32::try_from(numbers.len() * 8).unwrap_or(0);
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    Ok(Done::small(bytes, limit))
}
