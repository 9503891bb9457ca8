//! Allocators of several nodes over one memory pool, with the real cache, journal and locks.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use braid_format::label::{Label, SubpoolKind};
use braid_format::lock_record::LockRecord;
use braid_format::meta::MetaKind;
use braid_format::node::{DamagedPart, SlotDamage};
use braid_format::rgrp::BlockState;
use braid_format::superblock::{RawLeaving, RawSuperblock};
use braid_format::{BlockNo, Bytes, Incarnation, LockNo, NodeId};
use braid_lock::{
    Deltas, DemoteFailed, Demoted, Demoting, GlockOps, Hint, Life, Liveness, Local, LockManager,
    ManagerOptions, Mode, Peers,
};
use braid_pool::device::{AlignedBuf, Device, FaultPlan, MemoryDevice};
use braid_pool::layout::LayoutFile;
use braid_pool::{AddOptions, CreateOptions, Pool};
use parking_lot::{Mutex, RwLock};

use super::counters::{Totals, read_counters};
use super::*;
use crate::error::{Error, Result};
use crate::groups::Part;
use crate::growth::tests::{all, disks, made as made_for_one, mount};
use crate::make::{MakeOptions, make};
use crate::meta::{Meta, Tx};
use crate::replay::tests::replay;
use crate::test_volume::Rng;
use crate::volume::Volume;

mod damage;

#[derive(Default)]
struct Net {
    nodes: RwLock<Vec<Weak<LockManager>>>,
    dead: Mutex<HashSet<Life>>,
    /// Dead, and not to be recovered before a repair.
    lost: Mutex<HashSet<Life>>,
}
impl Peers for Net {
    fn liveness(&self, _: LockNo, life: Life) -> Liveness {
        if self.dead.lock().contains(&life) { Liveness::Dead } else { Liveness::Alive }
    }
    fn lost(&self, life: Life) -> Option<SlotDamage> {
        let damage = SlotDamage { block: BlockNo(9), part: DamagedPart::Journal, replayed: false };
        self.lost.lock().contains(&life).then_some(damage)
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint) {
        let all: Vec<_> = self.nodes.read().iter().filter_map(Weak::upgrade).collect();
        if let Some(manager) = all.into_iter().find(|m| m.me() == to) {
            manager.hint(lock, hint);
        }
    }
}

#[derive(Default)]
struct Ops(OnceLock<Weak<Meta>>);
impl GlockOps for Ops {
    fn demote(&self, what: &Demoting<'_>) -> std::result::Result<Demoted, DemoteFailed> {
        let Demoting { lock, from, to, .. } = *what;
        let meta = self.0.get().and_then(Weak::upgrade).ok_or(DemoteFailed)?;
        if from == Mode::Exclusive {
            meta.sync_owner(lock).map_err(|_| DemoteFailed)?;
        }
        if to == Mode::Unlocked {
            meta.drop_owner(lock);
        }
        Ok(Demoted::default())
    }
}

struct Cluster {
    pool: Pool,
    volume: Arc<Volume>,
    net: Arc<Net>,
}

struct Node {
    net: Arc<Net>,
    me: Life,
    meta: Arc<Meta>,
    locks: Arc<LockManager>,
    alloc: Alloc,
}

impl Cluster {
    fn new(mib: u64) -> Self {
        Self::on(Pool::for_tests(1, Bytes(mib << 20)))
    }
    fn on(pool: Pool) -> Self {
        Self::made(pool, &MakeOptions::default())
    }
    fn made(pool: Pool, options: &MakeOptions) -> Self {
        make(&pool, options, &mut |_, _| {}).unwrap();
        Self::over(pool)
    }
    fn over(pool: Pool) -> Self {
        let volume = Arc::new(Volume::open(pool.clone()).unwrap());
        Self { pool, volume, net: Arc::default() }
    }
    /// No other node can come.
    fn for_one(mib: u64) -> Self {
        let options = MakeOptions { nodes: Some(1), ..MakeOptions::default() };
        Self::made(Pool::for_tests(1, Bytes(mib << 20)), &options)
    }
    /// Metadata and file data stand in groups of their own, data in stripes of three such units.
    fn apart(unit: &str) -> Self {
        let size = Bytes(Label::DATA_AT.get() + (48 << 20) + Label::TAIL.get());
        let device =
            |i| MemoryDevice::new(&format!("memory{i}"), size, Bytes(512)) as Arc<dyn Device>;
        let layout = format!(
            "[subpools]\nmetadata = \"stripe/64K(0[16M],1[16M])\"\ndata = \"stripe/{unit}(all)\""
        );
        let layout = LayoutFile::parse(&layout).unwrap().layout;
        let lock_sector = Some(Bytes(512));
        let options =
            CreateOptions { layout: Some(layout), lock_sector, ..CreateOptions::new("test") };
        Self::on(Pool::create((0..3).map(device).collect(), &options).unwrap())
    }
    /// For one node; as much was added as there was at first.
    fn grown(mib: u64) -> Self {
        let none = FaultPlan::default();
        let [old, new] = ["old", "new"].map(|name| all(&disks(name, &[mib], &none)));
        let fs = mount(made_for_one(old.clone(), &CreateOptions::new("test")));
        fs.add_devices(&new, &AddOptions::default()).unwrap();
        fs.unmount().unwrap();
        let c = Self::over(Pool::assemble([old, new].concat()).unwrap());
        assert_eq!(c.volume.groups.added(), 1);
        c
    }
    /// The part that was added is to be emptied, or not.
    fn close_added(&self, close: bool) {
        let leaving = RawLeaving { closed: u32::from(close).into(), ..RawLeaving::default() };
        self.volume.groups.set_leaving(leaving);
    }
    /// Its metadata slots are two blocks long.
    fn with_long_slots(mib: u64) -> Self {
        let device = MemoryDevice::new("memory", Bytes(mib << 20), Bytes(512));
        let options =
            CreateOptions { lock_sector: Some(Bytes(4096)), ..CreateOptions::new("test") };
        let cluster = Self::on(Pool::create(vec![device], &options).unwrap());
        assert_eq!(cluster.volume.geo.slot_blocks(), 2);
        cluster
    }
    fn node(&self, slot: u16, incarnation: u32) -> Node {
        let me = Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) };
        let geo = self.volume.geo;
        let store =
            braid_lock::DeviceStore::new(self.pool.clone(), geo.block_size, geo.lock_sector);
        let ops = Arc::new(Ops::default());
        let options = ManagerOptions { demoters: 1, ..ManagerOptions::default() };
        let locks =
            LockManager::new(me, Arc::new(store), self.net.clone(), ops.clone(), options).unwrap();
        self.net.nodes.write().push(Arc::downgrade(&locks));
        let (volume, slot) = (self.volume.clone(), me.slot);
        let meta = Arc::new(Meta::open(volume.clone(), slot, me.incarnation, 8 << 20).unwrap());
        ops.0.set(Arc::downgrade(&meta)).unwrap();
        let alloc = Alloc::open(volume, meta.clone(), locks.clone(), slot, me.incarnation).unwrap();
        Node { net: self.net.clone(), me, meta, locks, alloc }
    }
    /// The node is gone; another has recovered it.
    fn bury(&self, dead: &Node, by: &Node) {
        dead.locks.withdraw();
        dead.meta.poison("crash".into());
        replay(&self.volume, dead.me.slot).unwrap();
        // From here on the recoverer may break what the dead node held.
        self.net.dead.lock().insert(dead.me);
        reclaim(&self.volume, &by.meta, &by.locks, dead.me.slot).unwrap();
    }
    /// Counters and bitmaps of a file system whose nodes have all left: (data blocks, blocks of slots
    /// in use).
    fn usage(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut slots, mut free, mut free_meta) = (Vec::new(), Vec::new(), 0, 0);
        for index in 0..self.volume.sb.rgrp_count.get() {
            let shape = self.volume.group_shape(index).unwrap();
            let (body, _, _) = self.volume.read_body(shape.start).unwrap();
            let raw = group::check_header(shape.start, index, &shape, &body).unwrap();
            let mut bits = Vec::new();
            for n in 0..shape.bitmap_slots {
                let at = (1 + n) * self.volume.geo.slot_blocks();
                let block = BlockNo(shape.start.get() + at);
                let (body, _, kind) = self.volume.read_body(block).unwrap();
                assert_eq!(kind, MetaKind::Bitmap);
                bits.extend_from_slice(&body[braid_format::meta::MetaHeader::LEN..]);
            }
            let of = |state| bits::count(&bits, 0, shape.block_count, state);
            assert_eq!(raw.free_blocks.get(), of(BlockState::Free), "group {index}");
            assert_eq!(raw.free_meta.get(), of(BlockState::MetaFree), "group {index}");
            free += raw.free_blocks.get();
            free_meta += raw.free_meta.get();
            for i in 0..shape.block_count {
                match bits::get(&bits, i) {
                    BlockState::Data => data.push(shape.first_block + i),
                    BlockState::MetaUsed => slots.push(shape.first_block + i),
                    _ => {}
                }
            }
        }
        let Counters { free: counted, inodes, meta } = read_counters(&self.volume).unwrap();
        assert_eq!(counted, free, "cluster counter of free blocks");
        assert_eq!(meta, free_meta, "cluster counter of free slots");
        assert!(inodes >= 1);
        (data, slots)
    }
    fn inodes(&self) -> u64 {
        read_counters(&self.volume).unwrap().inodes
    }
}

impl Node {
    fn leave(&self) {
        self.alloc.close().unwrap();
        self.locks.shutdown().unwrap();
        self.meta.close().unwrap();
        // Its slot is free: what it still holds is broken lazily.
        self.net.dead.lock().insert(self.me);
    }
    /// Data of `n` blocks, as runs.
    fn write(&self, n: u64) -> Result<Vec<(u64, u64)>> {
        let mut r = self.alloc.reserve(n, 0, 0)?;
        let (mut out, mut goal, mut left) = (Vec::new(), None, n);
        while left > 0 {
            let run = self.alloc.claim(&mut r, left, goal)?;
            let (start, len) = (run.start.get(), run.len);
            left -= len;
            goal = Some(BlockNo(start + len));
            self.alloc.commit_run(&mut self.meta.begin()?, run, len)?;
            out.push((start, len));
        }
        Ok(out)
    }
    fn erase(&self, runs: &[(u64, u64)]) -> Result<()> {
        for &(start, len) in runs {
            let mut r = self.alloc.reserve(0, 0, 1)?;
            let mut tx = self.meta.begin()?;
            self.alloc.free_data(&mut tx, &mut r, BlockNo(start), len)?;
        }
        Ok(())
    }
    fn remove(&self, slot: BlockNo) -> Result<()> {
        let lock = LockNo::from(slot);
        let _guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        let mut r = self.alloc.reserve(0, 0, 1)?;
        let mut tx = self.meta.begin()?;
        tx.free(slot, lock)?;
        self.alloc.free_slot(&mut tx, &mut r, slot, true)
    }
    fn open_windows(&self) -> usize {
        self.alloc.inner.state.lock().windows.iter().filter(|w| w.is_open()).count()
    }
    /// Data of `n` blocks in a run of group `index`: its first block.
    fn write_in(&self, index: u64, n: u64) -> u64 {
        let mut r = self.alloc.reserve(n, 0, 0).unwrap();
        let run = self.alloc.claim_in(&mut r, n, &|group| group == index).unwrap().unwrap();
        let (start, len) = (run.start.get(), run.len);
        assert_eq!(len, n);
        self.alloc.commit_run(&mut self.meta.begin().unwrap(), run, len).unwrap();
        self.meta.commit().unwrap();
        start
    }
    /// Uses all that is free in the groups of a part, of which there are two.
    fn fill(&self, c: &Cluster, part: usize) {
        let groups = c.volume.groups.of_part(part);
        let mut r = self.alloc.reserve(self.alloc.totals().free / 2, 0, 0).unwrap();
        while r.data > 0 {
            let wanted = |group| groups.contains(&group);
            let Some(run) = self.alloc.claim_in(&mut r, u64::MAX, &wanted).unwrap() else { return };
            let len = run.len;
            self.alloc.commit_run(&mut self.meta.begin().unwrap(), run, len).unwrap();
        }
    }
    /// The header of a group gets lost, of which nothing is in this node's memory any more.
    fn spoil(&self, c: &Cluster, index: u64) {
        let head = c.volume.rgrp(index);
        self.meta.sync_owner(LockNo::from(head)).unwrap();
        self.meta.drop_owner(LockNo::from(head));
        let zeros = AlignedBuf::zeroed(c.volume.geo.body_len());
        c.pool.write(c.volume.body_at(head), &zeros).unwrap();
    }
    fn create(&self) -> Result<BlockNo> {
        let mut r = self.alloc.reserve(0, 1, 0)?;
        let (slot, guard) = self.alloc.claim_dinode(&mut r)?;
        let mut tx = self.meta.begin()?;
        self.alloc.commit_dinode(&mut tx, slot)?;
        tx.create(slot, LockNo::from(slot), MetaKind::Dinode, |_| {})?;
        drop(tx);
        drop(guard);
        Ok(slot)
    }
}

#[test]
fn fresh_file_system_is_all_free_and_stays_so() {
    let c = Cluster::new(64);
    let (data, slots) = c.usage();
    assert_eq!((data.len(), slots.as_slice()), (0, &[c.volume.root().get()][..]));
    let node = c.node(0, 1);
    let Totals { blocks: total, free, inodes, .. } = node.alloc.totals();
    assert!(free < total && total - free == 64, "{total} {free}");
    assert_eq!(inodes, 1);
    node.leave();
    assert_eq!(c.usage().0.len(), 0);
}

#[test]
fn streamed_file_is_one_extent_per_window_and_windows_join() {
    let c = Cluster::new(256);
    let node = c.node(1, 1);
    let mut extents: Vec<(u64, u64)> = Vec::new();
    let mut goal = None;
    let mut total = 0;
    for _ in 0..32 {
        let mut r = node.alloc.reserve(256, 0, 0).unwrap();
        let run = node.alloc.claim(&mut r, 256, goal).unwrap();
        let (start, len) = (run.start.get(), run.len);
        goal = Some(BlockNo(start + len));
        total += len;
        node.alloc.commit_run(&mut node.meta.begin().unwrap(), run, len).unwrap();
        match extents.last_mut() {
            Some((s, n)) if *s + *n == start => *n += len,
            _ => extents.push((start, len)),
        }
    }
    // About 32 MiB from groups of about 15 MiB.
    assert!(total > 30 * 256 && extents.len() <= 4, "{extents:?}");
    node.leave();
    assert_eq!(c.usage().0.len() as u64, total);
}

#[test]
fn two_streams_do_not_share_a_run() {
    let c = Cluster::new(256);
    let node = c.node(0, 1);
    let mut ends = [None, None];
    let mut extents = 0;
    // Room for both, in one window.
    drop(node.alloc.reserve(2000, 0, 0).unwrap());
    for i in 0..16 {
        let mut r = node.alloc.reserve(64, 0, 0).unwrap();
        let run = node.alloc.claim(&mut r, 64, ends[i % 2]).unwrap();
        extents += u32::from(ends[i % 2] != Some(run.start));
        ends[i % 2] = Some(BlockNo(run.start.get() + run.len));
        let len = run.len;
        node.alloc.commit_run(&mut node.meta.begin().unwrap(), run, len).unwrap();
    }
    assert_eq!(extents, 2);
    node.leave();
}

#[test]
fn unused_reservations_and_claims_go_back() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let before = node.alloc.totals();
    let mut r = node.alloc.reserve(100, 3, 5).unwrap();
    let other = node.alloc.reserve(10, 2, 1).unwrap();
    node.alloc.merge(&mut r, other);
    assert_eq!((r.data, r.slots, r.frees), (110, 5, 6));
    let run = node.alloc.claim(&mut r, 50, None).unwrap();
    let start = run.start;
    assert_eq!((run.len, r.data), (50, 60));
    drop(run);
    let run = node.alloc.claim(&mut r, 50, Some(start)).unwrap();
    assert_eq!(run.start, start, "what went back is taken again");
    node.alloc.commit_run(&mut node.meta.begin().unwrap(), run, 20).unwrap();
    let (slot, guard) = node.alloc.claim_dinode(&mut r).unwrap();
    drop(guard);
    node.alloc.unclaim_dinode(slot);
    drop(r);
    let state = node.alloc.inner.state.lock();
    assert!(state.windows.iter().all(|w| w.busy == 0));
    drop(state);
    // One chunk was carved.
    assert_eq!(before.free - node.alloc.totals().free, 20 + 64);
    node.leave();
    assert_eq!(c.usage().0.len(), 20);
}

#[test]
fn freed_blocks_are_not_given_out_before_the_free_is_durable() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let runs = node.write(500).unwrap();
    node.meta.commit().unwrap();
    node.erase(&runs).unwrap();
    let freed: HashSet<u64> = runs.iter().flat_map(|&(s, n)| s..s + n).collect();
    let again = node.write(500).unwrap();
    assert!(again.iter().flat_map(|&(s, n)| s..s + n).all(|b| !freed.contains(&b)));
    node.erase(&again).unwrap();
    node.meta.commit().unwrap();
    node.leave();
    assert_eq!(c.usage().0.len(), 0);
}

#[test]
fn full_is_exact_and_full_again_after_frees() {
    let c = Cluster::new(64);
    let node = c.node(2, 1);
    let free = node.alloc.totals().free;
    assert!(matches!(node.alloc.reserve(free + 1, 0, 0), Err(Error::NoSpace)));
    let mut files = Vec::new();
    let mut got = 0;
    let mut step = 1000;
    while step > 0 {
        match node.write(step) {
            Ok(runs) => {
                got += step;
                files.push(runs);
            }
            Err(Error::NoSpace) => step /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(got, free, "every free block was to be had");
    assert_eq!(node.alloc.totals().free, 0);
    assert!(matches!(node.alloc.reserve(1, 0, 0), Err(Error::NoSpace)));
    // The chunk of the root has free slots; then there is no room for more.
    let mut created = 0;
    while node.create().is_ok() {
        created += 1;
    }
    assert_eq!(created, 63);
    // Freed, but not committed by anyone: the allocator commits by itself when it is short.
    let half: u64 = files
        .drain(..4)
        .map(|runs| {
            node.erase(&runs).unwrap();
            runs.iter().map(|r| r.1).sum::<u64>()
        })
        .sum();
    let runs = node.write(half).unwrap();
    assert!(matches!(node.alloc.reserve(1, 0, 0), Err(Error::NoSpace)));
    files.push(runs);
    node.leave();
    let used: u64 = files.iter().flatten().map(|r| r.1).sum();
    assert_eq!(c.usage().0.len() as u64, used);
    assert_eq!(c.usage().0.len() as u64, free);
}

/// Each page of a mapping over a hole that comes back to a full pool asks for a block.
#[test]
fn what_was_not_found_is_not_looked_for_again_until_something_is_freed() {
    for c in [Cluster::new(64), Cluster::for_one(64)] {
        let node = c.node(0, 1);
        let mut runs = node.write(node.alloc.totals().free).unwrap();
        let searches = || node.alloc.inner.full.searches.load(Ordering::Relaxed);
        let refused = |data, slots| {
            let before = searches();
            assert!(matches!(node.alloc.reserve(data, slots, 0), Err(Error::NoSpace)));
            searches() - before
        };
        assert!(refused(1, 0) > 0);
        let begun = Instant::now();
        let again: u64 = (0..100).map(|n| refused(1 + n % 3, 0)).sum();
        // A slow machine looks again every quarter of a second.
        let moments = 1 + u64::try_from(begun.elapsed().as_millis() / 250).unwrap();
        assert!(again <= 2 * moments, "{again} searches in {:?}", begun.elapsed());
        // Slots were not looked for, and there are some.
        drop(node.alloc.reserve(0, 1, 0).unwrap());
        // One block that is freed is found at once, before anybody commits.
        for _ in 0..5 {
            let (start, _) = runs[0];
            node.erase(&[(start, 1)]).unwrap();
            refused(2, 0);
            runs.extend(node.write(1).unwrap());
            runs[0].0 += 1;
            refused(1, 0);
        }
        node.leave();
    }
}

#[test]
fn metadata_finds_room_in_crumbs() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let free = node.alloc.totals().free;
    let runs = node.write(free).unwrap();
    // Every 40th block is free again: no chunk fits anywhere.
    let mut crumbs = 0;
    for &(start, len) in &runs {
        for block in (start..start + len).step_by(40) {
            node.erase(&[(block, 1)]).unwrap();
            crumbs += 1;
        }
    }
    for _ in 0..crumbs + 63 {
        node.create().unwrap();
    }
    assert!(matches!(node.create(), Err(Error::NoSpace)));
    node.leave();
    assert_eq!(c.usage().1.len() as u64, crumbs + 63 + 1);
}

#[test]
fn idle_windows_go_back_when_space_is_short() {
    let c = Cluster::new(64);
    let (a, b) = (c.node(0, 1), c.node(1, 1));
    a.write(10).unwrap();
    a.alloc.maintain().unwrap();
    let mut b_has = 0;
    while let Ok(runs) = b.write(200) {
        b_has += runs.iter().map(|r| r.1).sum::<u64>();
    }
    // `a` now knows that it is short (both count in one closure here).
    let all = a.alloc.totals().free;
    let others = Deltas { free: -i64::try_from(b_has).unwrap(), ..Deltas::default() };
    a.alloc.set_others(Box::new(move || Some(others)));
    a.alloc.maintain().unwrap();
    // What others give back may be missed for a moment.
    let more = (0..200).find_map(|_| {
        let more = b.alloc.reserve(all - b_has, 0, 0).ok();
        more.or_else(|| {
            std::thread::sleep(Duration::from_millis(10));
            None
        })
    });
    assert!(more.is_some());
    drop(more);
    a.leave();
    b.leave();
    assert_eq!(c.usage().0.len() as u64, b_has + 10);
}

#[test]
fn dead_node_gives_back_all_but_what_was_durable() {
    let c = Cluster::new(64);
    let (a, b) = (c.node(0, 1), c.node(1, 1));
    let kept = a.write(700).unwrap();
    let slot = a.create().unwrap();
    a.meta.commit().unwrap();
    let _lost = a.write(300).unwrap();
    a.create().unwrap();
    c.bury(&a, &b);
    for n in 0..RawSuperblock::WINDOWS {
        let block = c.volume.node_area(a.me.slot, RawSuperblock::AREA_WINDOWS + n);
        let body = c.volume.read_private(block, MetaKind::Window).unwrap();
        assert_eq!(window_head(&c.volume, block, &body).unwrap(), None, "in place, not in memory");
    }
    // Twice: the recoverer may have died before it said so.
    reclaim(&c.volume, &b.meta, &b.locks, a.me.slot).unwrap();
    let a2 = c.node(0, 2);
    assert_eq!(a2.alloc.deltas(), Deltas::default());
    a2.leave();
    b.leave();
    let (data, slots) = c.usage();
    let want: Vec<u64> = kept.iter().flat_map(|&(s, n)| s..s + n).collect();
    assert_eq!(data, want);
    assert!(slots.contains(&slot.get()) && slots.len() == 2);
    assert_eq!(c.inodes(), 2);
}

#[test]
fn windows_left_by_a_dead_node_are_inherited_by_its_slot() {
    let c = Cluster::new(64);
    let a = c.node(0, 1);
    let kept = a.write(700).unwrap();
    a.erase(&[(kept[0].0, 100)]).unwrap();
    a.create().unwrap();
    a.meta.commit().unwrap();
    a.locks.withdraw();
    a.meta.poison("crash".into());
    replay(&c.volume, a.me.slot).unwrap();
    c.net.dead.lock().insert(a.me);
    let a = c.node(0, 2);
    a.write(50).unwrap();
    a.create().unwrap();
    a.leave();
    assert_eq!(c.usage().0.len(), 650);
    assert_eq!(c.usage().1.len(), 3);
}

/// What the whole cluster uses, and whether it is durable.
struct Held {
    node: usize,
    len: u64,
    slot: bool,
    durable: Arc<AtomicBool>,
}
/// What is being freed.
struct Gone {
    node: usize,
    start: u64,
    held: Held,
    durable: Arc<AtomicBool>,
}

struct World {
    c: Cluster,
    nodes: Vec<Node>,
    rng: Rng,
    held: BTreeMap<u64, Held>,
    gone: Vec<Gone>,
}

impl World {
    fn flag(tx: &mut Tx<'_>) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        let set = flag.clone();
        tx.on_commit(Box::new(move || set.store(true, Ordering::Release)));
        flag
    }
    fn overlaps(&self, start: u64, len: u64) -> bool {
        let hit = |s: u64, n: u64| s < start + len && start < s + n;
        self.held.iter().any(|(s, h)| hit(*s, h.len))
            || self
                .gone
                .iter()
                .any(|g| !g.durable.load(Ordering::Acquire) && hit(g.start, g.held.len))
    }
    fn hold(&mut self, start: u64, len: u64, slot: bool, node: usize, durable: Arc<AtomicBool>) {
        assert!(!self.overlaps(start, len), "{start}+{len} given out twice");
        self.held.insert(start, Held { node, len, slot, durable });
    }
    fn write(&mut self, i: usize) {
        let want = 1 + self.rng.below(400);
        let node = &self.nodes[i];
        let mut r = match node.alloc.reserve(want, 0, 0) {
            Ok(r) => r,
            Err(Error::NoSpace) => return,
            Err(e) => panic!("{e}"),
        };
        let mut goal = None;
        while r.data > 0 {
            let node = &self.nodes[i];
            let ask = 1 + self.rng.below(r.data);
            let run = node.alloc.claim(&mut r, ask, goal).unwrap();
            let (start, len) = (run.start.get(), run.len);
            goal = Some(BlockNo(start + len));
            let keep = if self.rng.below(4) == 0 { self.rng.below(len + 1) } else { len };
            let mut tx = node.meta.begin().unwrap();
            node.alloc.commit_run(&mut tx, run, keep).unwrap();
            let flag = Self::flag(&mut tx);
            drop(tx);
            if keep > 0 {
                self.hold(start, keep, false, i, flag);
            }
            if self.rng.below(8) == 0 {
                break;
            }
        }
    }
    fn create(&mut self, i: usize) {
        for _ in 0..=self.rng.below(20) {
            let node = &self.nodes[i];
            let mut r = match node.alloc.reserve(0, 1, 0) {
                Ok(r) => r,
                Err(Error::NoSpace) => return,
                Err(e) => panic!("{e}"),
            };
            let (slot, guard) = node.alloc.claim_dinode(&mut r).unwrap();
            if self.rng.below(10) == 0 {
                drop(guard);
                node.alloc.unclaim_dinode(slot);
                continue;
            }
            let mut tx = node.meta.begin().unwrap();
            node.alloc.commit_dinode(&mut tx, slot).unwrap();
            tx.create(slot, LockNo::from(slot), MetaKind::Dinode, |_| {}).unwrap();
            let flag = Self::flag(&mut tx);
            drop(tx);
            drop(guard);
            let per_slot = self.c.volume.geo.slot_blocks();
            self.hold(slot.get(), per_slot, true, i, flag);
        }
    }
    fn free(&mut self, i: usize) {
        for _ in 0..=self.rng.below(12) {
            let n = self.held.len() as u64;
            if n == 0 {
                return;
            }
            let at = usize::try_from(self.rng.below(n)).unwrap();
            let start = *self.held.keys().nth(at).unwrap();
            let held = self.held.remove(&start).unwrap();
            // Others see only what is durable: a file's lock going over makes it so.
            if held.node != i {
                self.nodes[held.node].meta.commit().unwrap();
            }
            let node = &self.nodes[i];
            let guard = held.slot.then(|| {
                node.locks.acquire(LockNo(start), Mode::Exclusive, Local::Exclusive).unwrap()
            });
            let mut r = node.alloc.reserve(0, 0, 1).unwrap();
            let mut tx = node.meta.begin().unwrap();
            if held.slot {
                tx.free(BlockNo(start), LockNo(start)).unwrap();
                node.alloc.free_slot(&mut tx, &mut r, BlockNo(start), true).unwrap();
            } else {
                node.alloc.free_data(&mut tx, &mut r, BlockNo(start), held.len).unwrap();
            }
            let durable = Self::flag(&mut tx);
            drop(tx);
            drop(guard);
            self.gone.push(Gone { node: i, start, held, durable });
        }
    }
    fn crash(&mut self, i: usize) {
        let by = (i + 1) % self.nodes.len();
        self.c.bury(&self.nodes[i], &self.nodes[by]);
        // What was not durable never happened.
        for gone in std::mem::take(&mut self.gone) {
            if gone.node == i && !gone.durable.load(Ordering::Acquire) {
                self.held.insert(gone.start, gone.held);
            } else {
                self.gone.push(gone);
            }
        }
        self.held.retain(|_, h| h.node != i || h.durable.load(Ordering::Acquire));
        let incarnation = self.nodes[i].me.incarnation.get() + 1;
        let slot = self.nodes[i].me.slot.get();
        self.nodes[i] = self.c.node(slot, incarnation);
    }
    fn step(&mut self) {
        let i = usize::try_from(self.rng.below(2)).unwrap();
        match self.rng.below(20) {
            0..=6 => self.write(i),
            7..=10 => self.create(i),
            11..=15 => self.free(i),
            16 => self.nodes[i].meta.commit().unwrap(),
            17 => self.nodes[i].alloc.maintain().unwrap(),
            18 => self.nodes[i].alloc.shrink().unwrap(),
            _ => self.crash(i),
        }
        self.gone.retain(|g| !g.durable.load(Ordering::Acquire));
    }
    fn finish(self) {
        for node in &self.nodes {
            node.leave();
        }
        let (data, slots) = self.c.usage();
        let blocks = |slot| {
            let held = self.held.iter().filter(move |(_, h)| h.slot == slot);
            held.flat_map(|(s, h)| *s..*s + h.len).collect::<Vec<u64>>()
        };
        assert_eq!(data, blocks(false));
        let mut want = blocks(true);
        let (root, per_slot) = (self.c.volume.root().get(), self.c.volume.geo.slot_blocks());
        want.extend(root..root + per_slot);
        want.sort_unstable();
        assert_eq!(slots, want);
        assert_eq!(self.c.inodes(), want.len() as u64 / per_slot);
    }
}

/// Two nodes write, create, free each other's things, drain, give windows back and die at random:
/// no block is given out twice, none is lost, all counts are exact.
#[test]
fn random_histories_conserve_blocks() {
    for seed in 0..30 {
        history(Cluster::new(48), seed);
    }
}

#[test]
fn random_histories_conserve_slots_of_two_blocks() {
    for seed in 0..4 {
        history(Cluster::with_long_slots(64), seed);
    }
}

fn history(c: Cluster, seed: u64) {
    let nodes = vec![c.node(0, 1), c.node(1, 1)];
    let mut w = World { c, nodes, rng: Rng(seed), held: BTreeMap::new(), gone: Vec::new() };
    for _ in 0..250 {
        w.step();
    }
    w.finish();
}

/// As above in a pool kept nearly full by many threads of one node.
#[test]
fn threads_share_windows() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let total = node.alloc.totals().free;
    let files: Mutex<Vec<(u64, u64)>> = Mutex::default();
    std::thread::scope(|s| {
        for t in 0..4 {
            let (node, files) = (&node, &files);
            s.spawn(move || {
                let mut rng = Rng(t);
                for _ in 0..100 {
                    match node.write(1 + rng.below(300)) {
                        Ok(runs) => files.lock().extend(runs),
                        Err(Error::NoSpace) => {}
                        Err(e) => panic!("{e}"),
                    }
                    if rng.below(3) == 0 {
                        let gone = {
                            let mut files = files.lock();
                            let n = files.len() / 3;
                            files.drain(..n).collect::<Vec<_>>()
                        };
                        node.erase(&gone).unwrap();
                    }
                }
            });
        }
    });
    let mut files = files.into_inner();
    files.sort_unstable();
    for pair in files.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
    let used: u64 = files.iter().map(|f| f.1).sum();
    assert_eq!(node.alloc.totals().free, total - used);
    node.leave();
    assert_eq!(c.usage().0.len() as u64, used);
}

#[test]
fn every_node_can_tell_slots_of_any_node_from_data() {
    let c = Cluster::new(256);
    let (a, b) = (c.node(0, 1), c.node(1, 1));
    let told = |node: &Node, block: u64| node.alloc.is_slot(BlockNo(block)).unwrap();
    let data = a.write(100).unwrap();
    let slots: Vec<BlockNo> = (0..200).map(|_| a.create().unwrap()).collect();
    for node in [&b, &a] {
        assert!(slots.iter().all(|slot| told(node, slot.get())));
        assert!(data.iter().all(|&(start, len)| (start..start + len).all(|n| !told(node, n))));
    }
    // Slots that the groups have already go into a window again, and stay what they are.
    a.leave();
    let a = c.node(0, 2);
    let more: Vec<BlockNo> = (0..100).map(|_| a.create().unwrap()).collect();
    assert!(slots.iter().chain(&more).all(|slot| told(&b, slot.get())));
    assert!(told(&b, c.volume.root().get()));
    let head = c.volume.rgrp(0);
    assert!(!told(&b, head.get()) && !told(&b, 0) && !told(&b, u64::MAX), "of no group's blocks");
    a.leave();
    b.leave();
}

#[test]
fn each_sort_of_reservation_goes_back_by_itself() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let events = || node.alloc.inner.full.events.load(Ordering::Relaxed);
    for (data, slots, frees) in [(4, 0, 0), (0, 3, 0), (0, 0, 2)] {
        let reserved = node.alloc.reserve(data, slots, frees).unwrap();
        assert_eq!(node.alloc.reserved(), (data, slots, frees));
        let before = events();
        drop(reserved);
        assert_eq!(node.alloc.reserved(), (0, 0, 0));
        assert_eq!(events() > before, data + slots > 0, "a place in the log is no space");
    }
    node.leave();
}

#[test]
fn only_who_may_free_holds_the_space_lock_without_need_of_space() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    drop(node.alloc.reserve(10, 0, 0).unwrap());
    let share = &node.alloc.inner.share;
    assert!(share.is_held(), "a window was taken");
    share.note(false);
    drop(node.alloc.reserve(1, 0, 0).unwrap());
    assert!(!share.is_held());
    drop(node.alloc.reserve(0, 0, 1).unwrap());
    assert!(share.is_held());
    node.leave();
}

#[test]
fn inodes_that_are_about_to_be_deleted_are_waited_for_when_space_is_short() {
    let c = Cluster::new(64);
    let node = Arc::new(c.node(0, 1));
    let runs = Mutex::new(node.write(node.alloc.totals().free).unwrap());
    let (weak, calls) = (Arc::downgrade(&node), Arc::new(Mutex::new(0)));
    let called = calls.clone();
    node.alloc.set_leaving(Box::new(move || {
        *called.lock() += 1;
        let (Some(node), Some((start, len))) = (weak.upgrade(), runs.lock().pop()) else {
            return false;
        };
        node.erase(&[(start, len.min(3))]).unwrap();
        true
    }));
    drop(node.alloc.reserve(3, 0, 0).unwrap());
    assert_eq!(*calls.lock(), 1);
    drop(node.alloc.reserve(0, 0, 1).unwrap());
    assert_eq!(*calls.lock(), 1, "a free needs no space");
    node.leave();
}

#[test]
fn places_of_the_free_log_are_waited_for() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let all = node.alloc.inner.state.lock().log.capacity();
    let most = all / 2;
    let (half, rest) = (node.alloc.reserve(0, 0, most), node.alloc.reserve(0, 0, all - most));
    drop(node.alloc.reserve(10, 1, 0).unwrap());
    drop(rest);
    let rest = node.alloc.reserve(0, 0, all - most - 10);
    assert!(matches!(node.alloc.reserve(0, 0, most + 1), Err(Error::Invalid(_))));
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            drop(half.unwrap());
        });
        drop(node.alloc.reserve(0, 0, most).unwrap());
    });
    drop(rest);
    assert_eq!(node.alloc.reserved(), (0, 0, 0));
    node.leave();
}

#[test]
fn what_lies_in_no_group_is_not_freed() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let mut r = node.alloc.reserve(0, 0, 2).unwrap();
    let mut tx = node.meta.begin().unwrap();
    let head = c.volume.rgrp(0);
    for block in [BlockNo(0), head] {
        let freed = node.alloc.free_data(&mut tx, &mut r, block, 1);
        assert!(matches!(freed, Err(Error::Inconsistent { .. })));
        let freed = node.alloc.free_slot(&mut tx, &mut r, block, true);
        assert!(matches!(freed, Err(Error::Inconsistent { .. })));
    }
    assert_eq!(r.frees, 2, "nothing has changed");
    drop(tx);
    drop(r);
    assert_eq!(node.alloc.deltas(), Deltas::default());
    node.leave();
}

#[test]
fn what_is_taken_and_freed_is_counted_and_folded_when_the_node_leaves() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        let per_slot = i64::try_from(c.volume.geo.slot_blocks()).unwrap();
        let node = c.node(0, 1);
        let runs = node.write(30).unwrap();
        assert_eq!(node.alloc.deltas(), Deltas { free: -30, inodes: 0, meta: 0 });
        let slot = node.create().unwrap();
        let chunk = 64 * per_slot;
        let created = Deltas { free: -30 - chunk, inodes: 1, meta: chunk - per_slot };
        assert_eq!(node.alloc.deltas(), created);
        node.erase(&runs).unwrap();
        assert_eq!(node.alloc.deltas(), Deltas { free: -chunk, ..created });
        node.remove(slot).unwrap();
        node.alloc.count_added(&mut node.meta.begin().unwrap(), 5, 7).unwrap();
        assert_eq!(node.alloc.deltas(), Deltas { free: 5 - chunk, inodes: 0, meta: chunk + 7 });
        let gone = Use { data: 1, meta: 2, free: 5, free_meta: 7 };
        node.alloc.count_gone(&mut node.meta.begin().unwrap(), gone).unwrap();
        assert_eq!(node.alloc.deltas(), Deltas { free: -chunk, inodes: 0, meta: chunk });
        let before = node.alloc.totals();
        node.leave();
        assert_eq!(node.alloc.deltas(), Deltas::default());
        let after = node.alloc.totals();
        assert_eq!((before.free, before.files_free), (after.free, after.files_free));
        let Counters { free, meta, .. } = read_counters(&c.volume).unwrap();
        assert_eq!(after.files_free, (free + meta) / c.volume.geo.slot_blocks());
        assert_eq!(c.usage().0.len(), 0);
    }
}

#[test]
fn new_slots_belong_to_the_node_that_makes_them_and_become_more_at_a_time() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        let node = c.node(1, 7);
        let chunks = || node.alloc.inner.refill.lock().chunks;
        let geo = c.volume.geo;
        let first = node.create().unwrap();
        for block in [first.get(), first.get() + geo.slot_blocks()] {
            let mut sector = AlignedBuf::zeroed(geo.lock_sector.to_usize());
            c.pool.read(c.volume.slot_at(BlockNo(block)), &mut sector).unwrap();
            let record = LockRecord::decode(&sector, LockNo(block)).unwrap();
            assert_eq!((record.holders, record.nonce), (vec![node.me], 7 << 32 | 1));
        }
        let mut made = vec![chunks()];
        for n in 2..=200 {
            node.create().unwrap();
            if n == 65 || n == 193 {
                made.push(chunks());
            }
        }
        assert_eq!(made, [2, 4, 4]);
        node.leave();
        assert_eq!(c.inodes(), 201);
        assert_eq!(c.usage().1.len() as u64, 201 * geo.slot_blocks());
    }
}

#[test]
fn a_search_for_as_much_would_find_nothing_either() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let alone = inner.share(Mode::Exclusive).unwrap().unwrap();
    inner.note_full(10, 2, Some(alone.tenure()), inner.before_search());
    drop(alone);
    let noted = |at: Instant| inner.full.last.lock().as_mut().unwrap().at = at;
    let now = Instant::now();
    noted(now + Duration::from_hours(1));
    assert!(inner.is_known_full(10, 2) && inner.is_known_full(11, 3));
    assert!(!inner.is_known_full(9, 2) && !inner.is_known_full(10, 1));
    noted(now.checked_sub(Duration::from_millis(251)).unwrap());
    assert!(!inner.is_known_full(10, 2), "another node may have freed something since");
    noted(now + Duration::from_hours(1));
    node.alloc.note_change_by_others();
    assert!(!inner.is_known_full(10, 2));
    node.leave();
}

#[test]
fn counters_are_read_again_when_they_are_old() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let real = node.alloc.totals().free;
    let inner = &node.alloc.inner;
    let shown = Counters { free: 5, inodes: 1, meta: 0 };
    let noted = |age: u64| {
        let at = Instant::now().checked_sub(Duration::from_millis(age));
        *inner.counters.lock() = (at.unwrap(), shown);
    };
    let fresh = || *inner.counters.lock() = (Instant::now() + Duration::from_hours(1), shown);
    fresh();
    assert_eq!((node.alloc.totals().free, node.alloc.totals_soon().free), (5, 5));
    noted(500);
    assert_eq!(node.alloc.totals().free, real);
    // For displays by another thread; what is slow is not waited for long.
    let soon = || (0..1000).any(|_| node.alloc.totals_soon().free == real);
    noted(500);
    assert!(soon());
    while inner.is_looking.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    noted(500);
    inner.is_looking.store(true, Ordering::Release);
    assert_eq!(node.alloc.totals_soon().free, 5, "one thread looks at a time");
    node.leave();
}

#[test]
fn space_is_short_when_less_than_an_eighth_of_data_or_metadata_is_free() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    assert_eq!(inner.total(), c.volume.groups.totals());
    let version = c.volume.groups.version();
    *inner.total.lock() = (version, (8000, 800));
    let short = |free, meta| inner.has_less(Counters { free, inodes: 1, meta }, 8);
    assert!(!short(1000, 100));
    assert!(short(999, 100) && short(1000, 99));
    // Groups for both have no blocks that are for metadata alone.
    *inner.total.lock() = (version, (8000, 0));
    assert!(!short(1000, 0));
    let (made, end) = (c.volume.groups.made(), c.volume.total_blocks());
    let first = crate::groups::Span { start: end, stride: 1000, count: 1, end: end + 1000 };
    assert!(c.volume.groups.push(Part { first, ..made }));
    assert_eq!(inner.total(), c.volume.groups.totals(), "it has grown");
}

#[test]
fn a_node_at_rest_reads_the_counters_only_now_and_then_while_there_is_plenty() {
    let c = Cluster::new(64);
    let (node, other) = (c.node(0, 1), c.node(1, 1));
    let inner = &node.alloc.inner;
    let all = node.alloc.totals().free;
    let noted = |free: u64, seconds: u64| {
        let at = Instant::now().checked_sub(Duration::from_secs(seconds));
        *inner.counters.lock() = (at.unwrap(), Counters { free, inodes: 1, meta: 0 });
    };
    noted(0, 10);
    assert!(!inner.is_short_at_rest(), "there is plenty again");
    // Nearly all of it is used now.
    other.write(all - 100).unwrap();
    other.leave();
    noted(all, 10);
    assert!(!inner.is_short_at_rest(), "it has not looked yet");
    noted(all, 31);
    assert!(inner.is_short_at_rest());
    node.leave();
}

#[test]
fn a_node_that_rests_keeps_its_windows_while_there_is_plenty() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    node.write(10).unwrap();
    let open = || node.alloc.inner.state.lock().windows.iter().filter(|w| w.is_open()).count();
    for _ in 0..3 {
        node.alloc.maintain().unwrap();
        assert_eq!(open(), 1);
    }
    node.alloc.shrink().unwrap();
    assert_eq!(open(), 0);
    node.leave();
}

#[test]
fn each_private_block_that_is_damaged_is_told() {
    let c = Cluster::new(64);
    let node = NodeId(1);
    inspect(&c.volume, node).unwrap();
    let windows = (0..RawSuperblock::WINDOWS).map(|n| RawSuperblock::AREA_WINDOWS + n);
    let logs = (0..RawSuperblock::FREELOG_BLOCKS).map(|n| RawSuperblock::AREA_FREELOG + n);
    for n in windows.chain(logs).chain([RawSuperblock::AREA_INFO]) {
        let block = c.volume.node_area(node, n);
        let at = c.volume.body_at(block);
        let len = c.volume.geo.body_len();
        let (mut sound, zeros) = (AlignedBuf::zeroed(len), AlignedBuf::zeroed(len));
        c.pool.read(at, &mut sound).unwrap();
        c.pool.write(at, &zeros).unwrap();
        assert_eq!(inspect(&c.volume, node).unwrap_err().damaged_block(), Some(block));
        inspect(&c.volume, NodeId(0)).unwrap();
        c.pool.write(at, &sound).unwrap();
    }
    inspect(&c.volume, node).unwrap();
}

#[test]
fn pieces_that_are_discarded_end_between_rows() {
    let c = Cluster::on(Pool::for_tests(3, Bytes(64 << 20)));
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let group = group::Group::load(&c.volume, &node.meta, 0).unwrap();
    let (rows, row) = c.volume.rows_at(0, group.block(0));
    assert!(rows == 0 && row > 2, "{rows} {row}");
    // Within the group the first row begins here.
    let first = group.block(0).next_multiple_of(row) - group.block(0);
    let cut = |at, wanted| inner.cut(&group, at, wanted, first + 10 * row);
    assert_eq!(cut(0, first + 10 * row), first + 10 * row, "the run's end");
    assert_eq!(cut(0, first + 3 * row), first + 3 * row);
    assert_eq!(cut(0, first + 3 * row + 1), first + 3 * row);
    assert_eq!(cut(first, first + 2 * row - 1), first + row);
    assert_eq!(cut(first + row, first + row + 2), first + row + 2, "less than a row is wanted");
    assert_eq!(cut(first + row, first + row + row - 1), first + 2 * row - 1);
    node.leave();
}

#[test]
fn what_was_freed_goes_back_although_one_group_is_damaged_or_there_is_a_pause() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    node.alloc.remember_freed();
    // Blocks that were never used are as free as others.
    let places = [0, 1].map(|index| c.volume.group_shape(index).unwrap().first_block + 700);
    let remember = || places.into_iter().for_each(|start| inner.note_freed(start, 10));
    let remembered = || inner.freed.lock().as_ref().unwrap().iter().collect::<Vec<_>>();
    let all = places.map(|start| (start, start + 10));
    let bytes = |blocks: u64| blocks << c.volume.geo.block_size.shift();
    remember();
    assert_eq!(node.alloc.discard_freed(&|| true).unwrap(), 0);
    assert_eq!(remembered(), all, "it was told to stop");
    // It is told to pause inside the first group.
    let asked = std::cell::Cell::new(0);
    let pause = || asked.replace(asked.get() + 1) == 1;
    assert_eq!(node.alloc.discard_freed(&pause).unwrap(), bytes(20));
    assert_eq!((remembered(), asked.get() > 3), (vec![], true));
    assert_eq!(node.alloc.discard_freed(&|| false).unwrap(), 0);
    // The first group's header is damaged.
    let head = c.volume.rgrp(0);
    node.meta.sync_owner(LockNo::from(head)).unwrap();
    node.meta.drop_owner(LockNo::from(head));
    let zeros = AlignedBuf::zeroed(c.volume.geo.body_len());
    c.pool.write(c.volume.body_at(head), &zeros).unwrap();
    remember();
    assert_eq!(node.alloc.discard_freed(&|| false).unwrap(), bytes(10));
    // The node has withdrawn.
    remember();
    node.meta.poison("withdrawn".into());
    assert!(node.alloc.discard_freed(&|| false).is_err());
    node.locks.withdraw();
}

#[test]
fn what_stands_in_windows_is_remembered_and_the_rest_goes_back() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    node.write(1).unwrap();
    let extent = |w: &window::Window| (w.group, w.start + w.len);
    let (group, end) = extent(&inner.state.lock().windows[0]);
    let shape = c.volume.group_shape(group).unwrap();
    assert!(end + 300 < shape.first_block + shape.block_count, "there is room behind the window");
    // As if there were others: one inside the place, one behind it.
    let open = |place, start, len| {
        let extent = window::Extent { group, start, len, ..window::Extent::default() };
        inner.state.lock().open_window(place, extent);
    };
    open(1, end + 100, 50);
    open(2, end + 250, 10);
    node.alloc.remember_freed();
    assert!(!inner.withholds_freed(), "nothing was freed");
    inner.note_freed(end - 10, 210);
    assert!(inner.withholds_freed());
    let bytes = |blocks: u64| blocks << c.volume.geo.block_size.shift();
    assert_eq!(node.alloc.discard_freed(&|| false).unwrap(), bytes(150));
    let remembered = || inner.freed.lock().as_ref().unwrap().iter().collect::<Vec<_>>();
    assert_eq!(remembered(), [(end - 10, end), (end + 100, end + 150)]);
    *inner.freed.lock() = Some(freed_places::Remembered::default());
    inner.note_freed(end + 160, 20);
    assert!(!inner.withholds_freed(), "it stands in no window");
    inner.note_freed(end + 60, 50);
    assert!(inner.withholds_freed(), "it reaches into one");
    open(1, 0, 0);
    open(2, 0, 0);
    node.leave();
}

#[test]
fn a_trim_goes_on_where_it_was_and_passes_by_what_has_not_changed() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let free = group::Group::load(&c.volume, &node.meta, 1).unwrap().raw.free_blocks.get();
    let whole = |least, stop: &dyn Fn() -> bool| {
        let span = trim::Span { from: 0, to: u64::MAX, least };
        let (mut step, mut given) = (trim::Step::default(), Vec::new());
        loop {
            step = node.alloc.trim(1, span, step, stop).unwrap();
            given.push(step.given >> c.volume.geo.block_size.shift());
            if step.is_last() {
                return given;
            }
        }
    };
    let again = |least| whole(least, &|| false).iter().sum::<u64>();
    // A part of the group, then runs that are longer than there are, and as long.
    let first = c.volume.group_shape(1).unwrap().first_block;
    let part = trim::Span { from: first + 10, to: u64::MAX, least: 1 };
    node.alloc.trim(1, part, trim::Step::default(), &|| false).unwrap();
    assert_eq!([free + 1, free].map(again), [0, free]);
    let asked = std::cell::Cell::new(0);
    let given = whole(8, &|| asked.replace(asked.get() + 1) == 0);
    assert_eq!((given[0], given.iter().sum::<u64>()), (0, free), "{given:?}");
    assert_eq!([8, 9].map(again), [0, 0], "nothing has changed");
    assert_eq!([1, 8].map(again), [free, 0], "shorter runs were not discarded");
    // The end of a run is short, but it is gone on with.
    let group = group::Group::load(&c.volume, &node.meta, 1).unwrap();
    let end = group.shape.block_count;
    let discarded = |but| {
        let step = node.alloc.inner.discard(&group, (end - 5, end), (8, but), &|| false).unwrap();
        step.given >> c.volume.geo.block_size.shift()
    };
    assert_eq!([None, Some(end - 5), Some(end - 4)].map(discarded), [0, 5, 0]);
    node.leave();
}

#[test]
fn free_slots_are_used_before_others_are_made_where_they_are_many_or_space_is_short() {
    // How many blocks for each free slot are believed to be free, whether space is short, whether the
    // hints are old and wrong; whether new slots are made.
    for (free, short, old, made) in [
        ((8, 7), false, false, false),
        ((8, 8), false, false, true),
        ((8, 8), true, false, false),
        ((0, 0), true, true, false),
    ] {
        let c = Cluster::new(64);
        let node = c.node(0, 1);
        let slots: Vec<BlockNo> = (0..100).map(|_| node.create().unwrap()).collect();
        slots.into_iter().for_each(|slot| node.remove(slot).unwrap());
        node.leave();
        let there = read_counters(&c.volume).unwrap().meta;
        assert_eq!(there, 63 + 64 + 128);
        let node = c.node(1, 1);
        let inner = &node.alloc.inner;
        // A window of a group without slots.
        let mut r = node.alloc.reserve(64, 0, 0).unwrap();
        let run = node.alloc.claim(&mut r, 1, None).unwrap();
        drop(r);
        let mut refill = inner.refill.lock();
        let known: u64 = refill.hints.iter().map(|h| h.free_meta).sum();
        assert_eq!((known, inner.state.lock().slots_free()), (there, 0), "headers were read");
        let last = refill.hints.len() - 1;
        refill.hints.iter_mut().for_each(|h| h.free = 0);
        refill.hints[last].free = free.0 * there + free.1;
        if old {
            refill.hints.iter_mut().for_each(|h| h.free_meta = 0);
            refill.read = Instant::now().checked_sub(Duration::from_secs(6)).unwrap();
        }
        drop(refill);
        if short {
            let later = Instant::now() + Duration::from_hours(1);
            *inner.counters.lock() = (later, Counters { free: 100, inodes: 1, meta: there });
        }
        let before = node.alloc.deltas().free;
        node.create().unwrap();
        let what = format!("{free:?} {short} {old}");
        assert_eq!(before - node.alloc.deltas().free, if made { 64 } else { 0 }, "{what}");
        drop(run);
        node.leave();
    }
}

#[test]
fn what_a_node_has_is_handed_out_and_freed_slots_are_in_place_before_their_group_says_so() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        for (incarnation, parts) in [(1, false), (2, true)] {
            let node = c.node(0, incarnation);
            let all: u64 = node.alloc.free_by_group().unwrap().iter().sum();
            assert_eq!(all, node.alloc.totals().free);
            let slots = [(); 3].map(|()| node.create().unwrap());
            for slot in slots {
                node.meta.sync_owner(LockNo::from(slot)).unwrap();
            }
            let kind = |slot| c.volume.read_body(slot).unwrap().2;
            assert_eq!(slots.map(kind), [MetaKind::Dinode; 3]);
            slots.into_iter().for_each(|slot| node.remove(slot).unwrap());
            let free = node.alloc.totals().free;
            if parts {
                // Both keep their windows.
                let kept = node.alloc.reserve(10, 1, 0).unwrap();
                node.alloc.hand_out().unwrap();
                assert!(!node.alloc.inner.share.is_held());
                assert_eq!(node.alloc.free_by_group().unwrap().iter().sum::<u64>(), free - 10);
                let slots_left = node.alloc.inner.state.lock().slots_free();
                assert_eq!((slots_left, kept.slots), (0, 1));
            } else {
                node.alloc.give_up_unused().unwrap();
                assert_eq!(node.alloc.free_by_group().unwrap().iter().sum::<u64>(), free);
            }
            let free_now = slots.iter().filter(|slot| kind(**slot) == MetaKind::Free).count();
            assert!(free_now >= if parts { 2 } else { 3 }, "{free_now} {parts}");
            node.leave();
            assert_eq!(c.inodes(), 1);
        }
    }
}

#[test]
fn a_node_that_leaves_hands_nothing_out() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    node.write(10).unwrap();
    let open = || node.alloc.inner.state.lock().windows.iter().filter(|w| w.is_open()).count();
    node.alloc.inner.share.close();
    node.alloc.hand_out().unwrap();
    assert_eq!(open(), 1);
    node.leave();
}

#[test]
fn a_node_with_space_takes_the_space_lock_again() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let share = &node.alloc.inner.share;
    node.alloc.keep_share().unwrap();
    assert!(!share.is_held(), "it has nothing");
    node.write(10).unwrap();
    share.note(false);
    node.alloc.keep_share().unwrap();
    assert!(share.is_held());
    node.leave();
}

#[test]
fn blocks_that_are_kept_back_stay_claimed_and_are_bounded() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let mut r = node.alloc.reserve(20, 0, 0).unwrap();
    let mut claim = |len| node.alloc.claim(&mut r, len, None).unwrap();
    inner.kept_back.store(inner::KEPT_BACK_MAX - 4, Ordering::Relaxed);
    assert!(claim(4).keep_back());
    assert!(!claim(1).keep_back());
    let busy: u64 = inner.state.lock().windows.iter().map(|w| w.busy).sum();
    assert_eq!(busy, 5);
}

#[test]
fn a_slot_for_metadata_is_used_from_its_transaction_on() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let mut r = node.alloc.reserve(0, 2, 0).unwrap();
    let before = node.alloc.deltas();
    let mut tx = node.meta.begin().unwrap();
    let slot = node.alloc.take_slot(&mut tx, &mut r).unwrap();
    tx.create(slot, LockNo::from(slot), MetaKind::Dinode, |_| {}).unwrap();
    drop(tx);
    assert_eq!((r.slots, node.alloc.reserved().1), (1, 1));
    assert_eq!(node.alloc.deltas(), Deltas { meta: before.meta - 1, ..before });
    drop(r);
    node.leave();
    assert!(c.usage().1.contains(&slot.get()));
}

#[test]
fn a_node_is_alone_until_it_hears_of_another() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    assert!(node.alloc.is_alone());
    node.alloc.set_others(Box::new(|| None));
    assert!(node.alloc.is_alone());
    node.alloc.set_others(Box::new(|| Some(Deltas::default())));
    assert!(!node.alloc.is_alone());
    assert!(node.alloc.reserve_here(1).is_none(), "it has no window");
    drop(node.alloc.reserve(1, 0, 0).unwrap());
    assert_eq!(node.alloc.reserve_here(1).unwrap().data, 1);
    node.leave();
}

#[test]
fn a_part_of_what_is_free_is_kept_for_metadata() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    // 73 extents are in a leaf that is half full; 16 slots are kept.
    assert_eq!(node.alloc.available(10_000, None), 10_000 - 137 - 16);
    assert_eq!(node.alloc.available(20, None), 3);
    assert_eq!(node.alloc.available(10, None), 0);
    // Where metadata stands apart, what is free there bounds it.
    assert_eq!(node.alloc.available(10_000, Some(100)), 84 * 73);
    assert_eq!(node.alloc.available(5000, Some(100)), 5000);
    assert_eq!(node.alloc.available(5000, Some(16)), 0);
    let c = Cluster::with_long_slots(64);
    // 84 extents, and each slot is two blocks.
    assert_eq!(c.node(0, 1).alloc.available(10_000, None), 10_000 - 239 - 32);
}

#[test]
fn what_are_no_counters_is_not_read_as_such() {
    let c = Cluster::new(64);
    read_counters(&c.volume).unwrap();
    let block = BlockNo::from(c.volume.named(RawSuperblock::NAMED_COUNTERS));
    let mut slot = AlignedBuf::zeroed(Bytes(c.volume.geo.slot_bytes()).to_usize());
    image::Fresh::own(block, MetaKind::Free, image::Birth::now(1)).write(
        c.volume.geo,
        &mut slot,
        |_| {},
    );
    c.pool.write(c.volume.slot_at(block), &slot).unwrap();
    assert!(matches!(read_counters(&c.volume), Err(Error::Inconsistent { .. })));
}

#[test]
fn all_of_a_new_window_is_in_use_but_what_is_named() {
    let c = Cluster::new(256);
    let node = c.node(0, 1);
    let private = node.alloc.inner.private();
    let shape = c.volume.group_shape(1).unwrap();
    let (start, len) = (shape.first_block, shape.block_count);
    assert!(len > 3520, "more than an eighth of what a block can say: {len}");
    let mut tx = node.meta.begin().unwrap();
    let free = [(7, 5, BlockState::Free)];
    private.write_window(&mut tx, 3, start, len, Incarnation(1), &free).unwrap();
    drop(tx);
    let window = private.read_window(3).unwrap().unwrap();
    assert_eq!((window.group, window.start, window.len), (1, start, len));
    let count = |state| bits::count(window.bits(), 0, len, state);
    assert_eq!((count(BlockState::Free), count(BlockState::Data)), (5, len - 5));
    let mut tx = node.meta.begin().unwrap();
    private.write_window(&mut tx, 3, 0, 0, Incarnation(0), &[]).unwrap();
    drop(tx);
    assert!(private.read_window(3).unwrap().is_none());
    node.leave();
}

#[test]
fn windows_grow_stand_side_by_side_and_take_back_what_was_given() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let kept = node.alloc.reserve(10, 0, 0).unwrap();
    let ranges = || {
        let state = inner.state.lock();
        let open = state.windows.iter().filter(|w| w.is_open());
        let mut ranges: Vec<_> = open.map(|w| (w.start, w.len, w.group)).collect();
        ranges.sort_unstable();
        ranges
    };
    let first = ranges();
    let [(start, len, group)] = first[..] else { panic!("{first:?}") };
    {
        let refill = inner.refill.lock();
        let first_block = c.volume.group_shape(group).unwrap().first_block;
        assert_eq!(refill.hint(group).near, Some(start + len - first_block));
        assert_eq!(refill.first.target, 8192, "twice as much");
    }
    node.alloc.hand_out().unwrap();
    assert_eq!((ranges(), inner.state.lock().data_free()), (first, 0));
    // Nothing is believed of the other groups.
    for (index, hint) in (0..).zip(&mut inner.refill.lock().hints) {
        hint.free = u64::from(index == group);
    }
    let more = node.alloc.reserve(10, 0, 0).unwrap();
    assert_eq!(inner.state.lock().windows[0].data.count(), len, "what was given came back");
    for pair in ranges().windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
    drop((kept, more));
    node.leave();
}

#[test]
fn free_slots_are_found_where_no_block_is_free() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let all = node.alloc.totals().free;
    node.write(all).unwrap();
    node.leave();
    let node = c.node(1, 1);
    for _ in 0..63 {
        node.create().unwrap();
    }
    assert!(matches!(node.create(), Err(Error::NoSpace)));
    node.leave();
    assert_eq!(c.usage().0.len() as u64, all);
    assert_eq!(c.usage().1.len(), 64);
}

#[test]
fn a_damaged_group_keeps_no_other_from_use() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    // As if other nodes had used blocks of two groups.
    let freed = [0, 1].map(|index| {
        let group = group::Group::load(&c.volume, &node.meta, index).unwrap();
        group.shape.first_block + 900
    });
    for start in freed {
        let mut tx = node.meta.begin().unwrap();
        let index = c.volume.rgrp_of(BlockNo(start)).unwrap();
        let lock = LockNo::from(c.volume.rgrp(index));
        let guard = node.locks.acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap();
        let mut group = group::Group::load(&c.volume, &node.meta, index).unwrap();
        let mut edits = group::Edits::default();
        edits.push(900, 10, BlockState::Free, BlockState::Data);
        group.apply(&mut tx, &edits).unwrap();
        drop(tx);
        node.meta.sync_owner(lock).unwrap();
        node.meta.drop_owner(lock);
        drop(guard);
    }
    node.erase(&freed.map(|start| (start, 10))).unwrap();
    let in_log = || node.alloc.inner.state.lock().log.entries().len();
    assert_eq!(in_log(), 2);
    node.meta.commit().unwrap();
    let head = c.volume.rgrp(0);
    c.pool.write(c.volume.body_at(head), &AlignedBuf::zeroed(c.volume.geo.body_len())).unwrap();
    assert!(node.alloc.drain_frees().unwrap_err().is_of_one_group());
    assert_eq!(in_log(), 1, "what was freed in the other group is in its bitmap");
    // Discards, housekeeping of the space lock and reservations go on.
    node.alloc.remember_freed();
    node.alloc.inner.note_freed(freed[1], 10);
    let bytes = 10 << c.volume.geo.block_size.shift();
    assert_eq!(node.alloc.discard_freed(&|| false).unwrap(), bytes);
    node.alloc.hand_out().unwrap();
    node.alloc.give_up_unused().unwrap();
    let reserved = node.alloc.reserve(100, 1, 0).unwrap();
    let in_first = |w: &window::Window| w.is_open() && w.group == 0;
    assert!(!node.alloc.inner.state.lock().windows.iter().any(in_first));
    drop(reserved);
    // The node withdraws: nothing of that is taken for damage.
    node.alloc.inner.note_freed(freed[1], 10);
    node.meta.poison("withdrawn".into());
    assert!(node.alloc.discard_freed(&|| false).is_err());
    let remembered = node.alloc.inner.freed.lock().as_ref().unwrap().iter().count();
    assert_eq!(remembered, 1, "it is not forgotten");
    assert!(node.alloc.hand_out().is_err() && node.alloc.give_up_unused().is_err());
    node.locks.withdraw();
}

/// Makes inodes and removes them: their slots, which are free in their groups on return.
fn leave_free_slots(node: &Node, n: usize) -> Vec<BlockNo> {
    let slots: Vec<BlockNo> = (0..n).map(|_| node.create().unwrap()).collect();
    slots.iter().for_each(|slot| node.remove(*slot).unwrap());
    node.leave();
    slots
}

#[test]
fn free_slots_become_blocks_but_for_those_that_private_blocks_speak_of() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        let geo = c.volume.geo;
        let chunk = geo.chunk_blocks();
        let slots = leave_free_slots(&c.node(0, 1), 100);
        let index = c.volume.rgrp_of(slots[0]).unwrap();
        let before = read_counters(&c.volume).unwrap();
        // A chunk, below it two more; the root's chunk has free slots, too.
        assert_eq!(before.meta, 4 * chunk - geo.slot_blocks());
        let end = slots.iter().map(|slot| slot.get()).max().unwrap() / chunk * chunk + chunk;
        let chunks = [1, 2, 3].map(|n| end - n * chunk);
        let (node, by) = (c.node(1, 1), c.node(2, 1));
        let all = (node.alloc.totals().blocks, before.meta);
        assert_eq!(node.alloc.data_and_unused().unwrap(), all);
        let wiped = || {
            let mut slot = AlignedBuf::zeroed(Bytes(geo.slot_bytes()).to_usize());
            chunks.map(|first| {
                let blocks = (first..first + chunk).step_by(Bytes(geo.slot_blocks()).to_usize());
                let zeros = blocks.filter(|block| {
                    c.pool.read(c.volume.slot_at(BlockNo(*block)), &mut slot).unwrap();
                    slot.iter().all(|byte| *byte == 0)
                });
                zeros.count()
            })
        };
        let changed = |n: u64| {
            let n = i64::try_from(n).unwrap();
            Deltas { free: n, inodes: 0, meta: -n }
        };
        // Another node may be there; or that cannot be told.
        let private = [(chunks[1], chunk)];
        let give =
            |alone: &dyn Fn() -> Result<bool>| node.alloc.free_unused(index, &private, alone);
        assert_eq!(give(&|| Ok(false)).unwrap(), None);
        assert!(matches!(give(&|| Err(Error::Deadlock)), Err(Error::Deadlock)));
        assert_eq!((node.alloc.deltas(), wiped()), (Deltas::default(), [0; 3]));
        assert_eq!(give(&|| Ok(true)).unwrap(), Some(2 * chunk));
        assert_eq!(node.alloc.deltas(), changed(2 * chunk));
        assert_eq!(wiped(), [64, 0, 64]);
        node.meta.sync_owner(LockNo::from(c.volume.rgrp(index))).unwrap();
        let all = (all.0, all.1 - 2 * chunk);
        assert_eq!(node.alloc.data_and_unused().unwrap(), all);
        // Just a chunk.
        let flushes = || node.meta.stats().flushes;
        let give = |index| node.alloc.free_unused(index, &[], &|| Ok(true)).unwrap();
        assert_eq!(give(index), Some(chunk));
        assert_eq!(node.alloc.deltas(), changed(3 * chunk));
        assert_eq!(wiped(), [64; 3]);
        let flushed = flushes();
        assert_eq!((give(index), give(index + 1), flushes()), (Some(0), Some(0), flushed));
        // It is durable, and what was slots is for data.
        c.bury(&node, &by);
        let free = read_counters(&c.volume).unwrap().free;
        assert_eq!(free, before.free + 3 * chunk);
        by.write(free).unwrap();
        by.leave();
        assert_eq!(c.usage().0.len() as u64, free);
    }
}

#[test]
fn free_slots_stay_where_data_cannot_be_and_in_what_is_to_be_emptied() {
    let nobody = || -> Result<bool> { panic!("there is nothing to be done") };
    let c = Cluster::apart("64K");
    leave_free_slots(&c.node(0, 1), 100);
    let node = c.node(1, 1);
    let blocks = node.alloc.totals().blocks;
    assert_eq!(node.alloc.data_and_unused().unwrap(), (blocks, 0));
    for index in 0..c.volume.groups.count() {
        assert_eq!(node.alloc.free_unused(index, &[], &nobody).unwrap(), Some(0));
    }
    node.leave();
    let c = Cluster::grown(64);
    let node = c.node(0, 1);
    node.fill(&c, 0);
    let slots = leave_free_slots(&node, 100);
    let node = c.node(0, 2);
    let added: Vec<u64> = c.volume.groups.of_part(1).collect();
    let of_added = |slot: &&BlockNo| added.contains(&c.volume.rgrp_of(**slot).unwrap());
    assert!(slots.iter().filter(of_added).count() > 0);
    let (_, all) = node.alloc.data_and_unused().unwrap();
    c.close_added(true);
    let (_, open) = node.alloc.data_and_unused().unwrap();
    assert!(open < 64 && all >= open + 64, "{open} of {all}");
    for index in &added {
        assert_eq!(node.alloc.free_unused(*index, &[], &nobody).unwrap(), Some(0));
    }
    c.close_added(false);
    let given =
        added.iter().map(|index| node.alloc.free_unused(*index, &[], &|| Ok(true)).unwrap());
    assert_eq!(given.map(Option::unwrap).sum::<u64>(), (all - open) / 64 * 64);
    node.leave();
}

#[test]
fn metadata_stays_in_what_was_there_at_first_as_long_as_there_is_room() {
    let c = Cluster::grown(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let is_added = |slot: BlockNo| c.volume.groups.is_added(c.volume.rgrp_of(slot).unwrap());
    // The only window is in what was added.
    let first_added = c.volume.groups.of_part(1).start;
    inner.refill.lock().first.current = first_added;
    let kept = node.alloc.reserve(10, 0, 0).unwrap();
    assert!(inner.state.lock().windows.iter().all(|w| !w.is_open() || w.added));
    let slots: Vec<BlockNo> = (0..300).map(|_| node.create().unwrap()).collect();
    assert!(!slots.iter().any(|slot| is_added(*slot)));
    drop(kept);
    node.leave();
}

#[test]
fn windows_for_file_data_are_of_whole_rows_where_these_are_not_too_large() {
    for (unit, row) in [("64K", 3 * 16), ("8M", 1)] {
        let c = Cluster::apart(unit);
        let node = c.node(0, 1);
        let groups = &c.volume.groups;
        let of_data = groups.numbers(false)[0];
        let grain = |index, shift| {
            let mut group = group::Group::load(&c.volume, &node.meta, index).unwrap();
            group.shape.first_block += shift;
            node.alloc.inner.window_grain(&group)
        };
        assert_eq!(
            [0, of_data].map(|i| groups.kind(i)),
            [SubpoolKind::Metadata, SubpoolKind::Data]
        );
        assert_eq!([0, of_data].map(|i| grain(i, 0)), [1, row]);
        assert_eq!(grain(of_data, 1), 1, "as if it did not begin with a row");
        node.write(100).unwrap();
        let state = node.alloc.inner.state.lock();
        let open: Vec<_> = state.windows.iter().filter(|w| w.is_open()).collect();
        assert_eq!(open.len(), 1);
        assert!(open[0].len.is_multiple_of(row) && (open[0].start - open[0].rows.0) % row == 0);
        drop(state);
        node.leave();
    }
}

#[test]
fn that_places_of_the_log_are_short_says_nothing_of_space() {
    for c in [Cluster::new(64), Cluster::for_one(64)] {
        let node = c.node(0, 1);
        let inner = &node.alloc.inner;
        let all = inner.state.lock().log.capacity();
        let most = all / 2;
        let (half, rest) = (node.alloc.reserve(0, 0, most), node.alloc.reserve(0, 0, all - most));
        let over = AtomicBool::new(false);
        let mut told = Vec::new();
        std::thread::scope(|s| {
            // Each wait ends at once, but nothing has come.
            s.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    inner.released.notify_all();
                    std::thread::yield_now();
                }
            });
            for (data, slots, frees) in [(0, 0, 5), (10, 0, 5), (0, 1, 5)] {
                told.push(node.alloc.reserve(data, slots, frees).map(drop));
                told.push(node.alloc.reserve(3000, 0, 0).map(drop));
                told.push(node.alloc.shrink());
            }
            over.store(true, Ordering::Release);
        });
        for told in told.chunks(3) {
            let [Err(Error::NoSpace), Ok(()), Ok(())] = told else { panic!("{told:?}") };
        }
        drop((half, rest));
        node.leave();
    }
}

#[test]
fn windows_of_what_is_to_be_emptied_go_back_and_what_is_reserved_comes_from_elsewhere() {
    let c = Cluster::grown(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let added = c.volume.groups.of_part(1);
    // Blocks and slots of the one window, which is there, are reserved, and one is claimed.
    inner.refill.lock().first.current = added.start;
    let mut r = node.alloc.reserve(10, 0, 0).unwrap();
    assert!(inner.carve(&mut inner.refill.lock(), 0, (true, false)).unwrap());
    let mut slots = node.alloc.reserve(0, 5, 0).unwrap();
    let run = node.alloc.claim(&mut r, 1, None).unwrap();
    assert!(node.alloc.leave().unwrap(), "nothing is closed");
    c.close_added(true);
    assert!(!node.alloc.leave().unwrap(), "what is claimed will be used");
    assert_eq!(node.open_windows(), 1, "nothing is taken for it");
    drop(run);
    assert!(node.alloc.leave().unwrap());
    assert_eq!(node.alloc.reserved(), (9, 5, 0));
    let in_added = |block: BlockNo| added.contains(&c.volume.rgrp_of(block).unwrap());
    assert!(!in_added(node.alloc.claim(&mut r, 1, None).unwrap().start));
    let (slot, guard) = node.alloc.claim_dinode(&mut slots).unwrap();
    assert!(!in_added(slot));
    drop(guard);
    node.alloc.unclaim_dinode(slot);
    let left = added.clone().map(|index| node.alloc.look_at(index).unwrap());
    assert!(left.into_iter().all(|found| (found.data, found.meta) == (0, 0)));
    drop((r, slots));
    // As long as there is no room elsewhere it stays where it is, and may be used there.
    c.close_added(false);
    node.alloc.shrink().unwrap();
    inner.refill.lock().first.current = added.start;
    let mut r = node.alloc.reserve(10, 0, 0).unwrap();
    node.fill(&c, 0);
    c.close_added(true);
    assert!(!node.alloc.leave().unwrap());
    assert!(in_added(node.alloc.claim(&mut r, 10, None).unwrap().start));
    drop(r);
    node.leave();
}

#[test]
fn what_is_to_be_emptied_counts_as_none_and_is_counted_now_and_then() {
    let c = Cluster::grown(64);
    let node = c.node(0, 1);
    let inner = &node.alloc.inner;
    let added = c.volume.groups.of_part(1);
    // Slots that are free are there, too.
    inner.refill.lock().first.current = added.start;
    let kept = node.alloc.reserve(10, 0, 0).unwrap();
    assert!(inner.carve(&mut inner.refill.lock(), 0, (true, false)).unwrap());
    drop(kept);
    node.leave();
    let node = c.node(0, 2);
    let inner = &node.alloc.inner;
    let open = node.alloc.totals();
    c.close_added(true);
    let start = c.volume.group_shape(added.start).unwrap().first_block;
    let blocks: u64 = added.map(|index| c.volume.group_shape(index).unwrap().block_count).sum();
    let told = |closed: closed_space::ClosedSpace| (closed.blocks, closed.free, closed.meta);
    assert_eq!(told(inner.last_closed_space()), (0, 0, 0), "it was not looked at");
    let expected = (blocks, blocks - 64, 64);
    assert_eq!(told(inner.closed_space()), expected);
    let now = node.alloc.totals();
    assert_eq!((open.blocks - now.blocks, open.free - now.free), (blocks, blocks - 64));
    assert_eq!(open.files_free - now.files_free, blocks);
    // What was found holds for a while, and as long as no part comes, closes or opens.
    let noted = |age: u64, version: (u64, u64)| {
        let since = Instant::now().checked_sub(Duration::from_secs(age)).unwrap();
        let noted = closed_space::ClosedSpace { since, version, blocks: 5, free: 3, meta: 1 };
        *inner.closed.lock() = Some(noted);
    };
    let version = c.volume.groups.version();
    noted(1, version);
    assert_eq!([inner.closed_space(), inner.last_closed_space()].map(told), [(5, 3, 1); 2]);
    noted(3, version);
    assert_eq!([inner.last_closed_space(), inner.closed_space()].map(told), [(5, 3, 1), expected]);
    noted(1, (version.0, 0));
    assert_eq!([inner.last_closed_space(), inner.closed_space()].map(told), [(0, 0, 0), expected]);
    c.close_added(false);
    assert_eq!(told(inner.closed_space()), (0, 0, 0));
    // Nothing is discarded there.
    node.alloc.remember_freed();
    let discarded = |close| {
        c.close_added(close);
        inner.note_freed(start, 10);
        node.alloc.discard_freed(&|| false).unwrap()
    };
    let bytes = 10 << c.volume.geo.block_size.shift();
    assert_eq!([true, false].map(discarded), [0, bytes]);
    node.leave();
}

#[test]
fn free_slots_where_the_file_system_began_are_used_and_those_of_what_was_added_are_not() {
    let c = Cluster::grown(64);
    let node = c.node(0, 1);
    // The root's chunk has free slots; another stands in what was added.
    node.alloc.inner.refill.lock().first.current = c.volume.groups.of_part(1).start;
    drop(node.alloc.reserve(10, 0, 0).unwrap());
    assert!(node.alloc.inner.carve(&mut node.alloc.inner.refill.lock(), 0, (true, false)).unwrap());
    node.leave();
    let node = c.node(0, 2);
    let later = Instant::now() + Duration::from_hours(1);
    let short = Counters { free: 100, inodes: 1, meta: 63 + 64 };
    *node.alloc.inner.counters.lock() = (later, short);
    let create = |n: usize| {
        let slots = (0..n).map(|_| c.volume.rgrp_of(node.create().unwrap()).unwrap());
        assert!(slots.filter(|index| c.volume.groups.is_added(*index)).count() == 0);
        node.alloc.deltas().free
    };
    assert_eq!([create(63), create(1)], [0, -64]);
    node.leave();
}

#[test]
fn a_group_is_looked_at_as_it_is_in_place_and_names_whose_metadata_it_has() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let slots = [(); 3].map(|()| node.create().unwrap());
    let index = c.volume.rgrp_of(slots[0]).unwrap();
    assert!(slots.iter().all(|slot| c.volume.rgrp_of(*slot) == Some(index)));
    // One more of the first inode.
    let owner = LockNo::from(slots[0]);
    let mut r = node.alloc.reserve(0, 1, 0).unwrap();
    let mut tx = node.meta.begin().unwrap();
    let slot = node.alloc.take_slot(&mut tx, &mut r).unwrap();
    tx.create(slot, owner, MetaKind::ExtentLeaf, |_| {}).unwrap();
    drop(tx);
    slots.iter().for_each(|slot| node.meta.sync_owner(LockNo::from(*slot)).unwrap());
    let owners = |most| {
        let owners = node.alloc.owners_in(index, most).unwrap();
        owners.into_iter().map(|ino| BlockNo(ino.get())).collect::<Vec<_>>()
    };
    let mut all = owners(100);
    assert_eq!(all[..2], owners(2));
    all.sort_unstable();
    assert_eq!(all, slots, "slots that are free in a window have no owner");
    // What is known of the group is in place.
    let blocks = c.volume.group_shape(index).unwrap().block_count;
    let found = node.alloc.look_at_last(index).unwrap();
    assert_eq!(found, node.alloc.look_at(index).unwrap());
    assert_eq!(found.data + found.meta + found.free + found.free_meta, blocks);
    let head = c.volume.rgrp(index);
    let (body, ..) = c.volume.read_body(head).unwrap();
    let shape = c.volume.group_shape(index).unwrap();
    let raw = group::check_header(head, index, &shape, &body).unwrap();
    assert_eq!((raw.free_blocks.get(), raw.free_meta.get()), (found.free, found.free_meta));
    let room = node.alloc.totals().free;
    node.alloc.shrink().unwrap();
    assert_eq!(node.alloc.room().unwrap(), room);
    node.leave();
    let c = Cluster::apart("64K");
    let data = c.volume.groups.numbers(false)[0];
    assert!(c.node(0, 1).alloc.owners_in(data, 10).unwrap().is_empty());
}

#[test]
fn where_no_chunk_fits_half_of_one_becomes_slots() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        let node = c.node(0, 1);
        let inner = &node.alloc.inner;
        drop(node.alloc.reserve(10, 0, 0).unwrap());
        let had = inner.state.lock().data_free();
        assert!(inner.carve(&mut inner.refill.lock(), 0, (false, false)).unwrap());
        let state = inner.state.lock();
        let blocks = 32 * c.volume.geo.slot_blocks();
        assert_eq!((state.slots_free(), had - state.data_free()), (32, blocks));
        drop(state);
        node.leave();
    }
}
