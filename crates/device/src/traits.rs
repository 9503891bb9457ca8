//! What a device is.

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use braid_format::node::LockPlace;
use braid_format::{ByteOffset, Bytes};

use crate::DeviceError;
use crate::iscsi::IscsiDevice;
use crate::model::ModelDevice;
use crate::scsi::{Reservation, ReservationKind};
use crate::traffic::IoCounters;

/// The liveness byte that is held for the time of a change, not for a life.
pub const CHANGE_BYTE: u64 = 0;

/// Longest compare-and-write: the largest sector there is.
pub const CAW_MAX: Bytes = Bytes(4096);

/// What a device can do beyond reading and writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub struct Capabilities {
    /// Atomic compare-and-write of one sector.
    pub compare_and_write: bool,
    /// Persistent reservations.
    pub persistent_reservations: bool,
    /// Zeroing without sending zeros.
    pub write_zeroes: bool,
    /// Discard.
    pub discard: bool,
    /// Zeroing that gives space back ([`Device::deallocate`]), as far as is known before it is tried.
    pub deallocate: bool,
    /// Largest write that is never torn by a power cut.
    pub atomic_write: Bytes,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Path or name, as it was given.
    pub name: String,
    /// Whole sectors.
    pub size: Bytes,
    /// Logical sector: unit of I/O, 512 or 4096.
    pub sector: Bytes,
    /// Physical sector: what is written without reading first.
    pub physical_sector: Bytes,
    /// A block device rather than a file.
    pub is_block: bool,
    /// Opened for reading only, or nobody can write it.
    pub read_only: bool,
    /// Spinning, if known.
    pub rotational: Option<bool>,
    /// Abilities.
    pub caps: Capabilities,
    /// `io_uring`, `pread` or `memory`.
    pub engine: &'static str,
    /// Where this handle's liveness bytes are locked; `None`: they cannot be.
    pub lock_place: Option<LockPlace>,
    /// A compare-and-write is made of a kernel lock there: it excludes only those who lock the same
    /// place. Otherwise the device has the command.
    pub compares_by_lock: bool,
}

impl DeviceInfo {
    /// Checks that a range is whole sectors inside the device.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`].
    pub fn check(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        let device = || Arc::from(self.name.as_str());
        let sector = self.sector.get();
        if !at.get().is_multiple_of(sector) || !len.get().is_multiple_of(sector) {
            return Err(DeviceError::Unaligned { device: device(), at, len });
        }
        match at.checked_add(len) {
            Some(end) if end.get() <= self.size.get() => Ok(()),
            _ => Err(DeviceError::OutOfRange { device: device(), at, len }),
        }
    }
    /// Checks the arguments of a compare-and-write: two equal lengths, one sector (up to
    /// [`CAW_MAX`], so that a 4 KiB record may stand on 512-byte sectors), aligned to itself.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`].
    pub fn check_caw(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<(), DeviceError> {
        let len = Bytes::from(new.len());
        self.check(at, len)?;
        let one = len.get().is_power_of_two() && len <= CAW_MAX;
        if !one || !at.get().is_multiple_of(len.get()) || expected.len() != new.len() {
            let device = Arc::from(self.name.as_str());
            return Err(DeviceError::Unaligned { device, at, len });
        }
        Ok(())
    }
}

/// How a compare-and-write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CawOutcome {
    /// The new bytes stand.
    Written,
    /// Nothing was written; these bytes stand there.
    Mismatch(Vec<u8>),
}

/// Keeps a liveness byte locked until it is dropped; the kernel lets go when the process ends.
pub struct ByteLockGuard(Box<dyn Send + Sync>);

impl ByteLockGuard {
    /// A guard that unlocks by dropping `inner`.
    pub(crate) fn new(inner: impl Send + Sync + 'static) -> Self {
        Self(Box::new(inner))
    }
}
impl Debug for ByteLockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _ = &self.0;
        f.write_str("ByteLockGuard")
    }
}

/// Persistent reservations of a device (SPC-4, section 5.13): who may write it, kept by the device
/// itself. A key belongs to the open device that registered it, except where all nodes of a host reach
/// the device by one path: see [`Reservations::shares_path`].
pub trait Reservations: Send + Sync {
    /// Registers `new` instead of `old` (0: not registered; a new 0 ends the registration).
    ///
    /// # Errors
    /// [`DeviceError::Fenced`] if the key is not `old`; see [`DeviceError`].
    fn register(&self, old: u64, new: u64) -> Result<(), DeviceError>;
    /// Registers `new`, whatever was registered; the key that is registered now. By a path that others
    /// share it is the one that stands there already, if one does: it is theirs too, and stays.
    ///
    /// # Errors
    /// [`DeviceError::HostFenced`]; see [`DeviceError`].
    fn register_anyhow(&self, new: u64) -> Result<u64, DeviceError>;
    /// Whether a registration is of this host's path to the device, and so of all its nodes: they have
    /// one key, who takes it fences all of them, and it ends with the last of them that ends it.
    fn shares_path(&self) -> bool {
        false
    }
    /// Makes a reservation, as registrant `own`; it may stand already, by the same holder.
    ///
    /// # Errors
    /// [`DeviceError::Fenced`] if not registered so, or somebody else holds one.
    fn reserve(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError>;
    /// Ends the reservation and all registrations.
    ///
    /// # Errors
    /// [`DeviceError::Fenced`] if not registered so.
    fn clear(&self, own: u64) -> Result<(), DeviceError>;
    /// Ends the registrations with key `victim`, and its reservation, which passes to us as `kind`.
    /// On return its commands have ended, on targets that keep the standard; where that is not sure,
    /// [`Reservations::reset`] follows.
    ///
    /// # Errors
    /// [`DeviceError::Fenced`] if not registered so, or nobody has that key.
    fn preempt_and_abort(
        &self,
        own: u64,
        victim: u64,
        kind: ReservationKind,
    ) -> Result<(), DeviceError>;
    /// The key that this open device registered last, as far as it knows: others may have taken it
    /// away since. 0 if none.
    fn registered(&self) -> u64;
    /// All registered keys, one for each registrant.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn keys(&self) -> Result<Vec<u64>, DeviceError>;
    /// The reservation that stands.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn reservation(&self) -> Result<Option<Reservation>, DeviceError>;
    /// Ends all commands of everybody on the device.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn reset(&self) -> Result<(), DeviceError>;
}

/// How [`run`](crate::run) and [`IoQueue`](crate::IoQueue) reach a device past its methods.
#[derive(Debug, Clone, Copy)]
pub struct RingTarget<'a> {
    /// Open as long as the device lives.
    pub fd: RawFd,
    /// A transfer goes on only from a multiple of this.
    pub sector: usize,
    /// Memory aligned otherwise is copied through a buffer that is.
    pub memory_align: usize,
    /// Bytes that it takes at once if their memory is contiguous; what is longer is cut.
    pub most: usize,
    /// Bytes that it takes at once if each page of them may lie somewhere else.
    pub most_scattered: usize,
    /// Served by a plain call rather than a ring, which would only hand it to another thread.
    pub by_call: bool,
    /// Set when a flush fails; nothing is written while it is set.
    pub poisoned: Option<&'a AtomicBool>,
    /// Where what is issued is counted.
    pub counters: Option<&'a IoCounters>,
}

/// One device. Ranges are whole sectors; memory may stand anywhere, but memory that is not aligned
/// to 4096 bytes may cost a copy. All methods block until the device is done.
pub trait Device: Send + Sync + Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// Reads whole sectors. A sector being written at the same time may read half old, half new,
    /// on files even when it is written by [`Device::compare_and_write`].
    ///
    /// # Errors
    /// See [`DeviceError`]; `buf` may then hold anything.
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes whole sectors; complete, not durable.
    ///
    /// # Errors
    /// See [`DeviceError`]; any of the sectors may then be old, new, or (without power) torn.
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError>;
    /// Makes writes that completed before durable. A failure poisons this handle: later writes
    /// and flushes are refused.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn flush(&self) -> Result<(), DeviceError>;
    /// Writes one sector if it equals `expected`; atomic among all openers on this host (and on
    /// all hosts where the device itself has the command). Complete, not durable.
    ///
    /// # Errors
    /// See [`DeviceError`]; after an error of the system it is not known whether `new` stands.
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError>;
    /// Tells the device that a range is not needed: it then reads as before or as zeros. Where the
    /// device knows no such thing, nothing happens.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError>;
    /// Makes a range read as zeros; complete, not durable.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError>;
    /// Makes a range read as zeros and gives its space back, both at once: complete, not durable. On
    /// return all of it reads as zeros, until it is written again; before a flush a power cut may
    /// leave any of its sectors as they were. What is less than the device can give back at a time
    /// (the edges of a range) reads as zeros all the same. No zeros are ever sent to the device.
    ///
    /// `false`: this device, or this kernel, does not do that. Each sector then is as it was, or zeros.
    ///
    /// # Errors
    /// See [`DeviceError`]; each sector then is as it was, or zeros.
    fn deallocate(&self, _at: ByteOffset, _len: Bytes) -> Result<bool, DeviceError> {
        Ok(false)
    }
    /// Whether it is still what was opened; asked at every flush. A file can be truncated under
    /// its user, and the next write makes it long again, with a hole.
    ///
    /// # Errors
    /// [`DeviceError::Truncated`]; later writes and flushes are then refused.
    fn intact(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// The descriptor under it, if there is one.
    fn as_raw_fd(&self) -> Option<RawFd> {
        self.ring_target().map(|t| t.fd)
    }
    /// What rings need to serve it together with other devices; `None`: only by its methods.
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }
    /// The disk model that says how long its requests take, if one does: [`run`](crate::run) and
    /// [`IoQueue`](crate::IoQueue) let them overlap.
    fn modelled(&self) -> Option<&ModelDevice> {
        None
    }
    /// Most bytes that one [`Device::compare_and_write`] takes: more is refused
    /// ([`DeviceError::NoCompareAndWrite`]). Some disks take one sector of 512 bytes only.
    fn compare_max(&self) -> Bytes {
        crate::CAW_MAX
    }
    /// The unit of an iSCSI target under it: [`run`](crate::run) and [`IoQueue`](crate::IoQueue)
    /// have many of its requests under way.
    fn initiator(&self) -> Option<&IscsiDevice> {
        None
    }
    /// The device below that has these bytes as this one has them, if there is one:
    /// [`run`](crate::run) reads them there.
    fn unchanged(&self, _at: ByteOffset, _len: Bytes) -> Option<&dyn Device> {
        None
    }
    /// Its persistent reservations, if it has such.
    fn reservations(&self) -> Option<&dyn Reservations> {
        None
    }
    /// This node has been fenced: whatever is under way ends with an error, if the device would
    /// otherwise never answer it, and nothing is taken any more. Where that cannot be, nothing
    /// happens.
    fn sever(&self) {}
    /// The node that uses it may change things until `until`, if it does not say a later time before:
    /// how long a session that broke is tried to be begun anew.
    fn lease(&self, _until: Instant) {}
    /// A device that answers at all answers within `time`. Where a command can be ended (in a session
    /// of ours, by ending that session), one that takes longer is; elsewhere nothing happens.
    fn answers_within(&self, _time: Duration) {}
    /// Where requests are counted that reach the device past its methods; those that come by its
    /// methods it counts itself, and those of a ring are counted where its target says.
    fn counters(&self) -> Option<&IoCounters> {
        None
    }
    /// Takes liveness byte `byte` (below 2^62), or `None` if anybody on this host holds it. It is
    /// let go when the guard is dropped or the process ends. A process forked meanwhile that does
    /// not `exec` keeps it held. Byte [`CHANGE_BYTE`] is held for a moment, by who changes what the
    /// device says of itself; any other one for a life.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError>;
    /// Whether anybody on this host, this handle included, holds liveness byte `byte`.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError>;
    /// Whether a process of this host that lives holds liveness byte `byte`: not one that died and of
    /// which something may still be under way, which counts as its holder, too.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.byte_locked(byte)
    }
    /// A person has seen to it that nothing can land any more of who held liveness byte `byte` and died:
    /// it is nobody's from now on. False, and nothing is done, if a process that lives holds it.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        Ok(!self.byte_held(byte)?)
    }
}
