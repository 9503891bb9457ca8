//! Orders to a mounted node: one line of JSON each way, on a socket beside the mount's note.
//!
//! The socket stands in the user's private runtime directory: who may open it may do to the pool
//! whatever the mount's owner may.

mod client;
mod leaving;
pub mod locks;
pub mod nodes;
mod orders;
pub mod requests;
pub mod resync;
mod serve;
pub mod session;
mod views;

pub use client::{LOOK_TIME, find, look, member, order, order_within, value};
pub use orders::{Named, Order, Target};
pub use serve::{Control, obey};
pub use views::{MemberView, SHOWN_MAX, ScrubView, View, show};
