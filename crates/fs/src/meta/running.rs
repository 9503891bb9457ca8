//! The transaction that changes go into now, and how far commits have got.

use braid_format::BlockNo;

/// Blocks that an open transaction is expected to change at most. So many transactions are open
/// at once that their credits stay below a quarter of the ring, and a commit is forced when the
/// running transaction has reached another quarter: a record then takes half the ring at most. One
/// transaction may go beyond its credit as long as the whole ring holds it.
pub(crate) const TX_CREDIT: usize = 32;

/// The transaction that changes go into now.
pub(super) struct Running {
    /// Its number.
    pub(super) id: u64,
    pub blocks: Vec<BlockNo>,
    pub hooks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Running {
    pub fn first() -> Self {
        Self { id: 1, blocks: Vec::with_capacity(TX_CREDIT), hooks: Vec::new() }
    }
    /// The last transaction that anything has been put into.
    pub(super) fn last_used(&self) -> u64 {
        if self.blocks.is_empty() && self.hooks.is_empty() { self.id - 1 } else { self.id }
    }
}

/// The thread that commits, and how far it has got.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// All transactions up to this one are durable.
    pub(super) durable: u64,
    /// A thread is at it.
    pub(super) leading: bool,
}
