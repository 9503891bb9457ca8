//! Reservations by a path that all nodes of a host share: the kernel's way to a disk.
//!
//! A registration belongs to the path from an initiator's port to a target's (I_T nexus), and the
//! kernel has one such path to a disk for all who have it open. So the nodes of a host have one key
//! there, and are fenced together. Who of them uses the key is said by locks on the disk's node in
//! `/dev`, which the kernel drops with the process:
//!
//! ```text
//!  the path's key | others use it |
//!  stands         | or not        | it is taken on: nothing is registered     (or: a dead node's, stays)
//!  none           | nobody        | the node's own is registered
//!  none           | somebody      | the host was fenced: refused until they have ended
//!
//!  a node leaves:  others use it -> it stays; nobody -> its registration ends
//! ```
//!
//! Invariants:
//! * no key that stands is replaced: whose it is can always be fenced by it;
//! * none is registered while anybody who was fenced by the loss of the last one still has the disk
//!   open, so what that one has in the kernel meets the conflict, however late it is sent;
//! * all of that is looked at and done in one turn, which another lock gives.
//!
//! Locks on another node of the same disk are not seen: so a disk whose node is not of devtmpfs
//! is not used so.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::ByteOffset;
use parking_lot::Mutex;

use super::reserve::{self, Carrier};
use super::{Data, ScsiError, Transport, Unit};
use crate::host_locks::Users;
use crate::{DeviceError, Reservation, ReservationKind, Reservations};

/// Persistent reservations of a unit, by a path that others on this host share (SPC-4, section 5.13).
#[derive(Debug)]
pub struct PathReservations<T> {
    unit: Arc<Unit<T>>,
    name: Arc<str>,
    users: Users,
    keeps_keys: bool,
    /// The key that this open device uses; 0: none.
    key: AtomicU64,
    /// Held by who changes that. Order: before the turn.
    changes: Mutex<()>,
}

impl<T: Transport> PathReservations<T> {
    /// Those of `unit`, called `name` in errors; `None` if it has none. Whoever shares the path to the
    /// unit locks the same inode that `file` is, opened for reading and writing, each by a file
    /// description of its own.
    ///
    /// # Errors
    /// The unit does not say whether it has any.
    pub fn find(
        unit: Arc<Unit<T>>,
        name: &str,
        file: Arc<File>,
    ) -> Result<Option<Self>, ScsiError> {
        let Some(keeps_keys) = unit.reserves()? else { return Ok(None) };
        Ok(Some(Self {
            unit,
            name: name.into(),
            users: Users::new(file),
            keeps_keys,
            key: AtomicU64::new(0),
            changes: Mutex::new(()),
        }))
    }

    fn locked<L>(&self, lock: io::Result<L>) -> Result<L, DeviceError> {
        lock.map_err(|e| self.failed("lock", e))
    }
    fn fenced(&self) -> DeviceError {
        DeviceError::Fenced { device: self.name.clone() }
    }

    /// The key that this path is registered with: the one that the unit takes in exchange for itself.
    /// READ KEYS does not say which is whose.
    fn stands(&self) -> Result<Option<u64>, DeviceError> {
        let mut keys = reserve::keys(self)?;
        keys.sort_unstable();
        keys.dedup();
        for key in keys.into_iter().filter(|k| *k != 0) {
            match reserve::register(self, key, key) {
                Ok(()) => return Ok(Some(key)),
                Err(DeviceError::Fenced { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Uses what `registers` registers: nobody else takes it for unused.
    fn join(
        &self,
        key: u64,
        registers: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let was = self.registered();
        self.locked(self.users.join())?;
        if let Err(e) = registers() {
            if was == 0 {
                self.users.leave();
            }
            return Err(e);
        }
        self.key.store(key, Ordering::Release);
        Ok(())
    }

    /// Ends this device's use of the key `old`, and the registration if nobody else uses it.
    fn leave(&self, old: u64) -> Result<(), DeviceError> {
        let own = self.registered();
        let ended = if self.locked(self.users.others())? {
            if own == old { Ok(()) } else { Err(self.fenced()) }
        } else {
            reserve::register(self, old, 0)
        };
        // A conflict says that it has ended already. After any other error it may stand, and is used.
        if own == old && (ended.is_ok() || matches!(ended, Err(DeviceError::Fenced { .. }))) {
            self.users.leave();
            self.key.store(0, Ordering::Release);
        }
        ended
    }
}

impl<T: Transport> Carrier for PathReservations<T> {
    fn carry(
        &self,
        operation: &'static str,
        cdb: &[u8],
        data: Data<'_>,
        _once: bool,
    ) -> Result<usize, DeviceError> {
        // Nothing is issued again here unless the unit says that it did not run.
        let done = self.unit.done(cdb, data).map(|answer| answer.missing);
        done.map_err(|e| e.of(&self.name, operation, ByteOffset(0)))
    }
    fn keeps_keys(&self) -> bool {
        self.keeps_keys
    }
    fn failed(&self, operation: &'static str, source: io::Error) -> DeviceError {
        ScsiError::Io(source).of(&self.name, operation, ByteOffset(0))
    }
}

impl<T: Transport> Reservations for PathReservations<T> {
    fn register(&self, old: u64, new: u64) -> Result<(), DeviceError> {
        let _changes = self.changes.lock();
        let _turn = self.locked(self.users.turn())?;
        if new == 0 {
            return self.leave(old);
        }
        if self.locked(self.users.others())? {
            // The key is theirs too.
            return Err(self.fenced());
        }
        self.join(new, || reserve::register(self, old, new))
    }
    fn register_anyhow(&self, new: u64) -> Result<u64, DeviceError> {
        let _changes = self.changes.lock();
        let _turn = self.locked(self.users.turn())?;
        let (own, stands) = (self.registered(), self.stands()?);
        match stands {
            Some(key) if own == 0 || own == key => self.join(key, || Ok(())).map(|()| key),
            // What was taken from this device stays taken.
            _ if own != 0 => Err(self.fenced()),
            _ if self.locked(self.users.others())? => {
                Err(DeviceError::HostFenced { device: self.name.clone() })
            }
            _ => self.join(new, || reserve::register(self, 0, new)).map(|()| new),
        }
    }
    fn shares_path(&self) -> bool {
        true
    }
    fn reserve(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError> {
        reserve::reserve(self, own, kind)
    }
    fn clear(&self, own: u64) -> Result<(), DeviceError> {
        reserve::clear(self, own)
    }
    fn preempt_and_abort(
        &self,
        own: u64,
        victim: u64,
        kind: ReservationKind,
    ) -> Result<(), DeviceError> {
        reserve::preempt_and_abort(self, (own, victim), kind)
    }
    fn registered(&self) -> u64 {
        self.key.load(Ordering::Acquire)
    }
    fn keys(&self) -> Result<Vec<u64>, DeviceError> {
        reserve::keys(self)
    }
    fn reservation(&self) -> Result<Option<Reservation>, DeviceError> {
        reserve::reservation(self)
    }
    fn reset(&self) -> Result<(), DeviceError> {
        self.unit.transport().reset().map_err(|e| self.failed("reset", e))
    }
}
