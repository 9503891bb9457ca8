//! The node's bound on dirty data. Whoever would pass it writes dirty files out itself, the largest
//! first, and only files whose locks this node holds and nobody uses: no new cluster lock is taken,
//! so a writer never waits for another node here.

use braid_lock::{Local, Mode};

use super::{Held, flush};
use crate::core::Core;
use crate::error::{Error, Result};

/// Before `len` more bytes are dirtied: if they would pass the bound, writes files out until three
/// quarters of it are left. The caller holds no lock of an inode.
///
/// # Errors
/// Only what makes the node withdraw: a file that cannot be written tells its own users.
pub(crate) fn make_room(core: &Core, len: u64) -> Result<()> {
    if would_pass(core, len) {
        write_out(core, core.options.dirty_max.get() / 4 * 3)
    } else {
        Ok(())
    }
}

/// Writes dirty files out until at most `target` bytes are left, or nobody's is idle.
pub(crate) fn write_out(core: &Core, target: u64) -> Result<()> {
    for inode in core.dirty.largest() {
        if core.dirty.bytes() <= target {
            break;
        }
        if inode.data.is_put_off() {
            continue;
        }
        let Some(guard) = core.locks.try_acquire(inode.lock_no(), Mode::Exclusive, Local::Shared)
        else {
            continue;
        };
        let done = flush::try_flush(Held { core, inode: &inode });
        drop(guard);
        match done {
            // Its pages stay dirty: whoever writes or syncs it hears of it.
            Ok(()) | Err(Error::Contents(_)) => {}
            Err(e) if e.damaged_block().is_some() => core.meta.note_damage(&e),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether `len` more bytes would pass the bound.
pub(crate) fn would_pass(core: &Core, len: u64) -> bool {
    len > room(core)
}

/// Bytes that can be dirtied before the bound is passed.
pub(crate) fn room(core: &Core) -> u64 {
    core.options.dirty_max.get().saturating_sub(core.dirty.bytes())
}
