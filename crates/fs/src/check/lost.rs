//! The last part of a repair, by the file system's own code, which is mounted for this alone:
//! inodes without a name get one in `/lost+found`, and metadata that nobody uses becomes space for
//! data again.

use std::sync::Arc;

use braid_format::InodeNo;
use braid_pool::Pool;

use super::checker::Checker;
use super::mendable::Mendable;
use crate::Fs;
use crate::attr::{Cred, NoKernelCache};
use crate::error::{Error, Result};
use crate::options::MountOptions;

/// The directory, in the root.
const DIRECTORY: &[u8] = b"lost+found";

/// An inode to be named, and the links it then has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub ino: InodeNo,
    nlink: u32,
}

impl Checker {
    /// Inodes without a name, if it is safe to write: none of what the walk saw may be free to
    /// the allocator.
    pub(super) fn lost(&self, found: &Mendable) -> Vec<Lost> {
        let unmended = found.unsure && found.space > 0;
        if unmended && (found.exposed || self.space.groups.iter().any(|g| !g.sound)) {
            return Vec::new();
        }
        self.inodes
            .iter()
            .filter(|(_, info)| info.nameless && info.links == 0 && info.sound && !info.bad)
            .map(|(&ino, info)| Lost {
                ino: InodeNo(ino),
                nlink: if info.is_dir() { 2 + info.subdirs } else { 1 },
            })
            .collect()
    }
}

/// Names them all `#NUMBER`; returns how many have their name, and why it stopped.
pub(super) fn reconnect(pool: Pool, lost: &[Lost]) -> (u64, Result<()>) {
    let mut done = 0;
    let result = (|| {
        let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;
        let all = reconnect_all(&fs, lost, &mut done);
        let left = fs.unmount();
        all.and(left)
    })();
    (done, result)
}

fn reconnect_all(fs: &Fs, lost: &[Lost], done: &mut u64) -> Result<()> {
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0o077 };
    let dir = match fs.lookup(fs.root(), DIRECTORY) {
        Err(Error::NotFound) => fs.mkdir(fs.root(), DIRECTORY, 0o700, &cred)?,
        other => other?,
    };
    for inode in lost {
        let name = format!("#{}", inode.ino);
        fs.adopt(inode.ino, dir.ino, (name.as_bytes(), inode.nlink))?;
        *done += 1;
    }
    Ok(())
}

/// Makes unused metadata space for data: how many bytes.
pub(super) fn give_back(pool: Pool) -> Result<u64> {
    let options = MountOptions { after_repair: true, ..MountOptions::default() };
    let fs = Fs::mount(pool, options, Arc::new(NoKernelCache))?;
    let core = fs.core();
    let blocks = core.given_back.get().copied().unwrap_or(0);
    let bytes = blocks * core.volume.geo.block_size.bytes().get();
    fs.unmount()?;
    Ok(bytes)
}
