//! mkfs: makes a file system on a pool.

use braid_format::BlockSize;
use braid_pool::Pool;

use crate::error::Result;

/// What may be chosen.
#[derive(Debug, Clone)]
pub struct MakeOptions {
    /// File-system block.
    pub block_size: BlockSize,
    /// Nodes that may mount at once; `None`: by the pool's size.
    pub nodes: Option<u16>,
    /// Bytes of one journal; `None`: by the pool's size.
    pub journal_size: Option<u64>,
}
impl Default for MakeOptions {
    fn default() -> Self {
        Self { block_size: BlockSize::DEFAULT, nodes: None, journal_size: None }
    }
}

/// Writes a new, empty file system: fixed area, resource groups, root directory. `progress` gets
/// (done, total) in resource groups. Durable on return; the superblock is written last.
pub fn make(pool: &Pool, options: &MakeOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let _ = (pool, options, progress);
    todo!()
}
