//! Whether a record that cannot be read is the end of its journal, or damage; and whether a header
//! that says that a journal is clean is its newest.
//!
//! A node writes a record, flushes, and only then writes the next: so a sealed record of the same
//! life proves that every one before it was durable. These prove nothing: what a power cut leaves
//! of the last record, in whatever order its sectors were written; records of an earlier lap (their
//! numbers are lower); records of an earlier life (its incarnation differs; a life continues the
//! numbers of the one before it, from where that one's journal ended).
//!
//! One record is written together with its predecessor: the first one of the ring, with the skip
//! record at the ring's end. It may be there although a power cut took the skip record, so it
//! proves nothing about the number just before its own.
//!
//! These look like the end of the journal: damage of the last record, and damage of the one before
//! it if the last is at the start of the ring. Nothing is written after them.

use braid_format::journal::RawTxHeader;
use braid_format::{Bytes, Incarnation};
use braid_pool::device::AlignedBuf;

use super::copies::{self, next_record};
use super::records::{Scan, collect, in_ring};
use crate::error::Result;
use crate::journal::{Header, RecordHead, Ring, record_is_sealed};
use crate::volume::Volume;

/// Bytes of the ring read at once.
const PIECE: u64 = 1 << 20;
/// Bytes of records that may be verified, in rings: what a search may cost in a hostile one.
const VERIFIED_MAX: u64 = 4;

/// Number of a record, in the `left` bytes from the journal's end on, that was written after the
/// record missing there was durable.
pub(super) fn later_record(
    volume: &Volume,
    ring: &Ring,
    header: &Header,
    scan: &Scan,
    left: u64,
) -> Result<Option<u64>> {
    let most = ring.len / ring.sector;
    let mut later = None;
    visit(volume, ring, scan.offset, left, &mut |at, head| {
        let ahead = head.sequence.saturating_sub(scan.sequence);
        let proves = ahead > 1 || ahead == 1 && at != 0;
        let ours = head.incarnation == header.incarnation && proves && ahead <= most;
        if ours && is_whole(volume, ring, at, head)? {
            later = Some(head.sequence);
        }
        Ok((ours, later.is_some()))
    })?;
    Ok(later)
}

/// The header to go by. A clean header says that the next record has its number and will be at its
/// tail, or at the start of the ring, and that no such record was written yet. If such a record
/// exists, the later header is lost, which said where the journal begins and that it is in use.
/// Then its contents are known.
///
/// # Errors
/// The other header is damaged, and records were written after this one, but not where they would
/// have to begin.
pub(super) fn believed(volume: &Volume, ring: &Ring, header: Header) -> Result<Header> {
    if !header.clean {
        return Ok(header);
    }
    for offset in [header.tail_offset, 0] {
        for sector in copies::looks(volume, ring, offset, ring.sector) {
            let Some(head) = RecordHead::decode(ring, &sector, ring.len - offset) else { continue };
            let follows = head.sequence == header.tail_sequence;
            if !follows || head.incarnation < header.incarnation {
                continue;
            }
            let tail_offset = offset;
            let lost =
                Header { clean: false, tail_offset, incarnation: head.incarnation, ..header };
            let scan = Scan { offset, sequence: head.sequence, ..Scan::default() };
            // Otherwise it is what a power cut has left of a record.
            if next_record(volume, ring, &lost, &scan, ring.len)?.is_some()
                || later_record(volume, ring, &lost, &scan, ring.len)?.is_some()
            {
                let (node, record) = (ring.node, head.sequence);
                tracing::warn!(of_node = %node, record, "a journal's newest header is lost; records follow");
                return Ok(lost);
            }
        }
    }
    if header.alone {
        let newer = |head: &RecordHead| {
            head.sequence >= header.tail_sequence && head.incarnation >= header.incarnation
        };
        if let Some((at, head)) = whole_records(volume, ring, &newer)?.first() {
            let what = format!(
                "one header is damaged and the other says clean, but record {} was written after it",
                head.sequence
            );
            return Err(in_ring(volume, ring, *at, &what));
        }
    }
    Ok(header)
}

/// That no whole record of a life that `wanted` holds for is in the ring.
///
/// # Errors
/// When a device fails, or one is there: the header that led to it is lost.
pub(super) fn holds_none(
    volume: &Volume,
    ring: &Ring,
    wanted: &dyn Fn(Incarnation) -> bool,
) -> Result<()> {
    match whole_records(volume, ring, &|head| wanted(head.incarnation))?.first() {
        None => Ok(()),
        Some((at, head)) => {
            let what =
                format!("the headers know nothing of the life that wrote record {}", head.sequence);
            Err(in_ring(volume, ring, *at, &what))
        }
    }
}

/// All whole records, and where they are.
fn whole_records(
    volume: &Volume,
    ring: &Ring,
    wanted: &dyn Fn(&RecordHead) -> bool,
) -> Result<Vec<(u64, RecordHead)>> {
    let mut found = Vec::new();
    visit(volume, ring, 0, ring.len, &mut |at, head| {
        let read = head.sequence < Header::SEQUENCE_MAX / 2 && wanted(&head);
        if read && is_whole(volume, ring, at, head)? {
            found.push((at, head));
        }
        Ok((read, false))
    })?;
    Ok(found)
}

/// A header that leads to the newest whole records that follow one another without a gap, of lives that
/// `wanted` holds for: all that were not yet in place are among them, if none is damaged.
pub(super) fn newest_chain(
    volume: &Volume,
    ring: &Ring,
    wanted: &dyn Fn(Incarnation) -> bool,
) -> Result<Option<Header>> {
    let mut all = whole_records(volume, ring, &|head| wanted(head.incarnation))?;
    all.sort_by_key(|(_, head)| head.sequence);
    let Some((mut at, mut first)) = all.pop() else { return Ok(None) };
    while let Some((before, head)) = all.pop() {
        let end = before + head.len;
        let adjoins = head.sequence + 1 == first.sequence && end % ring.len == at;
        // A skip record lies between, which is no longer than a sector.
        let skips = head.sequence + 2 == first.sequence && at == 0 && end < ring.len;
        if head.incarnation != first.incarnation || !(adjoins || skips) {
            break;
        }
        (at, first) = (before, head);
    }
    let anew = Header::anew(first.sequence);
    let incarnation = first.incarnation;
    Ok(Some(Header { clean: false, tail_offset: at, incarnation, ..anew }))
}

/// The highest number of any whole record in the ring; 0 without one.
pub(super) fn highest(volume: &Volume, ring: &Ring) -> Result<u64> {
    let mut highest = 0;
    visit(volume, ring, 0, ring.len, &mut |at, head| {
        let higher = head.sequence > highest && head.sequence < Header::SEQUENCE_MAX / 2;
        if higher && is_whole(volume, ring, at, head)? {
            highest = head.sequence;
        }
        Ok((higher, false))
    })?;
    Ok(highest)
}

/// Calls `f` with the heads of what may be records in the `left` bytes from `from` on. It says whether
/// it has read the record, and whether it has seen enough.
fn visit(
    volume: &Volume,
    ring: &Ring,
    from: u64,
    mut left: u64,
    f: &mut dyn FnMut(u64, RecordHead) -> Result<(bool, bool)>,
) -> Result<()> {
    let mut piece = AlignedBuf::zeroed(Bytes(PIECE.min(ring.len)).to_usize());
    let mut budget = ring.len.saturating_mul(VERIFIED_MAX);
    let mut start = from;
    while left > 0 {
        let len = left.min(ring.len - start).min(piece.len() as u64);
        let Some(bytes) = piece.get_mut(..Bytes(len).to_usize()) else { return Ok(()) };
        volume.pool.read(ring.at + Bytes(start), bytes)?;
        let sectors = bytes.chunks_exact(Bytes(ring.sector).to_usize());
        for (n, sector) in (0_u64..).zip(sectors) {
            if !sector.starts_with(&RawTxHeader::MAGIC.to_le_bytes()) {
                continue;
            }
            let at = start + n * ring.sector;
            // A skip record is one sector: contents of a file may look like it.
            let head = RecordHead::decode(ring, sector, ring.len - at);
            let Some(head) = head.filter(|head| head.count > 0 && head.len <= budget) else {
                continue;
            };
            let (read, enough) = f(at, head)?;
            budget -= if read { head.len } else { 0 };
            if enough {
                return Ok(());
            }
        }
        left -= len;
        start = (start + len) % ring.len;
    }
    Ok(())
}

/// Whether the whole record is there, and every image in it sound.
fn is_whole(volume: &Volume, ring: &Ring, at: u64, head: RecordHead) -> Result<bool> {
    let mut record = AlignedBuf::zeroed(Bytes(head.len).to_usize());
    volume.pool.read(ring.at + Bytes(at), &mut record)?;
    Ok(record_is_sealed(&record) && collect(volume, ring, &record, head, at).is_ok())
}
