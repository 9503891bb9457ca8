//! Locks of programs at clients: fcntl(2) and flock(2).
//!
//! The owner of a lock is a number of the client's kernel. Here each has another number, which is the server's own: so
//! those of two clients are never one. What a session has, or waits for, is noted, so that it goes when the session
//! ends.

use std::sync::Arc;
use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::lock::Company;
use braid_fs::{Errno, FileSystem, Plock, PlockKind};

use super::outcome::{Outcome, seen};
use super::permissions::Principal;
use super::served::Served;
use super::session::Session;
use crate::link::Buffer;
use crate::wire::{Caller, LockRequest, Reply, Status, write_event};

/// Longest wait for an event: a connection may be taken over meanwhile, and waits for that.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// Between two looks at whether a wait is over.
const LOOK: Duration = Duration::from_millis(50);

impl<F: FileSystem> Served<F> {
    /// Does one.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn locks(
        &self,
        session: &Session,
        (caller, request): (Option<&Caller>, LockRequest),
        buffer: &mut Buffer,
    ) -> Outcome {
        let uid = Principal::of(&self.options, caller).uid();
        let file = |handle| session.file(handle).ok_or(Status::HANDLE).map(|file| file.ino);
        let reply = match request {
            LockRequest::GetLock { handle, lock } => {
                self.in_the_way(session, file(handle)?, lock)?
            }
            LockRequest::Lock { handle, whole, again, lock } => {
                if again && !self.is_still_held(session) {
                    return Err(Status::of(Errno::NOLCK));
                }
                if !again && lock.kind != PlockKind::Unlock {
                    self.await_grace(session);
                }
                self.lock(session, (file(handle)?, whole), Plock { uid, ..lock })?
            }
            LockRequest::LockWait { handle, whole, lock, wait } => {
                self.await_grace(session);
                self.lock_wait(session, (file(handle)?, whole), (Plock { uid, ..lock }, wait))?
            }
            LockRequest::EndWait { wait } => {
                if let Some(named) = session.events.cancel::<F::Wait>(wait) {
                    self.files.end_lock_wait(named);
                }
                Reply::Done
            }
            LockRequest::Events { seen, patience_ms } => {
                let patience = Duration::from_millis(patience_ms.into());
                let most = self.options.session_time / 4;
                let patience = patience.min(PATIENCE_MAX).min(most);
                let mut data = Vec::new();
                let room = self.options.data_max / EVENT_LEN;
                for event in session.events.take(seen, patience, room) {
                    write_event(&mut data, &event);
                }
                buffer.take(data.len()).copy_from_slice(&data);
                return Ok((Reply::Done, data.len()));
            }
        };
        Ok((reply, 0))
    }

    /// Whoever had a lock when the server ended is to have it again before others can.
    fn await_grace(&self, session: &Session) {
        while self.is_grace() && !session.is_ended() {
            std::thread::sleep(LOOK);
        }
    }
    /// Whether nobody can have had a lock meanwhile that a client's program had at the server before: no other client,
    /// since those wait for a while first, and no program of another node.
    fn is_still_held(&self, session: &Session) -> bool {
        let Some(before) = session.after else { return false };
        while self.is_grace() && !session.is_ended() {
            match self.files.company_since(before) {
                Company::Nobody => return true,
                Company::NotYet => std::thread::sleep(LOOK),
                Company::Others => return false,
            }
        }
        false
    }
    /// Whether the server has begun so lately that nobody has locks but who had them before.
    fn is_grace(&self) -> bool {
        self.begun.elapsed() < self.options.grace
    }

    fn in_the_way(&self, session: &Session, ino: InodeNo, lock: Plock) -> Result<Reply, Status> {
        // Who has no lock has no number: nobody's then.
        let owner = session.held.lock().number(lock.owner).unwrap_or(0);
        let found = seen(self.files.getlk(ino, &Plock { owner, ..lock }))?;
        // A process of another client has a number that means nothing there.
        let is_own = |found: &Plock| session.held.lock().has(found.owner);
        let found = found.map(|found| Plock {
            pid: if is_own(&found) { found.pid } else { 0 },
            owner: 0,
            ..found
        });
        Ok(Reply::InTheWay(found))
    }

    fn lock(
        &self,
        session: &Session,
        (ino, whole): (InodeNo, bool),
        lock: Plock,
    ) -> Result<Reply, Status> {
        let client_owner = lock.owner;
        let unlocks = lock.kind == PlockKind::Unlock;
        let owner = if unlocks {
            session.held.lock().number(client_owner)
        } else {
            session.held.lock().note(client_owner, (ino, whole), &self.owners)
        };
        let owner = match owner {
            Some(owner) => owner,
            // He has nothing.
            None if unlocks => return Ok(Reply::Done),
            None => return Err(Status::of(Errno::NOLCK)),
        };
        let lock = Plock { owner, ..lock };
        let done = if whole { self.files.flock(ino, &lock) } else { self.files.setlk(ino, &lock) };
        seen(done)?;
        let all = whole || (lock.start, lock.end) == (0, u64::MAX);
        // What is waited for may be of the same owner.
        if unlocks && all && session.events.is_idle() {
            session.held.lock().forget(client_owner, (ino, whole));
        }
        Ok(Reply::Done)
    }

    fn try_lock(&self, (ino, whole): (InodeNo, bool), lock: &Plock) -> Result<Reply, Status> {
        seen(if whole { self.files.flock(ino, lock) } else { self.files.setlk(ino, lock) })?;
        Ok(Reply::Number(1))
    }

    fn lock_wait(
        &self,
        session: &Session,
        (ino, whole): (InodeNo, bool),
        (lock, wait): (Plock, u64),
    ) -> Result<Reply, Status> {
        if lock.kind == PlockKind::Unlock {
            return Err(Status::REQUEST);
        }
        let no_room = Status::of(Errno::NOLCK);
        let owner = session.held.lock().note(lock.owner, (ino, whole), &self.owners);
        let lock = Plock { owner: owner.ok_or(no_room)?, ..lock };
        if !session.events.begin(wait, lock.uid) {
            // What is free needs no wait.
            return self.try_lock((ino, whole), &lock).map_err(|_| no_room);
        }
        let events = Arc::clone(&session.events);
        let done = Box::new(move |how| events.over(wait, how));
        match self.files.lock_later(ino, &lock, whole, done) {
            Ok(None) => {
                session.events.forget(wait);
                Ok(Reply::Number(1))
            }
            Ok(Some(named)) => {
                if let Some(named) = session.events.stands(wait, named) {
                    self.files.end_lock_wait(named);
                }
                Ok(Reply::Number(0))
            }
            Err(errno) => {
                session.events.forget(wait);
                Err(Status::of(errno))
            }
        }
    }
}

/// Bytes of an event in a reply.
const EVENT_LEN: usize = 20;
