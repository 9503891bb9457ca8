//! What a unit can do, and how much is asked of it at once.

/// Longest transfer of one command, of one request or of several side by side; what is longer is
/// several, all under way at once.
pub(super) const PIECE_MAX: usize = 1 << 20;
/// Most times that a command is issued anew because it did not run.
pub(super) const TRIES_MAX: u32 = 64;

/// What a unit can do, beyond what its information says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub(super) struct Limits {
    /// Writes that completed may be lost without a flush.
    pub write_cache: bool,
    /// Bytes of one transfer.
    pub transfer: usize,
    /// Blocks of one COMPARE AND WRITE.
    pub compare: u64,
    /// Blocks of one WRITE SAME.
    pub same: u64,
    /// WRITE SAME may let blocks go.
    pub same_unmaps: bool,
    /// What was let go reads as zeros.
    pub reads_zeros: bool,
    /// Blocks of one UNMAP.
    pub unmap: u64,
    /// Persistent reservations.
    pub reserves: bool,
    /// Registrations outlive its target.
    pub keeps_keys: bool,
    /// Its world-wide name.
    pub id: [u8; 16],
}
