//! Reconstructing bytes that a column cannot read from the other columns, and writing them to it
//! again.
//!
//! Reads, filling, moving and resync all come here. If several columns have bad sectors, each
//! sector is taken from whichever column has it. So only a sector that no column has is lost; its
//! error names the member and the place.

use braid_device::DeviceError;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::catch_up::catch_up;
use super::decode::{Sources, decode_run};
use super::sectors::sectors;
use crate::devices::copy_sector::Side;
use crate::error::PoolError;
use crate::labels::{Found, id};
use crate::layout::group::{Group, Shape};
use crate::topology::{Lost, Topology};

/// Times that a copy is read again after what it could not read was written anew.
const MENDS: u32 = 3;

/// Fills `buf`, a run of a group's bytes that the column on `bad` should have given, or no column of
/// a mirror, from the other columns. Sectors that these cannot read either may still come from `bad`.
///
/// # Errors
/// A sector that no column has.
pub(crate) fn read_reconstructed(
    topology: &Topology,
    group: &Group,
    at: u64,
    buf: &mut [u8],
    (bad, sources): (Option<MemberIndex>, Sources),
) -> Result<(), PoolError> {
    let others = |at: u64, buf: &mut [u8]| match group.shape {
        Shape::Mirror => other_copy(topology, group, at, buf, (bad, sources)),
        Shape::Parity { .. } => decode_run(topology, group, at, buf, (bad, sources)),
    };
    let Err(error) = others(at, buf) else { return Ok(()) };
    // An exchanged device does not hold what was written.
    if bad.is_some_and(|bad| !still_a_member(topology, bad)) {
        return Err(error);
    }
    let mut rest = buf;
    for (at, len) in sectors(at, rest.len(), topology.label.lock_sector.to_usize()) {
        let (now, later) = rest.split_at_mut(len);
        rest = later;
        match own(topology, group, at, now, bad) {
            Some(Ok(())) => {}
            Some(Err(error)) => others(at, now).map_err(|_| error)?,
            None => others(at, now)?,
        }
    }
    Ok(())
}

/// Reads one sector of a group's bytes from the column that has it: of a mirror, the one on `bad`.
/// `None`: that is out.
fn own(
    topology: &Topology,
    group: &Group,
    at: u64,
    buf: &mut [u8],
    bad: Option<MemberIndex>,
) -> Option<Result<(), DeviceError>> {
    let (column, offset) = match group.shape {
        Shape::Mirror => (group.members().position(|m| Some(m) == bad)?, at),
        Shape::Parity { unit, .. } => {
            let u = group.units(at, buf.len() as u64).next()?;
            (group.column_of(u.row, u.place), u.row * unit + u.within)
        }
    };
    let (member, place) = group.at(column, offset);
    topology.readable(member).then(|| topology.device(member).read(place, buf))
}

/// Reads a mirror's bytes from the first copy in sync, `bad` left out, that gives them: suspected
/// members are asked last.
fn other_copy(
    topology: &Topology,
    group: &Group,
    at: u64,
    buf: &mut [u8],
    (bad, sources): (Option<MemberIndex>, Sources),
) -> Result<(), PoolError> {
    let mut last = topology.too_many_lost(group);
    let suspected = |column: &usize| topology.is_suspected(group.at(*column, at).0);
    let sound = topology.copies(group).filter(|c| !suspected(c));
    for column in sound.chain(topology.copies(group).filter(suspected)) {
        let (member, place) = group.at(column, at);
        if Some(member) == bad || !sources.include(topology, group, member) {
            continue;
        }
        match topology.device(member).read(place, buf) {
            Ok(()) => return Ok(()),
            Err(e) => last = e.into(),
        }
    }
    Err(last)
}

/// Reads what `column` of a mirror holds of the group's bytes from `at`; what it cannot read is
/// written anew from the other copies. The caller holds these bytes, and their region, alone. A
/// member that fails over it is `lost`, and nothing is read then: `false`.
///
/// # Errors
/// A sector that no copy has, or a member that cannot be spared.
pub(crate) fn read_mending(
    topology: &Topology,
    group: &Group,
    column: usize,
    (at, buf): (u64, &mut [u8]),
    lost: &mut Lost,
) -> Result<bool, PoolError> {
    let (member, place) = group.at(column, at);
    let mut mends = 0;
    loop {
        let Err(error) = topology.device(member).read(place, buf) else { return Ok(true) };
        if mends == MENDS || !still_a_member(topology, member) {
            topology.do_without(member, error, lost)?;
            return Ok(false);
        }
        mends += 1;
        read_reconstructed(topology, group, at, buf, (Some(member), Sources::All))?;
        match mend_copy(topology, group, column, (at, buf)) {
            Ok(_) => say_mended(topology, member, &error),
            Err((failed, error)) => {
                topology.do_without(failed, error, lost)?;
                return Ok(false);
            }
        }
    }
}

/// Says that bytes that could not be read are good again.
pub(crate) fn say_mended(topology: &Topology, member: MemberIndex, error: &DeviceError) {
    let member = topology.name(member);
    tracing::warn!(member, %error, "could not be read; rewritten from the other members");
}

/// Writes what of a copy of a mirror cannot be read, the group's bytes from `at`. Other nodes compare
/// and write there meanwhile: what can be read is theirs, and what they have changed on the first
/// copy is brought after it. Bytes that were written.
pub(crate) fn mend_copy(
    topology: &Topology,
    group: &Group,
    column: usize,
    (at, bytes): (u64, &[u8]),
) -> Result<Bytes, (MemberIndex, DeviceError)> {
    let sector = topology.label.lock_sector.to_usize();
    let mut mended = 0;
    let (member, _) = group.at(column, at);
    let device = topology.device(member);
    let first = topology.copies(group).next().filter(|first| *first != column);
    let mut rest = bytes;
    for (here, len) in sectors(at, bytes.len(), sector) {
        let (now, later) = rest.split_at(len);
        rest = later;
        let (_, place) = group.at(column, here);
        let mut found = vec![0; now.len()];
        if device.read(place, &mut found).is_ok() {
            continue;
        }
        if let Some(first) = first {
            // It decides what the others hold, so it is mended before them.
            let (first, place) = group.at(first, here);
            let device = topology.device(first);
            if device.read(place, &mut found).is_err() {
                device.write(place, now).map_err(|e| (first, e))?;
            }
        }
        device.write(place, now).map_err(|e| (member, e))?;
        mended += now.len() as u64;
        if let Some(first) = first {
            catch_up(topology, group, (first, column), here, now).map_err(|e| match e {
                Side::Arbiter(e) => (group.at(first, here).0, e),
                Side::Follower(e) => (member, e),
            })?;
        }
    }
    Ok(Bytes(mended))
}

/// Writes what of a unit of a parity row cannot be read, all of whose `bytes` are known. A member that
/// fails over it is `lost`.
///
/// # Errors
/// It cannot be spared.
pub(crate) fn mend_unit(
    topology: &Topology,
    (member, at): (MemberIndex, ByteOffset),
    bytes: &[u8],
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let device = topology.device(member);
    let mut rest = bytes;
    let sector = topology.label.lock_sector.to_usize();
    for (here, len) in sectors(at.0, bytes.len(), sector) {
        let (now, later) = rest.split_at(len);
        rest = later;
        let place = ByteOffset(here);
        let Err(error) = device.read(place, &mut vec![0; len]) else { continue };
        let written = if still_a_member(topology, member) {
            device.write(place, now)
        } else {
            Err(error.clone())
        };
        match written {
            Ok(()) => say_mended(topology, member, &error),
            Err(error) => return topology.do_without(member, error, lost),
        }
    }
    Ok(())
}

/// Whether a member that failed a read is otherwise what it was. If it has lost its labels, too, it
/// was emptied or exchanged: repairing single places would make the rest of it look whole.
pub(crate) fn still_a_member(topology: &Topology, member: MemberIndex) -> bool {
    let device = topology.device(member);
    device.info().read_only || Found::read(device.clone()).carries(id(&topology.label))
}

#[cfg(test)]
mod tests;
