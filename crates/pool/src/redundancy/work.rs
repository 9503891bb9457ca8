//! The parts of a batch of pool requests that concern redundancy groups.

use smallvec::SmallVec;

use crate::devices::range_locks::Range;

/// A part of a pool request that reads a run of a group's bytes.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    /// Place of the pool request in its batch.
    pub owner: u32,
    pub group: u16,
    /// Offset in the group's bytes.
    pub at: u64,
    pub buf: &'a mut [u8],
}

/// A part of a pool request that writes a run of a group's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub owner: u32,
    pub group: u16,
    pub at: u64,
    pub bytes: &'a [u8],
}

/// The parts of a batch that concern groups.
#[derive(Debug, Default)]
pub(crate) struct Work<'a> {
    pub reads: Vec<Read<'a>>,
    pub writes: Vec<Write<'a>>,
    /// The pool's bytes of requests that write to groups, from and to; none is empty.
    pub ranges: SmallVec<[Range; 4]>,
    /// The batch has flushes: every member that may lose bytes is flushed.
    pub flushes: SmallVec<[u32; 1]>,
}
impl Work<'_> {
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.flushes.is_empty()
    }
}
