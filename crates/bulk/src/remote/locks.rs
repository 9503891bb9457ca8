//! Locks of programs.

use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::{Answer, Errno, LockAnswer, Plock, PlockKind};

use super::Remote;
use super::caller;
use super::calls::{About, lock_unless_interrupted};
use super::held::{ProgramWait, Whose};
use crate::client::Ask;
use crate::wire::{LockEvent, LockRequest, Reply, Request, read_events};

/// For how long an event is waited for at a time.
const PATIENCE_MS: u32 = 5000;
/// Between two tries to hear of events from a server that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

impl Remote {
    /// Asks for something of an inode's locks, by one of its open files. Also the session in which that was.
    ///
    /// The kernel does not say by which a program asks. Those of others may be closed meanwhile; its own is not.
    fn ask_lock(&self, ino: InodeNo, request: impl Fn(u64) -> Request) -> Answer<(Reply, u64)> {
        let caller = caller::current([0; 2]);
        let request = |handles: &[u64]| request(handles.first().copied().unwrap_or(0));
        let mut answer = Err(Errno::BADF);
        for file in self.files.all_of(ino) {
            let about = About {
                files: &[&file],
                caller: Some(&caller),
                locks: Some(ino),
                ..About::default()
            };
            answer = self.ask(about, request, |reply, _| Ok(reply));
            if !matches!(answer, Err(Errno::BADF)) {
                break;
            }
        }
        answer
    }

    /// The fcntl lock in the way of another.
    ///
    /// # Errors
    /// What the program is to see, here and below.
    pub(super) fn lock_in_the_way(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        let request = |handle| Request::Lock(LockRequest::GetLock { handle, lock: *lock });
        match self.ask_lock(ino, request)?.0 {
            Reply::InTheWay(lock) => Ok(lock),
            _ => Err(Errno::IO),
        }
    }

    /// Takes a lock, if it is free, or gives one up.
    pub(super) fn lock(&self, ino: InodeNo, whole: bool, lock: &Plock) -> Answer<()> {
        let (whose, lock) = (Whose { ino, owner: lock.owner, whole }, *lock);
        if lock.kind == PlockKind::Unlock {
            return self.unlock(whose, lock);
        }
        self.give_up_late_of(&whose)?;
        self.ask_lock(ino, |handle| {
            Request::Lock(LockRequest::Lock { handle, whole, again: false, lock })
        })?;
        self.held.lock().set(whose, &lock);
        Ok(())
    }

    /// Gives a lock up: at once, or, if the server does not answer, when it does. No program waits for that.
    fn unlock(&self, whose: Whose, lock: Plock) -> Answer<()> {
        if !self.held.lock().has(&whose) {
            return Ok(());
        }
        if self.session.is_connected() {
            match self.give_up(whose, lock) {
                Err(Errno::INTR | Errno::NOTCONN) => {}
                done => return done,
            }
        }
        self.held.lock().give_up_later(whose, lock);
        Ok(())
    }

    /// Gives a lock up. First what was written becomes durable, to whatever file: whoever has the lock next may write
    /// there, and what is written once more, to a server that was started anew, would lie over that.
    fn give_up(&self, whose: Whose, lock: Plock) -> Answer<()> {
        // Another failure is a loss, which is said to whoever asks for durability.
        if let Err(errno @ (Errno::INTR | Errno::NOTCONN)) = self.flush() {
            return Err(errno);
        }
        // From now on no new session brings it back.
        self.held.lock().set(whose, &lock);
        let whole = whose.whole;
        let request =
            |handle| Request::Lock(LockRequest::Lock { handle, whole, again: false, lock });
        self.ask_lock(whose.ino, request).map(drop)
    }

    /// An owner wants a lock: what he gave up before is given up first, or it would take the new one with it.
    fn give_up_late_of(&self, whose: &Whose) -> Answer<()> {
        if self.held.lock().first_late(Some(whose)).is_none() {
            return Ok(());
        }
        let _alone = lock_unless_interrupted(&self.unlocking)?;
        self.give_up_all_late(Some(whose))
    }

    /// Gives up what could not be given up when the server did not answer.
    pub(super) fn unlock_late(&self) {
        if self.session.is_connected() && self.held.lock().first_late(None).is_some() {
            let _alone = self.unlocking.lock();
            self.give_up_all_late(None).ok();
        }
    }

    fn give_up_all_late(&self, of: Option<&Whose>) -> Answer<()> {
        loop {
            let Some(late) = self.held.lock().first_late(of) else { return Ok(()) };
            match self.give_up(late.0, late.1) {
                Err(errno @ (Errno::INTR | Errno::NOTCONN)) => return Err(errno),
                Err(errno) => {
                    tracing::debug!(ino = %late.0.ino, %errno, "closed, and its locks with it");
                }
                Ok(()) => {}
            }
            self.held.lock().is_given_up(&late);
        }
    }

    /// Takes a lock, or waits for it: the number of the wait.
    pub(super) fn lock_later(
        &self,
        ino: InodeNo,
        whole: bool,
        (lock, done): (&Plock, LockAnswer),
    ) -> Answer<Option<u64>> {
        let (whose, lock) = (Whose { ino, owner: lock.owner, whole }, *lock);
        self.give_up_late_of(&whose)?;
        let wait = ProgramWait { whose, lock, done: Some(done), session: 0, ended_in: 0 };
        let wait = self.held.lock().begin_wait(wait);
        self.helper.state.lock().waits += 1;
        self.helper.changed.notify_all();
        let request = |handle| Request::Lock(LockRequest::LockWait { handle, whole, lock, wait });
        let asked = self.ask_lock(ino, request);
        if let Ok((Reply::Number(0), session)) = asked {
            self.is_asked(wait, session);
            return Ok(Some(wait));
        }
        let granted = asked.is_ok();
        let waits = self.forget_wait(wait, granted).is_some_and(|ended| ended.done.is_some());
        match asked {
            Ok(_) if waits => Ok(None),
            Err(errno) if waits => Err(errno),
            // It was over before this was heard: whoever waits has been told.
            _ => Ok(Some(wait)),
        }
    }

    /// Asks once more for what is waited for, in a session that does not know of it.
    fn wait_again(&self, session: u64) {
        let unknown = self.held.lock().unknown_in(session);
        for (wait, what) in unknown {
            let Some((whose, lock)) = what else {
                self.forget_wait(wait, false);
                continue;
            };
            let whole = whose.whole;
            let request =
                |handle| Request::Lock(LockRequest::LockWait { handle, whole, lock, wait });
            match self.ask_lock(whose.ino, request) {
                Ok((Reply::Number(0), session)) => self.is_asked(wait, session),
                Ok(_) => self.wait_is_over(wait, Ok(())),
                Err(errno) => self.wait_is_over(wait, Err(errno)),
            }
        }
    }

    /// The server knows of a wait; if nobody waits any more by now, it is told of that, too.
    fn is_asked(&self, wait: u64, session: u64) {
        if !self.held.lock().asked(wait, session) {
            self.helper.call();
        }
    }

    fn forget_wait(&self, wait: u64, granted: bool) -> Option<ProgramWait> {
        let ended = self.held.lock().end_wait(wait, granted)?;
        self.helper.state.lock().waits -= 1;
        if granted && ended.done.is_none() {
            self.helper.call();
        }
        Some(ended)
    }

    /// A wait is over: whoever waits is told.
    pub(super) fn wait_is_over(&self, wait: u64, how: Answer<()>) {
        let ended = self.forget_wait(wait, how.is_ok());
        if let Some(done) = ended.and_then(|ended| ended.done) {
            done(how);
        }
    }

    /// A program does not wait any more. It goes on at once; the server is told by another thread, since it may not
    /// answer, and whoever calls this may be what ends all killed programs.
    pub(super) fn end_wait(&self, wait: u64) {
        let abandoned = self.held.lock().abandon(wait);
        if let Some(done) = abandoned {
            done(Err(Errno::INTR));
        }
        self.helper.call();
    }

    /// Tells the server of waits that programs have abandoned. How each ended it says itself: if with the lock, that is
    /// given up.
    pub(super) fn end_abandoned_waits(&self) {
        if !self.session.is_connected() {
            return;
        }
        let abandoned = self.held.lock().abandoned();
        for wait in abandoned {
            let request = |_: &[u64]| Request::Lock(LockRequest::EndWait { wait });
            match self.ask(About::default(), request, |_, _| Ok(())) {
                Ok(((), session)) if self.held.lock().is_told(wait, session) => {}
                Err(Errno::INTR | Errno::NOTCONN) => return,
                // The server knows nothing of it.
                _ => drop(self.forget_wait(wait, false)),
            }
        }
    }

    /// Hears of waits that are over, as long as there are any.
    pub(super) fn hear(&self) {
        loop {
            {
                let mut state = self.helper.state.lock();
                while state.waits == 0 && !state.ended {
                    self.helper.changed.wait(&mut state);
                }
                if state.ended {
                    return;
                }
            }
            if self.session.is_closed() || !self.hear_once() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Waits for events once. `false`: nothing can be heard at the moment.
    fn hear_once(&self) -> bool {
        let session = self.current();
        let seen = {
            let mut held = self.held.lock();
            if held.seen.0 != session {
                held.seen = (session, 0);
            }
            held.seen.1
        };
        self.wait_again(session);
        let request = Request::Lock(LockRequest::Events { seen, patience_ms: PATIENCE_MS });
        let ask = Ask { only_in: Some(session), ..Ask::of(&request) };
        let heard = self.session.call(self.slots.events(), ask, |_, data, _| read_events(data));
        let Ok(Some(events)) = heard else {
            // Another session begins with the next request of anybody: this is one.
            self.done(About::default(), |_| Request::Ping).ok();
            return false;
        };
        for LockEvent { number, wait, errno } in events {
            self.held.lock().seen = (session, number);
            let how = match i32::try_from(errno) {
                Ok(0) => Ok(()),
                Ok(errno) => Err(Errno::from_raw_os_error(errno)),
                Err(_) => Err(Errno::IO),
            };
            self.wait_is_over(wait, how);
        }
        true
    }
}
