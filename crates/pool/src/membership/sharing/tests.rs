//! Nodes of one process, each with the pool opened for itself over the same devices.

#![allow(clippy::type_complexity, reason = "used once each")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use braid_device::{
    CawOutcome, Command, CommandKind, Device, FaultPlan, FaultyDevice, FileDevice, MemoryDevice,
    OpenOptions, Rule, ScriptedDevice,
};
use braid_format::features::Features;
use braid_format::label::MemberState;
use braid_format::lock_record::Life;
use braid_format::redundancy::RawClaim;
use braid_format::{Incarnation, MemberIndex, NodeId};
use braid_testkit::wait_until;
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::layout::group::Group;
use crate::reshape::tests::fresh;

mod claims;
mod concurrent;
mod durable;
mod filled;
mod moved;
mod offline;
mod resolved;
mod returning;

/// What the nodes know of each other, and their region locks.
#[derive(Default)]
struct World {
    /// What each life has said last; gone: it is dead.
    said: Mutex<HashMap<Life, EpochTag>>,
    regions: Mutex<HashMap<u64, Vec<(Life, RegionHold)>>>,
    freed: Condvar,
    takes: AtomicU64,
    /// Locks that came by a record that is not durable.
    grants: AtomicU64,
    /// Questions whether a life is gone.
    asked: AtomicU64,
    /// What those know of the format that know less than this version.
    older: Mutex<HashMap<Life, Features>>,
    /// What a node does before it says that it uses another epoch.
    adopt: Mutex<Option<Box<dyn Fn(Life) + Send + Sync>>>,
}

struct Node {
    me: Life,
    pool: Pool,
    world: Arc<World>,
    ended: AtomicBool,
}

struct Held {
    me: Life,
    locks: Vec<(u64, RegionHold)>,
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
    fn hold(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError> {
        assert!(locks.is_sorted_by(|a, b| a.0 < b.0), "ascending, each once");
        let mut held = Held { me: self.me, locks: Vec::new(), world: self.world.clone() };
        for (lock, hold) in locks {
            let mut regions = self.world.regions.lock();
            let concurrent = |other: &(Life, RegionHold)| {
                *hold != RegionHold::Alone
                    && other.1 != RegionHold::Alone
                    && (other.0 == self.me
                        || (*hold, other.1) == (RegionHold::Shared, RegionHold::Shared))
            };
            while !regions.entry(*lock).or_default().iter().all(concurrent) {
                self.world.freed.wait(&mut regions);
            }
            regions.entry(*lock).or_default().push((self.me, *hold));
            held.locks.push((*lock, *hold));
        }
        self.world.takes.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(held))
    }
    fn hold_to_recover(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError> {
        self.hold(locks)
    }
    fn grants(&self) -> u64 {
        self.world.grants.load(Ordering::Relaxed)
    }
}

impl Others for Node {
    fn me(&self) -> Life {
        self.me
    }
    fn is_gone(&self, life: Life) -> bool {
        self.world.asked.fetch_add(1, Ordering::Relaxed);
        !self.world.said.lock().contains_key(&life)
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        self.world.said.lock().values().all(|t| *t == tag)
    }
    fn late(&self, tag: EpochTag) -> Vec<Life> {
        let said = self.world.said.lock();
        said.iter().filter(|(_, t)| **t != tag).map(|(life, _)| *life).collect()
    }
    fn who_lacks(&self, features: Features) -> Result<Vec<NodeId>, PoolError> {
        let older = self.world.older.lock();
        let lacks = |known: &Features| !features.without(*known).is_empty();
        let who = older.iter().filter(|(life, known)| **life != self.me && lacks(known));
        Ok(who.map(|(life, _)| life.slot).collect())
    }
    fn adopt(&self) {
        if let Some(adopt) = &*self.world.adopt.lock() {
            adopt(self.me);
        }
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
    nodes_of(n, of)
}

/// `n` nodes of a pool that there is.
fn nodes_of(n: u16, of: &dyn Fn() -> Vec<Arc<dyn Device>>) -> Vec<Arc<Node>> {
    let world = Arc::new(World::default());
    (0..n).map(|slot| joined(&world, slot, of())).collect()
}

/// A node more.
fn joined(world: &Arc<World>, slot: u16, devices: Vec<Arc<dyn Device>>) -> Arc<Node> {
    let pool = Pool::assemble(devices).unwrap();
    let (world, ended) = (world.clone(), AtomicBool::new(false));
    let node = Arc::new(Node { me: life(slot), pool: pool.clone(), world, ended });
    pool.share(node.clone(), node.clone());
    node.say();
    pool.attach(slot).unwrap();
    node
}

const BRIEFLY: Duration = Duration::from_millis(60);

/// Calls `work`, which is not done before `then` has been called.
fn waits_for<T: Send, U>(work: impl FnOnce() -> T + Send, then: impl FnOnce() -> U) -> T {
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
    /// However the work ends.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
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
        let _done = Done(&done);
        work()
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
        wait_until("a has failed the member", || a.state(1) == MemberState::Failed);
        assert_eq!(b.state(1), MemberState::Active);
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
        let fail_members = std::thread::spawn({
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
        fail_members.join().unwrap().unwrap();
        // A node that has withdrawn waits for nobody.
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

/// Features of today are known to everybody; of one that comes later each node is asked.
#[test]
fn a_pool_gets_no_feature_that_a_node_does_not_know() {
    let (nodes, _) = nodes(2, Redundancy::Mirror(2));
    let cluster = &nodes[0].pool.0.cluster;
    let later = Features::of_label(1 << 40);
    nodes[0].world.older.lock().insert(nodes[1].me, Features::KNOWN);
    cluster.check_known(Features::KNOWN).unwrap();
    let refused = cluster.check_known(later).unwrap_err();
    let PoolError::UnknownToNodes { nodes: older, .. } = &refused else { panic!("{refused}") };
    assert_eq!(older.as_slice(), [NodeId(1)]);
    nodes[0].world.older.lock().clear();
    cluster.check_known(later).unwrap();
}

#[test]
fn a_claim_stands_until_its_life_is_gone() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let label = a.pool.label();
    let sector = a.pool.info().lock_sector.to_usize();
    let claim = RawClaim::sector(*label.pool.as_bytes(), 1, Some(b.me), 5, sector);
    all[3].write(RawClaim::AT, &claim).unwrap();
    let fail_members = || a.pool.fail_member(MemberIndex(0));
    waits_for(fail_members, || {
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
    let value = |n: u64| filled::record(n, sector);
    for i in 0..40 {
        b.pool.write(ByteOffset(i * 4096), &value(0)).unwrap();
    }
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
    let found = a.pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
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
        [(Redundancy::Mirror(2), RegionHold::Shared), (Redundancy::Parity(1), RegionHold::Write)]
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
        let locks: Vec<(u64, RegionHold)> = locks.iter().map(|l| (*l, hold)).collect();
        let held = b.hold(&locks).unwrap();
        let write = || a.pool.write(at, &[3; 8192]);
        if hold == RegionHold::Shared {
            write().unwrap();
            drop(held);
        } else {
            waits_for(write, || drop(held)).unwrap();
        }
        // A scrub waits for both.
        let held = b.hold(&locks).unwrap();
        let scrub = || a.pool.scrub(&crate::NoChecksums, &mut |_, _| true);
        let found = waits_for(scrub, || drop(held)).unwrap();
        assert_eq!((found.finished, found.healed, found.undecided), (true, Bytes(0), Bytes(0)));
    }
}

/// Strikes large writes over a certain byte.
fn large_write_over(at: ByteOffset) -> Rule {
    Rule::on(&[CommandKind::Write]).covering(at).when(|_, write| write.len() > Bytes(4096))
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
        let (old, new) = (filled::record(1, 512), filled::record(2, 512));
        a.pool.write(ByteOffset(0), &vec![1; 1 << 20]).unwrap();
        a.pool.write(ByteOffset(4096), &old).unwrap();
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
        let meeting = ScriptedDevice::over(target.clone());
        let met = meeting.add(large_write_over(at).calls_once(change));
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
                met.enable(false);
                assert!(a.pool.rebuild(MemberIndex(1), &|_| true).unwrap());
                // A crash left the second behind, on both sides of the lock; its region is noted.
                target.write(ByteOffset(start.0), &[9; 4096]).unwrap();
                target.write(ByteOffset(start.0 + 8192), &[9; 4096]).unwrap();
                met.enable(true);
                assert_eq!(a.pool.recover_log(0).unwrap().repaired, Bytes(8192));
            }
        }
        assert_eq!(met.hits(), 1, "{how:?}: they did not meet");
        let mut there = vec![0; 512];
        target.read(at, &mut there).unwrap();
        assert_eq!(there, new, "{how:?}");
    }
}

/// Files for a pool of three members and a device to move to, and a way to open each of them.
fn files() -> (tempfile::TempDir, impl Fn(usize) -> Arc<dyn Device>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let path = move |i: usize| path.join(format!("d{i}"));
    for i in 0..4 {
        std::fs::File::create(path(i)).unwrap().set_len(12 << 20).unwrap();
    }
    (dir, move |i| FileDevice::open(&path(i), OpenOptions::default()).unwrap())
}

/// A node dies between the two writes of a move: the one that copies does not know, and has copied
/// there before.
#[test]
fn a_move_begins_again_when_a_node_has_died() {
    let (_dir, open) = files();
    let nodes = nodes_on(3, Redundancy::None, &|| (0..3).map(&open).collect());
    let [a, b, c] = [0, 1, 2].map(|i: usize| nodes[i].clone());
    let at = ByteOffset(a.pool.label().members[0].data_start.0 + (1 << 20));
    let to = crate::Destination::Device { device: open(3), force: false };
    while_all_follow(&nodes, || a.pool.begin_evacuation(MemberIndex(0), to).unwrap());
    let dies = AtomicBool::new(true);
    let pace = |p: crate::Progress| {
        if p.done == p.total && dies.swap(false, Ordering::Relaxed) {
            open(0).write(at, &[9; 4096]).unwrap();
            b.dies();
            c.pool.recover_log(1).unwrap();
        }
        true
    };
    let living = [a.clone(), c.clone()];
    while_all_follow(&living, || assert!(a.pool.evacuate(&pace).unwrap()));
    assert!(!dies.into_inner());
    for (what, device) in [("old", open(0)), ("new", open(3))] {
        let mut there = vec![0; 4096];
        device.read(at, &mut there).unwrap();
        assert!(there.iter().all(|x| *x == 9), "the {what} device lacks the dead node's write");
    }
    assert_eq!(a.pool.epoch_tag(), c.pool.epoch_tag());
}

/// At the end of a move in a pool without copies each node stands on another device.
#[test]
fn who_uses_the_successor_is_heard_by_those_who_do_not_yet() {
    let (_dir, open) = files();
    let nodes = nodes_on(2, Redundancy::None, &|| (0..3).map(&open).collect());
    let (a, b) = (&nodes[0], &nodes[1]);
    let to = crate::Destination::Device { device: open(3), force: false };
    while_all_follow(&nodes, || a.pool.begin_evacuation(MemberIndex(0), to).unwrap());
    let moved = || a.pool.evacuate(&|_| true);
    let moved = waits_for(moved, || {
        while a.pool.moving().is_some() {
            std::thread::yield_now();
        }
        a.pool.say(ByteOffset(8192), &[4; 4096]).unwrap();
        let heard = (0..b.pool.copies()).any(|nth| {
            let mut back = vec![0; 4096];
            b.pool.look(ByteOffset(8192), &mut back, nth).unwrap();
            back == [4; 4096]
        });
        // First of all, so that nobody waits for ever.
        b.pool.follow().unwrap();
        assert!(heard);
    });
    assert!(moved.unwrap());
}

/// Another node may have been given the same device: what is on it goes only when nobody else can
/// change the pool, and if it is still nobody's then.
#[test]
fn a_device_that_joins_is_wiped_under_the_claim() {
    let one = MemberIndex(1);
    let add = |pool: &Pool, device: Arc<dyn Device>, force| {
        let redundancy = Some(Redundancy::None);
        let options = crate::AddOptions { force, redundancy, ..crate::AddOptions::default() };
        pool.add(&[device], &options).map(drop)
    };
    let moved = |pool: &Pool, device: Arc<dyn Device>, force| {
        let to = crate::Destination::Device { device, force };
        pool.begin_evacuation(one, to).map(drop)
    };
    type Join<'a> = &'a (dyn Fn(&Pool, Arc<dyn Device>, bool) -> Result<(), PoolError> + Sync);
    let ways: [(&str, Join<'_>); 4] = [
        ("spare", &|pool, device, force| pool.add_spare(device, force).map(drop)),
        ("add", &add),
        ("evacuate", &moved),
        ("replace", &|pool, device, force| pool.replace(one, device, force)),
    ];
    for (way, join) in ways {
        for taken in [false, true] {
            let (nodes, all) = nodes(2, Redundancy::Mirror(2));
            let (a, b) = (&nodes[0], &nodes[1]);
            let sector = a.pool.info().lock_sector.to_usize();
            let uuid = *a.pool.label().pool.as_bytes();
            let claim = RawClaim::sector(uuid, 1, Some(b.me), 5, sector);
            all[3].write(RawClaim::AT, &claim).unwrap();
            let device = fresh("new", &all[0]);
            device.write(ByteOffset(0), &[5; 4096]).unwrap();
            let first = |with: u8| {
                let mut there = vec![0; 4096];
                device.read(ByteOffset(0), &mut there).unwrap();
                // Behind the boot sector of a member.
                there[512..].iter().all(|x| *x == with)
            };
            let work = || join(&a.pool, device.clone(), !taken);
            let done = waits_for(work, || {
                // It has come to the claim of another.
                let began = std::time::Instant::now();
                while a.world.asked.load(Ordering::Relaxed) == 0 && began.elapsed().as_secs() < 30 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let whole = first(5);
                if taken {
                    let other = CreateOptions { force: true, ..CreateOptions::new("other") };
                    Pool::create(vec![device.clone()], &other).unwrap();
                }
                b.dies();
                assert!(whole, "{way}: wiped before it was this node's to wipe");
            });
            if !taken {
                done.unwrap();
                assert!(first(0), "{way}");
                continue;
            }
            let refused =
                matches!(&done, Err(PoolError::BelongsToPool { name, .. }) if name == "other");
            assert!(refused, "{way}: {done:?}");
            Pool::assemble(vec![device]).unwrap();
        }
    }
}

/// A request that takes long holds up a change of the epoch, not what nodes say and see of each
/// other.
#[test]
fn heartbeats_do_not_wait_for_a_change_of_the_epoch() {
    let (first, all) = nodes(1, Redundancy::Mirror(2));
    let a = &first[0];
    let at = ByteOffset(a.pool.label().members[0].data_start.0);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel::<()>();
    let slow = ScriptedDevice::over(all[0].clone());
    slow.add(large_write_over(at).calls_once(move || {
        begins.send(()).unwrap();
        wait.recv().unwrap();
    }));
    let mut devices: Vec<Arc<dyn Device>> = vec![slow];
    devices.extend(all.iter().skip(1).map(|d| d.clone() as Arc<dyn Device>));
    let pool = Pool::assemble(devices).unwrap();
    let (world, ended) = (a.world.clone(), AtomicBool::new(false));
    let b = Arc::new(Node { me: life(1), pool: pool.clone(), world, ended });
    pool.share(b.clone(), b.clone());
    b.say();
    std::thread::scope(|s| {
        let write = s.spawn(|| b.pool.write(ByteOffset(0), &vec![6; 1 << 20]));
        begun.recv().unwrap();
        let change = s.spawn(|| a.pool.fail_member(MemberIndex(3)));
        while a.state(3) != MemberState::Failed {
            std::thread::yield_now();
        }
        let follow = s.spawn(|| b.pool.follow());
        std::thread::sleep(BRIEFLY);
        let old = b.pool.clone();
        let beat = std::thread::spawn(move || {
            let mut back = vec![0; 4096];
            old.say(ByteOffset(4 << 20), &[8; 4096]).unwrap();
            old.look(ByteOffset(4 << 20), &mut back, 1).unwrap();
            (old.epoch_tag().epoch, old.byte_locked(7).unwrap())
        });
        let start = std::time::Instant::now();
        while !beat.is_finished() && start.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let waited = !beat.is_finished();
        let others_waited = !change.is_finished() && !follow.is_finished();
        go.send(()).unwrap();
        let (epoch, locked) = beat.join().unwrap();
        write.join().unwrap().unwrap();
        assert!(follow.join().unwrap().unwrap());
        change.join().unwrap().unwrap();
        assert!(!waited, "a heartbeat waited for a request");
        assert!(others_waited && epoch == 1 && !locked);
    });
    assert_eq!(a.pool.epoch_tag(), b.pool.epoch_tag());
}

/// A node that says that it uses an epoch is ready for it.
#[test]
fn an_epoch_is_said_when_what_is_above_is_ready() {
    let (nodes, _) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (nodes[0].clone(), nodes[1].clone());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let (seen, b) = (seen.clone(), b.clone());
        move |me| {
            if me == b.me {
                seen.lock().push((b.pool.epoch_tag().epoch, b.pool.info().epoch.0));
            }
        }
    };
    *a.world.adopt.lock() = Some(Box::new(note));
    let fail_members = || a.pool.fail_member(MemberIndex(1));
    let follows = || wait_until("there is an epoch to follow", || b.pool.follow().unwrap());
    waits_for(fail_members, follows).unwrap();
    assert_eq!(*seen.lock(), [(1, 2)]);
    assert_eq!(b.pool.epoch_tag().epoch, 2);
    *a.world.adopt.lock() = None;
}

/// A device as a host sees it that does not know yet that it has grown.
fn small(device: Arc<dyn Device>) -> Arc<dyn Device> {
    ScriptedDevice::described(device, |info| info.size = Bytes(24 << 20))
}

/// What a host finds that looks for a member.
struct Host {
    large: Vec<Arc<dyn Device>>,
    sees: AtomicBool,
}

impl crate::simulation::Simulation for Host {
    fn pause(&self, _: crate::simulation::Pause) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fn open(&self, member: &braid_format::label::Member) -> Option<Arc<dyn Device>> {
        let found = self.large.iter().find(|d| d.info().name == member.path);
        found.filter(|_| self.sees.load(Ordering::Relaxed)).cloned()
    }
}

#[test]
fn who_does_not_see_that_a_device_has_grown_uses_what_it_sees() {
    for redundancy in [Redundancy::None, Redundancy::Mirror(2)] {
        let disk = |i| MemoryDevice::new(&format!("m{i}"), Bytes(48 << 20), Bytes(512)) as _;
        let large: Vec<Arc<dyn Device>> = (0..4).map(disk).collect();
        let nodes = nodes_on(2, redundancy, &|| large.iter().cloned().map(small).collect());
        let (a, b) = (&nodes[0], &nodes[1]);
        let host = Arc::new(Host { large: large.clone(), sees: AtomicBool::new(false) });
        b.pool.simulate(host.clone());
        let before = a.pool.info().size;
        let reopen = |name: &str| Ok(large.iter().find(|d| d.info().name == name).unwrap().clone());
        while_all_follow(&nodes, || a.pool.grow(&reopen).unwrap());
        assert_eq!((a.pool.info().size, b.pool.info().size > before), (b.pool.info().size, true));
        while_all_follow(&nodes, || {
            b.pool.write(ByteOffset(0), &vec![7; 1 << 20]).unwrap();
            let mut back = vec![0; 1 << 20];
            for pool in [&a.pool, &b.pool] {
                pool.read(ByteOffset(0), &mut back).unwrap();
                assert!(back.iter().all(|x| *x == 7));
            }
            // Beyond what it sees it fails alone.
            let end = ByteOffset(a.pool.info().size.0 - (1 << 20));
            b.pool.write(end, &vec![8; 4096]).unwrap_err();
            assert!((0..4).all(|m| a.state(m) == MemberState::Active), "{redundancy:?}");
            host.sees.store(true, Ordering::Relaxed);
            // It is not looked for at once again.
            let seen = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                b.pool.write(end, &vec![8; 4096]).is_ok()
            });
            assert!(seen);
            a.pool.read(end, &mut back[..4096]).unwrap();
            assert!(back[..4096].iter().all(|x| *x == 8));
        });
        assert!((0..4).all(|m| a.state(m) == MemberState::Active), "{redundancy:?}");
    }
}

/// Makes a place unreadable until it is written: a rule that strikes that write, before which `written`
/// happens.
fn weaken(
    device: &ScriptedDevice,
    at: ByteOffset,
    written: impl FnOnce() + Send + 'static,
) -> Arc<Rule> {
    let unreadable = device.add(Rule::on(&[CommandKind::Read]).covering(at).fails());
    device.add(Rule::on(&[CommandKind::Write]).covering(at).calls_once(move || {
        unreadable.enable(false);
        written();
    }))
}

/// A node of a mirror of two whose copies can be made weak, and the device's place of the pool's first byte.
fn weak_mirror() -> (Arc<Node>, [Arc<ScriptedDevice>; 2], Bytes) {
    let all = [0, 1].map(|i| {
        let memory = MemoryDevice::new(&format!("m{i}"), Bytes(24 << 20), Bytes(512));
        ScriptedDevice::over(memory)
    });
    let of = || all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let node = nodes_on(1, Redundancy::Mirror(2), &of).remove(0);
    let start = Bytes(node.pool.label().members[0].data_start.0);
    (node, all, start)
}

/// Where reads of a mirror turn to its second copy.
fn second_copy() -> u64 {
    (0..1_u64 << 20).map(|n| n << 12).find(|at| Group::read_copy_at(*at, 2) == 1).unwrap()
}

/// A copy that could not be read is written anew; another node changes a lock meanwhile.
#[test]
fn what_is_mended_over_a_compare_and_write_is_brought_after_it() {
    for scrubbed in [false, true] {
        let (node, all, start) = weak_mirror();
        let (old, new) = (vec![1; 512], vec![2; 512]);
        node.pool.write(ByteOffset(0), &vec![1; 8 << 20]).unwrap();
        let place = second_copy();
        let at = ByteOffset(place + start.0);
        let change = {
            let [first, second] = all.each_ref().map(|d| d.inner().clone());
            let (old, new) = (old.clone(), new.clone());
            move || {
                first.compare_and_write(at, &old, &new).unwrap();
                second.compare_and_write(at, &old, &new).unwrap();
            }
        };
        let mended = weaken(&all[1], at, change);
        if scrubbed {
            assert!(node.pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap().finished);
        } else {
            let mut back = vec![0; 4096];
            node.pool.read(ByteOffset(place), &mut back).unwrap();
            assert!(back[512..].iter().all(|x| *x == 1));
        }
        assert_eq!(mended.hits(), 1, "it was not mended: {scrubbed}");
        let mut there = vec![0; 512];
        all[1].read(at, &mut there).unwrap();
        assert_eq!(there, new, "{scrubbed}");
    }
}

/// When this node has withdrawn, others may use the pool: this node reads, and rewrites nothing.
#[test]
fn who_has_withdrawn_mends_nothing() {
    let (node, all, start) = weak_mirror();
    node.pool.write(ByteOffset(0), &vec![1; 8 << 20]).unwrap();
    let place = second_copy();
    let withdrawn = node.pool.clone().gated();
    withdrawn.close();
    let mut back = vec![0; 4096];
    let mended = weaken(&all[1], ByteOffset(place + start.0), || {});
    withdrawn.read(ByteOffset(place), &mut back).unwrap();
    assert!(back.iter().all(|x| *x == 1));
    assert_eq!(mended.hits(), 0, "it was written anew");
    node.pool.read(ByteOffset(place), &mut back).unwrap();
    assert_eq!(mended.hits(), 1);
}

/// A node joins while another is in the middle of a change: what looks like the rest of a change that
/// was broken off is the beginning of that one.
#[test]
fn labels_are_not_healed_under_a_change() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let next = crate::labels::next_epoch(&a.pool.label());
    let sector = a.pool.info().lock_sector.to_usize();
    let claim = RawClaim::sector(*next.pool.as_bytes(), 1, Some(a.me), 5, sector);
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
    for device in &devices {
        device.write(RawClaim::AT, &claim).unwrap();
    }
    crate::labels::write_copies(&devices, &next, 0, &[0, 1, 2]).unwrap();
    let first = |i: usize| {
        let found = crate::labels::Found::read(devices[i].clone());
        found.copies[0].as_ref().unwrap().epoch.0
    };
    // A node that opens the pool now.
    drop(Pool::assemble(devices.clone()).unwrap());
    assert_eq!([0, 1, 2, 3].map(first), [2, 2, 2, 1], "assembled");
    let heal = || b.pool.heal_labels();
    waits_for(heal, || {
        assert_eq!([0, 1, 2, 3].map(first), [2, 2, 2, 1]);
        // It has died over it.
        a.dies();
    })
    .unwrap();
    assert_eq!([0, 1, 2, 3].map(first), [1; 4], "healed");
}

/// A growing device has its own label at the new end before the old one is overwritten, whatever
/// another node has healed before.
#[test]
fn labels_are_not_healed_between_a_growth_and_its_claim() {
    let disk = |i| {
        let memory = MemoryDevice::new(&format!("m{i}"), Bytes(48 << 20), Bytes(512));
        ScriptedDevice::over(memory)
    };
    let large: Vec<Arc<ScriptedDevice>> = (0..2).map(disk).collect();
    let reopen = |name: &str| {
        let found = large.iter().find(|d| d.info().name == name).unwrap();
        Ok(found.clone() as Arc<dyn Device>)
    };
    let made = AtomicBool::new(false);
    let of = || -> Vec<Arc<dyn Device>> {
        let was_made = made.swap(true, Ordering::Relaxed);
        let as_it_was = |d: &Arc<ScriptedDevice>| -> Arc<dyn Device> {
            if was_made { d.clone() } else { small(d.clone()) }
        };
        large.iter().map(as_it_was).collect()
    };
    let nodes = nodes_on(2, Redundancy::None, &of);
    let (a, b) = (&nodes[0], nodes[1].clone());
    let compares = Rule::on(&[CommandKind::CompareAndWrite]);
    let healed = large[0].add(compares.calls_once(move || b.pool.heal_labels().unwrap()));
    // The first label is torn: is one left then?
    let left = Arc::new(Mutex::new(None));
    let tear = {
        let (device, left) = (large[0].inner().clone(), left.clone());
        move |at: ByteOffset, label: &Command<'_>| {
            device.write(at, &vec![0xa5; label.len().to_usize()]).unwrap();
            *left.lock() = Some(crate::labels::Found::read(device.clone()).newest().is_some());
        }
    };
    let first_label = braid_format::label::Label::COPY0_AT;
    let writes = Rule::on(&[CommandKind::Write]).beginning(first_label).once();
    large[0].add(writes.calls(tear).fails());
    assert!(matches!(a.pool.grow(&reopen), Err(PoolError::Device { .. })));
    assert_eq!(healed.hits(), 1, "nobody healed");
    assert_eq!(*left.lock(), Some(true), "the member had no label");
    // The growth has failed, and the pool is what it was.
    let again = Pool::assemble(of()).unwrap();
    assert_eq!(again.epoch_tag().epoch, 1);
    while_all_follow(&nodes, || a.pool.grow(&reopen).unwrap());
    assert_eq!(nodes[1].pool.info().size, a.pool.info().size);
}

/// The power of all members is cut and comes back under living nodes, before the labels of an epoch
/// that they have just begun to use were durable.
#[test]
fn an_epoch_whose_labels_are_gone_is_written_anew_by_who_uses_it() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let size = all[0].info().size;
    let places =
        [braid_format::label::Label::COPY0_AT, braid_format::label::Label::copy1_at(size).unwrap()];
    let labels = || -> Vec<Vec<u8>> {
        let of = |d: &Arc<FaultyDevice>| {
            places.map(|at| {
                let mut bytes = vec![0; braid_format::label::Label::LEN_MAX];
                d.read(at, &mut bytes).unwrap();
                bytes
            })
        };
        all.iter().flat_map(of).collect()
    };
    let before = labels();
    while_all_follow(&nodes, || a.pool.fail_member(MemberIndex(3)).unwrap());
    let epoch = a.pool.label().epoch;
    assert_eq!(b.pool.label().epoch, epoch);
    a.dies();
    b.pool.0.await_settled().unwrap();
    b.pool.0.epochs.read().durable.store(false, Ordering::Release);
    for (device, labels) in all.iter().zip(before.chunks(2)) {
        for (at, bytes) in places.iter().zip(labels) {
            device.write(*at, bytes).unwrap();
        }
    }
    let (done, ended) = std::sync::mpsc::channel();
    let pool = b.pool.clone();
    std::thread::spawn(move || done.send(pool.write(ByteOffset(0), &[7; 512])));
    ended.recv_timeout(Duration::from_mins(1)).expect("it ends").unwrap();
    assert_eq!((b.pool.label().epoch, b.state(3)), (epoch, MemberState::Failed));
    let again = Pool::assemble(all.iter().map(|d| d.clone() as Arc<dyn Device>).collect()).unwrap();
    assert_eq!(again.label().epoch, epoch);
}

/// The record of a region that came by a compare-and-write is durable before the node writes there.
#[test]
fn a_region_is_held_durably_before_it_is_written() {
    let (nodes, _all) = nodes(2, Redundancy::Parity(1));
    let pool = &nodes[0].pool;
    let flushes = || -> Vec<u64> { pool.issued().iter().map(|member| member.flushes).collect() };
    // The end of the pool is on parity.
    let at = ByteOffset(pool.info().size.0 - (1 << 20));
    let write = || {
        let before = flushes();
        pool.write(at, &[7; 4096]).unwrap();
        before.iter().zip(flushes()).map(|(before, after)| after - before).collect::<Vec<u64>>()
    };
    write();
    let kept = write();
    nodes[0].world.grants.fetch_add(1, Ordering::Relaxed);
    let granted = write();
    let more = granted.iter().zip(&kept).map(|(granted, kept)| granted - kept);
    assert!(more.clone().all(|n| n == 1), "{granted:?} {kept:?}");
    assert_eq!(write(), kept, "once");
}
