//! What the walk learns of inodes.

use std::collections::BTreeMap;

use braid_format::InodeNo;
use braid_format::dinode::RawDinode;

use super::name::Name;
use crate::mode::{S_IFDIR, S_IFMT};

/// What the walk learns of an inode.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub(super) struct Info {
    /// Its dinode was read and is sound.
    pub sound: bool,
    /// Its dinode, or a part of it, is not.
    pub bad: bool,
    pub mode: u32,
    pub nlink: u32,
    /// Entries that lead to it.
    pub links: u32,
    /// Directory: entries of it that lead to directories.
    pub subdirs: u32,
    pub blocks_says: u64,
    pub blocks: u64,
    pub entries_says: u64,
    pub entries: u64,
    pub parent_says: u64,
    /// Directory that leads to it, for a directory.
    pub parent: u64,
    /// Bit per `DT_*` that entries call it.
    pub kinds: u32,
    /// On a list of orphans.
    pub orphan: bool,
    /// Found without a name.
    pub nameless: bool,
    /// The first entry that leads to it.
    pub from: Option<Name>,
}

impl Info {
    /// A directory?
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    /// Takes over what the dinode says.
    pub fn load(&mut self, raw: &RawDinode) {
        self.sound = true;
        self.mode = raw.mode.get();
        self.nlink = raw.nlink.get();
        self.blocks_says = raw.blocks.get();
        self.entries_says = raw.entries.get();
        self.parent_says = raw.parent.get();
    }
    /// Links there should be.
    pub fn links_due(&self, root: bool) -> u32 {
        if self.nameless && self.links == 0 {
            // Reported as that.
            self.nlink
        } else if !self.is_dir() {
            self.links
        } else if self.links == 0 && !root {
            // Removed, but open.
            0
        } else {
            2 + self.subdirs
        }
    }
}

/// By number.
pub(super) type Inodes = BTreeMap<u64, Info>;

/// Counts that a dinode must have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub ino: InodeNo,
    pub nlink: u32,
    pub blocks: u64,
    pub entries: u64,
    pub parent: u64,
}
