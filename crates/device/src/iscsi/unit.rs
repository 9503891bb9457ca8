//! An open unit: its session, and commands by themselves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use braid_format::ByteOffset;

use super::alive::{self, Alive};
use super::limits::{Limits, TRIES_MAX};
use super::link::{Gone, Link};
use super::name::{UnitName, redacted};
use super::session::{Direction, Ending, Memory, Ticket};
use super::{ffi, probe};
use crate::scsi::Data;
use crate::{DeviceError, DeviceInfo, OpenOptions};

/// Pause before a busy target is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A unit of an iSCSI target.
#[derive(Debug)]
pub struct IscsiDevice {
    pub(crate) info: DeviceInfo,
    pub(super) link: Link,
    pub(super) limits: Limits,
    pub(super) alive: Alive,
    pub(super) poisoned: AtomicBool,
    /// The unit refuses FUA with COMPARE AND WRITE: a flush follows instead.
    pub(super) flushes_compared: AtomicBool,
}

impl IscsiDevice {
    /// Logs in to the unit and asks what it is.
    ///
    /// # Errors
    /// [`DeviceError::NotADevice`] for what is no name of a unit; [`DeviceError::Io`] with what the
    /// target, the network or the loading of libiscsi said.
    pub fn open(word: &str, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let Some(name) = UnitName::parse(word) else {
            return Err(DeviceError::NotADevice { device: redacted(word).into() });
        };
        let port = alive::new_port();
        let link = Link::open(&name, &port, options.read_only)?;
        let (mut info, limits) = (link.found().info.clone(), link.found().limits);
        let alive = Alive::new(&name, &port, &link);
        let alive = alive.map_err(|e| probe::failed(&name, "liveness files", e))?;
        info.lock_place = Some(alive.lock_place());
        Ok(Arc::new(Self {
            info,
            link,
            limits,
            alive,
            poisoned: AtomicBool::new(false),
            flushes_compared: AtomicBool::new(false),
        }))
    }
    pub(super) fn error(
        &self,
        operation: &'static str,
        at: ByteOffset,
        source: io::Error,
    ) -> DeviceError {
        let device = self.info.name.as_str().into();
        DeviceError::Io { device, operation, at, source: Arc::new(source) }
    }
    pub(super) fn gone(&self, operation: &'static str, at: ByteOffset, gone: &Gone) -> DeviceError {
        match gone {
            Gone::Fenced => DeviceError::Fenced { device: self.info.name.as_str().into() },
            Gone::Ended(why) => {
                let source = io::Error::new(io::ErrorKind::ConnectionAborted, why.to_string());
                self.error(operation, at, source)
            }
        }
    }
    /// What the ending of a command means; `None`: it did not run, or may be done twice, and is to be
    /// issued again. `once`: it is done once or not at all, and whoever asks for it settles what came
    /// of it.
    pub(super) fn judge(
        &self,
        operation: &'static str,
        at: ByteOffset,
        (ticket, ending): (&Ticket, Ending),
        once: bool,
    ) -> Option<Result<Ending, DeviceError>> {
        match ending.status {
            ffi::STATUS_GOOD => Some(Ok(ending)),
            ffi::STATUS_CHECK if ending.sense.0 == 6 => None,
            ffi::STATUS_BUSY | ffi::STATUS_QUEUE_FULL => {
                std::thread::sleep(BUSY_PAUSE);
                None
            }
            // By a reset, or a fence: what was aborted never lands, so it may be issued again. After a
            // fence that meets the conflict.
            ffi::STATUS_ABORTED if !once => None,
            ffi::STATUS_CONFLICT => {
                Some(Err(DeviceError::Fenced { device: self.info.name.as_str().into() }))
            }
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR if once => {
                let device = self.info.name.as_str().into();
                Some(Err(DeviceError::Unknown { device, operation, at }))
            }
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR => match self.link.renew_after(ticket) {
                Ok(()) => None,
                Err(gone) => Some(Err(self.gone(operation, at, &gone))),
            },
            _ => Some(Err(self.error(operation, at, ending.into()))),
        }
    }
    /// A command by itself, with data of up to a few KiB or none; `once` as in
    /// [`IscsiDevice::judge`].
    pub(super) fn command(
        &self,
        operation: &'static str,
        cdb: &[u8],
        data: Data<'_>,
        once: bool,
    ) -> Result<Ending, DeviceError> {
        let at = ByteOffset(0);
        let (direction, memory) = memory_of(data);
        for _ in 0..TRIES_MAX {
            // SAFETY: borrowed over the ticket's life, which ends here; written from is only read.
            let ticket = unsafe { self.link.start(cdb, direction, &memory, true) };
            let ticket = ticket.map_err(|e| self.gone(operation, at, &e))?;
            if let Some(judged) = self.judge(operation, at, (&ticket, ticket.wait()), once) {
                return judged;
            }
        }
        Err(self.error(operation, at, io::ErrorKind::ResourceBusy.into()))
    }
    /// A command by itself, issued once; how it ended.
    pub(super) fn issue_once(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Ending> {
        let (direction, memory) = memory_of(data);
        // SAFETY: borrowed over the ticket's life, which ends here; written from is only read.
        let ticket = unsafe { self.link.start(cdb, direction, &memory, true) };
        let gone = |e| io::Error::other(self.gone("command", ByteOffset(0), &e));
        Ok(ticket.map_err(gone)?.wait())
    }
}

fn memory_of(data: Data<'_>) -> (Direction, [Memory; 1]) {
    match data {
        Data::None => (Direction::Neither, [(std::ptr::null_mut(), 0)]),
        Data::In(buf) => (Direction::Read, [(buf.as_mut_ptr(), buf.len())]),
        Data::Out(buf) => (Direction::Write, [(buf.as_ptr().cast_mut(), buf.len())]),
    }
}

impl From<Ending> for io::Error {
    fn from(ending: Ending) -> Self {
        let (key, code) = ending.sense;
        match ending.status {
            ffi::STATUS_CHECK => Self::other(format!(
                "sense key {key:#x}, code {:#04x}/{:02x}",
                code >> 8,
                code & 255
            )),
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR => Self::new(
                io::ErrorKind::ConnectionAborted,
                "the session ended while it was under way; it may still land",
            ),
            status => Self::other(format!("SCSI status {status:#x}")),
        }
    }
}
