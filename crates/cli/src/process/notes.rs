//! Notes of processes that run in the background: one small file each in the user's runtime directory,
//! locked by the process that wrote it for as long as it lives.
//!
//! A process's number would not tell whether it lives: in a PID namespace it is another one than outside,
//! and in each of them the first has number 1.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Notes of one process number: in so many PID namespaces.
const ALIKE_MAX: u32 = 256;

/// A note that removes itself.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    /// Locked.
    _file: File,
}

impl Note {
    /// Writes a note of this `kind` of the process `pid`, and locks it.
    ///
    /// # Errors
    /// The system's; `AlreadyExists`: there are too many of that number.
    pub fn write(dir: &Path, kind: &str, pid: u32, value: &impl Serialize) -> io::Result<Self> {
        for n in 0..ALIKE_MAX {
            let more = if n == 0 { String::new() } else { format!("-{n}") };
            let path = dir.join(format!("{kind}-{pid}{more}.json"));
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // Another process that found the note to be a dead one's may have removed it just now.
            if !names(&path, &file) {
                continue;
            }
            file.set_len(0)?;
            serde_json::to_writer(&file, value)?;
            return Ok(Self { path, _file: file });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

/// A note that was found.
#[derive(Debug)]
pub struct Found<T> {
    /// The process that wrote it lives.
    pub lives: bool,
    /// What it says. `None`: it is just being written, or makes no sense.
    pub value: Option<T>,
}

/// All notes of a `kind` in `dir`. Those of dead processes are removed.
pub fn found<T: DeserializeOwned>(dir: &Path, kind: &str) -> Vec<Found<T>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_note = name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-'));
        if !is_note || !name.ends_with(".json") {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        // Held until the note is gone, so that nobody begins to use it. It is shared, so that two processes
        // that look at once do not take each other for its writer.
        let lives = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let value = serde_json::from_reader(&file).ok();
        if !lives && names(&path, &file) {
            std::fs::remove_file(&path).ok();
        }
        all.push(Found { lives, value });
    }
    all
}

/// Whether a file is still what its path names.
fn names(path: &Path, file: &File) -> bool {
    let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
    id(std::fs::metadata(path)) == id(file.metadata())
}
