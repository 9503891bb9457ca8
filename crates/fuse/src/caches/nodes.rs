//! What the kernel knows: which inodes it holds, and how each is open.
//!
//! The kernel caches attributes for as long as this node holds the inode's lock, and drops them
//! when told. A drop can pass the answer that fills the cache on its way, in two ways:
//!
//! * The inode was dropped after the file system computed the attributes and before the answer
//!   left. Every drop advances [`Nodes::invalidations`] first; an answer whose [`Stamp`] is older
//!   is sent as already out of date.
//! * The answer has left, but the kernel has not yet made its inode, so there is nothing to drop
//!   and it says so. If attributes were sent that stay valid ([`Nodes::promises`]), the drop is
//!   repeated until it lands, or until the kernel has given the entries back.
//!
//! Such a wait must be short, and must not depend on any request. So listings never promise
//! attributes that another node may change ([`Keep`]): the kernel works through a listing entry by
//! entry, and stands still at each name that another program is just looking up, which may wait for
//! another node. (Two nodes that listed a directory while each created files there waited for each
//! other so.) And where other nodes pull at a directory again and again, nothing is promised of the
//! inodes that are new to the kernel in it: a storm of creations never waits.
//!
//! Nothing is promised either with a size that the kernel may not have yet ([`Nodes::shows`]): the kernel
//! counts a file's attributes as valid a moment before it takes the size from the answer.
//!
//! Once the kernel has the inode, its own version counters order answers and drops. They do so by
//! throwing an answer away when a drop came after the question. The program that asked by `stat` has
//! its attributes all the same; but a read through the page cache that asked for the size goes on
//! with the older one. So what other nodes pull at again and again is not opened that way
//! ([`Nodes::contested`]).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Inode numbers are spread by one multiplication; nobody outside chooses them.
#[derive(Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// One inode in the kernel.
#[derive(Debug, Default, Clone, Copy)]
struct Node {
    /// Entries handed out and not forgotten.
    lookups: u64,
    /// The generation of the inode in the last of them that went out; 0: none did.
    generation: u64,
    /// When the last of them was, in milliseconds since [`Nodes::origin`], wrapping.
    entered: u32,
    /// The kernel may have its attributes, or will when it reads an answer that is being made.
    attributes: bool,
    /// Changes under way beside which attributes are read: the kernel is not to keep those.
    changes: u16,
    /// Of those, the ones with attributes that stay valid: how many ever, wrapping ...
    promised: u32,
    /// ... and of these, as many as were when a drop last landed.
    dropped: u32,
    /// Open files.
    opens: u32,
    /// Of those, the ones that read through the page cache.
    cached: u32,
    /// How many of the latter were closed, wrapping.
    cached_closes: u32,
    /// A file past the page cache is mapped, so that there are pages all the same.
    mapped: bool,
    /// Drops for other nodes' sake, each within [`PULL_PAUSE`] of the one before.
    pulls: u8,
    /// The last of them, in milliseconds since [`Nodes::origin`], wrapping.
    pulled: u32,
    /// Of a file: the size in the last answer; `None`: in none yet.
    size: Option<u64>,
    /// When an answer first had that size, after one that had another, as `pulled`; `None`: long ago.
    resized: Option<u32>,
    /// Writes under way that make a file longer past the page cache, of a file that is read through it, too.
    growing: u16,
    /// The size that the kernel has until the first of them is answered.
    size_before: u64,
    /// Of a directory: the one that the kernel has it in, if known; else 0.
    dir: u64,
}

impl Node {
    fn shows(&mut self, size: Option<u64>, now: u32) {
        let Some(size) = size else { return };
        if self.size.replace(size).is_some_and(|before| before != size) {
            self.resized = Some(now);
        }
    }
    fn may_be_cached(&mut self, now: u32) -> bool {
        self.resized = self.resized.filter(|at| within(*at, now, RESIZE_PAUSE));
        self.changes == 0 && self.growing == 0 && self.resized.is_none()
    }
}

/// After so many drops in a row ...
const PULLS_MANY: u8 = 4;
/// ... with no longer pause than this between them, a node is contested.
const PULL_PAUSE: Duration = Duration::from_secs(1);

/// Attributes are not cached for so long after the first answer with another size.
const RESIZE_PAUSE: Duration = Duration::from_secs(1);

/// A program that waits for an answer has taken it in so long after it was sent.
const SETTLED: Duration = Duration::from_millis(100);

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<u64, Node, BuildHasherDefault<NumberHasher>>>;

/// All of them.
#[derive(Debug)]
pub struct Nodes {
    shards: [Shard; SHARDS],
    invalidations: AtomicU64,
    origin: Instant,
}

/// Whether attributes in an entry may stay valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// No: the kernel asks again.
    No,
    /// If an entry for the inode was handed out before: the kernel orders answers and drops then.
    IfKnown,
    /// Yes.
    Yes,
}

/// The number of drops at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Default for Nodes {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            invalidations: AtomicU64::new(0),
            origin: Instant::now(),
        }
    }
}

impl Nodes {
    fn with<R>(&self, node: u64, f: impl FnOnce(&mut Node) -> R) -> R {
        let shard = usize::try_from(node % SHARDS as u64).unwrap_or(0);
        // In range by construction.
        let Some(shard) = self.shards.get(shard) else { return f(&mut Node::default()) };
        let mut map = shard.lock();
        let entry = map.entry(node).or_default();
        let result = f(entry);
        if entry.lookups == 0 && entry.opens == 0 {
            map.remove(&node);
        }
        result
    }
    /// Before the file system computes attributes for an entry.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.invalidations.load(Ordering::SeqCst))
    }
    /// An entry for `node`, with attributes, is about to be handed out. The inode's lock is held.
    pub fn entered(&self, node: u64, now: Instant) {
        let now = self.millis(now);
        self.with(node, |n| {
            n.lookups = n.lookups.saturating_add(1);
            n.entered = now;
            n.attributes = true;
        });
    }
    /// Attributes of an entry that was counted are about to go out, computed since `stamp`. `size`: as in
    /// [`Self::shows`]. Returns whether they may stay valid.
    pub fn promise(
        &self,
        (node, size): (u64, Option<u64>),
        stamp: Stamp,
        keep: Keep,
        now: Instant,
    ) -> bool {
        let now = self.millis(now);
        self.with(node, |n| {
            n.shows(size, now);
            let may = match keep {
                Keep::No => false,
                Keep::IfKnown => n.lookups > 1,
                Keep::Yes => true,
            };
            // Looked at under the shard's lock: a drop that comes between finds the promise.
            let promised = may && n.may_be_cached(now) && self.stamp() == stamp;
            n.promised = n.promised.wrapping_add(u32::from(promised));
            promised
        })
    }
    /// An entry with that generation of the inode is about to go out.
    pub fn shown(&self, node: u64, generation: u64) {
        self.with(node, |n| n.generation = generation);
    }
    /// The generation by which the kernel knows an inode, if it refers to one of that number.
    pub fn generation(&self, node: u64) -> Option<u64> {
        Some(self.with(node, |n| n.generation)).filter(|generation| *generation != 0)
    }
    /// An entry of directory `dir` leads to directory `node` and is about to be handed out. Returns
    /// the one that the kernel has `node` in, if that is another.
    pub fn place(&self, node: u64, dir: u64) -> Option<u64> {
        self.with(node, |n| {
            if n.dir == 0 {
                n.dir = dir;
            }
            (n.dir != dir).then_some(n.dir)
        })
    }
    /// The kernel has directory `node` in directory `dir` now.
    pub fn placed(&self, node: u64, dir: u64) {
        self.with(node, |n| n.dir = dir);
    }
    /// The kernel gave back `count` entries, or never got them. Returns whether those were all.
    pub fn forgot(&self, node: u64, count: u64) -> bool {
        self.with(node, |n| {
            let some = n.lookups > 0;
            n.lookups = n.lookups.saturating_sub(count);
            some && n.lookups == 0
        })
    }
    /// Whether there are entries that the kernel has not given back.
    pub fn referred(&self, node: u64) -> bool {
        self.with(node, |n| n.lookups > 0)
    }
    /// Whether the last entry was handed out so long ago that the kernel has made its inode.
    pub fn settled(&self, node: u64, now: Instant) -> bool {
        let now = self.millis(now);
        self.with(node, |n| u128::from(now.wrapping_sub(n.entered)) > SETTLED.as_millis())
    }
    /// Attributes of `node` are about to be read for the kernel; returns whether it may keep them.
    /// The inode's lock is not held yet: a thread that changes the inode later sees this mark.
    pub fn caching(&self, node: u64, now: Instant) -> bool {
        let now = self.millis(now);
        self.with(node, |n| {
            let keep = n.may_be_cached(now);
            // It may have others that were sent to be kept.
            n.attributes |= keep;
            keep
        })
    }
    /// Attributes are about to go out that were read after [`Self::caching`]. `size`: of a file; `None`
    /// for anything else. Returns whether they may stay valid, if that call said so too.
    ///
    /// The kernel throws an answer away if attributes were dropped after the question; the program that
    /// asked sees its size all the same. The next answer's attributes become valid before the size in it
    /// is there (`fuse_change_attributes_common`, then `i_size_write`, fs/fuse): in between another
    /// program would read the former size, although the first has seen the new one. So an answer with
    /// another size than the one before it is not to be kept, and no later one for a second: by then the
    /// kernel has the size.
    pub fn shows(&self, node: u64, size: Option<u64>, now: Instant) -> bool {
        let now = self.millis(now);
        self.with(node, |n| {
            n.shows(size, now);
            n.may_be_cached(now)
        })
    }
    /// A write is about to make a file longer, which has `size` bytes; the inode's lock is held exclusively. Until
    /// [`Self::grown`], or [`Self::pulled`], the kernel is told that size ([`Self::size_told`]).
    ///
    /// It takes the new one from the answer to the write. If it heard of it sooner, it would cut its pages there,
    /// perhaps only when the file is longer still (`fuse_change_attributes`, fs/fuse/inode.c), or show other programs
    /// the pages from before the write, with zeros at their end.
    pub fn grows(&self, node: u64, size: u64) {
        self.with(node, |n| {
            if n.growing == 0 {
                n.size_before = size;
            }
            n.growing = n.growing.saturating_add(1);
        });
    }
    /// Such a write is about to be answered.
    pub fn grown(&self, node: u64) {
        self.with(node, |n| n.growing = n.growing.saturating_sub(1));
    }
    /// The size that goes to the kernel for a file of this size.
    pub fn size_told(&self, node: u64, size: u64) -> u64 {
        self.with(node, |n| if n.growing > 0 { size.min(n.size_before) } else { size })
    }
    /// A change begins (`true`) or ends. Returns whether the kernel may know attributes.
    pub fn change(&self, node: u64, begins: bool) -> bool {
        self.with(node, |n| {
            n.changes =
                if begins { n.changes.saturating_add(1) } else { n.changes.saturating_sub(1) };
            std::mem::take(&mut n.attributes)
        })
    }
    /// What the kernel knows of the attributes of `node` is out of date. Returns whether it may know
    /// any.
    pub fn outdated(&self, node: u64) -> bool {
        self.with(node, |n| std::mem::take(&mut n.attributes))
    }
    /// A drop of `node` begins. Returns what [`Nodes::dropped`] is to be told if it lands; `None`:
    /// the kernel cannot know the node.
    pub fn invalidating(&self, node: u64) -> Option<u32> {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        self.with(node, |n| n.attributes = false);
        self.known(node).then(|| self.with(node, |n| n.promised))
    }
    /// A drop of `node` landed that began when `promised` promises had been made.
    pub fn dropped(&self, node: u64, promised: u32) {
        self.with(node, |n| n.dropped = promised);
    }
    /// Whether attributes may be under way to the kernel, or in it, that stay valid there and that no
    /// drop has reached.
    pub fn promises(&self, node: u64) -> bool {
        self.with(node, |n| n.lookups > 0 && n.promised != n.dropped)
    }
    /// Whether such attributes may still be under way: the last entry went out less than `patience` ago.
    /// An older one that the kernel does not know it has forgotten, and will say so.
    pub fn promises_under_way(&self, node: u64, now: Instant, patience: Duration) -> bool {
        let now = self.millis(now);
        let age = self.with(node, |n| u128::from(now.wrapping_sub(n.entered)));
        self.promises(node) && age <= patience.as_millis()
    }
    fn millis(&self, now: Instant) -> u32 {
        let all = now.saturating_duration_since(self.origin).as_millis();
        u32::try_from(all & u128::from(u32::MAX)).unwrap_or(0)
    }
    /// What the kernel has of `node` is dropped because another node wants it. That one may make the file longer
    /// before a write of this node is answered that does: no size is kept from the kernel any more.
    pub fn pulled(&self, node: u64, now: Instant) {
        let now = self.millis(now);
        self.with(node, |n| {
            n.size_before = u64::MAX;
            n.pulls = if soon(n.pulled, now) { n.pulls.saturating_add(1) } else { 1 };
            n.pulled = now;
        });
    }
    /// Whether other nodes pull at `node` again and again.
    pub fn contested(&self, node: u64, now: Instant) -> bool {
        let now = self.millis(now);
        self.with(node, |n| n.pulls >= PULLS_MANY && soon(n.pulled, now))
    }
    /// Whether the kernel has the inode, or will when it reads an answer already sent.
    pub fn known(&self, node: u64) -> bool {
        node == crate::abi::ROOT_ID || self.with(node, |n| n.lookups > 0 || n.opens > 0)
    }
    /// `node` is about to be open once more; `cached`: through the page cache.
    pub fn opened(&self, node: u64, cached: bool) {
        self.with(node, |n| {
            n.opens = n.opens.saturating_add(1);
            n.cached = n.cached.saturating_add(u32::from(cached));
        });
    }
    /// One of those is closed.
    pub fn closed(&self, node: u64, cached: bool) {
        self.with(node, |n| {
            n.opens = n.opens.saturating_sub(1);
            n.cached = n.cached.saturating_sub(u32::from(cached));
            n.cached_closes = n.cached_closes.wrapping_add(u32::from(cached));
            n.mapped &= n.opens > 0;
        });
    }
    /// The kernel fills pages through an open file that reads and writes past its page cache:
    /// somebody mapped it.
    pub fn filling(&self, node: u64) {
        self.with(node, |n| n.mapped |= n.opens > 0);
    }
    /// What [`Self::mixed_since`] is to be asked with.
    pub fn cached_closes(&self, node: u64) -> u32 {
        self.with(node, |n| n.cached_closes)
    }
    /// Whether a write past the page cache can leave older bytes there: pages may have been filled while
    /// it was under way, also by a program that has closed the file meanwhile. `closes`: from when it
    /// began.
    pub fn mixed_since(&self, node: u64, closes: u32) -> bool {
        self.with(node, |n| n.cached > 0 || n.mapped || n.cached_closes != closes)
    }
    /// Whether pages of an open file may be in the page cache.
    pub fn mixed(&self, node: u64) -> bool {
        self.with(node, |n| n.cached > 0 || n.mapped)
    }
    /// All that the kernel may know, those that are open first. What was computed before is not cached
    /// any more.
    pub fn all(&self) -> Vec<u64> {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        let mut open = vec![crate::abi::ROOT_ID];
        let mut others = Vec::new();
        for shard in &self.shards {
            for (number, node) in &*shard.lock() {
                let list = if node.opens > 0 { &mut open } else { &mut others };
                list.push(*number);
            }
        }
        open.append(&mut others);
        open
    }
    /// Inodes known, for status displays.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

fn soon(before: u32, now: u32) -> bool {
    within(before, now, PULL_PAUSE)
}
fn within(before: u32, now: u32, time: Duration) -> bool {
    u128::from(now.wrapping_sub(before)) <= time.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contested_is_what_others_pull_at_again_and_again() {
        let nodes = Nodes::default();
        nodes.entered(5, nodes.origin);
        let at = |seconds: f64| nodes.origin + Duration::from_secs_f64(seconds);
        for n in 0..3 {
            nodes.pulled(5, at(f64::from(n)));
        }
        assert!(!nodes.contested(5, at(2.0)), "few");
        nodes.pulled(5, at(3.0));
        assert!(nodes.contested(5, at(3.5)));
        assert!(!nodes.contested(5, at(4.5)), "over");
        nodes.pulled(5, at(6.0));
        assert!(!nodes.contested(5, at(6.0)), "begins anew");
    }

    #[test]
    fn the_kernel_hears_of_no_size_before_the_answer_to_the_write_that_makes_it() {
        let nodes = Nodes::default();
        nodes.opened(7, false);
        nodes.shows(7, Some(100), nodes.origin);
        nodes.grows(7, 100);
        assert_eq!((nodes.size_told(7, 116), nodes.size_told(7, 50)), (100, 50), "cut meanwhile");
        assert!(!nodes.caching(7, nodes.origin + RESIZE_PAUSE * 2));
        nodes.grows(7, 116);
        nodes.grown(7);
        assert_eq!(nodes.size_told(7, 132), 100, "another is under way");
        nodes.pulled(7, nodes.origin);
        assert_eq!(nodes.size_told(7, 132), 132, "another node may have written since");
        nodes.grown(7);
        nodes.grows(7, 132);
        assert_eq!(nodes.size_told(7, 148), 132);
        nodes.grown(7);
        assert_eq!(nodes.size_told(7, 148), 148);
        assert!(nodes.caching(7, nodes.origin + RESIZE_PAUSE * 2));
    }

    #[test]
    fn an_answer_older_than_a_drop_may_not_be_cached() {
        let nodes = Nodes::default();
        let stamp = nodes.stamp();
        assert_eq!(nodes.invalidating(7), None, "nothing handed out yet");
        nodes.entered(7, nodes.origin);
        assert!(!nodes.promise((7, None), stamp, Keep::Yes, Instant::now()));
        assert!(nodes.promise((7, None), nodes.stamp(), Keep::Yes, Instant::now()));
        assert!(nodes.invalidating(7).is_some());
    }

    #[test]
    fn only_promised_attributes_are_waited_for() {
        let nodes = Nodes::default();
        let entered = |node, keep| {
            nodes.entered(node, nodes.origin);
            nodes.promise((node, None), nodes.stamp(), keep, Instant::now())
        };
        assert!(!entered(7, Keep::No));
        assert!(nodes.known(7) && !nodes.promises(7), "of a listing");
        assert!(!entered(8, Keep::IfKnown));
        assert!(entered(8, Keep::IfKnown) && nodes.promises(8));
        let before = nodes.invalidating(8).unwrap();
        assert!(entered(8, Keep::Yes));
        nodes.dropped(8, before);
        assert!(nodes.promises(8), "made after the drop began");
        nodes.dropped(8, nodes.invalidating(8).unwrap());
        assert!(!nodes.promises(8));
        assert!(entered(8, Keep::Yes) && nodes.promises(8));
        nodes.opened(8, false);
        nodes.forgot(8, 4);
        assert!(nodes.known(8) && !nodes.promises(8), "given back, and not closed yet");
    }

    /// An inode that the kernel has forgotten, without a FORGET so far, delays nobody who drops it.
    #[test]
    fn attributes_that_were_sent_long_ago_are_under_way_no_more() {
        let (nodes, patience) = (Nodes::default(), Duration::from_secs(10));
        let at = |seconds: u64| nodes.origin + Duration::from_secs(seconds);
        nodes.entered(7, at(5));
        assert!(nodes.promise((7, None), nodes.stamp(), Keep::Yes, Instant::now()));
        assert!(nodes.promises_under_way(7, at(6), patience));
        assert!(nodes.promises(7) && !nodes.promises_under_way(7, at(16), patience));
        nodes.entered(7, at(17));
        assert!(nodes.promises_under_way(7, at(18), patience), "sent again");
    }

    #[test]
    fn a_change_after_attributes_were_asked_for_is_told_once() {
        let nodes = Nodes::default();
        nodes.caching(7, nodes.origin);
        assert!(!nodes.outdated(7), "the kernel does not have it");
        nodes.entered(7, nodes.origin);
        assert!(nodes.outdated(7) && !nodes.outdated(7));
        nodes.caching(7, nodes.origin);
        assert!(nodes.outdated(7));
        nodes.caching(7, nodes.origin);
        nodes.invalidating(7);
        assert!(!nodes.outdated(7), "dropped already");
        assert!(nodes.caching(7, nodes.origin) && nodes.change(7, true));
        assert!(!nodes.caching(7, nodes.origin), "not while they change");
        assert!(!nodes.change(7, false) && nodes.caching(7, nodes.origin));
    }

    #[test]
    fn attributes_are_not_kept_while_the_size_changes_again_and_again() {
        let nodes = Nodes::default();
        let at = |seconds: f64| nodes.origin + Duration::from_secs_f64(seconds);
        let shows = |size: u64, seconds: f64| {
            let keep = nodes.caching(7, at(seconds));
            nodes.shows(7, Some(size), at(seconds)) && keep
        };
        let enters = |size: u64, seconds: f64| {
            nodes.entered(7, at(seconds));
            nodes.promise((7, Some(size)), nodes.stamp(), Keep::Yes, at(seconds))
        };
        assert!(enters(10, 0.0), "the kernel makes its inode with that size");
        assert!(shows(10, 0.0) && enters(10, 0.0));
        for n in 0..5_u32 {
            let seconds = f64::from(n) / 2.0;
            assert!(!shows(11 + u64::from(n), seconds), "another");
            assert!(
                !shows(11 + u64::from(n), seconds + 0.4) && !enters(11 + u64::from(n), seconds)
            );
        }
        assert!(shows(15, 3.1) && enters(15, 3.1), "over");
        assert!(!enters(16, 3.1) && !enters(16, 3.2) && !shows(16, 3.3), "by an entry");
        assert!(nodes.shows(8, None, at(3.3)), "no file");
    }

    #[test]
    fn forgotten_inodes_take_no_memory() {
        let nodes = Nodes::default();
        for node in 2..1000 {
            nodes.entered(node, nodes.origin);
            nodes.entered(node, nodes.origin);
        }
        assert_eq!(nodes.len(), 998);
        for node in 2..1000 {
            assert!(!nodes.forgot(node, 1), "one is left");
            assert!(nodes.known(node) && nodes.referred(node));
            assert!(nodes.forgot(node, 1));
            assert!(!nodes.known(node) && !nodes.referred(node));
            assert!(!nodes.forgot(node, 1), "said once");
        }
        assert_eq!(nodes.len(), 0);
        assert!(nodes.known(crate::abi::ROOT_ID));
    }

    #[test]
    fn a_directory_is_where_the_kernel_first_heard_of_it_until_it_moves() {
        let nodes = Nodes::default();
        nodes.entered(5, nodes.origin);
        assert_eq!((nodes.place(5, 2), nodes.place(5, 2)), (None, None));
        let asked = (nodes.place(5, 3), nodes.place(5, 3));
        assert_eq!(asked, (Some(2), Some(2)), "not moved by being asked for");
        nodes.placed(5, 3);
        assert_eq!((nodes.place(5, 3), nodes.place(5, 2)), (None, Some(3)));
        nodes.forgot(5, 1);
        nodes.entered(5, nodes.origin);
        assert_eq!(nodes.place(5, 2), None, "forgotten");
    }

    #[test]
    fn mixed_use_is_seen_and_ends() {
        let nodes = Nodes::default();
        nodes.opened(5, false);
        assert!(!nodes.mixed(5));
        nodes.opened(5, true);
        assert!(nodes.mixed(5));
        nodes.closed(5, true);
        assert!(!nodes.mixed(5));
        nodes.filling(5);
        assert!(nodes.mixed(5));
        nodes.closed(5, false);
        assert!(!nodes.mixed(5));
        assert_eq!(nodes.len(), 0);
    }
}
