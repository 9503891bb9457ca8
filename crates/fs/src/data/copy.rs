//! copy_file_range(2): bytes through memory of this node, never through the caller's.

use std::sync::Arc;

use braid_lock::{Local, Mode};

use super::read::{with_bytes, with_copy_buffer};
use super::{HeldInode, require_regular, write};
use crate::attr::{EarlyReply, Write, WriteFlags};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::handle::OpenFile;

/// Bytes copied under one pair of locks, in one buffer: how many there are at a time is bounded, whoever copies.
const STEP: u64 = 1 << 20;
/// Bytes copied by one call: the caller asks again for the rest.
const CALL_MAX: u64 = 64 << 20;

/// Copies; returns the bytes copied, fewer than `len` at the source's end or after 64 MiB. `reply` gets
/// the writes; it must not let any be answered early.
///
/// # Errors
/// `Invalid` when the ranges overlap in one file; what reading and writing give, unless something
/// was copied before.
pub(crate) fn copy_file_range(
    core: &Arc<Core>,
    from: (&OpenFile, u64),
    to: (&OpenFile, u64),
    len: u64,
    reply: &mut dyn EarlyReply,
) -> Result<u64> {
    let ((source, from), (target, to)) = (from, to);
    if !source.readable() || !target.writable() {
        return Err(Error::BadHandle);
    }
    let len = len.min(CALL_MAX);
    let (Some(from_end), Some(to_end)) = (from.checked_add(len), to.checked_add(len)) else {
        return Err(Error::TooLarge);
    };
    if source.inode.ino == target.inode.ino && from < to_end && to < from_end {
        return Err(Error::Invalid("overlapping ranges"));
    }
    let mut done = 0;
    while done < len {
        let step = (len - done).min(STEP);
        let (source, target) = ((source, from + done), (target, to + done));
        // Others have a turn between any two steps.
        let copied = with_copy_buffer(usize::try_from(step).unwrap_or(0), |memory| {
            copy_step(core, source, target, memory, reply)
        });
        match copied {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if done == 0 || e.is_fatal() => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn copy_step(
    core: &Arc<Core>,
    (source, from): (&OpenFile, u64),
    (target, to): (&OpenFile, u64),
    memory: &mut [u8],
    reply: &mut dyn EarlyReply,
) -> Result<u64> {
    let n = {
        let locked = core.lock(source.inode.ino, Mode::Shared, Local::Shared)?;
        require_regular(&locked)?;
        with_bytes(HeldInode::of(core, &locked), from, memory.len() as u64, |bytes| {
            if let Some(to) = memory.get_mut(..bytes.len()) {
                to.copy_from_slice(bytes);
            }
            bytes.len()
        })?
    };
    match memory.get(..n) {
        Some(bytes) if n > 0 => {
            let what = Write { offset: to, bytes, flags: WriteFlags::default() };
            write(core, target, what, reply).map(|n| n as u64)
        }
        _ => Ok(0),
    }
}
