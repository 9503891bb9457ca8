//! Replays a journal: for a dead node (after its fence), or this slot's own after a power cut.
//!
//! Idempotent: the recoverer may die at any step and another starts over. A body is written only if
//! what is in its place is older or damaged, so replay never makes a block older; and only after
//! the record that it comes from is durable. A damaged block is repaired only under a lock that the
//! dead node held to its end. Nothing is written before the whole journal has been read and found
//! sound, but a record to the copies of its own place that lack it: what the ring holds is hostile
//! until proven otherwise.
//!
//! The journal ends at the first record that is not valid. But if [`proof`] finds a later record
//! that shows that this one was durable once, the journal is damaged: that is reported, and nothing
//! is written.

mod copies;
mod proof;
mod put_back;
mod records;
mod run;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub(crate) use copies::{blocks, sectors};
pub(crate) use records::is_slot;
pub(crate) use run::{Replayed, replay, salvage};
pub use writer::Writer;
