//! Files that a client has open.

use std::collections::HashMap;
use std::sync::Arc;

use braid_format::InodeNo;
use braid_fs::{Fh, FileSystem, Plock, PlockKind};

/// One of them.
#[derive(Debug)]
pub struct OpenFile {
    /// Number of the file system.
    pub fh: Fh,
    /// The inode.
    pub ino: InodeNo,
    /// Owner of the lock that it was opened with.
    pub lock: Option<u64>,
    /// It may be written.
    pub writable: bool,
    /// The user of a mount who has opened it; none for copies.
    pub user: Option<u32>,
}

impl OpenFile {
    /// The lock on the whole file.
    pub fn plock(owner: u64, kind: PlockKind) -> Plock {
        Plock { start: 0, end: u64::MAX, kind, owner, pid: 0, uid: 0 }
    }

    /// Root has opened it.
    pub fn by_root(&self) -> bool {
        self.user == Some(0)
    }

    /// Closes it in the file system, and gives its lock up.
    pub fn close<F: FileSystem>(&self, files: &F) {
        if let Some(owner) = self.lock
            && let Err(errno) = files.flock(self.ino, &Self::plock(owner, PlockKind::Unlock))
        {
            tracing::error!(ino = %self.ino, %errno, "a lock outlives its open file");
        }
        if let Err(errno) = files.release(self.fh) {
            tracing::error!(ino = %self.ino, %errno, "a file cannot be closed");
        }
    }
}

/// All of a session, counted by inode and by user.
#[derive(Debug, Default)]
pub struct OpenFiles {
    by_handle: HashMap<u64, Arc<OpenFile>>,
    of_inode: HashMap<InodeNo, usize>,
    of_user: HashMap<u32, usize>,
    last: u64,
}

impl OpenFiles {
    /// How many.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }
    /// The one of that handle.
    pub fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.by_handle.get(&handle).cloned()
    }
    /// One more: its handle.
    ///
    /// # Errors
    /// `most` are open already, or half as many by a user who is not root: the file is given back.
    pub fn insert(&mut self, file: OpenFile, most: usize) -> Result<u64, OpenFile> {
        let of_user = file.user.and_then(|uid| self.of_user.get(&uid)).copied().unwrap_or(0);
        let share = if file.user.is_none_or(|uid| uid == 0) { most } else { most / 2 };
        if self.len() >= most || of_user >= share {
            return Err(file);
        }
        self.last += 1;
        *self.of_inode.entry(file.ino).or_default() += 1;
        if let Some(uid) = file.user {
            *self.of_user.entry(uid).or_default() += 1;
        }
        self.by_handle.insert(self.last, Arc::new(file));
        Ok(self.last)
    }
    /// One less, and whether it was the last of its inode. `None`: there is none of that handle.
    pub fn remove(&mut self, handle: u64) -> Option<(Arc<OpenFile>, bool)> {
        let file = self.by_handle.remove(&handle)?;
        if let Some(uid) = file.user {
            one_less(&mut self.of_user, &uid);
        }
        let is_last = one_less(&mut self.of_inode, &file.ino);
        Some((file, is_last))
    }
    /// Takes all out.
    pub fn take(&mut self) -> impl Iterator<Item = Arc<OpenFile>> + use<> {
        let last = self.last;
        std::mem::replace(self, Self { last, ..Self::default() }).by_handle.into_values()
    }
}

/// Whether it was the last.
fn one_less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) -> bool {
    let Some(count) = counts.get_mut(of) else { return true };
    *count = count.saturating_sub(1);
    let is_last = *count == 0;
    if is_last {
        counts.remove(of);
    }
    is_last
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use super::*;

    fn file(ino: u64, user: Option<u32>) -> OpenFile {
        OpenFile { fh: 1, ino: InodeNo(ino), lock: None, writable: false, user }
    }

    #[test]
    fn one_user_does_not_take_all() {
        let mut files = OpenFiles::default();
        let handles: Vec<u64> =
            (0..4).map(|n| files.insert(file(n, Some(7)), 8).unwrap()).collect();
        assert!(files.insert(file(9, Some(7)), 8).is_err());
        assert!(files.insert(file(9, Some(8)), 8).is_ok());
        assert!((0..3).all(|n| files.insert(file(n, [None, Some(0)][n as usize % 2]), 8).is_ok()));
        assert!(files.insert(file(9, Some(0)), 8).is_err());
        files.remove(handles[0]).unwrap();
        assert!(files.insert(file(9, Some(7)), 8).is_ok());
    }

    #[test]
    fn the_last_of_an_inode_is_known() {
        let mut files = OpenFiles::default();
        let a = files.insert(file(5, None), 9).unwrap();
        let b = files.insert(file(5, Some(3)), 9).unwrap();
        assert!(files.remove(a).is_some_and(|(_, is_last)| !is_last));
        assert!(files.remove(b).is_some_and(|(_, is_last)| is_last));
        assert!(files.remove(b).is_none());
    }
}
