use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice, MemoryDevice};
use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes};

use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::pool::Pool;

pub(crate) const MIB: u64 = 1 << 20;

/// Empty devices of so many MiB.
pub(crate) fn disks(name: &str, sizes: &[u64]) -> Vec<Arc<dyn Device>> {
    let disk = |(i, mib): (usize, &u64)| {
        MemoryDevice::new(&format!("{name}{i}"), Bytes(mib * MIB), Bytes(512)) as Arc<dyn Device>
    };
    sizes.iter().enumerate().map(disk).collect()
}

/// A pool of them, by the node in slot 0.
pub(crate) fn made(devices: Vec<Arc<dyn Device>>, redundancy: Redundancy) -> Pool {
    let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
    let pool = Pool::create(devices, &options).unwrap();
    pool.attach(0).unwrap();
    pool
}

/// A device like another, with nothing on it.
pub(crate) fn fresh(name: &str, like: &Arc<FaultyDevice>) -> Arc<FaultyDevice> {
    let memory = MemoryDevice::new(name, like.info().size, Bytes(512)) as Arc<dyn Device>;
    FaultyDevice::new(memory, FaultPlan::default())
}

pub(crate) fn states(pool: &Pool) -> Vec<MemberState> {
    pool.member_states().into_iter().map(|s| s.1).collect()
}

/// What all of a pool holds.
pub(crate) struct Content(Vec<u8>);

impl Content {
    pub fn fill(pool: &Pool, salt: u64) -> Self {
        let size = pool.info().size.to_usize();
        let mut bytes = vec![0; size];
        for (i, sector) in (0_u64..).zip(bytes.chunks_mut(512)) {
            sector.fill(((i * 31 + salt) % 251).to_le_bytes()[0]);
        }
        pool.write(ByteOffset(0), &bytes).unwrap();
        Self(bytes)
    }
    /// Writes all of it once more.
    pub fn rewrite(&self, pool: &Pool) {
        pool.write(ByteOffset(0), &self.0).unwrap();
    }
    /// The `i`-th of many small changes all over the pool.
    pub fn write(&mut self, pool: &Pool, i: u64) {
        let sectors = self.0.len() as u64 / 512 - 3;
        let at = Bytes(i.wrapping_mul(7919).wrapping_add(i * i) % sectors * 512).to_usize();
        let len = [512, 1024, 1536][at / 512 % 3];
        self.0[at..at + len].fill((i % 251).to_le_bytes()[0]);
        pool.write(ByteOffset(at as u64), &self.0[at..at + len]).unwrap();
    }
    pub fn check(&self, pool: &Pool) {
        let mut back = vec![0; self.0.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        if back == self.0 {
            return;
        }
        if let Some(at) = (0..back.len()).find(|i| back[*i] != self.0[*i]) {
            panic!("byte {at} is {} and was {}", back[at], self.0[at]);
        }
    }
}
