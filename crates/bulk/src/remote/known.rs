//! Which inodes the kernel has, and of which generation: a number alone may be another inode's by now.

use std::collections::HashMap;

use braid_format::InodeNo;
use braid_fs::{Attr, KernelCache};
use parking_lot::Mutex;

/// Generations by number.
#[derive(Debug)]
pub struct Known {
    root: (InodeNo, u64),
    generations: Mutex<HashMap<InodeNo, u64>>,
}

impl Known {
    /// The root alone, which is known for ever.
    pub fn new(root: &Attr) -> Self {
        Self { root: (root.ino, root.generation), generations: Mutex::default() }
    }
    /// An inode is about to go to the kernel, which counts it.
    pub fn hand_out(&self, attr: &Attr, kernel: &dyn KernelCache) {
        let mut generations = self.generations.lock();
        generations.insert(attr.ino, attr.generation);
        kernel.handed_out(attr.ino);
    }
    /// The kernel has given an inode back, unless it has got it once more meanwhile.
    pub fn forget(&self, ino: InodeNo, kernel: &dyn KernelCache) {
        let mut generations = self.generations.lock();
        if !kernel.refers(ino) {
            generations.remove(&ino);
        }
    }
    /// The generation that the kernel means by a number; 0: whichever there is.
    pub fn generation(&self, ino: InodeNo) -> u64 {
        if ino == self.root.0 {
            return self.root.1;
        }
        self.generations.lock().get(&ino).copied().unwrap_or(0)
    }
}
