//! A sliding window of requests whose buffers the queue owns meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use braid_format::{ByteOffset, Bytes};

use crate::engine::{EngineKind, Flight, Transfer, Wait, engine_kind};
use crate::iscsi::{Gathered, UnitTransfer};
use crate::model::Ticket;
use crate::tasks::{self, Awaited, DeviceKey};
use crate::{AlignedBuf, Device, DeviceError, Op, RingTarget, Route};

/// What an owned request does.
#[derive(Debug)]
pub enum OwnedOp {
    /// Read into.
    Read(AlignedBuf),
    /// Write from.
    Write(AlignedBuf),
}

/// Where a part of a request's buffer goes.
#[derive(Debug, Clone)]
pub struct Part {
    /// The device.
    pub device: Arc<dyn Device>,
    /// First byte on it.
    pub at: ByteOffset,
    /// Bytes, whole sectors.
    pub len: Bytes,
}

/// A request on its way.
#[derive(Debug)]
struct Pending {
    token: u64,
    buf: AlignedBuf,
    write: bool,
    parts: Vec<Part>,
    /// Transfers not done.
    left: usize,
    begun: Instant,
    result: Result<(), DeviceError>,
}

/// What a transfer is of.
#[derive(Debug, Default)]
struct Owner {
    /// The request's.
    slot: u32,
    /// Of the request.
    part: u32,
    /// How often it will still be reported.
    reports: usize,
}

/// A sliding window of requests for one thread, on a ring (or threads) of its own. What was
/// submitted is under way at once. Dropping the queue waits for what is in flight.
#[derive(Debug)]
pub struct IoQueue {
    // Before `pending`: its drop waits for the kernel, then the buffers may go.
    flight: Flight,
    /// Commands to units of targets: they too end before the buffers go.
    units: Vec<UnitTransfer>,
    /// By slot.
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    done: VecDeque<Pending>,
    /// Emptied part lists, kept so that a request allocates nothing.
    lists: Vec<Vec<Part>>,
    /// By a transfer's owner.
    owners: Vec<Owner>,
    free_owners: Vec<u32>,
    /// Transfers on modelled disks, each with its slot.
    modelled: Vec<(Ticket, u32)>,
    in_flight: usize,
}

impl IoQueue {
    /// A queue that is to hold about `depth` requests at a time (more are taken).
    ///
    /// # Errors
    /// None today: where `io_uring` is refused, threads serve the queue.
    pub fn new(depth: usize) -> Result<Self, DeviceError> {
        Ok(Self::with_engine(depth, engine_kind()))
    }
    pub(crate) fn with_engine(depth: usize, kind: EngineKind) -> Self {
        Self {
            flight: Flight::new(kind),
            units: Vec::new(),
            pending: Vec::with_capacity(depth),
            free: Vec::new(),
            done: VecDeque::with_capacity(depth),
            lists: Vec::new(),
            owners: Vec::new(),
            free_owners: Vec::new(),
            modelled: Vec::new(),
            in_flight: 0,
        }
    }
    /// Starts a request.
    ///
    /// # Errors
    /// None today: what is wrong with a request is said by its completion, with its buffer.
    pub fn submit(
        &mut self,
        token: u64,
        device: Arc<dyn Device>,
        at: ByteOffset,
        op: OwnedOp,
    ) -> Result<(), DeviceError> {
        let len = match &op {
            OwnedOp::Read(buf) | OwnedOp::Write(buf) => buf.len(),
        };
        self.submit_parts(token, op, &[Part { device, at, len: Bytes::from(len) }])
    }
    /// Starts a request whose buffer goes to several places, part after part: one completion when
    /// all parts are done, with the first error. All parts are in flight at once, those side by side
    /// on a device together; they count as
    /// one request of the window's depth.
    ///
    /// # Errors
    /// None today, as [`IoQueue::submit`].
    ///
    /// # Panics
    /// If the parts' lengths do not add up to the buffer's.
    pub fn submit_parts(
        &mut self,
        token: u64,
        op: OwnedOp,
        parts: &[Part],
    ) -> Result<(), DeviceError> {
        let (buf, write) = match op {
            OwnedOp::Read(buf) => (buf, false),
            OwnedOp::Write(buf) => (buf, true),
        };
        self.enqueue(token, buf, write, parts);
        self.reap(Wait::No);
        Ok(())
    }
    fn enqueue(&mut self, token: u64, buf: AlignedBuf, write: bool, parts: &[Part]) {
        let total: u64 = parts.iter().map(|p| p.len.get()).sum();
        assert_eq!(total, buf.len() as u64, "the parts' lengths add up to the buffer's");
        let mut list = self.lists.pop().unwrap_or_default();
        list.extend_from_slice(parts);
        let request = Pending {
            token,
            buf,
            write,
            parts: list,
            left: 0,
            begun: Instant::now(),
            result: Ok(()),
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.pending[slot as usize] = Some(request);
            slot
        } else {
            self.pending.push(Some(request));
            index(self.pending.len() - 1)
        };
        self.in_flight += 1;
        self.start(slot);
    }
    /// Starts the transfers of a request; parts on devices without a descriptor are done at once, those
    /// on modelled disks when they are due.
    fn start(&mut self, slot: u32) {
        let Some(request) = &mut self.pending[slot as usize] else { return };
        let mut from = 0;
        let mut gathered = Gathered::default();
        // One address for all parts, taken once: the buffer is not touched again through `buf`
        // while transfers use it.
        let base = request.buf.as_mut_ptr();
        for (part, p) in (0_u32..).zip(&request.parts) {
            let len = p.len.to_usize();
            // SAFETY: the lengths add up to the buffer's.
            let memory = unsafe { base.add(from) };
            from += len;
            let owner = self.free_owners.pop().unwrap_or_else(|| {
                self.owners.push(Owner::default());
                index(self.owners.len() - 1)
            });
            let started = match p.device.route() {
                Route::Unit(unit) => {
                    // SAFETY: `len` bytes of the buffer, used by nobody else, which stays in `pending`
                    // until all transfers of the request are reported; `units` is dropped before it.
                    unsafe { gathered.add(owner, unit, request.write, p.at, (memory, len)) }
                }
                Route::Ring(target) => {
                    // SAFETY: as above; the device stays in `pending` too, and `flight` is dropped,
                    // and with it drained, before that.
                    unsafe { on_ring(&mut self.flight, owner, target, request.write, p, memory) }
                }
                Route::Timed(disk, counters) => {
                    // SAFETY: `len` bytes of the buffer, used by nobody else.
                    let op = unsafe { op_of(p, request.write, memory) };
                    if let Some(counters) = counters {
                        counters.transfer(request.write, len);
                    }
                    let started = disk.start(p.at, op);
                    if let Some(counters) = counters {
                        counters.failed_if(&started);
                    }
                    started.map(|ticket| {
                        request.left += 1;
                        self.modelled.push((ticket, slot));
                        0
                    })
                }
                Route::Submit | Route::Threads(..) => {
                    // SAFETY: `len` bytes of the buffer, used by nobody else.
                    let op = unsafe { op_of(p, request.write, memory) };
                    p.device.submit(p.at, op.into()).map(|_| 0)
                }
            };
            let reports = started.unwrap_or_else(|e| {
                request.result = std::mem::replace(&mut request.result, Ok(())).and(Err(e));
                0
            });
            request.left += reports;
            self.owners[owner as usize] = Owner { slot, part, reports };
            if reports == 0 {
                self.free_owners.push(owner);
            }
        }
        let nothing = request.left == 0;
        let (commands, refused) = gathered.issue(false);
        self.units.extend(commands);
        for (owner, e) in refused {
            self.told(owner, Err(e));
        }
        if nothing {
            self.finish(slot);
        }
    }
    fn finish(&mut self, slot: u32) {
        if let Some(request) = self.pending[slot as usize].take() {
            self.free.push(slot);
            self.done.push_back(request);
        }
    }
    fn reap(&mut self, wait: Wait) {
        let Self { flight, pending, free, done, owners, free_owners, .. } = self;
        flight.reap(wait, |owner, result| {
            let Some((slot, part)) = reported(owners, free_owners, owner) else { return };
            let place = &mut pending[slot as usize];
            let Some(request) = place else { return };
            request.left -= 1;
            if let (Err(e), Ok(())) = (result, &request.result) {
                let p = &request.parts[part as usize];
                let operation = if request.write { "write" } else { "read" };
                request.result = Err(p.device.info().io_error(operation, p.at, e));
            }
            if request.left == 0 {
                done.extend(place.take());
                free.push(slot);
            }
        });
    }
    /// Takes in how a command to a unit ended for a part of a request.
    fn told(&mut self, owner: u32, result: Result<(), DeviceError>) {
        let told = reported(&mut self.owners, &mut self.free_owners, owner);
        let Some((slot, _)) = told else { return };
        let Some(request) = &mut self.pending[slot as usize] else { return };
        request.result = std::mem::replace(&mut request.result, Ok(())).and(result);
        request.left -= 1;
        if request.left == 0 {
            self.finish(slot);
        }
    }
    /// Requests not yet taken out.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
    /// Waits for one; gives back its token, its buffer and how it ended.
    ///
    /// # Panics
    /// If none is in flight.
    pub fn complete(&mut self) -> (u64, AlignedBuf, Result<(), DeviceError>) {
        assert!(self.in_flight != 0, "a request in flight");
        let _waits = tasks::wait(Awaited::Device(DeviceKey::SEVERAL));
        loop {
            if let Some(done) = self.completed() {
                return done;
            }
            if !self.units.is_empty() {
                self.reap(Wait::No);
                self.end_unit();
            } else if self.modelled.is_empty() {
                self.reap(Wait::One);
            } else {
                self.reap(Wait::No);
                self.end_modelled();
            }
        }
    }
    /// The next of those that are known to be done, as [`IoQueue::complete`], which alone looks for
    /// more.
    pub fn completed(&mut self) -> Option<(u64, AlignedBuf, Result<(), DeviceError>)> {
        let mut request = self.done.pop_front()?;
        self.in_flight -= 1;
        request.parts.clear();
        self.lists.push(request.parts);
        Some((request.token, request.buf, request.result))
    }
    /// Ends a command to a unit: one that is over, or else the oldest.
    fn end_unit(&mut self) {
        let over = self.units.iter().position(UnitTransfer::is_done);
        let command = self.units.remove(over.unwrap_or(0));
        let Owner { slot, part, .. } = self.owners[command.owner() as usize];
        let Some(request) = &self.pending[slot as usize] else { return };
        let (device, begun) = (request.parts[part as usize].device.clone(), request.begun);
        if let Route::Unit(unit) = device.route() {
            unit.finish(command, begun, |owner, result| self.told(owner, result));
        }
    }
    /// Waits for the first of the transfers on modelled disks. Disks of another clock than the
    /// oldest transfer's wait for their turn.
    fn end_modelled(&mut self) {
        let Some((oldest, _)) = self.modelled.first() else { return };
        let clock = oldest.clock().clone();
        let same = self.modelled.iter().map(|(t, _)| t).filter(|t| t.clock().is(&clock));
        let (first, _) = clock.first_of(&same);
        let of_clock = |(_, (t, _)): &(usize, &(Ticket, u32))| t.clock().is(&clock);
        let Some((place, _)) = self.modelled.iter().enumerate().filter(of_clock).nth(first) else {
            return;
        };
        let (_, slot) = self.modelled.remove(place);
        if let Some(request) = &mut self.pending[slot as usize] {
            request.left -= 1;
            if request.left == 0 {
                self.finish(slot);
            }
        }
    }
}

/// Takes in that a transfer was reported: the request's slot, and which part of it.
fn reported(owners: &mut [Owner], free: &mut Vec<u32>, owner: u32) -> Option<(u32, u32)> {
    let known = owners.get_mut(owner as usize)?;
    known.reports -= 1;
    if known.reports == 0 {
        free.push(owner);
    }
    Some((known.slot, known.part))
}

/// Starts a part on the ring; how often it will be reported.
///
/// # Safety
/// As [`Flight::start`], of `part.len` bytes at `memory`.
unsafe fn on_ring(
    flight: &mut Flight,
    owner: u32,
    target: RingTarget<'_>,
    write: bool,
    part: &Part,
    memory: *mut u8,
) -> Result<usize, DeviceError> {
    let (device, at, len) = (&*part.device, part.at, part.len);
    let transfer = if write {
        device.info().check_write(target.poisoned, at, len)?;
        target.intact.intact()?;
        Transfer::write(owner, target, at.get(), memory, len.to_usize())
    } else {
        device.info().check(at, len)?;
        target.intact.was_intact()?;
        Transfer::read(owner, target, at.get(), memory, len.to_usize())
    };
    // SAFETY: the caller's promise.
    Ok(unsafe { flight.start(transfer) })
}

/// A part as a command.
///
/// # Safety
/// `memory` points to `part.len` bytes that nobody else uses.
unsafe fn op_of<'a>(part: &Part, write: bool, memory: *mut u8) -> Op<'a> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory, part.len.to_usize()) };
    if write { Op::Write(bytes) } else { Op::Read(bytes) }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 requests")
}
