//! What shape a pool has: from what a user asks for to the topology in a label, and from a label to the
//! places of the pool's bytes on its members ([`map`], [`group`]).
//!
//! ```text
//!  text or file --parse--> Layout --build--> nodes, segments --> Label
//!     nothing asked for: usual ----^             ^-- members: space, bus, speed
//! ```
//! A [`Layout`] is a tree over devices, in a small language (the grammar is in [`parse`]):
//!
//! ```text
//! stripe(all)                                  all devices side by side
//! stripe(mirror(sdb,sdc), mirror(sdd,sde))     a stripe of mirrors
//! mirror+1(all)                                the same over any number of devices of any sizes
//! parity+2(0-9)                                eight data, two parity
//! stripe/1M(a*2, b)                            a is twice as fast as b
//! metadata = mirror(c[10G], d[10G]); data = stripe(rest)
//! ```
//!
//! Invariants:
//! * the text of a layout parses to the layout it was made of; no text makes the parser panic;
//! * what is built shows no byte of a member twice, and what a member has is either in the
//!   topology or counted in [`Built::unused`];
//! * no two columns of a mirror or parity group share a member.

pub mod build;
pub mod bus;
pub mod classes;
pub mod facts;
pub mod fault;
pub mod file;
pub mod group;
mod groups;
pub mod map;
mod map_error;
pub mod measure;
pub(crate) mod metadata;
pub mod parse;
mod resolve;
mod shape;
pub mod size;
pub(crate) mod stretch;
mod tree;
pub mod usual;
pub mod weights;

pub use build::{Built, build};
pub use classes::Classes;
pub use facts::{Facts, Note};
pub use fault::{LayoutError, LayoutFault, Place};
pub use file::LayoutFile;
pub use measure::measure;
pub use tree::{Layout, Part, Subpool, Tree, Which, subpool_name};
pub use usual::{Redundancy, usual};
pub use weights::Weights;

#[cfg(test)]
mod tests;
