//! The node's bound on dirty data. Whoever would pass it writes dirty files out itself, the largest
//! first, and only files whose locks this node holds and nobody uses: no new cluster lock is taken,
//! so a writer never waits for another node here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::InodeNo;
use braid_lock::{Local, Mode};
use parking_lot::Mutex;

use super::pages::Spare;
use super::{Held, flush};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::Inode;

/// Dirty data of this node, and whose it is.
#[derive(Debug, Default)]
pub(crate) struct DirtyBound {
    bytes: AtomicU64,
    files: Mutex<HashMap<InodeNo, Arc<Inode>>>,
    /// Memory of pages that were written out.
    pub(super) spare: Spare,
}

impl DirtyBound {
    /// Bytes of memory in dirty pages.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    /// `inode` held `before` and holds `after` now.
    pub(super) fn moved(&self, inode: &Arc<Inode>, before: u64, after: u64) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        if before == 0 && after > 0 {
            self.files.lock().insert(inode.ino, inode.clone());
        } else if before > 0 && after == 0 {
            self.files.lock().remove(&inode.ino);
        }
    }
    /// Dirty files, the largest first.
    fn largest(&self) -> Vec<Arc<Inode>> {
        let mut files: Vec<(u64, Arc<Inode>)> = self
            .files
            .lock()
            .values()
            .map(|i| (i.data.dirty.load(Ordering::Relaxed), i.clone()))
            .collect();
        files.sort_by_key(|f| std::cmp::Reverse(f.0));
        files.into_iter().map(|f| f.1).collect()
    }
}

/// Before `len` more bytes are dirtied: if they would pass the bound, writes files out until three
/// quarters of it are left. The caller holds no lock of an inode.
///
/// # Errors
/// Only what makes the node withdraw: a file that cannot be written tells its own users.
pub(super) fn make_room(core: &Core, len: u64) -> Result<()> {
    if would_pass(core, len) {
        write_out(core, core.options.dirty_max.get() / 4 * 3)
    } else {
        Ok(())
    }
}

/// Writes dirty files out until at most `target` bytes are left, or nobody's is idle.
pub(super) fn write_out(core: &Core, target: u64) -> Result<()> {
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
pub(super) fn would_pass(core: &Core, len: u64) -> bool {
    len > room(core)
}

/// Bytes that can be dirtied before the bound is passed.
pub(super) fn room(core: &Core) -> u64 {
    core.options.dirty_max.get().saturating_sub(core.dirty.bytes())
}
