//! How many writes have left copies of a mirror that differ, and have not yet made them the same.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many writes have left copies that differ, and not yet made them the same.
#[derive(Debug, Default)]
pub(crate) struct DivergentWrites(AtomicU64);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct DivergentWrite<'a>(&'a DivergentWrites);

impl DivergentWrites {
    /// One more. The caller holds the epoch in use, so the redundancy log is not being cleaned.
    pub fn enter(&self) -> DivergentWrite<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        DivergentWrite(self)
    }
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for DivergentWrite<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
