//! What a SCSI unit does beyond reading and writing: COMPARE AND WRITE; what its answers about
//! persistent reservations say.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid_format::{ByteOffset, Bytes};
use thiserror::Error;

use super::{Sense, cdb};
use crate::{AlignedBuf, CawOutcome, DeviceError, Reservation, ReservationKind};

/// Most times that a command is issued anew because it did not run.
const TRIES_MAX: u32 = 64;
/// Pause before a busy unit is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Sense key: the unit does not do such a command.
const ILLEGAL_REQUEST: u8 = 5;
/// COMPARE AND WRITE.
const COMPARE_AND_WRITE: u8 = 0x89;

/// Data of a command.
#[derive(Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// From the unit.
    In(&'a mut [u8]),
    /// To the unit.
    Out(&'a [u8]),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: u8,
    /// Why it was not done.
    pub sense: Option<Sense>,
    /// Bytes that were not moved.
    pub missing: usize,
}

impl Answer {
    const GOOD: u8 = 0;
    const CHECK: u8 = 2;
    const BUSY: u8 = 8;
    pub(super) const CONFLICT: u8 = 0x18;
    const FULL: u8 = 0x28;
}

/// The way to a unit.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Has the unit do a command, once. It blocks until the unit has answered.
    ///
    /// # Errors
    /// There is no answer: whether the command was done, or will be, is unknown.
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer>;
    /// Ends all commands of everybody at the unit (LOGICAL UNIT RESET). On return none of them lands
    /// any more.
    ///
    /// # Errors
    /// It was not done, or nobody knows.
    fn reset(&self) -> io::Result<()>;
}

impl<T: Transport> Transport for Arc<T> {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
        (**self).command(cdb, data)
    }
    fn reset(&self) -> io::Result<()> {
        (**self).reset()
    }
}

/// What a unit did not do.
#[derive(Debug, Error)]
pub enum ScsiError {
    /// A reservation of somebody else stands in the way.
    #[error("reservation conflict")]
    Conflict,
    /// It refused.
    #[error("{0}")]
    Refused(Sense),
    /// It answered with a status by itself.
    #[error("SCSI status {0:#x}")]
    Status(u8),
    /// It never let the command run.
    #[error("busy for too long")]
    Busy,
    /// There was no answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ScsiError {
    /// As the error of a device.
    pub(crate) fn of(self, device: &str, operation: &'static str, at: ByteOffset) -> DeviceError {
        let device = device.into();
        let source = match self {
            Self::Conflict => return DeviceError::Fenced { device },
            Self::Io(e) => e,
            e => io::Error::other(e),
        };
        DeviceError::Io { device, operation, at, source: Arc::new(source) }
    }
}

/// A unit.
#[derive(Debug)]
pub struct Unit<T> {
    transport: T,
    compare: u8,
    /// A loss of power loses what it has not been told to keep: see [`Unit::with_cache`].
    volatile: bool,
    /// It knows no FUA with COMPARE AND WRITE: a flush follows instead.
    flushes: AtomicBool,
    /// It has lost power since it was opened, and with it what was not flushed.
    lost: AtomicBool,
}

impl<T: Transport> Unit<T> {
    /// Asks what the unit is; `None` for what is no disk, or does not compare and write.
    ///
    /// # Errors
    /// It did not answer, or not with a plain yes or no: who took that for a no would not exclude those
    /// who hear a yes.
    pub fn probe(transport: T) -> Result<Option<Self>, ScsiError> {
        let mut unit = Self {
            transport,
            compare: 0,
            volatile: false,
            flushes: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        };
        let Some(standard) = unit.ask(&cdb::inquiry(None, 36), 36)? else { return Ok(None) };
        // A direct access block device, connected.
        if standard.first() != Some(&0) {
            return Ok(None);
        }
        let limits = unit.ask(&cdb::inquiry(Some(0xb0), 64), 64)?.unwrap_or_default();
        let most = limits.get(5).copied().unwrap_or(0);
        let told = unit.ask(&cdb::supported(COMPARE_AND_WRITE), 32)?;
        // Support: 1 no, 3 as in the standard. Who does not know the question has the limit only.
        let support = told.and_then(|b| b.get(1).map(|b| b & 7));
        unit.compare = if support.is_some_and(|s| s != 3) { 0 } else { most };
        Ok((unit.compare > 0).then_some(unit))
    }
    /// The unit has a volatile cache, or has none. With one, a compare-and-write is answered when it is
    /// durable: a lock record must not go back in time when the unit loses power while its nodes live.
    #[must_use]
    pub fn with_cache(self, volatile: bool) -> Self {
        Self { volatile, ..self }
    }
    /// Whether the unit has said since it was opened that it has lost power, and its cache with it: of
    /// what was written and not flushed before, nobody knows what stands. Seen only if a command of this
    /// way is the first that the unit tells: the kernel takes notice of it silently for its own.
    pub fn has_lost_cache(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
    /// One that has lost its cache.
    #[cfg(test)]
    pub fn without_its_cache(transport: T) -> Self {
        let (flushes, lost) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { transport, compare: 1, volatile: true, flushes, lost }
    }
    /// Blocks of the longest compare-and-write.
    pub fn compare_max(&self) -> u8 {
        self.compare
    }

    /// Whether it has persistent reservations, and if so whether it can keep them over a loss of power
    /// (REPORT CAPABILITIES).
    ///
    /// # Errors
    /// It did not answer, or not with a plain yes or no.
    pub fn reserves(&self) -> Result<Option<bool>, ScsiError> {
        const CAPABILITIES: u8 = 2;
        let told = match self.ask(&cdb::reserve_in(CAPABILITIES, 8), 8) {
            Err(ScsiError::Conflict) => None,
            told => told?,
        };
        Ok(told.map(|t| t.get(2).is_some_and(|flags| flags & 1 != 0)))
    }
    /// The way to it.
    pub(super) fn transport(&self) -> &T {
        &self.transport
    }

    /// Has a command done; issues it again as long as the unit says that it did not run.
    pub(super) fn done(&self, cdb: &[u8], mut data: Data<'_>) -> Result<Answer, ScsiError> {
        for _ in 0..TRIES_MAX {
            let data = match &mut data {
                Data::None => Data::None,
                Data::In(bytes) => Data::In(bytes),
                Data::Out(bytes) => Data::Out(bytes),
            };
            let answer = self.transport.command(cdb, data)?;
            match (answer.status, answer.sense) {
                (Answer::GOOD, _) => return Ok(answer),
                (Answer::CONFLICT, _) => return Err(ScsiError::Conflict),
                (Answer::CHECK, Some(sense)) if sense.key == Sense::ATTENTION => {
                    if self.volatile && sense.is_power_on() {
                        self.lost.store(true, Ordering::Release);
                    }
                }
                (Answer::CHECK, Some(sense)) => return Err(ScsiError::Refused(sense)),
                (Answer::BUSY | Answer::FULL, _) => std::thread::sleep(BUSY_PAUSE),
                (status, _) => return Err(ScsiError::Status(status)),
            }
        }
        Err(ScsiError::Busy)
    }
    /// What the unit says; `None` if it does not know the question.
    fn ask(&self, cdb: &[u8], len: usize) -> Result<Option<Vec<u8>>, ScsiError> {
        let mut bytes = vec![0; len];
        match self.done(cdb, Data::In(&mut bytes)) {
            Ok(answer) => {
                bytes.truncate(len.saturating_sub(answer.missing));
                Ok(Some(bytes))
            }
            Err(ScsiError::Refused(sense)) if matches!(sense.key, 0 | ILLEGAL_REQUEST) => Ok(None),
            // Some refuse what they do not know without a reason.
            Err(ScsiError::Status(Answer::CHECK)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes `new` from `block` on if what stands there is `expected`; whether it was.
    ///
    /// # Errors
    /// After [`ScsiError::Io`], or a refusal that is not plain, it is not known whether `new` stands.
    ///
    /// # Panics
    /// If the lengths differ, or are not whole blocks that the unit compares at once.
    pub fn compare_and_write(
        &self,
        block: u64,
        sector: Bytes,
        expected: &[u8],
        new: &[u8],
    ) -> Result<bool, ScsiError> {
        let blocks = u8::try_from(new.len() as u64 / sector.get()).unwrap_or(u8::MAX);
        assert!(
            expected.len() == new.len()
                && u64::from(blocks) * sector.get() == new.len() as u64
                && (1..=self.compare).contains(&blocks),
            "a compare-and-write that the unit does not do"
        );
        // In as few pages as it can be: Linux's own target, reached by its loopback (6.1), writes other
        // bytes than `new` where a page ends between the two.
        let mut both = AlignedBuf::zeroed(expected.len() + new.len());
        both[..expected.len()].copy_from_slice(expected);
        both[expected.len()..].copy_from_slice(new);
        let through = self.volatile && !self.flushes.load(Ordering::Relaxed);
        match self.done(&cdb::compare_and_write(block, blocks, through), Data::Out(&both)) {
            Ok(_) if self.volatile && !through => self.keep(block, blocks).map(|()| true),
            Ok(_) => Ok(true),
            Err(ScsiError::Refused(sense)) if sense.key == Sense::MISCOMPARE => Ok(false),
            // It did not run.
            Err(ScsiError::Refused(sense)) if through && sense.key == ILLEGAL_REQUEST => {
                self.flushes.store(true, Ordering::Relaxed);
                self.compare_and_write(block, sector, expected, new)
            }
            Err(e) => Err(e),
        }
    }
    /// Makes blocks durable: SYNCHRONIZE CACHE (16).
    fn keep(&self, block: u64, blocks: u8) -> Result<(), ScsiError> {
        self.done(&cdb::sixteen(0x91, 0, block, blocks.into()), Data::None).map(|_| ())
    }
}

/// Compares and writes by `attempt`, which says whether what stood there was `expected`. If it was not,
/// says what stands there, by `read`; if that is what was expected by then, tries again. `None`: so it
/// was each of [`TRIES_MAX`] times.
pub fn retry_until_compared(
    read: impl Fn(&mut [u8]) -> Result<(), DeviceError>,
    expected: &[u8],
    attempt: impl Fn() -> Result<bool, DeviceError>,
) -> Result<Option<CawOutcome>, DeviceError> {
    let mut found = vec![0; expected.len()];
    for _ in 0..TRIES_MAX {
        if attempt()? {
            return Ok(Some(CawOutcome::Written));
        }
        read(&mut found)?;
        if found != expected {
            return Ok(Some(CawOutcome::Mismatch(found)));
        }
    }
    Ok(None)
}

fn key_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes)
}

/// The keys in the data of READ KEYS; `None` if not all that it tells of are there.
pub fn keys(bytes: &[u8]) -> Option<Vec<u64>> {
    let told = bytes.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes)?;
    let list = bytes.get(8..)?.get(..told as usize)?;
    Some((0..list.len()).step_by(8).map_while(|at| key_at(list, at)).collect())
}

/// The reservation in the data of READ RESERVATION.
pub fn reservation(bytes: &[u8]) -> Option<Reservation> {
    let told = bytes.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    let key = key_at(bytes, 8).filter(|_| told >= 16)?;
    let kind = bytes.get(21).and_then(|code| ReservationKind::of(code & 0x0f))?;
    Some(Reservation { key, kind })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A disk with one block: what is in its cache, what stands on its medium.
    #[derive(Debug, Default)]
    struct Disk {
        cached: parking_lot::Mutex<Vec<u8>>,
        medium: parking_lot::Mutex<Vec<u8>>,
        no_fua: bool,
        /// Told with the next command.
        attention: parking_lot::Mutex<Option<u16>>,
        commands: parking_lot::Mutex<Vec<u8>>,
    }
    impl Disk {
        fn lose_power(&self, code: u16) {
            *self.cached.lock() = self.medium.lock().clone();
            *self.attention.lock() = Some(code);
        }
    }
    impl Transport for Disk {
        fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
            let check = |key, code| Answer {
                status: Answer::CHECK,
                sense: Some(Sense { key, code, information: None }),
                missing: 0,
            };
            if let Some(code) = self.attention.lock().take() {
                return Ok(check(Sense::ATTENTION, code));
            }
            self.commands.lock().push(cdb[0]);
            let fua = cdb[1] & 8 != 0;
            match (cdb[0], data) {
                (0x12, Data::In(bytes)) => {
                    bytes.fill(0);
                    bytes.get_mut(5).into_iter().for_each(|b| *b = 1);
                }
                (0xa3, Data::In(bytes)) => bytes[1] = 3,
                (COMPARE_AND_WRITE, Data::Out(_)) if fua && self.no_fua => {
                    return Ok(check(ILLEGAL_REQUEST, 0x2400));
                }
                (COMPARE_AND_WRITE, Data::Out(both)) => {
                    let (expected, new) = both.split_at(both.len() / 2);
                    let mut cached = self.cached.lock();
                    if cached[..] != *expected {
                        return Ok(check(Sense::MISCOMPARE, 0x1d00));
                    }
                    *cached = new.to_vec();
                    if fua {
                        *self.medium.lock() = new.to_vec();
                    }
                }
                (0x91, _) => *self.medium.lock() = self.cached.lock().clone(),
                _ => {}
            }
            Ok(Answer { status: Answer::GOOD, sense: None, missing: 0 })
        }
        fn reset(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_lock_record_does_not_go_back_in_time_when_the_unit_loses_power() {
        const SECTOR: Bytes = Bytes(512);
        let block = |byte| vec![byte; 512];
        for (no_fua, code, lost) in
            [(false, 0x2900, true), (true, 0x2901, true), (false, 0x2903, false)]
        {
            let disk = Arc::new(Disk { no_fua, ..Disk::default() });
            (*disk.cached.lock(), *disk.medium.lock()) = (block(0), block(0));
            // That it has been switched on some time is nothing new.
            *disk.attention.lock() = Some(0x2900);
            let unit = Unit::probe(disk.clone()).unwrap().unwrap().with_cache(true);
            let write = |old, new| unit.compare_and_write(0, SECTOR, &block(old), &block(new));
            assert!(write(0, 1).unwrap() && write(1, 2).unwrap());
            assert!(!write(1, 3).unwrap());
            assert!(!unit.has_lost_cache());
            disk.lose_power(code);
            assert_eq!(disk.medium.lock()[0], 2, "no FUA: {no_fua}");
            assert!(write(2, 3).unwrap());
            assert_eq!(unit.has_lost_cache(), lost, "{code:#x}");
            let flushes = disk.commands.lock().iter().filter(|c| **c == 0x91).count();
            assert_eq!(flushes, if no_fua { 3 } else { 0 });
        }
        // Where nothing is lost nothing is paid for.
        let disk = Arc::new(Disk::default());
        (*disk.cached.lock(), *disk.medium.lock()) = (block(0), block(0));
        let unit = Unit::probe(disk.clone()).unwrap().unwrap();
        assert!(unit.compare_and_write(0, SECTOR, &block(0), &block(1)).unwrap());
        assert_eq!(disk.medium.lock()[0], 0);
        disk.lose_power(0x2900);
        let _ = unit.compare_and_write(0, SECTOR, &block(0), &block(1));
        assert!(!unit.has_lost_cache());
    }

    #[test]
    fn keys_are_all_there_or_none() {
        let mut bytes = [&[0, 0, 0, 1, 0, 0, 0, 16][..], &[0; 16]].concat();
        (bytes[15], bytes[23]) = (7, 9);
        assert_eq!(keys(&bytes), Some(vec![7, 9]));
        assert_eq!(keys(&[&bytes[..], &[0; 8]].concat()), Some(vec![7, 9]), "what is not told of");
        assert_eq!(keys(&bytes[..23]), None);
        bytes[7] = 24;
        assert_eq!(keys(&bytes), None);
        assert_eq!(keys(&[0; 8]), Some(Vec::new()));
        assert_eq!(keys(&[0; 7]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64), told in 0..64_u8) {
            let _ = (keys(&bytes), reservation(&bytes));
            let mut likely = bytes;
            if let Some(len) = likely.get_mut(4..8) {
                len.copy_from_slice(&[0, 0, 0, told]);
            }
            let found = keys(&likely);
            prop_assert!(found.is_none_or(|k| k.len() == usize::from(told) / 8));
            let _ = reservation(&likely);
        }
    }
}
