//! Files and block devices.
//!
//! Single requests go by `pread` and `pwrite`, batches by [`crate::run`] through the thread's ring
//! (the module `engine` has the figures that say so). Compare-and-write is made of an open-file-description lock on the sector's own bytes, so
//! that all openers on this host exclude each other, whatever process they are in: see [`locks`].

mod buffered;
mod scsi;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_format::node::LockPlace;
use braid_format::{ByteOffset, Bytes};
use rustix::fs::{FallocateFlags, FlockOperation};

use crate::block;
use crate::hold::{Hold, Holding};
use crate::host_locks::{Locks, lock_place};
use crate::{
    Abilities, AlignedBuf, ByteLockGuard, CAW_MAX, Capabilities, CawOutcome, Command, Completion,
    Device, DeviceError, DeviceInfo, Direct, InUse, Intact, LivenessLocks, OpenOptions, RingTarget,
    Route,
};
use block::DirectAlignment;
use buffered::Buffered;
use scsi::ScsiDisk;

/// Largest piece of a copy through an aligned buffer, and of zeros written by hand.
const PIECE: usize = 1 << 20;

/// What is said of a disk that is reached by several paths.
const MULTIPATH: &str = "a multipath device takes no SCSI commands from here: no COMPARE AND WRITE and no reservations, so only nodes of one host may share it";

/// A file or block device. One request is one system call; a batch goes to the thread's ring.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    file: Arc<File>,
    locks: Locks,
    /// For writes that direct I/O does not take; a block device has none, nor a file without direct I/O.
    buffered: Option<Buffered>,
    /// Alignment of memory that direct I/O demands; 1 when it demands none.
    memory_align: usize,
    /// What is known of the disk under it.
    queue: block::Queue,
    /// A file in memory (tmpfs). The kernel serves such a file only by blocking, so a ring hands
    /// every transfer to a worker thread, which costs more than the copy: see `engine`.
    in_memory: bool,
    /// Its size is no limit.
    growing: bool,
    /// Its mode is nobody's to change.
    leaves_mode: bool,
    poisoned: AtomicBool,
    /// The shortest size, in bytes, with which the file was found truncated; `u64::MAX` if it never was.
    shortest: AtomicU64,
    /// A SCSI disk that compares and writes itself.
    disk: Option<ScsiDisk>,
    _claim: Option<block::Claim>,
}

/// Alignments of I/O on an open file.
#[derive(Debug, Clone, Copy)]
struct Alignment {
    memory: usize,
    /// What is read and written at all.
    sector: Bytes,
    /// What is written by direct I/O.
    direct_write: Bytes,
}

impl FileDevice {
    /// Opens a block device or a regular file, past the page cache where that is possible. A block
    /// device is opened through its canonical node in `/dev`, so that the locks of all openers
    /// meet on one inode, whatever link they came by.
    ///
    /// # Errors
    /// [`DeviceError::Io`] when it cannot be opened or measured, [`DeviceError::NotADevice`],
    /// [`DeviceError::Empty`], [`DeviceError::InUse`] (with `exclusive`).
    pub fn open(path: &Path, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let opening = Opening { path, name: path.display().to_string().into(), options };
        opening.open().map(Arc::new)
    }
    /// Locks on a node that is not the kernel's own say nothing about who uses another one.
    fn refuse_private_node(&self) -> Result<(), DeviceError> {
        match self.info.lock_place {
            Some(_) => Ok(()),
            None => Err(DeviceError::PrivateNode { device: self.info.name.as_str().into() }),
        }
    }
    /// Takes from all users of this host who are neither its owner nor in its group the right to open a
    /// file whose locks are about to count. Whoever can open it only for reading reads all files in the
    /// pool, and can take shared kernel locks where liveness bytes and compared sectors are: those
    /// would keep nodes out, or make them wait for ever.
    fn close_to_others(&self) {
        const OTHERS: u32 = 0o007;
        let Ok(meta) = self.file.metadata() else { return };
        let mode = meta.permissions().mode() & 0o7777;
        let stays = self.leaves_mode || self.info.is_block || self.info.read_only;
        if stays || mode & OTHERS == 0 {
            return;
        }
        let file = &self.info.name;
        let closed = mode & !OTHERS;
        match self.file.set_permissions(std::fs::Permissions::from_mode(closed)) {
            Ok(()) => tracing::warn!(
                file,
                "every user of this host could open it, read all files in the pool, and hold its nodes up: its mode is {closed:04o} now"
            ),
            Err(error) => tracing::warn!(
                file,
                %error,
                "every user of this host can open it, read all files in the pool, and hold its nodes up: its owner should run `chmod o= {file}`"
            ),
        }
    }
    fn suits(&self, memory: *const u8) -> bool {
        memory.addr().is_multiple_of(self.memory_align)
    }
    /// `read` without checks.
    fn fill(&self, at: ByteOffset, buf: &mut [u8]) -> io::Result<()> {
        if self.suits(buf.as_ptr()) {
            return self.file.read_exact_at(buf, at.get());
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(PIECE));
        let mut at = at.get();
        for piece in buf.chunks_mut(PIECE) {
            let through = bounce.split_at_mut(piece.len()).0;
            self.file.read_exact_at(through, at)?;
            piece.copy_from_slice(through);
            at += piece.len() as u64;
        }
        Ok(())
    }
    /// Writes by direct I/O, or else through the page cache. Memory is aligned.
    fn write_out(&self, at: ByteOffset, buf: &[u8]) -> io::Result<()> {
        match &self.buffered {
            Some(buffered) => buffered.write_out(&self.file, at, buf),
            None => self.file.write_all_at(buf, at.get()),
        }
    }
    /// `write` without checks.
    fn store(&self, at: ByteOffset, buf: &[u8]) -> io::Result<()> {
        if self.suits(buf.as_ptr()) {
            return self.write_out(at, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(PIECE));
        let mut at = at.get();
        for piece in buf.chunks(PIECE) {
            let through = bounce.split_at_mut(piece.len()).0;
            through.copy_from_slice(piece);
            self.write_out(ByteOffset(at), through)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
    fn write_zeroes_by_hand(&self, at: ByteOffset, len: Bytes) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed(len.to_usize().min(PIECE));
        let (mut at, end) = (at.get(), at.get() + len.get());
        while at < end {
            let now = Bytes(end - at).to_usize().min(zeros.len());
            self.write_out(ByteOffset(at), zeros.split_at(now).0)?;
            at += now as u64;
        }
        Ok(())
    }
    /// Tries to zero a range without sending zeros.
    fn zero_range(&self, at: ByteOffset, len: Bytes) -> io::Result<()> {
        if self.info.is_block {
            return block::zero(&self.file, at, len);
        }
        // Keeps the blocks allocated; tmpfs and others only know the hole.
        self.allocate(FallocateFlags::ZERO_RANGE, at, len)
            .or_else(|_| self.allocate(FallocateFlags::PUNCH_HOLE, at, len))
    }
    fn allocate(&self, how: FallocateFlags, at: ByteOffset, len: Bytes) -> io::Result<()> {
        loop {
            let how = how | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&*self.file, how, at.get(), len.get()) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

fn unsupported(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EINVAL | libc::EPERM)
    )
}

impl FileDevice {
    fn sync(&self) -> Result<(), DeviceError> {
        if self.disk.as_ref().is_some_and(ScsiDisk::has_lost_cache)
            && !self.poisoned.swap(true, Ordering::AcqRel)
        {
            tracing::error!(
                device = self.info.name,
                "has lost power, and with it what was not flushed: nothing more is written to it"
            );
        }
        self.info.check_poison(Some(&self.poisoned))?;
        self.intact()?;
        self.file.sync_data().map_err(|e| {
            // What failed to reach the disk is dropped from the page cache and marked clean: a
            // second flush would succeed and mean nothing.
            self.poisoned.store(true, Ordering::Release);
            self.info.io_error("flush", ByteOffset(0), e)
        })
    }
    fn compare(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.info.check_caw(at, expected, new)?;
        let wrap = |e| self.info.io_error("compare-and-write", at, e);
        if let Some(disk) = &self.disk {
            return disk.compare_and_write(self, at, expected, new);
        }
        self.refuse_private_node()?;
        let mut sector = AlignedBuf::zeroed(new.len());
        let _held = self.locks.sector(at, Bytes::from(new.len())).map_err(wrap)?;
        self.file.read_exact_at(&mut sector, at.get()).map_err(wrap)?;
        if sector[..] != *expected {
            return Ok(CawOutcome::Mismatch(sector.to_vec()));
        }
        sector.copy_from_slice(new);
        self.write_out(at, &sector).map_err(wrap)?;
        Ok(CawOutcome::Written)
    }
    fn discard_range(&self, at: ByteOffset, len: Bytes) -> io::Result<()> {
        let discarded = if self.info.is_block {
            block::discard(&self.file, at, len)
        } else {
            self.allocate(FallocateFlags::PUNCH_HOLE, at, len)
        };
        match discarded {
            Err(e) if unsupported(&e) => Ok(()),
            other => other,
        }
    }
    /// Zeros, sent if there is no other way.
    fn zero(&self, at: ByteOffset, len: Bytes) -> io::Result<()> {
        match self.zero_range(at, len) {
            Err(e) if unsupported(&e) => self.write_zeroes_by_hand(at, len),
            other => other,
        }
    }
    /// A hole. On a block device the kernel asks the disk for zeros that it may let go, and sends
    /// none itself (`BLKDEV_ZERO_NOFALLBACK`). A disk that only writes zeros gives nothing back.
    fn punch(&self, at: ByteOffset, len: Bytes) -> io::Result<Completion> {
        if !self.info.caps.deallocate {
            return Ok(Completion::Unsupported);
        }
        if len.get() == 0 {
            return Ok(Completion::Done);
        }
        match self.allocate(FallocateFlags::PUNCH_HOLE, at, len) {
            Ok(()) => Ok(Completion::Done),
            Err(e) if unsupported(&e) => Ok(Completion::Unsupported),
            Err(e) => Err(e),
        }
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    #[inline]
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let (name, len) = (command.name(), command.len());
        if command.changes() {
            self.info.check_write(Some(&self.poisoned), at, len)?;
            self.intact()?;
        }
        let done = match command {
            Command::Read(buf) => {
                self.info.check(at, len)?;
                self.was_intact()?;
                self.fill(at, buf)
            }
            Command::Write(buf) => self.store(at, buf),
            Command::Flush => return self.sync().map(|()| Completion::Done),
            Command::CompareAndWrite { expected, new } => {
                return self.compare(at, expected, new).map(Completion::from);
            }
            Command::Discard(Bytes(0)) | Command::WriteZeroes(Bytes(0)) => Ok(()),
            Command::Discard(len) => self.discard_range(at, len),
            Command::WriteZeroes(len) => self.zero(at, len),
            Command::Deallocate(len) => {
                return self.punch(at, len).map_err(|e| self.info.io_error(name, at, e));
            }
        };
        done.map(|()| Completion::Done).map_err(|e| self.info.io_error(name, at, e))
    }
    fn abilities(&self) -> Abilities<'_> {
        let reservations = self.disk.as_ref().and_then(ScsiDisk::reservations);
        Abilities { reservations, ..Abilities::only(self) }
    }
    fn route(&self) -> Route<'_> {
        Route::Ring(RingTarget {
            fd: self.file.as_raw_fd(),
            buffered: self.buffered.as_ref().map(Buffered::target),
            sector: self.info.sector.to_usize(),
            memory_align: self.memory_align,
            most: self.queue.most.to_usize(),
            most_scattered: self.queue.most_scattered.to_usize(),
            by_call: self.in_memory,
            poisoned: Some(&self.poisoned),
            intact: self,
            counters: None,
        })
    }
}

impl Intact for FileDevice {
    fn intact(&self) -> Result<(), DeviceError> {
        if self.info.is_block || self.growing {
            return Ok(());
        }
        let failed = |e| self.info.io_error("stat", ByteOffset(0), e);
        let found = self.file.metadata().map_err(failed)?;
        if found.is_file() && found.len() < self.info.size.get() {
            self.shortest.fetch_min(found.len(), Ordering::AcqRel);
            self.poisoned.store(true, Ordering::Release);
        }
        self.was_intact()
    }
    fn was_intact(&self) -> Result<(), DeviceError> {
        let (size, expected) = (Bytes(self.shortest.load(Ordering::Acquire)), self.info.size);
        if size >= expected {
            return Ok(());
        }
        Err(DeviceError::Truncated { device: self.info.name.as_str().into(), size, expected })
    }
}

impl LivenessLocks for FileDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.refuse_private_node()?;
        self.close_to_others();
        let failed = |e| self.info.io_error("lock", ByteOffset(byte), e);
        let guard = self.locks.byte(byte).map_err(failed)?;
        Ok(guard.map(ByteLockGuard::new))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.refuse_private_node()?;
        let failed = |e| self.info.io_error("lock", ByteOffset(byte), e);
        self.locks.is_byte_locked(byte).map_err(failed)
    }
}

/// A device being opened.
struct Opening<'a> {
    path: &'a Path,
    name: Arc<str>,
    options: OpenOptions,
}

impl Opening<'_> {
    fn capabilities(
        &self,
        (is_block, queue): (bool, &block::Queue),
        disk: Option<&ScsiDisk>,
        sector: Bytes,
    ) -> Capabilities {
        Capabilities {
            compare_and_write: if self.options.read_only {
                Bytes(0)
            } else {
                disk.map_or(CAW_MAX, ScsiDisk::compare_max)
            },
            write_zeroes: !is_block || queue.write_zeroes,
            discard: !is_block || queue.discard,
            deallocate: !self.options.read_only
                && (!is_block || queue.discard && queue.write_zeroes),
            atomic_write: queue.atomic_write.filter(|_| is_block).unwrap_or(sector).max(sector),
        }
    }
    fn wrap(&self, operation: &'static str, e: impl Into<io::Error>) -> DeviceError {
        let source = Arc::new(e.into());
        DeviceError::Io { device: self.name.clone(), operation, at: ByteOffset(0), source }
    }
    fn open(&self) -> Result<FileDevice, DeviceError> {
        let meta = std::fs::metadata(self.path).map_err(|e| self.wrap("open", e))?;
        let kind = meta.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(DeviceError::NotADevice { device: self.name.clone() });
        }
        let is_block = kind.is_block_device();
        let node = if is_block {
            block::Node::of_block(self.path, meta.rdev())
        } else {
            block::Node::of_file(self.path)
        };
        let (file, direct) = self.open_node(&node.path, is_block)?;
        let lock_place = self.lock_place(&node, &file)?;
        let claim = self.claim(&file, &meta, is_block)?;
        let Alignment { memory, sector, direct_write } = self.alignment(&file, direct, is_block)?;
        let growing = self.options.growing && !is_block;
        let sector = if growing && !direct { Bytes(1) } else { sector };
        let by_direct_io = direct && !is_block;
        let buffered = self.buffered(&file, by_direct_io.then_some(&node.path), direct_write)?;
        let whole = self.whole_sectors(&file, is_block, sector)?;
        let queue = block::Queue::of(if is_block { meta.rdev() } else { meta.dev() });
        let file = Arc::new(file);
        if is_block && block::is_multipath(&block::sysfs(meta.rdev())) {
            tracing::warn!("{}: {MULTIPATH}", self.name);
        }
        let by_commands = is_block && direct && !self.options.read_only;
        let disk = by_commands.then(|| self.scsi_disk(&node, &meta, &file, sector));
        let disk = disk.transpose()?.flatten();
        let caps = self.capabilities((is_block, &queue), disk.as_ref(), sector);
        // The node of a block device stands on a tmpfs too.
        let in_memory = !is_block && block::on_tmpfs(&file);
        let physical =
            if is_block { block::physical_sector(&file).ok() } else { Some(direct_write) };
        let info = DeviceInfo {
            name: self.name.to_string(),
            size: whole,
            sector,
            physical_sector: physical.unwrap_or(sector).max(sector),
            is_block,
            is_path: true,
            read_only: self.options.read_only
                || is_block && block::is_read_only(&block::sysfs(meta.rdev())),
            rotational: queue.rotational,
            caps,
            engine: if in_memory { "pread" } else { crate::default_engine() },
            lock_place,
            emulates_compare_and_write: disk.is_none(),
        };
        let locks = if self.options.read_only {
            Locks::for_reading(file.clone())
        } else {
            Locks::new(file.clone())
        };
        let poisoned = AtomicBool::new(false);
        let memory_align = memory;
        Ok(FileDevice {
            info,
            file,
            buffered,
            locks,
            memory_align,
            queue,
            in_memory,
            growing,
            leaves_mode: self.options.leaves_mode,
            poisoned,
            shortest: AtomicU64::new(u64::MAX),
            disk,
            _claim: claim,
        })
    }
    /// The disk, if it takes SCSI commands.
    fn scsi_disk(
        &self,
        node: &block::Node,
        meta: &std::fs::Metadata,
        file: &Arc<File>,
        sector: Bytes,
    ) -> Result<Option<ScsiDisk>, DeviceError> {
        let known = (&*block::sysfs(meta.rdev()), &*self.name, node.is_kernels);
        ScsiDisk::find(known, file, sector)
            .map_err(|e| self.wrap("ask what the disk is", io::Error::other(e)))
    }
    /// The device's size, in whole sectors.
    fn whole_sectors(
        &self,
        file: &File,
        is_block: bool,
        sector: Bytes,
    ) -> Result<Bytes, DeviceError> {
        let size =
            if is_block { block::size(file) } else { file.metadata().map(|m| Bytes(m.len())) };
        let size = size.map_err(|e| self.wrap("measure", e))?;
        let growing = self.options.growing && !is_block;
        let size = if growing { Bytes(i64::MAX.unsigned_abs()) } else { size };
        let whole = Bytes(size.get() / sector.get() * sector.get());
        if whole.get() == 0 {
            return Err(DeviceError::Empty { device: self.name.clone(), size });
        }
        Ok(whole)
    }
    /// Where its locks are; none where they would not meet those of others.
    fn lock_place(
        &self,
        node: &block::Node,
        file: &File,
    ) -> Result<Option<LockPlace>, DeviceError> {
        if !node.is_kernels {
            return Ok(None);
        }
        let place = file.metadata().and_then(|m| lock_place(&m));
        place.map(Some).map_err(|e| self.wrap("see where its locks are", e))
    }
    /// Opens the node; says whether past the page cache.
    fn open_node(&self, node: &Path, is_block: bool) -> Result<(File, bool), DeviceError> {
        let excl = if is_block && self.options.exclusive { libc::O_EXCL } else { 0 };
        let open = |flags: i32| {
            File::options()
                .read(true)
                .write(!self.options.read_only)
                .custom_flags(flags | excl)
                .open(node)
        };
        let opened = match self.options.direct {
            Direct::No => open(0).map(|f| (f, false)),
            Direct::Yes => open(libc::O_DIRECT).map(|f| (f, true)),
            Direct::Auto => match open(libc::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open(0).map(|f| (f, false)),
                other => other.map(|f| (f, true)),
            },
        };
        opened.map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) if excl != 0 => {
                let by_node = matches!(Hold::take(node), Ok(Holding::ByNode));
                let by = if by_node { InUse::Node } else { InUse::Claimed };
                DeviceError::InUse { device: self.name.clone(), by }
            }
            _ => self.wrap("open", e),
        })
    }
    /// With `exclusive`: remembers the block device as ours, or locks the file.
    fn claim(
        &self,
        file: &File,
        meta: &std::fs::Metadata,
        is_block: bool,
    ) -> Result<Option<block::Claim>, DeviceError> {
        if !self.options.exclusive {
            return Ok(None);
        }
        if is_block {
            return Ok(Some(block::Claim::new(meta.rdev())));
        }
        let refused = |by| Err(DeviceError::InUse { device: self.name.clone(), by });
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return refused(InUse::Claimed),
            Err(e) => return Err(self.wrap("lock", e)),
        }
        match crate::in_use(self.path)? {
            Some(by) => refused(by),
            None => Ok(None),
        }
    }
    /// The file that is written by direct I/O from `path` once more, without.
    fn buffered(
        &self,
        file: &File,
        path: Option<&PathBuf>,
        direct_write: Bytes,
    ) -> Result<Option<Buffered>, DeviceError> {
        let path = path.filter(|_| !self.options.read_only && !block::on_tmpfs(file));
        let opened = path.map(|path| Buffered::beside(file, path, direct_write)).transpose();
        opened.map_err(|e| self.wrap("open without direct I/O", e))
    }
    fn alignment(
        &self,
        file: &File,
        direct: bool,
        is_block: bool,
    ) -> Result<Alignment, DeviceError> {
        let wrap = |e| self.wrap("measure", e);
        let logical =
            if is_block { Some(block::logical_sector(file).map_err(wrap)?) } else { None };
        let sector = logical.unwrap_or(Bytes(512));
        if !direct {
            return Ok(Alignment { memory: 1, sector, direct_write: sector });
        }
        let alike = |memory, unit| DirectAlignment { memory, read: unit, sector: unit };
        let told = block::direct_alignment(file.as_fd()).unwrap_or_else(|| {
            if block::on_tmpfs(file) {
                // It takes the flag and copies all the same.
                alike(1, sector)
            } else {
                // An old kernel: what suits every device.
                alike(4096, logical.unwrap_or(Bytes(4096)))
            }
        });
        let sector = sector.max(told.read);
        let memory = told.memory.max(1) as usize;
        if sector.get() > 4096 || memory > AlignedBuf::ALIGN || !memory.is_power_of_two() {
            return Err(self.wrap("measure", io::Error::from(io::ErrorKind::Unsupported)));
        }
        Ok(Alignment { memory, sector, direct_write: sector.max(told.sector) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Request, run};

    #[test]
    fn a_failed_flush_is_the_end_of_writing() {
        for batch in [false, true] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
            let mut device = Arc::into_inner(device).unwrap();
            let good = device.file.clone();
            device.flush().unwrap();
            // A pipe cannot be flushed.
            let (pipe, _other) = std::io::pipe().unwrap();
            device.file = Arc::new(File::from(std::os::fd::OwnedFd::from(pipe)));
            let mut both = [0, 1].map(|_| Request {
                device: &device,
                at: ByteOffset(0),
                op: Op::Flush,
                result: Ok(()),
            });
            run(if batch { &mut both } else { both.split_at_mut(1).0 });
            assert!(matches!(both[0].result, Err(DeviceError::Io { operation: "flush", .. })));
            // The disk is well again: what was lost is still lost.
            device.file = good;
            let data = [0; 4096];
            let poisoned = |r: Result<(), DeviceError>| {
                assert!(matches!(r, Err(DeviceError::Poisoned { .. })), "{r:?}");
            };
            poisoned(device.flush());
            poisoned(device.write(ByteOffset(0), &data));
            poisoned(device.compare_and_write(ByteOffset(0), &data, &data).map(|_| ()));
            let mut more = [Op::Write(&data), Op::Flush].map(|op| Request {
                device: &device,
                at: ByteOffset(0),
                op,
                result: Ok(()),
            });
            run(&mut more);
            for r in more {
                poisoned(r.result);
            }
            device.read(ByteOffset(0), &mut [0; 4096]).unwrap();
        }
    }

    #[test]
    fn nothing_is_written_to_a_disk_that_has_lost_its_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        let mut device = Arc::into_inner(device).unwrap();
        let data = [7; 512];
        device.write(ByteOffset(0), &data).unwrap();
        device.disk = Some(ScsiDisk::without_its_cache(&device.file));
        let poisoned = |r: Result<(), DeviceError>| {
            assert!(matches!(r, Err(DeviceError::Poisoned { .. })), "{r:?}");
        };
        // Of what was written before, nobody knows what stands: the flush says so.
        poisoned(device.flush());
        poisoned(device.write(ByteOffset(0), &[8; 512]));
        poisoned(device.write_zeroes(ByteOffset(0), Bytes(512)));
        poisoned(device.compare_and_write(ByteOffset(0), &data, &data).map(|_| ()));
        let mut ring = [Request::new(&device, ByteOffset(0), Op::Write(&[8; 512]))];
        run(&mut ring);
        let [request] = ring;
        poisoned(request.result);
        let mut found = [0; 512];
        device.read(ByteOffset(0), &mut found).unwrap();
        assert_eq!(found, data);
    }
}
