//! Reading everything, to find and mend what rotted while nobody looked.
//!
//! Redundancy says *that* copies or parity disagree. Which of them is wrong is known
//! * for a parity row with two parities that are all there, by its syndromes, if one column is wrong;
//! * for a mirror of three or more, by majority;
//! * for anything that an [`ChecksumVerifier`] knows by its checksum: the file system's metadata.
//!
//! What remains is reported and left alone: a guess could make the good copy like the bad one. So are
//! records that differ on the first copy, where other nodes compare and write: what is new there the
//! others have a moment later, and only then does it count.

use std::ops::Range;
use std::time::Duration;

use braid_device::{AlignedBuf, CawOutcome, DeviceError, Op, Request, run};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::Pool;
use crate::atomic_records::is_record;
use crate::error::PoolError;
use crate::group::engine::Lost;
use crate::group::reconstruct::{read_sectors, still_a_member};
use crate::group::repair::bring_after;
use crate::group::stretch::{Stretch, stretches};
use crate::group::{Group, Shape};
use crate::maintenance::Progress;
use crate::map::Place;
use crate::simulation::Pause;
use crate::topology::Topology;
use crate::verifier::{ChecksumVerifier, NoChecksums};

use rows::{Row, check_row};

mod rows;

/// Bytes of a mirror compared at a time.
const CHUNK: u64 = 1 << 20;
/// Places reported one by one.
const REPORTED_MAX: usize = 1000;

/// How bytes were read that are wanted some other way: each takes another copy of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// By [`Pool::read`].
    OfRead,
    /// By [`Pool::read_lock`].
    OfReadLock,
}

/// What a scrub found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read of the pool, copies and parity not counted.
    pub checked: Bytes,
    /// Bytes that were wrong or could not be read, and are right now.
    pub healed: Bytes,
    /// Bytes of copies or parity that disagree, and nothing says which is right.
    pub undecided: Bytes,
    /// Where the undecided ones are, in the pool's bytes: the first of them.
    pub places: Vec<ByteOffset>,
    /// All was read; `false`: it was told to stop.
    pub finished: bool,
    /// Members that have something else in a place than what a checksum says is right, for
    /// [`Pool::accuse`].
    pub(crate) blamed: Vec<(MemberIndex, ByteOffset)>,
}

impl Scrubbed {
    /// More of the same.
    pub(crate) fn add(&mut self, other: &Self) {
        self.healed.0 += other.healed.0;
        self.undecided.0 += other.undecided.0;
        let room = REPORTED_MAX.saturating_sub(self.places.len());
        self.places.extend(other.places.iter().take(room));
    }
}

impl Pool {
    /// Compares every copy and every parity of the pool while it is in use, and heals what can be
    /// decided; durably, on return. `pace` is called after every chunk: it may sleep, and ends the work by
    /// returning `false`.
    ///
    /// # Errors
    /// [`PoolError::Device`] of a member that cannot be spared.
    pub fn scrub(
        &self,
        verifier: &dyn ChecksumVerifier,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
    ) -> Result<Scrubbed, PoolError> {
        let total = self.0.topology.read().map.size();
        let found = self.scrub_bytes((0, total.0), verifier, pace)?;
        if found.healed > Bytes(0) {
            self.flush()?;
        }
        Ok(found)
    }

    /// The same of the bytes that some of the pool's bytes are compared with: whole rows of parity. For
    /// who takes these bytes from there, and what they are compared with is given up. Healing is complete,
    /// not durable.
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
            let topology = self.0.topology.read();
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
            let topology = self.0.topology.read();
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
                for stretch in stretches(&topology, at, to) {
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
            at = to;
            report.checked = Bytes(at - from);
            if !pace(Progress { done: report.checked, total: Bytes(total - from) }, &report) {
                return Ok(report);
            }
        }
        report.finished = true;
        Ok(report)
    }

    /// Where a byte of the pool stands on devices: on each copy of a mirror. Of parity, where it and what is
    /// related to it stand: on each column. Nowhere, in a hole.
    pub fn placements(&self, at: ByteOffset) -> Vec<(MemberIndex, ByteOffset)> {
        let topology = self.0.topology.read();
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
        instead: Instead,
        at: ByteOffset,
        buf: &mut [u8],
        nth: usize,
    ) -> Result<bool, PoolError> {
        let topology = self.0.topology.read();
        let len = Bytes::from(buf.len());
        self.0.check(&topology, at, len)?;
        let Some((index, offset)) = on_group(&topology, at, buf.len()) else { return Ok(false) };
        let mirror = topology.map.group(index).shape == Shape::Mirror;
        drop(topology);
        // Parity is right only while nobody changes the row.
        let _region = if mirror { None } else { self.0.hold_bytes(at, len)? };
        let topology = self.0.topology.read();
        let Some((index, offset)) =
            on_group(&topology, at, buf.len()).filter(|on| *on == (index, offset))
        else {
            return Ok(false);
        };
        let group = topology.map.group(index);
        let _held = topology.lock(index, vec![group.affected(offset, buf.len() as u64)]);
        match group.shape {
            Shape::Mirror => {
                let live: Vec<usize> = topology.copies(group).collect();
                let taken = match instead {
                    Instead::OfRead => Group::turn(offset, live.len()),
                    Instead::OfReadLock => 0,
                };
                let mut others = live.iter().enumerate().filter(|(i, _)| *i != taken);
                let Some((_, column)) = others.nth(nth) else { return Ok(false) };
                let (member, place) = group.at(*column, offset);
                topology.device(member).read(place, buf)?;
                Ok(true)
            }
            // What the columns of these bytes hold is not believed.
            Shape::Parity { .. } if nth == 0 => {
                let columns = group.units(offset, buf.len() as u64);
                let bad = columns.map(|u| group.at(group.column_of(u.row, u.place), 0).0).next();
                crate::group::decode::decode_run(&topology, group, offset, buf, bad)?;
                Ok(true)
            }
            Shape::Parity { .. } => Ok(false),
        }
    }

    /// Mends `len` bytes at `at` of which some way to read them gives what is `good`: whatever
    /// holds something else gets that. Parity is left as it is: it was computed from these bytes.
    /// Nobody writes there meanwhile. Whether there was something good.
    ///
    /// # Errors
    /// [`PoolError::Device`] of a member that cannot be spared.
    pub fn heal(
        &self,
        at: ByteOffset,
        len: Bytes,
        good: &dyn Fn(&[u8]) -> bool,
    ) -> Result<bool, PoolError> {
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

/// Of a group's bytes: what is good, and the columns that hold something else.
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
        crate::group::decode::decode_run(topology, group, offset, &mut bytes, bad)?;
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

/// A pause, where other nodes may compare-and-write meanwhile, and say that they live.
pub(crate) type Concurrent<'a> = Option<&'a dyn Fn()>;

fn check(
    topology: &Topology,
    stretch: Stretch,
    (verifier, concurrent): (&dyn ChecksumVerifier, Concurrent<'_>),
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let group = topology.map.group(stretch.group);
    let step = group.row_len().unwrap_or(CHUNK);
    let mut at = stretch.from;
    while at < stretch.to {
        let end = (at + step).min(stretch.to);
        let logical = stretch.logical + (at - stretch.from);
        let _held = topology.lock(stretch.group, vec![(at, end)]);
        match group.shape {
            Shape::Mirror => {
                let run = (at, end, logical);
                check_mirror(topology, group, run, (verifier, concurrent), report, lost)?;
            }
            Shape::Parity { .. } => {
                let Shape::Parity { unit, .. } = group.shape else { continue };
                let row = Row { index: at / step, range: (0, unit), logical };
                check_row(topology, group, &row, verifier, report, lost)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// Nothing says what is right of `len` of the pool's bytes from `at`.
pub(crate) fn undecided(report: &mut Scrubbed, at: u64, len: usize) {
    report.undecided.0 += len as u64;
    if report.places.len() < REPORTED_MAX {
        report.places.push(ByteOffset(at));
    }
}

fn put(
    topology: &Topology,
    member: MemberIndex,
    at: ByteOffset,
    bytes: &[u8],
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    match topology.device(member).write(at, bytes) {
        Ok(()) => report.healed.0 += bytes.len() as u64,
        Err(DeviceError::ReadOnly { .. }) => {}
        Err(error) => topology.spare(member, error, lost)?,
    }
    Ok(())
}

/// Times that copies which differ are read again, and pauses in between, before they do: others
/// may just be changing them.
const LOOKS: u32 = 12;
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// A run of a mirror's bytes as one copy has it.
struct Copied {
    column: usize,
    bytes: AlignedBuf,
    /// Where in it sectors begin that cannot be read.
    unread: Vec<usize>,
}

impl Copied {
    /// A part of it, if all of that can be read.
    fn part(&self, range: &Range<usize>) -> Option<&[u8]> {
        let bad = self.unread.iter().any(|at| range.contains(at));
        self.bytes.get(range.clone()).filter(|_| !bad)
    }
}

/// A run of a mirror's bytes as each copy in sync has it. One that is no member any more is `lost`.
fn read_all(
    topology: &Topology,
    group: &Group,
    from: u64,
    len: usize,
    lost: &mut Lost,
) -> Result<Vec<Copied>, PoolError> {
    let here = |column: &usize| !lost.iter().any(|l| l.0 == group.at(*column, from).0);
    let columns: Vec<usize> = topology.copies(group).filter(here).collect();
    let mut buffers: Vec<AlignedBuf> = columns.iter().map(|_| AlignedBuf::zeroed(len)).collect();
    let mut requests: Vec<Request<'_>> = Vec::with_capacity(columns.len());
    for (column, buf) in columns.iter().zip(&mut buffers) {
        let (member, at) = group.at(*column, from);
        requests.push(Request::new(&**topology.device(member), at, Op::Read(buf)));
    }
    run(&mut requests);
    let results: Vec<_> = requests.into_iter().map(|r| r.result).collect();
    let mut copies = Vec::new();
    for ((column, bytes), result) in columns.into_iter().zip(buffers).zip(results) {
        let (member, at) = group.at(column, from);
        let mut copied = Copied { column, bytes, unread: Vec::new() };
        if let Err(error) = result {
            if !still_a_member(topology, member) {
                topology.spare(member, error, lost)?;
                continue;
            }
            let sector = topology.label.lock_sector.to_usize();
            let device = &**topology.device(member);
            copied.unread = read_sectors(device, at, &mut copied.bytes, sector);
        }
        copies.push(copied);
    }
    Ok(copies)
}

/// Whether copies that can be read differ in a sector.
fn differ(copies: &[Copied], sector: usize) -> bool {
    let differs = |a: &Copied, b: &Copied| {
        let both = a.bytes.chunks(sector).zip(b.bytes.chunks(sector)).enumerate();
        let mut unlike = both.filter(|(_, (a, b))| a != b).map(|(i, _)| i * sector);
        unlike.any(|at| !a.unread.contains(&at) && !b.unread.contains(&at))
    };
    let mut rest = copies;
    while let [first, others @ ..] = rest {
        if others.iter().any(|o| differs(first, o)) {
            return true;
        }
        rest = others;
    }
    false
}

/// A run of a mirror that is compared.
struct Compared<'a> {
    topology: &'a Topology,
    group: &'a Group,
    /// Where it begins, in the group's bytes and in the pool's.
    from: u64,
    logical: u64,
    copies: Vec<Copied>,
    concurrent: bool,
}

/// Compares the copies of a mirror's bytes from the first to the second, of which the first is the pool's byte
/// the third, and heals what can be decided.
pub(crate) fn check_mirror(
    topology: &Topology,
    group: &Group,
    (from, to, logical): (u64, u64, u64),
    (verifier, concurrent): (&dyn ChecksumVerifier, Concurrent<'_>),
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let len = Bytes(to - from).to_usize();
    let sector = topology.label.lock_sector.to_usize();
    let mut copies = read_all(topology, group, from, len, lost)?;
    if let Some(rest) = concurrent {
        for _ in 0..LOOKS {
            if !differ(&copies, sector) {
                break;
            }
            rest();
            copies = read_all(topology, group, from, len, lost)?;
        }
    }
    let whole = copies.iter().all(|c| c.unread.is_empty());
    if whole && !differ(&copies, sector) {
        return Ok(());
    }
    let run = Compared { topology, group, from, logical, copies, concurrent: concurrent.is_some() };
    let stretch = Stretch { group: 0, from: 0, to: len as u64, logical };
    for piece in stretch.cut(verifier.grain() as u64) {
        let piece = Bytes(piece.from).to_usize()..Bytes(piece.to).to_usize();
        run.decide(piece, verifier, report, lost)?;
    }
    Ok(())
}

/// Whether a part reads differently on some of the copies that have it.
fn differs(read: &[&[u8]]) -> bool {
    read.windows(2).any(|w| w[0] != w[1])
}

impl Compared<'_> {
    /// A part as the copies have it of which it can be read.
    fn read(&self, range: &Range<usize>) -> Vec<&[u8]> {
        self.copies.iter().filter_map(|c| c.part(range)).collect()
    }

    /// Finds out what is right in a part of it, and writes that where something else stands, or
    /// nothing that can be read.
    fn decide(
        &self,
        range: Range<usize>,
        verifier: &dyn ChecksumVerifier,
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let sector = self.topology.label.lock_sector.to_usize();
        let read = self.read(&range);
        let (differ, whole) = (differs(&read), read.len() == self.copies.len());
        if !differ && whole {
            return Ok(());
        }
        let at = ByteOffset(self.logical + range.start as u64);
        let known = read.iter().find(|b| verifier.verify(at, b) == Some(true));
        if known.is_none() && !whole && range.len() > sector {
            // Each may have other sectors that cannot be read.
            for start in range.clone().step_by(sector) {
                let one = start..(start + sector).min(range.end);
                self.decide(one, &NoChecksums, report, lost)?;
            }
            return Ok(());
        }
        let many = |b: &&&[u8]| read.iter().filter(|o| o == b).count() * 2 > self.copies.len();
        let truth = if differ { known.or_else(|| read.iter().find(many)) } else { read.first() };
        let Some(truth) = truth else {
            return self.decide_records(range, verifier, report, lost);
        };
        if differ && known.is_some() {
            let unlike = |c: &&Copied| c.part(&range).is_some_and(|part| part != *truth);
            for copy in self.copies.iter().filter(unlike) {
                if report.blamed.len() < REPORTED_MAX {
                    report.blamed.push((self.group.at(copy.column, self.from).0, at));
                }
            }
        }
        for (start, new) in range.step_by(sector).zip(truth.chunks(sector)) {
            if self.concurrent && self.is_in_doubt(start, new, verifier) {
                undecided(report, self.logical + start as u64, new.len());
                continue;
            }
            self.write_all(start, new, report, lost)?;
        }
        Ok(())
    }

    /// Of a piece of which nothing says what is right, the sectors that do so by themselves: one that is
    /// whole on some copies, and the same on these. Two that are whole and differ: one is being written.
    fn decide_records(
        &self,
        range: Range<usize>,
        verifier: &dyn ChecksumVerifier,
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let sector = self.topology.label.lock_sector.to_usize();
        let (mut left, mut decided) = (Vec::new(), false);
        for start in range.clone().step_by(sector) {
            let one = start..(start + sector).min(range.end);
            let at = ByteOffset(self.logical + start as u64);
            let read = self.read(&one);
            if read.len() == self.copies.len() && !differs(&read) {
                continue;
            }
            let mut whole = read.iter().filter(|b| verifier.verify_sector(at, b));
            match whole.next().filter(|truth| whole.all(|other| other == *truth)) {
                Some(truth) => {
                    decided = true;
                    self.write_all(start, truth, report, lost)?;
                }
                None => left.push(one),
            }
        }
        if decided {
            for one in left {
                undecided(report, self.logical + one.start as u64, one.len());
            }
        } else {
            undecided(report, self.logical + range.start as u64, range.len());
        }
        Ok(())
    }

    /// Whether a sector may be another than `new` on the first copy because a compare-and-write of
    /// another node, which is acknowledged when the others have it too, has landed there. (What is
    /// damaged nobody has written so.)
    fn is_in_doubt(&self, start: usize, new: &[u8], verifier: &dyn ChecksumVerifier) -> bool {
        let first = self.copies.first().and_then(|f| f.part(&(start..start + new.len())));
        let at = ByteOffset(self.logical + start as u64);
        first.is_some_and(|first| {
            let record = is_record(first) || is_record(new);
            first != new && record && !verifier.has_damaged_record(at, first)
        })
    }

    /// Writes what is right on all copies that have something else.
    fn write_all(
        &self,
        start: usize,
        new: &[u8],
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        self.copies.iter().try_for_each(|copy| self.write(copy, start, new, report, lost))
    }

    /// Writes what is right where something else stands, or nothing that can be read.
    fn write(
        &self,
        copy: &Copied,
        start: usize,
        new: &[u8],
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let (topology, group) = (self.topology, self.group);
        let from = self.from + start as u64;
        let (member, place) = group.at(copy.column, from);
        match copy.part(&(start..start + new.len())) {
            Some(old) if old == new => return Ok(()),
            Some(old) if self.concurrent => {
                return exchange(topology, (member, place), (old, new), report, lost);
            }
            Some(_) => return put(topology, member, place, new, report, lost),
            None => {}
        }
        // It may be another's by now.
        if topology.device(member).read(place, &mut vec![0; new.len()]).is_ok() {
            return Ok(());
        }
        put(topology, member, place, new, report, lost)?;
        let first = self.copies.first().is_some_and(|f| f.column == copy.column);
        if self.concurrent && !first {
            after(topology, group, copy.column, (from, new), lost)?;
        }
        Ok(())
    }
}

/// What others have compared and written on the first copy, while a copy that could not be read was
/// written anew, is brought after it.
fn after(
    topology: &Topology,
    group: &Group,
    column: usize,
    (from, written): (u64, &[u8]),
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let Some(first) = topology.copies(group).next() else { return Ok(()) };
    bring_after(topology, group, (first, column), (from, written), lost)
}

/// As [`put`], where others may compare-and-write: what is no longer `old` is left alone.
fn exchange(
    topology: &Topology,
    (member, at): (MemberIndex, ByteOffset),
    (old, new): (&[u8], &[u8]),
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let sector = topology.label.lock_sector.to_usize();
    let sectors = old.chunks(sector).zip(new.chunks(sector)).enumerate();
    for (i, (old, new)) in sectors.filter(|(_, (old, new))| old != new) {
        let at = at + Bytes::from(i * sector);
        match topology.device(member).compare_and_write(at, old, new) {
            Ok(CawOutcome::Written) => report.healed.0 += new.len() as u64,
            // What came of it, if its answer was lost, the next scrub sees.
            Ok(CawOutcome::Mismatch(_))
            | Err(DeviceError::ReadOnly { .. } | DeviceError::Unknown { .. }) => {}
            Err(error) => topology.spare(member, error, lost)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
