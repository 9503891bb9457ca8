//! Orders to a mounted node: one line of JSON each way, on a socket beside the mount's note.
//!
//! The socket stands in the user's private runtime directory: who may open it may do to the pool
//! whatever the mount's owner may.

mod ask;
pub mod filling;
mod leaving;
pub mod locks;
pub mod nodes;
mod orders;
pub mod requests;
mod serve;
pub mod session;
mod views;

pub use ask::{LOOK_TIME, find, look, member, order, order_within, value};
pub use orders::{Named, Order, Target};
pub use serve::{Control, obey};
pub use views::{MemberView, SHOWN_MAX, ScrubView, View, show, show_growth};
