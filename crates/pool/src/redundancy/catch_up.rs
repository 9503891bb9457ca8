//! Compare-and-writes that land on the first copy of a mirror while another copy is written.

use braid_device::AlignedBuf;
use braid_format::Bytes;

use crate::devices::copy_sector::{Side, follow};
use crate::error::PoolError;
use crate::layout::group::Group;
use crate::topology::{Lost, Topology};

/// As [`catch_up`]; a member that fails over it is `lost`.
///
/// # Errors
/// The pool cannot spare it.
pub(crate) fn bring_after(
    topology: &Topology,
    group: &Group,
    (source, target): (usize, usize),
    (from, copied): (u64, &[u8]),
    lost: &mut Lost,
) -> Result<(), PoolError> {
    match catch_up(topology, group, (source, target), from, copied) {
        Ok(()) => Ok(()),
        Err(Side::Arbiter(error)) => topology.do_without(group.at(source, from).0, error, lost),
        Err(Side::Follower(error)) => topology.do_without(group.at(target, from).0, error, lost),
    }
}

/// Compare-and-writes wait for no region: what they changed on the copy `source` of a mirror while
/// `copied` went from there to the copy `target` is brought after it, sector by sector.
pub(crate) fn catch_up(
    topology: &Topology,
    group: &Group,
    (source, target): (usize, usize),
    from: u64,
    copied: &[u8],
) -> Result<(), Side> {
    let sector = topology.label.lock_sector.to_usize();
    let (arbiter, at) = group.at(source, from);
    let (follower, there) = group.at(target, from);
    let (arbiter, follower) = (topology.device(arbiter), topology.device(follower));
    let mut before = AlignedBuf::zeroed(copied.len());
    before.copy_from_slice(copied);
    let mut now = AlignedBuf::zeroed(copied.len());
    loop {
        arbiter.read(at, &mut now).map_err(Side::Arbiter)?;
        if now[..] == before[..] {
            return Ok(());
        }
        let sectors = now.chunks(sector).zip(before.chunks(sector)).enumerate();
        for (i, _) in sectors.filter(|(_, (now, before))| now != before) {
            let within = Bytes::from(i * sector);
            follow(&**arbiter, at + within, &**follower, there + within, sector)?;
        }
        std::mem::swap(&mut now, &mut before);
    }
}
