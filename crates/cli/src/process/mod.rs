//! This process among others: limits, signals, secrets on its command line, notes of the mounts of this host,
//! work in the background, and how a mounted node's process ends.

pub mod asker;
pub mod background;
pub mod connection;
pub mod guard;
pub mod in_use;
pub mod left_behind;
pub mod limits;
pub mod log;
pub mod mounts;
pub mod notes;
pub mod others;
pub mod secrets;
pub mod service;
pub mod signals;
pub mod unmount_on_signal;
pub mod users;
