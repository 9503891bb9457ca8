//! Inodes seen: links, parents, counts.

use std::collections::BTreeMap;

use braid_format::dinode::RawDinode;
use braid_format::{BlockNo, InodeNo};

use super::name::Name;
use super::{Checker, Mendable};

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

impl Checker {
    /// Links, kinds, parents, block and entry counts.
    pub(super) fn compare_links(&mut self, found: &mut Mendable) {
        let root = self.volume.root().get();
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        for ino in all {
            let Some(info) = self.inodes.get(&ino).filter(|info| info.sound).cloned() else {
                continue;
            };
            self.compare_inode(ino, &info, ino == root, found);
        }
    }
    fn compare_inode(&mut self, ino: u64, seen: &Info, root: bool, found: &mut Mendable) {
        let block = BlockNo(ino);
        let before = (self.report.problems.len() as u64).saturating_add(self.suppressed);
        let due = seen.links_due(root);
        if seen.nlink != due {
            self.problem(block, format!("inode has {} links, its dinode says {}", due, seen.nlink));
        }
        if !seen.bad && seen.blocks != seen.blocks_says {
            let (is, says) = (seen.blocks, seen.blocks_says);
            self.problem(block, format!("inode holds {is} blocks, its dinode says {says}"));
        }
        if seen.is_dir() {
            if !seen.bad && seen.entries != seen.entries_says {
                let (is, says) = (seen.entries, seen.entries_says);
                self.problem(block, format!("directory has {is} entries, its dinode says {says}"));
            }
            if !root && seen.links > 0 && seen.parent != seen.parent_says {
                let (is, says) = (seen.parent, seen.parent_says);
                self.problem(block, format!("directory is in {is}, its dinode says {says}"));
            }
        }
        let after = (self.report.problems.len() as u64).saturating_add(self.suppressed);
        if after > before {
            let keep = |says, is| if seen.bad { says } else { is };
            found.counts.push(Counts {
                ino: InodeNo(ino),
                nlink: due,
                blocks: keep(seen.blocks_says, seen.blocks),
                entries: if seen.is_dir() {
                    keep(seen.entries_says, seen.entries)
                } else {
                    seen.entries_says
                },
                parent: if seen.is_dir() && seen.links > 0 {
                    seen.parent
                } else {
                    seen.parent_says
                },
            });
        }
        let kind = (seen.mode >> 12) & 15;
        let names = self.names_of(ino);
        let mut dropped: Vec<Name> = Vec::new();
        if seen.kinds & !(1 << kind) != 0 {
            self.problem(block, "a directory entry has another file type than the dinode");
            dropped.extend(names.iter().filter(|name| name.kind != kind));
        }
        if seen.is_dir() && seen.links > 1 {
            self.problem(block, format!("directory has {} names", seen.links));
            let told = names.iter().position(|name| name.dir.get() == seen.parent_says);
            let keep = told.unwrap_or(0);
            dropped.extend(names.iter().enumerate().filter(|(i, _)| *i != keep).map(|(_, n)| n));
        }
        if found.cuts.iter().any(|cut| cut.ino.get() == ino && cut.is_of_contents())
            && !seen.is_dir()
        {
            // A program that opens it by name would read zeros where something is lost.
            dropped.extend(names);
        }
        for name in dropped {
            if !found.entries.contains(&name) {
                found.entries.push(name);
            }
        }
    }
}
