//! The metadata cache and transactions.
//!
//! A cached block is an `Arc` of its body. A transaction changes a block by copy-on-write, so a
//! commit takes its snapshot by cloning `Arc`s, and an in-place write never sees a half-done
//! change. Life of a block:
//! ```text
//!            modify             snapshot               durable              written in place
//!  clean ------------> running ----------> committing ---------> logged --------------------> clean
//!                         ^                    | modify             | modify
//!                         +--------------------+--------------------+  (newer image running, older
//!                                                                       committing or logged)
//! ```
//! Invariants:
//! * a body reaches its place only after the commit that holds it is durable (write-ahead);
//! * a record is written only after the locks that cover its blocks are durably this node's;
//! * the generation in a body's header grows by one with each commit that holds it;
//! * bodies in memory are not sealed: the checksum is computed when one leaves for a device;
//! * bodies go to their places under one mutex, so an older image never lands after a newer one;
//! * the cache is bounded; only clean blocks are dropped. A free slot's body is dropped as soon as
//!   it is clean: another node may use the slot next, and what was known of it be stale;
//! * no cluster lock is taken while a transaction is open.
//!
//! Order of the locks in here: group of committers (never held over I/O), then journal, then
//! write-back, then the transaction barrier, then running or a cache shard, then owner shard or ledger.
//!
//! A failed write or flush poisons the whole: what is on the devices is no longer known, so
//! nothing more is written, and every later call fails with [`crate::error::Error::Withdrawn`].

mod cache;
mod commit;
mod ledger;
mod metadata;
mod running;
mod thread_state;
mod transaction;
mod writeback;

pub(crate) use crate::volume::Body;
pub(crate) use metadata::Meta;
pub use metadata::MetaStats;
pub(crate) use thread_state::outside_transaction;
pub(crate) use transaction::Tx;

#[cfg(test)]
mod tests;
