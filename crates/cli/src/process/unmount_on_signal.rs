//! How a mounted node ends when it is told to by a signal: as by `braid unmount`.
//!
//! ```text
//!  starting ──signal──> what is mounted is detached; the process ends
//!     │
//!  serving ──signal──> unmount ──────────────────────────> the kernel lets go: the node leaves
//!                         │ in use                                ▲            ▲
//!                         └> detach, sync what is mapped ─ soon ──┘            │
//!                                                  └ still used ─> abort ──────┘
//! ```
//!
//! A second signal ends the process at once; other nodes recover it. With a log file SIGHUP opens that anew, which
//! another program may have moved away. Without one it means nothing in the background: it is of a terminal that
//! the node has left.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use braid_fuse::unmount;
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::connection::{self, Connection};
use crate::process::log;

/// Programs that have files open when the mount is detached have so long to close them, before they
/// get errors.
const GRACE: Duration = Duration::from_secs(1);
/// What programs have changed in mapped files is written in that time, or is lost.
const SYNC_MAX: Duration = Duration::from_secs(30);

/// How far the node is.
#[derive(Debug, Clone)]
enum Stage {
    /// Nothing is mounted yet.
    New,
    /// Mounted, by this connection with the kernel, if it can be reached; served or not.
    Mounted { connection: Option<Arc<Connection>>, served: bool },
    /// The kernel has let go of the mount.
    Over,
}

/// Watches over signals.
#[derive(Debug, Clone)]
pub struct UnmountOnSignal {
    stage: Arc<Mutex<Stage>>,
    dir: PathBuf,
}

impl UnmountOnSignal {
    /// From now on a signal ends the process in order. For a mount on `dir`; with a `log` SIGHUP opens that anew,
    /// and in the `background` it is ignored otherwise.
    ///
    /// # Errors
    /// Signals cannot be caught.
    pub fn watch(dir: &Path, background: bool, log: Option<PathBuf>) -> Result<Self> {
        // As the mount table will call it. Once it is mounted nobody can be asked.
        let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        let ending = Self { stage: Arc::new(Mutex::new(Stage::New)), dir };
        let mut signals =
            Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
        let watcher = ending.clone();
        let work = move || {
            let mut asked = false;
            for signal in signals.forever() {
                match (signal, &log) {
                    (SIGHUP, Some(log)) => {
                        reopen(log, watcher.is_served());
                        continue;
                    }
                    (SIGHUP, None) if background => continue,
                    _ => {}
                }
                if asked || !watcher.is_served() {
                    watcher.end_at_once(signal);
                }
                asked = true;
                let watcher = watcher.clone();
                // Another signal must be heard meanwhile.
                let ending = std::thread::Builder::new().name("ending".into());
                if let Err(error) = ending.spawn(move || watcher.end()) {
                    tracing::error!(%error, "cannot leave cleanly");
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(work)?;
        Ok(ending)
    }

    /// It is mounted, and not served yet.
    pub fn mounted(&self) {
        let connection = Connection::of(&self.dir).map(Arc::new);
        let connection = connection.inspect_err(|why| tracing::debug!("not known: {why:#}")).ok();
        *self.stage() = Stage::Mounted { connection, served: false };
    }
    /// Requests are answered from now on.
    pub fn serves(&self) {
        if let Stage::Mounted { served, .. } = &mut *self.stage() {
            *served = true;
        }
    }
    /// The kernel has let go of the mount.
    pub fn over(&self) {
        *self.stage() = Stage::Over;
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn is_served(&self) -> bool {
        matches!(*self.stage(), Stage::Over | Stage::Mounted { served: true, .. })
    }
    fn is_over(&self) -> bool {
        matches!(*self.stage(), Stage::Over)
    }
    /// Whether the mount on the directory is still this node's.
    fn in_place(&self) -> bool {
        let stage = self.stage().clone();
        match stage {
            Stage::Mounted { connection: Some(own), .. } => {
                connection::number(&self.dir).is_ok_and(|there| there == own.number)
            }
            Stage::Mounted { connection: None, .. } => true,
            Stage::New | Stage::Over => false,
        }
    }

    /// Nobody answers any more: a mount without a server must not stay.
    fn end_at_once(&self, signal: i32) -> ! {
        if self.in_place() {
            unmount(&self.dir, true).ok();
        }
        tracing::warn!(
            signal,
            "ending at once because of a second signal; other nodes recover this one"
        );
        std::process::exit(128 + signal)
    }

    /// The kernel lets go of the mount; the thread that serves it then leaves the pool.
    fn end(&self) {
        tracing::info!("told to end: unmounting");
        if self.is_over() || (self.in_place() && unmount(&self.dir, false).is_ok()) {
            return;
        }
        if self.in_place() {
            // It would keep the mount in use.
            let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&self.dir, open, Mode::empty()).ok();
            if let Err(error) = unmount(&self.dir, true) {
                tracing::error!(%error, "cannot detach the mount");
            }
            if let Some(root) = root {
                sync(root);
            }
        }
        std::thread::sleep(GRACE);
        let Stage::Mounted { connection, .. } = self.stage().clone() else { return };
        tracing::warn!("still in use: programs get errors from now on");
        let aborted = connection.context("its connection with the kernel cannot be reached");
        let aborted = aborted.and_then(|connection| Ok(connection.abort()?));
        if let Err(error) = aborted {
            tracing::error!("{error:#}; the node leaves when the last file is closed");
        }
    }
}

/// A node that does not serve yet has not begun to use its log file.
fn reopen(path: &Path, served: bool) {
    if !served {
        return;
    }
    match log::reopen(path) {
        Ok(()) => tracing::info!("the log file was opened anew"),
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "the log file cannot be opened anew");
        }
    }
}

/// Has the kernel write what programs have changed in mapped files. A request that waits for
/// another node may delay that.
fn sync(root: OwnedFd) {
    let (done, wait) = channel();
    let work = move || {
        if let Err(error) = rustix::fs::syncfs(&root) {
            tracing::error!(%error, "changes of mapped files are lost");
        }
        drop(root);
        done.send(()).ok();
    };
    let thread = std::thread::Builder::new().name("sync".into()).spawn(work);
    if thread.is_err() || wait.recv_timeout(SYNC_MAX).is_err() {
        tracing::error!("changes of mapped files may be lost");
    }
}
