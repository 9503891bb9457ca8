//! Reading everything, to find and mend what rotted while nobody looked.
//!
//! Redundancy says *that* copies or parity disagree. Which of them is wrong is known
//! * for a parity row with two parities that are all there, by its syndromes, if one column is wrong;
//! * for a mirror of three or more, by majority;
//! * for anything that an [`Oracle`] knows by its checksum: the file system's metadata.
//!
//! What remains is reported and left alone: a guess could make the good copy like the bad one. So are
//! records that differ on the first copy, where other nodes compare and write: what is new there the
//! others have a moment later, and only then does it count.

use std::ops::Range;
use std::time::Duration;

use braid_device::{AlignedBuf, CawOutcome, DeviceError};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::Pool;
use crate::error::PoolError;
use crate::group::around::{sectors, still_a_member};
use crate::group::decode::read_places;
use crate::group::engine::Lost;
use crate::group::repair::bring_after;
use crate::group::{Group, Shape, code};
use crate::map::Place;
use crate::records::is_record;
use crate::simulation::Pause;
use crate::topology::Topology;
use crate::upkeep::Progress;

/// Bytes of a mirror compared at a time.
const CHUNK: u64 = 1 << 20;
/// Places reported one by one.
const REPORTED_MAX: usize = 1000;

/// Knows good bytes from bad by what they are.
pub trait Oracle: Sync {
    /// Differences are judged in pieces of this many bytes, a power of two, at multiples of it.
    fn grain(&self) -> usize {
        4096
    }
    /// Whether `bytes`, read from the pool's byte `at`, are what was written there; `None`: it
    /// cannot say.
    fn good(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool>;
    /// Whether the record of a lock or of a node, with which a piece begins, is damaged; `false`: it is
    /// whole, or it cannot say.
    fn has_damaged_record(&self, _at: ByteOffset, _bytes: &[u8]) -> bool {
        false
    }
}

/// Knows nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoOracle;
impl Oracle for NoOracle {
    fn good(&self, _: ByteOffset, _: &[u8]) -> Option<bool> {
        None
    }
}

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
}

/// A run of the pool's bytes that stands on one group.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    group: u16,
    /// In the group's bytes.
    from: u64,
    to: u64,
    /// The pool's byte at `from`.
    logical: u64,
}

impl Pool {
    /// Compares every copy and every parity of the pool while it is in use, and heals what can be
    /// decided. `pace` is called after every chunk: it may sleep, and ends the work by returning
    /// `false`.
    ///
    /// # Errors
    /// [`PoolError::Device`] of a member that cannot be spared.
    pub fn scrub(
        &self,
        oracle: &dyn Oracle,
        pace: &mut dyn FnMut(Progress, &Scrubbed) -> bool,
    ) -> Result<Scrubbed, PoolError> {
        let mut report = Scrubbed::default();
        let (total, step) = {
            let topology = self.0.topology.read();
            let rows = topology.map.groups().iter().filter_map(Group::row_len);
            (topology.map.size(), rows.max().unwrap_or(CHUNK).max(CHUNK))
        };
        let mut at = 0;
        while at < total.0 {
            let to = (at + step).min(total.0);
            let mut lost = Lost::new();
            {
                let _pass = self.1.pass()?;
                let _held = self.0.hold_bytes(ByteOffset(at), Bytes(to - at))?;
                let topology = self.0.enter()?;
                let rest = || self.0.pause(LOOK_PAUSE, Pause::Inside);
                for stretch in stretches(&topology, at, to) {
                    let beside: Beside<'_> = self.is_shared().then_some(&rest as &dyn Fn());
                    check(&topology, stretch, (oracle, beside), &mut report, &mut lost)?;
                }
                let lost = topology.named(&lost);
                drop(topology);
                if !lost.is_empty() {
                    self.0.lose(&lost)?;
                }
            }
            at = to;
            report.checked = Bytes(at);
            if !pace(Progress { done: Bytes(at), total }, &report) {
                return Ok(report);
            }
        }
        report.finished = true;
        Ok(report)
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
            self.0.lose(&lost)?;
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

/// The stretches of the pool's bytes `from..to`; of parity, the rows that begin in them.
fn stretches(topology: &Topology, from: u64, to: u64) -> Vec<Stretch> {
    let runs = topology.map.solid(from, to).into_iter();
    runs.flat_map(|(from, to)| solid_stretches(topology, from, to)).collect()
}

/// The same of bytes without a hole.
fn solid_stretches(topology: &Topology, from: u64, to: u64) -> Vec<Stretch> {
    let mut all = Vec::new();
    let mut logical = from;
    for p in topology.map.pieces(ByteOffset(from), Bytes(to - from)) {
        if let Place::Group(group) = p.place {
            let (mut a, mut b) = (p.at.0, p.at.0 + p.len.0);
            if let Some(row) = topology.map.group(group).row_len() {
                (a, b) = (a.next_multiple_of(row), b.next_multiple_of(row));
            }
            if a < b {
                let logical = logical + (a - p.at.0);
                all.push(Stretch { group, from: a, to: b, logical });
            }
        }
        logical += p.len.0;
    }
    all
}

/// A pause, where other nodes may compare-and-write meanwhile, and say that they live.
type Beside<'a> = Option<&'a dyn Fn()>;

fn check(
    topology: &Topology,
    stretch: Stretch,
    (oracle, beside): (&dyn Oracle, Beside<'_>),
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
                check_mirror(topology, group, run, (oracle, beside), report, lost)?;
            }
            Shape::Parity { .. } => {
                let Shape::Parity { unit, .. } = group.shape else { continue };
                let row = Row { index: at / step, range: (0, unit), logical };
                check_row(topology, group, &row, oracle, report, lost)?;
            }
        }
        at = end;
    }
    Ok(())
}

fn undecided(report: &mut Scrubbed, at: u64, len: usize) {
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
const LOOK_PAUSE: Duration = Duration::from_millis(2);

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
    let mut copies = Vec::new();
    for column in topology.copies(group) {
        let (member, at) = group.at(column, from);
        if lost.iter().any(|l| l.0 == member) {
            continue;
        }
        let device = topology.device(member);
        let mut copied = Copied { column, bytes: AlignedBuf::zeroed(len), unread: Vec::new() };
        if let Err(error) = device.read(at, &mut copied.bytes) {
            if !still_a_member(topology, member) {
                topology.spare(member, error, lost)?;
                continue;
            }
            let sector = topology.label.lock_sector.to_usize();
            for (i, part) in copied.bytes.chunks_mut(sector).enumerate() {
                if device.read(at + Bytes::from(i * sector), part).is_err() {
                    copied.unread.push(i * sector);
                }
            }
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
    beside: bool,
}

fn check_mirror(
    topology: &Topology,
    group: &Group,
    (from, to, logical): (u64, u64, u64),
    (oracle, beside): (&dyn Oracle, Beside<'_>),
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let len = Bytes(to - from).to_usize();
    let sector = topology.label.lock_sector.to_usize();
    let mut copies = read_all(topology, group, from, len, lost)?;
    if let Some(rest) = beside {
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
    let run = Compared { topology, group, from, logical, copies, beside: beside.is_some() };
    let piece = oracle.grain();
    for start in (0..len).step_by(piece) {
        run.decide(start..(start + piece).min(len), oracle, report, lost)?;
    }
    Ok(())
}

impl Compared<'_> {
    /// Finds out what is right in a part of it, and writes that where something else stands, or
    /// nothing that can be read.
    fn decide(
        &self,
        range: Range<usize>,
        oracle: &dyn Oracle,
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let sector = self.topology.label.lock_sector.to_usize();
        let read: Vec<&[u8]> = self.copies.iter().filter_map(|c| c.part(&range)).collect();
        let differ = read.windows(2).any(|w| w[0] != w[1]);
        let whole = read.len() == self.copies.len();
        if !differ && whole {
            return Ok(());
        }
        let at = ByteOffset(self.logical + range.start as u64);
        let known = read.iter().find(|b| oracle.good(at, b) == Some(true));
        if known.is_none() && !whole && range.len() > sector {
            // Each may have other sectors that cannot be read.
            for start in range.clone().step_by(sector) {
                let one = start..(start + sector).min(range.end);
                self.decide(one, &NoOracle, report, lost)?;
            }
            return Ok(());
        }
        let many = |b: &&&[u8]| read.iter().filter(|o| o == b).count() * 2 > self.copies.len();
        let truth = if differ { known.or_else(|| read.iter().find(many)) } else { read.first() };
        let Some(truth) = truth else {
            undecided(report, at.0, range.len());
            return Ok(());
        };
        let first = self.copies.first().and_then(|f| f.part(&range));
        let damaged = first.is_some_and(|f| oracle.has_damaged_record(at, f));
        for (start, new) in range.step_by(sector).zip(truth.chunks(sector)) {
            if self.beside && !damaged && self.is_in_doubt(start, new) {
                undecided(report, self.logical + start as u64, new.len());
                continue;
            }
            for copy in &self.copies {
                self.write(copy, start, new, report, lost)?;
            }
        }
        Ok(())
    }

    /// Whether a sector may be another than `new` on the first copy because a compare-and-write of
    /// another node, which is acknowledged when the others have it too, has landed there.
    fn is_in_doubt(&self, start: usize, new: &[u8]) -> bool {
        let first = self.copies.first().and_then(|f| f.part(&(start..start + new.len())));
        first.is_some_and(|first| first != new && (is_record(first) || is_record(new)))
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
            Some(old) if self.beside => {
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
        if self.beside && !first {
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

/// Bytes of each unit of a parity row that are compared.
struct Row {
    index: u64,
    /// From, to.
    range: (u64, u64),
    /// Where the row begins in the pool's bytes.
    logical: u64,
}

fn check_row(
    topology: &Topology,
    group: &Group,
    row: &Row,
    oracle: &dyn Oracle,
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let Shape::Parity { unit, parity } = group.shape else { return Ok(()) };
    let n = group.columns.len();
    let data = n - parity;
    let member = |place: usize| group.at(group.column_of(row.index, place), 0).0;
    let there: Vec<usize> = (0..n).filter(|p| topology.readable(member(*p))).collect();
    let mut away: Vec<usize> = (0..n).filter(|p| !there.contains(p)).collect();
    let len = Bytes(row.range.1 - row.range.0).to_usize();
    let mut columns: Vec<Vec<u8>> = vec![vec![0; len]; n];
    let mut unread = Vec::new();
    let read = read_places(topology, group, &[(row.index, row.range, there)]).pop();
    for (place, bytes) in read.into_iter().flatten() {
        match (bytes, columns.get_mut(place)) {
            (Ok(bytes), Some(to)) => to.copy_from_slice(&bytes),
            _ => unread.push(place),
        }
    }
    let sector = topology.label.lock_sector.to_usize();
    if !unread.is_empty() && away.len() + unread.len() > parity && len > sector {
        // Each may have other sectors that cannot be read.
        for (from, len) in sectors(row.range.0, len, sector) {
            let part = Row { range: (from, from + len as u64), ..*row };
            check_row(topology, group, &part, &NoOracle, report, lost)?;
        }
        return Ok(());
    }
    let at = row.logical + row.range.0;
    away.extend(&unread);
    let recover = |columns: &mut [Vec<u8>], lost: &[usize]| {
        let mut slices: Vec<&mut [u8]> = columns.iter_mut().map(|b| &mut b[..]).collect();
        code::recover(data, &mut slices, lost)
    };
    let mut wrong = unread.clone();
    if away.len() >= parity {
        // Nothing is left to compare with; what could not be read may still be had.
        if !recover(&mut columns, &away) && !unread.is_empty() {
            undecided(report, at, len * unread.len());
            return Ok(());
        }
    } else {
        match suspect(data, &columns, &away, (at, unit), oracle) {
            Ok(None) => {}
            Ok(Some(place)) => wrong.push(place),
            Err(code::Damaged) => {
                undecided(report, at, len);
                return Ok(());
            }
        }
        let mut lost = away.clone();
        lost.extend(&wrong);
        lost.sort_unstable();
        lost.dedup();
        if !recover(&mut columns, &lost) {
            undecided(report, at, len);
            return Ok(());
        }
    }
    for place in wrong {
        let at = group.at(group.column_of(row.index, place), row.index * unit + row.range.0).1;
        if let Some(bytes) = columns.get(place) {
            put(topology, member(place), at, bytes, report, lost)?;
        }
    }
    Ok(())
}

/// The one column of a row that is wrong, if the row is not whole. `away` ones are not known.
fn suspect(
    data: usize,
    columns: &[Vec<u8>],
    away: &[usize],
    (logical, unit): (u64, u64),
    oracle: &dyn Oracle,
) -> Result<Option<usize>, code::Damaged> {
    let whole = |lost: &[usize]| {
        let mut again = columns.to_vec();
        let mut slices: Vec<&mut [u8]> = again.iter_mut().map(|b| &mut b[..]).collect();
        let can = code::recover(data, &mut slices, lost);
        (can, again)
    };
    // Compute the parity anew and compare with what stands there.
    let mut lost: Vec<usize> = away.to_vec();
    lost.extend((data..columns.len()).rev().filter(|p| !away.contains(p)).take(1));
    let (can, again) = whole(&lost);
    let parities = columns.len() - data;
    if !can || (parities == 1 || !away.is_empty()) && again == columns_with(columns, &again, away) {
        return Ok(None);
    }
    if parities == 2 && away.is_empty() {
        let refs: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        if let found @ Ok(_) = code::locate(data, &refs) {
            return found;
        }
    }
    // By what the file system knows: a data column of which some block is known to be bad, and the
    // one computed from the others known to be good.
    for place in (0..data).filter(|p| !away.contains(p)) {
        let mut lost: Vec<usize> = away.to_vec();
        lost.push(place);
        let (can, again) = whole(&lost);
        let (Some(old), Some(new)) = (columns.get(place), again.get(place)) else { continue };
        let differing = old.chunks(oracle.grain()).zip(new.chunks(oracle.grain())).enumerate();
        let mut differing = differing.filter(|(_, (a, b))| a != b);
        let known = |(i, (old, new)): (usize, (&[u8], &[u8]))| {
            let at = ByteOffset(logical + place as u64 * unit + (i * oracle.grain()) as u64);
            oracle.good(at, old) == Some(false) && oracle.good(at, new) == Some(true)
        };
        if can && differing.any(known) {
            return Ok(Some(place));
        }
    }
    Err(code::Damaged)
}

/// `columns` with those in `away` as in `again`: for comparing the others.
fn columns_with(columns: &[Vec<u8>], again: &[Vec<u8>], away: &[usize]) -> Vec<Vec<u8>> {
    let mut with = columns.to_vec();
    for place in away {
        if let (Some(to), Some(from)) = (with.get_mut(*place), again.get(*place)) {
            to.clone_from(from);
        }
    }
    with
}

#[cfg(test)]
mod tests;
