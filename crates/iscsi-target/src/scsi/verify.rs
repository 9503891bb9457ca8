//! VERIFY, and WRITE AND VERIFY.

use super::command::Command;
use super::rw::{FUA, Span, failed, put, writable};
use crate::outcome::{Done, Outcome, Refusal};
use crate::sense::Sense;

/// How bytes are checked, by the BYTCHK field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// That they can be read.
    Medium,
    /// Against as many.
    Bytes,
    /// Each block against the same one.
    Block,
}

impl Check {
    fn of(c: &Command<'_>) -> Result<Self, Refusal> {
        match c.cdb[1] >> 1 & 3 {
            0 => Ok(Self::Medium),
            1 => Ok(Self::Bytes),
            3 => Ok(Self::Block),
            _ => Err(Sense::field(1).into()),
        }
    }
}

/// Reads the blocks and compares them.
fn compare(c: &Command<'_>, span: Span, check: Check) -> Result<(), Refusal> {
    if span.blocks == 0 {
        return Ok(());
    }
    let mut found = c.target.buffers.take(span.bytes(c));
    let _held = c.lun.ranges.take(span.range(), false);
    c.lun.device.read(span.at(c), &mut found).map_err(failed(c, Sense::READ_ERROR))?;
    let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
    let at = match check {
        Check::Medium => None,
        Check::Bytes => differ(&found, c.data),
        Check::Block => {
            let block = c.data.len().max(1);
            let mut blocks = found.chunks(block).enumerate();
            blocks.find_map(|(n, b)| differ(b, c.data).map(|at| n * block + at))
        }
    };
    at.map_or(Ok(()), |at| Err(Sense::miscompare(at).into()))
}

/// VERIFY (10), (12), (16).
pub(super) fn verify(c: &Command<'_>) -> Outcome {
    let check = Check::of(c)?;
    let span = Span::of(c).check(c)?.movable(c)?;
    let wanted = match check {
        Check::Medium => 0,
        Check::Bytes => span.bytes(c),
        Check::Block if span.blocks == 0 => 0,
        Check::Block => span.at_most(1).bytes(c),
    };
    if c.data.len() < wanted {
        return Err(Sense::field(7).into());
    }
    let only = Command { data: &c.data[..wanted], ..*c };
    compare(&only, span, check)?;
    Ok(Done::took(wanted))
}

/// WRITE AND VERIFY (10), (12), (16): on the medium, whatever the cache.
pub(super) fn write_verify(c: &Command<'_>) -> Outcome {
    let check = Check::of(c)?;
    if check == Check::Block {
        return Err(Sense::field(1).into());
    }
    let span = Span::of(c).check(c)?.movable(c)?;
    writable(c)?;
    let wanted = span.bytes(c);
    let written = put(c, Span { flags: span.flags | FUA, ..span })?;
    compare(c, written, check)?;
    Ok(Done::took(wanted))
}
