//! Counting up this node's event count, on every member in use: see [`crate::labels::events`].

use std::sync::Arc;

use braid_device::{AlignedBuf, Device, DeviceError, Op, Request, run};
use braid_format::ByteOffset;
use braid_format::label::Label;
use braid_format::lock_record::Life;
use braid_format::redundancy::RawEventCount;
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::error::PoolError;
use crate::labels::{counts, event_names, highest_count};
use crate::pool::Pool;
use crate::topology::{FailedMembers, Topology};

impl Pool {
    /// Counts up the event count of `life`'s slot twice, durably: this node begins to use the pool, or
    /// has ended. A member put back from an image of an earlier time is found from then on. Nobody else
    /// has the slot.
    ///
    /// # Errors
    /// This node has withdrawn; a member failed that cannot be spared.
    pub fn count_up(&self, life: Life) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let Some(at) = RawEventCount::at(life.slot.0) else { return Ok(()) };
        loop {
            // In an epoch that comes to nothing, a member that is failed there would fall behind.
            self.0.await_ready()?;
            // The epoch is let go before it is changed.
            let counted = count_twice(&self.0.epochs.read(), life, at);
            match counted {
                Ok(()) => return Ok(()),
                // The next number comes when it is known that these count no more.
                Err(failed) => self.0.fail_members(&failed)?,
            }
        }
    }

    /// Zeroes all event counts of all members: they are taken as they are. Nobody uses the pool.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn forget_events(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let topology = self.0.epochs.read();
        let len = usize::from(RawEventCount::SLOTS) * RawEventCount::SECTOR;
        let zeros = AlignedBuf::zeroed(len);
        for (_, _, device) in used(&topology) {
            device.write(RawEventCount::AT, &zeros)?;
            device.flush()?;
        }
        Ok(())
    }
}

/// A member in use: its identity, its place, its device.
type Used<'a> = (Uuid, usize, &'a Arc<dyn Device>);

fn used(topology: &Topology) -> Vec<Used<'_>> {
    let members = topology.label.members.iter().zip(&topology.devices).enumerate();
    let used = members.filter(|(_, (m, _))| counts(m));
    used.map(|(i, (m, device))| (m.uuid, i, device)).collect()
}

/// Brings all members to the highest number, then to the next, then to the one after that: each step is
/// durable on all before the next begins.
fn count_twice(topology: &Topology, life: Life, at: ByteOffset) -> Result<(), FailedMembers> {
    let all = used(topology);
    let label = &topology.label;
    let stands = |(_, i, device): &Used<'_>| {
        label.members.get(*i).and_then(|m| highest_count(&***device, label, m))
    };
    let stands: Vec<Option<u64>> = all.iter().map(stands).collect();
    let highest = stands.iter().flatten().max().copied().unwrap_or(0);
    let behind = all.iter().zip(&stands).filter(|(_, count)| **count != Some(highest));
    let behind: Vec<Used<'_>> = behind.map(|(u, _)| *u).collect();
    write_count(label, &behind, (life, at), highest)?;
    // All: who wrote the highest may have died before it was durable.
    flush(&all)?;
    for count in [highest.saturating_add(1), highest.saturating_add(2)] {
        write_count(label, &all, (life, at), count)?;
        flush(&all)?;
    }
    Ok(())
}

fn write_count(
    label: &Label,
    members: &[Used<'_>],
    (life, at): (Life, ByteOffset),
    count: u64,
) -> Result<(), FailedMembers> {
    let sector = |(_, i, _): &Used<'_>| {
        let mut sector = AlignedBuf::zeroed(RawEventCount::SECTOR);
        if let Some(member) = label.members.get(*i) {
            let raw = RawEventCount::new(event_names(label, member), life, count);
            for (to, from) in sector.iter_mut().zip(raw.as_bytes()) {
                *to = *from;
            }
        }
        sector
    };
    let sectors: Vec<AlignedBuf> = members.iter().map(sector).collect();
    let writes = members.iter().zip(&sectors);
    all_of(members, writes.map(|((_, _, d), s)| Request::new(&***d, at, Op::Write(s))).collect())
}

fn flush(members: &[Used<'_>]) -> Result<(), FailedMembers> {
    all_of(members, members.iter().map(|(_, _, d)| Request::flush(&***d)).collect())
}

/// Runs a request for each of `members`; those whose request failed.
fn all_of(members: &[Used<'_>], mut requests: Vec<Request<'_>>) -> Result<(), FailedMembers> {
    run(&mut requests);
    let results = requests.into_iter().map(|r| r.result);
    let failed = |((uuid, _, _), result): (&Used<'_>, Result<(), DeviceError>)| {
        result.err().map(|error| (*uuid, error))
    };
    let failed: FailedMembers = members.iter().zip(results).filter_map(failed).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed) }
}
