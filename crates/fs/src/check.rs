//! fsck: verifies a file system that nobody has mounted, and repairs it when asked.

use braid_pool::Pool;

use crate::error::Result;

/// What to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Mend what can be mended.
    pub repair: bool,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One line per problem, naming the block.
    pub problems: Vec<String>,
    /// Problems mended.
    pub repaired: u64,
    /// Inodes seen.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Data blocks referred to.
    pub data_blocks: u64,
    /// Journals that had to be replayed first.
    pub replayed: u64,
}

/// Checks the file system on `pool`. `progress` gets (done, total).
///
/// # Errors
/// When a node has it mounted, or a device fails. Problems found are in the report.
pub fn check(
    pool: Pool,
    options: CheckOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    let _ = (pool, options, progress);
    todo!()
}
