//! Command descriptor blocks (SPC-4, SBC-3) and the data that go with them: bytes only.

/// A block of 16 bytes: opcode, flags, first block, count.
pub fn sixteen(opcode: u8, flags: u8, block: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&block.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// INQUIRY: standard data, or a page of vital product data.
pub fn inquiry(page: Option<u8>, len: u8) -> [u8; 6] {
    [0x12, u8::from(page.is_some()), page.unwrap_or(0), 0, len, 0]
}

/// REPORT SUPPORTED OPERATION CODES of one command that has no service actions.
pub fn supported(opcode: u8) -> [u8; 12] {
    [0xa3, 0x0c, 1, opcode, 0, 0, 0, 0, 0, 32, 0, 0]
}

/// COMPARE AND WRITE of `blocks` from `block` on. Its data: what is expected, then what is written.
/// `durable`: it is answered when it stands on the medium (FUA).
pub fn compare_and_write(block: u64, blocks: u8, durable: bool) -> [u8; 16] {
    let mut cdb = sixteen(0x89, if durable { 0x08 } else { 0 }, block, 0);
    cdb[13] = blocks;
    cdb
}

/// PERSISTENT RESERVE IN; `action`: 0 keys, 1 reservation, 2 capabilities.
pub fn reserve_in(action: u8, len: u16) -> [u8; 10] {
    let [high, low] = len.to_be_bytes();
    [0x5e, action, 0, 0, 0, 0, 0, high, low, 0]
}

/// PERSISTENT RESERVE OUT, and its parameter list: the caller's key, and the action's. `kept`: what
/// is registered and reserved outlives a loss of power (APTPL; of registering alone).
pub fn reserve_out(
    action: u8,
    kind: u8,
    (own, other): (u64, u64),
    kept: bool,
) -> ([u8; 10], [u8; 24]) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&own.to_be_bytes());
    list[8..16].copy_from_slice(&other.to_be_bytes());
    list[20] = u8::from(kept);
    ([0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPC-4, PERSISTENT RESERVE IN and PERSISTENT RESERVE OUT: bytes as they stand there.
    #[test]
    fn reservations_are_asked_for_as_the_standard_has_it() {
        // Operation code, service action, five reserved, allocation length, control.
        assert_eq!(reserve_in(0, 0x2008), [0x5e, 0, 0, 0, 0, 0, 0, 0x20, 0x08, 0]);
        assert_eq!(reserve_in(1, 24), [0x5e, 1, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(reserve_in(2, 8), [0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0]);
        // Scope (the unit) and type, two reserved, length of the list (four bytes), control.
        let (cdb, list) = reserve_out(5, 7, (0x0102_0304_0506_0708, 0x1112_1314_1516_1718), false);
        assert_eq!(cdb, [0x5f, 5, 0x07, 0, 0, 0, 0, 0, 24, 0]);
        // The registrant's key, that of the action, four that are obsolete, flags (APTPL is bit 0;
        // neither SPEC_I_PT nor ALL_TG_PT), reserved, two that are obsolete.
        let keys = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(list, [&keys[..], &[0; 8]].concat()[..]);
        let (cdb, list) = reserve_out(0, 0, (0, 1), true);
        assert_eq!(cdb, [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!((list[15], &list[16..]), (1, &[0, 0, 0, 0, 1, 0, 0, 0][..]));
    }

    #[test]
    fn blocks_are_named_as_the_standard_has_it() {
        let at = 0x0102_0304_0506_0708;
        let caw = |durable| compare_and_write(at, 9, durable);
        assert_eq!(caw(false), [0x89, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0]);
        assert_eq!(caw(true), [0x89, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0]);
        assert_eq!(
            sixteen(0x8a, 8, at, 0x0a0b_0c0d),
            [0x8a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0]
        );
    }
}
