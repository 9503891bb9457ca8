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
pub fn compare_and_write(block: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = sixteen(0x89, 0, block, 0);
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
