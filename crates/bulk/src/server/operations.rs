//! What each request does.

use braid_fs::{Answer, Attr, Cred, Durable, Errno, FileSystem, PlockKind, Write, WriteFlags};
use xxhash_rust::xxh3::Xxh3;

use super::options::ServerOptions;
use super::references::{Pins, References};
use super::session::{OpenFile, Session};
use crate::link::Buffer;
use crate::wire::{DATA_MAX, Header, OpenFlags, Reply, Request, Status, write_entry};

/// Of open(2).
const O_RDONLY: i32 = 0;
const O_RDWR: i32 = 2;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
/// Of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;
/// Permission bits that a client can give to what it makes.
const MODE_BITS: u32 = 0o7777;

/// What requests work with.
#[derive(Debug)]
pub struct Served<F> {
    /// The file system.
    pub files: F,
    /// Inodes that requests refer to.
    pub references: std::sync::Arc<References>,
    /// How it is served.
    pub options: ServerOptions,
    /// The write verifier of this server.
    pub verifier: u64,
    /// Makes owners of locks.
    pub owners: std::sync::atomic::AtomicU64,
}

/// A reply, and how many bytes of the buffer go with it.
pub type Outcome = Result<(Reply, usize), Status>;

fn seen<T>(answer: Answer<T>) -> Result<T, Status> {
    answer.map_err(Status::of)
}

impl<F: FileSystem> Served<F> {
    /// Does a request of `session`; its data is at the begin of `buffer`, and what it reads goes there.
    ///
    /// # Errors
    /// What the client is told.
    pub fn run(
        &self,
        session: &Session,
        (header, request): (&Header, Request),
        buffer: &mut Buffer,
    ) -> Outcome {
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if request.is_change() && session.peer.as_ref().is_some_and(|peer| peer.read_only) {
            return Err(Status::of(Errno::ROFS));
        }
        match request {
            Request::Read { handle, offset, .. } => {
                let memory = buffer.take(self.allowed(length)?);
                let n = self.read(session, (handle, offset), memory)?;
                return Ok((Reply::Done, n));
            }
            Request::ReadDir { dir, cookie, .. } => {
                let mut pins = self.pins();
                seen(pins.visit(dir))?;
                let length = self.allowed(length)?;
                let mut entries = Vec::new();
                let mut emit = |e: braid_fs::DirEntry<'_>| write_entry(&mut entries, length, &e);
                seen(self.files.readdir(dir, cookie, false, &mut emit))?;
                buffer.take(entries.len()).copy_from_slice(&entries);
                return Ok((Reply::Done, entries.len()));
            }
            Request::Checksum { handle, offset, .. } => {
                return self.checksum(session, handle, (offset, length), buffer);
            }
            Request::Write { handle, offset, append, stable } => {
                let bytes = buffer.take(usize::try_from(header.data_len).unwrap_or(0));
                return self.write(session, (handle, offset), bytes, (append, stable));
            }
            Request::Commit { handle } => {
                let file = session.file(handle).ok_or(Status::HANDLE)?;
                seen(self.files.fsync(file.fh, false))?;
                return Ok((Reply::Written { length: 0, verifier: self.verifier }, 0));
            }
            Request::Close { handle } => {
                let closed = session.close(&self.files, handle);
                return if closed { Ok((Reply::Done, 0)) } else { Err(Status::HANDLE) };
            }
            Request::Open { ino, generation, flags } => {
                let mut pins = self.pins();
                let attr = pins.visit(ino).map_err(|_| Status::of(Errno::STALE))?;
                if attr.generation != generation {
                    return Err(Status::of(Errno::STALE));
                }
                return self.open(session, &attr, flags);
            }
            _ => {}
        }
        self.names(session, request).map(|reply| (reply, 0))
    }

    /// Requests about names and attributes.
    fn names(&self, session: &Session, request: Request) -> Result<Reply, Status> {
        let mut pins = self.pins();
        let (files, owner) = (&self.files, self.options.owner);
        let cred = Cred { uid: owner.0, gid: owner.1, ..Cred::default() };
        match request {
            Request::Lookup { dir, name } => {
                seen(pins.visit(dir))?;
                let attr = seen(files.lookup(dir, &name))?;
                pins.note(&attr);
                Ok(Reply::Attr(attr))
            }
            Request::GetAttr { ino } => Ok(Reply::Attr(seen(pins.visit(ino))?)),
            Request::SetAttr { ino, set } => {
                seen(pins.visit(ino))?;
                Ok(Reply::Attr(seen(files.setattr(ino, &set, None))?))
            }
            Request::StatFs => Ok(Reply::Totals(seen(files.statfs())?)),
            Request::Create { dir, name, mode, flags } => {
                seen(pins.visit(dir))?;
                let mode = mode & MODE_BITS;
                let (attr, fh) = seen(files.create(dir, &name, mode, O_RDWR | O_EXCL, &cred))?;
                pins.note(&attr);
                self.keep(session, &attr, (fh, flags.lock))
            }
            Request::MkDir { dir, name, mode } => {
                seen(pins.visit(dir))?;
                let attr = seen(files.mkdir(dir, &name, mode & MODE_BITS, &cred))?;
                pins.note(&attr);
                Ok(Reply::Attr(attr))
            }
            Request::Unlink { dir, name } => {
                seen(pins.visit(dir))?;
                seen(files.unlink(dir, &name)).map(|()| Reply::Done)
            }
            Request::RmDir { dir, name } => {
                seen(pins.visit(dir))?;
                seen(files.rmdir(dir, &name)).map(|()| Reply::Done)
            }
            Request::Rename { from, to, no_replace } => {
                seen(pins.visit(from.0))?;
                seen(pins.visit(to.0))?;
                let flags = if no_replace { RENAME_NOREPLACE } else { 0 };
                seen(files.rename((from.0, &from.1), (to.0, &to.1), flags)).map(|()| Reply::Done)
            }
            Request::SyncDir { dir } => {
                seen(pins.visit(dir))?;
                seen(files.fsync_dir(dir)).map(|()| Reply::Done)
            }
            Request::Ping | Request::Bye => Ok(Reply::Done),
            _ => Err(Status::REQUEST),
        }
    }

    fn pins(&self) -> Pins<'_, F> {
        Pins::new(&self.files, &self.references)
    }

    /// So many bytes may go with one message.
    fn allowed(&self, length: usize) -> Result<usize, Status> {
        if length <= self.options.data_max { Ok(length) } else { Err(Status::TOO_LONG) }
    }

    /// Opens a regular file that is referred to.
    fn open(&self, session: &Session, attr: &Attr, flags: OpenFlags) -> Outcome {
        if attr.is_dir() {
            return Err(Status::of(Errno::ISDIR));
        }
        if !attr.is_regular() {
            return Err(Status::of(Errno::INVAL));
        }
        let access = if flags.write { O_RDWR } else { O_RDONLY };
        let truncate = if flags.truncate { O_TRUNC } else { 0 };
        if flags.truncate && !flags.write {
            return Err(Status::REQUEST);
        }
        let fh = seen(self.files.open(attr.ino, access | truncate))?;
        let reply = self.keep(session, attr, (fh, flags.lock))?;
        match (reply, flags.truncate) {
            // It is another size now.
            (Reply::Opened { handle, .. }, true) => {
                let attr = seen(self.files.getattr(attr.ino))?;
                Ok((Reply::Opened { handle, attr }, 0))
            }
            (reply, _) => Ok((reply, 0)),
        }
    }

    /// Keeps an open file in the session, with a lock if one is asked for. Locked are files that become whole by and
    /// by under another name: nobody else may have made one, or reach it by another name, for he would have a hand
    /// in it.
    fn keep(
        &self,
        session: &Session,
        attr: &Attr,
        (fh, lock): (u64, bool),
    ) -> Result<Reply, Status> {
        let own = attr.is_regular() && attr.nlink <= 1 && attr.uid == self.options.owner.0;
        if lock && !own {
            self.files.release(fh).ok();
            return Err(Status::of(Errno::PERM));
        }
        let owner = lock.then(|| self.owners.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        if let Some(owner) = owner {
            let locked = self.files.flock(attr.ino, &OpenFile::plock(owner, PlockKind::Exclusive));
            if let Err(errno) = locked {
                self.files.release(fh).ok();
                return Err(Status::of(errno));
            }
        }
        let file = OpenFile { fh, ino: attr.ino, lock: owner };
        match session.keep(file, self.options.files_max) {
            Ok(handle) => Ok(Reply::Opened { handle, attr: *attr }),
            Err(file) => {
                file.close(&self.files);
                Err(Status::LIMIT)
            }
        }
    }

    /// Fills `memory` as far as the file has bytes. The inode's lock is not held on return.
    fn read(
        &self,
        session: &Session,
        (handle, offset): (u64, u64),
        memory: &mut [u8],
    ) -> Result<usize, Status> {
        let file = session.file(handle).ok_or(Status::HANDLE)?;
        let len = u32::try_from(memory.len()).unwrap_or(u32::MAX);
        seen(self.files.read_into(file.fh, offset, len, false, memory)).map(|(n, _)| n)
    }

    fn checksum(
        &self,
        session: &Session,
        handle: u64,
        (offset, length): (u64, usize),
        buffer: &mut Buffer,
    ) -> Outcome {
        if length > DATA_MAX {
            return Err(Status::TOO_LONG);
        }
        let (mut sum, mut done) = (Xxh3::new(), 0);
        while done < length {
            let piece = (length - done).min(self.options.data_max);
            let memory = buffer.take(piece);
            let n = self.read(session, (handle, offset.saturating_add(done as u64)), memory)?;
            sum.update(memory.get(..n).unwrap_or_default());
            done += n;
            if n < piece {
                break;
            }
        }
        let length = u32::try_from(done).expect("at most DATA_MAX");
        Ok((Reply::Checksum { sum: sum.digest128(), length }, 0))
    }

    fn write(
        &self,
        session: &Session,
        (handle, offset): (u64, u64),
        bytes: &[u8],
        (append, stable): (bool, bool),
    ) -> Outcome {
        let file = session.file(handle).ok_or(Status::HANDLE)?;
        // Whoever writes by a network takes set-user-ID bits away.
        let flags = WriteFlags {
            append,
            kill_privileges: true,
            durable: if stable { Durable::Contents } else { Durable::Nothing },
            ..WriteFlags::default()
        };
        // Without an early reply: what is answered is on the devices, or in the node's memory.
        let n = seen(self.files.write(file.fh, Write { offset, bytes, flags }, &mut ()))?;
        let length = u32::try_from(n).expect("at most DATA_MAX");
        Ok((Reply::Written { length, verifier: self.verifier }, 0))
    }
}
