//! A node's redundancy log: what makes copies equal and parity right again after a crash.
//!
//! Before the first write to a region of the pool (16 MiB or more) the region is noted, durably:
//! after a crash only noted regions are compared ([`intents`]). Before a part of a parity row
//! changes, its new bytes and new parity are logged, durably: after a crash they are written again,
//! so that the row's other bytes can be had from its parity even if a member is lost in the same
//! crash ([`redo`]): no write hole.
//!
//! A log is written alike to one member more than the pool can lose, and read from all
//! ([`recover`]). Layout: [`braid_format::redundancy`].

pub(crate) mod intents;
pub(crate) mod recover;
pub(crate) mod redo;
#[cfg(test)]
mod tests;

use braid_device::{AlignedBuf, Op, Request, run};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, MemberIndex};

use self::intents::Intents;
use self::redo::Redo;
use crate::error::PoolError;
use crate::group::engine::Lost;
use crate::topology::Topology;

/// Sequence numbers and generations are below this; a higher one is no log's.
const NUMBERS: u64 = 1 << 62;

/// The log of this node.
#[derive(Debug)]
pub(crate) struct Log {
    pub slot: u16,
    pub intents: Intents,
    pub redo: Redo,
}

/// Where a slot's log stands on a member, if it has room for one.
pub(crate) fn place(topology: &Topology, member: MemberIndex, slot: u16) -> Option<LogPlace> {
    let m = topology.label.members.get(usize::from(member.0))?;
    LogPlace::of_slot(slot, m.data_start)
}

/// Members in sync that have room for a slot's log, from the `slot`-th on, in a circle.
pub(crate) fn candidates(topology: &Topology, slot: u16) -> Vec<(MemberIndex, LogPlace)> {
    let all: Vec<(MemberIndex, LogPlace)> = (0..topology.label.members.len())
        .filter_map(|i| u16::try_from(i).ok().map(MemberIndex))
        .filter(|m| topology.readable(*m))
        .filter_map(|m| Some((m, place(topology, m, slot)?)))
        .collect();
    let first = usize::from(slot) % all.len().max(1);
    all.iter().cycle().skip(first).take(all.len()).copied().collect()
}

/// The members that a slot's log is written to: one more than any group can spare.
fn homes(topology: &Topology, slot: u16) -> Vec<(MemberIndex, LogPlace)> {
    let spare = topology.map.groups().iter().map(crate::group::Group::spare_columns).max();
    let mut homes = candidates(topology, slot);
    homes.truncate(spare.unwrap_or(0) + 1);
    homes
}

/// Bytes of a log, and where they go in it.
pub(crate) struct Sector<'a> {
    pub at: fn(&LogPlace, u64) -> ByteOffset,
    /// What `at` is called with.
    pub index: u64,
    pub bytes: &'a AlignedBuf,
}

/// Writes `sectors` to every home of the log, and flushes them if they must last.
///
/// Homes that fail are added to `lost`; the others have it.
///
/// # Errors
/// The first home's, when all failed.
pub(crate) fn store(
    topology: &Topology,
    slot: u16,
    sectors: &[Sector<'_>],
    durable: bool,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let homes = homes(topology, slot);
    let mut failed: Lost = Vec::new();
    let mut writes: Vec<Request<'_>> = Vec::new();
    let mut owners = Vec::new();
    for (member, place) in &homes {
        for s in sectors {
            let device = &**topology.device(*member);
            let at = (s.at)(place, s.index);
            writes.push(Request { device, at, op: Op::Write(s.bytes), result: Ok(()) });
            owners.push(*member);
        }
    }
    run(&mut writes);
    failed.extend(owners.iter().zip(writes).filter_map(|(m, r)| Some((*m, r.result.err()?))));
    if durable {
        let good = homes.iter().filter(|(m, _)| !failed.iter().any(|(f, _)| f == m));
        let good: Vec<MemberIndex> = good.map(|(m, _)| *m).collect();
        let flush = |m: &MemberIndex| Request {
            device: &**topology.device(*m),
            at: ByteOffset(0),
            op: Op::Flush,
            result: Ok(()),
        };
        let mut flushes: Vec<Request<'_>> = good.iter().map(flush).collect();
        run(&mut flushes);
        failed.extend(good.iter().zip(flushes).filter_map(|(m, r)| Some((*m, r.result.err()?))));
    }
    failed.dedup_by_key(|(m, _)| *m);
    let stored = homes.iter().any(|(m, _)| !failed.iter().any(|(f, _)| f == m));
    let error = failed.first().map(|(_, e)| e.clone());
    lost.extend(failed);
    match error {
        Some(error) if !stored => Err(error.into()),
        _ => Ok(()),
    }
}
