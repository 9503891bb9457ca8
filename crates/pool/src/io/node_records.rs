//! Reading and writing records that stand on members without copies, or on mirrors: heartbeats,
//! node slots, lock records, journal headers. A heartbeat waits for no epoch, no region and no
//! lease.

use std::sync::atomic::Ordering;

use braid_device::{Device, DeviceError};
use braid_format::{ByteOffset, Bytes};
use smallvec::SmallVec;

use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::pool::Pool;
use crate::topology::Topology;

/// Copies of a byte, at most.
fn mirrored(topology: &Topology) -> usize {
    let mirrors = topology.map.groups().iter().filter(|g| g.shape == Shape::Mirror);
    mirrors.map(|g| g.columns.len()).max().unwrap_or(1)
}

/// Reads the `nth` copy of a mirror in sync, or one after it, in a circle.
fn nth_copy(
    topology: &Topology,
    group: &Group,
    at: u64,
    buf: &mut [u8],
    nth: usize,
) -> Result<(), PoolError> {
    let copies: SmallVec<[usize; 4]> = topology.copies(group).collect();
    let mut last = topology.too_many_lost(group);
    for column in copies.iter().cycle().skip(nth).take(copies.len()) {
        let (member, place) = group.at(*column, at);
        match topology.device(member).read(place, buf) {
            Ok(()) => return Ok(()),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Writes a heartbeat. That it is lost with a device's cache harms nobody: the next one follows.
fn beat_on(device: &dyn Device, at: ByteOffset, bytes: &[u8]) -> Result<(), DeviceError> {
    if let Some(session) = device.abilities().session {
        session.repeats(at, Bytes::from(bytes.len()));
    }
    device.write(at, bytes)
}

/// Writes to the copies of a mirror that are in use; one is enough.
fn say_on(topology: &Topology, index: u16, at: u64, bytes: &[u8]) -> Result<(), PoolError> {
    let group = topology.map.group(index);
    if group.shape != Shape::Mirror {
        return Err(PoolError::LockOnParity { at: ByteOffset(at) });
    }
    let mut result = Err(topology.too_many_lost(group));
    for column in 0..group.columns.len() {
        let (member, place) = group.at(column, at);
        if topology.writable(member) {
            let written = beat_on(&**topology.device(member), place, bytes);
            if let Err(error @ DeviceError::Fenced { .. }) = written {
                return Err(error.into());
            }
            // One that is being filled is not read yet.
            if topology.readable(member) && result.is_err() {
                result = written.map_err(PoolError::from);
            }
        }
    }
    result
}

impl Pool {
    /// Says that all that a node writes without a redundancy log (heartbeats, slots, locks, before [`Pool::attach`]) is
    /// before `end`. A member that was offline is filled up to there in any case. It only grows; to be called before such
    /// writes; in memory, no I/O.
    pub fn unnoted_to(&self, end: ByteOffset) {
        self.0.epochs.snapshot().unnoted.fetch_max(end.0, Ordering::AcqRel);
    }

    /// As [`Pool::read`], for what is changed by compare-and-write: where there are copies, the one
    /// that decides is read.
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn read_lock(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), PoolError> {
        loop {
            let topology = self.0.enter()?;
            let done = self.read_copies(&topology, at, buf, 0);
            drop(topology);
            match done {
                Err(PoolError::Device { .. }) if self.0.has_newer_epoch() => {}
                done => return done,
            }
        }
    }

    /// As [`Pool::read`], for heartbeats: waits for no epoch and no region, and repairs nothing.
    /// Where there are copies, the `nth` is read; after all of them, the successor of a member that
    /// is being moved. A node that uses another epoch may not write all copies that are read in
    /// this one. So all of them must be read to see its heartbeat.
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn look(&self, at: ByteOffset, buf: &mut [u8], nth: usize) -> Result<(), PoolError> {
        let topology = self.0.epochs.snapshot();
        if nth >= mirrored(&topology) && self.look_at_successor(&topology, at, buf).is_ok() {
            return Ok(());
        }
        self.read_copies(&topology, at, buf, nth)
    }

    /// How many copies [`Pool::look`] can tell apart, at most.
    pub fn copies(&self) -> usize {
        let topology = self.0.epochs.snapshot();
        mirrored(&topology) + usize::from(topology.migration.is_some())
    }

    /// How many of these hold what is current, at most; the successor of a member that is being moved may not
    /// have it yet.
    pub fn current_copies(&self) -> usize {
        mirrored(&self.0.epochs.snapshot())
    }

    /// As [`Pool::look`], on the device that a member is moved to, as far as it has the bytes.
    fn look_at_successor(
        &self,
        topology: &Topology,
        at: ByteOffset,
        buf: &mut [u8],
    ) -> Result<(), PoolError> {
        self.read_copies(topology, at, buf, 0)?;
        let Some(pair) = &topology.migration else { return Ok(()) };
        let mut rest = buf;
        for piece in topology.map.pieces(at, Bytes::from(rest.len())) {
            let (now, later) = rest.split_at_mut(piece.len.to_usize());
            rest = later;
            let place = match piece.place {
                Place::Member(member) => (member == pair.leaving).then_some(piece.at),
                Place::Group(index) => {
                    let group = topology.map.group(index);
                    let column = group.members().position(|m| m == pair.leaving);
                    column.map(|c| group.at(c, piece.at.0).1)
                }
            };
            if let Some(place) = place {
                pair.migration.read_successor(place, now)?;
            }
        }
        Ok(())
    }

    /// Reads a run of bare members or of mirrors, of each its `nth` copy, or the first one after it
    /// that can be read.
    fn read_copies(
        &self,
        topology: &Topology,
        at: ByteOffset,
        buf: &mut [u8],
        nth: usize,
    ) -> Result<(), PoolError> {
        let len = Bytes::from(buf.len());
        self.0.check(topology, at, len)?;
        let mut rest = buf;
        for piece in topology.map.pieces(at, len) {
            let (now, later) = rest.split_at_mut(piece.len.to_usize());
            rest = later;
            match piece.place {
                Place::Member(member) => topology.device(member).read(piece.at, now)?,
                Place::Group(index) => {
                    let group = topology.map.group(index);
                    if group.shape != Shape::Mirror {
                        return Err(PoolError::LockOnParity { at });
                    }
                    nth_copy(topology, group, piece.at.0, now, nth)?;
                }
            }
        }
        Ok(())
    }

    /// As [`Pool::write`], for a heartbeat: waits for no epoch, no region and no lease. It succeeds
    /// if one copy has it and none refuses this node.
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub fn say(&self, at: ByteOffset, buf: &[u8]) -> Result<(), PoolError> {
        let _pass = self.1.pass_unleased()?;
        let topology = self.0.epochs.snapshot();
        let len = Bytes::from(buf.len());
        topology.unnoted.fetch_max((at + len).0, Ordering::AcqRel);
        self.0.check(&topology, at, len)?;
        if topology.provisional {
            return Err(PoolError::Provisional { name: topology.label.name.clone() });
        }
        let mut rest = buf;
        for piece in topology.map.pieces(at, len) {
            let (now, later) = rest.split_at(piece.len.to_usize());
            rest = later;
            match piece.place {
                Place::Member(member) => beat_on(&**topology.device(member), piece.at, now)?,
                Place::Group(index) => say_on(&topology, index, piece.at.0, now)?,
            }
        }
        Ok(())
    }
}
