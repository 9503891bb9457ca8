//! What is sent: docs/BULK.md has it byte by byte. Pure: no I/O.
//!
//! No decoder panics, whatever the bytes are, and none allocates more than the message is long.

mod attributes;
mod caller;
mod fields;
mod header;
mod leases;
mod locks;
mod mount;
pub mod op;
mod reply;
mod request;
mod server_life;
mod status;
#[cfg(test)]
mod tests;

pub use attributes::{Entry, read_entries, read_listed, write_entry, write_listed};
pub use caller::{Caller, GROUPS_MAX};
pub use fields::NAME_MAX;
pub use header::{ARGS_MAX, DATA_MAX, FrameError, Header, Kind, RawHeader, within};
pub use leases::{LeaseNote, Recalls};
pub use locks::{LockEvent, LockRequest, read_events, write_event};
pub use mount::{MountRequest, RENAME_EXCHANGE, XATTR_MAX};
pub use reply::{Reply, Welcome};
pub use request::{Begin, Hello, OpenFlags, Request, SessionId, how};
pub use server_life::ServerLife;
pub use status::Status;

/// Version of the protocol that is enough to copy files.
pub const VERSION: u32 = 1;
/// Version from which on a mount is possible: requests say who asks.
pub const CALLER_VERSION: u32 = 2;
/// Version that a mount needs: replies say what they mean for leases.
pub const MOUNT_VERSION: u32 = 3;
/// Version in which a client can go on with another server of the pool. A server knows all four. A client speaks this
/// one, or with an older server the oldest that is enough for it.
pub const NEWEST_VERSION: u32 = 4;
