//! The full feature phase of one connection, which is one session.
//!
//! One thread reads. It runs what is short itself; what may wait for a disk, or moves much, goes to
//! the workers, so that the next command can come. Answers are sent by whoever has them, whole, in
//! one call each; response numbers are given out under the same lock.
//!
//! ```text
//! command --(all data there?)--> run
//!    |  no: immediate data, then unsolicited Data-Out, then R2T by R2T
//!    +--> Collect, until its data is complete --> run
//! ```

mod collect;
mod execute;
mod full_feature;
mod manage;

pub(crate) use execute::Session;
pub(crate) use full_feature::FullFeature;
