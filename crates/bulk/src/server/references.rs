//! Which inodes requests refer to.
//!
//! A client names inodes by number and may keep or make up such numbers. So each request looks up the inode of
//! each number that it names ([`FileSystem::revisit`]), refers to it while it works, and then gives it back. The
//! file system asks here whether an inode is referred to, as it would ask the kernel.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use braid_format::InodeNo;
use braid_fs::{Answer, Attr, FileSystem, KernelCache};
use parking_lot::Mutex;

/// References of all requests under way. A file system that is served is mounted with it.
#[derive(Debug, Default)]
pub struct References(Mutex<HashMap<InodeNo, u64>>);

impl References {
    /// Gives one reference back. Whether none is left.
    fn give_back(&self, ino: InodeNo) -> bool {
        match self.0.lock().entry(ino) {
            Entry::Occupied(mut entry) if *entry.get() > 1 => {
                *entry.get_mut() -= 1;
                false
            }
            Entry::Occupied(entry) => {
                entry.remove();
                true
            }
            Entry::Vacant(_) => true,
        }
    }
}

impl KernelCache for References {
    /// Nothing is cached.
    fn invalidate_inode(&self, _ino: InodeNo, _data: bool) {}
    fn invalidate_entries(&self, _dir: InodeNo) {}
    fn handed_out(&self, ino: InodeNo) {
        *self.0.lock().entry(ino).or_default() += 1;
    }
    fn kept_back(&self, ino: InodeNo) {
        self.give_back(ino);
    }
    fn refers(&self, ino: InodeNo) -> bool {
        self.0.lock().contains_key(&ino)
    }
}

/// The inodes that one request refers to; given back when it is dropped.
pub struct Pins<'a, F: FileSystem> {
    files: &'a F,
    references: &'a References,
    inodes: Vec<InodeNo>,
}

impl<'a, F: FileSystem> Pins<'a, F> {
    /// None yet.
    pub fn new(files: &'a F, references: &'a References) -> Self {
        Self { files, references, inodes: Vec::new() }
    }
    /// Refers to an inode by the number that a client has given.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn visit(&mut self, ino: InodeNo) -> Answer<Attr> {
        self.files.revisit(ino).inspect(|attr| self.note(attr))
    }
    /// Takes over the reference that came with attributes.
    pub fn note(&mut self, attr: &Attr) {
        self.inodes.push(attr.ino);
    }
}

impl<F: FileSystem> Drop for Pins<'_, F> {
    fn drop(&mut self) {
        for ino in self.inodes.drain(..) {
            if self.references.give_back(ino)
                && let Err(errno) = self.files.forgotten(ino)
            {
                tracing::warn!(%ino, %errno, "an inode without a name may stay");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_referred_to_until_all_references_are_back() {
        let (references, ino) = (References::default(), InodeNo(7));
        references.handed_out(ino);
        references.handed_out(ino);
        assert!(!references.give_back(ino) && references.refers(ino));
        assert!(references.give_back(ino) && !references.refers(ino));
    }
}
