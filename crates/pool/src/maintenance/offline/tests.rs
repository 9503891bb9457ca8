use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use braid_device::{
    CawOutcome, CommandKind, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Power, Rule,
    ScriptedDevice,
};
use braid_format::ByteOffset;
use braid_format::label::Label;
use braid_testkit::wait_until;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::membership::log_replicas::relocate_log;
use crate::redundancy::tests::{consistent, dynamic, failed};
use crate::topology::Lost;

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
    // One that is being filled does not go.
    pool.bring_online(ONE, &(all[1].clone() as _)).unwrap();
    assert!(refused(pool.take_offline(ONE)).contains("is being filled"));
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    assert!(pool.take_offline(ONE).unwrap());
    // For good: the spare steps in.
    pool.fail_member(ONE).unwrap();
    assert_eq!(pool.use_spare().unwrap(), Some(ONE));
}

/// All that a device holds.
fn image_of(device: &FaultyDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.info().size.0).unwrap()];
    device.read(ByteOffset(0), &mut bytes).unwrap();
    bytes
}

fn put_back(device: &FaultyDevice, bytes: &[u8]) {
    device.write(ByteOffset(0), bytes).unwrap();
    device.flush().unwrap();
}

/// A pool whose member 1 is offline, where something was written since.
fn gone(n: usize, redundancy: Redundancy) -> (Vec<Arc<FaultyDevice>>, Pool) {
    let all = disks(n);
    let pool = made(&all, redundancy);
    pool.attach(0).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    pool.write(ByteOffset(100 * MIB), &[5; 4096]).unwrap();
    (all, pool)
}

fn online(pool: &Pool, device: &Arc<FaultyDevice>) -> Result<CatchUp, PoolError> {
    pool.bring_online(ONE, &(device.clone() as _))
}

fn planned(pool: &Pool, device: &Arc<FaultyDevice>) -> CatchUp {
    pool.plan_online(ONE, &(device.clone() as _)).unwrap()
}

/// Spoils what the member has and has not missed: being filled in part it stays so.
fn spoil(pool: &Pool, device: &FaultyDevice) {
    let at = pool.0.epochs.read().map.groups()[0].at(1, 90 * MIB).1;
    device.inner().write(at, &[9; 4096]).unwrap();
}

/// It is filled whole, and all agree.
fn is_whole(pool: &Pool, all: &[Arc<FaultyDevice>], caught: CatchUp) {
    assert_eq!(caught.fill, caught.whole);
    spoil(pool, &all[1]);
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    consistent(pool, all);
}

#[test]
fn a_member_that_was_put_back_as_it_was_before_it_went_is_filled_whole() {
    let all = disks(3);
    let pool = made(&all, Redundancy::Parity(1));
    pool.attach(0).unwrap();
    let image = image_of(&all[1]);
    assert!(pool.take_offline(ONE).unwrap());
    pool.write(ByteOffset(150 * MIB), &[5; 4096]).unwrap();
    put_back(&all[1], &image);
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
}

/// Only the command that takes a member out may say of its device that it went in good order: later there may be
/// something else in its place.
#[test]
fn a_member_that_is_offline_already_gets_no_better_label() {
    let all = disks(3);
    let pool = made(&all, Redundancy::Mirror(3));
    pool.attach(0).unwrap();
    let image = image_of(&all[1]);
    pool.write(ByteOffset(150 * MIB), &[4; 4096]).unwrap();
    pool.flush().unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    assert!(pool.take_offline(ONE).unwrap(), "it is as it was");
    put_back(&all[1], &image);
    assert!(!pool.take_offline(ONE).unwrap());
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
    // One that did not take its label when it went.
    all[1].arm(On::Flush, 0, FaultKind::Fails);
    assert!(!pool.take_offline(ONE).unwrap());
    all[1].heal();
    assert!(!pool.take_offline(ONE).unwrap());
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
}

/// A disk that fails by itself is replaced, by itself too; nobody knows what it lost.
#[test]
fn a_member_that_has_failed_does_not_come_back_online() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    all[1].arm(On::Write, 0, FaultKind::Gone);
    pool.write(ByteOffset(0), &vec![6; 1 << 20]).unwrap();
    all[1].heal();
    assert_eq!((failed(&pool), pool.label().members[1].offline), (vec![1], false));
    let said = online(&pool, &all[1]).unwrap_err().to_string();
    assert!(said.contains("is failed, not offline") && said.contains("--force"), "{said}");
    // An operator's order to fail it counts, too, and a failure while it is filled.
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    pool.fail_member(ONE).unwrap();
    assert!(!pool.label().members[1].offline);
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    online(&pool, &all[1]).unwrap();
    all[1].arm(On::Write, 0, FaultKind::Gone);
    pool.write(ByteOffset(120 * MIB), &[6; 4096]).unwrap();
    all[1].heal();
    assert_eq!((failed(&pool), pool.label().members[1].offline), (vec![1], false));
    assert!(online(&pool, &all[1]).unwrap_err().to_string().contains("not offline"));
}

/// A request of before it went may end after that.
#[test]
fn a_write_that_failed_before_the_member_went_ends_the_mark() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    let uuid = pool.label().members[1].uuid;
    let (operation, at) = ("write", ByteOffset(100 * MIB));
    let error = braid_device::DeviceError::Injected { device: "m1".into(), operation, at };
    pool.0.fail_members(&vec![(uuid, error)]).unwrap();
    assert!(!pool.label().members[1].offline);
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
}

/// What was missed is noted on the members in use. A member that comes into use has no such note.
#[test]
fn the_mark_ends_when_a_member_comes_into_use() {
    let new = || disks(1).remove(0) as Arc<dyn Device>;
    let filled: fn(&Pool, Arc<dyn Device>) = |pool, new| {
        pool.replace(MemberIndex(2), new, false).unwrap();
        assert!(pool.rebuild(MemberIndex(2), &|_| true).unwrap());
    };
    let moved: fn(&Pool, Arc<dyn Device>) = |pool, device| {
        let to = crate::reshape::Destination::Device { device, force: false };
        pool.begin_evacuation(MemberIndex(2), to).unwrap();
        assert!(pool.evacuate(&|_| true).unwrap());
    };
    for change in [filled, moved] {
        let (all, pool) = gone(4, Redundancy::Mirror(2));
        let part = planned(&pool, &all[1]);
        assert!(part.fill < part.whole);
        change(&pool, new());
        assert!(!pool.label().members[1].offline);
        let caught = online(&pool, &all[1]).unwrap();
        assert_eq!(caught.fill, caught.whole);
    }
    // While it is filled as well: who fills a part of it does not put it in use.
    let (all, pool) = gone(4, Redundancy::Mirror(2));
    online(&pool, &all[1]).unwrap();
    let once = std::sync::Once::new();
    let ended = pool.rebuild(ONE, &|_| {
        once.call_once(|| filled(&pool, new()));
        true
    });
    assert!(matches!(ended, Err(PoolError::Change(ChangeError::Overtaken { .. }))), "{ended:?}");
    assert!(!pool.label().members[1].offline);
    spoil(&pool, &all[1]);
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    let at = pool.0.epochs.read().map.groups()[0].at(1, 90 * MIB).1;
    let mut there = [0; 4096];
    all[1].inner().read(at, &mut there).unwrap();
    assert_eq!(there, [0; 4096]);
}

/// A record that cannot be read on a member, or is damaged there, is none that says that nothing was missed.
#[test]
fn a_damaged_record_says_that_everything_was_missed() {
    use braid_format::redundancy::LogPlace;
    let record = |pool: &Pool, slot| {
        let start = pool.label().members[0].data_start;
        LogPlace::of_slot(slot, start).unwrap().missed(0)
    };
    // Its magic number, its pool, its contents.
    for byte in [0, 10, 100] {
        let (all, pool) = gone(3, Redundancy::Mirror(3));
        let part = planned(&pool, &all[1]);
        assert!(part.fill < part.whole);
        let mut sector = vec![0; 4096];
        all[0].read(record(&pool, 0), &mut sector).unwrap();
        sector[byte] ^= 0x10;
        all[0].write(record(&pool, 0), &sector).unwrap();
        // (A node that lives writes its own anew in each epoch.)
        let part = planned(&pool, &all[1]);
        assert_eq!(part.fill, part.whole, "byte {byte}");
    }
    let (all, pool) = gone(3, Redundancy::Mirror(3));
    let at = record(&pool, 1);
    let bad = braid_device::ScriptedDevice::over(all[2].clone() as _);
    bad.add(
        braid_device::Rule::on(&[braid_device::CommandKind::Read])
            .overlapping(at.0..at.0 + 512)
            .fails(),
    );
    {
        let mut topology = pool.0.epochs.write();
        topology.devices[2] = bad;
        pool.0.epochs.replace_snapshot(&topology);
    }
    let part = planned(&pool, &all[1]);
    assert_eq!(part.fill, part.whole);
}

#[test]
fn a_member_that_is_suspected_to_return_garbage_is_filled_whole() {
    let all = disks(3);
    let pool = made(&all, Redundancy::Mirror(3));
    pool.attach(0).unwrap();
    (0..8).for_each(|i| pool.accuse(ONE, ByteOffset(i << 20)));
    assert!(!pool.take_offline(ONE).unwrap(), "what it holds is not trusted");
    let caught = online(&pool, &all[1]).unwrap();
    is_whole(&pool, &all, caught);
}

/// Who recovers a dead node notes what that one was writing; perhaps not before the filling has begun.
#[test]
fn what_is_noted_while_a_member_is_filled_is_filled_too() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    let caught = online(&pool, &all[1]).unwrap();
    assert!(caught.fill < caught.whole);
    let once = std::sync::Once::new();
    let seen = std::sync::Mutex::new(Vec::new());
    let done = pool.rebuild(ONE, &|p| {
        seen.lock().unwrap().push((p.done.0, p.total.0));
        once.call_once(|| {
            spoil(&pool, &all[1]);
            let noted = pool.0.epochs.read().note(&[(90 * MIB, 90 * MIB + 1)], &mut Vec::new());
            noted.unwrap();
        });
        true
    });
    assert!(done.unwrap());
    consistent(&pool, &all);
    // One total for all of it, and nothing begins at none again.
    let mut seen = seen.into_inner().unwrap();
    let most = caught.fill.0 + 16 * MIB;
    assert_eq!(seen.iter().max(), Some(&(most, most)));
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup_by_key(|(done, _)| *done);
    assert_eq!(seen.len(), count);
}

/// What a dead node was writing is in its intents until its log is recovered.
#[test]
fn what_a_dead_node_was_writing_is_filled_before_its_log_is_recovered() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(1).unwrap();
    pool.write(ByteOffset(140 * MIB), &[1; 4096]).unwrap();
    pool.flush().unwrap();
    drop(pool);
    let pool = Pool::assemble(dynamic(&all)).unwrap();
    pool.attach(0).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    assert_eq!(planned(&pool, &all[1]).fill, Bytes((64 + 16) * MIB));
}

/// Its own label says that it is out: who finds it alone does not use it.
#[test]
fn a_member_that_is_offline_is_nothing_without_the_others() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    pool.detach().unwrap();
    drop(pool);
    let alone = || vec![all[1].clone() as Arc<dyn Device>];
    assert!(Pool::assemble(alone()).is_err());
    let refused = Pool::assemble_degraded(alone());
    assert!(matches!(refused, Err(PoolError::TooManyLost { .. })), "{refused:?}");
    // Nor do those others without which it went.
    let others = vec![all[0].clone() as Arc<dyn Device>];
    assert!(Pool::assemble(others).is_ok());
}

/// An epoch without a mark may be taken back: what was missed is known until it stays.
#[test]
fn the_record_is_kept_until_an_epoch_without_marks_stays() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    let topology = pool.0.epochs.read();
    let mut unmarked = Topology::clone(&topology);
    unmarked.notes_missed = false;
    let log = topology.log.as_ref().unwrap();
    log.renew_missed(&unmarked, &mut Vec::new()).unwrap();
    assert!(is_in(&topology, &Missed::read(&topology), &(0, 100 * MIB, 101 * MIB)));
    assert!(!log.missed.is_empty());
    log.end_missed(&unmarked, &mut Vec::new()).unwrap();
    assert!(log.missed.is_empty());
    drop(topology);
    drop(all);
}

/// A member that did not take the record gets it before the next write, also of what is noted on the others.
#[test]
fn a_record_that_a_member_did_not_take_is_written_again() {
    use braid_format::redundancy::LogPlace;
    let (all, pool) = gone(3, Redundancy::Mirror(3));
    let at = LogPlace::of_slot(0, pool.label().members[2].data_start).unwrap().missed(0);
    let there = || {
        let mut sector = [0; 4096];
        all[2].read(at, &mut sector).unwrap();
        sector.iter().any(|b| *b != 0)
    };
    assert!(there());
    all[2].write(at, &[0; 4096]).unwrap();
    let topology = pool.0.epochs.read();
    let log = topology.log.as_ref().unwrap();
    all[2].arm(On::Write, 0, FaultKind::Gone);
    let mut lost = Lost::new();
    log.renew_missed(&topology, &mut lost).unwrap();
    assert_eq!(lost.len(), 1, "{lost:?}");
    all[2].heal();
    assert!(!there());
    log.note(&topology, &[(100 * MIB, 101 * MIB)], &mut Lost::new()).unwrap();
    assert!(there());
}

/// A node that has no log yet writes only where everything is filled in any case.
#[test]
fn nothing_is_written_without_a_note() {
    let (_all, pool) = gone(2, Redundancy::Mirror(2));
    pool.detach().unwrap();
    pool.write(ByteOffset(63 * MIB), &[1; 4096]).unwrap();
    let refused = pool.write(ByteOffset(64 * MIB), &[1; 4096]);
    assert!(matches!(refused, Err(PoolError::Unnoted { .. })), "{refused:?}");
    pool.unnoted_to(ByteOffset(65 * MIB));
    pool.write(ByteOffset(64 * MIB), &[1; 4096]).unwrap();
}

/// Another one fails while it is out: then the pool waits for that one, and does not take the one that is out.
#[test]
fn the_last_copy_is_not_given_up_for_a_member_that_is_offline() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    all[0].arm(On::Write, 0, FaultKind::Gone);
    assert!(pool.write(ByteOffset(100 * MIB), &[6; 4096]).is_err());
    assert_eq!(failed(&pool), [1]);
    drop(pool);
    let there = vec![all[1].clone() as Arc<dyn Device>];
    assert!(Pool::assemble_degraded(there).is_err());
    all[0].heal();
    assert!(Pool::assemble(dynamic(&all)).is_ok());
}

/// A write that was under way may have failed on the member alone, at the moment in which it went.
#[test]
fn what_was_being_written_when_a_member_went_counts_as_missed() {
    let all = disks(2);
    let pool = made(&all, Redundancy::Mirror(2));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(140 * MIB), &[1; 4096]).unwrap();
    assert!(pool.take_offline(ONE).unwrap());
    // The intent is forgotten; the note of what was missed stays.
    for _ in 0..2 {
        pool.flush().unwrap();
        pool.0.clean_log();
    }
    let log = pool.0.epochs.read().log.clone().unwrap();
    assert!(log.intents.is_empty());
    let caught = pool.plan_online(ONE, &(all[1].clone() as _)).unwrap();
    assert_eq!(caught.fill, Bytes((64 + 16) * MIB));
}

/// An epoch may be in use though the flush that goes with it has failed.
#[test]
fn what_was_being_written_is_noted_before_a_flush_that_may_fail() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    let topology = pool.0.epochs.read();
    let log = topology.log.clone().unwrap();
    log.missed.forget(&topology, log.slot, &mut Lost::new()).unwrap();
    assert!(!log.intents.is_empty() && log.missed.is_empty());
    all[0].arm(On::Flush, 0, FaultKind::Fails);
    relocate_log(&topology, &mut Lost::new()).unwrap_err();
    assert!(!log.missed.is_empty());
}

/// The disk that an operator takes out may be one that no longer answers.
#[test]
fn a_member_that_does_not_answer_holds_nobody_up() {
    let all = disks(2);
    let mute = ScriptedDevice::over(all[1].clone());
    let devices = vec![all[0].clone() as Arc<dyn Device>, mute.clone()];
    let options = CreateOptions {
        redundancy: Redundancy::Mirror(2),
        log_slots: 2,
        ..CreateOptions::new("p")
    };
    let pool = Pool::create(devices, &options).unwrap();
    pool.attach(0).unwrap();
    let writes = |pool: &Pool| pool.write(ByteOffset(100 * MIB), &[5; 4096]).unwrap();
    writes(&pool);
    let epochs = pool.clone();
    let is_out = move || epochs.0.epochs.snapshot().label.members[1].offline;
    let flush = mute.add(Rule::on(&[CommandKind::Flush]).when(move |_, _| is_out()).holds());
    std::thread::scope(|s| {
        let gone = s.spawn(|| pool.take_offline(ONE));
        wait_until("it is to make durable what it holds", || flush.hits() > 0);
        writes(&pool);
        flush.release();
        assert!(gone.join().unwrap().unwrap());
        for comes_back in [false, true] {
            let read = mute.add(Rule::on(&[CommandKind::Read]).holds());
            let (pool, device) = (&pool, mute.clone() as Arc<dyn Device>);
            let asked = s.spawn(move || {
                if comes_back {
                    pool.bring_online(ONE, &device)
                } else {
                    pool.plan_online(ONE, &device)
                }
            });
            wait_until("its label is to be read", || read.hits() > 0);
            writes(pool);
            read.release();
            asked.join().unwrap().unwrap();
        }
    });
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    consistent(&pool, &all);
}

/// The change that was to bring it back may fail, and be asked for again.
#[test]
fn a_member_that_did_not_come_back_can_still_catch_up() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    all[0].arm(On::Write, 0, FaultKind::Fails);
    online(&pool, &all[1]).unwrap_err();
    assert!(pool.label().members[1].offline);
    let caught = online(&pool, &all[1]).unwrap();
    assert!(caught.fill < caught.whole, "{caught:?}");
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    consistent(&pool, &all);
}

/// Power goes, or a node dies, when only the member's own device has labels of the change that brings it back: it is
/// taken for what it is, and nothing on it is believed.
#[test]
fn a_member_that_was_coming_back_when_power_went_comes_back() {
    for second_label in [false, true] {
        let (all, pool) = gone(3, Redundancy::Parity(1));
        let before: Vec<_> = all.iter().map(|d| image_of(d)).collect();
        online(&pool, &all[1]).unwrap();
        drop(pool);
        put_back(&all[0], &before[0]);
        put_back(&all[2], &before[2]);
        if !second_label {
            let at = Label::copy1_at(all[1].info().size).unwrap();
            let from = usize::try_from(at.0).unwrap();
            all[1].write(at, &before[1][from..from + Label::LEN_MAX]).unwrap();
            all[1].flush().unwrap();
        }
        let others = vec![all[0].clone() as Arc<dyn Device>, all[2].clone()];
        let pool = Pool::assemble(others).unwrap();
        pool.recover_log(0).unwrap();
        pool.attach(0).unwrap();
        assert!(pool.label().members[1].is_offline());
        let plan = planned(&pool, &all[1]);
        let caught = online(&pool, &all[1]).unwrap();
        assert_eq!(caught, plan);
        is_whole(&pool, &all, caught);
    }
}

/// A device that was to take a member's place before that went offline is another one.
#[test]
fn a_device_that_was_in_its_place_before_is_not_the_members_own() {
    let all = disks(3);
    let pool = made(&all, Redundancy::Mirror(3));
    pool.attach(0).unwrap();
    pool.fail_member(ONE).unwrap();
    let old = disks(1).remove(0);
    pool.replace(ONE, old.clone(), false).unwrap();
    pool.fail_member(ONE).unwrap();
    pool.replace(ONE, all[1].clone(), true).unwrap();
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    assert!(pool.take_offline(ONE).unwrap());
    let error = online(&pool, &old).unwrap_err();
    assert!(matches!(error, PoolError::Change(ChangeError::NotItsDevice { .. })), "{error}");
    assert!(pool.label().members[1].is_offline());
}

/// Opens the pool after a power cut, and brings its member back if that is out; what it was.
fn opened_again(all: &[Arc<FaultyDevice>], n: usize, cut: u64) -> (Pool, &'static str) {
    let others = || dynamic(all).into_iter().enumerate().filter(|(i, _)| *i != 1);
    let pool = Pool::assemble(dynamic(all))
        .or_else(|_| Pool::assemble(others().map(|(_, d)| d).collect()))
        .unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
    pool.recover_log(0).unwrap();
    pool.attach(0).unwrap();
    let member = pool.label().members[1].clone();
    let device: Arc<dyn Device> = all[1].clone();
    let what = match member.state {
        MemberState::Active => "in use",
        MemberState::Rebuilding => "catches up",
        _ if !member.is_offline() => panic!("cut at {cut}: {member:?}"),
        _ => {
            let own = Found::read(device.clone()).newest().and_then(own_uuid);
            let caught = pool.bring_online(ONE, &device).unwrap();
            match caught.fill < caught.whole || n == 2 {
                _ if own != Some(member.uuid) => {
                    // It has begun to come back, and has nothing but a label of that.
                    assert_eq!(caught.fill, caught.whole);
                    "was about to come back"
                }
                true => "offline",
                false => "offline, without its label",
            }
        }
    };
    (pool, what)
}

/// Power goes at any write of an order to go offline, of what is written meanwhile, and of an order to come back. Then
/// the member is in use, offline, or catches up, and in the end it holds all that was durable.
#[test]
fn power_may_be_cut_at_any_write_of_going_and_of_coming_back() {
    let places = [100, 120, 140].map(|mib| ByteOffset(mib * MIB));
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for (n, redundancy) in [(2, Redundancy::Mirror(2)), (3, Redundancy::Parity(1))] {
        // Later ones are of the filling, one like the other.
        for cut in (0..70).chain((70..).step_by(9)) {
            let all = disks(n);
            drop(made(&all, redundancy));
            let power = Power::on();
            let powered = |d: &Arc<FaultyDevice>| {
                ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
            };
            let live = Pool::assemble(all.iter().map(powered).collect()).unwrap();
            live.attach(0).unwrap();
            let (mut durable, mut newest) = ([0_u8; 3], [0_u8; 3]);
            let mut write = |place: usize, value: u8| {
                newest[place] = value;
                let done = live.write(places[place], &[value; 4096]).and_then(|()| live.flush());
                if done.is_ok() {
                    durable[place] = value;
                }
                done.is_ok()
            };
            assert!(write(0, 1) && write(1, 1));
            power.cut_after(cut);
            let device = powered(&all[1]);
            let done = live.take_offline(ONE).is_ok_and(|trusted| trusted)
                && write(1, 2)
                && live.bring_online(ONE, &device).is_ok_and(|c| c.fill < c.whole || n == 2)
                && write(2, 2)
                && live.rebuild(ONE, &|_| true).is_ok_and(|done| done);
            let over = power.is_on();
            assert!(done || !over, "cut at {cut}");
            drop(live);
            for (d, salt) in all.iter().zip(0..) {
                d.crash(cut * 31 + salt).unwrap();
            }
            let (pool, what) = opened_again(&all, n, cut);
            *seen.entry(what).or_default() += 1;
            if pool.rebuilding().is_some() {
                assert!(pool.rebuild(ONE, &|_| true).unwrap());
            }
            pool.flush().unwrap();
            // From it, in place of another one.
            pool.fail_member(MemberIndex(0)).unwrap();
            for (place, at) in places.iter().enumerate() {
                let mut back = [0; 4096];
                pool.read(*at, &mut back).unwrap();
                // What was not durable may be torn.
                let whole = back == [durable[place]; 4096];
                assert!(whole || durable[place] != newest[place], "cut at {cut}: {what}, {place}");
            }
            if over {
                break;
            }
        }
    }
    println!("{seen:?}");
    for what in ["in use", "offline", "offline, without its label", "catches up"] {
        assert!(seen.contains_key(what), "{what}: {seen:?}");
    }
}

/// Another member fails for good while one is offline, and the pool can spare both. The one that was offline still
/// lacks only what was noted: the notes are on those that are left.
#[test]
fn another_member_may_fail_while_one_is_offline() {
    for (n, redundancy) in [(3, Redundancy::Mirror(3)), (4, Redundancy::Parity(2))] {
        let (all, pool) = gone(n, redundancy);
        let two = MemberIndex(2);
        all[2].arm(On::Write, 1, FaultKind::Gone);
        for mib in [110, 150] {
            pool.write(ByteOffset(mib * MIB), &vec![6; 1 << 20]).unwrap();
        }
        assert_eq!(failed(&pool), [1, 2]);
        assert!(pool.label().members[1].is_offline(), "the members in use were in use before");
        let refused = pool.take_offline(MemberIndex(0)).unwrap_err().to_string();
        assert!(refused.contains("m1") && refused.contains("m2"), "{refused}");
        let caught = online(&pool, &all[1]).unwrap();
        assert!(caught.fill < caught.whole, "{caught:?}");
        assert!(pool.rebuild(ONE, &|_| true).unwrap());
        pool.flush().unwrap();
        all[2].heal();
        pool.replace(two, all[2].clone(), true).unwrap();
        assert!(pool.rebuild(two, &|_| true).unwrap());
        consistent(&pool, &all);
        pool.fail_member(MemberIndex(0)).unwrap();
        for mib in [100, 110, 150] {
            let mut back = [0; 4096];
            pool.read(ByteOffset(mib * MIB), &mut back).unwrap();
            assert_eq!(back[0], if mib == 100 { 5 } else { 6 });
        }
    }
}

/// Two are offline at once: the first that is back catches up, and the other one is filled whole.
#[test]
fn of_two_members_that_are_offline_the_first_that_is_back_catches_up() {
    let (all, pool) = gone(4, Redundancy::Parity(2));
    let two = MemberIndex(2);
    assert!(pool.take_offline(two).unwrap());
    pool.write(ByteOffset(140 * MIB), &[7; 4096]).unwrap();
    let caught = online(&pool, &all[1]).unwrap();
    assert!(caught.fill < caught.whole);
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    assert!(!pool.label().members[2].offline);
    let caught = pool.bring_online(two, &(all[2].clone() as _)).unwrap();
    assert_eq!(caught.fill, caught.whole);
    assert!(pool.rebuild(two, &|_| true).unwrap());
    consistent(&pool, &all);
}

/// A scrub while one is offline heals what the others can, and takes nothing from it.
#[test]
fn a_scrub_leaves_a_member_alone_that_is_offline() {
    let (all, pool) = gone(3, Redundancy::Mirror(3));
    let at = pool.0.epochs.read().map.groups()[0].at(1, 90 * MIB).1;
    all[1].inner().write(at, &[9; 4096]).unwrap();
    let before = image_of(&all[1]);
    let found = pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(0)));
    assert!(image_of(&all[1]) == before);
    online(&pool, &all[1]).unwrap();
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    // What others have written on it meanwhile only a scrub finds: nothing was noted of that.
    let found = pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(4096), Bytes(0)));
    consistent(&pool, &all);
}

/// Another device takes its place: nothing is noted any more, and its own is a stranger.
#[test]
fn a_member_that_is_offline_may_be_replaced() {
    let (all, pool) = gone(2, Redundancy::Mirror(2));
    let new = disks(1).remove(0);
    pool.replace(ONE, new.clone(), false).unwrap();
    assert!(!pool.label().members[1].offline);
    let error = online(&pool, &all[1]).unwrap_err().to_string();
    assert!(error.contains("is being filled, not offline"), "{error}");
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    consistent(&pool, &[all[0].clone(), new]);
    assert!(pool.take_offline(ONE).unwrap());
    let error = online(&pool, &all[1]).unwrap_err().to_string();
    assert!(error.contains("is not the device that was"), "{error}");
}

/// A copy of its device, made while it was offline, is as good as it. Both together are not.
#[test]
fn a_clone_of_a_member_that_is_offline_is_taken_once() {
    let (all, pool) = gone(3, Redundancy::Mirror(3));
    let clone = MemoryDevice::new("clone", Bytes(160 * MIB), Bytes(512));
    let clone = FaultyDevice::new(clone, FaultPlan::default());
    put_back(&clone, &image_of(&all[1]));
    let caught = online(&pool, &clone).unwrap();
    assert!(caught.fill < caught.whole);
    let error = online(&pool, &all[1]).unwrap_err().to_string();
    assert!(error.contains("not offline"), "{error}");
    assert!(pool.rebuild(ONE, &|_| true).unwrap());
    consistent(&pool, &[all[0].clone(), clone.clone(), all[2].clone()]);
    // It has another identity since.
    assert!(pool.take_offline(ONE).unwrap());
    let error = online(&pool, &all[1]).unwrap_err().to_string();
    assert!(error.contains("is not the device that was"), "{error}");
}

/// Somebody has wiped the beginning of a disk in use, and its labels were restored: it has no record any more, which
/// does not say that nothing was missed; not after a node has its log there again, either.
#[test]
fn a_record_that_is_gone_says_that_everything_was_missed() {
    use braid_format::redundancy::LogPlace;
    for attached in [false, true] {
        let (all, pool) = gone(3, Redundancy::Mirror(3));
        let part = planned(&pool, &all[1]);
        assert!(part.fill < part.whole);
        pool.flush().unwrap();
        drop(pool);
        for slot in [0, 1] {
            let zeros = vec![0; Bytes(LogPlace::LEN.0).to_usize()];
            let at = ByteOffset((1 << 20) + slot * LogPlace::LEN.0);
            all[0].write(at, &zeros).unwrap();
        }
        let pool = Pool::assemble(dynamic(&all)).unwrap();
        if attached {
            pool.attach(1).unwrap();
        }
        let part = planned(&pool, &all[1]);
        assert_eq!(part.fill, part.whole, "{attached}");
        if attached {
            let caught = online(&pool, &all[1]).unwrap();
            is_whole(&pool, &all, caught);
        }
    }
}
