//! The server's state in the pool, `.braid-nfs/NAME` at the top: which clients had locks, so that they get them
//! back after a restart, on whatever node that is.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// In the pool's top directory.
const HIDDEN: &str = ".braid-nfs";

/// The state, held by a lock that all nodes of the pool see.
#[derive(Debug)]
pub struct Recovery {
    /// Ganesha's directory.
    pub dir: PathBuf,
    /// Locked. Holds the number of the last start.
    file: File,
}

impl Recovery {
    /// Takes the state of the server `name`. If the pool is mounted read-only it is in `room` instead, on this
    /// host, where it ends with the server. `None`: a server of that name runs, here or on another node.
    ///
    /// # Errors
    /// The system's.
    pub fn open(mount_point: &Path, name: &str, room: &Path) -> Result<Option<Self>> {
        let hidden = mount_point.join(HIDDEN);
        match make_dir(&hidden) {
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Self::in_dir(&room.join("recovery"))
            }
            made => {
                made.with_context(|| hidden.display().to_string())?;
                Self::in_dir(&hidden.join(name))
            }
        }
    }

    fn in_dir(dir: &Path) -> Result<Option<Self>> {
        let at = || format!("the state of the NFS server in {}", dir.display());
        make_dir(dir).with_context(at)?;
        let path = dir.join("starts");
        let mut file = File::options();
        let file = file.create(true).truncate(false).read(true).write(true).open(path);
        let file = file.with_context(at)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { dir: dir.to_owned(), file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(io::Error::from(e)).with_context(at),
        }
    }

    /// A number for a start of the server, higher than those of all before it: Ganesha makes the verifier of it
    /// by which clients see that what it had not written yet is lost. By itself it takes the time in seconds,
    /// which two starts may share. Durable on return.
    ///
    /// # Errors
    /// The system's.
    pub fn next_start(&mut self) -> io::Result<u64> {
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        let last: u64 = text.trim().parse().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Ganesha uses the lower half alone.
        let next = now.max(last + 1) & u64::from(u32::MAX);
        self.file.rewind()?;
        self.file.write_all(format!("{next:<10}\n").as_bytes())?;
        self.file.sync_all()?;
        Ok(next)
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_higher_number_and_only_one_server_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name| Recovery::open(dir.path(), name, dir.path()).unwrap();
        let mut first = open("hosta").unwrap();
        let starts: Vec<u64> = (0..5).map(|_| first.next_start().unwrap()).collect();
        assert!(starts.is_sorted_by(|a, b| a < b), "{starts:?}");
        assert!(open("hosta").is_none());
        assert!(open("hostb").is_some());
        drop(first);
        assert!(open("hosta").unwrap().next_start().unwrap() > starts[4]);
    }
}
