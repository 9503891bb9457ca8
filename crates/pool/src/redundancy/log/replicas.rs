//! The members that have a copy of a log, and writing to them.

use braid_device::{AlignedBuf, Op, Request, run};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, MemberIndex};

use crate::error::PoolError;
use crate::topology::{Lost, Topology};

/// Sequence numbers and generations are below this; a higher one is no log's.
pub(super) const NUMBERS: u64 = 1 << 62;

/// Where a slot's log stands on a member, if it has room for one.
fn place(topology: &Topology, member: MemberIndex, slot: u16) -> Option<LogPlace> {
    let m = topology.label.members.get(usize::from(member.0))?;
    LogPlace::of_slot(slot, m.data_start)
}

/// Members in sync that have room for a slot's log, from the `slot`-th on, in a circle.
pub(crate) fn candidates(topology: &Topology, slot: u16) -> Vec<(MemberIndex, LogPlace)> {
    let all: Vec<(MemberIndex, LogPlace)> = topology
        .members()
        .filter(|m| topology.readable(*m))
        .filter_map(|m| Some((m, place(topology, m, slot)?)))
        .collect();
    let first = usize::from(slot) % all.len().max(1);
    all.iter().cycle().skip(first).take(all.len()).copied().collect()
}

/// The members that a slot's log is written to: one more than any group can spare.
fn replicas(topology: &Topology, slot: u16) -> Vec<(MemberIndex, LogPlace)> {
    let spare = topology.map.groups().iter().map(crate::layout::group::Group::tolerance).max();
    let mut replicas = candidates(topology, slot);
    replicas.truncate(spare.unwrap_or(0) + 1);
    replicas
}

/// Bytes of a log, and where they go in it.
pub(crate) struct Sector<'a> {
    pub at: fn(&LogPlace, u64) -> ByteOffset,
    /// What `at` is called with.
    pub index: u64,
    pub bytes: &'a AlignedBuf,
}

/// How far and how well something is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// On every replica, at some time.
    Lazy,
    /// On every replica, durably.
    Replicas,
    /// Durably on every member that may have been a replica once: nothing older is left anywhere.
    Everywhere,
}

impl Reach {
    /// At least durable.
    pub const fn durable(self) -> Self {
        match self {
            Self::Lazy => Self::Replicas,
            reach => reach,
        }
    }
}

/// Writes `sectors` to every replica of the log, as far and as durably as `reach` says.
///
/// Replicas that fail are added to `lost`; the others have it.
///
/// # Errors
/// That of the first replica, if all fail.
pub(crate) fn store(
    topology: &Topology,
    slot: u16,
    sectors: &[Sector<'_>],
    reach: Reach,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let replicas = match reach {
        Reach::Everywhere => candidates(topology, slot),
        Reach::Replicas | Reach::Lazy => replicas(topology, slot),
    };
    let mut failed: Lost = Vec::new();
    let mut writes: Vec<Request<'_>> = Vec::new();
    let mut owners = Vec::new();
    for (member, place) in &replicas {
        for s in sectors {
            let device = &**topology.device(*member);
            writes.push(Request::new(device, (s.at)(place, s.index), Op::Write(s.bytes)));
            owners.push(*member);
        }
    }
    run(&mut writes);
    failed.extend(owners.iter().zip(writes).filter_map(|(m, r)| Some((*m, r.result.err()?))));
    if reach != Reach::Lazy {
        let good = replicas.iter().filter(|(m, _)| !failed.iter().any(|(f, _)| f == m));
        let good: Vec<MemberIndex> = good.map(|(m, _)| *m).collect();
        let flush = |m: &MemberIndex| Request::flush(&**topology.device(*m));
        let mut flushes: Vec<Request<'_>> = good.iter().map(flush).collect();
        run(&mut flushes);
        failed.extend(good.iter().zip(flushes).filter_map(|(m, r)| Some((*m, r.result.err()?))));
    }
    failed.dedup_by_key(|(m, _)| *m);
    let stored = replicas.iter().any(|(m, _)| !failed.iter().any(|(f, _)| f == m));
    let error = failed.first().map(|(_, e)| e.clone());
    lost.extend(failed);
    match error {
        Some(error) if !stored => Err(error.into()),
        _ => Ok(()),
    }
}
