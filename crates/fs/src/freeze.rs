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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_pool::TestPool;
    use crate::{Cred, Fs, MountOptions, NoKernelCache};

    #[test]
    fn a_mount_for_reading_refuses_changes_at_once_while_the_pool_is_frozen() {
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Fs::mount(TestPool::new(1, 96, 1).pool(), options, Arc::new(NoKernelCache));
        let fs = fs.unwrap();
        fs.freeze(Duration::from_mins(1), Duration::from_secs(5)).unwrap();
        // By a thread: if they waited for the thaw, they would wait for a minute.
        let (tell, told) = std::sync::mpsc::channel();
        let of_thread = fs.clone();
        std::thread::spawn(move || {
            let made = of_thread.mkdir(of_thread.root(), b"new", 0o755, &Cred::default());
            let opened = of_thread.open(of_thread.root(), 0o1000);
            tell.send((made.map(drop), opened.map(drop))).ok();
        });
        let refused = told.recv_timeout(Duration::from_secs(20)).expect("nobody waits");
        assert!(matches!(refused, (Err(Error::ReadOnly), Err(Error::ReadOnly))), "{refused:?}");
        fs.thaw().unwrap();
        fs.unmount().unwrap();
    }
}
