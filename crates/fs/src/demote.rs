//! The demotion pipeline: what this node does before another node gets a lock of its. First the kernel
//! drops what it has cached of the inode and may not keep; mapped pages that a program has changed come
//! back as writes. Then contents are written, then the journal, then metadata in place. Only then is
//! the lock's record changed (by [`braid_lock`]).

use std::sync::Arc;

use braid_format::{InodeNo, LockNo};
use braid_lock::{DemoteFailed, Demoted, Demoting, GlockOps, Mode, PageDrops, ToDrop};

use crate::core::Core;
use crate::error::Result;
use crate::inode::Inode;
use crate::mode::{S_IFDIR, S_IFMT};

impl GlockOps for Core {
    fn demote(&self, what: &Demoting<'_>) -> std::result::Result<Demoted, DemoteFailed> {
        let Demoting { lock, from, to, .. } = *what;
        if lock == self.volume.space_lock() {
            return self.hand_space_out(to);
        }
        let inode = self.inodes.find(InodeNo(lock.get()));
        if inode.is_none() {
            // A resource group's, perhaps: another node may put free space there.
            self.alloc.note_change_by_others();
        }
        let done = match &inode {
            Some(inode) => self.demote_inode(inode, what),
            // Metadata without an inode (resource group, bucket, counters).
            None if from == Mode::Exclusive => {
                self.plocks.store(self, lock).and_then(|()| self.meta.sync_owner(lock))
            }
            None => Ok(()),
        };
        match self.watch(done.and_then(|()| self.nothing_comes_late(from))) {
            Ok(()) => {
                let written = inode.as_ref().and_then(|inode| inode.deferred_mtime_for(to));
                let opened = to == Mode::Unlocked
                    && inode.is_some_and(|i| i.leaves_opener(|| self.is_in_kernel(&i, what.pages)));
                Ok(Demoted { opened, written })
            }
            Err(e) => {
                tracing::error!(lock = %lock, "cannot give the lock up: {e}");
                // Whatever failed, even one file's contents: the lock stays held, and nodes that
                // wait for it get it only when this node counts as dead.
                self.withdraw(&e);
                Err(DemoteFailed)
            }
        }
    }
    fn your_turn(&self, lock: LockNo) {
        self.plocks.your_turn(lock);
    }
    fn forget(&self, lock: LockNo) {
        let ino = InodeNo(lock.get());
        if let Some(inode) = self.inodes.find(ino) {
            inode.unload();
        }
        self.plocks.forget(lock);
        self.meta.drop_owner(lock);
        self.inodes.evict(ino);
    }
}

impl Core {
    /// Another node has found no space. What is left here after an error that ends nothing is no harm.
    fn hand_space_out(&self, to: Mode) -> std::result::Result<Demoted, DemoteFailed> {
        self.alloc.note_change_by_others();
        let handed_out =
            || self.alloc.hand_out().and_then(|()| self.nothing_comes_late(Mode::Exclusive));
        if to == Mode::Unlocked
            && let Err(e) = self.watch(handed_out())
        {
            tracing::warn!("cannot give all free space to the others: {e}");
            if self.withdrawn.get().is_some() {
                return Err(DemoteFailed);
            }
        }
        Ok(Demoted::default())
    }
    /// What this node wrote under a lock stays as the next holder finds it: a write that a device did not answer, and
    /// that this node gave up, may be done at any later time until this node is fenced. Which lock covered it is
    /// not asked: blocks and locks change hands.
    ///
    /// # Errors
    /// Such a write may still be done: this node withdraws, and gives nothing up.
    fn nothing_comes_late(&self, from: Mode) -> Result<()> {
        match from {
            Mode::Exclusive | Mode::Concurrent => Ok(self.volume.pool.check_given_up()?),
            Mode::Shared | Mode::Unlocked => Ok(()),
        }
    }
    /// Writes back everything under an inode's exclusive lock: contents, times, metadata.
    fn demote_inode(&self, inode: &Arc<Inode>, what: &Demoting<'_>) -> Result<()> {
        let Demoting { from, to, .. } = *what;
        if let Some(st) = inode.peek() {
            let is_dir = st.raw.mode.get() & S_IFMT == S_IFDIR;
            let writable = inode.writers.load(std::sync::atomic::Ordering::Acquire) > 0;
            if to != Mode::Shared || writable {
                // First the kernel's pages: dirty mapped ones come back to us as writes. If there
                // can be none (see `Inode::writers`), a page fill may be waiting for the exclusive
                // lock, and nothing must wait for that fill. Beside other writers there are none.
                let pages = match from {
                    Mode::Exclusive => !is_dir,
                    Mode::Shared => !is_dir && !writable,
                    Mode::Concurrent | Mode::Unlocked => false,
                };
                if pages {
                    self.drop_pages(inode, what.pages);
                } else {
                    self.kernel.invalidate_inode(inode.ino, false);
                }
            }
            if is_dir && to == Mode::Unlocked {
                self.kernel.invalidate_entries(inode.ino);
            }
            if from == Mode::Exclusive {
                crate::writeback::flush_for_demotion(self, inode)?;
            }
        }
        if from == Mode::Exclusive {
            self.meta.sync_owner(inode.lock_no())?;
        }
        Ok(())
    }
    /// Drops all that the kernel has of an inode, and what it fills meanwhile.
    fn drop_pages(&self, inode: &Inode, drops: &dyn PageDrops) {
        inode.drops_pages();
        let unbegun = || self.kernel.unbegun_fills(inode.ino);
        while let Some(next) = drops.next(&unbegun) {
            match next {
                ToDrop::All => self.kernel.invalidate_inode(inode.ino, true),
                ToDrop::Pages(from, to) => self.kernel.invalidate_pages(inode.ino, from..to),
                ToDrop::Attributes => self.kernel.invalidate_inode(inode.ino, false),
            }
        }
    }
    /// Whether the kernel refers to an inode whose whole lock is being given up. The kernel drops what
    /// it has merely cached. It cannot drop a directory of which it has cached names, so a directory
    /// that has a name is in use only if it is open.
    fn is_in_kernel(&self, inode: &Inode, drops: &dyn PageDrops) -> bool {
        let of_directory = inode.state_ref().map(|st| {
            let is_dir = st.raw.mode.get() & S_IFMT == S_IFDIR;
            is_dir.then(|| st.raw.nlink.get())
        });
        match of_directory {
            None => false,
            Some(Some(links)) => links == 0 && self.kernel.refers(inode.ino),
            Some(None) => {
                let mut refers = false;
                drops.with_all_fills(&mut || refers = self.kernel.let_go(inode.ino));
                refers
            }
        }
    }
}
