//! Changing a pool: members join, leave and are moved while it is in use; it gets another name, or ends.
//!
//! Every step is one change of the epoch (`PoolState::change`). A
//! crash at any moment leaves the topology before the step or the one after it.

mod add;
mod cut;
mod destroy;
pub(crate) mod evacuate;
pub(crate) mod grow;
mod properties;
mod remove;
mod rename;
#[cfg(test)]
pub(crate) mod tests;

pub use add::{AddOptions, Added};
pub use destroy::{Destroyed, finish_destroy, is_being_destroyed};
pub use evacuate::Destination;
pub use grow::Reopen;
pub use properties::PropertyChange;
pub use remove::Removed;
