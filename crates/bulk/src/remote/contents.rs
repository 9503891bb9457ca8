//! Contents of open files.

use std::sync::Arc;

use braid_fs::{Answer, Durable, Errno, Fh, Write, WriteFlags};
use parking_lot::Mutex;

use super::Remote;
use super::calls::About;
use super::files::RemoteFile;
use crate::wire::{MountRequest, Reply, Request, how};

/// Most pieces of a request that are under way at once.
const PIECES: usize = 8;

/// Does `work` with `pieces`, several at once, which go by connections of their own: what came of them, in their order.
fn side_by_side<P: Send, R: Send>(
    pieces: impl ExactSizeIterator<Item = P> + Send,
    work: impl Fn(P) -> R + Sync,
) -> Vec<R> {
    let helpers = pieces.len().min(PIECES).saturating_sub(1);
    let (queue, done) = (Mutex::new(pieces.enumerate()), Mutex::new(Vec::new()));
    let work_on = || {
        loop {
            let Some((n, piece)) = queue.lock().next() else { return };
            let result = work(piece);
            done.lock().push((n, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // Without a thread there are fewer at once.
            std::thread::Builder::new().spawn_scoped(scope, work_on).ok();
        }
        work_on();
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

fn first(handles: &[u64]) -> u64 {
    handles.first().copied().unwrap_or(0)
}

impl Remote {
    /// Fills `memory` as far as the file has bytes.
    ///
    /// # Errors
    /// What the program is to see, here and below.
    pub(super) fn read(self: &Arc<Self>, fh: Fh, offset: u64, memory: &mut [u8]) -> Answer<usize> {
        let file = self.files.get(fh)?;
        if let Some(kept) = self.kept(&file, offset, memory.len()) {
            return Ok(kept.copy_to(memory));
        }
        let read = |(n, piece): (usize, &mut [u8])| {
            let at = offset.saturating_add((n * self.chunk) as u64);
            let wanted = piece.len();
            let filled = self.read_piece(&file, (at, false), wanted, |bytes| {
                piece.get_mut(..bytes.len()).unwrap_or_default().copy_from_slice(bytes);
                bytes.len()
            });
            (filled, wanted)
        };
        let mut done = 0;
        for (filled, wanted) in side_by_side(memory.chunks_mut(self.chunk).enumerate(), read) {
            let n = filled?;
            done += n;
            if n < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads what goes by one message, perhaps to be kept, and gives it to `take`.
    pub(super) fn read_piece<R>(
        &self,
        file: &RemoteFile,
        (offset, keep): (u64, bool),
        wanted: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        let length = u32::try_from(wanted).map_err(|_| Errno::INVAL)?;
        let mut take = Some(take);
        let request =
            |handles: &[u64]| Request::Read { handle: first(handles), offset, length, keep };
        let about = About { files: &[file], ..About::default() };
        let taken = self.ask(about, request, |_, data| {
            // More than was asked for belongs nowhere.
            let take = take.take().filter(|_| data.len() <= wanted).ok_or(Errno::IO)?;
            Ok(take(data))
        });
        taken.map(|(value, _)| value)
    }

    pub(super) fn write(&self, fh: Fh, what: Write<'_>) -> Answer<usize> {
        let file = self.files.get(fh)?;
        let how = bits(what.flags, Durable::of(file.flags.cast_signed()));
        self.make_room()?;
        let write = |(n, piece): (usize, &[u8])| {
            let at = what.offset.saturating_add((n * self.chunk) as u64);
            self.write_piece(&file, (at, how), piece).map(|()| piece.len())
        };
        let pieces = what.bytes.chunks(self.chunk).enumerate();
        // Behind one another at the end of the file.
        let mut failed = false;
        let mut write_next = |piece| {
            let next = (!failed).then(|| write(piece))?;
            failed = next.is_err();
            Some(next)
        };
        let written: Vec<_> = if what.flags.append {
            pieces.map_while(&mut write_next).collect()
        } else {
            side_by_side(pieces, write)
        };
        let mut done = 0;
        for piece in written {
            match piece {
                Ok(n) => done += n,
                // What was written is told; the rest will be asked for again.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn write_piece(
        &self,
        file: &Arc<RemoteFile>,
        (offset, how): (u64, u32),
        piece: &[u8],
    ) -> Answer<()> {
        let appends = how & how::APPEND != 0;
        let is_durable = how & (how::STABLE | how::ALL) != 0;
        let about = About { files: &[&**file], data: piece, ..About::default() };
        loop {
            let request = |handles: &[u64]| Request::Write { handle: first(handles), offset, how };
            let (written, session) = self.ask(about, request, |reply, _| match reply {
                Reply::Written { length, .. } => Ok(length),
                _ => Err(Errno::IO),
            })?;
            if usize::try_from(written) != Ok(piece.len()) {
                return Err(Errno::IO);
            }
            let what = (!appends).then_some((offset, piece));
            // What was durable may lie under an older write by now that another server was given once more.
            let stands = self.note_write(file, (session, is_durable), what);
            if stands || appends && is_durable {
                return Ok(());
            }
            if appends {
                // It may be there or not: whoever asks for durability hears it.
                self.pending.lock().lose_changes(file.inode.ino, Errno::IO);
                return Ok(());
            }
        }
    }

    pub(super) fn sync_file(&self, fh: Fh) -> Answer<()> {
        let file = self.files.get(fh)?;
        let done = self.commit(&file);
        // A failure now is a loss, too: it is told once.
        let told = self.failure(&file);
        done.and(told)
    }

    pub(super) fn allocate(&self, fh: Fh, mode: i32, (offset, len): (u64, u64)) -> Answer<()> {
        let file = self.files.get(fh)?;
        self.before_change(file.inode.ino)?;
        let mode = mode.cast_unsigned();
        self.done(About { files: &[&*file], ..About::default() }, |handles| {
            let handle = first(handles);
            Request::Mount(MountRequest::Allocate { handle, offset, len, mode })
        })?;
        self.after_change(&file);
        Ok(())
    }

    pub(super) fn seek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64> {
        let file = self.files.get(fh)?;
        let whence = whence.cast_unsigned();
        let reply = self.reply(About { files: &[&*file], ..About::default() }, |handles| {
            let handle = first(handles);
            Request::Mount(MountRequest::Seek { handle, offset, whence })
        })?;
        number(reply)
    }

    pub(super) fn copy(&self, from: (Fh, u64), into: (Fh, u64), len: u64) -> Answer<u64> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(into.0)?);
        self.before_change(target.inode.ino)?;
        let about = About { files: &[&*source, &*target], ..About::default() };
        let reply = self.reply(about, |handles| {
            let (handle, to) = (first(handles), handles.get(1).copied().unwrap_or(0));
            let (offset, to_offset) = (from.1, into.1);
            Request::Mount(MountRequest::Copy { handle, offset, to, to_offset, len })
        })?;
        self.after_change(&target);
        number(reply)
    }
}

fn number(reply: Reply) -> Answer<u64> {
    match reply {
        Reply::Number(number) => Ok(number),
        _ => Err(Errno::IO),
    }
}

/// How a write is asked for.
fn bits(flags: WriteFlags, by_open: Durable) -> u32 {
    let bit = |there: bool, bit: u32| if there { bit } else { 0 };
    let durable = match flags.durable.max(by_open) {
        Durable::Nothing => 0,
        Durable::Contents => how::STABLE,
        Durable::All => how::ALL,
    };
    durable
        | bit(flags.append, how::APPEND)
        | bit(flags.direct, how::DIRECT)
        | bit(flags.from_page_cache, how::FROM_PAGES)
        | bit(!flags.kill_privileges, how::KEEP_PRIVILEGES)
}
