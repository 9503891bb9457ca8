//! A journal is replayed as a whole; a repair salvages what can be read of a damaged one.

use braid_format::lock_record::Life;
use braid_format::{BlockNo, NodeId};

use super::copies::next_record;
use super::proof;
use super::put_back::{BATCH, put_back};
use super::records::{Found, Scan, collect, in_ring};
use super::writer::Writer;
use crate::error::{Error, Result};
use crate::journal::{Header, Ring};
use crate::volume::Volume;

/// What a replay did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Transactions found valid.
    pub transactions: u64,
    /// Bodies written in place.
    pub written: u64,
    /// Bodies skipped: newer in place.
    pub skipped: u64,
}

/// Replays `node`'s journal onto the devices, flushes, and marks the journal clean. For a clean
/// journal only its headers and what is at its tail are read, nothing is written, and the headers
/// are made stable. A header that says clean is believed only if no record was written after it:
/// the header after it may be lost.
///
/// # Errors
/// When a device fails, no header is readable, a sealed record names what cannot be, or a record
/// is damaged that was durable once. Nothing has been written then, or it may be done again.
pub(crate) fn replay(volume: &Volume, node: NodeId, writer: Writer) -> Result<Replayed> {
    let ring = Ring::of(volume, node)?;
    let header = proof::believed(volume, &ring, Header::read(volume, &ring)?)?;
    if header.clean {
        // The node that wrote the header may have died before its flush. The slot must not be
        // durably free while a power cut can still take the header away.
        volume.pool.flush()?;
        return Ok(Replayed::default());
    }
    if !writer.may_be(header.incarnation) {
        return finish_former(volume, &ring, header, writer);
    }
    let (scan, damage) = scan(volume, &ring, &header)?;
    damage.map_or(Ok(()), Err)?;
    let next = (scan.sequence, scan.offset);
    finish(volume, &ring, header, (scan, writer), next)
}

/// The header is of a life whose journal is in place: the one that said so is lost. Nothing is replayed.
///
/// # Errors
/// When a device fails, or the ring holds records of the writer: then a header of its own is lost, too.
fn finish_former(volume: &Volume, ring: &Ring, header: Header, writer: Writer) -> Result<Replayed> {
    proof::holds_none(volume, ring, &|of| writer.may_be(of))?;
    let (node, incarnation) = (ring.node, header.incarnation);
    tracing::warn!(of_node = %node, ?incarnation, "a journal's newest header is lost: it said that the journal of that life was empty");
    let next = header.tail_sequence.max(proof::highest(volume, ring)? + 1);
    let none = (Scan::default(), Writer::Nobody);
    finish(volume, ring, header, none, (next, header.tail_offset))
}

/// For a repair: replays what stands before the damage, drops the rest, and marks the journal clean.
/// Where no header leads to records that are there, the newest of these are replayed that follow one
/// another without a gap. Gives the damage, if any.
///
/// # Errors
/// When a device fails.
pub(crate) fn salvage(
    volume: &Volume,
    node: NodeId,
    writer: Writer,
) -> Result<(Replayed, Option<Error>)> {
    let ring = Ring::of(volume, node)?;
    let read = Header::read(volume, &ring).and_then(|h| proof::believed(volume, &ring, h));
    let header = match read {
        Ok(mut header) if header.clean => {
            if header.alone {
                header.write(volume, node)?;
            }
            volume.pool.flush()?;
            return Ok((Replayed::default(), None));
        }
        Ok(header) if !writer.may_be(header.incarnation) => {
            return match finish_former(volume, &ring, header, writer) {
                Err(e) if e.is_damage() => salvage_ring(volume, &ring, writer, &e),
                done => Ok((done?, None)),
            };
        }
        Ok(header) => header,
        Err(e) if e.is_damage() => return salvage_ring(volume, &ring, writer, &e),
        Err(e) => return Err(e),
    };
    let (scan, damage) = scan(volume, &ring, &header)?;
    let (next, damage) = match damage {
        None => (scan.sequence, None),
        // The ring was used again where this header says that it begins: a newer one is lost.
        Some(e) if scan.transactions == 0 && header.alone => {
            return salvage_ring(volume, &ring, writer, &e);
        }
        Some(e) => (beyond(&scan, proof::highest(volume, &ring)?), Some(e)),
    };
    let next = (next, scan.offset);
    Ok((finish(volume, &ring, header, (scan, writer), next)?, damage))
}

/// The number of the next record, so that what is dropped here never comes back. It is above all
/// whole records (`highest` is the last), and above a record in the place of the next one that has
/// a right checksum and makes no sense, and a skip record before that.
pub(super) fn beyond(scan: &Scan, highest: u64) -> u64 {
    (scan.sequence + 2).max(highest + 1)
}

/// [`salvage`] of a journal whose headers do not say where it begins, because of this error.
fn salvage_ring(
    volume: &Volume,
    ring: &Ring,
    writer: Writer,
    why: &Error,
) -> Result<(Replayed, Option<Error>)> {
    let highest = proof::highest(volume, ring)?;
    let found = proof::newest_chain(volume, ring, &|of| writer.may_be(of))?;
    let (header, (scan, unsound)) = match found {
        Some(header) => (header, scan(volume, ring, &header)?),
        None => (Header::anew(0), (Scan::default(), None)),
    };
    let records = scan.transactions;
    let next = match unsound {
        Some(_) => beyond(&scan, highest),
        None => scan.sequence.max(highest + 1),
    };
    let next = (next, scan.offset);
    let done = finish(volume, ring, header, (scan, writer), next)?;
    // The other copy too.
    let mut header = Header::read(volume, ring)?;
    header.write(volume, ring.node)?;
    volume.pool.flush()?;
    let what = format!(
        "{why}; the {records} newest records that follow one another were replayed: changes before these may be lost"
    );
    Ok((done, Some(in_ring(volume, ring, header.tail_offset, &what))))
}

/// Puts what was found in place, durably, and marks the journal clean; its next record is to have
/// the number and place `next`.
fn finish(
    volume: &Volume,
    ring: &Ring,
    mut header: Header,
    (scan, writer): (Scan, Writer),
    next: (u64, u64),
) -> Result<Replayed> {
    let mut done = Replayed { transactions: scan.transactions, ..Replayed::default() };
    let images: Vec<(BlockNo, Found)> = scan.images.into_iter().collect();
    if !images.is_empty() {
        // The last records may be unflushed writes of a process that died: write-ahead holds here
        // too, or a power cut now keeps some bodies of a transaction whose record it loses.
        volume.pool.flush()?;
    }
    let dead = Life { slot: ring.node, incarnation: header.incarnation };
    for batch in images.chunks(BATCH) {
        let written = put_back(volume, ring, (dead, writer), batch)?;
        done.written += written;
        done.skipped += batch.len() as u64 - written;
    }
    // What was found in place may itself be unflushed writes of a process that died.
    volume.pool.flush()?;
    (header.tail_sequence, header.tail_offset) = next;
    header.clean = true;
    header.write(volume, ring.node)?;
    volume.pool.flush()?;
    Ok(done)
}

/// Follows the records from the tail to the first that is not valid. Ends: every record is at
/// least a sector long and together they are no longer than the ring. Also says what shows that
/// the journal did not end there, but is damaged.
fn scan(volume: &Volume, ring: &Ring, header: &Header) -> Result<(Scan, Option<Error>)> {
    let mut scan =
        Scan { offset: header.tail_offset, sequence: header.tail_sequence, ..Scan::default() };
    let mut left = ring.len;
    loop {
        let Some((head, record)) = next_record(volume, ring, header, &scan, left)? else {
            if begins_anew(volume, ring, header, &scan)? {
                left = ring.len;
                scan.offset = 0;
                continue;
            }
            break;
        };
        if head.count > 0 {
            let images = match collect(volume, ring, &record, head, scan.offset) {
                Ok(images) => images,
                Err(e) => {
                    let damage = in_ring(volume, ring, scan.offset, &e.to_string());
                    return Ok((scan, Some(damage)));
                }
            };
            for (block, found) in images {
                let newest = scan.images.entry(block).or_insert(found);
                if newest.generation < found.generation {
                    *newest = found;
                }
            }
            scan.transactions += 1;
        }
        left -= head.len;
        scan.offset = (scan.offset + head.len) % ring.len;
        scan.sequence += 1;
    }
    let later = proof::later_record(volume, ring, header, &scan, left)?;
    let damage = later.map(|sequence| {
        let what = format!(
            "record {} cannot be read, although record {sequence} was written after it was durable",
            scan.sequence
        );
        in_ring(volume, ring, scan.offset, &what)
    });
    Ok((scan, damage))
}

/// Whether the journal goes on at the start of the ring although no skip record leads there. Then it was empty there
/// and was rewound, and the header that said so is lost: a life uses a number once. All of the ring was free, and the
/// record may take more of it than stands before the tail: it is why the journal was rewound.
fn begins_anew(volume: &Volume, ring: &Ring, header: &Header, scan: &Scan) -> Result<bool> {
    let first = Scan { sequence: scan.sequence, ..Scan::default() };
    Ok(next_record(volume, ring, header, &first, ring.len)?.is_some())
}
