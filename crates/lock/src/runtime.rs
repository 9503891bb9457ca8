//! What nodes need of the system: the directory for what a user's mounts keep on this host while they
//! run (hint sockets, notes), and the end of threads.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use braid_pool::device::user_dirs;

/// Ends the process if its thread panics; the message has been printed by then. Such a thread leaves behind what nobody
/// goes on with: the process would live, and hold locks that it never gives up.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread met a broken invariant: this node stops");
            std::process::abort();
        }
    }
}

/// `/run/braid` for root, `braid` in `$XDG_RUNTIME_DIR` for others, else `braid-UID` among the
/// temporary files ([`user_dirs`]). Made if missing, so that nobody else may enter it; one that is there may at
/// most be looked at by others, and only root's.
///
/// # Errors
/// The system's; `PermissionDenied` for one that stands there and belongs to somebody else, is open
/// to others, or is no directory: in a place where everybody may write, whoever made it could lead
/// this user's files elsewhere.
pub fn private_dir() -> io::Result<PathBuf> {
    in_private_dir(Ok)
}

/// What `f` makes of the first private directory that it succeeds in: [`private_dir`], else those
/// with shorter names.
///
/// # Errors
/// The last one's.
pub(crate) fn in_private_dir<T>(f: impl Fn(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let user = rustix::process::geteuid().as_raw();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for dir in user_dirs() {
        match make(&dir, user).and_then(&f) {
            Ok(made) => return Ok(made),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn make(dir: &Path, user: u32) -> io::Result<PathBuf> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = std::fs::symlink_metadata(dir)?;
    // Others may look at root's (`braid status`), but not write there.
    let closed = if user == 0 { 0o022 } else { 0o077 };
    if !found.is_dir() || found.uid() != user || found.mode() & closed != 0 {
        let why = format!("{}: not a directory that only this user may enter", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir.to_owned())
}

/// Waits for threads; not for the one that calls.
pub(crate) fn join_all(threads: Vec<JoinHandle<()>>) {
    let here = std::thread::current().id();
    for thread in threads.into_iter().filter(|t| t.thread().id() != here) {
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!(name, "a thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_directory_of_ones_own_will_do() {
        let user = rustix::process::geteuid().as_raw();
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("braid");
        make(&dir, user).unwrap();
        make(&dir, user).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make(&dir, user).is_err(), "open to all");
        assert!(make(&dir, user + 1).is_err(), "another's");
        let link = temp.path().join("link");
        symlink(temp.path(), &link).unwrap();
        assert!(make(&link, user).is_err(), "leads elsewhere");
        let file = temp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(make(&file, user).is_err());
    }
}
