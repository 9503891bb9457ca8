//! A pool in memory with a file system on it, for tests of whole mounts.

use std::sync::Arc;

use braid_format::Bytes;
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};

use crate::attr::NoKernelCache;
use crate::check::{CheckOptions, Report, check};
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions};

pub(crate) struct TestPool {
    pub devices: Vec<Arc<dyn Device>>,
}

impl TestPool {
    /// Of so many copies of so many MiB, for so many nodes.
    pub fn new(copies: u16, mib: u64, nodes: u16) -> Self {
        let device = |n: u16| MemoryDevice::new(&n.to_string(), Bytes(mib << 20), Bytes(512));
        let devices: Vec<Arc<dyn Device>> =
            (0..copies).map(|n| device(n) as Arc<dyn Device>).collect();
        let redundancy = if copies > 1 { Redundancy::Mirror(copies) } else { Redundancy::None };
        let options = CreateOptions { redundancy, log_slots: nodes, ..CreateOptions::new("test") };
        let pool = Pool::create(devices.clone(), &options).unwrap();
        let journal_size = Some(2 << 20);
        let options = MakeOptions { nodes: Some(nodes), journal_size, ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        Self { devices }
    }
    pub fn pool(&self) -> Pool {
        Pool::assemble(self.devices.clone()).unwrap()
    }
    pub fn mount(&self) -> Fs {
        let options = MountOptions { dirty_max: Bytes(8 << 20), ..MountOptions::default() };
        Fs::mount(self.pool(), options, Arc::new(NoKernelCache)).unwrap()
    }
    /// Nothing is lost, doubled or miscounted, once all nodes have left.
    pub fn check(&self, repair: bool) -> Report {
        let report = check(self.pool(), CheckOptions { repair }, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        report
    }
}
