//! Scrubbing: reading everything while the pool is in use, to find and heal what has rotted; and
//! healing single places whose checksum is wrong. What can be decided is said in
//! [`crate::redundancy::compare`].

use braid_device::AlignedBuf;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::error::PoolError;
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

/// How bytes were read that are wanted some other way: each takes another copy of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPath {
    /// By [`Pool::read`].
    Read,
    /// By [`Pool::read_lock`].
    ReadLock,
}

impl Pool {
    /// Compares every copy and every parity of the pool while it is in use, and heals what can be
    /// decided; durably, on return. `pace` is called after every chunk: it may sleep, and ends the work by
    /// returning `false`. If everything was there and nothing was wrong, no member that was suspected to
    /// return garbage when this began is any more, but one that is to be failed and can be.
    ///
    /// # Errors
    /// [`PoolError::Device`] of a member that cannot be spared.
    pub fn scrub(
        &self,
        verifier: &dyn ChecksumVerifier,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
    ) -> Result<Scrubbed, PoolError> {
        let total = self.0.epochs.read().map.size();
        self.mark_suspects()?;
        let suspects = self.suspects_to_clear();
        let found = self.scrub_bytes((0, total.0), verifier, pace)?;
        if found.healed > Bytes(0) {
            self.flush()?;
        }
        if found.is_clean() && self.0.epochs.read().lost().next().is_none() {
            for member in self.trust(&suspects)? {
                tracing::info!(%member, "a scrub found nothing wrong: the member is no longer suspected");
            }
        }
        Ok(found)
    }

    /// Scrubs a range of the pool's bytes, with all bytes that they are compared with (whole parity rows).
    /// Called before the range is moved away, because its copies or parity are given up then. Healing is
    /// complete, not durable.
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
                // Rows of parity are in one piece in the pool.
                from = from.min(at.0.saturating_sub(p.at.0 % row));
                to = to.max(at.0 + len.0 + (row - (p.at.0 + p.len.0) % row) % row);
            }
            (from, to.min(topology.map.size().0))
        };
        self.scrub_bytes(range, verifier, &mut |_, _| true)
    }

    fn scrub_bytes(
        &self,
        (from, total): (u64, u64),
        verifier: &dyn ChecksumVerifier,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
    ) -> Result<Scrubbed, PoolError> {
        let mut report = Scrubbed::default();
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
                    check(&topology, stretch, (verifier, concurrent), &mut report, &mut lost)?;
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
                // Before what shows it is healed.
                self.mark_suspects()?;
                continue;
            }
            at = to;
            report.checked = Bytes(at - from);
            if !pace(Progress { done: report.checked, total: Bytes(total - from) }, &report) {
                return Ok(report);
            }
        }
        report.finished = true;
        Ok(report)
    }

    /// Where a byte of the pool is on devices: on each copy of a mirror. With parity: where the
    /// byte and what is computed from it are, on each column. Nowhere, in a hole.
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

    /// Reads the pool's bytes at `at` some other way than they were read: the `nth` other way
    /// there is, counted from 0. `false`: there are no more. Meant for bytes whose checksum is
    /// wrong.
    ///
    /// # Errors
    /// [`PoolError::Device`]: this way does not work either.
    pub fn read_otherwise(
        &self,
        instead: ReadPath,
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
        // Parity is right only while nobody changes the row.
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
                let taken = match instead {
                    ReadPath::Read => {
                        let live = topology.columns_to_read(group);
                        live.get(Group::read_copy_at(offset, live.len())).copied()
                    }
                    ReadPath::ReadLock => topology.copies(group).next(),
                };
                // A member that is suspected now was perhaps read before it was.
                let again = taken.filter(|_| topology.suspicion.any());
                let mut others = topology.copies(group).filter(|c| Some(*c) != taken).chain(again);
                let Some(column) = others.nth(nth) else { return Ok(false) };
                let (member, place) = group.at(column, offset);
                topology.device(member).read(place, buf)?;
                Ok(true)
            }
            // What the columns of these bytes hold is not believed.
            Shape::Parity { .. } if nth == 0 => {
                let columns = group.units(offset, buf.len() as u64);
                let bad = columns.map(|u| group.at(group.column_of(u.row, u.place), 0).0).next();
                decode_run(&topology, group, offset, buf, (bad, Sources::All))?;
                Ok(true)
            }
            Shape::Parity { .. } => Ok(false),
        }
    }

    /// Repairs `len` bytes at `at` if some way to read them gives bytes that are `good`: every
    /// place that holds something else gets those. Parity is left as it is: it was computed from
    /// these bytes. Nobody writes there meanwhile. Whether there was something good. Before that the labels
    /// say which members are suspected.
    ///
    /// # Errors
    /// [`PoolError::Device`] of a member that cannot be spared.
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

/// What is good of a group's bytes, and the columns that hold something else.
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

/// The group and its offset, if a range of the pool stands on one group in one piece.
fn on_group(topology: &Topology, at: ByteOffset, len: usize) -> Option<(u16, u64)> {
    let piece = topology.map.pieces(at, Bytes::from(len)).next()?;
    match piece.place {
        Place::Group(index) if piece.len == Bytes::from(len) => Some((index, piece.at.0)),
        _ => None,
    }
}

/// Where data bytes of a group stand: `(column, offset in it, bytes)`; on each copy of a mirror.
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
