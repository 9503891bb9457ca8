//! Requests about locks of programs: fcntl(2) and flock(2).

use braid_fs::{Plock, PlockKind};

use super::fields::{FieldReader, FieldWriter};
use super::header::Header;
use super::op;

/// A request about locks of programs.
#[allow(missing_docs, reason = "docs/BULK.md section 5 says what each does")]
#[derive(Debug, Clone)]
pub enum LockRequest {
    GetLock {
        handle: u64,
        lock: Plock,
    },
    /// `whole`: of flock(2). `again`: the client had it when the server ended.
    Lock {
        handle: u64,
        whole: bool,
        again: bool,
        lock: Plock,
    },
    LockWait {
        handle: u64,
        whole: bool,
        lock: Plock,
        wait: u64,
    },
    EndWait {
        wait: u64,
    },
    Events {
        seen: u64,
        patience_ms: u32,
    },
}

impl LockRequest {
    /// Its operation's number.
    pub const fn op(&self) -> u8 {
        match self {
            Self::GetLock { .. } => op::GETLOCK,
            Self::Lock { .. } => op::LOCK,
            Self::LockWait { .. } => op::LOCK_WAIT,
            Self::EndWait { .. } => op::END_WAIT,
            Self::Events { .. } => op::EVENTS,
        }
    }

    /// See [`super::Request::is_change`]: a lock keeps others from the file.
    pub(super) const fn is_change(&self) -> bool {
        match self {
            Self::Lock { lock, .. } => !matches!(lock.kind, PlockKind::Unlock),
            Self::LockWait { .. } => true,
            Self::GetLock { .. } | Self::EndWait { .. } | Self::Events { .. } => false,
        }
    }

    /// Its fields.
    pub(super) fn put(&self, header: &mut Header, to: &mut FieldWriter) {
        match self {
            Self::GetLock { handle, lock } => {
                header.handle = *handle;
                put_lock(to, lock);
            }
            Self::Lock { handle, whole, again, lock } => {
                header.handle = *handle;
                put_lock(to.u8(u8::from(*whole)).u8(u8::from(*again)), lock);
            }
            Self::LockWait { handle, whole, lock, wait } => {
                header.handle = *handle;
                put_lock(to.u64(*wait).u8(u8::from(*whole)), lock);
            }
            Self::EndWait { wait } => {
                to.u64(*wait);
            }
            Self::Events { seen, patience_ms } => {
                to.u64(*seen).u32(*patience_ms);
            }
        }
    }

    /// Reads one.
    pub(super) fn read(header: &Header, from: &mut FieldReader<'_>) -> Option<Self> {
        let handle = header.handle;
        Some(match header.op {
            op::GETLOCK => Self::GetLock { handle, lock: take_lock(from)? },
            op::LOCK => {
                let (whole, again) = (yes(from)?, yes(from)?);
                Self::Lock { handle, whole, again, lock: take_lock(from)? }
            }
            op::LOCK_WAIT => {
                let wait = from.u64()?;
                Self::LockWait { handle, whole: yes(from)?, lock: take_lock(from)?, wait }
            }
            op::END_WAIT => Self::EndWait { wait: from.u64()? },
            op::EVENTS => Self::Events { seen: from.u64()?, patience_ms: from.u32()? },
            _ => return None,
        })
    }
}

fn yes(from: &mut FieldReader<'_>) -> Option<bool> {
    from.u8().filter(|n| *n < 2).map(|n| n == 1)
}

/// A lock: 32 bytes. Whose user it is stands with whoever asks.
pub(super) fn put_lock(to: &mut FieldWriter, lock: &Plock) {
    let kind = match lock.kind {
        PlockKind::Shared => 0,
        PlockKind::Exclusive => 1,
        PlockKind::Unlock => 2,
    };
    to.u64(lock.start).u64(lock.end).u32(kind).u64(lock.owner).u32(lock.pid);
}

pub(super) fn take_lock(from: &mut FieldReader<'_>) -> Option<Plock> {
    let (start, end) = (from.u64()?, from.u64()?);
    let kind = match from.u32()? {
        0 => PlockKind::Shared,
        1 => PlockKind::Exclusive,
        2 => PlockKind::Unlock,
        _ => return None,
    };
    let (owner, pid) = (from.u64()?, from.u32()?);
    (start <= end).then_some(Plock { start, end, kind, owner, pid, uid: 0 })
}

/// A wait for a lock has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockEvent {
    /// Numbers events of a session, from 1.
    pub number: u64,
    /// Which wait.
    pub wait: u64,
    /// 0: the lock is granted. Otherwise the error, by Linux's number.
    pub errno: u32,
}

/// Puts an event behind others.
pub fn write_event(to: &mut Vec<u8>, event: &LockEvent) {
    let mut fields = FieldWriter::default();
    fields.u64(event.number).u64(event.wait).u32(event.errno);
    to.extend_from_slice(&fields.finish());
}

/// The events that a reply holds. `None`: they cannot be read.
pub fn read_events(data: &[u8]) -> Option<Vec<LockEvent>> {
    let mut from = FieldReader::new(data);
    let mut events = Vec::new();
    while !from.is_empty() {
        let (number, wait) = (from.u64()?, from.u64()?);
        events.push(LockEvent { number, wait, errno: from.u32()? });
    }
    Some(events)
}
