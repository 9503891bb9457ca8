//! READ, WRITE, ORWRITE, PRE-FETCH, SYNCHRONIZE CACHE in all their lengths (SBC-3, section 5).

use std::ops::Range;

use braid_format::ByteOffset;

use super::command::{Command, be16, be32, be64};
use crate::TRANSFER_MAX;
use crate::outcome::{DataIn, Done, Outcome, Refusal};
use crate::sense::Sense;

/// Force unit access.
pub(crate) const FUA: u8 = 0x08;

/// Blocks that a CDB names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub lba: u64,
    pub blocks: u64,
    /// The second byte.
    pub flags: u8,
}

impl Span {
    /// Of a CDB of the usual form of its length.
    pub fn of(c: &Command<'_>) -> Self {
        let cdb = c.cdb;
        let (lba, blocks) = match cdb[0] >> 5 {
            0 => {
                let blocks = if cdb[4] == 0 { 256 } else { u64::from(cdb[4]) };
                return Self { lba: u64::from(be32(cdb, 0) & 0x1f_ffff), blocks, flags: 0 };
            }
            1 | 2 => (u64::from(be32(cdb, 2)), u64::from(be16(cdb, 7))),
            4 => (be64(cdb, 2), u64::from(be32(cdb, 10))),
            _ => (u64::from(be32(cdb, 2)), u64::from(be32(cdb, 6))),
        };
        Self { lba, blocks, flags: cdb[1] }
    }
    /// All blocks exist; nothing wants protection information, which no unit here has.
    pub fn check(self, c: &Command<'_>) -> Result<Self, Refusal> {
        if self.flags & 0xe0 != 0 {
            return Err(Sense::field(1).into());
        }
        self.in_range(c)
    }
    /// All blocks exist.
    pub fn in_range(self, c: &Command<'_>) -> Result<Self, Refusal> {
        match self.lba.checked_add(self.blocks) {
            Some(end) if end <= c.lun.blocks() => Ok(self),
            _ => Err(Sense::OUT_OF_RANGE.into()),
        }
    }
    /// No more bytes than a command may move.
    pub fn movable(self, c: &Command<'_>) -> Result<Self, Refusal> {
        if self.blocks * c.lun.sector() > TRANSFER_MAX as u64 {
            let field = if c.cdb[0] >> 5 == 4 { 10 } else { 7 };
            return Err(Sense::field(field).into());
        }
        Ok(self)
    }
    /// Only the first `blocks`.
    pub fn at_most(self, blocks: u64) -> Self {
        Self { blocks: self.blocks.min(blocks), ..self }
    }
    pub fn range(self) -> Range<u64> {
        self.lba..self.lba + self.blocks
    }
    pub fn at(self, c: &Command<'_>) -> ByteOffset {
        ByteOffset(self.lba * c.lun.sector())
    }
    pub fn bytes(self, c: &Command<'_>) -> usize {
        braid_format::Bytes(self.blocks * c.lun.sector()).to_usize()
    }
}

/// The unit may be written.
pub(super) fn writable(c: &Command<'_>) -> Result<(), Refusal> {
    if c.lun.device.info().read_only { Err(Sense::WRITE_PROTECTED.into()) } else { Ok(()) }
}

/// An error of the device, told and answered.
pub(super) fn failed(
    c: &Command<'_>,
    sense: Sense,
) -> impl Fn(braid_device::DeviceError) -> Refusal {
    let lun = c.lun.number;
    move |error| {
        tracing::warn!(lun, %error, "a command failed");
        sense.into()
    }
}

/// What was written is on the device, if that was asked for.
pub(super) fn force(c: &Command<'_>, asked: bool) -> Result<(), Refusal> {
    if asked {
        c.lun.device.flush().map_err(failed(c, Sense::WRITE_ERROR))?;
    }
    Ok(())
}

/// READ (6), (10), (12), (16).
pub(super) fn read(c: &Command<'_>) -> Outcome {
    let span = Span::of(c).check(c)?.movable(c)?;
    if span.blocks == 0 {
        return Ok(Done::GOOD);
    }
    let mut buf = c.target.buffers.take(span.bytes(c));
    let _held = c.lun.ranges.take(span.range(), false);
    c.lun.device.read(span.at(c), &mut buf).map_err(failed(c, Sense::READ_ERROR))?;
    Ok(Done { data: DataIn::Large(buf), wanted: 0 })
}

/// WRITE (6), (10), (12), (16). An initiator that sends less than it names has that much written.
pub(super) fn write(c: &Command<'_>) -> Outcome {
    let span = Span::of(c).check(c)?.movable(c)?;
    writable(c)?;
    let wanted = span.bytes(c);
    put(c, span)?;
    Ok(Done::took(wanted))
}

/// Writes what was sent, whole blocks of it.
pub(super) fn put(c: &Command<'_>, span: Span) -> Result<Span, Refusal> {
    let span = span.at_most(c.data.len() as u64 / c.lun.sector());
    if span.blocks != 0 {
        let _held = c.lun.ranges.take(span.range(), true);
        let data = &c.data[..span.bytes(c)];
        c.lun.device.write(span.at(c), data).map_err(failed(c, Sense::WRITE_ERROR))?;
    }
    force(c, span.flags & FUA != 0)?;
    Ok(span)
}

/// ORWRITE (16): what stands there, or what was sent, or both.
pub(super) fn or_write(c: &Command<'_>) -> Outcome {
    let span = Span::of(c).check(c)?.movable(c)?;
    writable(c)?;
    let wanted = span.bytes(c);
    if c.data.len() < wanted {
        return Err(Sense::field(10).into());
    }
    if span.blocks != 0 {
        let mut buf = c.target.buffers.take(wanted);
        let _held = c.lun.ranges.take(span.range(), true);
        c.lun.device.read(span.at(c), &mut buf).map_err(failed(c, Sense::READ_ERROR))?;
        buf.iter_mut().zip(c.data).for_each(|(b, d)| *b |= d);
        c.lun.device.write(span.at(c), &buf).map_err(failed(c, Sense::WRITE_ERROR))?;
    }
    force(c, span.flags & FUA != 0)?;
    Ok(Done::took(wanted))
}

/// PRE-FETCH (10), (16): nothing is kept, so nothing is fetched.
pub(super) fn prefetch(c: &Command<'_>) -> Outcome {
    Span::of(c).in_range(c)?;
    Ok(Done::GOOD)
}

/// SYNCHRONIZE CACHE (10), (16): always of the whole unit.
pub(super) fn flush(c: &Command<'_>) -> Outcome {
    Span::of(c).in_range(c)?;
    force(c, true)?;
    Ok(Done::GOOD)
}
