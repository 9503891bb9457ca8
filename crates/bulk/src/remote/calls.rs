//! Requests to the server, and what is done when it has begun anew.
//!
//! Each request is one of the session in which everything is as it should be ([`Remote::current`]). If that session is
//! over, the first thread that hears of it begins another. There are three cases (docs/BULK.md, sections 9 and 11):
//! * The server was started anew: its programs' locks are taken again, then what was not durable is written again.
//! * Another server is used: the locks are lost. If there were none, what was not durable is written again.
//! * The same server had ended the session: the locks are lost, and what was written is there.
//!
//! Waits for locks are asked for once more, and open files are opened again by whoever uses them next. Until then no
//! other request is made.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::tasks::{self, Awaited};
use braid_format::InodeNo;
use braid_fs::lock::interrupt;
use braid_fs::{Answer, Attr, Errno};
use parking_lot::{Mutex, MutexGuard};

use super::files::{Place, RemoteFile};
use super::held::Whose;
use super::leases;
use super::slots::LOOK;
use super::{Remote, ServerInstance, caller};
use crate::client::Ask;
use crate::error::Error;
use crate::wire::{Caller, LockRequest, MountRequest, Reply, Request, Status, how};

/// What a request is about.
#[derive(Debug, Default, Clone, Copy)]
pub struct About<'a> {
    /// Open files whose handles it names.
    pub files: &'a [&'a RemoteFile],
    /// For whom.
    pub caller: Option<&'a Caller>,
    /// What goes with it.
    pub data: &'a [u8],
    /// It asks for locks of this inode: all of its open files are opened in the session before. A server gives up what a
    /// session has locked of an inode when the last of its open files there is closed.
    pub locks: Option<InodeNo>,
}

/// Why nothing came of a request in the present session.
pub enum Trouble {
    /// Another one has to begin, or has begun.
    Session,
    /// The same, and the request may have been done by a server that knows nothing of it any more.
    Ambiguous,
    /// It makes no difference how often it is tried.
    Errno(Errno),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl Remote {
    /// The session in which requests are made now.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Has a request done, and calls `take` with its reply and its data. Also the session in which it was.
    ///
    /// # Errors
    /// What the program is to see.
    pub fn ask<R>(
        &self,
        about: About<'_>,
        request: impl Fn(&[u64]) -> Request,
        take: impl FnMut(Reply, &[u8]) -> Answer<R>,
    ) -> Answer<(R, u64)> {
        self.ask_unless(about, request, take, || Ok(None))
    }

    /// The same, where a server that was started anew may have done the request already, and not know it: then
    /// `is_done` finds out what came of it. `None`: nothing, and it is repeated.
    ///
    /// # Errors
    /// The same.
    pub fn ask_unless<R>(
        &self,
        about: About<'_>,
        request: impl Fn(&[u64]) -> Request,
        mut take: impl FnMut(Reply, &[u8]) -> Answer<R>,
        is_done: impl Fn() -> Answer<Option<R>>,
    ) -> Answer<(R, u64)> {
        let _change = self.change_begins(about, &request(&[0; 2]));
        loop {
            let slot = self.slots.take_unless_interrupted(caller::uid())?;
            let session = self.current();
            let trouble = match self.ask_in((session, slot.number), about, &request, &mut take) {
                Ok(done) => return Ok((done, session)),
                Err(trouble) => trouble,
            };
            // What is asked meanwhile needs one, too.
            drop(slot);
            match trouble {
                Trouble::Errno(errno) => return Err(errno),
                Trouble::Session => self.recover(session)?,
                Trouble::Ambiguous => {
                    self.recover(session)?;
                    if let Some(done) = is_done()? {
                        return Ok((done, session));
                    }
                }
            }
        }
    }

    /// The same for a request whose reply says all.
    ///
    /// # Errors
    /// The same.
    pub fn reply(&self, about: About<'_>, request: impl Fn(&[u64]) -> Request) -> Answer<Reply> {
        self.ask(about, request, |reply, _| Ok(reply)).map(|(reply, _)| reply)
    }
    /// The same for one that only succeeds.
    ///
    /// # Errors
    /// The same.
    pub fn done(&self, about: About<'_>, request: impl Fn(&[u64]) -> Request) -> Answer<()> {
        self.reply(about, request).map(drop)
    }
    /// The same for one whose reply is data.
    ///
    /// # Errors
    /// The same.
    pub fn bytes(&self, caller: &Caller, request: &Request) -> Answer<Vec<u8>> {
        let about = About { caller: Some(caller), ..About::default() };
        let taken = self.ask(about, |_| request.clone(), |_, data| Ok(data.to_vec()));
        taken.map(|(data, _)| data)
    }
    /// The same for one whose reply is attributes.
    ///
    /// # Errors
    /// The same.
    pub fn attr(&self, about: About<'_>, request: &Request) -> Answer<Attr> {
        match self.reply(about, |_| request.clone())? {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(Errno::IO),
        }
    }

    /// If a request changes inodes, nothing of them is kept until it is answered.
    fn change_begins(&self, about: About<'_>, request: &Request) -> Option<Change<'_>> {
        let mut inodes = request.changed_inodes()?;
        inodes.extend(about.files.iter().map(|file| file.inode.ino));
        let inodes = self.leases.change_begins(inodes, &request.taken_names());
        for ino in &inodes {
            self.kernel.change_begins(*ino);
        }
        Some(Change { remote: self, inodes })
    }

    /// One try, in that session and by that slot.
    pub(super) fn ask_in<R>(
        &self,
        (session, slot): (u64, u16),
        about: About<'_>,
        request: &impl Fn(&[u64]) -> Request,
        take: &mut impl FnMut(Reply, &[u8]) -> Answer<R>,
    ) -> Result<R, Trouble> {
        if let Some(ino) = about.locks {
            self.open_again((session, slot), ino)?;
        }
        let mut handles = [0; 2];
        for (handle, file) in handles.iter_mut().zip(about.files) {
            *handle = self.handle_in((session, slot), file)?;
        }
        let request = request(&handles);
        let note = RefCell::default();
        let ask = Ask {
            caller: about.caller,
            data: about.data,
            only_in: Some(session),
            note: Some(&note),
            ..Ask::of(&request)
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mark = self.leases.mark();
        let take = |reply, data: &[u8], _| {
            leases::answered(note.borrow().granted.then_some(mark));
            take(reply, data)
        };
        let done = self.session.call(slot, ask, take);
        let note = note.take();
        self.obey(&note);
        leases::answered(note.granted.then_some(mark));
        match done {
            Ok(done) => Ok(done?),
            Err(error) => Err(trouble(&request, &error)),
        }
    }

    /// An open file's handle in a session; opens it there if it is not.
    fn handle_in(&self, at: (u64, u16), file: &RemoteFile) -> Result<u64, Trouble> {
        let mut place = file.place.lock();
        if let Some(errno) = place.lost {
            return Err(errno.into());
        }
        if place.session == at.0 {
            return Ok(place.handle);
        }
        let (ino, flags) = (file.inode.ino, file.flags);
        let open = |_: &[u64]| Request::Mount(MountRequest::OpenAs { ino, flags, again: true });
        let about = About { caller: Some(&file.caller), ..About::default() };
        let opened = self.ask_in(at, about, &open, &mut |reply, _| match reply {
            Reply::Opened { handle, .. } => Ok(handle),
            _ => Err(Errno::IO),
        });
        match opened {
            Ok(handle) => {
                *place = Place { session: at.0, handle, lost: None };
                Ok(handle)
            }
            Err(Trouble::Errno(errno)) if errno != Errno::INTR => {
                let ino = file.inode.ino;
                tracing::warn!(%ino, %errno, "an open file is lost: the server was started anew");
                // What was open and is there no more.
                let errno = if errno == Errno::NOENT { Errno::STALE } else { errno };
                place.lost = Some(errno);
                Err(errno.into())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Opens all open files of an inode in a session, as far as they are not, but for those that are lost: one that is
    /// open there.
    fn open_again(&self, at: (u64, u16), ino: InodeNo) -> Result<Option<Arc<RemoteFile>>, Trouble> {
        let mut open = None;
        for file in self.files.all_of(ino) {
            match self.handle_in(at, &file) {
                Ok(_) => open = Some(file),
                Err(Trouble::Errno(errno)) if errno != Errno::INTR => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(open)
    }

    /// Makes another session what the `former` one was.
    ///
    /// # Errors
    /// The wait for the server was interrupted; the server refuses this client.
    fn recover(&self, former: u64) -> Answer<()> {
        let _waits = tasks::wait(Awaited::Server);
        let mut instance = lock_unless_interrupted(&self.recovering)?;
        if self.current() != former {
            return Ok(());
        }
        {
            // Whoever has had a write done in the former session finds this, and does it once more.
            let _pending = self.pending.lock();
            self.current.store(0, Ordering::SeqCst);
        }
        loop {
            let ping = Request::Ping;
            let begun = self.session.call(0, Ask::of(&ping), |_, _, session| session);
            let session = begun.map_err(|error| seen(&ping, &error))?;
            let Some(now) = ServerInstance::of(&self.session, session) else { continue };
            // What is written is written under locks.
            let brought = if now == *instance {
                self.lose_locks();
                Ok(())
            } else if now.moves == instance.moves {
                self.lock_again(session).and_then(|()| self.send_again(session))
            } else {
                self.lose_locks_and_writes();
                self.send_again(session)
            };
            match brought {
                Ok(()) => {
                    let _pending = self.pending.lock();
                    *instance = now;
                    self.current.store(session, Ordering::SeqCst);
                    return Ok(());
                }
                Err(Trouble::Session | Trouble::Ambiguous) => {}
                Err(Trouble::Errno(errno)) => return Err(errno),
            }
        }
    }

    /// Writes once more what a server that was started anew may have lost.
    fn send_again(&self, session: u64) -> Result<(), Trouble> {
        let (inodes, lost) = {
            let pending = self.pending.lock();
            (pending.inodes(), pending.unrepeatable())
        };
        for ino in lost {
            tracing::warn!(%ino, "the server was started anew, or another one is used: a change of this file may be lost");
            self.pending.lock().lose_changes(ino, Errno::IO);
        }
        for ino in inodes {
            let (file, writes) = {
                let pending = self.pending.lock();
                (pending.file(ino), pending.writes(ino))
            };
            let Some(file) = file else { continue };
            for write in writes {
                let about = About { files: &[&file], data: &write.bytes, ..About::default() };
                let offset = write.offset;
                let request = |handles: &[u64]| {
                    let handle = handles.first().copied().unwrap_or(0);
                    Request::Write { handle, offset, how: how::KEEP_PRIVILEGES }
                };
                match self.ask_in((session, 0), about, &request, &mut |_, _| Ok(())) {
                    Ok(()) => {}
                    Err(Trouble::Errno(errno)) if errno != Errno::INTR => {
                        tracing::error!(%ino, %errno, "the server was started anew, or another one is used: writes are lost");
                        drop(self.pending.lock().lost(ino, errno, u64::MAX));
                        break;
                    }
                    Err(trouble) => return Err(trouble),
                }
            }
        }
        Ok(())
    }

    /// Asks once more for the locks that programs have. What they wait for is asked for later.
    fn lock_again(&self, session: u64) -> Result<(), Trouble> {
        let locks = self.held.lock().all();
        for (whose, lock) in locks {
            let Some(file) = self.open_again((session, 0), whose.ino)? else { continue };
            let whole = whose.whole;
            let about = About { files: &[&file], caller: Some(&file.caller), ..About::default() };
            let request = |handles: &[u64]| {
                let handle = handles.first().copied().unwrap_or(0);
                Request::Lock(LockRequest::Lock { handle, whole, again: true, lock })
            };
            match self.ask_in((session, 0), about, &request, &mut |_, _| Ok(())) {
                Ok(()) => {}
                Err(Trouble::Errno(errno)) if errno != Errno::INTR => {
                    self.lose_lock(&whose, errno);
                    self.lose_writes();
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }

    /// A lock is lost that others may have had since the server was started anew. What was written under it is perhaps in
    /// other files, and others have written there since: nothing that was not durable is written once more.
    fn lose_writes(&self) {
        let mut pending = self.pending.lock();
        for ino in pending.inodes() {
            tracing::error!(%ino, "a lock is lost: what was written and was not durable is lost with it");
            drop(pending.lost(ino, Errno::IO, u64::MAX));
        }
    }

    /// The server has ended the session, and given its locks up: others may have had them since.
    fn lose_locks(&self) {
        let locks = self.held.lock().all();
        for (whose, _) in locks {
            self.lose_lock(&whose, Errno::NOLCK);
        }
    }

    /// The client has gone to another server. The locks went with the former one's node, and others may have had them
    /// since.
    fn lose_locks_and_writes(&self) {
        if self.held.lock().all().is_empty() {
            return;
        }
        self.lose_locks();
        self.lose_writes();
    }

    fn lose_lock(&self, whose: &Whose, errno: Errno) {
        let ino = whose.ino;
        tracing::error!(%ino, %errno, "the session has begun anew: a lock is lost, and the open file with it");
        self.held.lock().drop_all(whose);
        self.files.lose(ino, Errno::IO);
    }
}

/// Waits for a mutex, unless the program that asks is interrupted.
///
/// # Errors
/// It is.
pub fn lock_unless_interrupted<T>(mutex: &Mutex<T>) -> Answer<MutexGuard<'_, T>> {
    loop {
        if let Some(guard) = mutex.try_lock_for(LOOK) {
            return Ok(guard);
        }
        if interrupt::is_interrupted() {
            return Err(Errno::INTR);
        }
    }
}

/// Inodes that a request changes, until it is answered.
struct Change<'a> {
    remote: &'a Remote,
    inodes: Vec<InodeNo>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.remote.leases.change_ends(&self.inodes);
        for ino in &self.inodes {
            self.remote.kernel.change_ends(*ino);
        }
    }
}

/// What is to be done about an error.
fn trouble(request: &Request, error: &Error) -> Trouble {
    match error {
        Error::Session => Trouble::Session,
        // But for bytes at the end of a file it is found out what came of it, or the program is told what the file
        // system says to the repetition.
        Error::Ambiguous if !matches!(request, Request::Write { .. }) => Trouble::Ambiguous,
        error => Trouble::Errno(seen(request, error)),
    }
}

/// What a program sees of an error.
fn seen(request: &Request, error: &Error) -> Errno {
    match error {
        Error::Errno(errno) => *errno,
        Error::Interrupted => Errno::INTR,
        Error::Closed => Errno::NOTCONN,
        Error::Refused(Status::LIMIT) => Errno::NFILE,
        Error::Refused(Status::HANDLE) => Errno::BADF,
        // That the server refuses this client is in the log.
        Error::Untrusted { .. } | Error::Version(_) | Error::Refused(Status::REVOKED) => Errno::IO,
        error => {
            tracing::error!(operation = request.op(), %error, "a program gets EIO");
            Errno::IO
        }
    }
}
