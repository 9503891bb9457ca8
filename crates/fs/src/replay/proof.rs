//! Whether a record that cannot be read is the end of its journal, or damage.
//!
//! A node writes a record, flushes, and only then writes the next: so a sealed record of the same
//! life proves that every one before it was durable. What a power cut leaves of the last record,
//! in whatever order its sectors were written, proves nothing, nor do records of an earlier lap
//! (their numbers are lower) or an earlier life (a life goes on with the numbers of the one before
//! it from where that one's journal ended; its incarnation differs).
//!
//! One record is written together with its predecessor: the first one of the ring, with the skip
//! record at the ring's end. It may stand where a power cut took the skip, and proves nothing about
//! the number just before its own.
//!
//! What cannot be told from the end of the journal: damage of the last record, and of the one before
//! it when the last stands at the start of the ring. Nothing is written after them.

use braid_format::Bytes;
use braid_format::journal::RawTxHeader;
use braid_pool::device::AlignedBuf;

use super::{Scan, collect};
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
    left: u64,
    f: &mut dyn FnMut(u64, RecordHead) -> Result<(bool, bool)>,
) -> Result<()> {
    let mut piece = AlignedBuf::zeroed(Bytes(PIECE.min(ring.len)).to_usize());
    let mut budget = ring.len.saturating_mul(VERIFIED_MAX);
    let mut done = 0;
    while done < left {
        let start = (from + done) % ring.len;
        let len = (left - done).min(ring.len - start).min(piece.len() as u64);
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
        done += len;
    }
    Ok(())
}

/// Whether the whole record is there, and every image in it sound.
fn is_whole(volume: &Volume, ring: &Ring, at: u64, head: RecordHead) -> Result<bool> {
    let mut record = AlignedBuf::zeroed(Bytes(head.len).to_usize());
    volume.pool.read(ring.at + Bytes(at), &mut record)?;
    Ok(record_is_sealed(&record) && collect(volume, ring, &record, head, at).is_ok())
}
