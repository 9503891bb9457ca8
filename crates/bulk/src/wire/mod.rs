//! What is sent: docs/BULK.md has it byte by byte. Pure: no I/O.
//!
//! No decoder panics, whatever the bytes are, and none allocates more than the message is long.

mod attributes;
mod fields;
mod header;
mod reply;
mod request;
mod status;
#[cfg(test)]
mod tests;

pub use attributes::{Entry, read_entries, write_entry};
pub use fields::NAME_MAX;
pub use header::{ARGS_MAX, DATA_MAX, FrameError, Header, Kind, RawHeader, within};
pub use reply::{Reply, Welcome};
pub use request::{Begin, Hello, OpenFlags, Request, SessionId, op};
pub use status::Status;

/// Version of the protocol that is described by docs/BULK.md.
pub const VERSION: u32 = 1;
