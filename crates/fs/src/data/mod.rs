//! File contents: dirty data held under exclusive locks, direct I/O, flush, truncate, fallocate.
//!
//! Small files are in the dinode's tail (*stuffed*), and written by transactions. All others are in
//! extents. A write goes one of two ways:
//! * *cached*: into [`crate::file_data::Pages`] of the inode, its space reserved at once, so that only the
//!   write can fail for want of space; [`crate::writeback`] later claims runs (delayed allocation), writes
//!   them, and links them in one transaction;
//! * *direct* (`O_DIRECT`, and large aligned writes, which a cache would only slow down): from the
//!   caller's memory to the devices, before the call returns or (without `O_DIRECT`) soon after the
//!   program was answered ([`crate::inflight_writes`]). Neither is durable before fsync.
//!
//! Clean data is not cached here: that is the kernel's page cache's business.
//!
//! Invariants:
//! * data is on the devices before the transaction that makes it visible: a crash never shows a
//!   block's former contents;
//! * a dirty block over a hole has its space reserved;
//! * bytes past the end of the file in its last block are zero in a dirty page, and undefined on
//!   disk: a thread that makes the file longer writes zeros there first;
//! * a dinode that still says `Stuffed` while dirty pages exist has all its bytes in them;
//! * `disk_size` is below the size only while there are dirty pages or answered writes under way.
//!
//! Locks of one inode, in order: cluster lock, [`Delalloc`] (`change`), transaction, `map`,
//! `pages`, state. A thread that flushes or changes the map holds [`Delalloc`], so both go on
//! beside readers and direct writers ([`braid_lock::Local::Shared`] under an exclusive cluster
//! lock).

mod copy;
mod direct;
mod places;
mod punch;
mod read;
pub(crate) mod relocate;
mod seek;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_concurrent;
#[cfg(test)]
mod tests_copies;
#[cfg(test)]
mod tests_demotion;
#[cfg(test)]
mod tests_inflight;
#[cfg(test)]
mod tests_interval;
mod truncate;
pub(crate) mod write;

use crate::error::{Error, Result};
use crate::inode::Locked;
use crate::mode::{S_IFDIR, S_IFREG};
use crate::writeback::{HeldInode, View, fsync, limit, touch};

pub(crate) use copy::copy_file_range;
pub(crate) use places::offsets_of;
pub use read::{ReadHold, ReadRange};
pub(crate) use read::{read_into, read_reply};
pub(crate) use seek::lseek;
pub(crate) use space::fallocate;
pub(crate) use truncate::{free_contents, truncate};
pub(crate) use write::write;

/// Largest file.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Refuses what has no contents of its own.
fn require_regular(locked: &Locked) -> Result<()> {
    match locked.file_type() {
        S_IFREG => Ok(()),
        S_IFDIR => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}
