//! What a repair may cut off.

use braid_format::{BlockNo, InodeNo};

/// Something to be cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Whose it is.
    pub ino: InodeNo,
    /// The dinode or tree node that is changed.
    pub block: BlockNo,
    /// What is taken out of it.
    pub what: Part,
}

/// See [`Cut::what`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The index entry that leads to a node.
    Child(BlockNo),
    /// All index entries but the first so many.
    IndexBehind(usize),
    /// All extents but the first so many.
    ExtentsBehind(usize),
    /// All directory entries but the first so many.
    EntriesBehind(usize),
    /// The extent that begins with a file block.
    Extent(u64),
    /// The attributes in the dinode.
    InlineAttributes,
    /// All attribute blocks behind the dinode or an attribute block.
    AttributeBlock,
    /// The attribute with a value in this block, among others.
    Attribute(BlockNo),
    /// What an access control list may have narrowed.
    Permissions,
}

impl Cut {
    /// Whether contents of a file (or names of a directory) are lost with it.
    pub fn is_of_contents(&self) -> bool {
        !matches!(
            self.what,
            Part::InlineAttributes | Part::AttributeBlock | Part::Attribute(_) | Part::Permissions
        )
    }
    pub(super) fn line(&self) -> String {
        let ino = self.ino;
        match self.what {
            Part::Child(block) => {
                format!("inode {ino}: cut off the damaged tree node {block} and all below it")
            }
            Part::IndexBehind(n) | Part::ExtentsBehind(n) | Part::EntriesBehind(n) => {
                format!("inode {ino}: kept the first {n} items of block {}", self.block)
            }
            Part::Extent(at) => {
                format!("inode {ino}: cut off the extent at file block {at}")
            }
            Part::AttributeBlock if self.block.get() != ino.get() => {
                format!("inode {ino}: removed the extended attributes behind block {}", self.block)
            }
            Part::InlineAttributes | Part::AttributeBlock => format!(
                "inode {ino}: removed its damaged extended attributes, and the permissions of group and others, which an access control list may have narrowed"
            ),
            Part::Attribute(block) => {
                format!(
                    "inode {ino}: removed the extended attribute with a damaged value at {block}"
                )
            }
            Part::Permissions => format!(
                "inode {ino}: removed the permissions of group and others, which a lost access control list may have narrowed"
            ),
        }
    }
}
