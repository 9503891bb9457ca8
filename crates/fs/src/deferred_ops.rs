//! What the lock manager asks of a node while its core is being made.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use braid_format::{InodeNo, LockNo};
use braid_lock::{DemoteFailed, Demoted, Demoting, DemotionWaits, GlockOps, Mode};

use crate::core::Core;
use crate::meta::Meta;
use crate::volume::Volume;

/// The lock manager and the membership are made before the core that serves them: they reach it
/// through this.
#[derive(Default)]
pub(crate) struct DeferredOps {
    pub core: OnceLock<Weak<Core>>,
    /// The core's metadata, set earlier: locks are taken before the core is complete.
    pub meta: OnceLock<Weak<Meta>>,
    /// The core's volume, set earlier, too.
    pub volume: OnceLock<Arc<Volume>>,
}
impl DeferredOps {
    /// The core, once it is whole.
    pub fn get(&self) -> Option<Arc<Core>> {
        self.core.get()?.upgrade()
    }
    /// Whether programs here may have stored what the kernel has not written back.
    fn has_mapped_pages(&self, lock: LockNo) -> bool {
        let inode = self.get().and_then(|core| core.inodes.find(InodeNo(lock.get())));
        inode.is_some_and(|inode| inode.may_have_unseen_stores())
    }
}
impl GlockOps for DeferredOps {
    fn granted(&self, _: LockNo, mode: Mode) {
        if mode == Mode::Exclusive
            && let Some(meta) = self.meta.get().and_then(Weak::upgrade)
        {
            meta.note_granted();
        }
    }
    fn demote(&self, what: &Demoting<'_>) -> std::result::Result<Demoted, DemoteFailed> {
        self.get().ok_or(DemoteFailed)?.demote(what)
    }
    fn demotion_waits(&self, lock: LockNo) -> DemotionWaits {
        match self.volume.get() {
            Some(volume) if volume.is_group_lock(lock) => DemotionWaits::Devices,
            Some(volume) if volume.space_lock() == lock => DemotionWaits::Locks,
            _ if self.has_mapped_pages(lock) => DemotionWaits::MappedPages,
            _ => DemotionWaits::Anything,
        }
    }
    fn demotes_soon(&self, lock: LockNo) -> bool {
        let inode = self.get().and_then(|core| core.inodes.find(InodeNo(lock.get())));
        self.demotion_waits(lock) == DemotionWaits::Anything
            && inode.is_none_or(|inode| {
                !inode.data.is_dirty() && inode.opens.load(Ordering::Acquire) == 0
            })
    }
    fn your_turn(&self, lock: LockNo) {
        if let Some(core) = self.get() {
            core.your_turn(lock);
        }
    }
    fn forget(&self, lock: LockNo) {
        if let Some(core) = self.get() {
            core.forget(lock);
        }
    }
}
