//! The subcommands, a file each.

pub mod add;
pub mod advise;
pub mod check;
pub mod create;
pub mod dump_label;
pub mod evacuate;
pub mod fail;
pub mod fence;
pub mod grow;
pub mod helper;
pub mod label;
pub mod locks;
pub mod mount;
mod mount_options;
pub mod nodes;
pub mod rebalance;
pub mod remove;
pub mod replace;
pub mod scan;
pub mod scrub;
pub mod spare;
pub mod status;
pub mod status_io;
pub mod target;
pub mod trim;
pub mod unmount;
pub mod version;
