//! Reads contents: those that are kept, and those that are to be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_fs::Answer;

use super::Remote;
use super::files::RemoteFile;

/// Of open(2): the program wants nothing kept.
const O_DIRECT: u32 = 0o40_000;
/// Files up to this size are read as a whole.
const SMALL: u64 = 256 << 10;

/// Contents that are kept, of some bytes of a file.
pub struct Kept {
    pieces: Vec<Arc<[u8]>>,
    /// Of the first: where it begins.
    from: usize,
    len: usize,
}

impl Kept {
    /// All at once, if they are in one piece.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let (first, rest) = self.pieces.split_first()?;
        rest.is_empty().then(|| within(first, self.from, self.len))
    }
    /// Copies them: how many there are.
    pub fn copy_to(&self, memory: &mut [u8]) -> usize {
        let (mut done, mut from) = (0, self.from);
        for piece in &self.pieces {
            let bytes = within(piece, from, self.len - done);
            if let Some(to) = memory.get_mut(done..done + bytes.len()) {
                to.copy_from_slice(bytes);
            }
            (done, from) = (done + bytes.len(), 0);
        }
        done
    }
}

fn within(bytes: &[u8], from: usize, most: usize) -> &[u8] {
    let from = from.min(bytes.len());
    bytes.get(from..(from + most).min(bytes.len())).unwrap_or_default()
}

impl Remote {
    /// Contents that are kept, or that can be. `None`: each read is a request of its own.
    pub(super) fn kept(
        self: &Arc<Self>,
        file: &Arc<RemoteFile>,
        offset: u64,
        len: usize,
    ) -> Option<Kept> {
        if self.leases.is_off() || file.flags & O_DIRECT != 0 || len == 0 {
            return None;
        }
        let (piece, inode) = (self.chunk as u64, (file.inode.ino, file.inode.generation));
        let ahead = file.progress.lock().reads(offset, len as u64, piece);
        let (first, last) = (offset / piece, offset.checked_add(len as u64 - 1)? / piece);
        let is_small = first == 0 && self.leases.attr(inode).is_some_and(|attr| attr.size <= SMALL);
        let fetches = ahead.is_some() || is_small;
        if let Some(ahead) = ahead {
            self.read_ahead(file, ahead);
        }
        for _ in first..=last + 1 {
            match self.leases.pieces(inode, first..=last, self.chunk) {
                Ok(pieces) => {
                    let from = usize::try_from(offset % piece).ok()?;
                    return Some(Kept { pieces, from, len });
                }
                Err(missing) if fetches => self.fetch(file, missing).ok()?,
                Err(_) => return None,
            }
        }
        // Others change it all the time.
        file.progress.lock().discourage();
        None
    }

    /// Has pieces read by other threads.
    fn read_ahead(self: &Arc<Self>, file: &Arc<RemoteFile>, pieces: std::ops::Range<u64>) {
        let inode = (file.inode.ino, file.inode.generation);
        let end = self.leases.attr(inode).map(|attr| attr.size.div_ceil(self.chunk as u64));
        let pieces = pieces.start..pieces.end.min(end.unwrap_or(u64::MAX)).max(pieces.start);
        if self.ahead.want(file, pieces) {
            let me = Arc::clone(self);
            let read = move || {
                while let Some(wanted) = me.ahead.next() {
                    if !wanted.file.is_closed.load(Ordering::Relaxed) {
                        me.fetch(&wanted.file, wanted.piece).ok();
                    }
                }
            };
            if std::thread::Builder::new().name("bulk-ahead".into()).spawn(read).is_err() {
                self.ahead.no_reader();
            }
        }
    }

    /// Asks for a piece and keeps it, if it may be kept; or waits until another thread has done so.
    fn fetch(&self, file: &RemoteFile, piece: u64) -> Answer<()> {
        let inode = (file.inode.ino, file.inode.generation);
        if self.leases.pieces(inode, piece..=piece, self.chunk).is_ok()
            || !self.ahead.begin(file.inode.ino, piece)
        {
            return Ok(());
        }
        let offset = piece.saturating_mul(self.chunk as u64);
        let fetched =
            self.read_piece(file, (offset, true), self.chunk, |bytes| Arc::<[u8]>::from(bytes));
        if let Ok(bytes) = &fetched {
            self.leases.keep_piece(inode, piece, Arc::clone(bytes));
        }
        self.ahead.end(file.inode.ino, piece);
        fetched.map(drop)
    }
}
