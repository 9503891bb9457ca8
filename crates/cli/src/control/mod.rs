//! Orders to a mounted node: one line of JSON each way, on a socket beside the mount's note.
//!
//! The socket is in the user's private runtime directory: everybody who may open it may do to the
//! pool what the mount's owner may.

mod background;
mod client;
pub mod clients;
pub mod health;
pub mod history;
mod leaving;
pub mod locks;
mod lookup;
mod member;
mod node;
pub mod nodes;
mod orders;
mod plans;
pub mod programs;
pub mod remote;
pub mod requests;
pub mod resync;
mod serve;
pub mod session;
mod views;
pub mod why;

pub use client::{
    LOOK_TIME, NodeEnded, answering, find, look, member, named, order, order_unless, value, values,
    views,
};
pub use member::MemberId;
pub use node::Node;
pub use orders::{Order, Target};
pub use serve::{Control, obey_of};
pub use views::{MemberView, SHOWN_MAX, ScrubView, View, show};
