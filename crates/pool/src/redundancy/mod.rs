//! Redundancy groups, mirrors and parity: what a request on them reads and writes, and what keeps them
//! whole.
//!
//! From pure to I/O: [`parity`] (arithmetic), `row` (what a partial write of a parity row must read),
//! `decode` and `rows` (reading and writing parity rows), `catch_up` (a copy that is written while others
//! compare-and-write), `reconstruct` (bytes that a column cannot read), `work` and `batch` (requests on groups),
//! `compare` (finding and healing what has rotted), `copy_damage`, `resync` and `repair` (copies and
//! parity after a crash), `fill`
//! (onto a new member), `log` (a node's redundancy log) and `log_recovery` (what it is for). The geometry of a group
//! is [`crate::layout::group`].

pub(crate) mod atomic_records;
pub(crate) mod batch;
mod catch_up;
pub(crate) mod compare;
pub(crate) mod copy_damage;
pub(crate) mod decode;
pub(crate) mod divergent;
pub(crate) mod epoch_in_use;
pub(crate) mod fill;
pub(crate) mod log;
pub(crate) mod log_recovery;
mod mirror_resync;
pub(crate) mod missed;
pub mod parity;
pub(crate) mod reconstruct;
pub(crate) mod resync;
mod row;
mod rows;
pub(crate) mod sectors;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verification;
pub(crate) mod verifier;
pub(crate) mod work;

use std::sync::atomic::AtomicU64;

pub(crate) use epoch_in_use::EpochInUse;

/// What an open pool knows of its redundancy, whatever the epoch.
#[derive(Debug, Default)]
pub(crate) struct RedundancyState {
    /// As [`PoolInfo::redundant`](crate::PoolInfo::redundant); no epoch changes it.
    pub present: bool,
    /// When the redundancy log was last rid of regions no longer written, Unix seconds.
    pub log_cleaned: AtomicU64,
    /// Writes whose copies differ, and are about to be made the same.
    pub divergent: divergent::DivergentWrites,
}
