//! What may be chosen when a file system is made.

use braid_format::BlockSize;
use braid_lock::EtcdAddress;

/// What may be chosen.
#[derive(Debug, Clone)]
pub struct MakeOptions {
    /// File-system block.
    pub block_size: BlockSize,
    /// Nodes that may mount at once; `None`: by the pool's size.
    pub nodes: Option<u16>,
    /// Bytes of one journal; `None`: by the pool's size.
    pub journal_size: Option<u64>,
    /// User and group that the root directory belongs to.
    pub owner: (u32, u32),
    /// Where lock records and node slots are kept, if not on the pool.
    pub locks: Option<EtcdAddress>,
    /// Keys of another file system there may go, if nobody has it mounted.
    pub force: bool,
}

impl Default for MakeOptions {
    fn default() -> Self {
        Self {
            block_size: BlockSize::DEFAULT,
            nodes: None,
            journal_size: None,
            owner: (0, 0),
            locks: None,
            force: false,
        }
    }
}
