//! One bucket: the locks of this node's programs, kept in memory, and what stands on the devices.
//!
//! ```text
//!             cluster lock held                            not held
//!  mine       exact; goes to the devices when an           exact; the devices say what was so
//!             exclusive hold ends ([`Bucket::store`])      when the hold ended
//!  seen       as on the devices, other nodes' entries      unknown
//!             among it
//! ```
//! Nothing is written while one node alone uses a bucket: if it dies, its own locks die with it, and
//! the other nodes' entries stand where they stood.
//!
//! Invariants: what a node holds stands on the devices whenever another node can look; there is room
//! for it before it is granted, so [`Bucket::store`] allocates nothing. If there is no space for what
//! an unlock splits, one entry stands for the pieces, until there is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, InodeNo, LockNo};
use braid_lock::{Guard, Local, Me, Mode};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::chain::{self, Block, Entry};
use super::circle::{Waiting, waits_for, would_close};
use super::table::{Growth, Lock, Owner, Table};
use super::users::Users;
use super::waits::{Ended, LockDone, Outcome, Wait, Waits};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::meta::Tx;

/// Most blocks in a bucket: longer means a circle.
pub(crate) const BLOCKS_MAX: usize = 1 << 16;
/// Blocks that one transaction changes.
const TX_BLOCKS: usize = 16;

/// A bucket of this node.
#[derive(Debug)]
pub(super) struct Bucket {
    pub lock: LockNo,
    state: Mutex<State>,
    /// The thread that looks at locks of other nodes is called.
    pub called: Condvar,
}

/// What is known of a bucket. Grants and unlocks need the cluster lock, exclusive; the end of a
/// wait, and of an owner, does not.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Locks held by programs of this node.
    pub mine: Table,
    /// Users to whom they count.
    pub uids: HashMap<(InodeNo, Owner), u32>,
    pub waits: Waits,
    /// The latest place among the requests that was given out here.
    order: u64,
    /// The bucket on the devices. `None`: the cluster lock was given up since.
    pub seen: Option<Seen>,
    /// What stands on the devices may differ from what is here.
    pub changed: bool,
    /// See [`super::poll`].
    pub poll: super::poll::Need,
}

/// What became of a wait.
pub(super) enum Served {
    /// Something is still in the way.
    Waits,
    /// It is over.
    Ended(Ended),
    /// More entries are needed than there is room for.
    NeedsRoom,
}

/// A bucket as it was read, or written.
#[derive(Debug, Default)]
pub(super) struct Seen {
    blocks: Vec<(BlockNo, Block)>,
    /// Locks of other nodes that lived when this was last looked at.
    pub others: Table,
    /// And what these wait for: of fcntl locks, and all, in order.
    pub waiting: Waiting,
    queue: BTreeMap<(InodeNo, u64, Owner), Lock>,
    others_len: usize,
}

impl Seen {
    fn new(blocks: Vec<(BlockNo, Block)>) -> Self {
        Self { blocks, ..Self::default() }
    }
    /// Forgets other nodes that are dead.
    fn judge(&mut self, core: &Core) {
        let mut alive = Verdicts::new(core);
        (self.others, self.waiting, self.queue, self.others_len) = Default::default();
        for entry in self.blocks.iter().flat_map(|(_, block)| &block.entries) {
            if entry.lock.owner.node == core.me || !alive.of(entry) {
                continue;
            }
            self.others_len += 1;
            let lock = entry.lock;
            if entry.order == 0 {
                self.others.insert(lock);
                continue;
            }
            self.queue.insert((lock.ino, entry.order, lock.owner), lock);
            if !lock.owner.flock {
                self.waiting.add(lock);
            }
        }
    }
    /// Requests made before `order` for locks that cannot be had beside `want`.
    fn before<'a>(&'a self, want: &'a Lock, order: u64) -> impl Iterator<Item = &'a Lock> {
        let range = (want.ino, 0, Owner::LEAST)..(want.ino, order, Owner::LEAST);
        self.queue.range(range).map(|(_, lock)| lock).filter(|lock| lock.excludes(want))
    }
    /// The latest place among the requests.
    fn last_order(&self) -> u64 {
        self.queue.keys().map(|key| key.1).max().unwrap_or(0)
    }
}

/// Which nodes are alive, asked once each.
struct Verdicts<'a> {
    core: &'a Core,
    known: BTreeMap<Me, bool>,
}

impl<'a> Verdicts<'a> {
    fn new(core: &'a Core) -> Self {
        Self { core, known: BTreeMap::new() }
    }
    fn of(&mut self, entry: &Entry) -> bool {
        let node = entry.lock.owner.node;
        *self.known.entry(node).or_insert_with(|| self.core.is_live(node))
    }
}

impl State {
    /// Entries that this node needs on the devices.
    fn needed(&self) -> usize {
        self.mine.len() + self.waits.len()
    }
    fn entries(&self) -> BTreeSet<Entry> {
        let held = self.mine.iter().map(|lock| Entry { order: 0, lock });
        let waits = self.waits.iter().map(|(key, w)| Entry { order: key.1, lock: w.lock });
        held.chain(waits).collect()
    }
    /// Entries that find room on the devices beyond these.
    fn room(&self, capacity: usize) -> Growth {
        let Some(seen) = &self.seen else { return 0 };
        let free = (seen.blocks.len() * capacity).checked_sub(seen.others_len + self.needed());
        Growth::try_from(free.unwrap_or(0)).unwrap_or(Growth::MAX)
    }
    /// Grants a lock that nothing stands in the way of, if that takes no more entries than `room`.
    pub fn grant(&mut self, users: &Users, lock: &Lock, uid: u32, room: Growth) -> bool {
        let Some(growth) = self.mine.change(lock, Some(lock.exclusive), room) else { return false };
        users.count(*self.uids.entry((lock.ino, lock.owner)).or_insert(uid), growth);
        self.changed = true;
        true
    }
    /// Takes a range off its owner.
    pub fn take(&mut self, users: &Users, lock: &Lock) {
        let key = (lock.ino, lock.owner);
        let growth = self.mine.change(lock, None, Growth::MAX).unwrap_or(0);
        users.count(self.uids.get(&key).copied().unwrap_or(0), growth);
        if !self.mine.has(lock.ino, lock.owner) {
            self.uids.remove(&key);
        }
        self.changed = true;
    }
    /// What stands in the way of a request at this place among the others.
    pub fn outcome(&self, lock: &Lock, order: u64) -> Outcome {
        let Some(seen) = &self.seen else { return Outcome::Far };
        if self.mine.excludes(lock) {
            return Outcome::Near;
        }
        if seen.others.excludes(lock) {
            return Outcome::Far;
        }
        // Who waits for the one who asks cannot be served before him.
        let held = [&self.mine, &seen.others];
        let waiting = [&self.waits.waiting, &seen.waiting];
        let holds = self.mine.has(lock.ino, lock.owner);
        let ahead = |w: &&Lock| !holds || !waits_for(&held, &waiting, w, lock.owner);
        let mut before = self.waits.before(lock, order).chain(seen.before(lock, order));
        if before.any(|w| ahead(&w)) { Outcome::NotYet } else { Outcome::Free }
    }
    /// Records a wait, behind all others. Returns its place.
    pub fn wait(&mut self, whose: (Lock, u32), done: LockDone) -> u64 {
        let others = self.seen.as_ref().map_or(0, Seen::last_order);
        self.order = self.order.max(others) + 1;
        let (order, lock) = (self.order, whose.0);
        self.waits.add(order, whose, done);
        self.changed = true;
        self.note((lock.ino, order));
        order
    }
    /// Notes what stands in the way of a wait. Returns whether it can be granted.
    fn note(&mut self, key: (InodeNo, u64)) -> bool {
        let Some(lock) = self.waits.get_mut(key).map(|wait| wait.lock) else { return false };
        let outcome = self.outcome(&lock, key.1);
        let Some(wait) = self.waits.get_mut(key) else { return false };
        let before = wait.is_watched();
        let free = wait.is_free(outcome);
        self.poll.far |= wait.is_watched();
        self.poll.news |= wait.is_watched() && !before;
        free
    }
    /// Grants a wait, if nothing stands in its way. `last`: there is no more room to be had.
    pub fn serve(
        &mut self,
        users: &Users,
        key: (InodeNo, u64),
        room: Growth,
        last: bool,
    ) -> Served {
        if !self.note(key) {
            return Served::Waits;
        }
        let Some(wait) = self.waits.get_mut(key) else { return Served::Waits };
        let (lock, uid) = (wait.lock, wait.uid);
        let granted = self.grant(users, &lock, uid, room);
        if !granted && !last {
            return Served::NeedsRoom;
        }
        users.count(uid, -1);
        let how = if granted { Ok(()) } else { Err(Error::NoLocks) };
        self.waits.remove(key).map_or(Served::Waits, |wait| Served::Ended(wait.ends(how)))
    }
    /// All waits, which end.
    pub fn take_waits(&mut self) -> Vec<Wait> {
        self.changed = true;
        self.waits.take()
    }
    /// Forgets locks of other nodes that are dead.
    pub fn judge(&mut self, core: &Core) {
        if let Some(seen) = &mut self.seen {
            seen.judge(core);
        }
    }
    /// Whether some wait can be granted. Finds out which nobody here would notice, too.
    pub fn any_free(&mut self) -> bool {
        self.poll.far = false;
        let free = self.waits.keys().into_iter().filter(|key| self.note(*key)).count();
        // Those were called for, or this is their thread.
        self.poll.news = false;
        free > 0
    }
    /// Whether waiting for `lock` would close a circle within this bucket.
    pub fn would_close_circle(&self, lock: &Lock) -> bool {
        let (mine, waiting) = (&self.mine, &self.waits.waiting);
        match &self.seen {
            Some(seen) => would_close(&[mine, &seen.others], &[waiting, &seen.waiting], lock),
            None => would_close(&[mine], &[waiting], lock),
        }
    }
    /// Where this node's entries go. `None`: what is there is what there is to be.
    fn placed(&mut self, core: &Core, capacity: usize) -> Option<Vec<(BlockNo, Block)>> {
        let seen = self.seen.as_ref()?;
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let blocks: Vec<Block> = seen.blocks.iter().map(|(_, b)| b.clone()).collect();
        let alive = std::cell::RefCell::new(Verdicts::new(core));
        let keep = |e: &Entry| e.lock.owner.node != core.me && alive.borrow_mut().of(e);
        let (mut to, mut left) = chain::place(&blocks, &keep, self.entries(), capacity);
        let mut table = None;
        while left > 0 {
            // No space for all: without the waits, then with less exact locks.
            let first = table.is_none();
            let table = table.get_or_insert_with(|| self.mine.clone());
            if !first && !table.cover_one() {
                break;
            }
            let held = table.iter().map(|lock| Entry { order: 0, lock }).collect();
            (to, left) = chain::place(&blocks, &keep, held, capacity);
        }
        self.waits.recorded_all();
        let pairs = seen.blocks.iter().zip(to);
        let new = pairs.map(|((at, old), entries)| (*at, Block { next: old.next, entries }));
        let new: Vec<_> = new.collect();
        let differs = |(a, b): &(&(BlockNo, Block), &(BlockNo, Block))| a != b;
        let changes =
            seen.blocks.iter().zip(&new).filter(differs).map(|(_, b)| b.clone()).collect();
        if let Some(seen) = &mut self.seen {
            seen.blocks = new;
        }
        Some(changes)
    }
}

#[cfg(test)]
impl State {
    /// Locks held, and waited for, by all nodes.
    pub fn all(&self) -> (usize, usize) {
        let seen = self.seen.as_ref().unwrap();
        (self.mine.len() + seen.others.len(), self.waits.len() + seen.queue.len())
    }
    /// Blocks of the bucket.
    pub fn blocks(&self) -> usize {
        self.seen.as_ref().unwrap().blocks.len()
    }
}

impl Bucket {
    pub fn new(lock: LockNo) -> Self {
        Self { lock, state: Mutex::default(), called: Condvar::new() }
    }
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    /// Takes the cluster lock; what stands on the devices is then known.
    pub fn open(&self, core: &Core, mode: Mode) -> Result<Guard> {
        let local = if mode == Mode::Exclusive { Local::Exclusive } else { Local::Shared };
        let guard = core.guard(self.lock, mode, local)?;
        self.learn(core)?;
        Ok(guard)
    }
    /// The same, exclusive. `None`: it did not come in this time.
    pub fn open_within(&self, core: &Core, time: Duration) -> Result<Option<Guard>> {
        let until = Instant::now() + time;
        let vain = || Instant::now() >= until;
        core.check_alive()?;
        let (mode, local) = (Mode::Exclusive, Local::Exclusive);
        let guard = core.locks.acquire_unless(self.lock, mode, local, &vain)?;
        guard.map(|guard| self.learn(core).map(|()| guard)).transpose()
    }
    /// Reads what stands on the devices, unless that is known. The cluster lock is held.
    fn learn(&self, core: &Core) -> Result<()> {
        if self.state().seen.is_none() {
            let mut seen = Seen::new(self.read(core)?);
            seen.judge(core);
            let mut state = self.state();
            state.seen = Some(seen);
            state.changed = true;
        }
        Ok(())
    }
    fn read(&self, core: &Core) -> Result<Vec<(BlockNo, Block)>> {
        let mut blocks = Vec::new();
        let mut next = Some(BlockNo::from(self.lock));
        while let Some(at) = next {
            let bad = |what| Error::Inconsistent { block: at, what };
            if blocks.len() == BLOCKS_MAX {
                return Err(bad("chain of program locks without an end"));
            }
            let body = core.meta.read(at, self.lock, MetaKind::Plock)?;
            let block = Block::decode(&body).map_err(bad)?;
            next = block.next;
            blocks.push((at, block));
        }
        Ok(blocks)
    }
    /// The cluster lock is gone: another node is about to change the bucket. Who waits here looks at it
    /// afterwards, since that look waits for that node.
    pub fn forget(&self) {
        let mut state = self.state();
        state.seen = None;
        if state.poll.far {
            state.poll.called = true;
            self.called.notify_all();
        }
    }
    /// Brings what this node's programs hold to the metadata cache. The exclusive hold is about to
    /// end, and nobody uses it.
    ///
    /// # Errors
    /// The node must withdraw.
    pub fn store(&self, core: &Core) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        let Some(changes) = self.state().placed(core, capacity) else { return Ok(()) };
        for part in changes.chunks(TX_BLOCKS) {
            let mut tx = core.meta.begin()?;
            for (at, block) in part {
                tx.modify(*at, self.lock, MetaKind::Plock, |body| block.encode(body))?;
            }
        }
        Ok(())
    }
    /// Entries for which there is room without another block.
    pub fn room(&self, core: &Core) -> Growth {
        self.state().room(chain::capacity(core.volume.geo.body_len()))
    }
    /// Allocates blocks until so many entries more find room. The exclusive lock is held.
    ///
    /// # Errors
    /// `NoLocks`: the pool is full.
    pub fn make_room(&self, core: &Core, more: usize) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        loop {
            let last = {
                let state = self.state();
                let Some(seen) = &state.seen else { return Err(Error::NoLocks) };
                let need = seen.others_len + state.needed() + more;
                if need <= seen.blocks.len() * capacity {
                    return Ok(());
                }
                if seen.blocks.len() == BLOCKS_MAX {
                    return Err(Error::NoLocks);
                }
                seen.blocks.last().cloned()
            };
            let Some((at, mut block)) = last else { return Err(Error::NoLocks) };
            let slot = match self.add(core, (at, &mut block)) {
                Err(Error::NoSpace) => return Err(Error::NoLocks),
                slot => slot?,
            };
            if let Some(seen) = &mut self.state().seen {
                if let Some(last) = seen.blocks.last_mut() {
                    last.1 = block;
                }
                seen.blocks.push((slot, Block::default()));
            }
        }
    }
    /// Adds a block behind the last one.
    fn add(&self, core: &Core, (at, last): (BlockNo, &mut Block)) -> Result<BlockNo> {
        let mut r = core.alloc.reserve(0, 1, 0)?;
        let mut tx = core.meta.begin()?;
        let mut change = |tx: &mut Tx<'_>| {
            let slot = core.alloc.take_slot(tx, &mut r)?;
            last.next = Some(slot);
            tx.create(slot, self.lock, MetaKind::Plock, |body| Block::default().encode(body))?;
            tx.modify(at, self.lock, MetaKind::Plock, |body| last.encode(body))?;
            Ok(slot)
        };
        let done = change(&mut tx);
        drop(tx);
        if let Err(e) = &done {
            core.withdraw(e);
        }
        done
    }
    /// Frees blocks that are no longer needed. The exclusive lock is held. Half a block is kept
    /// spare, so that a program at the edge does not allocate and free in turns.
    pub fn shrink(&self, core: &Core) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        loop {
            let victim = {
                let mut state = self.state();
                let needed = state.needed();
                let Some(seen) = &mut state.seen else { return Ok(()) };
                let spare = seen.blocks.len().saturating_sub(1) * capacity;
                if seen.blocks.len() < 2 || seen.others_len + needed + capacity / 2 > spare {
                    return Ok(());
                }
                seen.judge(core);
                let mut alive = Verdicts::new(core);
                let mut foreign = |e: &Entry| e.lock.owner.node != core.me && alive.of(e);
                let mut free = |(_, b): &(BlockNo, Block)| !b.entries.iter().any(&mut foreign);
                match seen.blocks.iter().rposition(&mut free) {
                    None | Some(0) => return Ok(()),
                    Some(n) => n,
                }
            };
            self.remove(core, victim)?;
        }
    }
    /// Takes the `n`-th block out of the chain. Only entries of this node, and of dead ones, are in it.
    fn remove(&self, core: &Core, n: usize) -> Result<()> {
        let mut r = core.alloc.reserve(0, 0, 1)?;
        let (before, (at, block)) = {
            let state = self.state();
            let Some(seen) = &state.seen else { return Ok(()) };
            match (n.checked_sub(1).and_then(|n| seen.blocks.get(n)), seen.blocks.get(n)) {
                (Some(before), Some(this)) => (before.clone(), this.clone()),
                _ => return Ok(()),
            }
        };
        let (before_at, mut before) = before;
        before.next = block.next;
        let mut tx = core.meta.begin()?;
        let mut change = |tx: &mut Tx<'_>| {
            tx.modify(before_at, self.lock, MetaKind::Plock, |body| before.encode(body))?;
            tx.free(at, self.lock)?;
            core.alloc.free_slot(tx, &mut r, at, false)
        };
        let done = change(&mut tx);
        drop(tx);
        if let Err(e) = done {
            core.withdraw(&e);
            return Err(e);
        }
        let mut state = self.state();
        state.changed = true;
        if let Some(seen) = &mut state.seen {
            seen.blocks.remove(n);
            if let Some(to) = seen.blocks.get_mut(n - 1) {
                to.1 = before;
            }
        }
        Ok(())
    }
}
