use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_format::node::SlotDamage;
use braid_format::{ByteOffset, Bytes};
use braid_lock::Timing;
use braid_pool::CreateOptions;
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;

use super::*;
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions, NoKernelCache};

/// Nodes of one process, each with the mirror opened for itself.
fn nodes<const N: usize>() -> [Fs; N] {
    nodes_of(&MakeOptions::default()).1
}

fn nodes_of<const N: usize>(options: &MakeOptions) -> ([Arc<MemoryDevice>; 2], [Fs; N]) {
    let device = |i| MemoryDevice::new(&format!("m{i}"), Bytes(192 << 20), Bytes(512));
    let devices = [0, 1].map(device);
    let of_pool = CreateOptions {
        redundancy: Redundancy::Mirror(2),
        log_slots: 4,
        ..CreateOptions::new("mirror")
    };
    let pool = Pool::create(all_of(&devices), &of_pool).unwrap();
    make(&pool, options, &mut |_, _| {}).unwrap();
    drop(pool);
    let nodes = [(); N].map(|()| mount_on(&devices));
    (devices, nodes)
}

fn all_of(devices: &[Arc<MemoryDevice>; 2]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|d| d.clone() as _).collect()
}

fn mount_on(devices: &[Arc<MemoryDevice>; 2]) -> Fs {
    mount_with(devices, MountOptions::default())
}

fn mount_with(devices: &[Arc<MemoryDevice>; 2], options: MountOptions) -> Fs {
    let pool = Pool::assemble(all_of(devices)).unwrap();
    Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap()
}

/// Mounts by this slot, in a thread of its own.
fn mounts_by(devices: &[Arc<MemoryDevice>; 2], slot: u16) -> JoinHandle<Fs> {
    let pool = Pool::assemble(all_of(devices)).unwrap();
    let options = MountOptions { slot: Some(NodeId(slot)), ..MountOptions::default() };
    std::thread::spawn(move || Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap())
}

fn cluster(fs: &Fs) -> &Arc<Cluster> {
    fs.core().cluster.as_ref().unwrap()
}

/// A node's log names region 1, which another has taken since; the node has region 2 for itself, and
/// dies. Returns what holds region 1.
fn dies_with_a_stale_log(dies: &Fs, other: &Fs) -> HeldRegions {
    let pool = &dies.core().volume.pool;
    pool.write(ByteOffset(100 << 20), &[7; 4096]).unwrap();
    let taken = cluster(other).hold(&[(1, RegionHold::Alone)]).unwrap();
    let held = cluster(dies).hold(&[(2, RegionHold::Alone)]).unwrap();
    // It gives nothing back: its records go on naming it.
    std::mem::forget(held);
    taken
}

/// Threads of the nodes that want regions once.
fn writers(nodes: &[&Fs], regions: &[u64]) -> Vec<JoinHandle<()>> {
    let wanted: Vec<_> = regions.iter().map(|r| (*r, RegionHold::Shared)).collect();
    let start = |fs: &&Fs| {
        let (cluster, wanted) = (cluster(fs).clone(), wanted.clone());
        std::thread::spawn(move || drop(cluster.hold(&wanted).unwrap()))
    };
    nodes.iter().map(start).collect()
}

fn all_end(writers: Vec<JoinHandle<()>>) {
    let start = Instant::now();
    while !writers.iter().all(JoinHandle::is_finished) {
        assert!(start.elapsed() < Duration::from_mins(1), "they wait for each other");
        std::thread::sleep(Duration::from_millis(20));
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn a_dead_nodes_region_is_nobodys_before_its_log_is_recovered() {
    let [dies, one, other] = nodes();
    let taken = dies_with_a_stale_log(&dies, &other);
    let writers = writers(&[&one, &other], &[2]);
    dies.core().withdraw(&Error::NotPermitted);
    // The recoverer waits for region 1.
    let start = Instant::now();
    while !(is_recovering(&one) || is_recovering(&other)) {
        assert!(start.elapsed() < Duration::from_mins(1), "nobody recovers it");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(writers.iter().all(|w| !w.is_finished()), "a region was written before its redo");
    drop(taken);
    all_end(writers);
    one.unmount().unwrap();
    other.unmount().unwrap();
}

fn is_recovering(fs: &Fs) -> bool {
    !cluster(fs).recovering.lock().is_empty()
}

/// On either living node a writer may have region 1, and wait for region 2, which the dead node
/// has. The node that recovers the dead one wants region 1 for itself.
#[test]
fn who_waits_for_a_dead_nodes_region_keeps_no_recoverer_waiting() {
    let [dies, one, other] = nodes();
    drop(dies_with_a_stale_log(&dies, &other));
    let writers = writers(&[&one, &other], &[1, 2]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(writers.iter().all(|w| !w.is_finished()), "they held what one held alone");
    dies.core().withdraw(&Error::NotPermitted);
    all_end(writers);
    one.unmount().unwrap();
    other.unmount().unwrap();
}

/// Each of two nodes that die has what the other's log names.
#[test]
fn two_dead_nodes_are_recovered_though_each_has_what_the_log_of_the_other_names() {
    let [one, two, lives] = nodes();
    let write = |fs: &Fs, at: u64| {
        fs.core().volume.pool.write(ByteOffset(at << 20), &[7; 4096]).unwrap();
    };
    write(&one, 100);
    write(&two, 140);
    let held =
        [(&one, 2), (&two, 1)].map(|(fs, n)| cluster(fs).hold(&[(n, RegionHold::Alone)]).unwrap());
    held.into_iter().for_each(std::mem::forget);
    let writers = writers(&[&lives], &[1, 2]);
    for fs in [&one, &two] {
        fs.core().withdraw(&Error::NotPermitted);
    }
    all_end(writers);
    lives.unmount().unwrap();
}

/// A node dies while it recovers another. What it has in its journal has to be written where the other one
/// holds everything, whose log nobody recovers by itself before that journal is replayed.
#[test]
fn who_died_while_it_recovered_another_is_recovered_though_that_one_holds_what_it_writes() {
    let [recoverer, dead, lives] = nodes();
    let user = crate::Cred { uid: 0, gid: 0, umask: 0, pid: 1 };
    let (_, file) = recoverer.create(recoverer.root(), b"f", 0o600, 2, &user).unwrap();
    recoverer.write(file, 0, &[7; 4096], crate::WriteFlags::default()).unwrap();
    recoverer.fsync(file, false).unwrap();
    let count = cluster(&dead).count;
    let all: Vec<_> = (0..count).map(|n| (n, RegionHold::Alone)).collect();
    std::mem::forget(cluster(&dead).hold(&all).unwrap());
    // Still alive, the dead one is named as being recovered: it withdraws.
    let life = |fs: &Fs| cluster(fs).me();
    let (slot, nodes) = (life(&dead).slot, &cluster(&lives).nodes);
    let was = nodes.read_slot(slot).unwrap();
    let mut record = SlotRecord::decode(&was, slot).unwrap();
    record.state = SlotState::Recovering;
    record.recoverer = Some(life(&recoverer));
    record.nonce += 1;
    let mut sector = vec![0; nodes.sector_len()];
    record.encode(&mut sector);
    let written = nodes.compare_and_write_slot(slot, &was, &sector);
    assert!(matches!(written, Ok(braid_lock::CawOutcome::Written)), "{written:?}");
    dead.core().withdraw(&Error::NotPermitted);
    recoverer.core().withdraw(&Error::NotPermitted);
    all_end(writers(&[&lives], &[0, 1, 2]));
    assert_eq!(lives.lookup(lives.root(), b"f").unwrap().size, 4096);
    lives.unmount().unwrap();
}

/// A file `f` of one block, durable, so that the node's journal has something to be replayed.
fn write_durably(fs: &Fs) {
    let user = crate::Cred { uid: 0, gid: 0, umask: 0, pid: 1 };
    let (_, file) = fs.create(fs.root(), b"f", 0o600, 2, &user).unwrap();
    fs.write(file, 0, &[7; 4096], crate::WriteFlags::default()).unwrap();
    fs.fsync(file, false).unwrap();
}

/// All nodes that a pool has slots for die together. The one that mounts next takes the slot of one of them,
/// whose journal has to be written where another holds everything.
#[test]
fn who_mounts_after_all_slots_have_died_together_gets_one() {
    let options = MakeOptions { nodes: Some(2), ..MakeOptions::default() };
    let (devices, [one, two]) = nodes_of(&options);
    write_durably(&one);
    let count = cluster(&two).count;
    let all: Vec<_> = (0..count).map(|n| (n, RegionHold::Alone)).collect();
    std::mem::forget(cluster(&two).hold(&all).unwrap());
    for fs in [&two, &one] {
        fs.core().withdraw(&Error::NotPermitted);
    }
    let mounted = mount_on(&devices);
    assert_eq!(mounted.lookup(mounted.root(), b"f").unwrap().size, 4096);
    all_end(writers(&[&mounted], &[0, 1, 2]));
    mounted.unmount().unwrap();
}

/// Two that died are taken over by two that mount at the same time. The first has what the log of the second
/// dead one names, and its replay waits for what that one holds.
#[test]
fn who_mount_at_once_after_all_have_died_wait_for_each_other_only_for_a_while() {
    let options = MakeOptions { nodes: Some(2), ..MakeOptions::default() };
    let (devices, [one, two]) = nodes_of(&options);
    write_durably(&one);
    // Both logs name region 1, and neither holds it for itself.
    for fs in [&one, &two] {
        fs.core().volume.pool.write(ByteOffset(100 << 20), &[7; 4096]).unwrap();
    }
    for fs in [&one, &two] {
        drop(cluster(fs).hold(&[(1, RegionHold::Shared)]).unwrap());
    }
    let others = (0..cluster(&two).count).filter(|n| *n != 1);
    let others: Vec<_> = others.map(|n| (n, RegionHold::Alone)).collect();
    std::mem::forget(cluster(&two).hold(&others).unwrap());
    for fs in [&two, &one] {
        fs.core().withdraw(&Error::NotPermitted);
    }
    let slot = |fs: &Fs| cluster(fs).me().slot.0;
    let first = mounts_by(&devices, slot(&one));
    let start = Instant::now();
    let has_it = |life: &Life| life.slot.0 == slot(&one) && *life != cluster(&one).me();
    while !cluster(&two)
        .record(cluster(&two).lock(1))
        .unwrap()
        .is_some_and(|record| record.mode == Mode::Exclusive && record.holders.iter().any(has_it))
    {
        assert!(start.elapsed() < Duration::from_mins(1), "it does not recover the log");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = mounts_by(&devices, slot(&two));
    while !(first.is_finished() && second.is_finished()) {
        assert!(start.elapsed() < Duration::from_mins(1), "they wait for each other");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mounted = [first, second].map(|m| m.join().unwrap());
    for fs in &mounted {
        assert_eq!(fs.lookup(fs.root(), b"f").unwrap().size, 4096);
    }
    for fs in mounted {
        fs.unmount().unwrap();
    }
}

/// Whoever mounts by a free slot has no watcher at first either.
#[test]
fn who_mounts_by_a_free_slot_after_others_have_died_waits_for_none_of_them() {
    let options = MakeOptions { nodes: Some(3), ..MakeOptions::default() };
    let (devices, [one, two]) = nodes_of(&options);
    let all: Vec<_> = (0..cluster(&two).count).map(|n| (n, RegionHold::Alone)).collect();
    std::mem::forget(cluster(&two).hold(&all).unwrap());
    for fs in [&two, &one] {
        fs.core().withdraw(&Error::NotPermitted);
    }
    let (start, mounts) = (Instant::now(), mounts_by(&devices, 2));
    while !mounts.is_finished() {
        assert!(start.elapsed() < Duration::from_mins(1), "it waits for a dead one");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mounted = mounts.join().unwrap();
    all_end(writers(&[&mounted], &[0, 1, 2]));
    mounted.unmount().unwrap();
}

/// A node that leaves while it recovers another ends that first: it needs locks, and a log.
#[test]
fn a_recovery_under_way_is_seen_through_before_a_node_leaves() {
    let [dies, one] = nodes();
    let taken = dies_with_a_stale_log(&dies, &one);
    dies.core().withdraw(&Error::NotPermitted);
    let start = Instant::now();
    while !is_recovering(&one) {
        assert!(start.elapsed() < Duration::from_mins(1), "nobody recovers it");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::scope(|s| {
        let leaving = s.spawn(|| one.unmount());
        std::thread::sleep(Duration::from_millis(500));
        let waited = !leaving.is_finished();
        drop(taken);
        leaving.join().unwrap().unwrap();
        assert!(waited, "it left in the middle");
    });
    let pool = Pool::assemble(one.pool().devices()).unwrap();
    let again = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    assert_eq!(again.mounted.others(), 0, "the dead node is not recovered");
    again.unmount().unwrap();
}

#[test]
fn one_node_at_a_time_rebalances() {
    let [one, other] = nodes();
    let lock = one.core().volume.named(RawSuperblock::NAMED_REBALANCE);
    let moving = one.core().guard(lock, Mode::Exclusive, Local::Exclusive).unwrap();
    assert!(matches!(other.rebalance(), Err(Error::UnderWay)));
    let refused = other.stop_leaving().unwrap_err();
    assert!(refused.to_string().contains("by another node"), "{refused}");
    drop(moving);
    assert!(other.rebalance().unwrap().finished);
    assert!(one.rebalance().unwrap().finished);
    one.unmount().unwrap();
    other.unmount().unwrap();
}

/// A slot that a node takes over names two lives: what the new one holds stands, whatever is known of
/// the old one.
#[test]
fn who_takes_the_slot_of_a_damaged_node_over_keeps_its_regions() {
    let [one] = nodes();
    let cluster = cluster(&one);
    let slot = NodeId(3);
    let life = |n| Life { slot, incarnation: braid_format::Incarnation(n) };
    let damage = |replayed| SlotDamage {
        block: braid_format::BlockNo(9),
        part: braid_format::node::DamagedPart::Window,
        replayed,
    };
    let lock = cluster.lock(0);
    // The old one held it.
    let held = LockRecord::born(lock, life(2), 7);
    let was = cluster.store.read(lock).unwrap();
    let mut sector = vec![0; cluster.store.sector_len()];
    held.encode(&mut sector);
    let outcome = cluster.store.compare_and_write(lock, &was, &sector).unwrap();
    assert_eq!(outcome, braid_lock::CawOutcome::Written);
    let lives = || [1, 2, 3].map(|n| cluster.liveness(lock, life(n)));
    let mut stands = cluster.slot(slot).unwrap();
    let mut next = |damage| {
        let record = SlotRecord {
            life: life(2),
            state: SlotState::Recovering,
            recoverer: Some(life(3)),
            host: "elsewhere".to_owned(),
            boot_id: [9; 16],
            damage: Some(damage),
            ..stands.clone()
        };
        let mut sectors = [(); 2].map(|()| vec![0; cluster.nodes.sector_len()]);
        stands.encode(&mut sectors[0]);
        record.encode(&mut sectors[1]);
        let outcome = cluster.nodes.compare_and_write_slot(slot, &sectors[0], &sectors[1]);
        assert!(matches!(outcome, Ok(braid_lock::CawOutcome::Written)), "{outcome:?}");
        stands = record;
        // Looks are remembered for a while.
        std::thread::sleep(Duration::from_millis(100));
    };
    next(damage(false));
    assert_eq!(lives(), [Liveness::Dead, Liveness::Alive, Liveness::Alive]);
    next(damage(true));
    assert_eq!(lives(), [Liveness::Dead, Liveness::Dead, Liveness::Alive]);
    one.unmount().unwrap();
}

/// Two nodes, of which the second one holds all regions for itself, as one of a dead host that nobody can fence. The
/// first one waits for it for 3.25 s when it leaves. It has a file.
fn beside_one_that_holds_everything() -> ([Fs; 2], crate::Fh, HeldRegions) {
    let (devices, [holds]) = nodes_of(&MakeOptions::default());
    let timing = Timing::of(Duration::from_secs(1));
    let leaves = mount_with(&devices, MountOptions { timing, ..MountOptions::default() });
    let user = crate::Cred { uid: 0, gid: 0, umask: 0, pid: 1 };
    let (_, file) = leaves.create(leaves.root(), b"f", 0o600, 2, &user).unwrap();
    leaves.write(file, 0, &[7; 4096], crate::WriteFlags::default()).unwrap();
    leaves.fsync(file, false).unwrap();
    let all: Vec<_> = (0..cluster(&holds).count).map(|n| (n, RegionHold::Alone)).collect();
    let held = cluster(&holds).hold(&all).unwrap();
    ([leaves, holds], file, held)
}

fn ends_within(time: Duration, what: &str, is_over: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_over() {
        assert!(start.elapsed() < time, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_waits_for_a_region_of_another_node_and_leaves_does_not_wait_without_end() {
    let ([leaves, holds], file, held) = beside_one_that_holds_everything();
    leaves.write(file, 0, &[8; 4096], crate::WriteFlags::default()).unwrap();
    // The housekeeper waits, too, and so does a scrub.
    leaves.mounted.maintenance.scrub(true);
    std::thread::sleep(Duration::from_millis(500));
    let node = leaves.clone();
    let told = Arc::new(Mutex::new(String::new()));
    let of_node = told.clone();
    let leaving = std::thread::spawn(move || {
        node.unmount_telling(&|awaited| *of_node.lock() = awaited.to_owned())
    });
    ends_within(Duration::from_secs(30), "it waits without end", || leaving.is_finished());
    let left = leaving.join().unwrap();
    let why = left.unwrap_err().to_string();
    assert!(why.contains("another node holds what this one needs"), "{why}");
    assert!(leaves.withdrawn().is_some_and(|why| why.contains("another node holds")));
    // Recovered by the other one, once that can.
    drop(held);
    ends_within(Duration::from_secs(30), "it is not recovered", || {
        let nodes = holds.mounted.status().nodes;
        nodes.iter().all(|n| n.life != leaves.life() || n.state == SlotState::Free)
    });
    holds.unmount().unwrap();
}

#[test]
fn a_scrub_that_waits_for_a_region_of_another_node_can_be_stopped() {
    let ([scrubs, holds], _, held) = beside_one_that_holds_everything();
    let maintenance = &scrubs.mounted.maintenance;
    maintenance.scrub(true);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(maintenance.status().scrubs, 0, "it waits");
    maintenance.scrub(false);
    ends_within(Duration::from_secs(10), "the scrub goes on", || maintenance.status().scrubs == 1);
    let status = maintenance.status();
    assert!(status.scrubbed.is_some_and(|found| !found.finished) && status.error.is_none());
    assert!(scrubs.withdrawn().is_none());
    drop(held);
    // Nothing is wrong with the next one.
    maintenance.scrub(true);
    ends_within(Duration::from_mins(1), "it does not end", || maintenance.status().scrubs == 2);
    assert!(maintenance.status().scrubbed.is_some_and(|found| found.finished));
    scrubs.unmount().unwrap();
    holds.unmount().unwrap();
}

/// The same with the lock of a resource group, for which a trim waits.
#[test]
fn a_trim_that_waits_for_another_node_ends_when_its_node_leaves() {
    let [leaves, holds] = nodes();
    let volume = &holds.core().volume;
    let group = volume.groups.count() - 1;
    let lock = LockNo(volume.rgrp(group).get());
    let held = holds.core().locks.acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap();
    let node = leaves.clone();
    let trim = std::thread::spawn(move || {
        node.trim(crate::TrimRange::ALL, &crate::Canceller::default()).map(drop)
    });
    std::thread::sleep(Duration::from_secs(1));
    assert!(!trim.is_finished(), "it waits");
    let node = leaves.clone();
    let leaving = std::thread::spawn(move || node.unmount());
    ends_within(Duration::from_secs(15), "it waits without end", || trim.is_finished());
    assert!(trim.join().unwrap().is_err_and(|e| e.is_interrupted()));
    leaving.join().unwrap().unwrap();
    drop(held);
    holds.unmount().unwrap();
}
