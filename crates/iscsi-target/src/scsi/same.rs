//! WRITE SAME and UNMAP: many blocks at once.

use braid_format::{ByteOffset, Bytes};

use super::command::{Command, be16, be32, be64};
use super::rw::{Span, failed, writable};
use crate::outcome::{Done, Outcome, Refusal};
use crate::sense::Sense;

const UNMAP: u8 = 0x08;
const ANCHOR: u8 = 0x10;
const NO_DATA: u8 = 0x01;

/// Bytes written at a time where a pattern is not all zeros.
const PIECE: usize = 1 << 20;

/// Most ranges of one UNMAP.
pub(super) const RANGES_MAX: u32 = 256;
/// Most blocks of one UNMAP range.
pub(super) const UNMAP_MAX: u32 = 1 << 20;
/// Most blocks of one WRITE SAME.
pub(super) const SAME_MAX: u32 = 65535;

/// WRITE SAME (10), (16). A pattern of zeros needs none sent to the device; with UNMAP set the
/// device may let the blocks go, and they read as what was sent all the same.
pub(super) fn write_same(c: &Command<'_>) -> Outcome {
    let long = c.cdb[0] == 0x93;
    let flags = c.cdb[1];
    if flags & ANCHOR != 0 || flags & UNMAP != 0 && !c.lun.device.info().caps.discard {
        return Err(Sense::field(1).into());
    }
    let count_at = if long { 10 } else { 7 };
    let mut span = Span::of(c).check(c)?;
    writable(c)?;
    if span.blocks == 0 {
        // All to the end.
        span.blocks = c.lun.blocks() - span.lba;
    }
    if span.blocks > u64::from(SAME_MAX) {
        return Err(Sense::field(count_at).into());
    }
    let sector = Bytes(c.lun.sector()).to_usize();
    let wanted = if long && flags & NO_DATA != 0 { 0 } else { sector };
    if c.data.len() != wanted {
        return Err(Sense::field(count_at).into());
    }
    let _held = c.lun.ranges.take(span.range(), true);
    let (at, len) = (span.at(c), Bytes(span.blocks * c.lun.sector()));
    if c.data.iter().all(|b| *b == 0) {
        let let_go = flags & UNMAP != 0;
        let device = &c.lun.device;
        if let_go && device.deallocate(at, len).map_err(failed(c, Sense::WRITE_ERROR))? {
            return Ok(Done::took(wanted));
        }
        if let_go && !device.info().caps.deallocate {
            device.discard(at, len).map_err(failed(c, Sense::WRITE_ERROR))?;
        }
        zero(c, at, len, let_go)?;
    } else {
        repeat(c, at, len)?;
    }
    Ok(Done::took(wanted))
}

/// Zeros. What was let go may read as zeros already: then nothing is allocated anew.
fn zero(c: &Command<'_>, at: ByteOffset, len: Bytes, let_go: bool) -> Result<(), Refusal> {
    if let_go {
        let mut buf = c.target.buffers.take(PIECE);
        let mut done = 0;
        while done < len.get() {
            let now = Bytes((len.get() - done).min(PIECE as u64));
            let (here, piece) = (at + Bytes(done), buf.split_at_mut(now.to_usize()).0);
            c.lun.device.read(here, piece).map_err(failed(c, Sense::READ_ERROR))?;
            if piece.iter().any(|b| *b != 0) {
                c.lun.device.write_zeroes(here, now).map_err(failed(c, Sense::WRITE_ERROR))?;
            }
            done += now.get();
        }
        return Ok(());
    }
    c.lun.device.write_zeroes(at, len).map_err(failed(c, Sense::WRITE_ERROR))
}

/// The block that was sent, again and again.
fn repeat(c: &Command<'_>, at: ByteOffset, len: Bytes) -> Result<(), Refusal> {
    let mut buf = c.target.buffers.take(PIECE.min(len.to_usize()));
    for block in buf.chunks_exact_mut(c.data.len().max(1)) {
        block.copy_from_slice(c.data);
    }
    let mut done = 0;
    while done < len.get() {
        let now = Bytes((len.get() - done).min(buf.len() as u64));
        let piece = buf.split_at(now.to_usize()).0;
        c.lun.device.write(at + Bytes(done), piece).map_err(failed(c, Sense::WRITE_ERROR))?;
        done += now.get();
    }
    Ok(())
}

/// UNMAP. Of a unit whose unmapped blocks read as zeros, what cannot be made so stays mapped, as it
/// was; of others, what the blocks read as afterwards is open.
pub(super) fn unmap(c: &Command<'_>) -> Outcome {
    if c.cdb[1] & 1 != 0 {
        return Err(Sense::field(1).into());
    }
    let wanted = usize::from(be16(c.cdb, 7));
    if wanted == 0 {
        return Ok(Done::GOOD);
    }
    writable(c)?;
    if !c.lun.device.info().caps.discard {
        return Err(Sense::OPCODE.into());
    }
    let Some(list) = c.data.get(..wanted).filter(|l| l.len() >= 8) else {
        return Err(Sense::LIST_LENGTH.into());
    };
    let len = usize::from(be16(list, 2)) / 16 * 16;
    let ranges = list[8..].chunks_exact(16).take(len / 16);
    let spans = ranges.map(|r| {
        let span = Span { lba: be64(r, 0), blocks: u64::from(be32(r, 8)), flags: 0 };
        if span.blocks > u64::from(UNMAP_MAX) {
            return Err(Sense::LIST_FIELD.into());
        }
        span.in_range(c)
    });
    let spans: Vec<Span> = spans.collect::<Result<_, Refusal>>()?;
    if spans.len() > RANGES_MAX as usize {
        return Err(Sense::LIST_FIELD.into());
    }
    for span in spans.into_iter().filter(|s| s.blocks != 0) {
        let _held = c.lun.ranges.take(span.range(), true);
        let len = Bytes(span.blocks * c.lun.sector());
        let device = &c.lun.device;
        let let_go = if device.info().caps.deallocate {
            device.deallocate(span.at(c), len).map(drop)
        } else {
            device.discard(span.at(c), len)
        };
        let_go.map_err(failed(c, Sense::WRITE_ERROR))?;
    }
    Ok(Done::took(wanted))
}
