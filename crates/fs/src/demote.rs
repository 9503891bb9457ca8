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
        // A write that this node gave up may land over what the next one writes, unless it is fenced before.
        let done = done.and_then(|()| Ok(self.volume.pool.check_given_up()?));
        match self.watch(done) {
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
        if to == Mode::Unlocked
            && let Err(e) = self.watch(self.alloc.hand_out())
        {
            tracing::warn!("cannot give all free space to the others: {e}");
            if self.withdrawn.get().is_some() {
                return Err(DemoteFailed);
            }
        }
        Ok(Demoted::default())
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use braid_format::{ByteOffset, Bytes};
    use braid_pool::device::{
        Abilities, AnswerBound, Command, Completion, Device, DeviceError, DeviceInfo, MemoryDevice,
    };
    use braid_pool::{CreateOptions, Pool};

    use super::*;
    use crate::attr::{Cred, NoKernelCache, WriteFlags};
    use crate::make::{MakeOptions, make};
    use crate::{Fs, MountOptions};

    const O_RDWR: i32 = 2;

    /// A disk as one node sees it, which that node may give up.
    #[derive(Debug)]
    struct Seen {
        disk: Arc<MemoryDevice>,
        info: DeviceInfo,
        given_up: AtomicBool,
    }

    impl Device for Seen {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }
        fn submit(
            &self,
            at: ByteOffset,
            what: Command<'_>,
        ) -> std::result::Result<Completion, DeviceError> {
            self.disk.submit(at, what)
        }
        fn abilities(&self) -> Abilities<'_> {
            Abilities { bound: Some(self), ..self.disk.abilities() }
        }
    }

    impl AnswerBound for Seen {
        fn answers_within(&self, _: Duration) {}
        fn given_up(&self) -> Option<Duration> {
            self.given_up.load(Ordering::Acquire).then(|| Duration::from_secs(11))
        }
        fn has_late(&self) -> bool {
            self.given_up.load(Ordering::Acquire)
        }
    }

    /// Whoever gets the file next finds that this node is over.
    #[test]
    fn a_file_that_a_device_was_given_up_over_goes_to_nobody() {
        let disk = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
        let info = DeviceInfo { is_path: true, ..disk.info().clone() };
        let seen = Arc::new(Seen { disk: disk.clone(), info, given_up: AtomicBool::new(false) });
        let pool = Pool::create(vec![seen.clone() as Arc<dyn Device>], &CreateOptions::new("p"));
        let pool = pool.unwrap();
        make(&pool, &MakeOptions { nodes: Some(2), ..MakeOptions::default() }, &mut |_, _| {})
            .unwrap();
        let mount =
            |pool| Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
        let one = mount(pool);
        let two = mount(Pool::assemble(vec![disk as Arc<dyn Device>]).unwrap());
        let (attr, fh) = one.create(one.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
        one.write(fh, 0, b"first", WriteFlags::default()).unwrap();
        let other = two.open(attr.ino, O_RDWR).unwrap();
        one.write(fh, 0, b"again", WriteFlags::default()).unwrap();

        seen.given_up.store(true, Ordering::Release);
        let written = two.write(other, 0, b"other", WriteFlags::default());
        let why = one.withdrawn().unwrap_or_default();
        assert!(why.contains("disk") && why.contains("cannot do without"), "{why:?}, {written:?}");
        written.unwrap();
        two.release(other).unwrap();
        two.unmount().unwrap();
        drop(one);
    }
}
