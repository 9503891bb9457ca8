//! Files and directories that programs have open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::InodeNo;
use braid_fs::{Answer, Errno, Fh};
use parking_lot::{Mutex, RwLock};

use super::inode::Inode;
use super::progress::Progress;
use crate::wire::Caller;

/// One of them.
#[derive(Debug)]
pub struct RemoteFile {
    /// Which inode.
    pub inode: Inode,
    /// Flags of open(2) with which it is opened again: without what has been done once.
    pub flags: u32,
    /// Who opened it.
    pub caller: Caller,
    /// What it is to the server.
    pub place: Mutex<Place>,
    /// The number of the last loss that it was told of.
    pub told: AtomicU64,
    /// How far it was read.
    pub progress: Mutex<Progress>,
    /// Programs have closed it.
    pub is_closed: AtomicBool,
}

/// What an open file is to the server.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// In which session.
    pub session: u64,
    /// By which number.
    pub handle: u64,
    /// It is of no use any more.
    pub lost: Option<Errno>,
}

impl RemoteFile {
    /// One that is open in a session.
    pub fn new(inode: Inode, flags: u32, caller: Caller, (session, handle): (u64, u64)) -> Self {
        let place = Mutex::new(Place { session, handle, lost: None });
        let (told, progress, is_closed) = Default::default();
        Self { inode, flags, caller, place, told, progress, is_closed }
    }
    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.flags & 3 != 0
    }
    /// It is of no use any more.
    pub fn lose(&self, why: Errno) {
        self.place.lock().lost.get_or_insert(why);
    }
}

#[derive(Debug, Default)]
struct State {
    last: Fh,
    open: HashMap<Fh, Arc<RemoteFile>>,
    by_inode: HashMap<InodeNo, Vec<Arc<RemoteFile>>>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Files(RwLock<State>);

impl Files {
    /// One more: its number.
    pub fn insert(&self, file: RemoteFile) -> Fh {
        let (mut state, file) = (self.0.write(), Arc::new(file));
        state.last += 1;
        let fh = state.last;
        state.by_inode.entry(file.inode.ino).or_default().push(Arc::clone(&file));
        state.open.insert(fh, file);
        fh
    }
    /// The one of that number.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, fh: Fh) -> Answer<Arc<RemoteFile>> {
        self.0.read().open.get(&fh).cloned().ok_or(Errno::BADF)
    }
    /// All of an inode.
    pub fn all_of(&self, ino: InodeNo) -> Vec<Arc<RemoteFile>> {
        self.0.read().by_inode.get(&ino).cloned().unwrap_or_default()
    }
    /// All of an inode are of no use any more.
    pub fn lose(&self, ino: InodeNo, why: Errno) {
        if let Some(files) = self.0.read().by_inode.get(&ino) {
            for file in files {
                file.lose(why);
            }
        }
    }
    /// It is closed.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&self, fh: Fh) -> Answer<Arc<RemoteFile>> {
        let mut state = self.0.write();
        let file = state.open.remove(&fh).ok_or(Errno::BADF)?;
        file.is_closed.store(true, Ordering::Relaxed);
        if let Some(files) = state.by_inode.get_mut(&file.inode.ino) {
            files.retain(|other| !Arc::ptr_eq(other, &file));
            if files.is_empty() {
                state.by_inode.remove(&file.inode.ino);
            }
        }
        Ok(file)
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.0.read().open.len()
    }
}
