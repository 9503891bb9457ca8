//! A member whose device was not found, and a member whose device this host does not see in full.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    Abilities, AnswerBound, ByteLockGuard, Capabilities, Command, Completion, Device, DeviceError,
    DeviceInfo, LivenessLocks, Session,
};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes};
use parking_lot::{Mutex, RwLock};

use crate::simulation::Opener;

/// Stands for a member whose device was not found: every operation fails.
#[derive(Debug)]
pub(crate) struct AbsentDevice {
    info: DeviceInfo,
}

impl AbsentDevice {
    /// In place of `member`.
    pub fn of(member: &Member) -> Arc<dyn Device> {
        let info = DeviceInfo {
            name: format!("{} (missing)", member.path),
            size: member.device_size,
            // The smallest: it must not decide how others are read.
            sector: Bytes(512),
            physical_sector: Bytes(Label::GRAIN as u64),
            is_block: false,
            is_path: false,
            read_only: false,
            rotational: None,
            caps: Capabilities::default(),
            engine: "absent",
            lock_place: None,
            emulates_compare_and_write: false,
        };
        Arc::new(Self { info })
    }

    fn fail<T>(&self, operation: &'static str, at: ByteOffset) -> Result<T, DeviceError> {
        let device = self.info.name.as_str().into();
        let source = Arc::new(io::Error::from(io::ErrorKind::NotFound));
        Err(DeviceError::Io { device, operation, at, source })
    }
}

impl Device for AbsentDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Deallocate(_) => Ok(Completion::Unsupported),
            other => self.fail(other.name(), at),
        }
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self)
    }
}

impl LivenessLocks for AbsentDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.fail("lock byte", ByteOffset(byte))
    }
    /// The other members show which nodes live.
    fn byte_locked(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
}

/// Stands for a member whose device has grown, which this host does not see yet: what it sees is
/// used. When more is asked for the device is looked at again.
pub(crate) struct ShortDevice {
    /// The device as it is on hosts that see its growth.
    info: DeviceInfo,
    member: Member,
    seen: RwLock<Arc<dyn Device>>,
    /// It is reached by a session.
    in_network: bool,
    open: Opener,
    /// When it was last looked for in vain.
    sought: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for ShortDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShortDevice").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl ShortDevice {
    /// It is looked for again after this: a search opens many devices, and a recovery asks for many sectors.
    const AGAIN: Duration = Duration::from_millis(200);

    /// `seen` is the device of `member`, as far as this host knows.
    pub fn over(seen: Arc<dyn Device>, member: &Member, open: Opener) -> Arc<dyn Device> {
        let info = DeviceInfo { size: member.device_size, ..seen.info().clone() };
        let in_network = seen.abilities().session.is_some();
        let seen = RwLock::new(seen);
        let sought = Mutex::default();
        Arc::new(Self { info, member: member.clone(), seen, in_network, open, sought })
    }

    /// The device, with all bytes of a range.
    fn whole(&self, at: ByteOffset, len: Bytes) -> Result<Arc<dyn Device>, DeviceError> {
        let seen = self.seen.read().clone();
        let Err(short) = seen.info().check(at, len) else { return Ok(seen) };
        let mut sought = self.sought.lock();
        let seen = self.seen.read().clone();
        if seen.info().check(at, len).is_ok() {
            return Ok(seen);
        }
        if sought.is_some_and(|at| at.elapsed() < Self::AGAIN) {
            return Err(short);
        }
        let now = (self.open)(&self.member).filter(|now| now.info().check(at, len).is_ok());
        let Some(now) = now else {
            *sought = Some(Instant::now());
            return Err(short);
        };
        tracing::info!(path = self.info.name, "this node sees now that the device has grown");
        *self.seen.write() = now.clone();
        Ok(now)
    }

    fn now(&self) -> Arc<dyn Device> {
        self.seen.read().clone()
    }
}

impl Device for ShortDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Flush => self.now().submit(at, command),
            _ => self.whole(at, command.len())?.submit(at, command),
        }
    }
    fn abilities(&self) -> Abilities<'_> {
        let session = self.in_network.then_some(self as &dyn Session);
        Abilities { session, bound: Some(self), ..Abilities::only(self) }
    }
}

impl LivenessLocks for ShortDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.now().abilities().locks.lock_byte(byte)
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().abilities().locks.byte_locked(byte)
    }
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().abilities().locks.byte_held(byte)
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().abilities().locks.settle_byte(byte)
    }
}

impl Session for ShortDevice {
    fn unit(&self) -> [u8; 16] {
        self.now().abilities().session.map(Session::unit).unwrap_or_default()
    }
    fn sever(&self) {
        if let Some(session) = self.now().abilities().session {
            session.sever();
        }
    }
    fn lease(&self, until: Instant) {
        if let Some(session) = self.now().abilities().session {
            session.lease(until);
        }
    }
    fn repeats(&self, at: ByteOffset, len: Bytes) {
        if let Some(session) = self.now().abilities().session {
            session.repeats(at, len);
        }
    }
    fn given_up(&self) -> Option<Arc<str>> {
        self.now().abilities().session?.given_up()
    }
}

impl AnswerBound for ShortDevice {
    fn answers_within(&self, time: Duration) {
        if let Some(bound) = self.now().abilities().bound {
            bound.answers_within(time);
        }
    }
    fn given_up(&self) -> Option<Duration> {
        self.now().abilities().bound?.given_up()
    }
    fn has_late(&self) -> bool {
        self.now().abilities().bound.is_some_and(AnswerBound::has_late)
    }
}
