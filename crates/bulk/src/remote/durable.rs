//! What is pending becomes durable: when a program asks for it, when there is much of it, and after a while.

use std::sync::Arc;
use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::{Answer, Errno};

use super::Remote;
use super::calls::About;
use super::files::RemoteFile;
use crate::wire::{MountRequest, Request};

/// Most bytes that are pending before whoever writes more waits until they are durable.
const BYTES_MAX: usize = 64 << 20;
/// From so many on they are made durable beside the writes.
const BYTES_MANY: usize = BYTES_MAX / 2;
/// Nothing is pending for longer than that and a little, and nothing of a file that was closed: what is written once
/// more, to a server that was started anew, lies over what others have written there meanwhile.
const AGE_MAX: Duration = Duration::from_secs(1);
/// From so many files on all of the server becomes durable at once.
const FILES_MANY: usize = 8;
/// Between two looks at what is pending.
const LOOK: Duration = Duration::from_millis(500);

impl Remote {
    /// Starts the threads that make pending writes durable, and that wait for events and for recalls.
    pub fn start(self: &Arc<Self>) {
        let flusher = Arc::clone(self);
        let events = Arc::clone(self);
        let recalls = Arc::clone(self);
        let thread = || std::thread::Builder::new().name("bulk".into());
        let started = thread()
            .spawn(move || flusher.flush_now_and_then())
            .and_then(|_| thread().spawn(move || events.hear()));
        if let Err(error) = started {
            tracing::error!(%error, "cannot start a thread: programs may wait for locks in vain");
        }
        if self.leases.is_off() {
            return;
        }
        if let Err(error) = thread().spawn(move || recalls.hear_recalls()) {
            tracing::error!(%error, "cannot start a thread: each question is a request");
        }
    }

    fn flush_now_and_then(&self) {
        loop {
            {
                let mut state = self.helper.state.lock();
                if !state.is_called && !state.ended {
                    self.helper.changed.wait_for(&mut state, LOOK);
                }
                state.is_called = false;
                if state.ended {
                    return;
                }
            }
            let due = {
                let pending = self.pending.lock();
                let old = pending.oldest().is_some_and(|since| since.elapsed() >= AGE_MAX);
                old || pending.bytes() >= BYTES_MANY || pending.is_due()
            };
            self.end_abandoned_waits();
            self.unlock_late();
            if due && let Err(errno) = self.flush() {
                tracing::debug!(%errno, "what was written is not durable yet");
            }
        }
    }

    /// Makes everything durable that is pending now.
    ///
    /// # Errors
    /// The server cannot; then each file that it cannot is known to have lost something.
    pub fn flush(&self) -> Answer<()> {
        let _alone = self.flushing.lock();
        let (inodes, last) = {
            let pending = self.pending.lock();
            (pending.inodes(), pending.last())
        };
        if inodes.len() >= FILES_MANY && self.sync_server().is_ok() {
            self.settle(None, last);
            return Ok(());
        }
        // One that cannot does not keep the others from it.
        let outcomes: Vec<_> = inodes.into_iter().map(|ino| self.commit_pending(ino)).collect();
        outcomes.into_iter().collect()
    }

    /// Makes everything at the server durable.
    pub(super) fn sync_server(&self) -> Answer<()> {
        self.done(About::default(), |_| Request::Mount(MountRequest::Sync))
    }

    /// Makes durable what is pending of a file, if anything is.
    ///
    /// # Errors
    /// The server cannot: that is lost.
    pub(super) fn commit_pending(&self, ino: InodeNo) -> Answer<()> {
        loop {
            let Some(file) = self.pending.lock().file(ino) else { return Ok(()) };
            // It is closed as soon as everything is durable, by whoever finds that.
            let is_closed =
                || self.pending.lock().file(ino).is_none_or(|f| !Arc::ptr_eq(&f, &file));
            match self.try_commit(&file) {
                Err((Errno::BADF, _)) if is_closed() => {}
                done => return self.committed(ino, done),
            }
        }
    }

    /// Makes a file durable that a program has open.
    ///
    /// # Errors
    /// The same.
    pub(super) fn commit(&self, file: &RemoteFile) -> Answer<()> {
        self.committed(file.inode.ino, self.try_commit(file))
    }

    /// Has the server make a file durable. Up to which change it did, or not.
    fn try_commit(&self, file: &RemoteFile) -> Result<u64, (Errno, u64)> {
        let last = self.pending.lock().last();
        let request =
            |handles: &[u64]| Request::Commit { handle: handles.first().copied().unwrap_or(0) };
        let about = About { files: &[file], ..About::default() };
        self.done(about, request).map(|()| last).map_err(|errno| (errno, last))
    }

    fn committed(&self, ino: InodeNo, done: Result<u64, (Errno, u64)>) -> Answer<()> {
        match done {
            Ok(last) => {
                self.settle(Some(ino), last);
                Ok(())
            }
            Err((errno @ (Errno::INTR | Errno::NOTCONN), _)) => Err(errno),
            Err((errno, last)) => {
                let closed = self.pending.lock().lost(ino, errno, last);
                self.close_all(closed);
                Err(errno)
            }
        }
    }

    /// What was pending up to `last` is durable.
    fn settle(&self, ino: Option<InodeNo>, last: u64) {
        let closed = self.pending.lock().durable(ino, last);
        self.close_all(closed);
    }

    fn close_all(&self, files: impl IntoIterator<Item = Arc<RemoteFile>>) {
        for file in files {
            self.close(&file);
        }
    }

    /// Closes a file at the server, if it is open there.
    pub(super) fn close(&self, file: &RemoteFile) {
        let place = *file.place.lock();
        if place.lost.is_some() || place.session != self.current() {
            return;
        }
        let handle = place.handle;
        let slot = self.slots.take();
        let request = |_: &[u64]| Request::Close { handle };
        // If the session is over, so is the open file.
        let at = (place.session, slot.number);
        self.ask_in(at, About::default(), &request, &mut |_, _| Ok(())).ok();
    }

    /// Notes a write that was done in `session`. `false`: that session is over, and the write perhaps lost.
    pub(super) fn note_write(
        &self,
        file: &Arc<RemoteFile>,
        (session, is_durable): (u64, bool),
        what: Option<(u64, &[u8])>,
    ) -> bool {
        let mut pending = self.pending.lock();
        if self.current() != session {
            return false;
        }
        // A durable one is kept, too, where it lies over others that are not.
        if is_durable && !pending.has(file.inode.ino) {
            return true;
        }
        match what {
            Some((offset, bytes)) => pending.wrote(file, offset, bytes),
            None => pending.changed(file),
        }
        let many = pending.bytes() >= BYTES_MANY;
        drop(pending);
        if many {
            self.helper.call();
        }
        true
    }

    /// Waits until there is room for more writes.
    pub(super) fn make_room(&self) -> Answer<()> {
        let is_full = || self.pending.lock().bytes() >= BYTES_MAX;
        if is_full() { self.flush() } else { Ok(()) }
    }

    /// A change of a file other than by a write is about to be made: what is pending comes before it.
    pub(super) fn before_change(&self, ino: InodeNo) -> Answer<()> {
        if self.pending.lock().has(ino) { self.commit_pending(ino) } else { Ok(()) }
    }
    /// It was made.
    pub(super) fn after_change(&self, file: &Arc<RemoteFile>) {
        if file.is_writable() {
            self.pending.lock().changed(file);
        }
    }
    /// A program has closed its file.
    pub(super) fn close_later(&self, file: &Arc<RemoteFile>) -> bool {
        let mut pending = self.pending.lock();
        let is_kept = pending.close(file);
        let is_pending = pending.has(file.inode.ino);
        drop(pending);
        if is_pending {
            self.helper.call();
        }
        is_kept
    }
    /// What was lost of a file, if this open file was not told of it.
    pub(super) fn failure(&self, file: &RemoteFile) -> Answer<()> {
        self.pending.lock().losses.tell(file.inode.ino, &file.told).map_or(Ok(()), Err)
    }
}
