//! Counting up this node's event count, on every member in use: see [`crate::labels::events`].

use braid_device::{AlignedBuf, Device, DeviceError, Op, Request, run};
use braid_format::label::{Label, Member};
use braid_format::lock_record::Life;
use braid_format::redundancy::RawEventCount;
use braid_format::{ByteOffset, Incarnation, NodeId};
use zerocopy::IntoBytes;

use crate::error::PoolError;
use crate::labels::{counts, event_names, highest, read_counts};
use crate::pool::Pool;
use crate::topology::Topology;

impl Pool {
    /// Counts up the event count of `life`'s slot twice, durably: this node begins to use the pool, or
    /// has ended. A member put back from an image of an earlier time is found from then on. Nobody else
    /// has the slot.
    ///
    /// If a member's count cannot be written, nothing is counted beyond what all members have: the log
    /// says so, the pool is used all the same, and an old image of a member is not found for the time.
    ///
    /// # Errors
    /// This node has withdrawn; the epoch in use cannot be made durable.
    pub fn count_up(&self, life: Life) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let Some(at) = RawEventCount::at(life.slot.0) else { return Ok(()) };
        // In an epoch that comes to nothing, a member that is failed there would fall behind.
        self.0.await_ready()?;
        let counted = count_twice(&self.0.epochs.read(), life, at);
        if let Err((path, error)) = counted {
            tracing::warn!(
                path,
                %error,
                "the event count cannot be written: members that are put back from an old image are not noticed until it can"
            );
        }
        Ok(())
    }

    /// Takes all members as they are: each gets numbers beyond all that were counted, so that a device
    /// that comes back from before this is out of date. Nobody uses the pool.
    ///
    /// # Errors
    /// [`PoolError::Device`]: it is to be done again.
    pub fn accept_members(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let life = Life { slot: NodeId(0), incarnation: Incarnation(0) };
        let Some(at) = RawEventCount::at(life.slot.0) else { return Ok(()) };
        count_twice(&self.0.epochs.read(), life, at).map_err(|(_, error)| error.into())
    }
}

/// A member in use, and its device.
type Used<'a> = (&'a dyn Device, &'a Member);

fn used(topology: &Topology) -> Vec<Used<'_>> {
    let members = topology.devices.iter().zip(&topology.label.members);
    members.filter(|(_, m)| counts(m)).map(|(device, m)| (&**device, m)).collect()
}

/// Brings all members to the highest number, then to the next, then to the one after that: each step is
/// durable on all before the next begins.
fn count_twice(topology: &Topology, life: Life, at: ByteOffset) -> Result<(), NotCounted> {
    let (label, all) = (&topology.label, used(topology));
    if all.len() < 2 {
        return Ok(());
    }
    let stands = read_counts(label, &all);
    if stands.iter().all(Vec::is_empty) {
        // What was counted is not known: a count from zero on would be behind it.
        return Ok(());
    }
    let highest = highest(stands.into_iter().flatten()).unwrap_or(0);
    // First the highest number again, on all members: the node that wrote it may have died before
    // it was durable.
    for count in highest..=highest + 2 {
        write_count(label, &all, (life, at), count.min(RawEventCount::HIGHEST))?;
        flush(&all)?;
    }
    Ok(())
}

/// A device whose count is not durable, and why.
type NotCounted = (String, DeviceError);

fn write_count(
    label: &Label,
    members: &[Used<'_>],
    (life, at): (Life, ByteOffset),
    count: u64,
) -> Result<(), NotCounted> {
    let sector = |(_, member): &Used<'_>| {
        let mut sector = AlignedBuf::zeroed(RawEventCount::SECTOR);
        let raw = RawEventCount::new(event_names(label, member), life, count);
        raw.write_to_prefix(&mut sector).expect("a sector holds a count");
        sector
    };
    let sectors: Vec<AlignedBuf> = members.iter().map(sector).collect();
    let writes = members.iter().zip(&sectors);
    all_of(writes.map(|((device, _), s)| Request::new(*device, at, Op::Write(s))).collect())
}

fn flush(members: &[Used<'_>]) -> Result<(), NotCounted> {
    all_of(members.iter().map(|(device, _)| Request::flush(*device)).collect())
}

/// Runs all requests; the first that failed.
fn all_of(mut requests: Vec<Request<'_>>) -> Result<(), NotCounted> {
    run(&mut requests);
    for request in requests {
        let path = request.device.info().name.clone();
        request.result.map_err(|error| (path, error))?;
    }
    Ok(())
}
