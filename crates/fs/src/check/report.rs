//! What a check is asked for, and what it found.

/// What to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Repair what can be repaired.
    pub repair: bool,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One line per problem, naming the block.
    pub problems: Vec<String>,
    /// Problems repaired.
    pub repaired: u64,
    /// Inodes seen.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Data blocks referred to.
    pub data_blocks: u64,
    /// Journals that had to be replayed first.
    pub replayed: u64,
    /// What a repair cut off, and what it put into `/lost+found`: one line each, naming the inode.
    pub cut: Vec<String>,
    /// Those of the problems that are left: all without a repair.
    pub left: Vec<String>,
    /// Bytes of metadata that nobody used and that a repair has made space for data again.
    pub given_back: u64,
}
