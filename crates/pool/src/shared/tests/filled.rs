//! A member is filled beside other nodes.

use std::sync::atomic::AtomicUsize;

use braid_format::lock_record::RawLockRecord;
use braid_format::node::{RawHeartbeat, RawSlot};

use super::*;

/// What is as good as a record to the pool.
pub(super) fn record(n: u64, sector: usize) -> Vec<u8> {
    let mut bytes = vec![0; sector];
    bytes[..4].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// A device that counts what is read of it, from `from` on, its last label left out.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Device>,
    from: AtomicU64,
    read: AtomicU64,
}

impl Device for Counted {
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let label = self.info().size.0 - braid_format::label::Label::TAIL.0;
        if (self.from.load(Ordering::Relaxed)..label).contains(&at.0) {
            self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        }
        self.inner.read(at, buf)
    }
    pass_on!(inner: info write flush compare_and_write discard write_zeroes lock_byte byte_locked);
}

/// A mirror of two with data everywhere, of which the first is counted and the second to be filled.
fn to_be_filled() -> (Arc<Node>, Arc<Counted>, Arc<FaultyDevice>) {
    let memory =
        |name: &str| -> Arc<dyn Device> { MemoryDevice::new(name, Bytes(24 << 20), Bytes(512)) };
    let (from, read) = Default::default();
    let first = Arc::new(Counted { inner: memory("m0"), from, read });
    let second = FaultyDevice::new(memory("m1"), FaultPlan::default());
    let of = || vec![first.clone() as Arc<dyn Device>, second.clone()];
    let node = nodes_on(1, Redundancy::Mirror(2), &of).remove(0);
    let pool = &node.pool;
    let start = pool.label().members[0].data_start.0;
    first.from.store(start, Ordering::Relaxed);
    let size = pool.info().size.0;
    for at in (0..size).step_by(1 << 20) {
        let len = Bytes((size - at).min(1 << 20)).to_usize();
        pool.write(ByteOffset(at), &vec![7; len]).unwrap();
    }
    let target = fresh("new", &second);
    (node, first, target)
}

#[test]
fn what_holds_no_record_is_read_once() {
    let (node, first, target) = to_be_filled();
    let pool = &node.pool;
    // Three kinds of records in one chunk, one in another; what only looks like one stands at no sector.
    let at = |n: u64| ByteOffset((1 << 20) + n * 4096);
    pool.write(at(3), &record(1, 512)).unwrap();
    for (n, magic) in [(4, RawSlot::MAGIC), (6, RawHeartbeat::MAGIC)] {
        let mut bytes = vec![0; 512];
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        pool.write(at(n), &bytes).unwrap();
    }
    pool.write(ByteOffset(5 << 20), &record(2, 512)).unwrap();
    let mut like = vec![0; 4096];
    like[100..104].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    pool.write(ByteOffset(7 << 20), &like).unwrap();
    pool.replace(MemberIndex(1), target, false).unwrap();
    first.read.store(0, Ordering::Relaxed);
    assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    let read = first.read.load(Ordering::Relaxed);
    assert_eq!(read, pool.info().size.0 + 3 * 4096 + 512 + 512);
    let found = pool.scrub(&crate::NoOracle, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(0)));
}

#[test]
fn only_records_are_compared_while_a_copy_is_filled() {
    let (node, _, target) = to_be_filled();
    let pool = &node.pool;
    let (at, sector) = (ByteOffset(1 << 20), 512);
    let exchange = |old: &[u8], new: &[u8]| pool.compare_and_write(at, old, new);
    let plain = vec![7; sector];
    assert_eq!(exchange(&plain, &[8; 512]).unwrap(), CawOutcome::Written);
    pool.replace(MemberIndex(1), target, false).unwrap();
    for new in [plain.clone(), record(1, sector)] {
        let refused = exchange(&[8; 512], &new);
        assert!(matches!(refused, Err(PoolError::NoRecord { at: ByteOffset(0x10_0000) })));
    }
    pool.write(at, &record(1, sector)).unwrap();
    // Damaged, but for its beginning.
    let mut damaged = record(1, sector);
    damaged[99] = 1;
    assert_eq!(exchange(&record(1, sector), &damaged).unwrap(), CawOutcome::Written);
    assert_eq!(exchange(&damaged, &plain).unwrap(), CawOutcome::Written);
    assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    assert_eq!(exchange(&plain, &record(1, sector)).unwrap(), CawOutcome::Written);
}

/// A device that takes its time to write much, and knows how many such writes it had at once.
#[derive(Debug)]
struct Slow {
    inner: Arc<FaultyDevice>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Device for Slow {
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        if buf.len() == 1 << 20 {
            self.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.inner.write(at, buf)
    }
    pass_on!(inner: info read flush compare_and_write discard write_zeroes lock_byte byte_locked);
}

/// While one is written the next is read: though all stand in one region.
#[test]
fn chunks_of_one_region_are_filled_side_by_side() {
    let (node, _, target) = to_be_filled();
    let (now, most) = Default::default();
    let slow = Arc::new(Slow { inner: target, now, most });
    node.pool.replace(MemberIndex(1), slow.clone(), false).unwrap();
    assert!(node.pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    let most = slow.most.load(Ordering::SeqCst);
    assert!(most > 1, "{most} at once");
}
