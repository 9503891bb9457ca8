//! What a freeze of the pool asks of this node: that all is stable, and that changes wait at the pool's gate.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use braid_lock::{NotFrozen, OnFreeze};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::writeback::make_stable;

/// Of a mounted node.
pub(crate) struct NodeFreeze(Weak<Core>);

impl NodeFreeze {
    pub fn of(core: &Arc<Core>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(core)))
    }
}

impl OnFreeze for NodeFreeze {
    fn prepare(&self) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let core = self.0.upgrade().ok_or("the node has left")?;
        write_back(&core);
        write_all(&core)?;
        // Most of what is left to do once changes wait. Others go on meanwhile.
        Ok(core.meta.checkpoint()?)
    }
    fn freeze(&self, deadline: Instant) -> bool {
        let Some(core) = self.0.upgrade() else { return false };
        if !core.freeze.freeze(deadline) {
            return false;
        }
        // What was under way has ended. After this nothing has to be written before a lock is given up.
        let in_place = core.watch(write_all(&core).and_then(|()| core.meta.close()));
        if let Err(e) = &in_place {
            tracing::error!("the pool cannot be frozen: {e}");
        }
        let frozen = in_place.is_ok() && core.volume.pool.freeze(deadline);
        if !frozen {
            core.freeze.thaw();
        }
        frozen
    }
    fn thaw(&self) {
        if let Some(core) = self.0.upgrade() {
            core.volume.pool.thaw();
            core.freeze.thaw();
        }
    }
}

/// Has the kernel give back what programs have changed in its pages.
fn write_back(core: &Core) {
    for inode in core.inodes.all() {
        if inode.writers.load(Ordering::Acquire) > 0 {
            core.kernel.invalidate_inode(inode.ino, true);
        }
    }
}

/// As [`make_stable`], but for what cannot be written of single files, of which programs have been told.
fn write_all(core: &Arc<Core>) -> Result<()> {
    match make_stable(core) {
        Err(e @ (Error::Contents(_) | Error::NoSpace)) => {
            tracing::warn!("the pool is frozen without what one file has not written: {e}");
            core.meta.commit_and_flush()
        }
        done => done,
    }
}

impl From<NotFrozen> for Error {
    fn from(e: NotFrozen) -> Self {
        Self::Freeze(Box::new(e))
    }
}
