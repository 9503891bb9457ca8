//! What a comparison found, and what it wrote.

use braid_device::DeviceError;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::error::PoolError;
use crate::topology::{Lost, Topology};

/// Places reported one by one.
pub(super) const REPORTED_MAX: usize = 1000;

/// What a scrub found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read of the pool, copies and parity not counted.
    pub checked: Bytes,
    /// Bytes that were wrong or could not be read, and are right now.
    pub healed: Bytes,
    /// Bytes of copies or parity that disagree, and nothing says which is right.
    pub undecided: Bytes,
    /// Where the undecided ones are, in the pool's bytes: the first of them.
    pub places: Vec<ByteOffset>,
    /// All was read; `false`: it was told to stop.
    pub finished: bool,
    /// Members that have something else in a place than what a checksum says is right, for
    /// [`Pool::accuse`](crate::pool::Pool::accuse).
    pub(crate) blamed: Vec<(MemberIndex, ByteOffset)>,
    /// A member is suspected by what is blamed, and no label says so yet: nothing was healed there.
    pub(crate) put_off: bool,
}

impl Scrubbed {
    /// Everything was read, and nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.finished && self.healed.0 == 0 && self.undecided.0 == 0
    }
    /// More of the same.
    pub(crate) fn add(&mut self, other: &Self) {
        self.healed.0 += other.healed.0;
        self.undecided.0 += other.undecided.0;
        let room = REPORTED_MAX.saturating_sub(self.places.len());
        self.places.extend(other.places.iter().take(room));
    }
}

/// Nothing says what is right of `len` of the pool's bytes from `at`.
pub(crate) fn undecided(report: &mut Scrubbed, at: u64, len: usize) {
    report.undecided.0 += len as u64;
    if report.places.len() < REPORTED_MAX {
        report.places.push(ByteOffset(at));
    }
}

/// Writes `bytes`, which are right, in their place; a member that fails over it is `lost`.
pub(super) fn put(
    topology: &Topology,
    member: MemberIndex,
    at: ByteOffset,
    bytes: &[u8],
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    match topology.device(member).write(at, bytes) {
        Ok(()) => report.healed.0 += bytes.len() as u64,
        Err(DeviceError::ReadOnly { .. }) => {}
        Err(error) => topology.do_without(member, error, lost)?,
    }
    Ok(())
}
