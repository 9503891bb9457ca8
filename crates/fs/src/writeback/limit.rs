//! The node's bound on dirty data. A writer that would exceed it writes dirty files out itself, the
//! largest first, and only files whose locks this node holds and nobody uses. No new cluster lock
//! is taken, so a writer never waits for another node here. It waits for a thread that is writing a
//! file out, as long as that makes progress. Otherwise many writers to slow devices would each
//! dirty some more.

use std::time::{Duration, Instant};

use braid_lock::{Local, Mode};
use braid_pool::device::tasks::{self, Awaited};

use super::flush;
use super::held::HeldInode;
use crate::core::Core;
use crate::error::{Error, Result};

/// A writer goes on if nothing has been written out for so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a waiting writer checks whether it can write something out itself.
const LOOK: Duration = Duration::from_millis(50);

/// Call this before `len` more bytes become dirty. If they would exceed the bound, writes files out
/// until three quarters of it are left, and waits for threads that do so already, if the writer
/// `may_wait`. The caller holds no lock of an inode. Writers that come at the same time may all
/// pass, each with what it holds in memory already.
///
/// # Errors
/// Only what makes the node withdraw: a file that cannot be written tells its own users.
pub(crate) fn make_room(core: &Core, len: u64, may_wait: bool) -> Result<()> {
    if !would_pass(core, len) {
        return Ok(());
    }
    let (dirty, target) = (&core.dirty, core.options.dirty_max.get() / 4 * 3);
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let busy = write_out(core, target)?;
        if dirty.bytes() < least {
            (least, since) = (dirty.bytes(), Instant::now());
        }
        if !may_wait || !busy || !would_pass(core, len) || since.elapsed() > PATIENCE {
            // There may be room for the next that waits, too.
            dirty.call_waiting();
            return Ok(());
        }
        let _waits = tasks::wait(Awaited::Memory);
        dirty.wait(LOOK);
    }
}

/// Writes dirty files out until at most `target` bytes are left, or nobody's is idle. Returns whether
/// somebody uses or writes out another one.
pub(crate) fn write_out(core: &Core, target: u64) -> Result<bool> {
    let mut busy = false;
    for inode in core.dirty.largest() {
        if core.dirty.bytes() <= target {
            break;
        }
        if inode.data.is_put_off() {
            continue;
        }
        let Some(guard) = core.locks.try_acquire(inode.lock_no(), Mode::Exclusive, Local::Shared)
        else {
            busy = true;
            continue;
        };
        let done = flush::try_flush(HeldInode { core, inode: &inode });
        drop(guard);
        match done {
            Ok(done) => busy |= !done,
            // Its pages stay dirty, and writes and fsyncs of the file report the error.
            Err(Error::Contents(_)) => {}
            Err(e) if e.damaged_block().is_some() => core.meta.note_damage(&e),
            Err(e) => return Err(e),
        }
    }
    Ok(busy)
}

/// Whether `len` more bytes would pass the bound.
pub(crate) fn would_pass(core: &Core, len: u64) -> bool {
    len > room(core)
}

/// Bytes that can be dirtied before the bound is passed.
pub(crate) fn room(core: &Core) -> u64 {
    core.options.dirty_max.get().saturating_sub(core.dirty.bytes())
}
