//! The client: files and names of a pool that another host serves.

mod connection;
mod failover;
mod file;
mod options;
mod place;
mod session;

use std::sync::Arc;
use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::{Attr, SetAttr, StatFs};

pub(crate) use file::unexpected;
pub use file::{File, Written};
pub use options::{ClientOptions, PORT};
pub(crate) use session::{Ask, Session};

use crate::error::Error;
use crate::wire::{Entry, OpenFlags, Reply, Request, read_entries};

/// Bytes of a directory that are asked for at a time.
const ENTRIES: u32 = 64 << 10;

/// A client of a server. Calls block, and may come from several threads.
#[derive(Debug, Clone)]
pub struct Client {
    session: Arc<Session>,
}

/// Parts of a session's time after which the server hears of a client that does nothing.
const SIGNS_OF_LIFE: u32 = 4;

/// ... and never less often: a client that has locks is to notice a server that was started anew in time to have them
/// again.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(2);

/// ... and, if there are other servers, than this: one that is silent is to be noticed.
const SIGN_OF_LIFE_OF_SEVERAL: Duration = Duration::from_millis(500);

/// Gives signs of life, and looks for another server when there is no answer, as long as somebody has the session.
pub(crate) fn keep_alive(session: &Arc<Session>) {
    failover::start(session);
    let pause = Duration::from_millis(session.welcome().session_ms.into()) / SIGNS_OF_LIFE;
    let several = session.has_several();
    let pause = pause.min(if several { SIGN_OF_LIFE_OF_SEVERAL } else { SIGN_OF_LIFE_MAX });
    let session = Arc::downgrade(session);
    let work = move || {
        loop {
            std::thread::sleep(pause);
            let Some(session) = session.upgrade() else { return };
            session.sign_of_life(pause);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("bulk".into()).spawn(work) {
        tracing::warn!(%error, "the server forgets this client when it does nothing");
    }
}

#[allow(
    clippy::missing_errors_doc,
    reason = "each fails as the server says, or because it does not answer"
)]
impl Client {
    /// Connects, and begins a session.
    pub fn connect(options: ClientOptions) -> Result<Self, Error> {
        let session = Arc::new(Session::begin(options)?);
        keep_alive(&session);
        Ok(Self { session })
    }

    /// Connections for data; a call about the contents of a file names one, from 1 on. Calls by one
    /// connection wait for each other.
    pub fn data_slots(&self) -> u16 {
        self.session.data_slots()
    }

    /// Most bytes of a read or a write.
    pub fn data_max(&self) -> u32 {
        self.session.welcome().data_max
    }

    /// The server forgets a client without a connection after so long.
    pub fn session_time(&self) -> Duration {
        Duration::from_millis(self.session.welcome().session_ms.into())
    }

    /// The root directory.
    pub fn root(&self) -> InodeNo {
        self.session.welcome().root
    }

    /// The write verifier of the server as it is now.
    pub fn verifier(&self) -> u64 {
        self.session.welcome().verifier
    }

    fn ask(&self, request: &Request) -> Result<(Reply, u64), Error> {
        self.session.call(0, Ask::of(request), |reply, _, session| (reply, session))
    }

    fn attr(&self, request: &Request) -> Result<Attr, Error> {
        match self.ask(request)?.0 {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(unexpected()),
        }
    }

    /// The inode behind a name.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr, Error> {
        self.attr(&Request::Lookup { dir, name: name.to_vec() })
    }
    /// Attributes of an inode.
    pub fn getattr(&self, ino: InodeNo) -> Result<Attr, Error> {
        self.attr(&Request::GetAttr { ino })
    }
    /// Changes attributes.
    pub fn setattr(&self, ino: InodeNo, set: SetAttr) -> Result<Attr, Error> {
        self.attr(&Request::SetAttr { ino, set, handle: 0 })
    }
    /// Totals of the file system.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        match self.ask(&Request::StatFs)?.0 {
            Reply::Totals(totals) => Ok(totals),
            _ => Err(unexpected()),
        }
    }
    /// All entries of a directory.
    pub fn readdir(&self, dir: InodeNo) -> Result<Vec<Entry>, Error> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let length = ENTRIES.min(self.data_max());
            let request = Request::ReadDir { dir, cookie, length, handle: 0 };
            let entries =
                self.session.call(0, Ask::of(&request), |_, data, _| read_entries(data))?;
            let entries = entries.ok_or_else(unexpected)?;
            let Some(last) = entries.last() else { return Ok(all) };
            cookie = last.next;
            all.extend(entries);
        }
    }
    /// Makes a file, which must be new, and opens it to be written and read.
    pub fn create(&self, dir: InodeNo, name: &[u8], mode: u32, lock: bool) -> Result<File, Error> {
        let flags = OpenFlags { write: true, lock, ..OpenFlags::default() };
        let moves = self.session.place().moves;
        let opened = self.ask(&Request::Create { dir, name: name.to_vec(), mode, flags })?;
        File::new(Arc::clone(&self.session), opened, (flags, moves))
    }
    /// Opens a file.
    pub fn open(&self, attr: &Attr, flags: OpenFlags) -> Result<File, Error> {
        let (ino, generation) = (attr.ino, attr.generation);
        let moves = self.session.place().moves;
        let opened = self.ask(&Request::Open { ino, generation, flags })?;
        File::new(Arc::clone(&self.session), opened, (flags, moves))
    }
    /// Makes a directory.
    pub fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr, Error> {
        self.attr(&Request::MkDir { dir, name: name.to_vec(), mode })
    }
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<(), Error> {
        self.ask(&Request::Unlink { dir, name: name.to_vec() }).map(drop)
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<(), Error> {
        self.ask(&Request::RmDir { dir, name: name.to_vec() }).map(drop)
    }
    /// Renames; `no_replace`: only if the new name is free.
    pub fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        no_replace: bool,
    ) -> Result<(), Error> {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        self.ask(&Request::Rename { from, to, no_replace }).map(drop)
    }
    /// Makes changes of a directory durable.
    pub fn sync_dir(&self, dir: InodeNo) -> Result<(), Error> {
        self.ask(&Request::SyncDir { dir }).map(drop)
    }
}
