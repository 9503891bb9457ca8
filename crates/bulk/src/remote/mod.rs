//! A file system that another host serves, for a mount here.
//!
//! Map, bottom up:
//! ```text
//!  inode        what the server calls an inode
//!  caller       for which program a thread asks
//!  known        which inodes the kernel has, and of which generation
//!  recent_names what names led to when they were looked up last
//!  slots        connections, one for each request under way
//!  progress     how far a program has read a file
//!  files        files that programs have open
//!  ahead        what is read before a program asks for it
//!  losses       what was lost of files, and which open files were told
//!  pending      writes that are not durable yet, to be sent again to a server that was started anew
//!  held         locks that programs have, and what they wait for
//!  leases       what is kept of inodes until the server recalls it
//!  calls        requests, and what is done when the server has begun anew
//!  durable      what is pending becomes durable
//!  recalls      hears which leases are recalled
//!  locks        locks of programs
//!  reader       reads contents, those that are kept and those that are to be
//!  contents, names    the calls of `FileSystem`
//!  file_system  their list
//! ```
//!
//! What another host may change is kept here and in the kernel only under leases (`leases`). A server that does not answer is waited for. A server that was
//! started anew knows neither open files nor locks, and may have lost what was not durable: files are opened again by
//! number and generation, locks asked for again, and writes sent again, before any program's next request
//! (`calls`).

mod ahead;
mod caller;
mod calls;
mod contents;
mod durable;
mod file_system;
mod files;
mod held;
mod inode;
mod known;
mod leases;
mod locks;
mod losses;
mod names;
mod pending;
mod progress;
mod reader;
mod recalls;
mod recent_names;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_format::InodeNo;
use braid_fs::{Attr, KernelCache};
use parking_lot::{Condvar, Mutex};

use crate::client::{Ask, ClientOptions, Session, keep_alive, unexpected};
use crate::error::Error;
use crate::wire::{Caller, MOUNT_VERSION, Reply, Request};

use ahead::Ahead;
use files::Files;
use held::Held;
use known::Known;
use leases::Leases;
use pending::Pending;
use recent_names::RecentNames;
use slots::Slots;

/// At the end of a mount the server gets what is not durable yet, if it takes it in that time ...
const LAST_FLUSH: Duration = Duration::from_secs(30);
/// ... and in that time, if it has not answered lately.
const LAST_TRY: Duration = Duration::from_secs(2);

/// A file system that another host serves. Clones are the same.
#[derive(Clone)]
pub struct RemoteFs(Arc<Remote>);

/// What all threads share.
struct Remote {
    session: Arc<Session>,
    root: Attr,
    slots: Slots,
    /// Most bytes of a read or a write.
    chunk: usize,
    kernel: Arc<dyn KernelCache>,
    known: Known,
    recent_names: RecentNames,
    files: Files,
    /// The session in which open files, locks and writes are what they should be; 0: none, or not yet.
    current: AtomicU64,
    /// Held by whoever brings them there: the server that has the writes.
    recovering: Mutex<ServerInstance>,
    pending: Mutex<Pending>,
    leases: Leases,
    ahead: Ahead,
    /// Requests that were sent for programs.
    requests: AtomicU64,
    held: Mutex<Held>,
    /// Held by whoever gives up locks that the server could not be told of.
    unlocking: Mutex<()>,
    /// Held by whoever makes everything durable.
    flushing: Mutex<()>,
    helper: Helper,
}

/// Which server has what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServerInstance {
    /// Its verifier: another one if it was started anew.
    verifier: u64,
    /// How many servers had it before.
    moves: u64,
}

impl ServerInstance {
    /// The server of the session of that number. `None`: that session is over.
    fn of(session: &Session, number: u64) -> Option<Self> {
        let place = session.place();
        let verifier = place.welcome.filter(|_| place.number == number)?.verifier;
        Some(Self { verifier, moves: place.moves })
    }
}

/// When the threads beside the requests have something to do.
#[derive(Default)]
struct Helper {
    state: Mutex<HelperState>,
    changed: Condvar,
}

#[derive(Default)]
struct HelperState {
    /// Something is to be flushed or closed now.
    is_called: bool,
    /// Programs wait for locks.
    waits: usize,
    ended: bool,
}

/// How a remote mount is, for displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStatus {
    /// Servers that may be used.
    pub servers: usize,
    /// The one that is.
    pub server: String,
    /// Since when.
    pub since: SystemTime,
    /// How often another server was used instead of one that was dead.
    pub moves: u64,
    /// Whether the server answered when it was last asked.
    pub is_connected: bool,
    /// For how long it has said nothing. It is asked for a sign of life every two seconds at least.
    pub silent_for: Duration,
    /// It does not want this client any more.
    pub is_refused: bool,
    /// Files that programs have open.
    pub open_files: usize,
    /// Bytes that the server has, and that are not durable there.
    pub pending: usize,
    /// Inodes of which something is kept under leases.
    pub leases: usize,
    /// Requests that were sent, but those that ask for recalls.
    pub requests: u64,
}

impl RemoteFs {
    /// Begins a session, and looks for the directory `path` in the pool, which will be the root. A server that does
    /// not answer is tried for `options.patience` now, and waited for without end later on. `keeps`: what the server
    /// grants leases of is kept, so that not each question is a request.
    ///
    /// # Errors
    /// The server does not answer, or refuses; there is no such directory.
    pub fn connect(
        options: ClientOptions,
        path: &[Vec<u8>],
        kernel: Arc<dyn KernelCache>,
        keeps: bool,
    ) -> Result<Self, Error> {
        // One more, for recalls.
        let connections = options.connections.saturating_add(u16::from(keeps));
        let options = ClientOptions { version: MOUNT_VERSION, connections, ..options };
        let session = Arc::new(Session::begin(options)?);
        let (root, number) = walk(&session, path)?;
        session.wait_for_ever();
        keep_alive(&session);
        let (welcome, moves) = (session.welcome(), session.place().moves);
        let instance = ServerInstance { verifier: welcome.verifier, moves };
        let slots = Slots::new(session.data_slots());
        let keeps = keeps && slots.recalls().is_some();
        let remote = Arc::new(Remote {
            root,
            slots,
            chunk: usize::try_from(welcome.data_max).unwrap_or(1 << 20),
            kernel,
            known: Known::new(&root),
            recent_names: RecentNames::default(),
            files: Files::default(),
            current: AtomicU64::new(number),
            recovering: Mutex::new(instance),
            pending: Mutex::default(),
            leases: Leases::new(!keeps),
            ahead: Ahead::default(),
            requests: AtomicU64::new(0),
            held: Mutex::default(),
            unlocking: Mutex::default(),
            flushing: Mutex::default(),
            helper: Helper::default(),
            session,
        });
        remote.start();
        Ok(Self(remote))
    }

    /// How it is.
    pub fn status(&self) -> RemoteStatus {
        let place = self.0.session.place();
        RemoteStatus {
            servers: self.0.session.servers().len(),
            server: self.0.session.server_name(place.server).to_owned(),
            since: place.since,
            moves: place.moves,
            is_connected: self.0.session.is_connected(),
            silent_for: self.0.session.silent_for(),
            is_refused: self.0.session.is_refused(),
            open_files: self.0.files.len(),
            pending: self.0.pending.lock().bytes(),
            leases: self.0.leases.len(),
            requests: self.0.requests.load(Ordering::Relaxed),
        }
    }

    /// The number of its root, by which programs know that.
    pub fn root_ino(&self) -> InodeNo {
        self.0.root.ino
    }

    /// Most bytes of a read or a write that go by one message.
    pub fn chunk(&self) -> usize {
        self.0.chunk
    }

    /// The mount is gone: what is not durable yet becomes so, if the server answers soon, and the session ends.
    ///
    /// # Errors
    /// So many bytes may not be durable at the server, and why.
    pub fn finish(&self) -> Result<(), (usize, braid_fs::Errno)> {
        let remote = &self.0;
        let patience = if remote.session.is_connected() { LAST_FLUSH } else { LAST_TRY };
        remote.session.close_at(Instant::now() + patience);
        remote.helper.end();
        remote.ahead.close();
        let flushed = remote.flush().or_else(|errno| {
            let bytes = remote.pending.lock().bytes();
            if bytes > 0 {
                tracing::error!(%errno, bytes, "unmounted; what was written last may not be durable at the server");
                return Err((bytes, errno));
            }
            Ok(())
        });
        remote.session.close_at(Instant::now());
        remote.session.end();
        flushed
    }
}

impl std::fmt::Debug for RemoteFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RemoteFs").field(&self.status()).finish()
    }
}

/// The directory that a path leads to, and the session in which that was found.
fn walk(session: &Session, path: &[Vec<u8>]) -> Result<(Attr, u64), Error> {
    let ask = |generation: u64, request: Request| {
        let caller = Caller { generations: [generation, 0], ..Caller::default() };
        let ask = Ask { caller: Some(&caller), ..Ask::of(&request) };
        match session.call(0, ask, |reply, _, session| (reply, session))? {
            (Reply::Attr(attr), session) => Ok((attr, session)),
            _ => Err(unexpected()),
        }
    };
    let (mut at, mut number) = ask(0, Request::GetAttr { ino: session.welcome().root })?;
    for name in path {
        (at, number) = ask(at.generation, Request::Lookup { dir: at.ino, name: name.clone() })?;
    }
    if at.is_dir() { Ok((at, number)) } else { Err(Error::Errno(braid_fs::Errno::NOTDIR)) }
}

impl Helper {
    /// There is something to flush or to close.
    fn call(&self) {
        self.state.lock().is_called = true;
        self.changed.notify_all();
    }
    fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}
