//! From the server to a local file.

use std::ffi::OsStr;
use std::fs::File as LocalFile;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_fs::Attr;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, flock};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::chunks::{Chunk, Chunks};
use super::{Copied, CopyError, CopyOptions, part_name};
use crate::client::{Client, File};
use crate::error::Error;
use crate::wire::OpenFlags;

/// What is copied where to.
#[derive(Debug)]
pub struct Download<'a> {
    /// The file on the server.
    pub source: &'a Attr,
    /// The local directory.
    pub dir: &'a Path,
    /// The name in it.
    pub name: &'a OsStr,
}

/// Copies a file of the server to a local one. `finish` gives the local file its mode and times, before it gets its
/// name.
///
/// # Errors
/// It is not there under its name then, or is the former file.
pub fn download(
    client: &Client,
    what: &Download<'_>,
    options: &CopyOptions,
    finish: impl FnOnce(&LocalFile) -> std::io::Result<()>,
) -> Result<Copied, CopyError> {
    let file = client.open(what.source, OpenFlags::default())?;
    let found = *file.attr();
    let part = what.dir.join(OsStr::from_bytes(&part_name(what.name.as_bytes())));
    let local = open_part(&part)?;
    let meta = local.metadata().map_err(CopyError::local("the part file"))?;
    let there = meta.len().min(found.size);
    local.set_len(found.size).map_err(CopyError::local("the part file"))?;
    let chunks = Chunks::new(found.size, client, options);
    // A chunk is asked for holes only if there are some: that is one more request for each.
    let has_holes = found.blocks512.saturating_mul(512) < found.size;
    let copy = Copying { options, file, local, has_holes, sent: 0.into(), holes: 0.into() };
    chunks.each(client, |_| true, |slot, chunk, memory| copy.get(slot, chunk, memory, there))?;
    copy.local.sync_all().map_err(CopyError::local("the part file"))?;
    if options.verify {
        let compare = |slot, chunk: Chunk, memory: &mut [u8]| {
            if copy.holds(slot, chunk, memory)? {
                return Ok(());
            }
            Err(CopyError::Differs { offset: chunk.offset })
        };
        chunks.each(client, |_| true, compare)?;
    }
    let now = client.getattr(found.ino)?;
    let state = |a: &Attr| (a.generation, a.size, a.mtime, a.ctime);
    if state(&now) != state(&found) {
        return Err(CopyError::Changed);
    }
    finish(&copy.local).map_err(CopyError::local("the part file"))?;
    copy.local.sync_all().map_err(CopyError::local("the part file"))?;
    std::fs::rename(&part, what.dir.join(what.name)).map_err(CopyError::local("the new name"))?;
    let dir = LocalFile::open(what.dir).and_then(|dir| dir.sync_all());
    dir.map_err(CopyError::local("the directory"))?;
    let (sent, holes) = (copy.sent.into_inner(), copy.holes.into_inner());
    copy.file.close()?;
    Ok(Copied { size: found.size, sent, holes })
}

/// Opens the part file, which nobody else has open then.
fn open_part(path: &Path) -> Result<LocalFile, CopyError> {
    let file = own_part(path).map_err(CopyError::local("the part file"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(CopyError::Busy),
        Err(error) => {
            return Err(CopyError::Local { what: "the part file", error: error.into() });
        }
    }
    Ok(file)
}

/// The part file that this user made, or a new one: another user could change what is put into one of his, or have
/// it stand for another file.
fn own_part(path: &Path) -> std::io::Result<LocalFile> {
    let mut how = LocalFile::options();
    how.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let is_own = |file: &LocalFile| {
        let meta = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        Ok::<_, std::io::Error>(meta.is_file() && meta.nlink() == 1 && meta.uid() == user)
    };
    match how.open(path) {
        Ok(file) if is_own(&file)? => return Ok(file),
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // A symbolic link, or a file of another user.
        Err(error)
            if Errno::from_io_error(&error) == Some(Errno::LOOP)
                || error.kind() == ErrorKind::PermissionDenied =>
        {
            std::fs::remove_file(path)?;
        }
        // Anything else passes, and the part file stays for the next copy.
        Err(error) => return Err(error),
    }
    how.create_new(true).open(path)
}

struct Copying<'a> {
    options: &'a CopyOptions,
    file: File,
    local: LocalFile,
    has_holes: bool,
    sent: AtomicU64,
    holes: AtomicU64,
}

impl Copying<'_> {
    /// Has the local file hold a chunk, of whose bytes it had `there`.
    fn get(&self, slot: u16, chunk: Chunk, memory: &mut [u8], there: u64) -> Result<(), CopyError> {
        let data = self.data(slot, chunk)?;
        // Nothing was there behind the end: that is a hole now.
        let is_hole = data.is_empty() && chunk.offset >= there;
        if is_hole || chunk.end() > there || !self.holds(slot, chunk, memory)? {
            if data != [(chunk.offset, chunk.end())] && chunk.offset < there {
                self.clear(chunk, memory)?;
            }
            let mut holes = chunk.len.into();
            for (from, to) in data {
                self.read(slot, from, to)?;
                holes -= to - from;
            }
            self.holes.fetch_add(holes, Ordering::Relaxed);
        }
        self.options.progress.fetch_add(chunk.len.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Where the source has data in a chunk.
    fn data(&self, slot: u16, chunk: Chunk) -> Result<Vec<(u64, u64)>, CopyError> {
        if !self.has_holes {
            return Ok(vec![(chunk.offset, chunk.end())]);
        }
        let found =
            chunk.data(|at| self.file.next_data(slot, at), |at| self.file.next_hole(slot, at));
        found.map_err(|error| match error {
            // It has become shorter.
            Error::Errno(braid_fs::Errno::NXIO) => CopyError::Changed,
            error => error.into(),
        })
    }

    /// Makes a hole of a chunk; `memory` is overwritten.
    fn clear(&self, chunk: Chunk, memory: &mut [u8]) -> Result<(), CopyError> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, len) = (chunk.offset, chunk.len.into());
        if rustix::fs::fallocate(&self.local, how, at, len).is_ok() {
            return Ok(());
        }
        // A file system without holes.
        memory.fill(0);
        self.local.write_all_at(memory, at).map_err(CopyError::local("the part file"))
    }

    /// Reads these bytes of the source into the local file.
    fn read(&self, slot: u16, from: u64, to: u64) -> Result<(), CopyError> {
        let len = u32::try_from(to - from).unwrap_or(u32::MAX);
        self.file.read(slot, (from, len), |bytes| {
            if bytes.len() as u64 != to - from {
                return Err(CopyError::Changed);
            }
            let written = self.local.write_all_at(bytes, from);
            written.map_err(CopyError::local("the part file"))
        })??;
        self.sent.fetch_add(to - from, Ordering::Relaxed);
        Ok(())
    }

    fn holds(&self, slot: u16, chunk: Chunk, memory: &mut [u8]) -> Result<bool, CopyError> {
        let read = self.local.read_exact_at(memory, chunk.offset);
        read.map_err(CopyError::local("the part file"))?;
        let there = self.file.checksum(slot, chunk.offset, chunk.len)?;
        Ok(there == (xxh3_128(memory), chunk.len))
    }
}
