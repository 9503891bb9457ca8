//! Open files of this node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::attr::Fh;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::readahead::ReadaheadLimiter;

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// What is open.
    pub inode: Arc<Inode>,
    /// As given to `open` (`O_*`).
    pub flags: i32,
    /// Of reads that fill pages.
    pub readahead: ReadaheadLimiter,
}

impl OpenFile {
    /// May it be written?
    pub fn writable(&self) -> bool {
        // O_ACCMODE is 3; O_WRONLY 1, O_RDWR 2.
        matches!(self.flags & 3, 1 | 2)
    }
    /// May it be read?
    pub fn readable(&self) -> bool {
        matches!(self.flags & 3, 0 | 2)
    }
}

/// Open files by number.
#[derive(Debug)]
pub(crate) struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<Fh, Arc<OpenFile>>>,
}

impl Default for Handles {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl Handles {
    /// Registers an open of `inode` and counts it there.
    pub fn insert(&self, inode: Arc<Inode>, flags: i32) -> Fh {
        let file = OpenFile { inode, flags, readahead: ReadaheadLimiter::default() };
        file.inode.opens.fetch_add(1, Ordering::SeqCst);
        if file.writable() {
            file.inode.writers.fetch_add(1, Ordering::AcqRel);
        }
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(fh, Arc::new(file));
        fh
    }
    /// The open file.
    pub fn get(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        self.open.read().get(&fh).cloned().ok_or(Error::BadHandle)
    }
    /// Forgets it; returns it, counted out.
    pub fn remove(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        let file = self.open.write().remove(&fh).ok_or(Error::BadHandle)?;
        if file.writable() {
            file.inode.writers.fetch_sub(1, Ordering::AcqRel);
        }
        // Before the look at what the lock's record says: see `Inode::leaves_opener`.
        file.inode.opens.fetch_sub(1, Ordering::SeqCst);
        Ok(file)
    }
    /// Open files in all.
    pub fn len(&self) -> usize {
        self.open.read().len()
    }
}
