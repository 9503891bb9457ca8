//! Comparing copies and parity, and healing what has rotted.
//!
//! Redundancy shows *that* copies or parity disagree. Which of them is wrong is known
//! * for a parity row with two parities and all columns: by its syndromes, if one column is wrong;
//! * for a mirror of three or more: by majority;
//! * for anything whose checksum a [`ChecksumVerifier`] knows: the file system's metadata. Of two good
//!   versions the newer one is right: a disk may have lost a write that it acknowledged.
//!
//! The rest is reported and left alone: a guess could make the good copy like the bad one. Records
//! that differ on the first copy are left alone too, if other nodes compare and write there: a new
//! record reaches the other copies a moment later, and counts only then.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use braid_device::{AlignedBuf, CawOutcome, DeviceError, Op, Request, run};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::EpochInUse;
use super::atomic_records::is_record;
use super::catch_up::bring_after;
use super::reconstruct::still_a_member;
use super::sectors::read_sectors;
use super::verifier::{ChecksumVerifier, NoChecksums};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::stretch::Stretch;
use crate::topology::{Lost, Topology};

mod report;
mod rows;

pub use report::Scrubbed;
pub(crate) use report::undecided;
use report::{REPORTED_MAX, put};
use rows::{Row, check_row};

/// Bytes of a mirror compared at a time.
pub(crate) const CHUNK: u64 = 1 << 20;
/// A pause, where other nodes may compare-and-write meanwhile, and say that they live.
pub(crate) type Concurrent<'a> = Option<&'a dyn Fn()>;

pub(crate) fn check(
    topology: &EpochInUse,
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
                let found = differing(topology, group, run, concurrent, lost)?;
                if let Some(found) = found {
                    found.heal(verifier, true, report, lost)?;
                }
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
                topology.do_without(member, error, lost)?;
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
    len: u64,
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
    match differing(topology, group, (from, to, logical), concurrent, lost)? {
        Some(found) => found.heal(verifier, false, report, lost),
        None => Ok(()),
    }
}

/// The run of a mirror as its copies have it, if these differ, or one cannot be read.
fn differing<'a>(
    topology: &'a Topology,
    group: &'a Group,
    (from, to, logical): (u64, u64, u64),
    concurrent: Concurrent<'_>,
    lost: &mut Lost,
) -> Result<Option<Compared<'a>>, PoolError> {
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
        return Ok(None);
    }
    let (len, concurrent) = (len as u64, concurrent.is_some());
    Ok(Some(Compared { topology, group, from, logical, len, copies, concurrent }))
}

/// Whether a part reads differently on some of the copies that have it.
fn differs(read: &[&[u8]]) -> bool {
    read.windows(2).any(|w| w[0] != w[1])
}

impl Compared<'_> {
    /// Heals what can be decided, and blames members for what is damaged; only that, if a member is suspected
    /// by it of which no label says so yet, and healing `may_wait`.
    fn heal(
        &self,
        verifier: &dyn ChecksumVerifier,
        may_wait: bool,
        report: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let stretch = Stretch { group: 0, from: 0, to: self.len, logical: self.logical };
        let pieces = stretch.cut(verifier.grain() as u64).into_iter();
        let pieces = pieces.map(|p| Bytes(p.from).to_usize()..Bytes(p.to).to_usize());
        let blamed: Vec<(MemberIndex, ByteOffset)> =
            pieces.clone().flat_map(|piece| self.blamed(&piece, verifier)).collect();
        report.put_off |= may_wait && self.topology.would_suspect(&blamed);
        let room = REPORTED_MAX.saturating_sub(report.blamed.len());
        report.blamed.extend(blamed.into_iter().take(room));
        if report.put_off {
            return Ok(());
        }
        pieces.into_iter().try_for_each(|piece| self.decide(piece, verifier, report, lost))
    }

    /// The members that have something else in a piece than what a checksum says is right.
    fn blamed(
        &self,
        range: &Range<usize>,
        verifier: &dyn ChecksumVerifier,
    ) -> Vec<(MemberIndex, ByteOffset)> {
        let at = ByteOffset(self.logical + range.start as u64);
        let known = || self.known(range, verifier);
        let Some(truth) = differs(&self.read(range)).then(known).flatten() else {
            return Vec::new();
        };
        let unlike = |c: &&Copied| c.part(range).is_some_and(|part| part != &*truth);
        let member = |c: &Copied| (self.group.at(c.column, self.from).0, at);
        self.copies.iter().filter(unlike).map(member).collect()
    }

    /// A piece as a checksum says that it is right, in its newest version. A record that is whole on some copy is
    /// part of it: where a copy has none, it has lost it.
    fn known(
        &self,
        range: &Range<usize>,
        verifier: &dyn ChecksumVerifier,
    ) -> Option<Cow<'_, [u8]>> {
        let at = ByteOffset(self.logical + range.start as u64);
        let read = self.read(range);
        let newest = read.iter().filter_map(|piece| verifier.version(at, piece)).max();
        let is_newest = |piece: &&&[u8]| verifier.version(at, piece) == newest;
        let mut good = read.iter().filter(|piece| verifier.verify(at, piece) == Some(true));
        let good = good.find(is_newest)?;
        let sector = self.topology.label.lock_sector.to_usize().min(good.len());
        let (record, body) = good.split_at(sector);
        let is_rival = |piece: &&[u8]| newest.is_some() && piece.get(sector..) != Some(body);
        if read.iter().filter(is_newest).any(is_rival) {
            // Two nodes have written the same version: no write that was lost.
            return None;
        }
        if verifier.verify_sector(at, record) {
            return Some(Cow::Borrowed(good));
        }
        let records = self.read(&(range.start..range.start + sector)).into_iter();
        let mut whole = records.filter(|other| verifier.verify_sector(at, other));
        match whole.next() {
            None => Some(Cow::Borrowed(good)),
            Some(one) if whole.all(|other| other == one) => Some(Cow::Owned([one, body].concat())),
            // Whoever was writing it may have died over it: nothing says which is right.
            Some(_) => None,
        }
    }

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
        let known = self.known(&range, verifier);
        if known.is_none() && !whole && range.len() > sector {
            // Each may have other sectors that cannot be read.
            for start in range.clone().step_by(sector) {
                let one = start..(start + sector).min(range.end);
                self.decide(one, &NoChecksums, report, lost)?;
            }
            return Ok(());
        }
        let many = |b: &&&[u8]| read.iter().filter(|o| o == b).count() * 2 > self.copies.len();
        let most = || read.iter().find(many).map(|b| Cow::Borrowed(*b));
        let only = || read.first().map(|b| Cow::Borrowed(*b));
        let Some(truth) = known.or_else(|| if differ { most() } else { only() }) else {
            return self.decide_records(range, verifier, report, lost);
        };
        for (start, new) in range.step_by(sector).zip(truth.chunks(sector)) {
            if self.concurrent && self.is_in_doubt(start, new, verifier) {
                undecided(report, self.logical + start as u64, new.len());
                continue;
            }
            self.write_all(start, new, report, lost)?;
        }
        Ok(())
    }

    /// Nothing says what is right of a piece as a whole, but single sectors may: a sector is right
    /// if it is whole on some copies, and the same on these. If two copies are whole and differ,
    /// one is being written.
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
    /// damaged nobody has written so, nor nothing where a whole record stands elsewhere.)
    fn is_in_doubt(&self, start: usize, new: &[u8], verifier: &dyn ChecksumVerifier) -> bool {
        let first = self.copies.first().and_then(|f| f.part(&(start..start + new.len())));
        let at = ByteOffset(self.logical + start as u64);
        first.is_some_and(|first| {
            let record = is_record(first) || is_record(new);
            let whole = |sector| verifier.verify_sector(at, sector);
            let sound = || !verifier.has_damaged_record(at, first) && (whole(first) || !whole(new));
            first != new && record && sound()
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

/// Brings a copy that could not be read, and was rewritten, up to date with what others have
/// compared and written on the first copy meanwhile.
pub(crate) fn after(
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
            Err(error) => topology.do_without(member, error, lost)?,
        }
    }
    Ok(())
}
