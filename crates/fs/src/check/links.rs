//! Links, parents and counts of inodes are compared.

use braid_format::{BlockNo, InodeNo};

use super::checker::Checker;
use super::inodes::{Counts, Info};
use super::mendable::Mendable;
use super::name::Name;

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
