//! What only some devices can do: objects to do it by.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};

use crate::DeviceError;
use crate::traffic::IoCounters;

/// The liveness byte that is held for the time of a change, not for a life.
pub const CHANGE_BYTE: u64 = 0;

/// Keeps a liveness byte locked until it is dropped; the kernel lets go when the process ends.
pub struct ByteLockGuard(Box<dyn HeldByte>);

/// A liveness byte that is held: dropping it lets it go.
pub(crate) trait HeldByte: Send + Sync {
    /// See [`ByteLockGuard::leave`].
    fn leave(&mut self) {}
}

impl ByteLockGuard {
    /// A guard that unlocks by dropping `inner`.
    pub(crate) fn new(inner: impl HeldByte + 'static) -> Self {
        Self(Box::new(inner))
    }
    /// Lets the byte go on a device that the pool does not use any more, while the life that it stands for goes on
    /// by its bytes on other devices.
    pub fn leave(mut self) {
        self.leaves();
    }
    /// The same, ahead of dropping it.
    pub(crate) fn leaves(&mut self) {
        self.0.leave();
    }
}
impl Debug for ByteLockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _ = &self.0;
        f.write_str("ByteLockGuard")
    }
}

/// Bytes of a device that nodes of this host lock to show that they live. A byte is below 2^62.
pub trait LivenessLocks: Send + Sync {
    /// Takes liveness byte `byte`, or `None` if anybody on this host holds it. It is let go when the
    /// guard is dropped or the process ends. A process forked meanwhile that does not `exec` keeps it
    /// held. Byte [`CHANGE_BYTE`] is held for a moment, by who changes what the device says of itself;
    /// any other one for a life.
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

/// What a reservation keeps from whom: its type, by the number that SPC-4 gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationKind {
    /// The holder writes, all read.
    WriteExclusive = 1,
    /// The holder alone.
    ExclusiveAccess = 3,
    /// Who is registered writes, all read.
    WriteExclusiveRegistrants = 5,
    /// Who is registered, alone.
    ExclusiveAccessRegistrants = 6,
    /// As [`ReservationKind::WriteExclusiveRegistrants`]; all who are registered hold it.
    WriteExclusiveAll = 7,
    /// As [`ReservationKind::ExclusiveAccessRegistrants`]; all who are registered hold it.
    ExclusiveAccessAll = 8,
}

impl ReservationKind {
    /// By its number.
    pub fn of(code: u8) -> Option<Self> {
        let all = [
            Self::WriteExclusive,
            Self::ExclusiveAccess,
            Self::WriteExclusiveRegistrants,
            Self::ExclusiveAccessRegistrants,
            Self::WriteExclusiveAll,
            Self::ExclusiveAccessAll,
        ];
        all.into_iter().find(|k| *k as u8 == code)
    }
}

/// A reservation that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Its holder's key; 0 where all who are registered hold it.
    pub key: u64,
    /// What it keeps from whom.
    pub kind: ReservationKind,
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

/// The session by which a device in the network is reached.
pub trait Session: Send + Sync {
    /// The world-wide name of the unit: two devices with the same name are one, by whatever portals.
    fn unit(&self) -> [u8; 16];
    /// This node has been fenced: whatever is under way ends with an error, if the device would
    /// otherwise never answer it, and nothing is taken any more.
    fn sever(&self);
    /// The node that uses the device may change things until `until`, if it does not say a later time
    /// before: how long a session that broke is tried to be begun anew.
    fn lease(&self, until: Instant);
    /// What is written to `len` bytes at `at` from now on, alone, is written again before long: that it is
    /// lost with the device's cache does no harm. In bytes; of these ranges the one named last counts.
    /// Waits for no I/O.
    fn repeats(&self, at: ByteOffset, len: Bytes);
    /// Why nothing is asked of the device any more, if its sessions have ended for good, other than by a
    /// fence of this node. Waits for no I/O.
    fn given_up(&self) -> Option<Arc<str>>;
}

/// A bound on how long a device may leave a command unanswered.
pub trait AnswerBound: Send + Sync {
    /// A device that answers at all answers within `time`. A command that takes longer is ended, by
    /// ending the session that it is in; or the device is given up.
    fn answers_within(&self, time: Duration);
    /// For how long the device has been given up: nothing is asked of it any more.
    fn given_up(&self) -> Option<Duration> {
        None
    }
    /// Whether something that was given up is still under way, and may yet be done.
    fn has_late(&self) -> bool {
        false
    }
}

/// What only some devices can do, each by an object of its own. A device over another one passes on
/// those of the device below, or leaves out what it does not want to be used:
/// `Abilities { reservations: None, ..self.inner.abilities() }`.
#[derive(Clone, Copy)]
pub struct Abilities<'a> {
    /// Its liveness bytes.
    pub locks: &'a dyn LivenessLocks,
    /// Its persistent reservations.
    pub reservations: Option<&'a dyn Reservations>,
    /// The session by which it is reached.
    pub session: Option<&'a dyn Session>,
    /// Its bound on how long a command may be unanswered.
    pub bound: Option<&'a dyn AnswerBound>,
    /// Where its requests are counted.
    pub counters: Option<&'a IoCounters>,
}

impl<'a> Abilities<'a> {
    /// Only liveness bytes.
    pub fn only(locks: &'a dyn LivenessLocks) -> Self {
        let (reservations, session, bound, counters) = (None, None, None, None);
        Self { locks, reservations, session, bound, counters }
    }
}
