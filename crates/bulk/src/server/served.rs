//! What requests work with.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use braid_format::InodeNo;
use braid_fs::FileSystem;

use super::counts::Counters;
use super::options::ServerOptions;
use super::references::References;

/// What requests work with.
#[derive(Debug)]
pub struct Served<F> {
    /// The file system.
    pub files: F,
    /// Inodes that requests refer to.
    pub references: Arc<References>,
    /// How it is served.
    pub options: ServerOptions,
    /// The write verifier of this server.
    pub verifier: u64,
    /// When it began.
    pub begun: Instant,
    /// Makes owners of locks.
    pub owners: AtomicU64,
    /// What all clients have asked for.
    pub counters: Counters,
}

impl<F: FileSystem> Served<F> {
    /// Gives references to inodes back.
    pub(super) fn release(&self, inodes: impl IntoIterator<Item = InodeNo>) {
        self.references.release(&self.files, inodes);
    }
}
