//! A member whose contents are being moved: the old device and its successor, as one device.
//!
//! ```text
//!   reads ---------------> old
//!   writes --------------> old, then new
//!   compare-and-write ---> old decides, new follows
//!   the copying node:      holds a range, reads old, writes new
//! ```
//! Every change of the data area holds its range here while it is under way. So the copying node
//! copies nothing that this node is changing. What lies outside of the data area (the labels) is
//! written to the old device only.
//!
//! If the successor fails a write, it is given up at once: the old device has everything, and the
//! labels say that the old device counts. So no write waits for a change of epoch.
//!
//! If several nodes use the pool, one of them copies. It puts the successor in place when the
//! successor has everything, except what another node's change *missed* because one of the two
//! devices failed there. Such a change counts only when the move has ended, or the successor is
//! failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use braid_device::{
    Abilities, AlignedBuf, CawOutcome, Command, Completion, Device, DeviceError, DeviceInfo,
};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use uuid::Uuid;

use super::copy_sector::{Side, follow};
use super::is_refusal;
use super::range_locks::{RangeGuard, RangeLocks};
use crate::background_io::is_foreground;

/// A member whose contents are being moved, as a device.
#[derive(Debug)]
pub(crate) struct MemberMigration {
    old: Arc<dyn Device>,
    new: Arc<dyn Device>,
    /// Identities of the member that leaves and of its successor.
    pub pair: (Uuid, Uuid),
    /// The bytes that both have.
    from: u64,
    to: u64,
    locks: RangeLocks,
    /// Requests so far, those of the filler not counted.
    pub used: AtomicU64,
    /// Why the successor is given up.
    broken: OnceLock<DeviceError>,
    /// How the old one failed a change, which the successor then has not got either.
    behind: OnceLock<DeviceError>,
}

/// A migration, and the member whose device it stands for.
#[derive(Debug, Clone)]
pub(crate) struct MigratingMember {
    pub leaving: MemberIndex,
    pub migration: Arc<MemberMigration>,
    /// The migration as a device: what the pool reads and writes.
    pub device: Arc<dyn Device>,
}

impl MigratingMember {
    pub fn new(leaving: MemberIndex, migration: MemberMigration) -> Self {
        let migration = Arc::new(migration);
        Self { leaving, device: migration.clone(), migration }
    }
}

impl MemberMigration {
    /// `target`, on `new`, succeeds `leaving`, on `old`.
    pub fn new(
        (leaving, old): (&Member, Arc<dyn Device>),
        (target, new): (&Member, Arc<dyn Device>),
    ) -> Self {
        Self {
            old,
            new,
            pair: (leaving.uuid, target.uuid),
            from: Label::DATA_AT.0,
            to: leaving.data_start.0 + leaving.data_len.0,
            locks: RangeLocks::default(),
            used: AtomicU64::new(0),
            broken: OnceLock::new(),
            behind: OnceLock::new(),
        }
    }

    /// The member that is being moved, for people: by its device.
    pub fn name(&self) -> String {
        self.old.info().name.clone()
    }

    /// Why the successor cannot be one, if it cannot.
    pub fn broken(&self) -> Option<&DeviceError> {
        self.broken.get()
    }

    /// Why the successor may lack what this node has changed, if it may.
    pub fn missed(&self) -> Option<&DeviceError> {
        self.broken.get().or(self.behind.get())
    }

    /// `changed`, the result of a change of the old one.
    fn note_failure<T>(&self, changed: Result<T, DeviceError>) -> Result<T, DeviceError> {
        changed.inspect_err(|error| {
            self.behind.get_or_init(|| error.clone());
        })
    }

    fn give_up(&self, error: DeviceError) {
        tracing::error!(%error, "the device that a member is moved to failed");
        self.broken.get_or_init(|| error);
    }

    fn note_use(&self) {
        if is_foreground() {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn hold(&self, at: ByteOffset, len: Bytes) -> RangeGuard<'_> {
        self.locks.lock(vec![(at.0, at.0.saturating_add(len.0))])
    }

    /// The part of a range that the successor has too: whole, or nothing of it.
    fn shared(&self, at: ByteOffset, len: Bytes) -> bool {
        at.0 >= self.from && at.0.saturating_add(len.0) <= self.to && self.broken.get().is_none()
    }

    /// Does the same on both.
    fn both(&self, at: ByteOffset, command: &mut Command<'_>) -> Result<(), DeviceError> {
        self.note_use();
        let len = command.len();
        let _held = self.hold(at, len);
        self.note_failure(self.old.submit(at, command.again()))?;
        if self.shared(at, len)
            && let Err(error) = self.new.submit(at, command.again())
        {
            self.give_up(error);
        }
        Ok(())
    }

    /// Reads what the successor holds, current or not.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_successor(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.new.read(at, buf)
    }

    /// Copies a range of the data area while no thread of this node changes it. `concurrent`: other
    /// nodes may change it. Every node writes to the old device first. So if the old device still holds
    /// what was copied when the copy is complete, a later write reaches the new device after the copy.
    ///
    /// All of the range is read again, not only sectors that hold records
    /// ([`crate::redundancy::atomic_records`]). A node that fills a member holds the regions of what it
    /// copies, so only a compare-and-write can come between. A node that moves a member holds no
    /// region: bytes on no group have none, and writes of other nodes do not wait for a move.
    ///
    /// # Errors
    /// The old device cannot read it. A successor that cannot be written is [`MemberMigration::broken`].
    pub fn copy(&self, at: ByteOffset, len: Bytes, concurrent: bool) -> Result<(), DeviceError> {
        let mut bytes = AlignedBuf::zeroed(len.to_usize());
        let _held = self.hold(at, len);
        if !self.shared(at, len) {
            return Ok(());
        }
        self.old.read(at, &mut bytes)?;
        let mut now = AlignedBuf::zeroed(if concurrent { len.to_usize() } else { 0 });
        loop {
            if let Err(error) = self.new.write(at, &bytes) {
                self.give_up(error);
                return Ok(());
            }
            if !concurrent {
                return Ok(());
            }
            self.old.read(at, &mut now)?;
            if now[..] == bytes[..] {
                return Ok(());
            }
            std::mem::swap(&mut now, &mut bytes);
        }
    }
}

impl MemberMigration {
    fn flush_both(&self) -> Result<(), DeviceError> {
        self.note_failure(self.old.flush())?;
        if self.broken.get().is_none()
            && let Err(error) = self.new.flush()
        {
            self.give_up(error);
        }
        Ok(())
    }

    /// The old one decides, the new one follows.
    fn compare(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        let len = Bytes::from(new.len());
        let _held = self.hold(at, len);
        let outcome = self.note_failure(self.old.compare_and_write(at, expected, new))?;
        if matches!(outcome, CawOutcome::Written) && self.shared(at, len) {
            match follow(&*self.old, at, &*self.new, at, new.len()) {
                Ok(()) => {}
                Err(Side::Arbiter(error)) => return self.note_failure(Err(error)),
                Err(Side::Follower(error)) => self.give_up(error),
            }
        }
        Ok(outcome)
    }

    /// Advice: a successor that is sound may refuse it.
    fn discard_both(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.note_use();
        let _held = self.hold(at, len);
        match self.old.discard(at, len) {
            Err(refused) if is_refusal(&refused) => return Err(refused),
            done => self.note_failure(done)?,
        }
        if self.shared(at, len)
            && let Err(error) = self.new.discard(at, len)
            && !is_refusal(&error)
        {
            self.give_up(error);
        }
        Ok(())
    }

    /// A failure here is not a failed change: the caller then writes zeros.
    fn deallocate_both(&self, at: ByteOffset, len: Bytes) -> Result<Completion, DeviceError> {
        self.note_use();
        let _held = self.hold(at, len);
        if !self.old.deallocate(at, len)? {
            return Ok(Completion::Unsupported);
        }
        if self.shared(at, len) {
            let done = match self.new.deallocate(at, len) {
                Ok(true) => Ok(()),
                _ => self.new.write_zeroes(at, len),
            };
            if let Err(error) = done {
                self.give_up(error);
            }
        }
        Ok(Completion::Done)
    }
}

impl Device for MemberMigration {
    fn info(&self) -> &DeviceInfo {
        self.old.info()
    }
    fn submit(&self, at: ByteOffset, mut command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(_) => {
                self.note_use();
                return self.old.submit(at, command);
            }
            Command::Write(_) | Command::WriteZeroes(_) => self.both(at, &mut command)?,
            Command::Flush => self.flush_both()?,
            Command::CompareAndWrite { expected, new } => {
                return self.compare(at, expected, new).map(Completion::from);
            }
            Command::Discard(len) => self.discard_both(at, len)?,
            Command::Deallocate(len) => return self.deallocate_both(at, len),
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self.old.abilities().locks)
    }
}
