//! Which files have bytes of the pool, by name: a person can restore a file, not a byte of a disk.
//!
//! Nothing on disk leads from a block to its file. So all directories are read, and the extents of all files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_format::{ByteOffset, InodeNo};

use crate::attr::{DirEntry, WithAttrs};
use crate::core::Core;
use crate::data::offsets_of;
use crate::error::{Error, Result};
use crate::mode::{S_IFDIR, S_IFREG};
use crate::namei::{self, kind_of};

/// Most files that are named.
const FILES_MAX: usize = 1000;

/// A file that has some of the bytes asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAt {
    /// One of its names, from the root of the file system.
    pub path: PathBuf,
    /// Its number.
    pub ino: InodeNo,
    /// Where in the file these bytes are.
    pub offsets: Vec<u64>,
}

impl FileAt {
    /// Its path in quotes, on one line whatever stands in it.
    pub fn quoted(&self) -> String {
        format!("{:?}", self.path.to_string_lossy())
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilesAt {
    /// Files with some of the bytes. One with two names stands here twice.
    pub files: Vec<FileAt>,
    /// All files were looked at; `false`: it was told to stop, some could not be read, or there are too many.
    pub complete: bool,
}

/// Inodes and a path of each.
type Paths = Vec<(InodeNo, PathBuf)>;

/// Looks for files with these bytes of the pool. `go_on` is asked before each file and directory. No lock is held
/// between two of them, so a file that is renamed meanwhile may be missed.
pub(crate) fn files_at(
    core: &Arc<Core>,
    places: &[ByteOffset],
    go_on: &dyn Fn() -> bool,
) -> FilesAt {
    let mut places = places.to_vec();
    places.sort_unstable();
    let mut found = FilesAt { complete: true, ..FilesAt::default() };
    let mut directories: Paths = vec![(core.volume.root(), PathBuf::from("/"))];
    while let Some((directory, path)) = directories.pop() {
        let mut files = Vec::new();
        let listed = list(core, directory, &path, (&mut directories, &mut files));
        found.complete &= is_read(directory, listed);
        for (ino, path) in files {
            if found.files.len() >= FILES_MAX || !go_on() {
                found.complete = false;
                return found;
            }
            let looked = offsets_of(core, ino, &places).map(|offsets| {
                if !offsets.is_empty() {
                    found.files.push(FileAt { path, ino, offsets });
                }
            });
            found.complete &= is_read(ino, looked);
        }
        if !go_on() {
            found.complete = false;
            return found;
        }
    }
    found
}

/// What is in a directory: directories, and regular files.
fn list(
    core: &Arc<Core>,
    directory: InodeNo,
    path: &Path,
    (directories, files): (&mut Paths, &mut Paths),
) -> Result<()> {
    namei::readdir(core, directory, 0, WithAttrs::No, &mut |entry: DirEntry<'_>| {
        let is = |of: u32| entry.kind == kind_of(of);
        let path = || path.join(OsStr::from_bytes(entry.name));
        if is(S_IFREG) {
            files.push((entry.ino, path()));
        } else if is(S_IFDIR) && !matches!(entry.name, b"." | b"..") {
            directories.push((entry.ino, path()));
        }
        false
    })
}

/// Whether something was read, or is gone; otherwise the log says why not.
fn is_read(ino: InodeNo, result: Result<()>) -> bool {
    match result {
        Ok(()) | Err(Error::Stale(_) | Error::NotFound | Error::NotDirectory) => true,
        Err(error) => {
            tracing::warn!(%ino, %error, "it is not known whether this file has damaged bytes");
            false
        }
    }
}
