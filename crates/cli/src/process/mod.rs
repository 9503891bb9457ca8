//! This process among others: signals, secrets on its command line, notes of the mounts of this host,
//! and how a mounted node's process ends.

pub mod connection;
pub mod ending;
pub mod guard;
pub mod left_behind;
pub mod mounts;
pub mod secrets;
pub mod signals;
