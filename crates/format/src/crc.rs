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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }

    #[test]
    fn the_hole_counts_as_four_zeros() {
        let holed = crc32c(b"12\0\0\0\x00789");
        for hole in [*b"3456", [0xff; 4], [0; 4]] {
            assert_eq!(crc32c_with_hole(&[b"12", &hole[..], b"789"].concat(), 2), holed);
        }
    }
}
