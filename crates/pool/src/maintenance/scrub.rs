//! Scrub and repair. A scrub reads all copies and parity while the pool is in use, and repairs those that have rotted.
//! [`Pool::read_otherwise`] and [`Pool::heal`] read and repair a single place whose checksum is wrong.
//! [`crate::redundancy::compare`] says when a scrub knows which copy is right.

use braid_device::AlignedBuf;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::error::{ChangeError, PoolError};
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::layout::stretch::stretches;
use crate::pace::Progress;
use crate::pool::Pool;
use crate::redundancy::compare::{CHUNK, Concurrent, LOOK_PAUSE, Scrubbed, after, check};
use crate::redundancy::decode::{Sources, decode_run};
use crate::redundancy::verifier::ChecksumVerifier;
use crate::simulation::Pause;
use crate::topology::{Lost, Topology};

/// The call that read bytes first. [`Pool::read_otherwise`] needs it, because each of these calls reads another copy of
/// a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPath {
    /// [`Pool::read`].
    Read,
    /// [`Pool::read_lock`].
    ReadLock,
}

impl Pool {
    /// Compares all copies and all parity of the pool while it is in use, and repairs a difference if it knows which
    /// side is right. Repairs are durable on return. `pace` is called after each chunk; it may sleep, and stops the
    /// scrub by returning `false`. A [`BreakOff`](crate::BreakOff) that this thread is under stops it too, also while
    /// another node keeps it waiting.
    ///
    /// A scrub that ends, finds no difference and lacks no member clears the suspicion (that a member returns garbage)
    /// of all members that were suspected when it began. Members that are about to be failed stay suspected, if the pool
    /// can do without them.
    ///
    /// # Errors
    /// [`PoolError::Device`]: a member failed that the pool cannot do without.
    pub fn scrub(
        &self,
        verifier: &dyn ChecksumVerifier,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
    ) -> Result<Scrubbed, PoolError> {
        let total = self.0.epochs.read().map.size();
        match self.mark_suspects() {
            Err(PoolError::BrokenOff) => return Ok(Scrubbed::default()),
            marked => drop(marked?),
        }
        let suspects = self.suspects_to_clear();
        let mut found = Scrubbed::default();
        match self.scrub_bytes((0, total.0), verifier, pace, &mut found) {
            Err(PoolError::BrokenOff) => {}
            done => found.finished = done?,
        }
        if found.healed > Bytes(0) {
            self.flush()?;
        }
        if found.is_clean() && self.0.epochs.read().lost().next().is_none() {
            let trusted = match self.trust(&suspects) {
                // One has just failed: the others stay suspected.
                Err(PoolError::Change(ChangeError::ClearWhileOut { .. })) => Vec::new(),
                done => done?,
            };
            for member in trusted {
                tracing::info!(%member, "a scrub found no damage: the member is no longer suspected to return garbage");
            }
        }
        Ok(found)
    }

    /// Scrubs a range of the pool's bytes, extended to whole parity rows. Callers do this before they move the range to
    /// other members, because its old copies and parity are not used afterwards. Repairs are complete on return, but not
    /// durable.
    ///
    /// # Errors
    /// As [`Pool::scrub`].
    pub fn scrub_range(
        &self,
        at: ByteOffset,
        len: Bytes,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<Scrubbed, PoolError> {
        let range = {
            let topology = self.0.epochs.read();
            self.0.check(&topology, at, len)?;
            let (mut from, mut to) = (at.0, at.0 + len.0);
            for p in topology.map.pieces(at, len) {
                let Place::Group(index) = p.place else { continue };
                let Some(row) = topology.map.group(index).row_len() else { continue };
                // A parity row is contiguous in the pool's bytes.
                from = from.min(at.0.saturating_sub(p.at.0 % row));
                to = to.max(at.0 + len.0 + (row - (p.at.0 + p.len.0) % row) % row);
            }
            (from, to.min(topology.map.size().0))
        };
        let mut found = Scrubbed::default();
        found.finished = self.scrub_bytes(range, verifier, &mut |_, _| true, &mut found)?;
        Ok(found)
    }

    /// Whether it came to the end.
    fn scrub_bytes(
        &self,
        (from, total): (u64, u64),
        verifier: &dyn ChecksumVerifier,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
        report: &mut Scrubbed,
    ) -> Result<bool, PoolError> {
        let step = {
            let topology = self.0.epochs.read();
            let rows = topology.map.groups().iter().filter_map(Group::row_len);
            rows.max().unwrap_or(CHUNK).max(CHUNK)
        };
        let mut at = from;
        while at < total {
            let to = (at + step).min(total);
            let mut lost = Lost::new();
            {
                let _pass = self.1.pass()?;
                let _held = self.0.hold_bytes(ByteOffset(at), Bytes(to - at))?;
                let topology = self.0.enter()?;
                let rest = || self.0.pause(LOOK_PAUSE, Pause::Inside);
                for stretch in stretches(&topology.map, at, to) {
                    let concurrent: Concurrent<'_> = self.is_shared().then_some(&rest as &dyn Fn());
                    check(&topology, stretch, (verifier, concurrent), report, &mut lost)?;
                }
                let lost = topology.named(&lost);
                drop(topology);
                if !lost.is_empty() {
                    self.0.fail_members(&lost)?;
                }
            }
            for (member, place) in report.blamed.drain(..) {
                self.accuse(member, place);
            }
            if std::mem::take(&mut report.put_off) {
                // The labels name a suspected member before the repair, which removes the evidence against it. Then
                // this chunk is scrubbed once more.
                self.mark_suspects()?;
                continue;
            }
            at = to;
            report.checked = Bytes(at - from);
            if !pace(Progress { done: report.checked, total: Bytes(total - from) }, report) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The places on devices of one byte of the pool. For a mirror: the place on each copy. For parity: the place of the
    /// byte, and the places in the same row of the other columns (data and parity). Empty for a hole.
    pub fn placements(&self, at: ByteOffset) -> Vec<(MemberIndex, ByteOffset)> {
        let topology = self.0.epochs.read();
        let map = &topology.map;
        let piece =
            map.pieces(at, Bytes(1)).next().filter(|_| !map.solid(at.0, at.0 + 1).is_empty());
        let Some(piece) = piece else { return Vec::new() };
        let index = match piece.place {
            Place::Member(member) => return vec![(member, piece.at)],
            Place::Group(index) => index,
        };
        let group = map.group(index);
        let offset = match group.shape {
            Shape::Mirror => piece.at.0,
            Shape::Parity { unit, .. } => {
                group.units(piece.at.0, 1).next().map_or(0, |u| u.row * unit + u.within)
            }
        };
        (0..group.columns.len()).map(|column| group.at(column, offset)).collect()
    }

    /// Reads bytes of the pool whose checksum is wrong from a source other than the one that `path` reads: from the
    /// `nth` other copy of a mirror (from 0), or by parity from the other columns (`nth` 0 only). `false`: there is no
    /// such source, and `buf` is unchanged.
    ///
    /// # Errors
    /// [`PoolError::Device`]: this source cannot be read. The next one perhaps can.
    pub fn read_otherwise(
        &self,
        path: ReadPath,
        at: ByteOffset,
        buf: &mut [u8],
        nth: usize,
    ) -> Result<bool, PoolError> {
        let topology = self.0.epochs.read();
        let len = Bytes::from(buf.len());
        self.0.check(&topology, at, len)?;
        let Some((index, offset)) = on_group(&topology, at, buf.len()) else { return Ok(false) };
        let mirror = topology.map.group(index).shape == Shape::Mirror;
        drop(topology);
        // Decoding needs data and parity of the same moment: no node may change the row meanwhile.
        let _region = if mirror { None } else { self.0.hold_bytes(at, len)? };
        let topology = self.0.epochs.read();
        let Some((index, offset)) =
            on_group(&topology, at, buf.len()).filter(|on| *on == (index, offset))
        else {
            return Ok(false);
        };
        let group = topology.map.group(index);
        let _held = topology.lock(index, vec![group.affected(offset, buf.len() as u64)]);
        match group.shape {
            Shape::Mirror => {
                let taken = match path {
                    ReadPath::Read => {
                        let live = topology.columns_to_read(group);
                        live.get(Group::read_copy_at(offset, live.len())).copied()
                    }
                    ReadPath::ReadLock => topology.copies(group).next(),
                };
                // `taken` is the copy that a read takes now. The bytes may come from another copy, if a member became
                // suspected after that read. So with suspected members `taken` is a source, too: the last one.
                let again = taken.filter(|_| topology.suspicion.any());
                let mut others = topology.copies(group).filter(|c| Some(*c) != taken).chain(again);
                let Some(column) = others.nth(nth) else { return Ok(false) };
                let (member, place) = group.at(column, offset);
                topology.device(member).read(place, buf)?;
                Ok(true)
            }
            // The column that holds these bytes is taken to be wrong: they are computed from the others.
            Shape::Parity { .. } if nth == 0 => {
                let columns = group.units(offset, buf.len() as u64);
                let bad = columns.map(|u| group.at(group.column_of(u.row, u.place), 0).0).next();
                decode_run(&topology, group, offset, buf, (bad, Sources::All))?;
                Ok(true)
            }
            Shape::Parity { .. } => Ok(false),
        }
    }

    /// Repairs `len` bytes at `at`, if a copy of them, or what parity computes, is `good`. The good bytes are written to
    /// each place that holds other bytes. Parity is not written: it was computed from the good bytes. Returns whether
    /// good bytes were found. Repairs are complete on return, but not durable. The labels name all suspected members
    /// before the repair. The locks of the region are held meanwhile, as a write holds them.
    ///
    /// # Errors
    /// [`PoolError::Device`]: a member failed that the pool cannot do without.
    pub fn heal(
        &self,
        at: ByteOffset,
        len: Bytes,
        good: &dyn Fn(&[u8]) -> bool,
    ) -> Result<bool, PoolError> {
        self.mark_suspects()?;
        let _pass = self.1.pass()?;
        let _held = self.0.hold_bytes(at, len)?;
        let topology = self.0.enter()?;
        self.0.check(&topology, at, len)?;
        let Some((index, offset)) = on_group(&topology, at, len.to_usize()) else {
            return Ok(false);
        };
        let group = topology.map.group(index);
        let held = topology.lock(index, vec![group.affected(offset, len.0)]);
        let Some((bytes, bad)) = tell_apart(&topology, group, (offset, len), good)? else {
            return Ok(false);
        };
        let mut lost = Lost::new();
        for (column, from, piece) in pieces(group, offset, &bytes) {
            let (member, place) = group.at(column, from);
            if bad.contains(&column)
                && let Err(error) = topology.device(member).write(place, piece)
            {
                lost.push((member, error));
                continue;
            }
            let first = topology.copies(group).next();
            let mirror = group.shape == Shape::Mirror;
            if mirror && bad.contains(&column) && first.is_some_and(|f| !bad.contains(&f)) {
                after(&topology, group, column, (from, piece), &mut lost)?;
            }
        }
        drop(held);
        let lost = topology.named(&lost);
        drop(topology);
        if !lost.is_empty() {
            self.0.fail_members(&lost)?;
        }
        Ok(true)
    }
}

/// The good bytes of a range of a group, and the columns that do not hold them. `None`: no bytes are good.
fn tell_apart(
    topology: &Topology,
    group: &Group,
    (offset, len): (u64, Bytes),
    good: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<(AlignedBuf, Vec<usize>)>, PoolError> {
    let mut bytes = AlignedBuf::zeroed(len.to_usize());
    if let Shape::Parity { .. } = group.shape {
        let units = group.units(offset, len.0).map(|u| group.column_of(u.row, u.place));
        let columns: Vec<usize> = units.collect();
        let bad = columns.first().map(|c| group.at(*c, 0).0);
        decode_run(topology, group, offset, &mut bytes, (bad, Sources::All))?;
        return Ok(good(&bytes).then_some((bytes, columns)));
    }
    let (mut truth, mut bad) = (None, Vec::new());
    for column in topology.copies(group) {
        let (member, place) = group.at(column, offset);
        let read = topology.device(member).read(place, &mut bytes).is_ok();
        if !(read && good(&bytes)) {
            bad.push(column);
        } else if truth.is_none() {
            let mut found = AlignedBuf::zeroed(len.to_usize());
            found.copy_from_slice(&bytes);
            truth = Some(found);
        }
    }
    Ok(truth.map(|t| (t, bad)))
}

/// The group that holds a range of the pool's bytes, and the offset in the group. `None`: the range is not in one piece
/// on one group.
fn on_group(topology: &Topology, at: ByteOffset, len: usize) -> Option<(u16, u64)> {
    let piece = topology.map.pieces(at, Bytes::from(len)).next()?;
    match piece.place {
        Place::Group(index) if piece.len == Bytes::from(len) => Some((index, piece.at.0)),
        _ => None,
    }
}

/// The places of a group's data bytes: `(column, offset in the column, bytes)`. For a mirror: one for each copy.
fn pieces<'b>(group: &Group, offset: u64, bytes: &'b [u8]) -> Vec<(usize, u64, &'b [u8])> {
    let Shape::Parity { unit, .. } = group.shape else {
        return (0..group.columns.len()).map(|c| (c, offset, bytes)).collect();
    };
    let mut rest = bytes;
    group
        .units(offset, bytes.len() as u64)
        .map(|u| {
            let (now, later) = rest.split_at(Bytes(u.len).to_usize());
            rest = later;
            (group.column_of(u.row, u.place), u.row * unit + u.within, now)
        })
        .collect()
}

#[cfg(test)]
mod tests;
