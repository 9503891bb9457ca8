//! Requests on a pool: split over the members, all in flight at once.
//!
//! A request of one piece (a pool of one member, or a request inside one stripe unit) goes to its
//! device as it is. Others become one device request per piece, all in one submission, so that
//! every member works at once; what is adjacent on a member is joined below, as far as the device
//! takes it at once ([`braid_device::run`]). Up to [`INLINE`] pieces need no allocation. Where no
//! memory is involved (discard, zeroes) the pieces of a member are joined here: one request per
//! member and zone.

pub(crate) mod concurrent;
mod discard;
mod mirrored;
mod node_records;
pub mod queue;
mod request;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::{AlignedBuf, CawOutcome, Device, DeviceError, Op, Request};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use smallvec::SmallVec;

pub use self::request::PoolRequest;

use self::concurrent::{hold_concurrent, settle_concurrent};
use crate::background_io::is_foreground;
use crate::cluster::write_gate::WriteGate;
use crate::cluster::{HeldRegions, Locks, add_locks, hold_of};
use crate::error::PoolError;
use crate::layout::map::Place;
use crate::pool::{Pool, PoolState};
use crate::redundancy::EpochInUse;
use crate::redundancy::batch::execute;
use crate::redundancy::divergent::DivergentWrite;
use crate::redundancy::work::{Read, Work, Write};
use crate::topology::{EpochTag, FailedMembers, Topology};

/// Device requests of one submission that are kept on the stack.
const INLINE: usize = 16;
/// Zeros are written in pieces of this.
const ZEROS_MAX: u64 = 1 << 20;
/// Regions that were not written for this long are no longer compared after a crash.
const CLEAN_SECONDS: u64 = 5;

/// Device requests of a batch on bare members, and which pool request each belongs to; and what
/// concerns groups.
#[derive(Default)]
struct Parts<'a> {
    requests: SmallVec<[Request<'a>; INLINE]>,
    owners: SmallVec<[u32; INLINE]>,
    work: Work<'a>,
}
impl<'a> Parts<'a> {
    fn push(&mut self, owner: u32, device: &'a Arc<dyn Device>, at: ByteOffset, op: Op<'a>) {
        self.requests.push(Request::new(&**device, at, op));
        self.owners.push(owner);
    }
}

impl PoolState {
    /// Checks a range: whole sectors, inside the pool.
    pub(crate) fn check(
        &self,
        topology: &Topology,
        at: ByteOffset,
        len: Bytes,
    ) -> Result<(), PoolError> {
        let mask = self.io.sector.0 - 1;
        if (at.0 | len.0) & mask != 0 {
            return Err(PoolError::Misaligned { at, len, sector: self.io.sector });
        }
        let size = topology.map.size();
        match at.checked_add(len) {
            Some(end) if end.0 <= size.0 => {
                if topology.map.is_holed(at, len) {
                    return Err(PoolError::Hole { at, len });
                }
                Ok(())
            }
            _ => Err(PoolError::PastEnd { at, len, size }),
        }
    }

    /// Adds the device requests of one pool request.
    fn split<'a>(
        &self,
        topology: &'a Topology,
        owner: u32,
        at: ByteOffset,
        op: &'a mut Op<'_>,
        parts: &mut Parts<'a>,
    ) -> Result<(), PoolError> {
        match op {
            Op::Read(buf) => {
                let mut rest: &mut [u8] = buf;
                self.check(topology, at, Bytes::from(rest.len()))?;
                for p in topology.map.pieces(at, Bytes::from(rest.len())) {
                    let (buf, later) = rest.split_at_mut(p.len.to_usize());
                    rest = later;
                    match p.place {
                        Place::Member(m) => {
                            parts.push(owner, topology.device(m), p.at, Op::Read(buf));
                        }
                        Place::Group(group) => {
                            parts.work.reads.push(Read { owner, group, at: p.at.0, buf });
                        }
                    }
                }
            }
            Op::Write(buf) => {
                let mut rest: &[u8] = buf;
                self.check(topology, at, Bytes::from(rest.len()))?;
                let range = (at.0, at.0 + rest.len() as u64);
                let before = parts.work.writes.len();
                for p in topology.map.pieces(at, Bytes::from(rest.len())) {
                    let (bytes, later) = rest.split_at(p.len.to_usize());
                    rest = later;
                    match p.place {
                        Place::Member(m) => {
                            parts.push(owner, topology.device(m), p.at, Op::Write(bytes));
                        }
                        Place::Group(group) => {
                            parts.work.writes.push(Write { owner, group, at: p.at.0, bytes });
                        }
                    }
                }
                if parts.work.writes.len() != before {
                    parts.work.ranges.push(range);
                }
            }
            Op::Flush if topology.map.groups().is_empty() => {
                for member in &topology.bare {
                    parts.push(owner, topology.device(*member), ByteOffset(0), Op::Flush);
                }
            }
            Op::Flush => parts.work.flushes.push(owner),
        }
        Ok(())
    }

    /// Splits and runs all requests; what failed, by place in `requests`.
    ///
    /// Where other nodes use the pool, the regions of groups that are written are held against
    /// them; so are those of reads that must go around a column, which run by themselves then.
    fn issue(
        &self,
        requests: &mut [PoolRequest<'_>],
        write_gate: &WriteGate,
        sharing: Sharing,
    ) -> Failures {
        let shared = self.cluster.shared().is_some();
        let tried = loop {
            let held = match self.hold_writes(requests, sharing) {
                Ok(held) => held,
                Err(error) => return all(requests, &error),
            };
            let tag = held.as_ref().map(|h| h.1);
            match self.attempt(requests, (!shared).then_some(write_gate), (tag, sharing)) {
                Ok(Some(tried)) => break self.see_through(requests, tried, write_gate),
                Ok(None) => {}
                Err(error) => return all(requests, &error),
            }
        };
        let Tried { mut failures, again, divergent, .. } = tried;
        if let Some(divergent) = divergent {
            let even = self.make_copies_equal(requests);
            drop(divergent);
            if let Err(error) = even {
                failures.extend(all_changes(requests, &error));
            }
        }
        for owner in again {
            let index = usize::try_from(owner).unwrap_or(usize::MAX);
            let Some(one) = requests.get_mut(index..=index) else { continue };
            if let Err(error) = self.issue_alone(one, write_gate) {
                failures.push((owner, error));
            }
        }
        failures
    }

    /// Runs one read with its regions held against everybody.
    fn issue_alone(
        &self,
        one: &mut [PoolRequest<'_>],
        write_gate: &WriteGate,
    ) -> Result<(), PoolError> {
        let range = match one {
            [PoolRequest { at, op: Op::Read(buf), .. }] => (*at, Bytes::from(buf.len())),
            _ => return Ok(()),
        };
        let _held = self.hold_bytes(range.0, range.1)?;
        let Some(tried) = self.attempt(one, Some(write_gate), (None, Sharing::Own))? else {
            return Ok(());
        };
        let tried = self.see_through(one, tried, write_gate);
        tried.failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Takes out the members that failed a write, and gives up the successor of one that is being
    /// moved if it did.
    fn see_through<'t>(
        &self,
        requests: &[PoolRequest<'_>],
        mut tried: Tried<'t>,
        write_gate: &WriteGate,
    ) -> Tried<'t> {
        if tried.lost.is_empty() && !tried.moving {
            return tried;
        }
        let changes = requests.iter().any(|r| !matches!(r.op, Op::Read(_)));
        // A caller that changes something has a pass. A read may have to fail a member too.
        let pass = if changes { None } else { write_gate.try_pass() };
        if !changes && pass.is_none() {
            return tried;
        }
        let seen = if tried.lost.is_empty() { Ok(()) } else { self.fail_members(&tried.lost) };
        if let Err(error) = seen.and_then(|()| self.check_migration()) {
            // Which of the writes are whole is not known: none counts.
            tried.failures.extend(all_changes(requests, &error));
        }
        tried
    }

    /// Holds the regions of groups that are written, and the epoch that says which they are.
    fn hold_writes(
        &self,
        requests: &[PoolRequest<'_>],
        sharing: Sharing,
    ) -> Result<Option<(HeldRegions, EpochTag)>, PoolError> {
        let tag = Cell::new(EpochTag::default());
        let held = self.hold_regions(|topology, count| {
            let mut locks = Locks::new();
            tag.set(topology.tag());
            for r in requests {
                let Op::Write(data) = &r.op else { continue };
                for p in topology.map.pieces(r.at, Bytes::from(data.len())) {
                    let Place::Group(index) = p.place else { continue };
                    let group = topology.map.group(index);
                    let range = group.affected(p.at.0, p.len.0);
                    let hold = match sharing {
                        Sharing::Own => hold_of(group),
                        Sharing::Concurrent => hold_concurrent(topology, group),
                    };
                    add_locks(&mut locks, (index, group), range, hold, count);
                }
            }
            locks
        })?;
        Ok(held.map(|h| (h, tag.get())))
    }

    /// Once, in the epoch in use; `None`: that is not `tag`'s any more. `reconstruct`: reads of lost
    /// columns are computed from the others, and mended while the gate is open.
    ///
    /// # Errors
    /// This node has withdrawn.
    fn attempt(
        &self,
        requests: &mut [PoolRequest<'_>],
        reconstruct: Option<&WriteGate>,
        (tag, sharing): (Option<EpochTag>, Sharing),
    ) -> Result<Option<Tried<'_>>, PoolError> {
        let changes = requests.iter().any(|r| !matches!(r.op, Op::Read(_)));
        let topology = match reconstruct {
            _ if changes => self.enter()?,
            // What could not be read may be written anew; reads are good in any epoch.
            Some(_) => match self.enter() {
                Ok(topology) => topology,
                Err(PoolError::Closed) => return Err(PoolError::Closed),
                Err(_) => self.epochs.read(),
            },
            None => self.epochs.read(),
        };
        if tag.is_some_and(|t| t != topology.tag()) {
            return Ok(None);
        }
        let mut tried = Tried { moving: topology.migration.is_some(), ..Tried::default() };
        if topology.provisional && changes {
            let error = PoolError::Provisional { name: topology.label.name.clone() };
            tried.failures.extend(all_changes(requests, &error));
            return Ok(Some(tried));
        }
        self.submit(&topology, requests, reconstruct, &mut tried);
        if sharing == Sharing::Concurrent && changes {
            // In the same epoch: nobody ends a move, or begins to fill a member, in between.
            match settle_concurrent(&topology, requests) {
                Ok(true) => {}
                Ok(false) => tried.divergent = Some(self.redundancy.divergent.enter()),
                Err(error) => tried.failures.extend(all_changes(requests, &error)),
            }
        }
        Ok(Some(tried))
    }

    /// The requests of [`PoolState::attempt`], in the epoch that it has entered.
    fn submit(
        &self,
        topology: &EpochInUse,
        requests: &mut [PoolRequest<'_>],
        reconstruct: Option<&WriteGate>,
        tried: &mut Tried<'_>,
    ) {
        let mut parts = Parts::default();
        for (owner, r) in (0_u32..).zip(requests.iter_mut()) {
            r.result = Ok(());
            if let Err(e) = self.split(topology, owner, r.at, &mut r.op, &mut parts) {
                tried.failures.push((owner, e));
            }
        }
        let Parts { mut requests, owners, work } = parts;
        if !work.is_empty() {
            if is_foreground() {
                self.io.requests.fetch_add(1, Ordering::Relaxed);
            }
            let bare = owners.into_iter().zip(requests).collect();
            let outcome = execute(topology, bare, work, reconstruct);
            tried.failures.extend(outcome.failures);
            tried.lost = topology.named(&outcome.lost);
            tried.again = outcome.again;
            return;
        }
        braid_device::run(&mut requests);
        for (request, owner) in requests.into_iter().zip(owners) {
            if let Err(source) = request.result {
                tried.failures.push((owner, source.into()));
            }
        }
    }
}

/// How a batch went.
#[derive(Default)]
struct Tried<'a> {
    failures: Failures,
    /// Members that failed a write.
    lost: FailedMembers,
    /// A member was being moved meanwhile.
    moving: bool,
    /// Reads that must go around a column, and have not.
    again: SmallVec<[u32; 1]>,
    /// Copies differ: other nodes have written the same bytes meanwhile.
    divergent: Option<DivergentWrite<'a>>,
}

/// Whether other nodes may write the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// No: the caller holds what keeps other nodes from writing them.
    Own,
    /// Yes, they may be writing them now.
    Concurrent,
}

/// The same error for every request: none was tried.
fn all(requests: &[PoolRequest<'_>], error: &PoolError) -> Failures {
    (0_u32..).zip(requests).map(|(owner, _)| (owner, error.clone())).collect()
}

/// The same error for every request that is not a read.
fn all_changes(
    requests: &[PoolRequest<'_>],
    error: &PoolError,
) -> impl Iterator<Item = (u32, PoolError)> {
    let changes = (0_u32..).zip(requests.iter()).filter(|(_, r)| !matches!(r.op, Op::Read(_)));
    changes.map(|(owner, _)| (owner, error.clone()))
}

/// Whether two writes of a batch concern the same bytes: they must then reach every copy in one
/// order.
fn overlapping(requests: &[PoolRequest<'_>]) -> bool {
    let mut writes: SmallVec<[(u64, u64); INLINE]> = requests
        .iter()
        .filter_map(|r| match &r.op {
            Op::Write(bytes) => Some((r.at.0, r.at.0.saturating_add(bytes.len() as u64))),
            _ => None,
        })
        .collect();
    writes.sort_unstable();
    writes.windows(2).any(|pair| matches!(pair, [a, b] if b.0 < a.1))
}

/// Place of a request in its batch, and its error.
type Failures = SmallVec<[(u32, PoolError); 1]>;

impl Pool {
    /// Runs all requests at once and waits for all; each one's `result` says how it ended. There
    /// is no order among the requests of a batch: a flush covers only writes that had completed
    /// before the call. A completed write is not durable before a flush.
    ///
    /// Where members are mirrored or protected by parity, a request succeeds although members
    /// fail, as long as the rest hold every byte; a member that fails a write is first taken out
    /// of the pool, durably.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) {
        self.run_on(requests, Sharing::Own);
    }

    /// As [`Pool::run`], for writes of bytes that other nodes may be writing at the same time: all
    /// copies of each byte are what one of the writers wrote when the last of them returns. Where
    /// bytes have copies this costs a read of each copy more; nothing otherwise.
    pub fn run_concurrent(&self, requests: &mut [PoolRequest<'_>]) {
        self.run_on(requests, Sharing::Concurrent);
    }

    fn run_on(&self, requests: &mut [PoolRequest<'_>], sharing: Sharing) {
        let changes = requests.iter().any(|r| !matches!(r.op, Op::Read(_)));
        let pass = changes.then(|| self.1.pass());
        if let Some(Err(_)) = pass {
            for r in requests {
                r.result = Err(PoolError::Closed);
            }
            return;
        }
        if self.0.redundancy.present && changes && requests.len() > 1 && overlapping(requests) {
            for one in requests.chunks_mut(1) {
                self.settle(one, sharing);
            }
            return;
        }
        self.settle(requests, sharing);
    }

    fn settle(&self, requests: &mut [PoolRequest<'_>], sharing: Sharing) {
        let failures = self.0.issue(requests, &self.1, sharing);
        if self.0.redundancy.present
            && let [one] = &mut *requests
            && matches!(one.op, Op::Read(_))
            && failures.iter().any(|(_, e)| matches!(e, PoolError::Device { .. }))
            && self.0.has_newer_epoch()
        {
            return self.settle(requests, sharing);
        }
        let several = requests.len() > 1;
        for (owner, error) in failures {
            let request = usize::try_from(owner).ok().and_then(|i| requests.get_mut(i..=i));
            let Some([r]) = request else { continue };
            if r.result.is_err() {
                continue;
            }
            if several && matches!((&r.op, &error), (Op::Read(_), PoolError::Device { .. })) {
                // By itself it is read in a newer epoch, if there is one.
                self.settle(std::slice::from_mut(r), sharing);
                continue;
            }
            r.result = Err(error);
        }
    }

    fn run_one(&self, request: PoolRequest<'_>) -> Result<(), PoolError> {
        let mut one = [request];
        self.run(&mut one);
        let [done] = one;
        done.result
    }

    /// Runs `each` on the place of a range, if that is one run of one bare member; `None`
    /// otherwise.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`].
    fn on_one<T>(
        &self,
        topology: &Topology,
        at: ByteOffset,
        len: Bytes,
        each: impl FnOnce(&dyn Device, ByteOffset) -> T,
    ) -> Result<Option<T>, PoolError> {
        self.0.check(topology, at, len)?;
        let piece = topology.map.pieces(at, len).next().filter(|p| p.len == len);
        Ok(piece.and_then(|p| match p.place {
            Place::Member(member) => Some(each(&**topology.device(member), p.at)),
            Place::Group(_) => None,
        }))
    }

    /// Fills `buf` from `at`.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`], [`PoolError::Device`] (the contents of
    /// `buf` are then not defined).
    pub fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), PoolError> {
        let len = Bytes::from(buf.len());
        let topology = self.0.epochs.read();
        let done = self.on_one(&topology, at, len, |device, at| device.read(at, buf))?;
        drop(topology);
        match done {
            Some(done) => Ok(done?),
            None => self.run_one(PoolRequest::read(at, buf)),
        }
    }

    /// Writes `buf` to `at`; durable after [`Pool::flush`].
    ///
    /// # Errors
    /// As [`Pool::read`]; after a device error any part of the range may hold the new bytes.
    pub fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), PoolError> {
        let len = Bytes::from(buf.len());
        let pass = self.1.pass()?;
        let topology = self.0.enter()?;
        let done = self.on_one(&topology, at, len, |device, at| device.write(at, buf))?;
        let migration = topology.migration.is_some();
        drop(topology);
        if let Some(done) = done {
            done?;
            return if migration { self.0.check_migration() } else { Ok(()) };
        }
        drop(pass);
        self.run_one(PoolRequest::write(at, buf))
    }

    /// Makes every write that has completed durable, on all members at once.
    ///
    /// # Errors
    /// [`PoolError::Device`]: nothing may be assumed durable any more, and the device's handle
    /// refuses further writes.
    pub fn flush(&self) -> Result<(), PoolError> {
        self.run_one(PoolRequest::flush())?;
        if self.0.redundancy.present {
            let now = self.0.seconds();
            let before = self.0.redundancy.log_cleaned.load(Ordering::Relaxed);
            let due = now.saturating_sub(before) >= CLEAN_SECONDS;
            let first = Ordering::Relaxed;
            // Once closed, the log may already be somebody else's.
            let Ok(_pass) = self.1.pass() else { return Ok(()) };
            if due
                && self.0.redundancy.log_cleaned.compare_exchange(before, now, first, first).is_ok()
            {
                self.0.clean_log();
            }
        }
        Ok(())
    }

    /// Puts `new` at `at` if `expected` stands there, atomically among all nodes. Both are one
    /// lock sector, and `at` is a multiple of it. Not durable before a flush.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`], [`PoolError::Device`] (it is then not
    /// known whether `new` stands there: read it). [`PoolError::NoRecord`]: a copy is being filled,
    /// and `expected` does not begin as the record of a lock or of a node's slot does.
    pub fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, PoolError> {
        let sector = self.0.io.lock_sector;
        let len = Bytes::from(new.len());
        let whole = len == sector && expected.len() == new.len();
        if !whole || !at.0.is_multiple_of(sector.0) {
            return Err(PoolError::Misaligned { at, len, sector });
        }
        let _pass = self.1.pass_for_lock()?;
        // Units, zones and slices are multiples of the largest lock sector: never two pieces.
        let topology = self.0.enter()?;
        let change = |device: &dyn Device, at| device.compare_and_write(at, expected, new);
        let done = self.on_one(&topology, at, len, change)?;
        let migration = topology.migration.is_some();
        drop(topology);
        let outcome = match done {
            Some(done) => done?,
            None => self.0.compare_and_write_mirrored(at, expected, new)?,
        };
        if migration {
            self.0.check_migration()?;
        }
        Ok(outcome)
    }

    /// Makes a range read as zeros; durable after a flush.
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), PoolError> {
        let zeros = AlignedBuf::zeroed(len.0.min(ZEROS_MAX).try_into().unwrap_or(0));
        let by_writing = |at: ByteOffset, len: Bytes| {
            let (mut at, mut left) = (at, len.0);
            while left > 0 {
                let now = left.min(ZEROS_MAX);
                let zeros = zeros.get(..Bytes(now).to_usize()).unwrap_or(&[]);
                self.run_one(PoolRequest::write(at, zeros))?;
                (at, left) = (at + Bytes(now), left - now);
            }
            Ok(())
        };
        self.each_run(at, len, |device, at, len| device.write_zeroes(at, len), by_writing)
    }

    /// Calls `bare` for every run of a range that is contiguous on a bare member: one per member
    /// and zone, however many stripe units it spans; and `grouped` for every logical run that
    /// stands on a group.
    pub(crate) fn each_run(
        &self,
        at: ByteOffset,
        len: Bytes,
        bare: impl Fn(&dyn Device, ByteOffset, Bytes) -> Result<(), DeviceError>,
        grouped: impl Fn(ByteOffset, Bytes) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let mut on_groups: Vec<(ByteOffset, Bytes)> = Vec::new();
        {
            let _pass = self.1.pass()?;
            let topology = self.0.enter()?;
            self.0.check(&topology, at, len)?;
            let call = |(m, at, len): (MemberIndex, ByteOffset, Bytes)| -> Result<(), PoolError> {
                Ok(bare(&**topology.device(m), at, len)?)
            };
            let mut open: SmallVec<[(MemberIndex, ByteOffset, Bytes); INLINE]> = SmallVec::new();
            let mut logical = at;
            for p in topology.map.pieces(at, len) {
                let here = logical;
                logical = logical + p.len;
                let Place::Member(member) = p.place else {
                    match on_groups.last_mut() {
                        Some((at, len)) if *at + *len == here => len.0 += p.len.0,
                        _ => on_groups.push((here, p.len)),
                    }
                    continue;
                };
                match open.iter_mut().find(|o| o.0 == member) {
                    Some(o) if o.1 + o.2 == p.at => o.2 = Bytes(o.2.0 + p.len.0),
                    Some(o) => call(std::mem::replace(o, (member, p.at, p.len)))?,
                    None => open.push((member, p.at, p.len)),
                }
            }
            open.into_iter().try_for_each(call)?;
            let moving = topology.migration.is_some();
            drop(topology);
            if moving {
                self.0.check_migration()?;
            }
        }
        on_groups.into_iter().try_for_each(|(at, len)| grouped(at, len))
    }
}

#[cfg(test)]
mod tests;
