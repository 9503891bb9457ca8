//! Mounted nodes for tests.

use std::sync::Arc;

use braid_format::{Bytes, NodeId};
use braid_pool::device::MemoryDevice;
use braid_pool::{CreateOptions, Pool};

use crate::attr::{KernelCache, NoKernelCache};
use crate::check::{CheckOptions, check};
use crate::core::Core;
use crate::make::{MakeOptions, make};
use crate::mount::Mounted;
use crate::options::MountOptions;

/// A new file system for four nodes, in memory.
pub(crate) fn pool() -> Pool {
    pool_of(Bytes(512 << 20))
}

/// As [`pool`], of a given size.
pub(crate) fn pool_of(size: Bytes) -> Pool {
    let device = MemoryDevice::new("test", size, Bytes(512));
    let pool = Pool::create(vec![device], &CreateOptions::new("test")).unwrap();
    make_in(&pool);
    pool
}

/// Makes a file system for four nodes in `pool`.
pub(crate) fn make_in(pool: &Pool) {
    let options =
        MakeOptions { nodes: Some(4), journal_size: Some(8 << 20), ..MakeOptions::default() };
    make(pool, &options, &mut |_, _| {}).unwrap();
}

/// As [`make_in`], with journals of 2 MiB.
pub(crate) fn make_small(pool: &Pool) {
    let options =
        MakeOptions { nodes: Some(4), journal_size: Some(2 << 20), ..MakeOptions::default() };
    make(pool, &options, &mut |_, _| {}).unwrap();
}

/// A mounted node.
pub(crate) struct Node(Mounted);

impl std::ops::Deref for Node {
    type Target = Arc<Core>;
    fn deref(&self) -> &Arc<Core> {
        &self.0.core
    }
}

/// Mounts `pool` in slot `slot`.
pub(crate) fn mount(pool: &Pool, slot: u16) -> Node {
    mount_under(pool, slot, Arc::new(NoKernelCache))
}

/// As [`mount`], under a kernel that caches.
pub(crate) fn mount_under(pool: &Pool, slot: u16, kernel: Arc<dyn KernelCache>) -> Node {
    let options = MountOptions { slot: Some(NodeId(slot)), ..MountOptions::default() };
    Node(Mounted::new(pool.clone(), options, kernel).unwrap())
}

impl Node {
    /// Leaves (the last node to do so); the check then finds nothing wrong.
    pub fn unmount_clean(self) {
        let pool = self.volume.pool.clone();
        self.unmount();
        let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
    /// Leaves cleanly.
    pub fn unmount(self) {
        self.0.unmount(&|_| ()).unwrap();
    }
}
