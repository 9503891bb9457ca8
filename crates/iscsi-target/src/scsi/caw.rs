//! COMPARE AND WRITE: the one command that a cluster's locks are made of.
//!
//! A range of which somebody else holds any part is waited for, so the comparison and the write
//! are one step among all sessions. One aligned block also goes by the device's own
//! compare-and-write: so it is one step among everybody on this host.

use braid_device::{CAW_MAX, CawOutcome};

use super::command::{Command, be64};
use super::rw::{FUA, Span, failed, force, writable};
use crate::outcome::{Done, Outcome, Refusal};
use crate::sense::Sense;

/// Most blocks of one command: the field has eight bits.
pub(super) const BLOCKS_MAX: u8 = u8::MAX;

/// COMPARE AND WRITE: the first half of the data is compared, the second written.
pub(super) fn compare_and_write(c: &Command<'_>) -> Outcome {
    let (lba, blocks) = (be64(c.cdb, 2), u64::from(c.cdb[13]));
    let span = Span { lba, blocks, flags: c.cdb[1] }.check(c)?;
    writable(c)?;
    let half = span.bytes(c);
    if c.data.len() != half * 2 {
        return Err(Sense::field(13).into());
    }
    if blocks == 0 {
        return Ok(Done::GOOD);
    }
    let (expected, new) = c.data.split_at(half);
    {
        let _held = c.lun.ranges.take(span.range(), true);
        exchange(c, span, expected, new)?;
    }
    force(c, span.flags & FUA != 0)?;
    Ok(Done::took(half * 2))
}

fn exchange(c: &Command<'_>, span: Span, expected: &[u8], new: &[u8]) -> Result<(), Refusal> {
    let (device, at) = (&c.lun.device, span.at(c));
    let differ = |found: &[u8]| {
        let first = found.iter().zip(expected).position(|(f, e)| f != e);
        Err(Sense::miscompare(first.unwrap_or(0)).into())
    };
    let len = new.len() as u64;
    let one = len.is_power_of_two() && len <= CAW_MAX.get() && at.get().is_multiple_of(len);
    if one && device.info().caps.compare_and_write.get() > 0 {
        let outcome = device.compare_and_write(at, expected, new);
        return match outcome.map_err(failed(c, Sense::WRITE_ERROR))? {
            CawOutcome::Written => Ok(()),
            CawOutcome::Mismatch(found) => differ(&found),
        };
    }
    let mut found = c.target.buffers.take(new.len());
    device.read(at, &mut found).map_err(failed(c, Sense::READ_ERROR))?;
    if *found != *expected {
        return differ(&found);
    }
    device.write(at, new).map_err(failed(c, Sense::WRITE_ERROR))
}
