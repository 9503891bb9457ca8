//! Event counts: which members were put back from an old image. docs/FORMAT.md section 1.7.
//!
//! Each node slot has a count on every member in use. A node counts on from the highest number of all
//! slots, and makes each number durable on all members before it writes the next. So a member whose highest
//! count is behind by two or more has missed something, though its label is of the epoch in force.

use braid_device::{AlignedBuf, Device, Op, Request, run};
use braid_format::MemberIndex;
use braid_format::label::{Label, Member};
use braid_format::redundancy::{EventCount, RawEventCount};

use super::assess::counts;
use super::read::{Found, id, own_uuid};

/// Counts that differ by less do so because a node stopped between two members.
const BEHIND: u64 = 2;

/// What a member's counts name: the pool, the member, and since when it has its state.
pub(crate) fn names(label: &Label, member: &Member) -> ([u8; 16], [u8; 16], u64) {
    (label.pool.into_bytes(), member.uuid.into_bytes(), member.state_epoch.0)
}

/// Those of `found`, by their places, that are members in use by `label`, and that were put back from an
/// old image.
pub(crate) fn out_of_date(found: &[Found], label: &Label) -> Vec<(usize, MemberIndex)> {
    let used: Vec<(usize, MemberIndex, &Member)> = found
        .iter()
        .enumerate()
        .filter(|(_, f)| f.carries(id(label)))
        .filter_map(|(i, f)| {
            let uuid = f.newest().and_then(own_uuid)?;
            let mut members = (0_u16..).map(MemberIndex).zip(&label.members);
            let (index, member) = members.find(|(_, m)| m.uuid == uuid)?;
            counts(member).then_some((i, index, member))
        })
        .collect();
    if used.len() < 2 {
        return Vec::new();
    }
    let read = |of: &[(usize, MemberIndex, &Member)]| {
        let of = of.iter().filter_map(|(i, _, m)| Some((&*found.get(*i)?.device, *m)));
        read_counts(label, &of.collect::<Vec<_>>())
    };
    let all = read(&used);
    let by_slot = highest_by_slot(&all);
    let old = used.iter().zip(&all).filter(|(_, counts)| is_behind(counts, &by_slot));
    let mut behind: Vec<_> = old.map(|(u, _)| *u).collect();
    if behind.is_empty() {
        return Vec::new();
    }
    // A node may be counting just now. A member that is still behind in this second read was behind
    // when the highest number was written.
    let again = read(&behind);
    let mut again = again.iter();
    behind.retain(|_| again.next().is_some_and(|counts| is_behind(counts, &by_slot)));
    // Or has failed a member, which is then not counted on.
    let moved = |f: &Found| !Found::read(f.device.clone()).labels().eq(f.labels());
    if behind.is_empty() || found.iter().any(moved) {
        return Vec::new();
    }
    behind.into_iter().map(|(i, index, _)| (i, index)).collect()
}

/// The highest number that any of these members has, for each slot.
fn highest_by_slot(members: &[Counts]) -> Vec<u64> {
    let of_slot = |slot| {
        let said = members.iter().filter_map(|counts: &Counts| counts.get(slot).copied());
        highest(said).unwrap_or(0)
    };
    (0..usize::from(RawEventCount::SLOTS)).map(of_slot).collect()
}

/// The highest of these counts; `None`: they say nothing.
pub(crate) fn highest(counts: impl IntoIterator<Item = EventCount>) -> Option<u64> {
    let counts = counts.into_iter().filter_map(|said| match said {
        EventCount::Count(count) => Some(count),
        EventCount::Nothing | EventCount::Damaged => None,
    });
    counts.max()
}

/// Whether a member lacks what others have. A slot whose place is damaged says nothing of that: there the
/// member may have had the number.
fn is_behind(counts: &Counts, by_slot: &[u64]) -> bool {
    let Some(own) = highest(counts.iter().copied()) else { return false };
    let mut slots = counts.iter().zip(by_slot);
    slots.any(|(said, high)| *said != EventCount::Damaged && high.saturating_sub(own) >= BEHIND)
}

/// A member's counts, by slot; none if they cannot be read.
pub(crate) type Counts = Vec<EventCount>;

/// The counts on each of these members.
pub(crate) fn read_counts(label: &Label, members: &[(&dyn Device, &Member)]) -> Vec<Counts> {
    let len = usize::from(RawEventCount::SLOTS) * RawEventCount::SECTOR;
    let mut bufs: Vec<AlignedBuf> = members.iter().map(|_| AlignedBuf::zeroed(len)).collect();
    let reads = members.iter().zip(&mut bufs);
    let mut reads: Vec<Request<'_>> = reads
        .map(|((device, _), buf)| Request::new(*device, RawEventCount::AT, Op::Read(buf)))
        .collect();
    run(&mut reads);
    let results: Vec<_> = reads.into_iter().map(|read| read.result).collect();
    let counted = members.iter().zip(&bufs).zip(results);
    counted
        .map(|(((device, member), buf), result)| {
            if let Err(error) = result {
                tracing::warn!(path = device.info().name, %error, "event counts cannot be read");
                return Vec::new();
            }
            let of = names(label, member);
            let sectors = (0_u16..).zip(buf.chunks(RawEventCount::SECTOR));
            sectors.map(|(slot, sector)| RawEventCount::said(sector, of, slot)).collect()
        })
        .collect()
}
