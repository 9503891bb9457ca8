//! From a local file to the server.
//!
//! What was written is durable when a COMMIT has the same verifier as the write. If the server was started anew
//! in between, each chunk that it was told of before is compared, and sent again if it is not there.

use std::fs::File as LocalFile;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_fs::{Attr, Errno, SetAttr};
use rustix::fs::SeekFrom;
use rustix::io::Errno as LocalErrno;
use xxhash_rust::xxh3::xxh3_128;

use super::chunks::{Chunk, Chunks};
use super::{Copied, CopyError, CopyOptions, part_name};
use crate::client::{Client, File};
use crate::error::Error;
use crate::wire::OpenFlags;

/// Between two tries to open a part file that another client has locked.
const PAUSE: Duration = Duration::from_millis(200);
/// How much longer than a lost client's session it is tried.
const PATIENCE: Duration = Duration::from_secs(5);
/// No server has it.
const NOT_THERE: u64 = 0;

/// What is copied where to.
#[derive(Debug)]
pub struct Upload<'a> {
    /// The local file.
    pub source: &'a LocalFile,
    /// The directory on the server.
    pub dir: InodeNo,
    /// The name in it.
    pub name: &'a [u8],
    /// Mode, and times if they are kept.
    pub set: SetAttr,
}

/// A part file that is gone is made again so often.
const TRIES: u32 = 4;

/// Copies a local file to the server.
///
/// # Errors
/// It is not there under its name then, or is the former file.
pub fn upload(
    client: &Client,
    what: &Upload<'_>,
    options: &CopyOptions,
) -> Result<Copied, CopyError> {
    let mut tries = 1;
    loop {
        match attempt(client, what, options) {
            Err(CopyError::Server(Error::Gone)) if tries < TRIES => {
                tracing::info!("the part file is gone: it is made again");
                options.progress.store(0, Ordering::Relaxed);
                tries += 1;
            }
            done => return done,
        }
    }
}

fn attempt(client: &Client, what: &Upload<'_>, options: &CopyOptions) -> Result<Copied, CopyError> {
    let found = what.source.metadata().map_err(CopyError::local("the source"))?;
    let size = found.len();
    let part = part_name(what.name);
    let file = open_part(client, what.dir, &part)?;
    // Otherwise it is gone if the server ends soon.
    client.sync_dir(what.dir)?;
    let there = file.attr().size;
    let space = client.statfs()?;
    let free = space.available.saturating_mul(space.block_size.into());
    // A file with holes needs less than its size.
    if size.min(found.blocks().saturating_mul(512)).saturating_sub(there) > free {
        return Err(CopyError::NoRoom { free });
    }
    let chunks = Chunks::new(size, client, options);
    let verifiers: Vec<AtomicU64> = (0..chunks.count()).map(|_| NOT_THERE.into()).collect();
    let mut copy =
        Copying { client, what, options, file, chunks, verifiers, sent: 0.into(), holes: 0.into() };
    copy.write_all(size, there)?;
    if options.verify {
        copy.verify()?;
    }
    let now = what.source.metadata().map_err(CopyError::local("the source"))?;
    let times = |m: &std::fs::Metadata| (m.len(), m.modified().ok());
    if times(&now) != times(&found) {
        return Err(CopyError::Changed);
    }
    name_it(client, what, &part, &copy.file)?;
    let (sent, holes) = (copy.sent.into_inner(), copy.holes.into_inner());
    copy.file.close()?;
    Ok(Copied { size, sent, holes })
}

/// Opens the part file, which nobody else has open then.
fn open_part(client: &Client, dir: InodeNo, name: &[u8]) -> Result<File, CopyError> {
    let flags = OpenFlags { write: true, lock: true, ..OpenFlags::default() };
    let begun = Instant::now();
    // A client that is gone is forgotten after that time.
    let patience = client.session_time() + PATIENCE;
    loop {
        match client.create(dir, name, 0o600, true) {
            // It may have been made by the server as it was before.
            Err(Error::Ambiguous) => continue,
            Err(Error::Errno(Errno::EXIST | Errno::AGAIN)) => {}
            made => return Ok(made?),
        }
        let found = client.lookup(dir, name);
        if found.as_ref().is_ok_and(Attr::is_dir) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(CopyError::InTheWay { name });
        }
        let regular = |attr: &Attr| attr.is_regular().then_some(()).ok_or(Errno::PERM);
        let opened = found.and_then(|attr| {
            regular(&attr).map_err(Error::Errno)?;
            client.open(&attr, flags)
        });
        match opened {
            // Another user made it: he could change what is put there.
            Err(Error::Errno(Errno::PERM)) => match client.unlink(dir, name) {
                Ok(()) | Err(Error::Errno(Errno::NOENT)) => {}
                Err(error) => return Err(error.into()),
            },
            // It was renamed, or removed.
            Err(Error::Errno(Errno::NOENT | Errno::STALE)) => {}
            Err(Error::Errno(Errno::AGAIN)) if begun.elapsed() < patience => {
                std::thread::sleep(PAUSE);
            }
            Err(Error::Errno(Errno::AGAIN)) => return Err(CopyError::Busy),
            opened => return Ok(opened?),
        }
    }
}

struct Copying<'a> {
    client: &'a Client,
    what: &'a Upload<'a>,
    options: &'a CopyOptions,
    file: File,
    chunks: Chunks,
    /// Of each chunk: the verifier of the server that has it.
    verifiers: Vec<AtomicU64>,
    sent: AtomicU64,
    holes: AtomicU64,
}

impl Copying<'_> {
    /// Returns when the part file has all bytes and attributes, and they are durable.
    fn write_all(&mut self, size: u64, mut there: u64) -> Result<(), CopyError> {
        let mut durable = NOT_THERE;
        loop {
            self.chunks.each(
                self.client,
                |index| self.verifier(index).load(Ordering::Relaxed) != durable || durable == 0,
                |slot, chunk, memory| self.put(slot, chunk, memory, there),
            )?;
            let before = self.client.verifier();
            // A longer file was there before, or it ends in a hole.
            let set = SetAttr { size: Some(size), ..self.what.set };
            self.file.set_attr(set)?;
            durable = self.file.commit()?;
            let all = self.verifiers.iter().all(|v| v.load(Ordering::Relaxed) == durable);
            if all && before == durable {
                return Ok(());
            }
            tracing::info!(
                "the server was started anew, or another one is used: looking at what it has"
            );
            there = self.client.getattr(self.file.attr().ino)?.size;
        }
    }

    fn verifier(&self, index: usize) -> &AtomicU64 {
        self.verifiers.get(index).expect("one for each chunk")
    }

    /// Of the source, as lseek(2); `None`: there is nothing more of that.
    fn seek(&self, to: SeekFrom) -> Result<Option<u64>, CopyError> {
        match rustix::fs::seek(self.what.source, to) {
            Ok(at) => Ok(Some(at)),
            Err(LocalErrno::NXIO) => Ok(None),
            // A file system that does not tell of holes: all is data.
            Err(LocalErrno::INVAL | LocalErrno::OPNOTSUPP) => Ok(Some(match to {
                SeekFrom::Data(at) => at,
                _ => u64::MAX,
            })),
            Err(error) => Err(CopyError::Local { what: "the source", error: error.into() }),
        }
    }

    fn load(&self, chunk: Chunk, memory: &mut [u8]) -> Result<(), CopyError> {
        self.what.source.read_exact_at(memory, chunk.offset).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                CopyError::Changed
            } else {
                CopyError::Local { what: "the source", error }
            }
        })
    }

    /// Has the server hold a chunk; the file was `there` bytes long.
    fn put(&self, slot: u16, chunk: Chunk, memory: &mut [u8], there: u64) -> Result<(), CopyError> {
        let new = self.verifier(chunk.index).load(Ordering::Relaxed) == NOT_THERE;
        // Before it is asked: if the server is started anew then, it is asked again.
        let verifier = self.client.verifier();
        let data = chunk.data(
            |at| self.seek(SeekFrom::Data(at)),
            |at| self.seek(SeekFrom::Hole(at))?.ok_or(CopyError::Changed),
        )?;
        let mut holes = 0;
        // Nothing is there behind the end: that becomes a hole.
        if data.is_empty() && chunk.offset >= there {
            holes = chunk.len.into();
        } else {
            self.load(chunk, memory)?;
            if chunk.end() > there || !self.holds(slot, chunk, memory)? {
                holes = u64::from(chunk.len) - self.write(slot, chunk, (memory, &data), there)?;
            }
        }
        self.verifier(chunk.index).store(verifier, Ordering::Relaxed);
        if new {
            self.options.progress.fetch_add(chunk.len.into(), Ordering::Relaxed);
            self.holes.fetch_add(holes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes those parts of a chunk that are `data`; holes are made in what the file, `there` bytes long, has of it.
    /// Returns how many bytes were written.
    fn write(
        &self,
        slot: u16,
        chunk: Chunk,
        (memory, data): (&[u8], &[(u64, u64)]),
        there: u64,
    ) -> Result<u64, CopyError> {
        let mut all = 0;
        let is_whole = data == [(chunk.offset, chunk.end())];
        if !is_whole && chunk.offset < there {
            let punch = || self.file.punch_hole(slot, chunk.offset, chunk.len.into());
            // Nobody else writes to the part file: it may be done twice.
            while let Err(error) = punch() {
                if !matches!(error, Error::Ambiguous) {
                    return Err(error.into());
                }
            }
        }
        for (from, to) in data {
            let within = [*from, *to].map(|at| usize::try_from(at - chunk.offset).unwrap_or(0));
            let bytes = memory.get(within[0]..within[1]).unwrap_or_default();
            self.file.write(slot, (*from, bytes), false)?;
            all += to - from;
        }
        self.sent.fetch_add(all, Ordering::Relaxed);
        Ok(all)
    }

    fn holds(&self, slot: u16, chunk: Chunk, memory: &[u8]) -> Result<bool, CopyError> {
        let there = self.file.checksum(slot, chunk.offset, chunk.len)?;
        Ok(there == (xxh3_128(memory), chunk.len))
    }

    /// Compares what the server reads with what this host reads.
    fn verify(&self) -> Result<(), CopyError> {
        let compare = |slot, chunk: Chunk, memory: &mut [u8]| {
            self.load(chunk, memory)?;
            if self.holds(slot, chunk, memory)? {
                return Ok(());
            }
            Err(CopyError::Differs { offset: chunk.offset })
        };
        self.chunks.each(self.client, |_| true, compare)
    }
}

/// Gives the part file its name, durably. Again, if the server was started anew, or another one is used, before it was
/// durable.
fn name_it(client: &Client, what: &Upload<'_>, part: &[u8], file: &File) -> Result<(), CopyError> {
    let ino = file.attr().ino;
    let is_named = || match client.lookup(what.dir, what.name) {
        Ok(found) => Ok(found.ino == ino),
        Err(Error::Errno(Errno::NOENT)) => Ok(false),
        Err(error) => Err(error),
    };
    let mut again = false;
    loop {
        let before = client.verifier();
        if !(again && is_named()?) {
            match file.rename((what.dir, part), (what.dir, what.name)) {
                Ok(()) => {}
                // Has it got the name?
                Err(Error::Ambiguous | Error::Errno(Errno::NOENT)) if is_named()? => {}
                Err(Error::Ambiguous | Error::Errno(Errno::NOENT)) => {
                    // Not yet: unless the part file is gone, too.
                    client.lookup(what.dir, part)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
        }
        client.sync_dir(what.dir)?;
        if client.verifier() == before {
            return Ok(());
        }
        again = true;
    }
}
