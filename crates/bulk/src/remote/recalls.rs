//! Hears which leases the server recalls.

use std::time::Duration;

use super::calls::About;
use super::{Remote, leases};
use crate::client::{Ask, unexpected};
use crate::error::Error;
use crate::wire::{LeaseNote, Recalls, Request};

/// For how long recalls are waited for at a time. The server waits less if it has to.
const PATIENCE_MS: u32 = 500;
/// Between two tries to ask a server that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

impl Remote {
    /// What a reply has changed besides what was known to change.
    pub(super) fn obey(&self, note: &LeaseNote) {
        if note.all {
            // Drops of the kernel's pages are not for a thread that answers it: attributes are all there is.
            for ino in self.leases.drop_all() {
                self.kernel.attributes_changed(ino);
            }
        }
        for ino in &note.changed {
            self.leases.drop_inode(*ino);
            self.kernel.attributes_changed(*ino);
        }
    }

    /// Nothing that is kept may be used any more.
    fn drop_all(&self) {
        for ino in self.leases.drop_all() {
            self.kernel.invalidate_inode(ino, false);
        }
    }

    /// Asks for recalls and carries them out, as long as the mount lives. Waits for nothing that needs an answer of the
    /// server, since others wait for this.
    pub(super) fn hear_recalls(&self) {
        let (mut session, mut done) = (0, 0);
        while !self.helper.state.lock().ended {
            let current = self.current();
            if current != session {
                // Another server, perhaps, which knows nothing of leases of the former.
                self.drop_all();
                (session, done) = (current, 0);
            }
            match self.hear_of_recalls(session, done) {
                Ok(number) => done = number,
                Err(error) => {
                    self.drop_all();
                    std::thread::sleep(PAUSE);
                    if matches!(error, Error::Session) && !self.session.is_closed() {
                        // Another session begins with the next request of anybody: this is one.
                        self.done(About::default(), |_| Request::Ping).ok();
                    }
                }
            }
        }
        self.drop_all();
    }

    /// Asks once: the number of the recalls that were carried out.
    ///
    /// # Errors
    /// There is no answer.
    fn hear_of_recalls(&self, session: u64, done: u64) -> Result<u64, Error> {
        let asked = leases::now();
        let request = Request::Leases { done, patience_ms: PATIENCE_MS };
        let ask = Ask { only_in: Some(session), once: true, ..Ask::of(&request) };
        let slot = self.slots.recalls().ok_or(Error::Session)?;
        let heard = self.session.call(slot, ask, |_, data, _| Recalls::read(data));
        let recalls = heard?.ok_or_else(unexpected)?;
        if recalls.all {
            self.drop_all();
        }
        for ino in recalls.inodes {
            self.leases.drop_inode(ino);
            self.kernel.invalidate_inode(ino, false);
        }
        self.leases.extend(asked, Duration::from_millis(recalls.term_ms.into()));
        Ok(recalls.number)
    }
}
