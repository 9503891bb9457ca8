//! Inodes seen: links, parents, counts.

use std::collections::BTreeMap;

use braid_format::dinode::RawDinode;
use braid_format::{BlockNo, InodeNo};

use super::{Checker, Mendable};

/// What the walk learns of an inode.
#[derive(Debug, Clone, Default)]
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
    /// An entry that leads to it.
    pub from: Option<super::walk::BadEntry>,
}

impl Info {
    /// A directory?
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
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

impl Checker {
    /// Links, kinds, parents, block and entry counts.
    pub(super) fn compare_links(&mut self, found: &mut Mendable) {
        let root = self.volume.root().get();
        for (ino, info) in std::mem::take(&mut self.inodes) {
            if info.sound {
                self.compare_inode(ino, &info, ino == root, found);
            }
            self.inodes.insert(ino, info);
        }
    }
    fn compare_inode(&mut self, ino: u64, info: &Info, root: bool, found: &mut Mendable) {
        let block = BlockNo(ino);
        let before = (self.report.problems.len() as u64).saturating_add(self.suppressed);
        let due = info.links_due(root);
        if info.nlink != due {
            self.problem(block, format!("inode has {} links, its dinode says {}", due, info.nlink));
        }
        if !info.bad && info.blocks != info.blocks_says {
            let (is, says) = (info.blocks, info.blocks_says);
            self.problem(block, format!("inode holds {is} blocks, its dinode says {says}"));
        }
        if info.is_dir() {
            if !info.bad && info.entries != info.entries_says {
                let (is, says) = (info.entries, info.entries_says);
                self.problem(block, format!("directory has {is} entries, its dinode says {says}"));
            }
            if !root && info.links > 0 && info.parent != info.parent_says {
                let (is, says) = (info.parent, info.parent_says);
                self.problem(block, format!("directory is in {is}, its dinode says {says}"));
            }
        }
        let after = (self.report.problems.len() as u64).saturating_add(self.suppressed);
        if after > before {
            let keep = |says, is| if info.bad { says } else { is };
            found.counts.push(Counts {
                ino: InodeNo(ino),
                nlink: due,
                blocks: keep(info.blocks_says, info.blocks),
                entries: if info.is_dir() {
                    keep(info.entries_says, info.entries)
                } else {
                    info.entries_says
                },
                parent: if info.is_dir() && info.links > 0 {
                    info.parent
                } else {
                    info.parent_says
                },
            });
        }
        let kind = (info.mode >> 12) & 15;
        if info.kinds & !(1 << kind) != 0 {
            self.problem(block, "a directory entry tells another file type than the dinode");
        }
        if info.is_dir() && info.links > 1 {
            self.problem(block, format!("directory has {} names", info.links));
        }
    }
}
