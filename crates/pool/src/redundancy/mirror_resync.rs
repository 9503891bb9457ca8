//! Making the copies of a mirror equal after a crash.
//!
//! If copies differ because they were being written, each is as good as the other. Then the first
//! copy counts, because compare-and-writes are decided there, and another node may have read a lock
//! record there. But in most of a region nobody was writing, and a copy that differs there has
//! rotted. So bytes whose checksum is right count before the first copy. Each record of a lock or a
//! node is judged by itself, because the record and what stands behind it may be right on different
//! copies. If no checksum is known, and more than half of all copies agree, their bytes count, but
//! not for records: the newest may be on the first copy alone. A copy whose member has damaged metadata
//! ([`CopyDamage`]) counts after the others.

use std::ops::Range;

use braid_device::{AlignedBuf, CawOutcome, DeviceError};
use braid_format::{ByteOffset, Bytes};

use super::atomic_records::is_record;
use super::catch_up::bring_after;
use super::copy_damage::{CopyDamage, pieces};
use super::reconstruct::{read_mending, still_a_member};
use super::sectors::{differing, read_sectors};
use super::verifier::ChecksumVerifier;
use crate::error::PoolError;
use crate::layout::group::Group;
use crate::layout::stretch::Stretch;
use crate::topology::{Lost, Topology};

/// A mirror whose copies are made equal.
pub(super) struct Mirror<'a> {
    pub topology: &'a Topology,
    pub group: &'a Group,
    /// All runs of the pool's bytes on it that are made equal.
    pub stretches: &'a [Stretch],
    pub verifier: &'a dyn ChecksumVerifier,
    /// Whose metadata is damaged.
    pub copy_damage: &'a CopyDamage,
}

/// A run of bytes as a copy that is not the first has it.
struct Other {
    column: usize,
    /// It was in use when the crash came: it may be right.
    in_sync: bool,
    bytes: AlignedBuf,
    /// Where in it sectors begin that cannot be read.
    unread: Vec<usize>,
}

impl Other {
    /// A part of it, if that may be right.
    fn part(&self, range: &Range<usize>) -> Option<&[u8]> {
        let bad = self.unread.iter().any(|at| range.contains(at));
        self.bytes.get(range.clone()).filter(|_| self.in_sync && !bad)
    }
}

impl Mirror<'_> {
    /// Gives every copy of the mirror's bytes `from..to` what is right; bytes that were not. Sectors that
    /// no copy has stay as they are.
    ///
    /// # Errors
    /// A member that cannot be spared.
    pub fn resync(&self, (from, to): (u64, u64), lost: &mut Lost) -> Result<u64, PoolError> {
        let (topology, group) = (self.topology, self.group);
        let Some(source) = topology.copies(group).next() else { return Ok(0) };
        let mut first = AlignedBuf::zeroed(Bytes(to - from).to_usize());
        let (member, at) = group.at(source, from);
        if topology.device(member).read(at, &mut first).is_ok() {
            return self.resync_to(source, from, &first, lost);
        }
        let (mut changed, mut at) = (0, from);
        for gap in self.gaps(from, to).into_iter().chain([to]) {
            let mut first = AlignedBuf::zeroed(Bytes(gap - at).to_usize());
            if at < gap {
                if !read_mending(topology, group, source, (at, &mut first), lost)? {
                    return Ok(changed);
                }
                changed += self.resync_to(source, at, &first, lost)?;
            }
            at = gap + self.sector() as u64;
        }
        Ok(changed)
    }

    /// Where sectors of the mirror's bytes `from..to` begin that no copy has. None, if a copy is no
    /// member any more: that one has failed.
    fn gaps(&self, from: u64, to: u64) -> Vec<u64> {
        let (topology, sector) = (self.topology, self.sector());
        let mut bytes = AlignedBuf::zeroed(Bytes(to - from).to_usize());
        let mut gaps: Option<Vec<usize>> = None;
        for column in topology.copies(self.group) {
            let (member, at) = self.group.at(column, from);
            if !still_a_member(topology, member) {
                return Vec::new();
            }
            let unread = read_sectors(&**topology.device(member), at, &mut bytes, sector);
            gaps = Some(gaps.map_or_else(
                || unread.clone(),
                |gaps| gaps.into_iter().filter(|gap| unread.contains(gap)).collect(),
            ));
        }
        let gaps: Vec<u64> = gaps.into_iter().flatten().map(|gap| from + gap as u64).collect();
        if let Some(first) = topology.copies(self.group).next().filter(|_| !gaps.is_empty()) {
            let (member, at) = self.group.at(first, gaps.first().copied().unwrap_or(from));
            let (member, sectors) = (topology.name(member), gaps.len());
            tracing::error!(member, %at, sectors, "cannot be read, on any member");
        }
        gaps
    }

    /// [`Mirror::resync`] of the run from `from` that reads as `first` on the first copy, `source`.
    fn resync_to(
        &self,
        source: usize,
        from: u64,
        first: &[u8],
        lost: &mut Lost,
    ) -> Result<u64, PoolError> {
        let (topology, group) = (self.topology, self.group);
        let to = from + first.len() as u64;
        let others = self.read_others(source, from, first.len(), lost)?;
        if others.iter().all(|o| o.unread.is_empty() && o.bytes[..] == first[..]) {
            return Ok(0);
        }
        let mut truth = AlignedBuf::zeroed(first.len());
        truth.copy_from_slice(first);
        for (range, at) in pieces(self.stretches, self.verifier, from, to) {
            self.decide(source, &mut truth, &others, (range, at));
        }
        let Some(mut changed) = self.mend_first(source, from, (first, &mut truth), lost)? else {
            return Ok(0);
        };
        for other in &others {
            let Some(range) = self.wrong(other, &truth) else { continue };
            let (Some(old), Some(new)) = (other.bytes.get(range.clone()), truth.get(range.clone()))
            else {
                continue;
            };
            changed += differing(new, old);
            let start = from + range.start as u64;
            let (member, place) = group.at(other.column, start);
            if let Err(error) = topology.device(member).write(place, new) {
                topology.do_without(member, error, lost)?;
                continue;
            }
            bring_after(topology, group, (source, other.column), (start, new), lost)?;
        }
        Ok(changed)
    }

    fn sector(&self) -> usize {
        self.topology.label.lock_sector.to_usize()
    }

    /// A run of bytes as all copies but the first have it. One that is no member any more is `lost`.
    fn read_others(
        &self,
        source: usize,
        from: u64,
        len: usize,
        lost: &mut Lost,
    ) -> Result<Vec<Other>, PoolError> {
        let (topology, group) = (self.topology, self.group);
        let mut others = Vec::new();
        for column in (0..group.columns.len()).filter(|c| *c != source) {
            let (member, at) = group.at(column, from);
            if !topology.writable(member) {
                continue;
            }
            let mut bytes = AlignedBuf::zeroed(len);
            let device = &**topology.device(member);
            let mut unread = Vec::new();
            if let Err(error) = device.read(at, &mut bytes) {
                if !still_a_member(topology, member) {
                    topology.do_without(member, error, lost)?;
                    continue;
                }
                unread = read_sectors(device, at, &mut bytes, self.sector());
            }
            let in_sync = topology.readable(member);
            others.push(Other { column, in_sync, bytes, unread });
        }
        Ok(others)
    }

    /// Finds out what is right in a piece, the pool's bytes from `at`, of which `truth` is what the
    /// first copy, `source`, has.
    fn decide(
        &self,
        source: usize,
        truth: &mut [u8],
        others: &[Other],
        (range, at): (Range<usize>, ByteOffset),
    ) {
        let sector = self.sector();
        let mut differs = Vec::new();
        for start in range.clone().step_by(sector) {
            let one = start..(start + sector).min(range.end);
            let here = at + Bytes::from(start - range.start);
            let Some(now) = truth.get_mut(one.clone()) else { continue };
            let unlike = || others.iter().filter_map(|o| o.part(&one)).filter(|b| **b != *now);
            if unlike().next().is_none() || self.verifier.verify_sector(here, now) {
                continue;
            }
            match unlike().find(|b| self.verifier.verify_sector(here, b)) {
                Some(whole) => now.copy_from_slice(whole),
                None => differs.push(one),
            }
        }
        let body = (range.start + sector).min(range.end)..range.end;
        if differs.is_empty() {
            return;
        }
        let version = |piece: &[u8]| self.verifier.version(at, piece);
        let first = truth.get(range.clone()).filter(|piece| self.is_good(at, piece));
        let (first_is_good, first_version) = (first.is_some(), first.and_then(version));
        let with = others.iter().filter(|o| o.part(&body).is_some());
        let pieces = with.filter_map(|o| Some((o, o.bytes.get(range.clone())?)));
        let good = pieces.filter(|(_, piece)| self.is_good(at, piece));
        let good = good.filter(|(_, piece)| !first_is_good || version(piece) > first_version);
        // The first one of the newest.
        if let Some((other, _)) = good.rev().max_by_key(|(_, piece)| version(piece)) {
            if let (Some(to), Some(good)) = (truth.get_mut(body.clone()), other.part(&body)) {
                to.copy_from_slice(good);
            }
            return;
        }
        if first_is_good {
            return;
        }
        for one in differs {
            self.agree(source, truth, others, one);
        }
    }

    fn is_good(&self, at: ByteOffset, piece: &[u8]) -> bool {
        self.verifier.verify_body(at, piece)
    }

    /// What speaks against a copy: its member is suspected, damaged pieces of it, pieces that it lacks.
    fn harm(&self, column: usize) -> (bool, usize, usize) {
        let (topology, member) = (self.topology, self.group.at(column, 0).0);
        let lacking = self.copy_damage.lacking(topology, member);
        (topology.is_suspected(member), topology.damaged(member), lacking)
    }

    /// Takes for a sector what more than half of all copies have, if that is no record's place; if there
    /// is one against which less speaks than against the first, what that has.
    fn agree(&self, source: usize, truth: &mut [u8], others: &[Other], one: Range<usize>) {
        let Some(now) = truth.get_mut(one.clone()) else { return };
        let all = 1 + others.iter().filter(|o| o.in_sync).count();
        let theirs: Vec<&[u8]> = others.iter().filter_map(|o| o.part(&one)).collect();
        if is_record(now) || theirs.iter().any(|b| is_record(b)) {
            return;
        }
        let with = others.iter().filter_map(|o| Some((self.harm(o.column), o.part(&one)?)));
        if let Some((less, sound)) = with.min_by_key(|(harm, _)| *harm)
            && less < self.harm(source)
        {
            return now.copy_from_slice(sound);
        }
        let many = |b: &&&[u8]| theirs.iter().filter(|o| o == b).count() * 2 > all;
        if let Some(most) = theirs.iter().find(many) {
            now.copy_from_slice(most);
        }
    }

    /// Writes on the first copy what is right. Others may compare-and-write there: what they have made
    /// of it is right then. `None`: it failed, and is `lost`.
    fn mend_first(
        &self,
        source: usize,
        from: u64,
        (was, truth): (&[u8], &mut [u8]),
        lost: &mut Lost,
    ) -> Result<Option<u64>, PoolError> {
        let (topology, sector) = (self.topology, self.sector());
        let (member, place) = self.group.at(source, from);
        let device = topology.device(member);
        let mut changed = 0;
        let sectors = was.chunks(sector).zip(truth.chunks_mut(sector)).enumerate();
        for (i, (was, truth)) in sectors.filter(|(_, (was, truth))| was != truth) {
            let at = place + Bytes::from(i * sector);
            let done = match device.compare_and_write(at, was, truth) {
                Ok(CawOutcome::Written) => {
                    changed += truth.len() as u64;
                    Ok(())
                }
                Ok(CawOutcome::Mismatch(now)) => {
                    truth.copy_from_slice(&now);
                    Ok(())
                }
                Err(DeviceError::Unknown { .. }) => device.read(at, truth),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                topology.do_without(member, error, lost)?;
                return Ok(None);
            }
        }
        if changed > 0 {
            let member = topology.name(member);
            tracing::warn!(member, bytes = changed, "had rotted; rewritten from another copy");
        }
        Ok(Some(changed))
    }

    /// From the first to the last sector of a copy that is not right.
    fn wrong(&self, other: &Other, truth: &[u8]) -> Option<Range<usize>> {
        let sector = self.sector();
        let both = other.bytes.chunks(sector).zip(truth.chunks(sector)).enumerate();
        let starts = both.map(|(i, (old, new))| (i * sector, old != new));
        let mut wrong = starts.filter(|(at, unlike)| *unlike || other.unread.contains(at));
        let first = wrong.next()?.0;
        let last = wrong.next_back().map_or(first, |l| l.0);
        Some(first..(last + sector).min(truth.len()))
    }
}

#[cfg(test)]
mod tests;
