//! CRC-32C (Castagnoli), the checksum of every structure.

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff)
        .unwrap_or(0)
}

/// CRC-32C of `bytes` with the four bytes at `hole` read as zero: how a structure that holds its
/// own checksum is sealed and verified.
pub fn crc32c_with_hole(bytes: &[u8], hole: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let (head, rest) = bytes.split_at(hole.min(bytes.len()));
    digest.update(head);
    digest.update(&[0; 4]);
    digest.update(rest.get(4..).unwrap_or(&[]));
    u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or(0)
}
