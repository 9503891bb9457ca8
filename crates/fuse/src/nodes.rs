//! What the kernel knows: which inodes it holds, and how each is open.
//!
//! The kernel caches attributes for as long as this node holds the inode's lock, and drops them
//! when told. A drop can pass the answer that fills the cache on its way, in two ways:
//!
//! * The inode was dropped after the file system computed the attributes and before the answer
//!   left. Every drop advances [`Nodes::invalidations`] first; an answer whose [`Stamp`] is older
//!   is sent as already out of date.
//! * The answer has left, but the kernel has not yet made its inode, so there is nothing to drop
//!   and it says so. [`Nodes::known`] tells such a case (an entry was handed out and not forgotten)
//!   from an inode that the kernel really does not have; the drop is repeated until it lands.
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
    /// Open files.
    opens: u32,
    /// Of those, the ones that read through the page cache.
    cached: u32,
    /// A file past the page cache is mapped, so that there are pages all the same.
    mapped: bool,
    /// Drops for other nodes' sake, each within [`PULL_PAUSE`] of the one before.
    pulls: u8,
    /// The last of them, in milliseconds since [`Nodes::origin`], wrapping.
    pulled: u32,
}

/// After so many drops in a row ...
const PULLS_MANY: u8 = 4;
/// ... with no longer pause than this between them, a node is contested.
const PULL_PAUSE: Duration = Duration::from_secs(1);

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<u64, Node, BuildHasherDefault<NumberHasher>>>;

/// All of them.
#[derive(Debug)]
pub struct Nodes {
    shards: [Shard; SHARDS],
    invalidations: AtomicU64,
    origin: Instant,
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
    /// An entry for `node` is about to be handed out. Returns whether attributes computed since
    /// `stamp` may be cached.
    pub fn entered(&self, node: u64, stamp: Stamp) -> bool {
        self.with(node, |n| n.lookups = n.lookups.saturating_add(1));
        self.stamp() == stamp
    }
    /// The kernel gave back `count` entries, or never got them.
    pub fn forgot(&self, node: u64, count: u64) {
        self.with(node, |n| n.lookups = n.lookups.saturating_sub(count));
    }
    /// A drop of `node` begins. Returns whether the kernel can know it.
    pub fn invalidating(&self, node: u64) -> bool {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        self.known(node)
    }
    fn millis(&self, now: Instant) -> u32 {
        let all = now.saturating_duration_since(self.origin).as_millis();
        u32::try_from(all & u128::from(u32::MAX)).unwrap_or(0)
    }
    /// What the kernel has of `node` is dropped because another node wants it.
    pub fn pulled(&self, node: u64, now: Instant) {
        let now = self.millis(now);
        self.with(node, |n| {
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
            n.mapped &= n.opens > 0;
        });
    }
    /// The kernel fills pages through an open file that reads and writes past its page cache:
    /// somebody mapped it.
    pub fn filling(&self, node: u64) {
        self.with(node, |n| n.mapped |= n.opens > 0);
    }
    /// Whether a write past the page cache can leave older bytes there: pages may have been
    /// filled while it was under way.
    pub fn mixed(&self, node: u64) -> bool {
        self.with(node, |n| n.cached > 0 || n.mapped)
    }
    /// Inodes known, for status displays.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

fn soon(before: u32, now: u32) -> bool {
    u128::from(now.wrapping_sub(before)) <= PULL_PAUSE.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contested_is_what_others_pull_at_again_and_again() {
        let nodes = Nodes::default();
        nodes.entered(5, nodes.stamp());
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
    fn an_answer_older_than_a_drop_may_not_be_cached() {
        let nodes = Nodes::default();
        let stamp = nodes.stamp();
        assert!(!nodes.invalidating(7), "nothing handed out yet");
        assert!(!nodes.entered(7, stamp));
        assert!(nodes.entered(7, nodes.stamp()));
        assert!(nodes.invalidating(7));
    }

    #[test]
    fn forgotten_inodes_take_no_memory() {
        let nodes = Nodes::default();
        for node in 2..1000 {
            nodes.entered(node, nodes.stamp());
            nodes.entered(node, nodes.stamp());
        }
        assert_eq!(nodes.len(), 998);
        for node in 2..1000 {
            nodes.forgot(node, 1);
            assert!(nodes.known(node));
            nodes.forgot(node, 1);
            assert!(!nodes.known(node));
        }
        assert_eq!(nodes.len(), 0);
        assert!(nodes.known(crate::abi::ROOT_ID));
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
