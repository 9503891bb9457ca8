//! Changing a pool while it is in use: members that come, go and change places.
//!
//! Every step is one epoch, put in force by [`crate::pool::PoolState::change`]: a crash at any moment leaves
//! the topology before it or the one after it.

mod add;
mod cut;
pub(crate) mod evacuate;
pub(crate) mod grow;
mod remove;
#[cfg(test)]
pub(crate) mod tests;

pub use add::{AddOptions, Added};
pub use evacuate::Destination;
pub use grow::Reopen;
pub use remove::Removed;
