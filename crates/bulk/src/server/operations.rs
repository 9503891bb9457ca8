//! What each request does.

use braid_format::InodeNo;
use braid_fs::{Attr, Durable, Errno, FileSystem, PlockKind, Write, WriteFlags};
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::leases::TERM;
use super::open_files::OpenFile;
use super::outcome::{Outcome, seen};
use super::permissions::{READ, Visit, WRITE};
use super::served::Served;
use super::session::Session;
use crate::link::Buffer;
use crate::wire::{
    Caller, DATA_MAX, Header, MountRequest, OpenFlags, Recalls, Reply, Request, Status, how,
};

/// Of open(2).
const O_RDONLY: i32 = 0;
pub(super) const O_RDWR: i32 = 2;
pub(super) const O_EXCL: i32 = 0o200;
pub(super) const O_TRUNC: i32 = 0o1000;
/// Permission bits that a client can give to what it makes.
pub(super) const MODE_BITS: u32 = 0o7777;

/// A request with who asks.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Its header.
    pub header: &'a Header,
    /// Who asks, if it says so.
    pub caller: Option<Caller>,
    /// What for.
    pub request: Request,
}

/// A file that was just opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub fh: u64,
    /// Nobody else is to have it so.
    pub lock: bool,
    pub writable: bool,
    /// The user of a mount who has it; none for copies.
    pub user: Option<u32>,
}

impl<F: FileSystem> Served<F> {
    /// Does a request of `session`; its data is at the begin of `buffer`, and what it reads goes there.
    ///
    /// # Errors
    /// What the client is told.
    pub fn run(&self, session: &Session, asked: Asked<'_>, buffer: &mut Buffer) -> Outcome {
        let is_of_mount = asked.caller.is_some();
        let is_durable = is_of_mount && asked.request.changes_names_or_attributes();
        let sized = match &asked.request {
            Request::SetAttr { ino, set, handle } if set.size.is_some() => Some((*ino, *handle)),
            _ => None,
        };
        let outcome = self.execute(session, asked, buffer)?;
        if is_durable {
            // A client cannot do it once more after a restart of the server, as it does with writes; and the program
            // that asks for durability then may be another one.
            match sized {
                Some((ino, handle)) => self.sync_size(session, ino, handle)?,
                None => seen(self.files.fsync_dir(self.files.root()))?,
            }
        }
        Ok(outcome)
    }

    /// Makes a size that was set durable: that of a file that became longer is in the journal only after its `fsync`.
    fn sync_size(&self, session: &Session, ino: InodeNo, handle: u64) -> Result<(), Status> {
        if let Some(file) = session.file(handle).filter(|file| file.ino == ino) {
            return seen(self.files.fsync(file.fh, false));
        }
        let fh = seen(self.files.open(ino, O_RDWR))?;
        let synced = self.files.fsync(fh, false);
        let released = self.files.release(fh);
        seen(synced.and(released))
    }

    /// What a client asks for, whose users and groups may have other numbers than the pool's.
    fn execute(&self, session: &Session, asked: Asked<'_>, buffer: &mut Buffer) -> Outcome {
        let ids = &self.options.ids;
        let Asked { header, caller, mut request } = asked;
        let caller = caller.map(|caller| ids.caller(&caller));
        if let Request::SetAttr { set, .. } = &mut request {
            // As a user namespace answers for whom it has no number.
            *set = ids.set(*set).ok_or(Status::of(Errno::INVAL))?;
        }
        let asked = Asked { header, caller, request };
        let (reply, data_len) = self.execute_in_pool(session, asked, buffer)?;
        Ok((ids.reply(reply), data_len))
    }

    fn execute_in_pool(
        &self,
        session: &Session,
        Asked { header, caller, request }: Asked<'_>,
        buffer: &mut Buffer,
    ) -> Outcome {
        self.name_open_files(session, header, &request);
        let caller = caller.as_ref();
        let data_len = usize::try_from(header.data_len).unwrap_or(0);
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
            Request::ReadDir { dir, cookie, handle, .. } => {
                let most = self.allowed(length)?;
                let mut visit = Visit::new(self, caller);
                let at = (dir, handle);
                let entries = self.list(session, &mut visit, at, (cookie, most, false))?;
                buffer.take(entries.len()).copy_from_slice(&entries);
                return Ok((Reply::Done, entries.len()));
            }
            Request::Checksum { handle, offset, .. } => {
                return self.checksum(session, handle, (offset, length), buffer);
            }
            Request::Write { handle, offset, how } => {
                let bytes = buffer.take(data_len);
                return self.write(session, (handle, offset), bytes, how);
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
                let mut visit = Visit::new(self, caller);
                let attr = visit.inode(ino).map_err(|_| Status::of(Errno::STALE))?;
                if attr.generation != generation {
                    return Err(Status::of(Errno::STALE));
                }
                let want = READ | if flags.write { WRITE } else { 0 };
                visit.may(&attr, want)?;
                return self.open(session, &attr, flags);
            }
            Request::Mount(request) => {
                return self.mounted(session, (caller, request), (buffer, data_len));
            }
            Request::Lock(request) => return self.locks(session, (caller, request), buffer),
            Request::Leases { done, patience_ms } => {
                let recalls = self.recalls(session, done, patience_ms)?.encode();
                self.allowed(recalls.len())?;
                buffer.take(recalls.len()).copy_from_slice(&recalls);
                return Ok((Reply::Done, recalls.len()));
            }
            _ => {}
        }
        self.names(session, (caller, request)).map(|reply| (reply, 0))
    }

    /// Notes which inodes a request names by open files. What the client is to keep of one begins as it is under a
    /// lock that excludes writers on other nodes: as long as that stays, nobody changes it unnoticed.
    fn name_open_files(&self, session: &Session, header: &Header, request: &Request) {
        let changes = request.changed_inodes().is_some();
        let keep = matches!(request, Request::Read { keep: true, .. });
        let other = match request {
            Request::Mount(MountRequest::Copy { to, .. }) => session.file(*to),
            _ => None,
        };
        for file in session.file(header.handle).into_iter().chain(other) {
            self.references.names(file.ino, (changes, keep));
            if keep {
                // If it cannot, the read says why.
                self.files.getattr(file.ino).ok();
            }
        }
    }

    /// Which leases a client is to give back.
    fn recalls(&self, session: &Session, done: u64, patience_ms: u32) -> Result<Recalls, Status> {
        let holder = session.holder.ok_or(Status::REQUEST)?;
        let patience = Duration::from_millis(patience_ms.into()).min(TERM / 4);
        Ok(self.references.leases().ask(holder, done, patience, || session.is_ended()))
    }

    /// These sessions have ended, and their clients may not know it yet.
    pub fn are_gone(&self, sessions: &[Arc<Session>]) {
        for session in sessions {
            self.leaves(session, false);
        }
    }
    /// A client's session has ended. `by_itself`: the client said so.
    pub fn leaves(&self, session: &Session, by_itself: bool) {
        if let Some(holder) = session.holder {
            self.references.leases().leave(holder, by_itself);
        }
    }

    /// So many bytes may go with one message.
    pub(super) fn allowed(&self, length: usize) -> Result<usize, Status> {
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
        let reply = self.keep(session, attr, (fh, flags))?;
        match (reply, flags.truncate) {
            // It is another size now.
            (Reply::Opened { handle, .. }, true) => {
                let attr = seen(self.files.getattr(attr.ino))?;
                Ok((Reply::Opened { handle, attr }, 0))
            }
            (reply, _) => Ok((reply, 0)),
        }
    }

    /// Keeps a file in the session that a copy has opened.
    pub(super) fn keep(
        &self,
        session: &Session,
        attr: &Attr,
        (fh, flags): (u64, OpenFlags),
    ) -> Result<Reply, Status> {
        let (lock, writable) = (flags.lock, flags.write);
        self.keep_opened(session, attr, Opening { fh, lock, writable, user: None })
    }

    /// Keeps an open file in the session, with a lock if one is asked for. Locked are files that become whole by and
    /// by under another name: nobody else may have made one, or reach it by another name, for he would have a hand
    /// in it.
    pub(super) fn keep_opened(
        &self,
        session: &Session,
        attr: &Attr,
        Opening { fh, lock, writable, user }: Opening,
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
        let file = OpenFile { fh, ino: attr.ino, lock: owner, writable, user };
        match session.keep(file, self.options.files_max) {
            Ok(handle) => {
                self.release(self.references.looked_up().take_opened(session.id, attr.ino));
                Ok(Reply::Opened { handle, attr: *attr })
            }
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
        how: u32,
    ) -> Outcome {
        let file = session.file(handle).ok_or(Status::HANDLE)?;
        let is = |bit: u32| how & bit != 0;
        // Whoever writes by a network takes set-user-ID bits away, but for root.
        let flags = WriteFlags {
            direct: is(how::DIRECT),
            append: is(how::APPEND),
            from_page_cache: is(how::FROM_PAGES),
            kill_privileges: !(is(how::KEEP_PRIVILEGES) && file.by_root()),
            durable: if is(how::ALL) {
                Durable::All
            } else if is(how::STABLE) {
                Durable::Contents
            } else {
                Durable::Nothing
            },
        };
        // Without an early reply: what is answered is on the devices, or in the node's memory.
        let n = seen(self.files.write(file.fh, Write { offset, bytes, flags }, &mut ()))?;
        let length = u32::try_from(n).expect("at most DATA_MAX");
        Ok((Reply::Written { length, verifier: self.verifier }, 0))
    }
}
