//! Members that return garbage: found by bytes whose checksum is wrong on one member and right on
//! others.
//!
//! ```text
//!  sound --8 places--> suspected (named in the log and in `status`) --32 places--> failed by rule
//! ```
//! A place counts once, and only if the member returns garbage there when it is asked again: a
//! block that is read while it is written may look damaged. A member that the pool cannot spare
//! stays in use. File data has no checksums: a member that returns garbage for metadata returns it
//! for file data too, so the pool is better without it.

use std::collections::{BTreeSet, HashMap};

use braid_format::ByteOffset;
use uuid::Uuid;

/// Damaged places from which on a member is suspected.
pub const SUSPECT_AT: usize = 8;
/// Damaged places from which on a member is failed; as many are remembered.
pub const FAIL_AT: usize = 32;

/// Damaged places of each member, by its identity: numbers are given again.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    places: HashMap<Uuid, BTreeSet<u64>>,
}

impl Suspicion {
    /// Notes a place; whether the member has become suspected by it.
    pub fn note(&mut self, member: Uuid, at: ByteOffset) -> bool {
        let places = self.places.entry(member).or_default();
        places.len() < FAIL_AT && places.insert(at.0) && places.len() == SUSPECT_AT
    }
    pub fn count(&self, member: Uuid) -> usize {
        self.places.get(&member).map_or(0, BTreeSet::len)
    }
}
