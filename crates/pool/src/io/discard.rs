//! Giving the space of unused bytes back to the devices.
//!
//! A member without copies is told to discard, and may hold anything there afterwards. Copies must
//! not differ, and parity must stay right: so on a group the bytes become zeros on all members at
//! once ([`Device::deallocate`]), under the same protection as a write. The regions are held and
//! noted first, so a crash in the middle is repaired; a member that fails is failed for all nodes.
//! With parity, only whole rows are given back, because the parity of zeros is zeros. Partial rows
//! at the ends stay as they are.
//!
//! If one member of a group cannot do that, the group is left alone. If that shows only in the
//! attempt, the zeros are written to that member, and it is not asked again.

use std::cell::Cell;

use braid_device::{AlignedBuf, Device, DeviceError};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::background_io::is_foreground;
use crate::cluster::{Locks, add_locks, hold_of};
use crate::devices::is_refusal;
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::layout::stretch::Span;
use crate::pool::Pool;
use crate::redundancy::EpochInUse;
use crate::topology::{EpochTag, Lost, Topology};

/// Bytes of a group that are held at a time, about. Writes to them wait.
const PIECE: u64 = 64 << 20;
/// Zeros are written in pieces of this.
const ZEROS: u64 = 1 << 20;

impl Pool {
    /// Gives the space of a range back, whose contents nobody wants: each sector then is as it was, or
    /// zeros, or (on bare members) anything. How many of the bytes went back, as far as the devices
    /// say. Complete, not durable: before a flush a power cut may leave any of them as they were, and in
    /// rows of parity that lack a column anything, as of a whole row that is written.
    ///
    /// # Errors
    /// As [`Pool::write`]; but that a bare member refuses it is none.
    pub fn discard(&self, at: ByteOffset, len: Bytes) -> Result<Bytes, PoolError> {
        let given = Cell::new(0);
        let bare = |device: &dyn Device, at, len: Bytes| {
            match device.info().caps.discard.then(|| device.discard(at, len)) {
                Some(Ok(())) => given.set(given.get() + len.0),
                // A device may refuse advice, and be sound.
                Some(Err(error)) if is_refusal(&error) => {
                    tracing::warn!(%error, "gives no space back");
                }
                Some(Err(error)) => return Err(error),
                None => {}
            }
            Ok(())
        };
        let grouped = |at, len| {
            given.set(given.get() + self.discard_on_groups(at, len)?);
            Ok(())
        };
        self.each_run(at, len, bare, grouped)?;
        Ok(Bytes(given.get()))
    }

    /// The same for a range that stands on groups. What is left when the epoch changes is left.
    fn discard_on_groups(&self, at: ByteOffset, len: Bytes) -> Result<u64, PoolError> {
        let (tag, runs) = {
            let topology = self.0.epochs.read();
            (topology.tag(), runs(&topology, at, len))
        };
        let mut given = 0;
        for ((index, from, to), piece) in runs {
            let mut from = from;
            while from < to {
                let end = to.min(from + piece);
                match self.zero(tag, (at, len), (index, from, end))? {
                    Some(bytes) => given += bytes,
                    None => return Ok(given),
                }
                from = end;
            }
        }
        Ok(given)
    }

    /// Zeroes a run of a group, which is a part of the pool's bytes `of`; `None`: `tag`'s epoch is not
    /// in use any more, or the wait for another node was broken off.
    fn zero(
        &self,
        tag: EpochTag,
        of: (ByteOffset, Bytes),
        (index, from, to): Span,
    ) -> Result<Option<u64>, PoolError> {
        let _pass = self.1.pass()?;
        let held = self.0.hold_regions(|topology, count| {
            let mut locks = Locks::new();
            if let Some(group) = topology.map.groups().get(usize::from(index)) {
                add_locks(&mut locks, (index, group), (from, to), hold_of(group), count);
            }
            locks
        });
        let _regions = match held {
            // Nobody needs it, and nothing was begun.
            Err(PoolError::BrokenOff) => return Ok(None),
            held => held?,
        };
        let topology = self.0.enter()?;
        if topology.tag() != tag {
            return Ok(None);
        }
        if topology.provisional {
            return Err(PoolError::Provisional { name: topology.label.name.clone() });
        }
        let group = topology.map.group(index);
        if !self.all_give_back(&topology, group) {
            return Ok(Some(0));
        }
        if is_foreground() {
            self.0.io.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let held = topology.lock(index, vec![(from, to)]);
        let mut lost = Lost::new();
        prepare(&topology, of, (index, from, to), &mut lost)?;
        let mut all = true;
        for (member, at, len) in columns(group, from, to) {
            if !topology.writable(member) {
                continue;
            }
            match zero_member(&**topology.device(member), at, len) {
                Ok(true) => {}
                Ok(false) => {
                    all = false;
                    self.0.io.cannot_deallocate.lock().extend(topology.uuid(member));
                }
                Err(error) => lost.push((member, error)),
            }
        }
        drop(held);
        let lost = topology.named(&lost);
        drop(topology);
        if !lost.is_empty() {
            self.0.fail_members(&lost)?;
        }
        self.0.check_migration()?;
        Ok(Some(if all { to - from } else { 0 }))
    }

    /// Whether every member that must get what is written to the group can give space back, as far as
    /// is known.
    fn all_give_back(&self, topology: &Topology, group: &Group) -> bool {
        let unable = self.0.io.cannot_deallocate.lock();
        group.members().filter(|m| topology.writable(*m)).all(|m| {
            let tried = topology.uuid(m).is_some_and(|uuid| unable.contains(&uuid));
            topology.device(m).info().caps.deallocate && !tried
        })
    }
}

/// The runs of groups that all of which may become zeros, and how much of each at a time.
fn runs(topology: &Topology, at: ByteOffset, len: Bytes) -> Vec<(Span, u64)> {
    let mut runs: Vec<Span> = Vec::new();
    for p in topology.map.pieces(at, len) {
        let Place::Group(index) = p.place else { continue };
        let (from, to) = (p.at.0, p.at.0 + p.len.0);
        // The runs of one group are seen in order, though not one after the other.
        match runs.iter_mut().rev().find(|r| r.0 == index) {
            Some(last) if last.2 == from => last.2 = to,
            _ => runs.push((index, from, to)),
        }
    }
    let whole = |(index, from, to): Span| {
        let row = topology.map.group(index).row_len().unwrap_or(1);
        let (from, to) = (from.next_multiple_of(row), to / row * row);
        (from < to).then_some(((index, from, to), PIECE.div_ceil(row) * row))
    };
    runs.into_iter().filter_map(whole).collect()
}

/// What comes before a run is zeroed, which the caller holds: the regions are noted, and nothing in
/// the log is going to be repeated over it.
fn prepare(
    topology: &EpochInUse,
    (at, len): (ByteOffset, Bytes),
    (index, from, to): Span,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    topology.note(&[(at.0, at.0 + len.0)], lost)?;
    let Some(log) = &topology.log else { return Ok(()) };
    if let Some(row) = topology.map.group(index).row_len()
        && log.redo.holds((from / row..to / row).map(|r| (index, r)))
    {
        log.redo.checkpoint(topology, log.slot, lost)?;
    }
    Ok(())
}

/// Where a run of a group stands, whole rows if there is parity: all columns' parts.
fn columns(
    group: &Group,
    from: u64,
    to: u64,
) -> impl Iterator<Item = (MemberIndex, ByteOffset, Bytes)> + '_ {
    let (start, len) = match (group.shape, group.row_len()) {
        (Shape::Parity { unit, .. }, Some(row)) => (from / row * unit, (to - from) / row * unit),
        _ => (from, to - from),
    };
    (0..group.columns.len()).map(move |column| {
        let (member, at) = group.at(column, start);
        (member, at, Bytes(len))
    })
}

/// Zeroes a run of a member; whether its space went back. What cannot be given back, or not just
/// now, is written: the others may be zeros already. If the discard may still land, the member is
/// failed.
fn zero_member(device: &dyn Device, at: ByteOffset, len: Bytes) -> Result<bool, DeviceError> {
    match device.deallocate(at, len) {
        Ok(true) => return Ok(true),
        Ok(false) => {}
        Err(error) if is_refusal(&error) || matches!(error, DeviceError::Injected { .. }) => {
            tracing::warn!(%error, "gives no space back; zeros are written");
        }
        Err(error) => return Err(error),
    }
    let zeros = AlignedBuf::zeroed(Bytes(len.0.min(ZEROS)).to_usize());
    let mut done = 0;
    while done < len.0 {
        let now = Bytes((len.0 - done).min(ZEROS));
        device.write(at + Bytes(done), zeros.get(..now.to_usize()).unwrap_or_default())?;
        done += now.0;
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
