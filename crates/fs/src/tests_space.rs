//! The last free blocks: whatever `df` shows can be had, by whichever node asks, and comes back.

#![allow(clippy::large_stack_arrays, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::InodeNo;

use crate::attr::{Cred, Fh, WriteFlags};
use crate::test_pool::TestPool;
use crate::test_volume::Rng;
use crate::{Error, Fs};

const O_RDWR: i32 = 2;
const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Between two looks at what comes about by itself.
const LOOK: Duration = Duration::from_millis(5);

fn available(fs: &Fs) -> u64 {
    fs.statfs().unwrap().available
}
fn create(fs: &Fs, name: &str) -> (InodeNo, Fh) {
    let (attr, fh) =
        fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default()).unwrap();
    (attr.ino, fh)
}
fn remove(fs: &Fs, name: &str) {
    fs.unlink(fs.root(), name.as_bytes()).unwrap();
}
/// Writes blocks from `from` until `blocks` are written or there is no space: how many.
fn append(fs: &Fs, fh: Fh, from: u64, blocks: u64) -> u64 {
    let data = [7; 16 * BLOCK as usize];
    let mut done = 0;
    while done < blocks {
        let n = usize::try_from((blocks - done).min(16) * BLOCK).unwrap();
        match fs.write(fh, (from + done) * BLOCK, &data[..n], WriteFlags::default()) {
            Ok(n) => done += n as u64 / BLOCK,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    done
}
/// Fills the pool with small files and removes every other one.
fn fragment(fs: &Fs) {
    let mut rng = Rng(1);
    let mut names = Vec::new();
    for n in 0.. {
        let name = format!("small{n}");
        let made = fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default());
        let Ok((_, fh)) = made else { break };
        let blocks = 1 + rng.below(12);
        let done = append(fs, fh, 0, blocks);
        fs.release(fh).unwrap();
        names.push(name);
        if done < blocks {
            break;
        }
    }
    assert!(names.len() > 100);
    for name in names.iter().step_by(2) {
        remove(fs, name);
    }
    fs.sync().unwrap();
}
/// How often it was looked, a pause before each time, until `f` held.
fn until(what: &str, mut f: impl FnMut() -> bool) -> u32 {
    let (begin, mut looks) = (Instant::now(), 0);
    while !f() {
        assert!(begin.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(LOOK);
        looks += 1;
    }
    looks
}

/// One file gets all that is available, on a node that is alone.
fn one_node(copies: u16, fragmented: bool) {
    let pool = TestPool::new(copies, 96, 4);
    let fs = pool.mount();
    if fragmented {
        fragment(&fs);
    }
    let (_, fh) = create(&fs, "all");
    let avail = available(&fs);
    assert!(avail > 1000, "{avail}");
    fs.fallocate(fh, 0, 0, avail * BLOCK).unwrap();
    assert!(fs.statfs().unwrap().free < avail / 50 + 200, "df had kept much back");
    fs.unmount().unwrap();
    pool.check(false);
}

#[test]
fn one_node_can_allocate_what_df_calls_available() {
    one_node(1, false);
    one_node(2, false);
}

#[test]
fn one_node_can_allocate_what_df_calls_available_in_pieces() {
    one_node(1, true);
}

/// What another node keeps in its windows, idle or while it writes, is to be had too.
fn two_nodes(copies: u16, busy: bool) {
    const TAKES: u64 = 2 * MIB / BLOCK;
    let pool = TestPool::new(copies, 96, 4);
    let (one, two) = (pool.mount(), pool.mount());
    let (_, fh) = create(&one, "all");
    let (_, other) = create(&two, "other");
    assert_eq!(append(&two, other, 0, 100), 100);
    two.fsync(other, false).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let avail = available(&one);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if busy {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (_, fh) = create(&two, "busy");
                    let n = append(&two, fh, 0, TAKES / 2);
                    two.release(fh).unwrap();
                    remove(&two, "busy");
                    assert_eq!(n, TAKES / 2, "who was there first has its space");
                }
            });
            std::thread::sleep(Duration::from_millis(300));
        }
        let want = if busy { avail - TAKES } else { avail };
        let begin = Instant::now();
        let done = one.fallocate(fh, 0, 0, want * BLOCK);
        let took = begin.elapsed();
        stop.store(true, Ordering::Relaxed);
        eprintln!("{copies} copies, busy {busy}: {want} blocks in {took:?}");
        done.unwrap();
    });
    two.unmount().unwrap();
    one.unmount().unwrap();
    pool.check(false);
}

#[test]
fn a_node_gets_what_an_idle_one_has_in_its_windows() {
    two_nodes(1, false);
    two_nodes(2, false);
}

#[test]
fn a_node_gets_what_a_busy_one_has_in_its_windows() {
    two_nodes(1, true);
    two_nodes(2, true);
}

/// Writers of two nodes that fill the pool together get all of it, each its part.
#[test]
fn two_nodes_that_fill_a_pool_together_leave_nothing() {
    const PART: u64 = 200;
    let pool = TestPool::new(1, 96, 4);
    let nodes = [pool.mount(), pool.mount()];
    let handles = ["f0", "f1", "f2", "f3"].map(|name| create(&nodes[0], name));
    std::thread::sleep(Duration::from_secs(1));
    let avail = available(&nodes[0]);
    // All begin before any goes on: how the scheduler treats them decides nothing.
    let begun = Barrier::new(handles.len());
    let begin = Instant::now();
    let got = std::thread::scope(|scope| {
        let fill = |n: usize| {
            let (fs, begun) = (&nodes[n % 2], &begun);
            let fh = fs.open(handles[n].0, O_RDWR).unwrap();
            scope.spawn(move || {
                let first = append(fs, fh, 0, PART);
                begun.wait();
                first + append(fs, fh, first, u64::MAX)
            })
        };
        [fill(0), fill(1), fill(2), fill(3)].map(|t| t.join().unwrap())
    });
    let exchanges = nodes.iter().map(|fs| fs.core().locks.stats().demotions).sum::<u64>();
    eprintln!("{got:?} of {avail} in {:?}, {exchanges} demotions", begin.elapsed());
    assert!(got.iter().sum::<u64>() >= avail, "{got:?} of {avail}");
    assert!(got.iter().all(|n| *n >= PART), "each got on: {got:?}");
    for fs in &nodes {
        fs.sync().unwrap();
    }
    nodes.iter().for_each(|fs| fs.unmount().unwrap());
    pool.check(false);
}

/// What one node has just removed is there for the other at once.
#[test]
fn what_another_node_has_removed_is_there_at_once() {
    let pool = TestPool::new(1, 64, 4);
    let (one, two) = (pool.mount(), pool.mount());
    let (_, a) = create(&one, "a");
    let (_, b) = create(&two, "b");
    assert!(append(&two, b, 0, 2000) == 2000);
    two.release(b).unwrap();
    two.sync().unwrap();
    let full = append(&one, a, 0, u64::MAX);
    for round in 0..5 {
        remove(&two, "b");
        let more = append(&one, a, full, 1900);
        assert_eq!(more, 1900, "round {round}");
        one.setattr_size("a", full);
        let (_, b) = create(&two, "b");
        assert_eq!(append(&two, b, 0, 1900), 1900, "round {round}");
        two.release(b).unwrap();
    }
    one.unmount().unwrap();
    two.unmount().unwrap();
    pool.check(false);
}

impl Fs {
    fn setattr_size(&self, name: &str, blocks: u64) {
        let ino = self.lookup(self.root(), name.as_bytes()).unwrap().ino;
        let set = crate::attr::SetAttr { size: Some(blocks * BLOCK), ..Default::default() };
        self.setattr(ino, &set, None).unwrap();
    }
}

/// The nodes agree on what is free soon after the last write, and with what is then allocated.
#[test]
fn df_of_two_nodes_agrees_within_a_second() {
    let pool = TestPool::new(1, 96, 4);
    let (one, two) = (pool.mount(), pool.mount());
    let mut took = Vec::new();
    let mut furthest = 0;
    for round in 0..6 {
        let (_, fh) = create(&one, &format!("f{round}"));
        append(&one, fh, 0, 1000);
        one.release(fh).unwrap();
        if round % 2 == 1 {
            remove(&one, &format!("f{}", round - 1));
        }
        let free = |fs: &Fs| fs.statfs().unwrap().free;
        furthest = furthest.max(free(&one).abs_diff(free(&two)));
        took.push(until("df agrees", || free(&one) == free(&two)));
        // It stays so, also when what is dirty is written.
        let before = free(&one);
        one.sync().unwrap();
        let after = free(&one);
        assert!(
            before.abs_diff(after) <= 80,
            "{before} before the data was written, {after} after"
        );
    }
    took.sort_unstable();
    eprintln!("df differed by {furthest} blocks, for so many looks: {took:?}");
    // On a machine that is busy with other things a beat may be late, and so is each look.
    assert!(took[took.len() / 2] * LOOK < Duration::from_secs(1), "{took:?}");
    one.unmount().unwrap();
    two.unmount().unwrap();
}

/// Fills the pool and empties it by turns, with all that makes and gives up space: nothing is lost.
fn alternate(nodes: usize) {
    let pool = TestPool::new(1, 64, 4);
    let all: Vec<Fs> = (0..nodes).map(|_| pool.mount()).collect();
    let mut start = None;
    for round in 0..8 {
        std::thread::scope(|scope| {
            for (n, fs) in all.iter().enumerate() {
                scope.spawn(move || one_round(fs, n as u64, round));
            }
        });
        for fs in &all {
            fs.sync().unwrap();
            fs.core().alloc.shrink().unwrap();
        }
        let (used, free, slots) = in_groups(&all[0]);
        eprintln!("{nodes} nodes, round {round}: {used} blocks used, {free} free, {slots} slots");
        // The root directory keeps the blocks that it has grown by, and there is less for it to grow.
        let (first, most) = *start.get_or_insert((used, slots + free / 8));
        assert!(used <= first + 8, "{first} blocks used after the first round, {used} now");
        assert!(slots <= most, "{most} slots unused at most, {slots} now");
    }
    std::thread::sleep(Duration::from_secs(1));
    let counted = all[0].statfs().unwrap().free;
    all.iter().for_each(|fs| fs.unmount().unwrap());
    pool.check(false);
    let again = pool.mount();
    assert_eq!(again.statfs().unwrap().free, counted);
    again.unmount().unwrap();
}

/// Of all groups: blocks used, free, and slots of metadata that are free. No windows are out.
fn in_groups(fs: &Fs) -> (u64, u64, u64) {
    let core = fs.core();
    let (mut used, mut free, mut all) = (0, 0, 0);
    for index in 0..core.volume.groups.count() {
        let found = core.alloc.look_at(index).unwrap();
        used += found.data + found.meta;
        free += found.free;
        all += core.volume.group_shape(index).unwrap().block_count;
    }
    (used, free, all - used - free)
}

/// Creates, preallocates, writes, removes until there is no space, then removes all.
fn one_round(fs: &Fs, node: u64, round: u64) {
    let mut rng = Rng(node << 32 | round);
    let mut names: Vec<String> = Vec::new();
    let mut full = 0;
    for n in 0_u64.. {
        let name = format!("n{node}-{n}");
        match fs.create(fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default()) {
            Ok((_, fh)) => {
                let (ahead, blocks) = (1 + rng.below(300), 1 + rng.below(200));
                match fs.fallocate(fh, 0, 0, ahead * BLOCK) {
                    Ok(()) => {}
                    Err(Error::NoSpace) => full += 1,
                    Err(e) => panic!("{e}"),
                }
                full += u64::from(append(fs, fh, rng.below(20), blocks) < blocks);
                fs.release(fh).unwrap();
                names.push(name);
            }
            Err(Error::NoSpace) => full += 1,
            Err(e) => panic!("{e}"),
        }
        if !names.is_empty() && rng.below(4) == 0 {
            let i = usize::try_from(rng.below(names.len() as u64)).unwrap();
            remove(fs, &names.swap_remove(i));
        }
        if full >= 6 {
            break;
        }
    }
    for name in names {
        remove(fs, &name);
    }
}

#[test]
fn filling_and_emptying_a_pool_leaks_nothing() {
    alternate(1);
}

#[test]
fn two_nodes_that_fill_and_empty_a_pool_leak_nothing() {
    alternate(2);
}
