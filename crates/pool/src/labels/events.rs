//! Event counts: which members were put back from an old image. docs/FORMAT.md section 1.7.
//!
//! Each node slot has a count on every member in use. A node counts on from the highest number of all
//! slots, and makes each number durable on all members before it writes the next. So a member whose highest
//! count is behind by two or more has missed something, though its label is of the epoch in force.

use braid_device::{AlignedBuf, Device, Op, Request, run};
use braid_format::MemberIndex;
use braid_format::label::{Label, Member};
use braid_format::redundancy::RawEventCount;

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
        highest_counts(label, &of.collect::<Vec<_>>())
    };
    let all = read(&used);
    let highest = all.iter().flatten().max().copied().unwrap_or(0);
    let is_behind = |count: Option<u64>| count.is_some_and(|c| c.saturating_add(BEHIND) <= highest);
    let old = used.iter().zip(&all).filter(|(_, count)| is_behind(**count));
    let mut behind: Vec<_> = old.map(|(u, _)| *u).collect();
    if behind.is_empty() {
        return Vec::new();
    }
    // A node may count just now: whoever is behind still was so when the highest number was written.
    let again = read(&behind);
    let mut again = again.into_iter();
    behind.retain(|_| is_behind(again.next().flatten()));
    // Or has failed a member, which is then not counted on.
    let moved = |f: &Found| !Found::read(f.device.clone()).labels().eq(f.labels());
    if behind.is_empty() || found.iter().any(moved) {
        return Vec::new();
    }
    behind.into_iter().map(|(i, index, _)| (i, index)).collect()
}

/// The highest count of any slot on each of these members; `None`: it has none, or they cannot be read.
pub(crate) fn highest_counts(
    label: &Label,
    members: &[(&dyn Device, &Member)],
) -> Vec<Option<u64>> {
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
                return None;
            }
            let of = names(label, member);
            let sectors = (0_u16..).zip(buf.chunks(RawEventCount::SECTOR));
            sectors.filter_map(|(slot, sector)| RawEventCount::count(sector, of, slot)).max()
        })
        .collect()
}
