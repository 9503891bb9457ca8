//! What is looked at after a crash before copies are made equal: whose metadata is damaged.
//!
//! File data has no checksums. A member that returns garbage for metadata returns it for file data too, and its
//! copy must not be brought over another one. So all regions are read once before anything is written, and the
//! pieces judged that differ and of which some copy is good. A copy *lacks* such a piece if it has something else:
//! perhaps only because it was being written. It is *damaged* if that cannot be
//! ([`ChecksumVerifier::is_settled`]); then it counts as it does in a scrub.
//!
//! What reads the same everywhere is not read again when the copies are made equal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use braid_device::{AlignedBuf, Op, Request, run};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use uuid::Uuid;

use super::EpochInUse;
use super::verifier::ChecksumVerifier;
use crate::health::suspect::FAIL_AT;
use crate::layout::group::Shape;
use crate::layout::stretch::{Stretch, spans, stretches};
use crate::topology::{EpochTag, Topology};

/// Bytes of a mirror compared at a time.
pub(super) const CHUNK: u64 = 1 << 20;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct CopyDamage {
    /// The epoch in which all was read, if it was one.
    epoch: Option<EpochTag>,
    began: bool,
    /// Runs of mirrors whose copies differ, or cannot be read: a group's place, and where it begins.
    differing: BTreeSet<(u16, u64)>,
    /// Pieces that are damaged on a member, the pool's bytes from there.
    pub damaged: BTreeMap<MemberIndex, Vec<ByteOffset>>,
    /// How many pieces a member lacks that are good on another one.
    lacking: BTreeMap<Uuid, usize>,
}

/// What a column has of a run.
struct Column {
    member: MemberIndex,
    in_sync: bool,
    bytes: AlignedBuf,
}

impl CopyDamage {
    /// Reads what stands on mirrors of the pool's bytes `from..to`.
    pub fn look(
        &mut self,
        topology: &EpochInUse,
        (from, to): (u64, u64),
        verifier: &dyn ChecksumVerifier,
    ) {
        let tag = Some(topology.tag());
        self.epoch = if self.began { self.epoch.filter(|e| Some(*e) == tag) } else { tag };
        self.began = true;
        let all = stretches(&topology.map, from, to);
        for (index, from, to) in spans(&topology.map, from, to) {
            if topology.map.group(index).shape != Shape::Mirror {
                continue;
            }
            let own: Vec<Stretch> = all.iter().copied().filter(|s| s.group == index).collect();
            let mut at = from;
            while at < to {
                let end = to.min(at / CHUNK * CHUNK + CHUNK);
                let _held = topology.lock(index, vec![(at, end)]);
                self.compare(topology, (index, at, end), &own, verifier);
                at = end;
            }
        }
    }

    fn compare(
        &mut self,
        topology: &Topology,
        (index, at, end): (u16, u64, u64),
        own: &[Stretch],
        verifier: &dyn ChecksumVerifier,
    ) {
        let Some(columns) = read(topology, index, (at, end)) else {
            self.differing.insert((index, at));
            return;
        };
        if columns.windows(2).all(|w| w[0].bytes[..] == w[1].bytes[..]) {
            return;
        }
        self.differing.insert((index, at));
        for (range, logical) in pieces(own, verifier, at, end) {
            let part = |c: &Column| c.bytes.get(range.clone()).map(<[u8]>::to_vec);
            let current = || columns.iter().filter(|c| c.in_sync);
            let parts = || current().filter_map(|c| Some((c.member, c.bytes.get(range.clone())?)));
            let Some(first) = columns.first().and_then(part) else { continue };
            if parts().all(|(_, bytes)| *bytes == first[..]) {
                continue;
            }
            let is_good = |bytes: &[u8]| verifier.verify_body(logical, bytes);
            let Some((_, good)) = parts().find(|(_, bytes)| is_good(bytes)) else { continue };
            let lacking = parts().filter(|(_, bytes)| *bytes != good && !is_good(bytes));
            for (member, _) in lacking {
                self.note(topology, member, logical, &|| verifier.is_settled(logical, good));
            }
        }
    }

    fn note(
        &mut self,
        topology: &Topology,
        member: MemberIndex,
        at: ByteOffset,
        settled: &dyn Fn() -> bool,
    ) {
        let Some(uuid) = topology.uuid(member) else { return };
        *self.lacking.entry(uuid).or_default() += 1;
        let damaged = self.damaged.entry(member).or_default();
        if damaged.len() < FAIL_AT && settled() {
            damaged.push(at);
        }
    }

    /// Whether the run of a mirror that begins there was the same on all copies.
    pub fn is_same(&self, topology: &Topology, index: u16, at: u64) -> bool {
        self.epoch == Some(topology.tag()) && !self.differing.contains(&(index, at))
    }

    /// How many pieces a member lacks that are good on another one.
    pub fn lacking(&self, topology: &Topology, member: MemberIndex) -> usize {
        topology.uuid(member).and_then(|m| self.lacking.get(&m)).copied().unwrap_or(0)
    }
}

/// A run of a mirror as all columns in use have it; `None`: one cannot be read.
fn read(topology: &Topology, index: u16, (at, end): (u64, u64)) -> Option<Vec<Column>> {
    let group = topology.map.group(index);
    let places = (0..group.columns.len()).map(|column| group.at(column, at));
    let (members, places): (Vec<MemberIndex>, Vec<ByteOffset>) =
        places.filter(|(member, _)| topology.writable(*member)).unzip();
    let column = |member| {
        let bytes = AlignedBuf::zeroed(Bytes(end - at).to_usize());
        Column { member, in_sync: topology.readable(member), bytes }
    };
    let mut columns: Vec<Column> = members.into_iter().map(column).collect();
    let mut requests: Vec<Request<'_>> = Vec::with_capacity(columns.len());
    for (column, at) in columns.iter_mut().zip(places) {
        let device = &**topology.device(column.member);
        requests.push(Request::new(device, at, Op::Read(&mut column.bytes)));
    }
    run(&mut requests);
    let whole = requests.iter().all(|r| r.result.is_ok());
    drop(requests);
    whole.then_some(columns)
}

/// The pieces that are judged of a mirror's bytes `from..to`, which are of these stretches: where in these
/// bytes, and in the pool.
pub(super) fn pieces(
    stretches: &[Stretch],
    verifier: &dyn ChecksumVerifier,
    from: u64,
    to: u64,
) -> Vec<(Range<usize>, ByteOffset)> {
    let inside = |s: &Stretch| {
        let first = s.from.max(from);
        Stretch { from: first, to: s.to.min(to), logical: s.logical + (first - s.from), ..*s }
    };
    let here = stretches.iter().filter(|s| s.from < to && from < s.to).map(inside);
    let pieces = here.flat_map(|s| s.cut(verifier.grain() as u64));
    let place = |p: Stretch| Bytes(p.from - from).to_usize()..Bytes(p.to - from).to_usize();
    pieces.map(|p| (place(p), ByteOffset(p.logical))).collect()
}
