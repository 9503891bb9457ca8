//! Which durable records some body still depends on.

use std::collections::{BTreeSet, VecDeque};

use braid_format::BlockNo;

use crate::journal::Placed;

/// A durable record that some body still depends on.
#[derive(Debug)]
pub(super) struct Record {
    /// Its own number.
    pub(super) sequence: u64,
    /// Where replay must start to reach it (a skip record may stand before it).
    pub(super) from: Placed,
    /// Images in it that are neither in place nor in a later durable record.
    pub(super) pending: usize,
}

/// Which blocks are logged, and which records they hold.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) blocks: BTreeSet<BlockNo>,
    pub(super) records: VecDeque<Record>,
}

impl Ledger {
    /// One image less depends on record `sequence`.
    pub(super) fn release(&mut self, sequence: u64) {
        if let Ok(i) = self.records.binary_search_by_key(&sequence, |r| r.sequence) {
            self.records[i].pending -= 1;
        }
        while self.records.front().is_some_and(|r| r.pending == 0) {
            self.records.pop_front();
        }
    }
    /// Where replay would have to start.
    pub(super) fn tail(&self) -> Option<Placed> {
        self.records.front().map(|r| r.from)
    }
}
