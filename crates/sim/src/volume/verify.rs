//! Comparing the pool with the reference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes};
use braid_pool::{ChecksumVerifier, NoChecksums, Place, Pool};

use super::world::{State, World};
use crate::contents::{SECTOR, is_unknown, value_of};

const SECTOR_BYTES: u64 = SECTOR as u64;
/// Sectors compared at a time.
const RUN: u64 = 2048;
/// Bytes of the places that are changed by compare-and-write.
pub(super) const LOCKS: u64 = 16 << 10;

/// Where a byte stands in a parity group: its group and its place there.
fn in_parity(pool: &Pool, at: u64) -> Option<(u16, u64)> {
    let map = pool.map();
    let piece = map.pieces(ByteOffset(at), Bytes(1)).next()?;
    let Place::Group(index) = piece.place else { return None };
    map.groups().get(usize::from(index))?.row_len()?;
    Some((index, piece.at.0))
}

/// Whether a byte of a parity group stands on a member that is not whole, known or not: who reads it
/// computes it.
pub(super) fn is_computed(state: &State, pool: &Pool, at: u64) -> bool {
    let Some((index, offset)) = in_parity(pool, at) else { return false };
    let (info, suspects, map) = (pool.info(), state.suspects(), pool.map());
    let group = map.groups().get(usize::from(index));
    let Some((member, _)) = group.and_then(|g| g.locate(ByteOffset(offset))) else { return false };
    let of = pool.member_states().into_iter().find(|s| s.0 == member).map(|s| s.1);
    let doubtful =
        info.members.get(usize::from(member.0)).is_none_or(|m| suspects.contains(&m.path));
    doubtful || !matches!(of, Some(MemberState::Active | MemberState::Leaving))
}

/// Of the sectors of a batch of writes (from, how many) those that are written with all other data
/// from which their parity is computed: a parity's byte is of the bytes at its place in each unit of the row.
pub(super) fn whole_rows(pool: &Pool, runs: &[(u64, u64)]) -> BTreeSet<u64> {
    let mut beside: BTreeMap<(u16, u64, u64), BTreeSet<u64>> = BTreeMap::new();
    let map = pool.map();
    let mut whole = BTreeSet::new();
    for sector in runs.iter().flat_map(|(at, len)| *at..at + len) {
        let Some((index, offset)) = in_parity(pool, sector * SECTOR_BYTES) else { continue };
        let Some(group) = map.groups().get(usize::from(index)) else { continue };
        let Some(row) = group.row_len() else { continue };
        let data = group.members().count() - group.tolerance();
        let unit = row / (data as u64).max(1);
        let together = beside.entry((index, offset / row, offset % unit)).or_default();
        together.insert(sector);
        if together.len() == data {
            whole.append(together);
        }
    }
    whole
}

/// Where locks stand: on a mirror, or on bare members.
pub(super) fn lock_area(pool: &Pool) -> Option<u64> {
    let (info, map) = (pool.info(), pool.map());
    let starts = info.subpools.iter().map(|s| s.start.0);
    let good = |at: &u64| {
        map.pieces(ByteOffset(*at), Bytes(LOCKS)).all(|p| match p.place {
            Place::Member(_) => true,
            Place::Group(g) => {
                map.groups().get(usize::from(g)).is_some_and(|g| g.row_len().is_none())
            }
        })
    };
    starts.filter(|at| at % LOCKS == 0).find(good)
}

/// Compares what a read that began at `from` has given.
pub(super) fn compare(state: &mut State, pool: &Pool, at: u64, bytes: &[u8], from: u64) {
    state.report.reads += 1;
    for (sector, bytes) in (at..).zip(bytes.chunks(SECTOR)) {
        let value = value_of(sector, bytes);
        if state.model.may_read(sector, value, from) {
            continue;
        }
        // A write of its whole row under way, and it stands on a member that is away: neither old nor
        // new. What it leaves there when it never ends is loose.
        let under_way =
            state.model.is_open(sector) && is_computed(state, pool, sector * SECTOR_BYTES);
        if under_way || state.model.is_loose(sector) {
            continue;
        }
        let said = state.model.say(sector);
        return state.fail(format!("sector {sector} reads as {value:#x}: {said}"));
    }
}

/// Reads everything that was ever written. After a `crash` it is what is durable, and the
/// reference takes it as it is.
pub(super) fn verify(world: &Arc<World>, me: usize, pool: &Pool, crash: bool) {
    let runs = world.state().model.runs(RUN);
    for (at, len) in runs {
        let mut bytes = vec![0; Bytes(len * SECTOR_BYTES).to_usize()];
        let from = world.state().model.now();
        let read = pool.read(ByteOffset(at * SECTOR_BYTES), &mut bytes);
        let mut state = world.state();
        if state.has_ended(me) {
            return;
        }
        if let Err(error) = read {
            return state.fail(format!("sectors {at}+{len} cannot be read: {error}"));
        }
        if !crash {
            compare(&mut state, pool, at, &bytes, from);
            continue;
        }
        let whole: Vec<u64> =
            (at..).zip(bytes.chunks(SECTOR)).map(|(s, b)| value_of(s, b)).collect();
        for (sector, value) in (at..).zip(whole) {
            let loose = || {
                let fresh = state.model.is_fresh(sector)
                    && is_computed(&state, pool, sector * SECTOR_BYTES);
                fresh || state.model.is_loose(sector)
            };
            if !state.model.may_survive(sector, value) && !loose() {
                let said = state.model.say(sector);
                return state
                    .fail(format!("after the crash sector {sector} is {value:#x}: {said}"));
            }
            state.model.settle(sector, value);
        }
    }
}

/// Knows every sector by the reference.
struct Knows<'a>(&'a World);

impl ChecksumVerifier for Knows<'_> {
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool> {
        let mut state = self.0.state();
        let from = state.model.now();
        let first = at.0 / SECTOR_BYTES;
        let mut sectors = (first..).zip(bytes.chunks(SECTOR));
        let good = |s: u64, b: &[u8]| {
            state.model.is_loose(s) || state.model.may_read(s, value_of(s, b), from)
        };
        Some(sectors.all(|(s, b)| good(s, b)))
    }
}

/// Knows what a sector is by itself, as a checksum would.
pub(super) struct Seals;

impl ChecksumVerifier for Seals {
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool> {
        Some(self.verify_sector(at, bytes))
    }
    fn verify_sector(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        let sectors = (at.0 / SECTOR_BYTES..).zip(bytes.chunks(SECTOR));
        sectors.into_iter().all(|(s, b)| !is_unknown(value_of(s, b)))
    }
}

/// Scrubs after rot whose place a checksum knows, if there is some: all can be decided.
pub(super) fn heal(world: &Arc<World>, me: usize, pool: &Pool) {
    if !world.state().rotten {
        return;
    }
    let scrubbed = pool.scrub(&Seals, &mut |_, _| true);
    let mut state = world.state();
    if state.has_ended(me) {
        return;
    }
    state.rotten = false;
    let clean = state.suspects().is_empty();
    match scrubbed {
        Err(error) if clean => state.fail(format!("scrub of rot: {error}")),
        Ok(s) if clean && s.undecided.0 != 0 => state.fail(format!("rot was not decided: {s:?}")),
        Ok(s) => state.tell(format!("rot healed: {}", s.healed)),
        Err(_) => {}
    }
}

/// Scrubs all. `rotten`: there is something to heal, and the reference says what is right.
pub(super) fn scrub(world: &Arc<World>, me: usize, pool: &Pool, rotten: bool) {
    let faults = world.state().report.faults;
    let before = world.state().suspects().is_empty();
    let pace = &mut |_, _: &_| true;
    let scrubbed =
        if rotten { pool.scrub(&Knows(world), pace) } else { pool.scrub(&NoChecksums, pace) };
    let mut state = world.state();
    if state.has_ended(me) {
        return;
    }
    let aborted = state.nodes.get(me).is_some_and(|n| n.aborted);
    let quiet = before && faults == state.report.faults;
    let clean = quiet && state.suspects().is_empty();
    match scrubbed {
        Err(error) if clean && !aborted => state.fail(format!("scrub: {error}")),
        Ok(s) if s.undecided.0 != 0 && clean => {
            let places: Vec<u64> = s.places.iter().take(4).map(|p| p.0).collect();
            state.fail(format!("copies or parity differ at {places:?}: {s:?}"));
        }
        Ok(s) if s.healed.0 != 0 && clean && !rotten => {
            state.fail(format!("copies or parity differed: {s:?}"));
        }
        Ok(s) if s.healed.0 == 0 && rotten => state.fail(format!("rot was not found: {s:?}")),
        _ => {}
    }
}
