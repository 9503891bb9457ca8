//! What decides while a member is filled, and what was found.

use braid_format::Bytes;
use parking_lot::Mutex;

use super::compare::Scrubbed;
use super::verifier::ChecksumVerifier;

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
            tracing::warn!(bytes = found.healed.0, "had rotted; rewritten from another member");
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
