//! Cached bodies, by block; and which blocks an owner has.
//!
//! Lock order: a shard, then an owner shard; at most one of each at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, FormatError, Generation, LockNo};
use braid_pool::device::AlignedBuf;
use parking_lot::{Mutex, MutexGuard};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::volume::Body;

/// Shards of the cache: as many threads meet in one only by chance.
const SHARDS: usize = 64;
/// Memory of a cached body beside its bytes: entry, map, index, allocator (estimated high).
const ENTRY_OVERHEAD: u64 = 256;
/// However small a bound is asked for, this many clean bodies per shard are kept.
const CLEAN_MIN: usize = 2;

/// A block of another kind than its caller expects.
fn wrong_kind(block: BlockNo, expected: MetaKind, found: MetaKind) -> Error {
    let source =
        FormatError::WrongKind { expected: expected.name(), at: block.get(), found: found as u16 };
    Error::Damaged { block, source }
}

/// An image that is in the journal but not in its place.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub body: Body,
    /// Number of the record that holds it.
    pub sequence: u64,
}

/// A cached block. See the drawing in [`crate::meta`].
#[derive(Debug)]
pub(super) struct Entry {
    /// The lock that covers it.
    pub owner: LockNo,
    /// What it holds.
    pub kind: MetaKind,
    /// Newest image.
    pub current: Body,
    /// `current` was changed in the running transaction.
    pub running: bool,
    /// Image in the record being written now.
    pub committing: Option<Body>,
    /// Newest durable image that is not yet in place.
    pub logged: Option<Logged>,
    /// Used since the clock's hand passed.
    referenced: bool,
}

impl Entry {
    /// As it is in its place.
    pub fn clean(owner: LockNo, kind: MetaKind, current: Body) -> Self {
        Self {
            owner,
            kind,
            current,
            running: false,
            committing: None,
            logged: None,
            referenced: true,
        }
    }
    /// In place and stable.
    pub fn is_clean(&self) -> bool {
        !self.running && self.committing.is_none() && self.logged.is_none()
    }
    /// Generation of the newest image.
    pub fn generation(&self) -> Generation {
        let header = MetaHeader::read_from_prefix(&self.current);
        // A body is never shorter than its header, which was read before the body was cached.
        header.map_or(Generation(0), |(header, _)| header.generation())
    }
    /// Refuses a block of another kind, or under another lock.
    pub fn check(&self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<()> {
        if self.kind != kind {
            return Err(wrong_kind(block, kind, self.kind));
        }
        self.check_owner(block, owner)
    }
    /// Refuses a block under another lock.
    pub fn check_owner(&self, block: BlockNo, owner: LockNo) -> Result<()> {
        if self.owner == owner {
            Ok(())
        } else {
            Err(Error::Inconsistent { block, what: "owned by another lock" })
        }
    }
    /// Changes the newest image, copying it first where somebody else refers to it. Keeps the
    /// header, whatever `f` does to it, and counts its generation up at the first change in the
    /// running transaction.
    pub fn edit<R>(&mut self, block: BlockNo, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let body = Arc::make_mut(&mut self.current);
        let (mut header, _) = MetaHeader::read_from_prefix(body)
            .map_err(|_| Error::Inconsistent { block, what: "body shorter than its header" })?;
        if !self.running {
            header.generation.set(next_generation(block, header.generation())?);
        }
        header.set_kind(self.kind);
        header.owner.set(self.owner.get());
        header.crc.set(0);
        self.running = true;
        let r = f(body);
        // The size was checked when the header was read.
        let _ = header.write_to_prefix(body);
        Ok(r)
    }
    /// Replaces the content: zeros behind a header of `kind` and `owner`.
    pub fn renew(&mut self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<()> {
        self.owner = owner;
        self.kind = kind;
        self.edit(block, |body| {
            if let Some(content) = body.get_mut(MetaHeader::LEN..) {
                content.fill(0);
            }
        })
    }
}

fn next_generation(block: BlockNo, g: Generation) -> Result<u64> {
    g.get().checked_add(1).ok_or(Error::Inconsistent { block, what: "generation at its end" })
}

/// A part of the cache: a slab with a clock's hand over it.
#[derive(Debug, Default)]
pub(super) struct Shard {
    places: HashMap<BlockNo, usize>,
    slab: Vec<Option<(BlockNo, Entry)>>,
    empty: Vec<usize>,
    hand: usize,
    dirty: usize,
    clean_max: usize,
    /// Generations of free slots that only this node may use.
    pub adopted: HashMap<BlockNo, Generation>,
}

impl Shard {
    /// The entry, if it is cached.
    pub fn get(&mut self, block: BlockNo) -> Option<&Entry> {
        let (_, entry) = self.slab[*self.places.get(&block)?].as_mut()?;
        entry.referenced = true;
        Some(entry)
    }
    /// Changes an entry, if it is cached.
    pub fn change<R>(&mut self, block: BlockNo, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let (_, entry) = self.slab[*self.places.get(&block)?].as_mut()?;
        let before = entry.is_clean();
        let r = f(entry);
        match (before, entry.is_clean()) {
            (true, false) => self.dirty += 1,
            (false, true) => self.dirty -= 1,
            _ => {}
        }
        Some(r)
    }
    /// Adds a clean entry for a block that has none, and makes room.
    pub fn insert(&mut self, owners: &Owners, block: BlockNo, entry: Entry) {
        assert!(
            entry.is_clean() && !self.places.contains_key(&block),
            "block {block} cached twice"
        );
        owners.add(entry.owner, block);
        let place = self.empty.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() - 1
        });
        self.slab[place] = Some((block, entry));
        self.places.insert(block, place);
        self.trim(owners, Some(block));
    }
    /// Forgets an entry.
    pub fn remove(&mut self, owners: &Owners, block: BlockNo) {
        let Some(place) = self.places.remove(&block) else { return };
        if let Some((_, entry)) = self.slab[place].take() {
            owners.remove(entry.owner, block);
            if !entry.is_clean() {
                self.dirty -= 1;
            }
        }
        self.empty.push(place);
    }
    /// Drops clean entries that were not used lately until no more than the bound are left.
    /// `keep` stays: its caller is about to use it.
    pub fn trim(&mut self, owners: &Owners, keep: Option<BlockNo>) {
        // Two rounds: the first may only clear marks.
        let mut steps = 2 * self.slab.len();
        while self.places.len() - self.dirty > self.clean_max && steps > 0 {
            steps -= 1;
            self.hand = (self.hand + 1) % self.slab.len();
            let Some((block, entry)) = self.slab[self.hand].as_mut() else { continue };
            let block = *block;
            if !entry.is_clean() || keep == Some(block) {
                continue;
            }
            if std::mem::take(&mut entry.referenced) {
                continue;
            }
            self.remove(owners, block);
        }
    }
}

/// An owner's blocks; nearly always one.
#[derive(Debug)]
enum Blocks {
    One(BlockNo),
    Many(HashSet<BlockNo>),
}

/// Cached blocks by owner.
#[derive(Debug)]
pub(super) struct Owners {
    shards: [Mutex<HashMap<LockNo, Blocks>>; SHARDS],
}

impl Owners {
    fn shard(&self, owner: LockNo) -> MutexGuard<'_, HashMap<LockNo, Blocks>> {
        self.shards[shard_of(owner.get())].lock()
    }
    fn add(&self, owner: LockNo, block: BlockNo) {
        let mut shard = self.shard(owner);
        match shard.get_mut(&owner) {
            None => {
                shard.insert(owner, Blocks::One(block));
            }
            Some(Blocks::Many(all)) => {
                all.insert(block);
            }
            Some(one @ Blocks::One(_)) => {
                let Blocks::One(first) = *one else { return };
                if first != block {
                    *one = Blocks::Many(HashSet::from([first, block]));
                }
            }
        }
    }
    fn remove(&self, owner: LockNo, block: BlockNo) {
        let mut shard = self.shard(owner);
        let last = match shard.get_mut(&owner) {
            None => false,
            Some(Blocks::One(b)) => *b == block,
            Some(Blocks::Many(all)) => {
                all.remove(&block);
                all.is_empty()
            }
        };
        if last {
            shard.remove(&owner);
        }
    }
    /// Moves a cached block to another owner.
    pub fn transfer(&self, block: BlockNo, from: LockNo, to: LockNo) {
        if from != to {
            self.remove(from, block);
            self.add(to, block);
        }
    }
    /// The cached blocks of `owner`.
    pub fn blocks(&self, owner: LockNo) -> Vec<BlockNo> {
        match self.shard(owner).get(&owner) {
            None => Vec::new(),
            Some(Blocks::One(block)) => vec![*block],
            Some(Blocks::Many(all)) => all.iter().copied().collect(),
        }
    }
}

/// All cached bodies.
#[derive(Debug)]
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    pub owners: Owners,
}

impl Cache {
    /// Empty; at most `bytes` of clean bodies of `body_len` bytes stay, dirty ones are bounded by
    /// the journal.
    pub fn new(bytes: u64, body_len: usize) -> Self {
        let clean = bytes / (body_len as u64 + ENTRY_OVERHEAD) / SHARDS as u64;
        let clean_max = usize::try_from(clean).unwrap_or(usize::MAX).max(CLEAN_MIN);
        Self {
            shards: std::array::from_fn(|_| Mutex::new(Shard { clean_max, ..Shard::default() })),
            owners: Owners { shards: std::array::from_fn(|_| Mutex::default()) },
        }
    }
    /// The shard of `block`, locked.
    pub fn shard(&self, block: BlockNo) -> MutexGuard<'_, Shard> {
        self.shards[shard_of(block.get())].lock()
    }
    /// Cached bodies: (all, dirty ones among them).
    pub fn count(&self) -> (usize, usize) {
        self.shards
            .iter()
            .map(|s| s.lock())
            .fold((0, 0), |(all, dirty), s| (all + s.places.len(), dirty + s.dirty))
    }
}

/// Fibonacci hashing: neighbours in different shards.
fn shard_of(n: u64) -> usize {
    const { assert!(SHARDS == 64) };
    usize::try_from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58).unwrap_or(0)
}

/// A body of zeros with a header of generation `g`.
pub(super) fn blank(
    len: usize,
    block: BlockNo,
    owner: LockNo,
    kind: MetaKind,
    g: Generation,
) -> Body {
    let mut body = AlignedBuf::zeroed(len);
    let mut header = MetaHeader::new(kind, block, owner);
    header.generation.set(g.get());
    // A body is never shorter than its header: the geometry says so.
    let _ = header.write_to_prefix(&mut body);
    Arc::new(body)
}
