//! Writes of bytes that other nodes may be writing at the same time.
//!
//! The writes of two nodes reach the copies of a mirror in whatever order the devices take. One
//! copy may end with the bytes of one node, another copy with those of the other. Region locks do
//! not keep these nodes apart: writers of different blocks would then have to take turns. Instead,
//! each node compares the copies when its own write is complete on all of them. The write that ends
//! last sees what the others have left, so at least one node sees a difference that stays. That
//! node takes the region exclusively, which waits for all writes there, and writes what the first
//! copy holds to every other copy.
//!
//! What the first copy holds then is newer than every write that had ended before these writes
//! began: each of them reached every copy after it.
//!
//! The copy of a member that is being filled or moved cannot be compared. On a mirror, writers then
//! do take turns; on a member without copies, the writer copies its range to the successor again.

use std::cell::Cell;

use braid_device::{AlignedBuf, Op, Request};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::request::PoolRequest;
use crate::cluster::{Locks, RegionHold, add_locks, hold_of};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::layout::stretch::spans;
use crate::pool::PoolState;
use crate::redundancy::copy_damage::CopyDamage;
use crate::redundancy::resync::resync;
use crate::redundancy::verifier::NoChecksums;
use crate::topology::{EpochTag, Lost, Topology};

/// Bytes of each copy compared at a time.
const COMPARED: u64 = 1 << 20;

/// As [`hold_of`], where other nodes may write the same bytes.
pub(crate) fn hold_concurrent(topology: &Topology, group: &Group) -> RegionHold {
    let moved = topology.migration.as_ref().map(|pair| pair.leaving);
    let moved = moved.is_some_and(|leaving| group.members().any(|m| m == leaving));
    if moved || topology.is_filled(group) { RegionHold::Write } else { hold_of(group) }
}

/// After the writes of `requests`: brings the successor of a member without copies after it, and
/// compares the copies of mirrors. Whether these are the same.
///
/// # Errors
/// A device without redundancy cannot be read.
pub(crate) fn settle_concurrent(
    topology: &Topology,
    requests: &[PoolRequest<'_>],
) -> Result<bool, PoolError> {
    let mut same = true;
    for r in requests {
        let Op::Write(data) = &r.op else { continue };
        let (mut at, end) = (r.at.0, r.at.0 + data.len() as u64);
        while at < end {
            let len = COMPARED.min(end - at);
            follow(topology, ByteOffset(at), Bytes(len))?;
            same &= is_same(topology, ByteOffset(at), Bytes(len));
            at += len;
        }
    }
    Ok(same)
}

/// The part that is on a member without copies, if that member is being moved.
fn follow(topology: &Topology, at: ByteOffset, len: Bytes) -> Result<(), PoolError> {
    let Some(pair) = &topology.migration else { return Ok(()) };
    for p in topology.map.pieces(at, len) {
        if matches!(p.place, Place::Member(member) if member == pair.leaving) {
            pair.migration.copy(p.at, p.len, true)?;
        }
    }
    Ok(())
}

/// A run of bytes as one copy of a mirror has it.
struct Copy {
    piece: usize,
    member: MemberIndex,
    at: ByteOffset,
    bytes: AlignedBuf,
}

/// Whether all copies in use of the mirrors' bytes could be read, and are the same.
fn is_same(topology: &Topology, at: ByteOffset, len: Bytes) -> bool {
    let mut copies: Vec<Copy> = Vec::new();
    for (piece, p) in topology.map.pieces(at, len).enumerate() {
        let Place::Group(index) = p.place else { continue };
        let group = topology.map.group(index);
        if group.shape != Shape::Mirror || hold_concurrent(topology, group) != RegionHold::Shared {
            continue;
        }
        copies.extend(topology.copies(group).map(|column| {
            let (member, at) = group.at(column, p.at.0);
            Copy { piece, member, at, bytes: AlignedBuf::zeroed(p.len.to_usize()) }
        }));
    }
    let mut reads: Vec<Request<'_>> = copies
        .iter_mut()
        .map(|c| Request::new(&**topology.device(c.member), c.at, Op::Read(&mut c.bytes)))
        .collect();
    braid_device::run(&mut reads);
    let whole = reads.iter().all(|r| r.result.is_ok());
    drop(reads);
    let same = |pair: &[Copy]| match pair {
        [a, b] => a.piece != b.piece || a.bytes[..] == b.bytes[..],
        _ => true,
    };
    whole && copies.windows(2).all(same)
}

impl PoolState {
    /// Gives all copies of what `requests` have written the same bytes.
    ///
    /// # Errors
    /// This node has withdrawn, or a member cannot be spared.
    pub(crate) fn make_copies_equal(&self, requests: &[PoolRequest<'_>]) -> Result<(), PoolError> {
        for r in requests {
            if let Op::Write(data) = &r.op {
                self.make_range_equal(r.at.0, r.at.0 + data.len() as u64)?;
            }
        }
        Ok(())
    }

    fn make_range_equal(&self, from: u64, to: u64) -> Result<(), PoolError> {
        loop {
            let tag = Cell::new(EpochTag::default());
            let _held = self.hold_regions(|topology, count| {
                tag.set(topology.tag());
                let mut locks = Locks::new();
                for (index, from, to) in spans(&topology.map, from, to) {
                    let group = topology.map.group(index);
                    add_locks(&mut locks, (index, group), (from, to), RegionHold::Alone, count);
                }
                locks
            })?;
            let topology = self.enter()?;
            if topology.tag() != tag.get() {
                continue;
            }
            let mut lost = Lost::new();
            topology.note(&[(from, to)], &mut lost)?;
            resync(&topology, (from, to), (&NoChecksums, &CopyDamage::default()), &mut lost)?;
            let lost = topology.named(&lost);
            drop(topology);
            if lost.is_empty() {
                return Ok(());
            }
            self.fail_members(&lost)?;
        }
    }
}
