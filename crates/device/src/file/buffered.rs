//! Writes of a file that direct I/O does not take: they go through the page cache.
//!
//! A file system that writes a file's blocks elsewhere instead of in place takes only whole blocks by
//! direct I/O: XFS, once the file's blocks have been shared with a copy (`cp --reflink`). A file with
//! sectors of 512 bytes may become such a file at any time, also while it is open.
//!
//! Such a write is as good as a direct one, for those who share the file: nodes of this host.
//!
//! * The kernel changes the bytes of the write and no others: it reads the rest of the block, and changes
//!   it, under the file's own lock, which other buffered writes take as well. Direct writes of whole blocks
//!   drop what is cached of them, before and after. So the sectors beside it keep what others wrote there.
//! * A direct read of the range finds what was written: the kernel writes cached changes back first.
//! * It is complete and not durable. A flush of any descriptor of the file makes it durable, or fails.
//!
//! The node itself never reads a block to write it back with one sector changed: another node may have
//! written the next sector meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use braid_format::{ByteOffset, Bytes};

use crate::BufferedTarget;

/// A file that is written by direct I/O, opened once more without it.
#[derive(Debug)]
pub(super) struct Buffered {
    file: File,
    /// Direct writes are whole units of this, as far as is known.
    unit: Bytes,
}

impl Buffered {
    /// `direct` is what `path` was opened as.
    ///
    /// # Errors
    /// It cannot be opened, or another file has that path by now.
    pub fn beside(direct: &File, path: &Path, unit: Bytes) -> io::Result<Self> {
        let file = File::options().write(true).open(path)?;
        let inode = |f: &File| f.metadata().map(|m| (m.dev(), m.ino()));
        if inode(&file)? != inode(direct)? {
            return Err(io::Error::other("another file has this path by now"));
        }
        Ok(Self { file, unit })
    }
    /// For a ring.
    pub fn target(&self) -> BufferedTarget {
        BufferedTarget { fd: self.file.as_raw_fd(), unit: self.unit.to_usize() }
    }
    /// Writes by `direct` if it takes that, or else through the page cache.
    pub fn write_out(&self, direct: &File, at: ByteOffset, buf: &[u8]) -> io::Result<()> {
        if self.target().takes(at.get(), buf.len()) {
            match direct.write_all_at(buf, at.get()) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
                other => return other,
            }
        }
        self.file.write_all_at(buf, at.get())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Arc;

    use super::*;
    use crate::{Device, FileDevice, Op, OpenOptions, Request, run};

    /// A file system on a loop device with sectors of 4096 bytes: direct writes of less are refused.
    struct LargeSectors {
        dir: tempfile::TempDir,
        node: PathBuf,
    }
    impl LargeSectors {
        /// `None`, said, where it cannot be made.
        fn new() -> Option<Self> {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let image = dir.path().join("image");
            File::create(&image).unwrap().set_len(512 << 20).unwrap();
            let out = Command::new("losetup")
                .args(["--find", "--show", "--sector-size", "4096"])
                .arg(&image)
                .output();
            let Some(out) = out.ok().filter(|out| out.status.success()) else {
                braid_testkit::skip("no loop devices here");
                return None;
            };
            let node = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
            let this = Self { dir, node };
            std::fs::create_dir(this.at()).unwrap();
            let done = |program: &str, args: &[&Path]| {
                Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
            };
            let made = done("mkfs.ext4", &[Path::new("-q"), &this.node]);
            if !made || !done("mount", &[&this.node, &this.at()]) {
                braid_testkit::skip("no mkfs.ext4, or no right to mount");
                return None;
            }
            Some(this)
        }
        fn at(&self) -> PathBuf {
            self.dir.path().join("at")
        }
    }
    impl Drop for LargeSectors {
        fn drop(&mut self) {
            Command::new("umount").arg(self.at()).output().ok();
            Command::new("losetup").arg("--detach").arg(&self.node).output().ok();
        }
    }

    /// The unit of direct writes becomes larger while the file is open.
    #[test]
    fn a_file_whose_direct_writes_have_become_larger_is_written_all_the_same() {
        let Some(beneath) = LargeSectors::new() else { return };
        let path = beneath.at().join("member");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
        let mut device = Arc::into_inner(device).unwrap();
        assert_eq!(device.info.sector, Bytes(4096));
        // As it was when it took sectors of 512 bytes.
        device.info.sector = Bytes(512);
        device.buffered.as_mut().unwrap().unit = Bytes(512);
        let refused = device.file.write_all_at(&crate::AlignedBuf::zeroed(512), 512);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));

        device.write(ByteOffset(512), &[2; 512]).unwrap();
        let (three, four) = ([3; 512], [4; 1024]);
        let mut both = [
            Request::new(&device, ByteOffset(1024), Op::Write(&three)),
            Request::new(&device, ByteOffset(8192 - 512), Op::Write(&four)),
        ];
        run(&mut both);
        assert!(both.iter().all(|r| r.result.is_ok()), "{both:?}");
        device.flush().unwrap();
        let mut expected = vec![1_u8; 12288];
        for (from, len, value) in [(512, 512, 2), (1024, 512, 3), (8192 - 512, 1024, 4)] {
            expected.get_mut(from..from + len).unwrap().fill(value);
        }
        let mut found = vec![0; 12288];
        device.read(ByteOffset(0), &mut found).unwrap();
        assert!(found == expected);
    }
}
