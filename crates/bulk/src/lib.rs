//! The bulk data service: a file system for hosts that do not reach its disks. docs/BULK.md describes it.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  wire         messages, byte by byte; pure
//!  error        why a request or a connection has come to nothing
//!  tls          who the other side is, and bytes that nobody else reads
//!  link         messages over a TCP connection
//!  server       serves a file system
//!  client       uses one that another host serves
//!  copy         whole files from here to there and back
//!  remote       a file system for a mount, which another host serves
//! ```

#![forbid(unsafe_code)]

pub mod client;
pub mod copy;
pub mod error;
pub mod link;
pub mod remote;
pub mod server;
pub mod tls;
pub mod wire;
