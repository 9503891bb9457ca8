//! The journal of a copy, in a file beside the destination.
//!
//! The head names the source and the destination. One line with a hash follows for each flushed piece. A
//! journal of another copy is ignored. An incomplete last line does not count.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};

use crate::run::journal::{self, Journal};

/// A file or a device, told apart from whatever had its name before or has it later.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Identity {
    /// The file system's number, unless it is the journal's own: numbers change from mount to mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    elsewhere: Option<u64>,
    inode: u64,
    /// A block device's number.
    #[serde(default)]
    device: u64,
    /// When it was made, where the file system knows: numbers of inodes are given again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    born: Option<u128>,
}

impl Identity {
    /// Of what has this metadata; `home` is the file system of the journal.
    pub fn of(meta: &Metadata, home: u64) -> Self {
        let block = meta.file_type().is_block_device();
        let born = meta.created().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Self {
            elsewhere: (meta.dev() != home).then(|| meta.dev()),
            inode: meta.ino(),
            device: if block { meta.rdev() } else { 0 },
            born: born.map(|t| t.as_nanos()),
        }
    }
}

/// The state of a source by which a change of it is noticed; on a block device only its size.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Source {
    pub path: PathBuf,
    pub size: u64,
    inode: u64,
    device: u64,
    modified: (i64, i64),
}

impl Source {
    /// What stands there now; `size` as the kit sees it.
    pub fn of(path: &Path, size: u64) -> Result<Self> {
        let meta = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        let block = meta.file_type().is_block_device();
        Ok(Self {
            path: path.canonicalize()?,
            size,
            inode: meta.ino(),
            device: if block { meta.rdev() } else { 0 },
            modified: if block { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) },
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Head {
    /// Always [`MARK`].
    pub mark: String,
    pub source: Source,
    pub destination: Identity,
    pub request: u64,
    pub piece: u64,
}
impl Head {
    /// Bytes of a piece.
    pub fn bytes(&self) -> Result<u64> {
        self.request.checked_mul(self.piece).context("--piece: beyond the largest file")
    }
}

/// First word of a journal.
pub(super) const MARK: &str = "braid-copy-2";

#[derive(Debug)]
pub(super) struct Found {
    pub head: Head,
    pub hashes: Vec<u64>,
}

/// Where the journal of a destination is.
pub(super) fn path_of(destination: &Path) -> PathBuf {
    let mut name = destination.as_os_str().to_owned();
    name.push(".braid-copy");
    name.into()
}

/// Reads a journal; `None`: there is none.
///
/// # Errors
/// It cannot be read, or something else has its name.
pub(super) fn read(path: &Path) -> Result<Option<Found>> {
    let (head, lines) = match journal::read(path) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    let head = head.filter(|h: &Head| h.mark == MARK).with_context(|| {
        format!("{}: not the journal of a copy; move it out of the way", path.display())
    })?;
    let hash = |line: &String| (line.len() == 16).then(|| u64::from_str_radix(line, 16).ok())?;
    Ok(Some(Found { head, hashes: lines.iter().map_while(hash).collect() }))
}

/// Pieces that are flushed, with their hashes.
#[derive(Debug)]
pub(super) struct Progress {
    journal: Journal,
    pub hashes: Vec<u64>,
}

impl Progress {
    /// Carries on after these pieces. The journal before this one stays until this one is whole.
    pub fn create(path: &Path, head: &Head, hashes: Vec<u64>) -> Result<Self> {
        let lines: Vec<_> = hashes.iter().copied().map(line).collect();
        let journal = Journal::replace(path, head, &lines)?;
        Ok(Self { journal, hashes })
    }
    /// Notes a piece that is flushed.
    pub fn done(&mut self, hash: u64) -> Result<()> {
        self.journal.note(&line(hash))?;
        self.hashes.push(hash);
        Ok(())
    }
    /// From piece `n` on nothing counts any more: it is copied again.
    pub fn cut(mut self, head: &Head, n: usize) -> Result<()> {
        self.hashes.truncate(n);
        Self::create(&self.journal.path, head, self.hashes).map(drop)
    }
    /// The copy is complete.
    pub fn remove(self) {
        self.journal.remove();
    }
}

fn line(hash: u64) -> String {
    format!("{hash:016x}")
}

/// How many pieces of a journal count for this copy: those that it flushed on this destination,
/// which holds them still.
///
/// # Errors
/// More pieces are noted than the source has.
pub(super) fn believed(found: Option<Found>, head: &Head, there: u64) -> Result<Vec<u64>> {
    let Some(found) = found.filter(|f| f.head == *head) else { return Ok(Vec::new()) };
    let pieces = head.source.size.div_ceil(head.bytes()?.max(1));
    let noted = found.hashes.len() as u64;
    ensure!(noted <= pieces, "the journal has {noted} pieces, the source only {pieces}");
    let end = noted.saturating_mul(head.bytes()?).min(head.source.size);
    Ok(if there < end { Vec::new() } else { found.hashes })
}
