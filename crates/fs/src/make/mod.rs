//! mkfs: makes a file system on a pool.
//!
//! Order: (1) a superblock that stands there is wiped and the wipe made durable, so that a
//! half-made file system is never taken for a whole one; (2) zeros where devices make them by giving
//! space back, if there are copies or parity that should agree; everything else, in large parallel writes; a flush; (3) the superblock and its copy, then a flush.

mod maker;
mod options;
mod plan;

pub(crate) use maker::{Addition, additions, area_kind, random, root_dinode};
pub use maker::{make, may_make};
pub use options::MakeOptions;
