//! Nodes of one process, each with the pool opened for itself over the same devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid_device::{
    ByteLockGuard, CawOutcome, Device, DeviceError, DeviceInfo, FaultPlan, FaultyDevice,
    FileDevice, MemoryDevice, OpenOptions,
};
use braid_format::label::MemberState;
use braid_format::redundancy::RawClaim;
use braid_format::{Incarnation, MemberIndex, NodeId};
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::CreateOptions;
use crate::layout::Redundancy;
use crate::reshape::tests::fresh;

/// What the nodes know of each other, and their region locks.
#[derive(Default)]
struct World {
    /// What each life has said last; gone: it is dead.
    said: Mutex<HashMap<Life, EpochTag>>,
    regions: Mutex<HashMap<u64, Vec<(Life, Hold)>>>,
    freed: Condvar,
    takes: AtomicU64,
}

struct Node {
    me: Life,
    pool: Pool,
    world: Arc<World>,
    ended: AtomicBool,
}

struct Held {
    me: Life,
    locks: Vec<(u64, Hold)>,
    world: Arc<World>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut regions = self.world.regions.lock();
        for (lock, hold) in &self.locks {
            let holders = regions.entry(*lock).or_default();
            let at = holders.iter().position(|h| *h == (self.me, *hold)).unwrap();
            holders.swap_remove(at);
        }
        self.world.freed.notify_all();
    }
}

impl RegionLocks for Node {
    fn count(&self) -> u64 {
        16
    }
    fn hold(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError> {
        assert!(locks.is_sorted_by(|a, b| a.0 < b.0), "ascending, each once");
        let mut held = Held { me: self.me, locks: Vec::new(), world: self.world.clone() };
        for (lock, hold) in locks {
            let mut regions = self.world.regions.lock();
            let beside = |other: &(Life, Hold)| {
                *hold != Hold::Alone
                    && other.1 != Hold::Alone
                    && (other.0 == self.me || (*hold, other.1) == (Hold::Shared, Hold::Shared))
            };
            while !regions.entry(*lock).or_default().iter().all(beside) {
                self.world.freed.wait(&mut regions);
            }
            regions.entry(*lock).or_default().push((self.me, *hold));
            held.locks.push((*lock, *hold));
        }
        self.world.takes.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(held))
    }
    fn hold_to_recover(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError> {
        self.hold(locks)
    }
}

impl Others for Node {
    fn me(&self) -> Life {
        self.me
    }
    fn is_gone(&self, life: Life) -> bool {
        !self.world.said.lock().contains_key(&life)
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        self.world.said.lock().values().all(|t| *t == tag)
    }
    fn announce(&self) {
        self.say();
    }
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

fn life(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}

impl Node {
    fn say(&self) {
        self.world.said.lock().insert(self.me, self.pool.epoch_tag());
    }
    fn dies(&self) {
        self.world.said.lock().remove(&self.me);
    }
    fn state(&self, member: u16) -> MemberState {
        self.pool.member_states()[usize::from(member)].1
    }
}

/// `n` nodes on a pool with the redundancy, over devices that can be seen.
fn nodes(n: u16, redundancy: Redundancy) -> (Vec<Arc<Node>>, Vec<Arc<FaultyDevice>>) {
    let device = |i| {
        let memory = MemoryDevice::new(&format!("m{i}"), Bytes(48 << 20), Bytes(512));
        FaultyDevice::new(memory as Arc<dyn Device>, FaultPlan::default())
    };
    let all: Vec<Arc<FaultyDevice>> = (0..4).map(device).collect();
    let of = || all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    (nodes_on(n, redundancy, &of), all)
}

/// As [`nodes`], each on devices that it opens for itself.
fn nodes_on(
    n: u16,
    redundancy: Redundancy,
    of: &dyn Fn() -> Vec<Arc<dyn Device>>,
) -> Vec<Arc<Node>> {
    let options = CreateOptions { redundancy, log_slots: n, ..CreateOptions::new("p") };
    Pool::create(of(), &options).unwrap();
    let world = Arc::new(World::default());
    let node = |slot| {
        let pool = Pool::assemble(of()).unwrap();
        let (world, ended) = (world.clone(), AtomicBool::new(false));
        let node = Arc::new(Node { me: life(slot), pool: pool.clone(), world, ended });
        pool.share(node.clone(), node.clone());
        node.say();
        pool.attach(slot).unwrap();
        node
    };
    (0..n).map(node).collect()
}

const BRIEFLY: Duration = Duration::from_millis(60);

/// Calls `work`, which is not done before `then` has been called.
fn waits_for<T: Send>(work: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    std::thread::scope(|s| {
        let work = s.spawn(work);
        std::thread::sleep(BRIEFLY);
        assert!(!work.is_finished(), "it waited for nobody");
        then();
        work.join().unwrap()
    })
}

/// Runs `work` while every node but the first follows the others' changes.
fn while_all_follow<T>(nodes: &[Arc<Node>], work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for node in nodes {
            s.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    node.pool.follow().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_member_is_lost_for_all_before_that_counts() {
    let (nodes, _) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let page = vec![7; 4096];
    let lost = || a.pool.fail_member(MemberIndex(1));
    let old = b.pool.epoch_tag();
    waits_for(lost, || {
        // In the old epoch everything goes on, and the other may read and say that it lives.
        b.pool.write(ByteOffset(0), &page).unwrap();
        let mut back = vec![0; 4096];
        a.pool.read(ByteOffset(0), &mut back).unwrap();
        assert_eq!(back, page);
        a.pool.say(ByteOffset(8192), &page).unwrap();
        b.pool.look(ByteOffset(8192), &mut back, 1).unwrap();
        assert_eq!((b.state(1), a.state(1)), (MemberState::Active, MemberState::Failed));
        assert!(b.pool.follow().unwrap() && !b.pool.follow().unwrap());
    })
    .unwrap();
    assert_eq!(b.state(1), MemberState::Failed);
    assert_eq!(a.pool.epoch_tag(), b.pool.epoch_tag());
    assert_ne!(b.pool.epoch_tag(), old);
}

#[test]
fn nobody_writes_in_an_epoch_that_another_does_not_use() {
    for redundancy in [Redundancy::Mirror(2), Redundancy::Parity(1)] {
        let (nodes, all) = nodes(3, redundancy);
        let (a, b, c) = (&nodes[0], &nodes[1], &nodes[2]);
        let lose = std::thread::spawn({
            let a = a.clone();
            move || a.pool.fail_member(MemberIndex(2))
        });
        while a.state(2) == MemberState::Active {
            std::thread::yield_now();
        }
        b.pool.follow().unwrap();
        // The third uses the old one, and dies.
        let at = ByteOffset(a.pool.info().size.0 - (1 << 20));
        let write = || b.pool.write(at, &[1; 4096]);
        waits_for(write, || c.dies()).unwrap();
        lose.join().unwrap().unwrap();
        // One that has withdrawn waits for nobody.
        c.say();
        a.pool.fail_member(MemberIndex(2)).unwrap();
        let spare = fresh("spare", &all[0]);
        a.ended.store(true, Ordering::Relaxed);
        assert!(matches!(a.pool.add_spare(spare, false), Err(PoolError::Closed)));
    }
}

#[test]
fn of_changes_at_once_each_is_made() {
    let (nodes, all) = nodes(3, Redundancy::Mirror(2));
    while_all_follow(&nodes, || {
        std::thread::scope(|s| {
            s.spawn(|| nodes[0].pool.fail_member(MemberIndex(1)).unwrap());
            s.spawn(|| nodes[1].pool.fail_member(MemberIndex(1)).unwrap());
            s.spawn(|| nodes[2].pool.fail_member(MemberIndex(2)).unwrap());
            s.spawn(|| nodes[2].pool.add_spare(fresh("spare", &all[0]), false).unwrap());
        });
    });
    let tag = nodes[0].pool.epoch_tag();
    for node in &nodes {
        assert_eq!(node.pool.epoch_tag(), tag);
        assert_eq!(node.pool.member_states().len(), 5);
        assert_eq!([1, 2].map(|m| node.state(m)), [MemberState::Failed; 2]);
    }
    assert_eq!(tag.epoch, 4, "a member that two lose is lost once");
}

#[test]
fn a_claim_stands_until_its_life_is_gone() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let label = a.pool.label();
    let sector = a.pool.info().lock_sector.to_usize();
    let claim = RawClaim::sector(*label.pool.as_bytes(), 1, Some(b.me), 5, sector);
    all[3].write(RawClaim::AT, &claim).unwrap();
    let lose = || a.pool.fail_member(MemberIndex(0));
    waits_for(lose, || {
        assert_eq!(a.state(0), MemberState::Active);
        b.dies();
    })
    .unwrap();
    // It was let go everywhere.
    for device in &all[1..] {
        let mut stands = vec![0; sector];
        device.read(RawClaim::AT, &mut stands).unwrap();
        assert_eq!(RawClaim::claimer(&stands, *label.pool.as_bytes()), None);
    }
}

/// Compare-and-writes of one node go on while another fills a member: no copy is left behind.
#[test]
fn a_filled_copy_has_every_compare_and_write() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3).map(|i| dir.path().join(format!("d{i}"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(12 << 20).unwrap();
    }
    let open = |i: usize| -> Arc<dyn Device> {
        FileDevice::open(&paths[i], OpenOptions::default()).unwrap()
    };
    let nodes = nodes_on(2, Redundancy::Mirror(2), &|| vec![open(0), open(1)]);
    let (a, b) = (nodes[0].clone(), nodes[1].clone());
    let sector = a.pool.info().lock_sector.to_usize();
    let value = |n: u64| {
        let mut bytes = vec![0; sector];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let done = AtomicBool::new(false);
    let count = || {
        let mut n = [0_u64; 40];
        for round in 0.. {
            let i = round % n.len();
            let at = ByteOffset((i * 4096) as u64);
            let written = b.pool.compare_and_write(at, &value(n[i]), &value(n[i] + 1));
            assert_eq!(written.unwrap(), CawOutcome::Written);
            n[i] += 1;
            let page = vec![u8::try_from(round % 251).unwrap(); 4096];
            b.pool.write(ByteOffset((1 << 20) + at.0), &page).unwrap();
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
        n
    };
    let counts = while_all_follow(&nodes, || {
        std::thread::scope(|s| {
            let counter = s.spawn(count);
            let filled = a.pool.replace(MemberIndex(1), open(2), false).and_then(|()| {
                (0..3).try_for_each(|_| a.pool.rebuild(MemberIndex(1), &|_| true).map(drop))
            });
            done.store(true, Ordering::Relaxed);
            // The second time there is nothing to fill.
            assert!(matches!(filled, Err(PoolError::NoSuchMember { .. })), "{filled:?}");
            counter.join().unwrap()
        })
    });
    assert_eq!((a.state(1), b.state(1)), (MemberState::Active, MemberState::Active));
    let start = a.pool.label().members[0].data_start;
    for device in [open(0), open(2)] {
        for (i, n) in counts.iter().enumerate() {
            let mut there = vec![0; sector];
            device.read(ByteOffset(start.0 + (i * 4096) as u64), &mut there).unwrap();
            assert_eq!(there, value(*n), "{i} on {}", device.info().name);
        }
    }
    let found = a.pool.scrub(&crate::NoOracle, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(0)));
}

#[test]
fn who_does_not_reach_a_new_member_takes_it_out_again() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    while_all_follow(&nodes, || {
        // In memory: nobody else finds it by its path.
        a.pool.replace(MemberIndex(1), fresh("new", &all[1]), false).unwrap();
        assert_eq!(b.state(1), MemberState::Rebuilding);
        b.pool.write(ByteOffset(0), &vec![5; 1 << 20]).unwrap();
    });
    assert_eq!((a.state(1), b.state(1)), (MemberState::Failed, MemberState::Failed));
    let mut back = vec![0; 1 << 20];
    a.pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back.iter().all(|x| *x == 5));
}

#[test]
fn regions_are_held_as_the_shape_asks_for() {
    for (redundancy, hold) in
        [(Redundancy::Mirror(2), Hold::Shared), (Redundancy::Parity(1), Hold::Write)]
    {
        let (nodes, _) = nodes(2, redundancy);
        let (a, b) = (&nodes[0], &nodes[1]);
        let at = ByteOffset(a.pool.info().size.0 - (2 << 20));
        // The other is in the middle of a write there.
        let held = b.pool.0.hold_bytes(at, Bytes(4096)).unwrap().unwrap();
        let locks: Vec<u64> = {
            let regions = a.world.regions.lock();
            regions.iter().filter(|r| !r.1.is_empty()).map(|r| *r.0).collect()
        };
        drop(held);
        let locks: Vec<(u64, Hold)> = locks.iter().map(|l| (*l, hold)).collect();
        let held = b.hold(&locks).unwrap();
        let write = || a.pool.write(at, &[3; 8192]);
        if hold == Hold::Shared {
            write().unwrap();
            drop(held);
        } else {
            waits_for(write, || drop(held)).unwrap();
        }
        // A scrub waits for both.
        let held = b.hold(&locks).unwrap();
        let scrub = || a.pool.scrub(&crate::NoOracle, &mut |_, _| true);
        let found = waits_for(scrub, || drop(held)).unwrap();
        assert_eq!((found.finished, found.healed, found.undecided), (true, Bytes(0), Bytes(0)));
    }
}

/// A device that lets something happen just before its first large write over a certain byte.
struct Meeting {
    inner: Arc<FaultyDevice>,
    at: ByteOffset,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Device for Meeting {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, buf)
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        let covers = (at.0..at.0 + buf.len() as u64).contains(&self.at.0);
        if covers
            && buf.len() > 4096
            && let Some(before) = self.before.lock().take()
        {
            before();
        }
        self.inner.write(at, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.inner.compare_and_write(at, expected, new)
    }
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.inner.discard(at, len)
    }
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.inner.write_zeroes(at, len)
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.inner.lock_byte(byte)
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.byte_locked(byte)
    }
}

/// The worst moment: another node changes a lock on both copies after the filler has read the one
/// and before it writes the other. The same where copies are made equal after a crash, and where a
/// member moves to another device.
#[test]
fn what_is_copied_over_a_compare_and_write_is_brought_after_it() {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum How {
        Filled,
        MadeEqual,
        Moved,
    }
    for how in [How::Filled, How::MadeEqual, How::Moved] {
        let (nodes, all) = nodes(1, Redundancy::Mirror(2));
        let a = &nodes[0];
        let (old, new) = (vec![1; 512], vec![2; 512]);
        a.pool.write(ByteOffset(0), &vec![1; 1 << 20]).unwrap();
        let start = Bytes(a.pool.label().members[0].data_start.0);
        let target = fresh("new", &all[1]);
        let at = ByteOffset(start.0 + 4096);
        // What another node's compare-and-write does to the copies in its turn.
        let change = {
            let (first, target) = (all[0].clone(), target.clone());
            let (old, new) = (old.clone(), new.clone());
            move || {
                first.compare_and_write(at, &old, &new).unwrap();
                let mut there = vec![0; 512];
                target.read(at, &mut there).unwrap();
                target.compare_and_write(at, &there, &new).unwrap();
            }
        };
        let meeting = Arc::new(Meeting {
            inner: target.clone(),
            at,
            before: Mutex::new(Some(Box::new(change))),
        });
        match how {
            How::Filled => {
                a.pool.replace(MemberIndex(1), meeting.clone(), false).unwrap();
                assert!(a.pool.rebuild(MemberIndex(1), &|_| true).unwrap());
            }
            How::Moved => {
                // The mover begins with the copy in member 0, to a device of its own.
                let to = crate::Destination::Device { device: meeting.clone(), force: false };
                a.pool.begin_evacuation(MemberIndex(0), to).unwrap();
                assert!(a.pool.evacuate(&|_| true).unwrap());
            }
            How::MadeEqual => {
                a.pool.replace(MemberIndex(1), meeting.clone(), false).unwrap();
                let first = meeting.before.lock().take();
                assert!(a.pool.rebuild(MemberIndex(1), &|_| true).unwrap());
                // A crash left the second behind; its region is noted.
                target.write(ByteOffset(start.0 + 8192), &[9; 4096]).unwrap();
                *meeting.before.lock() = first;
                assert_eq!(a.pool.recover_log(0).unwrap().repaired, Bytes(4096));
            }
        }
        assert!(meeting.before.lock().is_none(), "{how:?}: they did not meet");
        let mut there = vec![0; 512];
        target.read(at, &mut there).unwrap();
        assert_eq!(there, new, "{how:?}");
    }
}
