//! Writes that the server has and that are not durable yet. They are kept here until they are: a server that was
//! started anew gets them once more. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use braid_format::InodeNo;
use braid_fs::Errno;

use super::files::RemoteFile;
use super::losses::Losses;

/// A write.
#[derive(Debug, Clone)]
pub struct PendingWrite {
    /// Numbers all changes.
    number: u64,
    /// First byte.
    pub offset: u64,
    /// What was written.
    pub bytes: Arc<[u8]>,
}

/// What is pending of a file.
#[derive(Debug)]
struct PendingFile {
    /// By which it can be written once more and made durable.
    file: Arc<RemoteFile>,
    writes: Vec<PendingWrite>,
    /// The last change that cannot be made once more.
    changed: Option<u64>,
    /// The file is closed, but for what is pending.
    closed: bool,
    /// A program has closed it: others may open it and rely on what they read there.
    is_due: bool,
    since: Instant,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Pending {
    files: HashMap<InodeNo, PendingFile>,
    /// What was lost: who asks for durability hears it, and who closes a file that he may write.
    pub losses: Losses,
    bytes: usize,
    last: u64,
}

impl Pending {
    /// Bytes of writes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Files of which something is pending.
    pub fn inodes(&self) -> Vec<InodeNo> {
        self.files.keys().copied().collect()
    }
    /// Whether something is pending of a file that a program has closed.
    pub fn is_due(&self) -> bool {
        self.files.values().any(|file| file.is_due)
    }
    /// When the oldest that is pending was written.
    pub fn oldest(&self) -> Option<Instant> {
        self.files.values().map(|file| file.since).min()
    }
    /// Whether something is pending of a file.
    pub fn has(&self, ino: InodeNo) -> bool {
        self.files.contains_key(&ino)
    }
    /// The number of the last change: those up to it are durable when what is asked for from now on is.
    pub fn last(&self) -> u64 {
        self.last
    }
    /// By which a file is made durable.
    pub fn file(&self, ino: InodeNo) -> Option<Arc<RemoteFile>> {
        self.files.get(&ino).map(|file| Arc::clone(&file.file))
    }
    /// Writes of a file, in their order.
    pub fn writes(&self, ino: InodeNo) -> Vec<PendingWrite> {
        self.files.get(&ino).map(|file| file.writes.clone()).unwrap_or_default()
    }

    fn entry(&mut self, file: &Arc<RemoteFile>) -> &mut PendingFile {
        self.last += 1;
        self.files.entry(file.inode.ino).or_insert_with(|| PendingFile {
            file: Arc::clone(file),
            writes: Vec::new(),
            changed: None,
            closed: false,
            is_due: false,
            since: Instant::now(),
        })
    }
    /// Something was written.
    pub fn wrote(&mut self, file: &Arc<RemoteFile>, offset: u64, bytes: &[u8]) {
        self.bytes += bytes.len();
        let number = self.last + 1;
        let write = PendingWrite { number, offset, bytes: bytes.into() };
        self.entry(file).writes.push(write);
    }
    /// A file was changed in a way that cannot be repeated.
    pub fn changed(&mut self, file: &Arc<RemoteFile>) {
        let number = self.last + 1;
        self.entry(file).changed = Some(number);
    }
    /// A file is closed. Whether something of it is pending through this open file: then it is closed later.
    pub fn close(&mut self, file: &Arc<RemoteFile>) -> bool {
        let Some(pending) = self.files.get_mut(&file.inode.ino) else { return false };
        pending.is_due = true;
        let is_kept = Arc::ptr_eq(&pending.file, file);
        if is_kept {
            pending.closed = true;
        }
        is_kept
    }
    /// Changes of a file (`None`: of all) are durable up to the number `last`. Open files that can be closed now.
    pub fn durable(&mut self, ino: Option<InodeNo>, last: u64) -> Vec<Arc<RemoteFile>> {
        let mut done = Vec::new();
        let bytes = &mut self.bytes;
        let mut settle = |file: &mut PendingFile| {
            file.writes.retain(|write| {
                let stays = write.number > last;
                *bytes -= if stays { 0 } else { write.bytes.len() };
                stays
            });
            file.changed = file.changed.filter(|number| *number > last);
            file.since = Instant::now();
            let over = file.writes.is_empty() && file.changed.is_none();
            if over && file.closed {
                done.push(Arc::clone(&file.file));
            }
            !over
        };
        match ino {
            None => self.files.retain(|_, file| settle(file)),
            Some(ino) => {
                if self.files.get_mut(&ino).is_some_and(|file| !settle(file)) {
                    self.files.remove(&ino);
                }
            }
        }
        done
    }
    /// What was pending of a file up to the number `last` is lost. The open file that can be closed now.
    pub fn lost(&mut self, ino: InodeNo, why: Errno, last: u64) -> Option<Arc<RemoteFile>> {
        self.losses.note(ino, why);
        self.durable(Some(ino), last).pop()
    }
    /// The server was started anew: files of which something may be lost that cannot be sent again.
    pub fn unrepeatable(&self) -> Vec<InodeNo> {
        let lost = self.files.iter().filter(|(_, file)| file.changed.is_some());
        lost.map(|(ino, _)| *ino).collect()
    }
    /// Those changes are lost; writes stay.
    pub fn lose_changes(&mut self, ino: InodeNo, why: Errno) {
        self.losses.note(ino, why);
        if let Some(file) = self.files.get_mut(&ino) {
            file.changed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_fs::Errno;

    use super::super::inode::Inode;
    use super::*;
    use crate::wire::Caller;

    fn file(ino: u64) -> Arc<RemoteFile> {
        let inode = Inode { ino: InodeNo(ino), generation: 1 };
        Arc::new(RemoteFile::new(inode, 1, Caller::default(), (1, 1)))
    }

    #[test]
    fn what_is_written_while_a_file_becomes_durable_stays() {
        let (mut pending, a) = (Pending::default(), file(7));
        pending.wrote(&a, 0, b"one");
        let last = pending.last();
        pending.wrote(&a, 3, b"two");
        assert!(pending.close(&a) && pending.is_due());
        assert!(pending.durable(Some(InodeNo(7)), last).is_empty());
        assert!(pending.is_due(), "the rest of a closed file is as urgent");
        let left: Vec<_> = pending.writes(InodeNo(7)).iter().map(|w| w.offset).collect();
        assert_eq!((left, pending.bytes()), (vec![3], 3));
        let last = pending.last();
        assert_eq!(pending.durable(None, last).len(), 1, "closed now");
        assert!(!pending.has(InodeNo(7)) && pending.bytes() == 0 && !pending.is_due());
    }

    #[test]
    fn a_loss_is_said_once() {
        let (mut pending, a) = (Pending::default(), file(7));
        pending.wrote(&a, 0, b"one");
        pending.changed(&a);
        assert_eq!(pending.unrepeatable(), [InodeNo(7)]);
        pending.lose_changes(InodeNo(7), Errno::IO);
        assert!(pending.unrepeatable().is_empty() && pending.has(InodeNo(7)));
        assert_eq!(pending.losses.tell(InodeNo(7), &a.told), Some(Errno::IO));
        assert_eq!(pending.losses.tell(InodeNo(7), &a.told), None);
        assert!(pending.lost(InodeNo(7), Errno::STALE, u64::MAX).is_none() && pending.bytes() == 0);
    }
}
