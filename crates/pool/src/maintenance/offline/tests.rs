use std::collections::HashMap;

use braid_device::{CawOutcome, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On};
use braid_format::ByteOffset;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::redundancy::tests::{consistent, dynamic, failed};

const MIB: u64 = 1 << 20;
const ONE: MemberIndex = MemberIndex(1);
const SECTOR: u64 = 4096;

/// Larger than what is filled in any case.
fn disks(n: usize) -> Vec<Arc<FaultyDevice>> {
    let disk = |i| MemoryDevice::new(&format!("m{i}"), Bytes(160 * MIB), Bytes(512));
    let plan = || FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    (0..n).map(|i| FaultyDevice::new(disk(i) as Arc<dyn Device>, plan())).collect()
}

fn made(all: &[Arc<FaultyDevice>], redundancy: Redundancy) -> Pool {
    let options = CreateOptions { redundancy, log_slots: 2, ..CreateOptions::new("p") };
    Pool::create(dynamic(all), &options).unwrap()
}

fn shapes() -> [(usize, Redundancy); 4] {
    use Redundancy::{Mirror, Parity};
    [(2, Mirror(2)), (4, Mirror(2)), (3, Parity(1)), (4, Parity(2))]
}

/// What a sector holds after `step`.
fn content(at: u64, step: u64) -> Vec<u8> {
    (0..SECTOR / 16).flat_map(|i| [at ^ i, step]).flat_map(u64::to_le_bytes).collect()
}

/// A pool, and what was written to it.
struct Work {
    pool: Pool,
    written: HashMap<u64, u64>,
    random: u64,
    step: u64,
}

impl Work {
    fn next(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.random >> 33) % below
    }
    /// Writes here and there, sometimes a whole row, and gives space back.
    fn write(&mut self, times: u64) {
        let sectors = self.pool.info().size.0 / SECTOR;
        for _ in 0..times {
            let len = [1, 3, 300][usize::try_from(self.next(3)).unwrap()];
            let at = self.next(sectors - len);
            self.step += 1;
            let step = self.step;
            if self.next(8) == 0 {
                // What was not given back stays.
                self.pool.discard(ByteOffset(at * SECTOR), Bytes(len * SECTOR)).unwrap();
                self.written.retain(|s, _| !(at..at + len).contains(s));
                continue;
            }
            let bytes: Vec<u8> = (at..at + len).flat_map(|s| content(s, step)).collect();
            self.pool.write(ByteOffset(at * SECTOR), &bytes).unwrap();
            self.written.extend((at..at + len).map(|s| (s, step)));
        }
    }
    fn check(&self) {
        for (at, step) in &self.written {
            let mut back = vec![0; content(0, 0).len()];
            self.pool.read(ByteOffset(at * SECTOR), &mut back).unwrap();
            assert!(back == content(*at, *step), "sector {at}");
        }
    }
}

/// Nodes write, die, are recovered, leave and join while a member is offline, and caches lose what was not
/// flushed. When it is back it has all of that, and not by being filled whole.
#[test]
fn a_member_that_was_offline_has_all_that_it_missed_whatever_happened_meanwhile() {
    for (seed, (n, redundancy)) in (0..8_u64).zip(shapes().into_iter().cycle()) {
        let all = disks(n);
        let pool = made(&all, redundancy);
        pool.attach(0).unwrap();
        let mut work = Work { pool, written: HashMap::new(), random: seed, step: 0 };
        work.write(6);
        assert!(work.pool.take_offline(ONE).unwrap(), "it took its label");
        assert_eq!(failed(&work.pool), [1]);
        let crash = |work: &mut Work, seed: u64| {
            // What is not durable may be lost, which the model does not know.
            work.pool.flush().unwrap();
            let sector = work.next(work.pool.info().size.0 / SECTOR - 400);
            for s in sector..sector + 300 {
                work.written.remove(&s);
            }
            let torn = vec![7; 300 * content(0, 0).len()];
            work.pool.write(ByteOffset(sector * SECTOR), &torn).unwrap();
            for (i, disk) in (0_u64..).zip(&all) {
                disk.crash(seed ^ i).unwrap();
            }
        };
        let own_slot = u16::from(seed % 3 == 0);
        for life in 0..3 {
            work.write(3);
            if seed % 2 == 0 {
                crash(&mut work, seed + life);
            } else {
                work.pool.detach().unwrap();
            }
            // By its own label it is offline, found or not.
            let there = all.iter().enumerate().filter(|(i, _)| *i != 1 || (seed + life) % 2 == 0);
            let there = there.map(|(_, d)| d.clone() as Arc<dyn Device>).collect();
            work.pool = Pool::assemble(there).unwrap();
            assert_eq!(failed(&work.pool), [1]);
            work.pool.recover_log(0).unwrap();
            work.pool.attach(own_slot).unwrap();
        }
        work.write(3);
        let planned = work.pool.plan_online(ONE, &(all[1].clone() as _)).unwrap();
        let caught = work.pool.bring_online(ONE, &(all[1].clone() as _)).unwrap();
        assert_eq!(caught, planned);
        assert!(caught.fill < caught.whole || n == 2, "{caught:?}");
        work.write(3);
        if seed % 5 == 0 {
            // Who fills it dies.
            let calls = std::sync::atomic::AtomicU64::new(0);
            let some = |_| calls.fetch_add(1, Ordering::Relaxed) < 20;
            assert!(!work.pool.rebuild(ONE, &some).unwrap());
            crash(&mut work, seed);
            work.pool = Pool::assemble(dynamic(&all)).unwrap();
            work.pool.recover_log(own_slot).unwrap();
            work.pool.attach(own_slot).unwrap();
            work.write(1);
        }
        assert!(work.pool.rebuild(ONE, &|_| true).unwrap());
        work.pool.flush().unwrap();
        assert!(!work.pool.label().members.iter().any(|m| m.offline));
        all.iter().enumerate().for_each(|(i, d)| d.crash(i as u64).unwrap());
        consistent(&work.pool, &all);
        work.pool.fail_member(MemberIndex(0)).unwrap();
        work.check();
    }
}

/// Only what was missed is written to it: the rest stays as it was, whatever that is.
#[test]
fn what_a_member_has_not_missed_is_not_filled() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    let at = |mib: u64| {
        let topology = pool.0.epochs.read();
        topology.map.groups()[0].at(1, mib * MIB).1
    };
    pool.write(ByteOffset(0), &vec![1; 4096]).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    pool.write(ByteOffset(100 * MIB), &[2; 4096]).unwrap();
    let record = |n: u64| {
        let mut bytes = vec![0; 512];
        bytes[..4].copy_from_slice(&braid_format::lock_record::RawLockRecord::MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    // A lock's record counts as well.
    pool.write(ByteOffset(120 * MIB), &record(1)).unwrap();
    pool.detach().unwrap();
    pool.attach(1).unwrap();
    let done = pool.compare_and_write(ByteOffset(120 * MIB), &record(1), &record(2)).unwrap();
    assert_eq!(done, CawOutcome::Written);
    for mib in [10, 70, 90, 101] {
        all[1].inner().write(at(mib), &[9; 4096]).unwrap();
    }
    let caught = pool.bring_online(ONE, &(all[1].clone() as _)).unwrap();
    // Sixteen at 100 MiB, sixteen at 120 MiB, and the beginning.
    assert_eq!(caught.fill, Bytes((64 + 16 + 16) * MIB));
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    let is = |mib: u64| {
        let mut bytes = [0; 4096];
        all[1].read(at(mib), &mut bytes).unwrap();
        bytes[0]
    };
    assert_eq!([10, 70, 90, 101, 100].map(is), [0, 9, 9, 0, 2]);
    // Nothing is noted any more.
    pool.detach().unwrap();
    pool.attach(0).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    let caught = pool.bring_online(ONE, &(all[1].clone() as _)).unwrap();
    assert_eq!(caught.fill, Bytes(64 * MIB));
}

#[test]
fn a_member_that_cannot_be_spared_stays_online_and_others_are_refused_by_name() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    let refused = |done: Result<bool, PoolError>| done.unwrap_err().to_string();
    let spare = MemoryDevice::new("spare", Bytes(160 * MIB), Bytes(512));
    let spare = pool.add_spare(spare, false).unwrap();
    assert!(refused(pool.take_offline(spare)).contains("holds no byte"));
    assert!(pool.take_offline(ONE).unwrap());
    assert!(pool.take_offline(ONE).unwrap(), "once more");
    // No spare steps in, and the last copy stays.
    assert_eq!(pool.use_spare().unwrap(), None);
    let said = refused(pool.take_offline(MemberIndex(0)));
    assert!(said.contains("m0") && said.contains("m1"), "{said}");
    assert!(!pool.label().members[0].offline);
    // Another device is not taken for it.
    let other = MemoryDevice::new("other", Bytes(160 * MIB), Bytes(512)) as Arc<dyn Device>;
    let error = pool.bring_online(ONE, &other).unwrap_err().to_string();
    assert!(
        error.contains("other is not the device") && error.contains("braid replace"),
        "{error}"
    );
    let error = pool.bring_online(MemberIndex(0), &(all[0].clone() as _)).unwrap_err().to_string();
    assert!(error.contains("is active"), "{error}");
    // For good: the spare steps in.
    pool.fail_member(ONE).unwrap();
    assert_eq!(pool.use_spare().unwrap(), Some(ONE));
}

/// What nobody has vouched for is filled whole: a member that failed by itself; one that was put back as it was before it
/// went; one that was offline while another was replaced.
#[test]
fn a_member_of_which_it_is_not_known_what_it_missed_is_filled_whole() {
    let whole = |pool: &Pool, device: &Arc<FaultyDevice>| {
        let caught = pool.bring_online(ONE, &(device.clone() as _)).unwrap();
        assert_eq!(caught.fill, caught.whole);
        assert!(pool.rebuild(ONE, &|_| true).unwrap());
    };
    let all = disks(3);
    let pool = made(&all, Redundancy::Parity(1));
    pool.attach(0).unwrap();
    pool.fail_member(ONE).unwrap();
    whole(&pool, &all[1]);
    let copy_of = |from: &FaultyDevice, to: &FaultyDevice| {
        let mut bytes = vec![0; usize::try_from(from.info().size.0).unwrap()];
        from.read(ByteOffset(0), &mut bytes).unwrap();
        to.write(ByteOffset(0), &bytes).unwrap();
        to.flush().unwrap();
    };
    let image = disks(1).remove(0);
    copy_of(&all[1], &image);
    assert!(pool.take_offline(ONE).unwrap());
    pool.write(ByteOffset(150 * MIB), &[5; 4096]).unwrap();
    copy_of(&image, &all[1]);
    whole(&pool, &all[1]);
    consistent(&pool, &all);
    // It fails by itself, and its cable is put back.
    all[1].arm(On::Write, 0, FaultKind::Gone);
    pool.write(ByteOffset(0), &vec![6; 1 << 20]).unwrap();
    assert_eq!(failed(&pool), [1]);
    all[1].heal();
    whole(&pool, &all[1]);
    consistent(&pool, &all);
    drop(pool);
    // The record's other copies go one by one.
    let all = disks(4);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    let new = disks(1).remove(0);
    pool.replace(MemberIndex(2), new, false).unwrap();
    assert!(pool.rebuild(MemberIndex(2), &|_| true).unwrap());
    whole(&pool, &all[1]);
}

/// A write that was under way may have failed on the member alone, at the moment in which it went.
#[test]
fn what_was_being_written_when_a_member_went_counts_as_missed() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(140 * MIB), &[1; 4096]).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    let caught = pool.plan_online(ONE, &(all[1].clone() as _)).unwrap();
    assert_eq!(caught.fill, Bytes((64 + 16) * MIB));
}
