//! The first sector of a member, `Label::BOOT_SECTOR`.

/// A text for people, four empty entries, and the mark at the end.
pub(super) const fn sector() -> [u8; 512] {
    const TEXT: &[u8] = b"This device is a member of a Braid pool, and has no partitions. Do not format it: see braid(7).";
    const TEXT_AT: usize = 96;
    let mut sector = [0; 512];
    let mut at = 0;
    while at < TEXT.len() {
        sector[TEXT_AT + at] = TEXT[at];
        at += 1;
    }
    sector[510] = 0x55;
    sector[511] = 0xaa;
    sector
}
