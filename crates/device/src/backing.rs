//! What a name stands for in the end: a loop device is a part of the file, or of the device, that it
//! stands on.

use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use braid_format::Bytes;

use crate::block::sysfs;

/// Loop devices that may stand on one another.
const LOOPS_MAX: usize = 8;

/// The bytes that a file or block device stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    on: On,
    from: u64,
    to: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    File { dev: u64, inode: u64 },
    Block { rdev: u64 },
}

impl Backing {
    /// Of what is at `path`; `None` if nothing is.
    pub fn of(path: &Path) -> Option<Self> {
        let mut meta = std::fs::metadata(path).ok()?;
        let (mut from, mut to) = (0, u64::MAX);
        for _ in 0..LOOPS_MAX {
            let Some(under) = Loop::of(&meta) else { break };
            let Ok(file) = std::fs::metadata(&under.file) else { break };
            from = under.offset.get().saturating_add(from);
            to = under.offset.get().saturating_add(to).min(under.end());
            meta = file;
        }
        let on = if meta.file_type().is_block_device() {
            On::Block { rdev: meta.rdev() }
        } else {
            On::File { dev: meta.dev(), inode: meta.ino() }
        };
        Some(Self { on, from, to })
    }
    /// Whether a write through the one may change what the other reads.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.on == other.on && self.from < other.to && other.from < self.to
    }
}

/// What a loop device stands on.
pub(crate) struct Loop {
    pub file: PathBuf,
    offset: Bytes,
    /// 0: to the file's end.
    limit: Bytes,
}

impl Loop {
    /// `None`: it is no loop device.
    pub fn of(meta: &Metadata) -> Option<Self> {
        if !meta.file_type().is_block_device() {
            return None;
        }
        Self::described(&sysfs(meta.rdev()))
    }
    /// Of a block device's folder in sysfs.
    pub fn described(sysfs: &Path) -> Option<Self> {
        let read = |what: &str| std::fs::read(sysfs.join("loop").join(what)).ok();
        let number = |what: &str| {
            let text = String::from_utf8(read(what)?).ok()?;
            text.trim().parse().ok().map(Bytes)
        };
        let file = read("backing_file")?;
        // A name may end with a space.
        let file = file.strip_suffix(b"\n").unwrap_or(&file).to_vec();
        Some(Self {
            file: PathBuf::from(std::ffi::OsString::from_vec(file)),
            offset: number("offset").unwrap_or_default(),
            limit: number("sizelimit").unwrap_or_default(),
        })
    }
    fn end(&self) -> u64 {
        let end = self.offset.get().saturating_add(self.limit.get());
        if self.limit == Bytes(0) { u64::MAX } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as sysfs has it.
    fn described(offset: u64, limit: u64) -> Loop {
        let dir = tempfile::tempdir().unwrap();
        let loop_dir = dir.path().join("loop");
        std::fs::create_dir(&loop_dir).unwrap();
        std::fs::write(loop_dir.join("backing_file"), "/some where/file \n").unwrap();
        std::fs::write(loop_dir.join("offset"), format!("{offset}\n")).unwrap();
        std::fs::write(loop_dir.join("sizelimit"), format!("{limit}\n")).unwrap();
        Loop::described(dir.path()).unwrap()
    }

    #[test]
    fn a_loop_device_is_read_from_sysfs() {
        let whole = described(0, 0);
        assert_eq!((whole.file.as_path(), whole.end()), (Path::new("/some where/file "), u64::MAX));
        assert_eq!(described(4096, 8192).end(), 12288);
    }
    #[test]
    fn parts_of_a_file_overlap_where_they_share_bytes() {
        let on = On::File { dev: 1, inode: 2 };
        let part = |from, to| Backing { on, from, to };
        let whole = part(0, u64::MAX);
        assert!(whole.overlaps(&part(4096, 8192)) && part(4096, 8192).overlaps(&whole));
        assert!(!part(0, 4096).overlaps(&part(4096, 8192)));
        assert!(part(0, 4097).overlaps(&part(4096, 8192)));
        assert!(!whole.overlaps(&Backing { on: On::Block { rdev: 2 }, ..whole }));
    }
    #[test]
    fn links_are_one_file_and_two_files_are_two() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "a").unwrap();
        std::fs::write(path("b"), "b").unwrap();
        std::fs::hard_link(path("a"), path("link")).unwrap();
        let of = |name: &str| Backing::of(&path(name)).unwrap();
        assert!(of("a").overlaps(&of("link")) && !of("a").overlaps(&of("b")));
        assert_eq!(Backing::of(&path("none")), None);
    }
}
