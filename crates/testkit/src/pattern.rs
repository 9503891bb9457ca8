//! Contents that a test can tell from others.

/// `len` bytes that follow from `seed` (splitmix64): other ones for each seed, and at each place.
pub fn pattern(mut seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        chunk.copy_from_slice(&z.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn another_seed_or_place_has_other_bytes_and_a_prefix_the_same() {
        let bytes = pattern(1, 29);
        assert_eq!(bytes[..19], pattern(1, 19));
        assert_ne!(bytes[..8], bytes[8..16]);
        assert_ne!(bytes, pattern(2, 29));
    }
}
