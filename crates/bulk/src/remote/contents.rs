//! Contents of open files.

use std::sync::Arc;

use braid_fs::{Answer, Durable, Errno, Fh, Write, WriteFlags};

use super::Remote;
use super::calls::About;
use super::files::RemoteFile;
use crate::wire::{MountRequest, Reply, Request, how};

fn first(handles: &[u64]) -> u64 {
    handles.first().copied().unwrap_or(0)
}

impl Remote {
    /// Fills `memory` as far as the file has bytes.
    ///
    /// # Errors
    /// What the program is to see, here and below.
    pub(super) fn read(&self, fh: Fh, offset: u64, memory: &mut [u8]) -> Answer<usize> {
        let file = self.files.get(fh)?;
        let mut done = 0;
        for piece in memory.chunks_mut(self.chunk) {
            let at = offset.saturating_add(done as u64);
            let wanted = piece.len();
            let n = self.read_piece(&file, at, wanted, |bytes| {
                piece.get_mut(..bytes.len()).unwrap_or_default().copy_from_slice(bytes);
                bytes.len()
            })?;
            done += n;
            if n < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads what goes by one message, and gives it to `take`.
    pub(super) fn read_piece<R>(
        &self,
        file: &RemoteFile,
        offset: u64,
        wanted: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        let length = u32::try_from(wanted).map_err(|_| Errno::INVAL)?;
        let mut take = Some(take);
        let request = |handles: &[u64]| Request::Read { handle: first(handles), offset, length };
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
        let mut done = 0;
        for piece in what.bytes.chunks(self.chunk) {
            let at = what.offset.saturating_add(done as u64);
            match self.write_piece(&file, (at, how), piece) {
                Ok(()) => done += piece.len(),
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
        let about = About { files: &[&**file], data: piece, caller: None };
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
            if self.note_write(file, (session, is_durable), what) || is_durable {
                return Ok(());
            }
            if appends {
                // It may be there or not: whoever asks for durability hears it.
                self.pending.lock().lost(file.inode.ino, Errno::IO);
                return Ok(());
            }
        }
    }

    pub(super) fn sync_file(&self, fh: Fh) -> Answer<()> {
        let file = self.files.get(fh)?;
        self.commit(&file)?;
        self.failure(file.inode.ino)
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
