//! INQUIRY and its pages of vital product data.

use super::command::{Command, be16};
use super::{caw, same};
use crate::TRANSFER_MAX;
use crate::outcome::{Done, Outcome};
use crate::pdu::Cdb;
use crate::sense::Sense;

pub(super) const INQUIRY: u8 = 0x12;

const PAGES: [u8; 7] = [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2, CACHE];

/// Of this target's own: what keeps completed writes. While it says the same none of them is lost.
const CACHE: u8 = 0xc0;

/// SAM-5, SPC-4, SBC-3, iSCSI.
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

fn limit(cdb: &Cdb) -> usize {
    usize::from(be16(cdb, 3))
}

/// INQUIRY on a unit that is not there: "none, and there cannot be one".
pub(super) fn nowhere(cdb: &Cdb) -> Outcome {
    if cdb[1] & 1 != 0 || cdb[2] != 0 {
        return Err(Sense::field(1).into());
    }
    let mut bytes = standard();
    bytes[0] = 0x7f;
    Ok(Done::small(bytes, limit(cdb)))
}

/// INQUIRY.
pub(super) fn inquiry(c: &Command<'_>) -> Outcome {
    if c.cdb[1] & 1 == 0 {
        if c.cdb[2] != 0 {
            return Err(Sense::field(2).into());
        }
        return Ok(Done::small(standard(), limit(c.cdb)));
    }
    let page = match c.cdb[2] {
        0x00 => PAGES.to_vec(),
        0x80 => c.lun.serial.as_bytes().to_vec(),
        0x83 => identification(c),
        0xb0 => limits(c),
        0xb1 => characteristics(c),
        0xb2 => provisioning(c),
        CACHE => [b"BRAIDCSH", c.lun.cache().as_bytes()].concat(),
        _ => return Err(Sense::field(2).into()),
    };
    let mut bytes = vec![0, c.cdb[2]];
    bytes.extend(u16::try_from(page.len()).unwrap_or(0).to_be_bytes());
    bytes.extend(page);
    Ok(Done::small(bytes, limit(c.cdb)))
}

fn standard() -> Vec<u8> {
    let mut b = vec![0; 96];
    b[2] = 6;
    // Response data format 2, hierarchical addressing of units.
    b[3] = 0x12;
    b[4] = 91;
    // Commands are queued.
    b[7] = 0x02;
    b[8..16].copy_from_slice(b"BRAID   ");
    b[16..32].copy_from_slice(b"TARGET          ");
    b[32..36].copy_from_slice(b"0100");
    for (n, version) in VERSIONS.iter().enumerate() {
        b[58 + n * 2..60 + n * 2].copy_from_slice(&version.to_be_bytes());
    }
    b
}

/// Who it is: a name of the unit, the same by vendor and serial number, and the target's name.
fn identification(c: &Command<'_>) -> Vec<u8> {
    let mut b = Vec::new();
    let mut add = |codes: u8, kind: u8, name: &[u8]| {
        b.extend([codes, kind, 0, u8::try_from(name.len()).unwrap_or(0)]);
        b.extend_from_slice(name);
    };
    add(0x01, 0x03, &c.lun.naa);
    add(0x02, 0x01, format!("BRAID   {}", c.lun.serial).as_bytes());
    // Of the target's port 1, in iSCSI.
    add(0x51, 0x94, &[0, 0, 0, 1]);
    let mut name = c.target.name.as_bytes().to_vec();
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    add(0x53, 0xa8, &name);
    b
}

fn limits(c: &Command<'_>) -> Vec<u8> {
    let info = c.lun.device.info();
    let sector = c.lun.sector();
    let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    let mut b = vec![0; 0x3c];
    b[1] = caw::BLOCKS_MAX;
    let granule = (info.physical_sector.get() / sector).max(1);
    b[2..4].copy_from_slice(&u16::try_from(granule).unwrap_or(1).to_be_bytes());
    b[4..8].copy_from_slice(&word(TRANSFER_MAX as u64 / sector));
    b[8..12].copy_from_slice(&word((1 << 20) / sector));
    if info.caps.discard {
        b[16..20].copy_from_slice(&same::UNMAP_MAX.to_be_bytes());
        b[20..24].copy_from_slice(&same::RANGES_MAX.to_be_bytes());
        b[24..28].copy_from_slice(&word((4096 / sector).max(1)));
    }
    b[32..40].copy_from_slice(&u64::from(same::SAME_MAX).to_be_bytes());
    b
}

fn characteristics(c: &Command<'_>) -> Vec<u8> {
    let mut b = vec![0; 0x3c];
    if c.lun.device.info().rotational == Some(false) {
        b[1] = 1;
    }
    b
}

fn provisioning(c: &Command<'_>) -> Vec<u8> {
    let mut b = vec![0; 4];
    if c.lun.device.info().caps.discard {
        // UNMAP, WRITE SAME (16) and (10) with UNMAP; unmapped blocks read as zeros; thin.
        b[1] = if c.lun.device.info().caps.deallocate { 0xe4 } else { 0xe0 };
        b[2] = 2;
    }
    b
}
