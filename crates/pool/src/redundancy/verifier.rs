//! Telling good bytes from bad by checksums that a layer above knows.

use braid_format::{ByteOffset, Bytes};
use parking_lot::Mutex;

use super::compare::Scrubbed;

/// Tells good bytes from bad by their checksums.
pub trait ChecksumVerifier: Sync {
    /// Bytes that differ are verified in pieces of this size, a power of two, at multiples of it.
    fn grain(&self) -> usize {
        4096
    }
    /// Whether `bytes`, read from the pool's byte `at`, are what was written there; `None`: it
    /// cannot say.
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool>;
    /// Whether the record of a lock or of a node that stands at `at`, with which `bytes` begin, is damaged;
    /// `false`: it is whole, or it cannot say.
    fn has_damaged_record(&self, _at: ByteOffset, _bytes: &[u8]) -> bool {
        false
    }
    /// Whether a piece is good but for its first sector, which is not looked at; `false`: it is not, or
    /// it cannot say.
    fn verify_body(&self, _at: ByteOffset, _bytes: &[u8]) -> bool {
        false
    }
    /// Whether a sector by itself is what was written at `at`: the record of a lock or of a node, or
    /// a part of something larger that is whole; `false`: it is not, or it cannot say. The caller holds
    /// locks of the pool, so an implementation may read the pool only by
    /// [`crate::pool::Pool::look`].
    fn verify_sector(&self, _at: ByteOffset, _sector: &[u8]) -> bool {
        false
    }
}

/// Knows no checksum.
#[derive(Debug, Clone, Copy)]
pub struct NoChecksums;
impl ChecksumVerifier for NoChecksums {
    fn verify(&self, _: ByteOffset, _: &[u8]) -> Option<bool> {
        None
    }
}

/// What decides if copies or parity disagree while a member is filled from them, and what was found.
pub struct Verification<'a> {
    pub(crate) verifier: &'a dyn ChecksumVerifier,
    found: Mutex<Scrubbed>,
}

impl<'a> Verification<'a> {
    /// By what `verifier` knows, and by majority.
    pub fn by(verifier: &'a dyn ChecksumVerifier) -> Self {
        Self { verifier, found: Mutex::default() }
    }

    /// What was wrong so far: how many bytes were healed, and of how many nothing says which copy is
    /// right. The number of bytes compared is not counted.
    pub fn found(&self) -> Scrubbed {
        self.found.lock().clone()
    }

    /// Something more was found.
    pub(crate) fn add(&self, found: &Scrubbed) {
        if found.healed > Bytes(0) {
            tracing::warn!(bytes = found.healed.0, "had rotted; written anew from another member");
        }
        if let Some(first) = found.places.first() {
            let bytes = found.undecided.0;
            tracing::error!(%first, bytes, "differ on several members, and nothing says which is right");
        }
        self.found.lock().add(found);
    }
}

impl std::fmt::Debug for Verification<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verification").field("found", &self.found).finish_non_exhaustive()
    }
}
