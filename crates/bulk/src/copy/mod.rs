//! Copies of whole files between a local file system and a server: parallel, checked, resumed where an earlier
//! copy has ended, and durable when they are done.
//!
//! ```text
//!  .NAME.braid-part, locked ── chunks, by all connections ── durable ── renamed to NAME ── durable
//! ```
//!
//! A chunk that the part file holds already, by its checksum, is not sent: so a copy goes on where an earlier one
//! was broken off, whatever the reason, and whatever order chunks arrived in.

mod chunks;
mod download;
mod upload;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use thiserror::Error;

pub use download::{Download, download};
pub use upload::{Upload, upload};

use crate::wire::NAME_MAX;

/// How files are copied.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Bytes of a chunk, at most what the server takes; 0: as many as it takes.
    pub chunk: u32,
    /// Everything is read back and compared once it is durable.
    pub verify: bool,
    /// Bytes that are done, for who watches.
    pub progress: Arc<AtomicU64>,
}

/// What a copy did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the file.
    pub size: u64,
    /// Bytes that went from one host to the other; less if an earlier copy was resumed, or in holes.
    pub sent: u64,
    /// Bytes of holes, which were neither sent nor looked at.
    pub holes: u64,
}

/// Why a copy has ended early. What is there stays, and the next copy goes on from it.
#[derive(Debug, Error)]
pub enum CopyError {
    /// The server, or the way to it.
    #[error("server: {0}")]
    Server(#[from] crate::error::Error),
    /// The local file system.
    #[error("{what}: {error}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
    /// The source became another file while it was copied.
    #[error("the source was changed while it was copied: copy it again")]
    Changed,
    /// What has the name of the part file is none.
    #[error("{name} is in the way: remove it")]
    InTheWay {
        /// The name.
        name: String,
    },
    /// The file system there is too full.
    #[error("there is no room for the file: {free} bytes are free")]
    NoRoom {
        /// So much there is.
        free: u64,
    },
    /// Somebody copies to the same place.
    #[error("another copy to the same file is under way")]
    Busy,
    /// What was read back is not what was written.
    #[error("the copy differs from the source at byte {offset}")]
    Differs {
        /// Begin of the chunk.
        offset: u64,
    },
}

impl CopyError {
    fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Local { what, error }
    }
}

/// Name of the file that becomes `name` when it is whole.
pub fn part_name(name: &[u8]) -> Vec<u8> {
    const ENDING: &[u8] = b".braid-part";
    if 1 + name.len() + ENDING.len() <= NAME_MAX {
        return [b".", name, ENDING].concat();
    }
    let sum = xxhash_rust::xxh3::xxh3_128(name);
    format!(".{sum:032x}.braid-part").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_long_name_has_a_short_one() {
        assert_eq!(part_name(b"a"), b".a.braid-part");
        for len in [243, 244, 255] {
            let name = vec![b'x'; len];
            assert!(part_name(&name).len() <= NAME_MAX, "{len}");
        }
        assert_ne!(part_name(&[b'x'; 254]), part_name(&[b'x'; 255]));
    }
}
