//! What the kernel caches, and how that ends in time.
//!
//! ```text
//!  nodes        what the kernel holds of each inode
//!  moves        directories that the kernel has at their old places
//!  lease_gate   whether requests are answered: not without a lease
//!  notify       drops of what the kernel caches
//! ```

pub(crate) mod lease_gate;
pub(crate) mod moves;
pub(crate) mod nodes;
pub(crate) mod notify;
