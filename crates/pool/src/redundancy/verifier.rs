//! Telling good bytes from bad by checksums that a layer above knows.

use braid_format::ByteOffset;

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
    /// Whether a piece is good apart from its first sector, which is not checked; `false`: it is
    /// not, or it cannot say.
    fn verify_body(&self, _at: ByteOffset, _bytes: &[u8]) -> bool {
        false
    }
    /// How new a piece is that is good apart from its first sector: of two such pieces for the same place, the one
    /// with the greater number was written later. `None`: it is not good, or its writes are not counted.
    fn version(&self, _at: ByteOffset, _bytes: &[u8]) -> Option<u64> {
        None
    }
    /// Whether something with a checksum has stood at `at`, durably, since before whatever a dead node was
    /// writing when it died: so a copy that has not is damaged. `false`: it has not, or it cannot say. Asked
    /// only of pieces that are good on some copy ([`ChecksumVerifier::verify_body`]). It may read the pool
    /// only by [`crate::pool::Pool::look`].
    fn is_settled(&self, _at: ByteOffset, _good: &[u8]) -> bool {
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
