//! A device that fails as it is told, and forgets what was not flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use parking_lot::{Mutex, MutexGuard};

use crate::random::survivors;
use crate::{Abilities, CawOutcome, Command, Completion, Device, DeviceError, DeviceInfo};

/// The operations that are counted, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum On {
    /// Reads.
    Read,
    /// Writes; zeroing counts as one, and so do discarding and deallocating.
    Write,
    /// Flushes.
    Flush,
    /// Compare-and-writes.
    CompareAndWrite,
}

/// What goes wrong. "Lands" means: reaches the device (its volatile cache, if it has one).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// An error, and nothing happened.
    Fails,
    /// An error, although it was done: the outcome is unknown to the caller.
    FailsDone,
    /// An error, and only the first bytes (whole sectors) of a write landed.
    FailsTorn(Bytes),
    /// Success, but only the first bytes (whole sectors) of a write landed.
    Torn(Bytes),
    /// Success, but a write never lands, or a flush flushes nothing.
    Lost,
    /// Success, but a write lands here instead.
    Misdirected(ByteOffset),
    /// Success, but a write lands only after so many more writes, or at
    /// [`FaultyDevice::land_late`]: I/O of a node that was thought dead.
    Late(u64),
    /// This operation and every one after it fails: the device is gone, or power is.
    Gone,
}

/// A fault at the `nth` operation of a kind, counted from 0 since the device was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Which operations are counted.
    pub on: On,
    /// Which of them.
    pub nth: u64,
    /// What happens to it. A kind that makes no sense for the operation (a misdirected read) is an
    /// error, as [`FaultKind::Fails`].
    pub kind: FaultKind,
}

/// What is to go wrong.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    /// At most one takes effect per operation: the first that names it.
    pub faults: Vec<Fault>,
    /// Writes reach the inner device only by a flush; until then [`FaultyDevice::crash`] may take
    /// them back.
    pub volatile_cache: bool,
}

/// Operations so far, the failed ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes and zeroings.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Compare-and-writes.
    pub compare_and_writes: u64,
}
impl Counts {
    fn of(&mut self, on: On) -> &mut u64 {
        match on {
            On::Read => &mut self.reads,
            On::Write => &mut self.writes,
            On::Flush => &mut self.flushes,
            On::CompareAndWrite => &mut self.compare_and_writes,
        }
    }
}

/// A write that has not reached where it goes.
#[derive(Debug)]
struct DelayedWrite {
    at: ByteOffset,
    data: Box<[u8]>,
}

#[derive(Debug, Default)]
struct State {
    plan: FaultPlan,
    counts: Counts,
    gone: bool,
    /// Sectors that cannot be read until they are written.
    spoilt: BTreeSet<u64>,
    /// The volatile cache, in order of arrival.
    cached: Vec<DelayedWrite>,
    /// The newest cached copy of a sector: (write, sector in it).
    newest: BTreeMap<u64, (usize, usize)>,
    /// Late writes, and the count of writes at which each lands.
    late: Vec<(u64, DelayedWrite)>,
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Goes,
    Faulty(FaultKind),
}

/// A device over another that fails by plan. With a volatile cache, reads see what was written,
/// but only what was flushed survives a [`FaultyDevice::crash`] for certain.
///
/// It has no descriptor: every operation passes here, one after the other, so that a plan always
/// meets the same operations when the caller is deterministic.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    state: Mutex<State>,
}

impl FaultyDevice {
    /// `inner`, failing by `plan`.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Arc<Self> {
        let info = DeviceInfo { engine: "faulty", ..inner.info().clone() };
        let state = Mutex::new(State { plan, ..State::default() });
        Arc::new(Self { inner, info, state })
    }
    /// The device under it.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }
    /// Operations so far: where to aim the next fault.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }
    /// Adds a fault that strikes the operation `after` the next one of its kind (0: the next).
    pub fn arm(&self, on: On, after: u64, kind: FaultKind) {
        let mut state = self.state.lock();
        let nth = *state.counts.of(on) + after;
        state.plan.faults.push(Fault { on, nth, kind });
    }
    /// Whether the device is gone ([`FaultKind::Gone`]).
    pub fn is_gone(&self) -> bool {
        self.state.lock().gone
    }
    /// From now on the sectors of `len` bytes at `at` cannot be read, until they are written: what disks
    /// do that have lost some. Nothing else makes them good.
    pub fn spoil(&self, at: ByteOffset, len: Bytes) {
        let sector = self.info.sector.get();
        let sectors = at.get() / sector..(at.get() + len.get()).div_ceil(sector);
        self.state.lock().spoilt.extend(sectors);
    }
    /// Forgets all faults; a device that was gone is back. What is cached, late or spoilt stays so.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.plan.faults.clear();
        state.gone = false;
    }
    /// Lets the late writes land now, in order.
    ///
    /// # Errors
    /// Of the inner device.
    pub fn land_late(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        for (_, held) in std::mem::take(&mut state.late) {
            self.land(&mut state, held.at, &held.data)?;
        }
        Ok(())
    }
    /// Power is cut and comes back: of the writes since the last flush an arbitrary subset has
    /// landed, some of them torn between sectors; what was late is lost. The same seed keeps the
    /// same subset. Faults are forgotten.
    ///
    /// # Errors
    /// Of the inner device.
    pub fn crash(&self, seed: u64) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let sector = self.info.sector.to_usize();
        let cached = std::mem::take(&mut state.cached);
        let mut result = Ok(());
        survivors(
            seed,
            cached.len(),
            |n| cached[n].data.len() / sector,
            |n, kept| {
                let at = cached[n].at + Bytes::from(kept.start * sector);
                let data = &cached[n].data[kept.start * sector..kept.end * sector];
                let landed = self.inner.write(at, data);
                result = std::mem::replace(&mut result, Ok(())).and(landed);
            },
        );
        state.newest.clear();
        state.late.clear();
        state.plan.faults.clear();
        state.gone = false;
        result
    }
    fn injected(&self, operation: &'static str, at: ByteOffset) -> DeviceError {
        DeviceError::Injected { device: self.info.name.as_str().into(), operation, at }
    }
    /// Counts an operation and looks up what becomes of it.
    fn fate(state: &mut State, on: On) -> Fate {
        let count = state.counts.of(on);
        let nth = *count;
        *count += 1;
        if state.gone {
            return Fate::Faulty(FaultKind::Fails);
        }
        match state.plan.faults.iter().find(|f| f.on == on && f.nth == nth) {
            None => Fate::Goes,
            Some(Fault { kind: FaultKind::Gone, .. }) => {
                state.gone = true;
                Fate::Faulty(FaultKind::Fails)
            }
            Some(f) => Fate::Faulty(f.kind),
        }
    }
    fn sectors(&self, at: ByteOffset, len: usize) -> std::ops::Range<u64> {
        let first = at.get() / self.info.sector.get();
        first..first + len as u64 / self.info.sector.get()
    }
    fn check_spoilt(&self, state: &State, at: ByteOffset, len: usize) -> Result<(), DeviceError> {
        match state.spoilt.range(self.sectors(at, len)).next() {
            Some(bad) => Err(self.injected("read", ByteOffset(bad * self.info.sector.get()))),
            None => Ok(()),
        }
    }
    /// Puts bytes where they go: the cache or the inner device.
    fn land(&self, state: &mut State, at: ByteOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.info.check(at, Bytes::from(data.len()))?;
        if !state.spoilt.is_empty() {
            let written = self.sectors(at, data.len());
            state.spoilt.retain(|s| !written.contains(s));
        }
        if !state.plan.volatile_cache {
            return self.inner.write(at, data);
        }
        let sector = self.info.sector;
        let first = at.get() / sector.get();
        let write = state.cached.len();
        for n in 0..data.len() / sector.to_usize() {
            state.newest.insert(first + n as u64, (write, n));
        }
        state.cached.push(DelayedWrite { at, data: data.into() });
        Ok(())
    }
    /// Reads what the device shows: the inner device under the cache.
    fn view(&self, state: &State, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.check_spoilt(state, at, buf.len())?;
        self.inner.read(at, buf)?;
        let sector = self.info.sector;
        let first = at.get() / sector.get();
        let end = first + buf.len() as u64 / sector.get();
        for (number, (write, n)) in state.newest.range(first..end) {
            let size = sector.to_usize();
            let to = Bytes((number - first) * sector.get()).to_usize();
            let from = n * size;
            buf[to..to + size].copy_from_slice(&state.cached[*write].data[from..from + size]);
        }
        Ok(())
    }
    /// A write that counts as one, then the late ones whose time has come.
    fn write_by_plan(
        &self,
        operation: &'static str,
        at: ByteOffset,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        self.info.check(at, Bytes::from(data.len()))?;
        let mut state = self.state.lock();
        let fate = Self::fate(&mut state, On::Write);
        let result = self.write_fated(&mut state, fate, operation, (at, data));
        self.land_due(&mut state)?;
        result
    }
    fn write_fated(
        &self,
        state: &mut State,
        fate: Fate,
        operation: &'static str,
        (at, data): (ByteOffset, &[u8]),
    ) -> Result<(), DeviceError> {
        let failed = Err(self.injected(operation, at));
        let whole = |bytes: Bytes| {
            let sector = self.info.sector.to_usize();
            &data[..bytes.to_usize().min(data.len()) / sector * sector]
        };
        let Fate::Faulty(kind) = fate else { return self.land(state, at, data) };
        match kind {
            FaultKind::Fails | FaultKind::Gone => failed,
            FaultKind::FailsDone => self.land(state, at, data).and(failed),
            FaultKind::FailsTorn(bytes) => self.land(state, at, whole(bytes)).and(failed),
            FaultKind::Torn(bytes) => self.land(state, at, whole(bytes)),
            FaultKind::Lost => Ok(()),
            FaultKind::Misdirected(there) => self.land(state, there, data),
            FaultKind::Late(after) => {
                let due = state.counts.writes.saturating_add(after);
                state.late.push((due, DelayedWrite { at, data: data.into() }));
                Ok(())
            }
        }
    }
    fn land_due(&self, state: &mut State) -> Result<(), DeviceError> {
        let now = state.counts.writes;
        if state.gone || state.late.iter().all(|(due, _)| *due > now) {
            return Ok(());
        }
        let (due, later) = std::mem::take(&mut state.late).into_iter().partition(|l| l.0 <= now);
        state.late = later;
        let due: Vec<(u64, DelayedWrite)> = due;
        for (_, held) in due {
            self.land(state, held.at, &held.data)?;
        }
        Ok(())
    }
    fn flush_cache(&self, mut state: MutexGuard<'_, State>) -> Result<(), DeviceError> {
        for held in std::mem::take(&mut state.cached) {
            self.inner.write(held.at, &held.data)?;
        }
        state.newest.clear();
        self.inner.flush()
    }
}

impl FaultyDevice {
    fn read_by_plan(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        match Self::fate(&mut state, On::Read) {
            Fate::Goes => self.view(&state, at, buf),
            Fate::Faulty(_) => Err(self.injected("read", at)),
        }
    }
    fn flush_by_plan(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let failed = Err(self.injected("flush", ByteOffset(0)));
        match Self::fate(&mut state, On::Flush) {
            Fate::Goes => self.flush_cache(state),
            Fate::Faulty(FaultKind::Lost) => Ok(()),
            Fate::Faulty(FaultKind::FailsDone) => self.flush_cache(state).and(failed),
            Fate::Faulty(_) => failed,
        }
    }
    fn compare_by_plan(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.info.check_caw(at, expected, new)?;
        let mut state = self.state.lock();
        let fate = Self::fate(&mut state, On::CompareAndWrite);
        let failed = Err(self.injected("compare-and-write", at));
        if matches!(fate, Fate::Faulty(kind) if kind != FaultKind::FailsDone) {
            return failed;
        }
        self.check_spoilt(&state, at, new.len())?;
        let outcome = if state.plan.volatile_cache {
            let mut stands = vec![0; new.len()];
            self.view(&state, at, &mut stands)?;
            if stands == expected {
                self.land(&mut state, at, new)?;
                CawOutcome::Written
            } else {
                CawOutcome::Mismatch(stands)
            }
        } else {
            self.inner.compare_and_write(at, expected, new)?
        };
        if matches!(fate, Fate::Faulty(_)) { failed } else { Ok(outcome) }
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let name = command.name();
        match command {
            Command::Read(buf) => self.read_by_plan(at, buf)?,
            Command::Write(buf) => self.write_by_plan(name, at, buf)?,
            Command::Flush => self.flush_by_plan()?,
            Command::CompareAndWrite { expected, new } => {
                return Ok(self.compare_by_plan(at, expected, new)?.into());
            }
            Command::Deallocate(_) if !self.info.caps.deallocate => {
                return Ok(Completion::Unsupported);
            }
            // Zeros, cached as a write of them: of what a discarded range may read as, the worst.
            Command::Discard(len) | Command::WriteZeroes(len) | Command::Deallocate(len) => {
                self.write_by_plan(name, at, &vec![0; len.to_usize()])?;
            }
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self.inner.abilities().locks)
    }
}

#[cfg(test)]
mod tests;
