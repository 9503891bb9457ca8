//! New bytes of partial parity rows, durable before they are written in place.
//!
//! Records stand in a ring. Requests that arrive while the ring is being written are then written
//! together, by the first of them (group commit). When the ring is full, everything that is logged
//! and in place is flushed, and the ring starts again after it (a checkpoint).
//!
//! A record is repeated after a crash although its row may have been written since, so a row in
//! the ring must not be written past the ring: until the next checkpoint every write to it is
//! logged too, or a checkpoint is made first.

use std::collections::HashSet;

use braid_device::tasks::{self, Awaited};
use braid_device::{AlignedBuf, Request, run};
use braid_format::crc::crc32c_with_hole;
use braid_format::redundancy::{LogPlace, RawRedoHeader, RawRedoPart, RawRedoRecord};
use braid_format::{Bytes, MemberIndex};
use parking_lot::{Condvar, Mutex, MutexGuard};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::replicas::{NUMBERS, Reach, Sector, store};
use crate::error::PoolError;
use crate::topology::{Lost, Topology};

/// Longest record: several fit in the ring.
pub(crate) const RECORD_MAX: u64 = LogPlace::RING / 4;

/// Bytes that go to a column of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub group: u16,
    pub column: u16,
    pub offset: u64,
    pub bytes: &'a [u8],
}

/// A row: its group, and its number there.
pub(crate) type RowId = (u16, u64);

/// The ring of this node.
#[derive(Debug)]
pub(crate) struct Redo {
    ring: Mutex<Ring>,
    changed: Condvar,
}

#[derive(Debug)]
struct Ring {
    /// Where the next record goes, and its number.
    head: (u64, u64),
    /// Where the oldest record that counts stands, and its number.
    tail: (u64, u64),
    /// Of the header written last.
    generation: u64,
    /// Rows of records that count.
    rows: HashSet<RowId>,
    /// Records that are durable and not yet in place.
    unfinished: usize,
    /// Somebody writes the ring.
    busy: bool,
    waiting: Vec<Order>,
    /// Tickets of orders that are done, and how.
    done: Vec<(u64, Result<(), PoolError>)>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Order {
    ticket: u64,
    /// A record without its number and checksum.
    record: AlignedBuf,
    rows: Vec<RowId>,
}

/// A record that is durable and not yet in place.
#[derive(Debug)]
pub(crate) struct Unfinished<'a>(&'a Redo);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.ring.lock().unfinished -= 1;
        self.0.changed.notify_all();
    }
}

/// Bytes that a record of `parts` takes.
pub(crate) fn record_len(parts: usize, bytes: u64) -> u64 {
    let head = size_of::<RawRedoRecord>() + parts * size_of::<RawRedoPart>();
    (head as u64 + bytes).next_multiple_of(LogPlace::SECTOR as u64)
}

fn build(topology: &Topology, slot: u16, parts: &[Part<'_>]) -> AlignedBuf {
    let bytes = parts.iter().map(|p| p.bytes.len() as u64).sum();
    let len = record_len(parts.len(), bytes);
    let mut record = AlignedBuf::zeroed(Bytes(len).to_usize());
    let mut head = RawRedoRecord::new_zeroed();
    head.magic.set(RawRedoRecord::MAGIC);
    head.pool_uuid = topology.label.pool.into_bytes();
    head.len.set(u32::try_from(len).unwrap_or(0));
    head.parts.set(u32::try_from(parts.len()).unwrap_or(0));
    head.slot.set(slot);
    let mut rest: &mut [u8] = &mut record;
    let mut put = |bytes: &[u8]| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        rest = later;
    };
    put(head.as_bytes());
    for p in parts {
        let mut raw = RawRedoPart::new_zeroed();
        raw.group.set(p.group);
        raw.column.set(p.column);
        raw.len.set(u32::try_from(p.bytes.len()).unwrap_or(0));
        raw.offset.set(p.offset);
        put(raw.as_bytes());
    }
    for part in parts {
        put(part.bytes);
    }
    record
}

/// Numbers and seals a record.
fn seal(record: &mut [u8], sequence: u64) {
    if let Ok((head, _)) = RawRedoRecord::mut_from_prefix(record) {
        head.sequence.set(sequence);
    }
    let crc = crc32c_with_hole(record, RawRedoRecord::CRC_AT);
    if let Ok((head, _)) = RawRedoRecord::mut_from_prefix(record) {
        head.crc.set(crc);
    }
}

/// A decoded record: its bytes in the ring, and its parts.
pub(crate) struct Record<'a> {
    pub len: u64,
    pub parts: Vec<Part<'a>>,
}

/// Bytes of the record that should have number `sequence`, by the sector that begins it.
pub(crate) fn claims(bytes: &[u8], pool: &[u8; 16], slot: u16, sequence: u64) -> Option<u64> {
    let (head, _) = RawRedoRecord::read_from_prefix(bytes).ok()?;
    let named = head.magic.get() == RawRedoRecord::MAGIC
        && head.pool_uuid == *pool
        && head.slot.get() == slot
        && head.sequence.get() == sequence;
    let len = u64::from(head.len.get());
    let whole = (LogPlace::SECTOR as u64..=RECORD_MAX).contains(&len)
        && len.is_multiple_of(LogPlace::SECTOR as u64);
    (named && whole).then_some(len)
}

/// Decodes the record that should have number `sequence`; `None`: there is none.
pub(crate) fn decode<'a>(
    bytes: &'a [u8],
    pool: &[u8; 16],
    slot: u16,
    sequence: u64,
) -> Option<Record<'a>> {
    let len = claims(bytes, pool, slot, sequence)?;
    let (head, _) = RawRedoRecord::read_from_prefix(bytes).ok()?;
    let record = bytes.get(..Bytes(len).to_usize())?;
    if crc32c_with_hole(record, RawRedoRecord::CRC_AT) != head.crc.get() {
        return None;
    }
    let rest = record.get(size_of::<RawRedoRecord>()..)?;
    let count = usize::try_from(head.parts.get()).ok()?;
    let (raw, mut rest) = <[RawRedoPart]>::ref_from_prefix_with_elems(rest, count).ok()?;
    let mut parts = Vec::with_capacity(count);
    for p in raw {
        let (bytes, later) = rest.split_at_checked(usize::try_from(p.len.get()).ok()?)?;
        rest = later;
        let (group, column, offset) = (p.group.get(), p.column.get(), p.offset.get());
        parts.push(Part { group, column, offset, bytes });
    }
    Some(Record { len, parts })
}

/// What a redo header says: its generation, and the tail's number and place.
pub(crate) fn decode_header(bytes: &[u8], pool: &[u8; 16], slot: u16) -> Option<(u64, u64, u64)> {
    let sector = bytes.get(..LogPlace::SECTOR)?;
    let (raw, _) = RawRedoHeader::read_from_prefix(sector).ok()?;
    let named = raw.magic.get() == RawRedoHeader::MAGIC
        && raw.pool_uuid == *pool
        && raw.slot.get() == slot
        && raw.generation.get().max(raw.tail_sequence.get()) < NUMBERS
        && raw.tail_offset.get() < LogPlace::RING
        && raw.tail_offset.get().is_multiple_of(LogPlace::SECTOR as u64);
    let good = crc32c_with_hole(sector, RawRedoHeader::CRC_AT) == raw.crc.get();
    (named && good).then(|| (raw.generation.get(), raw.tail_sequence.get(), raw.tail_offset.get()))
}

fn header(topology: &Topology, slot: u16, generation: u64, tail: (u64, u64)) -> AlignedBuf {
    let mut raw = RawRedoHeader::new_zeroed();
    raw.magic.set(RawRedoHeader::MAGIC);
    raw.pool_uuid = topology.label.pool.into_bytes();
    raw.generation.set(generation);
    raw.tail_offset.set(tail.0);
    raw.tail_sequence.set(tail.1);
    raw.slot.set(slot);
    let mut sector = AlignedBuf::zeroed(LogPlace::SECTOR);
    if let Some(to) = sector.get_mut(..size_of::<RawRedoHeader>()) {
        to.copy_from_slice(raw.as_bytes());
    }
    let crc = crc32c_with_hole(&sector, RawRedoHeader::CRC_AT);
    raw.crc.set(crc);
    if let Some(to) = sector.get_mut(..size_of::<RawRedoHeader>()) {
        to.copy_from_slice(raw.as_bytes());
    }
    sector
}

/// Writes a header, durably.
pub(crate) fn store_header(
    topology: &Topology,
    slot: u16,
    generation: u64,
    tail: (u64, u64),
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let bytes = &header(topology, slot, generation, tail);
    let at = LogPlace::redo_header;
    store(topology, slot, &[Sector { at, index: generation, bytes }], Reach::Replicas, lost)
}

impl Redo {
    /// An empty ring whose next record has number `sequence`, after a header of `generation` that
    /// says so.
    pub fn new(sequence: u64, generation: u64) -> Self {
        let ring = Ring {
            head: (0, sequence),
            tail: (0, sequence),
            generation,
            rows: HashSet::new(),
            unfinished: 0,
            busy: false,
            waiting: Vec::new(),
            done: Vec::new(),
            next_ticket: 0,
        };
        Self { ring: Mutex::new(ring), changed: Condvar::new() }
    }

    /// Whether a record of any of these rows counts.
    pub fn holds(&self, mut rows: impl Iterator<Item = RowId>) -> bool {
        let ring = self.ring.lock();
        !ring.rows.is_empty() && rows.any(|r| ring.rows.contains(&r))
    }

    /// Logs `parts`, the new bytes of `rows`; on return they are durable. The caller holds the
    /// rows, writes them in place, and then drops what is returned.
    ///
    /// # Errors
    /// The log cannot be written anywhere: nothing may be written.
    pub fn append(
        &self,
        topology: &Topology,
        slot: u16,
        parts: &[Part<'_>],
        rows: Vec<RowId>,
        lost: &mut Lost,
    ) -> Result<Unfinished<'_>, PoolError> {
        let record = build(topology, slot, parts);
        let mut ring = self.ring.lock();
        let ticket = ring.next_ticket;
        ring.next_ticket += 1;
        ring.waiting.push(Order { ticket, record, rows });
        loop {
            if let Some(i) = ring.done.iter().position(|d| d.0 == ticket) {
                let (_, result) = ring.done.swap_remove(i);
                return result.map(|()| Unfinished(self));
            }
            if ring.busy {
                let _waits = tasks::wait(Awaited::Commit);
                self.changed.wait(&mut ring);
            } else {
                self.serve(topology, slot, &mut ring, lost);
            }
        }
    }

    /// Writes what waits, as far as there is room; makes room when there is none.
    fn serve(
        &self,
        topology: &Topology,
        slot: u16,
        ring: &mut MutexGuard<'_, Ring>,
        lost: &mut Lost,
    ) {
        ring.busy = true;
        let before = ring.head;
        let mut records = Vec::new();
        let (mut tickets, mut rows) = (Vec::new(), Vec::new());
        while let Some(order) = ring.waiting.first() {
            let len = order.record.len() as u64;
            if !ring.room(topology, slot, len, &mut records) {
                break;
            }
            let mut order = ring.waiting.remove(0);
            let at = ring.head;
            seal(&mut order.record, at.1);
            ring.head = (at.0 + len, at.1 + 1);
            records.push((at.0, order.record));
            tickets.push(order.ticket);
            rows.extend(order.rows);
        }
        if records.is_empty() {
            if let Err(error) = self.make_room(topology, slot, ring, lost) {
                // No record gets room any more: all that wait fail.
                let waiting = std::mem::take(&mut ring.waiting);
                ring.done.extend(waiting.into_iter().map(|o| (o.ticket, Err(error.clone()))));
            }
            ring.busy = false;
            self.changed.notify_all();
            return;
        }
        let stored = MutexGuard::unlocked(ring, || {
            let sectors: Vec<Sector<'_>> = records
                .iter()
                .map(|(offset, bytes)| Sector { at: LogPlace::ring, index: *offset, bytes })
                .collect();
            store(topology, slot, &sectors, Reach::Replicas, lost)
        });
        if stored.is_ok() {
            ring.rows.extend(rows);
            ring.unfinished += tickets.len();
        } else {
            ring.head = before;
        }
        ring.done.extend(tickets.into_iter().map(|t| (t, stored.clone())));
        ring.busy = false;
        self.changed.notify_all();
    }

    /// Checkpoint: waits for what is logged to be in place, flushes, and begins behind it.
    fn make_room(
        &self,
        topology: &Topology,
        slot: u16,
        ring: &mut MutexGuard<'_, Ring>,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        while ring.unfinished > 0 {
            self.changed.wait(ring);
        }
        let (head, generation) = (ring.head, ring.generation + 1);
        MutexGuard::unlocked(ring, || {
            flush_all(topology, lost)?;
            store_header(topology, slot, generation, head, lost)
        })?;
        ring.tail = head;
        ring.generation = generation;
        ring.rows.clear();
        Ok(())
    }

    /// Makes the ring empty: what it holds is in place, durably. A caller inside a request holds
    /// no unfinished record.
    ///
    /// # Errors
    /// A flush, or the log, failed.
    pub fn checkpoint(
        &self,
        topology: &Topology,
        slot: u16,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let mut ring = self.ring.lock();
        while ring.busy {
            self.changed.wait(&mut ring);
        }
        if ring.rows.is_empty() && ring.head == ring.tail {
            return Ok(());
        }
        ring.busy = true;
        let made = self.make_room(topology, slot, &mut ring, lost);
        ring.busy = false;
        self.changed.notify_all();
        made
    }

    /// Writes a header to the log's new replicas: its records stay behind on the old ones, so nothing
    /// may be unfinished, and everything in place durable.
    pub fn relocate(
        &self,
        topology: &Topology,
        slot: u16,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let mut ring = self.ring.lock();
        ring.generation += 1;
        ring.tail = ring.head;
        ring.rows.clear();
        store_header(topology, slot, ring.generation, ring.head, lost)
    }
}

impl Ring {
    /// Whether `len` more bytes fit at the head, which a record of no parts may send to the start
    /// of the ring first.
    fn room(
        &mut self,
        topology: &Topology,
        slot: u16,
        len: u64,
        records: &mut Vec<(u64, AlignedBuf)>,
    ) -> bool {
        let used = self.head.1 != self.tail.1;
        let (head, tail) = (self.head.0, self.tail.0);
        if used && head <= tail {
            return head + len < tail;
        }
        if head + len < LogPlace::RING {
            return true;
        }
        // The start is free up to the tail; the head always leaves room for a sector.
        if len >= tail {
            return false;
        }
        let mut skip = build(topology, slot, &[]);
        seal(&mut skip, self.head.1);
        records.push((head, skip));
        self.head = (0, self.head.1 + 1);
        true
    }
}

/// Flushes every member that may hold unflushed bytes.
pub(crate) fn flush_all(topology: &Topology, lost: &mut Lost) -> Result<(), PoolError> {
    let members: Vec<MemberIndex> = topology.members().filter(|m| topology.writable(*m)).collect();
    let flush = |m: &MemberIndex| Request::flush(&**topology.device(*m));
    let mut flushes: Vec<Request<'_>> = members.iter().map(flush).collect();
    run(&mut flushes);
    for (member, request) in members.into_iter().zip(flushes) {
        if let Err(error) = request.result {
            topology.do_without(member, error, lost)?;
        }
    }
    Ok(())
}
