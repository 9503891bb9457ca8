//! A batch of requests on redundancy groups: split over the columns, without the columns that are
//! lost.
//!
//! A batch runs in two stages, and each stage is one submission over all members. The first reads
//! what partial writes of parity rows need. The second does everything else, together with the
//! requests on members without copies. A write is done when every column that is in sync, or being
//! filled, has it.
//!
//! If a column fails a read, the bytes are reconstructed from the other columns; a node with a
//! redundancy log then writes them to the column again, because most disks then replace the bad
//! sector. If a column fails a write, its member is *lost*: the caller must fail the member for all
//! nodes before the write counts as done.
//!
//! A *suspected* member returns garbage. Its copies and columns are read only if the others do not give
//! the bytes.

use std::collections::BTreeMap;

use braid_device::{DeviceError, Op, Request, run};
use braid_format::{Bytes, MemberIndex};
use smallvec::SmallVec;

use super::EpochInUse;
use super::decode::Sources;
use super::reconstruct::{mend_copy, read_reconstructed, still_a_member};
use super::rows::Rows;
use super::work::{Read, Work, Write};
use crate::cluster::write_gate::WriteGate;
use crate::devices::range_locks::{Range, RangeGuard};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::topology::{Lost, Topology};

/// How a batch ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Requests that failed, and why.
    pub failures: Vec<(u32, PoolError)>,
    /// Members to take out. Unless that is done, no write of the batch counts as done.
    pub lost: Lost,
    /// Requests whose reads must be reconstructed, and are not yet.
    pub again: SmallVec<[u32; 1]>,
}

/// What a device request of the second stage is for.
#[derive(Debug, Clone, Copy)]
enum Tag {
    /// A bare member: nothing stands in for it.
    Bare(u32),
    /// A column of a group.
    Write(MemberIndex),
    /// A run of a group's bytes.
    Read { owner: u32, group: u16, at: u64, member: MemberIndex },
}

/// Runs a batch: `bare` requests as they are, with their owners, and `work` on groups. `reconstruct`:
/// reads that a column does not serve are served by the others, and what could not be read is
/// written anew, while the gate is open; else they are only named.
pub(crate) fn execute<'a>(
    topology: &'a EpochInUse,
    bare: Vec<(u32, Request<'a>)>,
    work: Work<'a>,
    reconstruct: Option<&WriteGate>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut work = work;
    let held = hold(topology, &work);
    if let Err(error) = note(topology, &work, &mut outcome.lost) {
        outcome.failures.extend(work.writes.iter().map(|w| (w.owner, error.clone())));
        work.writes.clear();
    }
    let mut rows = Rows::of(topology, &work.writes);
    outcome.failures.extend(rows.prepare(topology, &mut outcome.lost));
    outcome.failures.extend(rows.write_logged(topology, &mut outcome.lost));
    let mut stage = Stage::default();
    for (owner, request) in bare {
        stage.push(Tag::Bare(owner), request);
    }
    for owner in &work.flushes {
        stage.flush(topology, *owner);
    }
    for write in &work.writes {
        stage.mirror_write(topology, write);
    }
    for write in rows.writes(topology) {
        let device = &**topology.device(write.member);
        let request = Request::new(device, write.at, Op::Write(write.bytes));
        stage.push(Tag::Write(write.member), request);
    }
    let mut again = Vec::new();
    for read in work.reads {
        stage.read(topology, read, &mut again);
    }
    stage.run(&mut outcome, &mut again);
    drop(held);
    let Some(write_gate) = reconstruct else {
        outcome.again.extend(again.iter().map(|a| a.owner));
        outcome.again.dedup();
        return outcome;
    };
    for failed in again {
        failed.recover(topology, write_gate, &mut outcome);
    }
    outcome
}

/// Notes the regions that are about to be written.
fn note(topology: &EpochInUse, work: &Work<'_>, lost: &mut Lost) -> Result<(), PoolError> {
    if work.writes.is_empty() { Ok(()) } else { topology.note(&work.ranges, lost) }
}

/// Holds every range that the batch changes. Groups are taken in their order.
fn hold<'a>(topology: &'a EpochInUse, work: &Work<'_>) -> Vec<RangeGuard<'a>> {
    let mut ranges: BTreeMap<u16, Vec<Range>> = BTreeMap::new();
    for w in &work.writes {
        let range = topology.map.group(w.group).affected(w.at, w.bytes.len() as u64);
        ranges.entry(w.group).or_default().push(range);
    }
    ranges.into_iter().map(|(group, ranges)| topology.lock(group, ranges)).collect()
}

/// The requests of the second stage.
#[derive(Default)]
struct Stage<'a> {
    requests: Vec<Request<'a>>,
    tags: Vec<Tag>,
}

impl<'a> Stage<'a> {
    fn push(&mut self, tag: Tag, request: Request<'a>) {
        self.requests.push(request);
        self.tags.push(tag);
    }

    /// Every member that may hold unflushed bytes. A member that only groups use may be lost.
    fn flush(&mut self, topology: &'a Topology, owner: u32) {
        for member in topology.members().filter(|m| topology.writable(*m)) {
            let bare = topology.bare.contains(&member);
            let tag = if bare { Tag::Bare(owner) } else { Tag::Write(member) };
            self.push(tag, Request::flush(&**topology.device(member)));
        }
    }

    fn mirror_write(&mut self, topology: &'a Topology, write: &Write<'a>) {
        let group = topology.map.group(write.group);
        if group.shape != Shape::Mirror {
            return;
        }
        for column in 0..group.columns.len() {
            let (member, at) = group.at(column, write.at);
            if topology.writable(member) {
                let device = &**topology.device(member);
                self.push(Tag::Write(member), Request::new(device, at, Op::Write(write.bytes)));
            }
        }
    }

    /// Reads from the columns; what stands on lost ones, or on those of suspected members, goes to
    /// `again` at once.
    fn read(&mut self, topology: &'a Topology, read: Read<'a>, again: &mut Vec<Again<'a>>) {
        let group = topology.map.group(read.group);
        let (owner, index) = (read.owner, read.group);
        let (mut at, mut rest) = (read.at, read.buf);
        let live = topology.columns_to_read(group);
        while !rest.is_empty() {
            let (column, offset, len) = match group.shape {
                Shape::Mirror => {
                    let copy = Group::read_copy_at(at, live.len());
                    (live.get(copy).copied().unwrap_or(0), at, Group::rotation_left(at))
                }
                Shape::Parity { unit, .. } => {
                    let Some(u) = group.units(at, rest.len() as u64).next() else { return };
                    (group.column_of(u.row, u.place), u.row * unit + u.within, u.len)
                }
            };
            // A lone copy is read in one piece.
            let mirror = group.shape == Shape::Mirror;
            let whole = mirror && live.len() == 1;
            let len = if whole { rest.len() } else { rest.len().min(Bytes(len).to_usize()) };
            let (now, later) = rest.split_at_mut(len);
            let (member, place) = group.at(column, offset);
            if topology.readable(member) && (mirror || !topology.is_avoided(group, member)) {
                let device = &**topology.device(member);
                let tag = Tag::Read { owner, group: index, at, member };
                self.push(tag, Request::new(device, place, Op::Read(now)));
            } else {
                again.push(Again { owner, group: index, at, buf: now, bad: None });
            }
            at += len as u64;
            rest = later;
        }
    }

    /// Runs all; sorts out what failed.
    fn run(mut self, outcome: &mut Outcome, again: &mut Vec<Again<'a>>) {
        run(&mut self.requests);
        for (request, tag) in self.requests.into_iter().zip(self.tags) {
            let Err(error) = request.result else { continue };
            match (tag, request.op) {
                (Tag::Write(member), _) => outcome.lost.push((member, error)),
                (Tag::Read { owner, group, at, member }, Op::Read(buf)) => {
                    tracing::warn!(%error, "read around");
                    again.push(Again { owner, group, at, buf, bad: Some((member, error)) });
                }
                (Tag::Bare(owner) | Tag::Read { owner, .. }, _) => {
                    outcome.failures.push((owner, error.into()));
                }
            }
        }
    }
}

/// A run of a group's bytes that its column did not give.
struct Again<'a> {
    owner: u32,
    group: u16,
    at: u64,
    buf: &'a mut [u8],
    /// The column that should have.
    bad: Option<(MemberIndex, DeviceError)>,
}

impl Again<'_> {
    /// Reads the other columns, and writes what is found where it could not be read.
    fn recover(self, topology: &EpochInUse, write_gate: &WriteGate, outcome: &mut Outcome) {
        let group = topology.map.group(self.group);
        let range = group.affected(self.at, self.buf.len() as u64);
        let _held = topology.lock(self.group, vec![range]);
        let bad = self.bad.as_ref().map(|(m, _)| *m);
        // Here nothing can tell what of it is garbage. Who has checksums asks for each copy.
        let from = (bad, Sources::NotSuspected);
        if let Err(error) = read_reconstructed(topology, group, self.at, self.buf, from) {
            let error = self.bad.map_or(error, |(_, e)| e.into());
            outcome.failures.push((self.owner, error));
            return;
        }
        let Some((member, error)) = self.bad else { return };
        // A node without a log, or one that has withdrawn, only reads: other nodes use the pool. And
        // nothing is changed in an epoch that may be taken back.
        let may = topology.log.is_some() && topology.ready();
        let Some(_pass) = write_gate.try_pass().filter(|_| may) else { return };
        if !still_a_member(topology, member) {
            outcome.lost.push((member, error));
            return;
        }
        // What a suspected member gave is not made to look as if others had it.
        if group.members().any(|m| topology.is_suspected(m)) {
            return;
        }
        let Some(column) = group.members().position(|m| m == member) else { return };
        let mended = match group.shape {
            Shape::Mirror => mend_copy(topology, group, column, (self.at, self.buf)).map(drop),
            Shape::Parity { .. } => mend_column(topology, group, column, (self.at, self.buf)),
        };
        let name = topology.name(member);
        match mended {
            Ok(()) => tracing::warn!(
                member = name,
                at = self.at,
                len = self.buf.len(),
                "could not be read; rewritten from the other members"
            ),
            Err((_, DeviceError::ReadOnly { .. })) => {}
            Err(failed) => outcome.lost.push(failed),
        }
    }
}

/// Writes bytes of parity rows, the group's from `at`, where they stand on `column`.
fn mend_column(
    topology: &Topology,
    group: &Group,
    column: usize,
    (at, bytes): (u64, &[u8]),
) -> Result<(), (MemberIndex, DeviceError)> {
    for (offset, bytes) in column_runs(group, column, at, bytes) {
        let (member, at) = group.at(column, offset);
        topology.device(member).write(at, bytes).map_err(|e| (member, e))?;
    }
    Ok(())
}

/// The runs of `bytes`, the group's from `at`, that stand on `column`.
fn column_runs<'b>(group: &Group, column: usize, at: u64, bytes: &'b [u8]) -> Vec<(u64, &'b [u8])> {
    let Shape::Parity { unit, .. } = group.shape else { return vec![(at, bytes)] };
    let mut runs = Vec::new();
    let mut rest = bytes;
    for u in group.units(at, bytes.len() as u64) {
        let (now, later) = rest.split_at(Bytes(u.len).to_usize());
        if group.column_of(u.row, u.place) == column {
            runs.push((u.row * unit + u.within, now));
        }
        rest = later;
    }
    runs
}
