//! The dirty files of this node and how much memory their contents take.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_format::InodeNo;
use parking_lot::{Condvar, Mutex};

use crate::file_data::SpareBuffers;
use crate::inode::Inode;

/// Dirty data of this node, and whose it is.
#[derive(Debug, Default)]
pub(crate) struct DirtyFiles {
    bytes: AtomicU64,
    files: Mutex<HashMap<InodeNo, Arc<Inode>>>,
    /// Writers wait here until less is dirty.
    waiting: Mutex<()>,
    fell: Condvar,
    /// Memory of pages that were written out.
    pub spare: SpareBuffers,
}

impl DirtyFiles {
    /// Bytes of memory in dirty pages.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    /// `inode` held `before` and holds `after` now.
    pub fn moved(&self, inode: &Arc<Inode>, before: u64, after: u64) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
            self.call_waiting();
        }
        if before == 0 && after > 0 {
            self.files.lock().insert(inode.ino, inode.clone());
        } else if before > 0 && after == 0 {
            self.files.lock().remove(&inode.ino);
        }
    }
    /// Waits until less is dirty, or for so long.
    pub fn wait(&self, most: Duration) {
        self.fell.wait_for(&mut self.waiting.lock(), most);
    }
    /// One of the waiting threads looks again.
    pub fn call_waiting(&self) {
        self.fell.notify_one();
    }
    /// Dirty files, the largest first.
    pub fn largest(&self) -> Vec<Arc<Inode>> {
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
