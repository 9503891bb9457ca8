//! Kernel locks on a device's inode: sectors for compare-and-write, liveness bytes.
//!
//! They are locks of the open file description: two handles exclude each other, in one process or
//! in two, but the threads of one handle do not. Therefore each handle also keeps a table of its
//! own, which is taken first:
//!
//! ```text
//! order: stripe mutex of the sector -> kernel lock on the sector -> (I/O) -> both let go
//! ```
//!
//! A thread holds at most one kernel lock that it waited for, so there is no cycle. The kernel
//! drops all of a handle's locks when its last descriptor is closed, at the latest when the
//! process dies.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use braid_format::node::LockPlace;
use braid_format::{ByteOffset, Bytes};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use parking_lot::{Mutex, MutexGuard};

use crate::CAW_MAX;

/// Mutexes over which the sectors are spread.
const STRIPES: usize = 64;
/// Where the liveness bytes begin: beyond every device.
const BYTES_AT: u64 = 1 << 62;
/// Who uses the registration of this host's path to the device: far beyond all liveness bytes.
const USERS_AT: u64 = (1 << 63) - 3;
/// Who looks at that, or changes it.
const TURN_AT: u64 = (1 << 63) - 2;
/// Whose node holds the device against other programs ([`crate::Hold`]).
const HELD_AT: u64 = (1 << 63) - 4;
/// How long a turn is waited for: longer than any command of who has it.
const TURN_MAX: Duration = Duration::from_mins(5);

/// Those on this host who use one thing together. Threads of one handle are one.
#[derive(Debug)]
pub(crate) struct Users {
    file: Arc<File>,
}

/// Nobody else on this host has it.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a File);
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        unlock(self.0, TURN_AT, 1);
    }
}

impl Users {
    pub fn new(file: Arc<File>) -> Self {
        Self { file }
    }
    /// Waits for the turn; one at a time in a handle.
    pub fn turn(&self) -> io::Result<Turn<'_>> {
        const PAUSE: Duration = Duration::from_millis(5);
        let wanted = region(libc::F_WRLCK, TURN_AT, 1)?;
        for _ in 0..TURN_MAX.as_millis() / PAUSE.as_millis() {
            match fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&wanted)) {
                Ok(_) => return Ok(Turn(&self.file)),
                Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => std::thread::sleep(PAUSE),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
    /// This handle is one of them.
    pub fn join(&self) -> io::Result<()> {
        fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&region(libc::F_RDLCK, USERS_AT, 1)?))?;
        Ok(())
    }
    /// It is no more.
    pub fn leave(&self) {
        unlock(&self.file, USERS_AT, 1);
    }
    /// Whether there are others.
    pub fn others(&self) -> io::Result<bool> {
        is_locked(&self.file, USERS_AT, 1)
    }
}

/// A handle's locks.
#[derive(Debug)]
pub(crate) struct Locks {
    file: Arc<File>,
    stripes: Box<[Mutex<()>; STRIPES]>,
    bytes: Arc<Mutex<HashSet<u64>>>,
    /// The kernel lets nobody lock for writing who cannot write: liveness bytes are locked shared then,
    /// which keeps out those who can write, and is seen by them.
    reads_only: bool,
}

fn region(kind: i32, at: u64, len: u64) -> io::Result<libc::flock> {
    let number =
        |n: u64| i64::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    Ok(libc::flock {
        l_type: i16::try_from(kind).unwrap_or(i16::MAX),
        l_whence: 0,
        l_start: number(at)?,
        l_len: number(len)?,
        l_pid: 0,
    })
}

/// Whether somebody else than this open file holds a lock on some of `len` bytes at `at`; a length of 0
/// is all that follow.
pub(crate) fn is_locked(file: &File, at: u64, len: u64) -> io::Result<bool> {
    let mut asked = region(libc::F_WRLCK, at, len)?;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked))?;
    Ok(i32::from(asked.l_type) != libc::F_UNLCK)
}

/// Notes on an open device that it holds the device against other programs, until it is closed. Several may at
/// once: the file is open for reading only.
pub(crate) fn note_held(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&region(libc::F_RDLCK, HELD_AT, 1)?))?;
    Ok(())
}

/// Whether another open file than this notes that.
pub(crate) fn is_noted_held(file: &File) -> io::Result<bool> {
    is_locked(file, HELD_AT, 1)
}

fn unlock(file: &File, at: u64, len: u64) {
    let Ok(region) = region(libc::F_UNLCK, at, len) else { return };
    // Splitting a region may need memory.
    while let Err(e) = fcntl(file, FcntlArg::F_OFD_SETLK(&region)) {
        if !matches!(e, Errno::EINTR | Errno::ENOLCK | Errno::ENOMEM) {
            tracing::error!("a lock at {at} could not be let go: {e}");
            return;
        }
        std::thread::yield_now();
    }
}

/// A sector locked against every other compare-and-write on this host.
#[derive(Debug)]
pub(crate) struct SectorHeld<'a> {
    file: &'a File,
    at: u64,
    len: u64,
    // Let go after the kernel's lock: fields drop after `drop`.
    _stripe: MutexGuard<'a, ()>,
}
impl Drop for SectorHeld<'_> {
    fn drop(&mut self) {
        unlock(self.file, self.at, self.len);
    }
}

/// A liveness byte held.
#[derive(Debug)]
pub(crate) struct ByteHeld {
    file: Arc<File>,
    bytes: Arc<Mutex<HashSet<u64>>>,
    byte: u64,
}
impl crate::abilities::HeldByte for ByteHeld {}
impl Drop for ByteHeld {
    fn drop(&mut self) {
        // Under the table's lock, so that no taker comes between.
        let mut bytes = self.bytes.lock();
        unlock(&self.file, BYTES_AT + self.byte, 1);
        bytes.remove(&self.byte);
    }
}

impl Locks {
    pub fn new(file: Arc<File>) -> Self {
        let stripes = Box::new([const { Mutex::new(()) }; STRIPES]);
        Self { file, stripes, bytes: Arc::default(), reads_only: false }
    }
    /// Of a file that is opened for reading only.
    pub fn for_reading(file: Arc<File>) -> Self {
        Self { reads_only: true, ..Self::new(file) }
    }
    /// Locks the sector at `at`, waiting as long as it takes.
    pub fn sector(&self, at: ByteOffset, len: Bytes) -> io::Result<SectorHeld<'_>> {
        // Sectors of different lengths that overlap share a stripe.
        let stripe = Bytes(at.get() / CAW_MAX.get() % STRIPES as u64).to_usize();
        let stripe = self.stripes[stripe].lock();
        let wanted = region(libc::F_WRLCK, at.get(), len.get())?;
        loop {
            match fcntl(&*self.file, FcntlArg::F_OFD_SETLKW(&wanted)) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(SectorHeld { file: &self.file, at: at.get(), len: len.get(), _stripe: stripe })
    }
    /// Takes a liveness byte if nobody holds it.
    pub fn byte(&self, byte: u64) -> io::Result<Option<ByteHeld>> {
        let kind = if self.reads_only { libc::F_RDLCK } else { libc::F_WRLCK };
        let wanted = region(kind, place(byte)?, 1)?;
        let mut bytes = self.bytes.lock();
        if bytes.contains(&byte) {
            return Ok(None);
        }
        loop {
            match fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&wanted)) {
                Ok(_) => break,
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        bytes.insert(byte);
        Ok(Some(ByteHeld { file: self.file.clone(), bytes: self.bytes.clone(), byte }))
    }
    /// Whether anybody holds a liveness byte.
    pub fn is_byte_locked(&self, byte: u64) -> io::Result<bool> {
        if self.bytes.lock().contains(&byte) {
            return Ok(true);
        }
        is_locked(&self.file, place(byte)?, 1)
    }
}

/// The inode with this metadata, as a place of kernel locks: of a device's node that is the node's own
/// in `/dev`, not the disk's.
pub(crate) fn lock_place(meta: &Metadata) -> io::Result<LockPlace> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let kernel = boot.get(..8).and_then(|h| u32::from_str_radix(h, 16).ok());
    let kernel = kernel.ok_or(io::ErrorKind::InvalidData)?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    // As the kernel keeps it: 12 bits and 20.
    Ok(LockPlace { kernel, device: major << 20 | minor, inode: meta.ino() })
}

/// The liveness byte that a line of `fdinfo` says an open file has locked:
/// `lock: 1: OFDLCK ADVISORY WRITE -1 fd:01:12 START END`.
pub fn liveness_byte(line: &str) -> Option<u64> {
    let lock = line.strip_prefix("lock:").filter(|lock| lock.contains("OFDLCK"))?;
    let start = lock.split_whitespace().nth_back(1)?;
    start.parse::<u64>().ok()?.checked_sub(BYTES_AT)
}

fn place(byte: u64) -> io::Result<u64> {
    let place = BYTES_AT.checked_add(byte).filter(|p| *p < i64::MAX as u64);
    place.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
