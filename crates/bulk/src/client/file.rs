//! A file that is open on the server.

use std::sync::Arc;

use braid_format::InodeNo;
use braid_fs::{Attr, Errno, SetAttr};
use parking_lot::Mutex;

use super::session::{Ask, Session};
use crate::error::Error;
use crate::wire::{MountRequest, OpenFlags, Reply, Request, how};

/// Of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

/// A file that is open on the server. It is opened again by itself if the server has begun anew, or another one is
/// used. But one that is locked is gone then ([`Error::Gone`]) if another server is used: its lock went with the former
/// server's node, and another client may have had it since.
#[derive(Debug)]
pub struct File {
    session: Arc<Session>,
    attr: Attr,
    flags: OpenFlags,
    open: Mutex<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    session: u64,
    handle: u64,
    /// How many servers were used before.
    moves: u64,
}

/// What a write came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes.
    pub length: u32,
    /// What is not durable yet is lost if a later answer has another verifier.
    pub verifier: u64,
}

impl File {
    /// What the reply to CREATE or OPEN has opened, before which `moves` servers had been used.
    pub(super) fn new(
        session: Arc<Session>,
        (reply, number): (Reply, u64),
        (flags, moves): (OpenFlags, u64),
    ) -> Result<Self, Error> {
        let Reply::Opened { handle, attr } = reply else { return Err(unexpected()) };
        let open = Mutex::new(Open { session: number, handle, moves });
        // What it held is gone once.
        let flags = OpenFlags { truncate: false, ..flags };
        Ok(Self { session, attr, flags, open })
    }

    /// Its attributes when it was opened.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Reads up to `length` bytes and gives them to `take`: fewer only at the end of the file.
    ///
    /// # Errors
    /// As the server says, or it does not answer.
    pub fn read<R>(
        &self,
        slot: u16,
        (offset, length): (u64, u32),
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Error> {
        let mut take = Some(take);
        self.call(
            slot,
            &[],
            |handle| Request::Read { handle, offset, length, keep: false },
            |_, data| {
                // More than was asked for belongs nowhere.
                let fits = u32::try_from(data.len()).is_ok_and(|len| len <= length);
                take.take().filter(|_| fits).map(|take| take(data))
            },
        )?
        .ok_or_else(unexpected)
    }

    /// Writes. With `stable` it is durable on return, otherwise after [`File::commit`] with the same
    /// verifier.
    ///
    /// # Errors
    /// As the server says, or it does not answer.
    pub fn write(
        &self,
        slot: u16,
        (offset, data): (u64, &[u8]),
        stable: bool,
    ) -> Result<Written, Error> {
        let how = if stable { how::STABLE } else { 0 };
        let request = |handle| Request::Write { handle, offset, how };
        self.call(slot, data, request, |reply, _| reply).and_then(|reply| whole(reply, data))
    }

    /// Writes at the end of the file, wherever that is.
    ///
    /// # Errors
    /// As [`File::write`]; [`Error::Ambiguous`].
    pub fn append(&self, slot: u16, data: &[u8]) -> Result<Written, Error> {
        let request = |handle| Request::Write { handle, offset: 0, how: how::APPEND };
        self.call(slot, data, request, |reply, _| reply).and_then(|reply| whole(reply, data))
    }

    /// Makes durable what was written. Returns the verifier: what was written under another one is to be
    /// written again.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn commit(&self) -> Result<u64, Error> {
        let done = self.call(0, &[], |handle| Request::Commit { handle }, |reply, _| reply);
        done.and_then(written).map(|w| w.verifier)
    }

    /// The checksum (XXH3, 128 bits) of what the file holds, and of how many bytes it is.
    ///
    /// # Errors
    /// As [`File::read`].
    pub fn checksum(&self, slot: u16, offset: u64, length: u32) -> Result<(u128, u32), Error> {
        let request = |handle| Request::Checksum { handle, offset, length };
        match self.call(slot, &[], request, |reply, _| reply)? {
            Reply::Checksum { sum, length } => Ok((sum, length)),
            _ => Err(unexpected()),
        }
    }

    /// The first byte at or behind `offset` that is data, as lseek(2) with `SEEK_DATA`; `None`: there is none.
    ///
    /// # Errors
    /// As [`File::read`].
    pub fn next_data(&self, slot: u16, offset: u64) -> Result<Option<u64>, Error> {
        match self.seek(slot, offset, SEEK_DATA) {
            Err(Error::Errno(Errno::NXIO)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The first byte at or behind `offset` that is in a hole, or the end of the file, as lseek(2) with `SEEK_HOLE`.
    ///
    /// # Errors
    /// As [`File::read`]; `ENXIO` if `offset` is behind the end.
    pub fn next_hole(&self, slot: u16, offset: u64) -> Result<u64, Error> {
        self.seek(slot, offset, SEEK_HOLE)
    }

    fn seek(&self, slot: u16, offset: u64, whence: u32) -> Result<u64, Error> {
        let request = |handle| Request::Mount(MountRequest::Seek { handle, offset, whence });
        match self.call(slot, &[], request, |reply, _| reply)? {
            Reply::Number(at) => Ok(at),
            _ => Err(unexpected()),
        }
    }

    /// Makes a hole of `len` bytes; the file stays as long as it is. Durable after [`File::commit`].
    ///
    /// # Errors
    /// As the server says, or it does not answer.
    pub fn punch_hole(&self, slot: u16, offset: u64, len: u64) -> Result<(), Error> {
        let mode = PUNCH_HOLE | KEEP_SIZE;
        let request = |handle| Request::Mount(MountRequest::Allocate { handle, offset, len, mode });
        self.call(slot, &[], request, |_, _| ())
    }

    /// Changes its attributes, as long as its lock stands.
    ///
    /// # Errors
    /// As the server says; [`Error::Gone`]: it was locked, and the lock is lost.
    pub fn set_attr(&self, set: SetAttr) -> Result<(), Error> {
        let ino = self.attr.ino;
        self.call(0, &[], |handle| Request::SetAttr { ino, set, handle }, |_, _| ())
    }

    /// Renames `old`, which leads to it, as long as its lock stands.
    ///
    /// # Errors
    /// As the server says; [`Error::Ambiguous`]; [`Error::Gone`]: it was locked, and the lock is lost.
    pub fn rename(&self, old: (InodeNo, &[u8]), new: (InodeNo, &[u8])) -> Result<(), Error> {
        let request = |_| Request::Rename {
            from: (old.0, old.1.to_vec()),
            to: (new.0, new.1.to_vec()),
            no_replace: false,
        };
        self.call(0, &[], request, |_, _| ())
    }

    /// Closes it.
    ///
    /// # Errors
    /// As the server says, or it does not answer.
    pub fn close(self) -> Result<(), Error> {
        let open = *self.open.lock();
        let request = Request::Close { handle: open.handle };
        let ask = Ask { only_in: Some(open.session), ..Ask::of(&request) };
        match self.session.call(0, ask, |_, _, _| ()) {
            // The server has closed it.
            Err(Error::Session) => Ok(()),
            done => done,
        }
    }

    fn call<R>(
        &self,
        slot: u16,
        data: &[u8],
        request: impl Fn(u64) -> Request,
        mut take: impl FnMut(Reply, &[u8]) -> R,
    ) -> Result<R, Error> {
        loop {
            let open = *self.open.lock();
            let request = request(open.handle);
            let ask = Ask { data, only_in: Some(open.session), ..Ask::of(&request) };
            match self.session.call(slot, ask, |reply, data, _| take(reply, data)) {
                Err(Error::Session) => self.open_again(open)?,
                done => return done,
            }
        }
    }

    /// Opens the same inode in the present session, unless somebody has done so.
    fn open_again(&self, former: Open) -> Result<(), Error> {
        let mut open = self.open.lock();
        if open.session != former.session {
            return Ok(());
        }
        let (ino, generation) = (self.attr.ino, self.attr.generation);
        let request = Request::Open { ino, generation, flags: self.flags };
        let moves = self.session.place().moves;
        let is_lost = |moves| self.flags.lock && moves != former.moves;
        if is_lost(moves) {
            return Err(Error::Gone);
        }
        match self.session.call(0, Ask::of(&request), |reply, _, session| (reply, session)) {
            Ok((Reply::Opened { handle, .. }, session)) => {
                if is_lost(self.session.place().moves) {
                    return Err(Error::Gone);
                }
                *open = Open { session, handle, moves };
                Ok(())
            }
            Ok(_) => Err(unexpected()),
            Err(Error::Errno(Errno::STALE)) => Err(Error::Gone),
            Err(error) => Err(error),
        }
    }
}

/// A write is done as a whole or fails (docs/BULK.md).
fn whole(reply: Reply, data: &[u8]) -> Result<Written, Error> {
    let written = written(reply)?;
    let is_whole = usize::try_from(written.length).is_ok_and(|len| len == data.len());
    if is_whole { Ok(written) } else { Err(unexpected()) }
}

fn written(reply: Reply) -> Result<Written, Error> {
    match reply {
        Reply::Written { length, verifier } => Ok(Written { length, verifier }),
        _ => Err(unexpected()),
    }
}

/// The reply is one to another operation.
pub(crate) fn unexpected() -> Error {
    Error::Answer(crate::wire::FrameError::Unknown)
}
