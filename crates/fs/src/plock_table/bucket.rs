//! One bucket: the locks of this node's programs, kept in memory, and what is on the devices.
//!
//! ```text
//!             cluster lock held                            not held
//!  mine       exact; goes to the devices when an           exact; the devices say what was so
//!             exclusive hold ends (`Bucket::store`)      when the hold ended
//!  seen       as on the devices, other nodes' entries      unknown
//!             among it
//! ```
//! Nothing is written while one node alone uses a bucket. If that node dies, its own locks die with
//! it, and the other nodes' entries are where they were.
//!
//! Invariants: what a node holds is on the devices whenever another node can look; there is room
//! for it before it is granted, so `Bucket::store` allocates nothing. If there is no space for what
//! an unlock splits, one entry stands for the pieces, until there is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use braid_format::{BlockNo, InodeNo, LockNo};
use braid_lock::Life;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::chain::{self, Block, Entry};
use super::circle::{Budget, Waiting, waits_for, would_close};
use super::table::{Growth, Lock, Owner, Table};
use super::threads::PollNeed;
use super::users::Users;
use super::waits::{Ended, LockDone, Outcome, Parting, Wait, Waits};
use crate::error::Error;

/// Most blocks in a bucket: longer means a circle.
pub(crate) const BLOCKS_MAX: usize = 1 << 16;

/// How long programs of this node may take a lock one after the other although one of another node waits for
/// it. Each change of node costs a hand-over of the bucket, so a lock that programs of several nodes want all
/// the time goes from node to node after such turns, not after each use.
pub(crate) const TURN: Duration = Duration::from_millis(1);

/// Requests of other nodes that are looked at for one that can be granted.
const TURNS_MAX: usize = 64;

/// Which nodes live: what the others left in a bucket counts for nothing.
pub(crate) trait Lives {
    /// This node, in this life.
    fn me(&self) -> Life;
    /// Whether a life may still act.
    fn is_live(&self, life: Life) -> bool;
}

/// A bucket of this node.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub lock: LockNo,
    state: Mutex<State>,
    /// The thread that looks at locks of other nodes is called.
    pub called: Condvar,
}

/// What is known of a bucket. Grants and unlocks need the cluster lock, exclusive; the end of a
/// wait, and of an owner, does not.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Locks held by programs of this node.
    pub mine: Table,
    /// Users to whom they count.
    pub uids: HashMap<(InodeNo, Owner), u32>,
    pub waits: Waits,
    /// The latest place among the requests that was given out here.
    order: u64,
    /// The bucket on the devices. `None`: the cluster lock was given up since.
    pub seen: Option<Seen>,
    /// The file, and the kind of its locks, of which this node had one in its turn, and since when.
    turn: Option<(InodeNo, bool, Instant)>,
    /// Since when locks are granted here although these requests of other nodes came before.
    passed: BTreeMap<FarKey, Instant>,
    /// Those of them whose nodes were told that it is their turn.
    told: BTreeSet<FarKey>,
    pub parting: Parting,
    /// What is on the devices may differ from what is here.
    pub changed: bool,
    /// What there is to do for the bucket's thread.
    pub poll: PollNeed,
}

/// What became of a wait.
pub(crate) enum Served {
    /// Something is still in the way.
    Waits,
    /// It is over.
    Ended(Ended),
    /// More entries are needed than there is room for.
    NeedsRoom,
}

/// A request of another node: the file, its place, whose it is.
type FarKey = (InodeNo, u64, Owner);

/// A bucket as it was read, or written.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub blocks: Vec<(BlockNo, Block)>,
    /// Locks of other nodes that lived when this was last looked at.
    pub others: Table,
    /// And what these wait for: of fcntl locks, and all, in order.
    pub waiting: Waiting,
    queue: BTreeMap<FarKey, Lock>,
    pub others_len: usize,
}

impl Seen {
    pub fn new(blocks: Vec<(BlockNo, Block)>) -> Self {
        Self { blocks, ..Self::default() }
    }
    /// Forgets other nodes that are dead.
    pub fn forget_dead(&mut self, lives: &dyn Lives) {
        let mut alive = Verdicts::new(lives);
        (self.others, self.waiting, self.queue, self.others_len) = Default::default();
        for entry in self.blocks.iter().flat_map(|(_, block)| &block.entries) {
            if entry.lock.owner.node == lives.me() || !alive.of(entry) {
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
    fn before<'a>(
        &'a self,
        want: &'a Lock,
        order: u64,
    ) -> impl Iterator<Item = (&'a FarKey, &'a Lock)> {
        let range = (want.ino, 0, Owner::LEAST)..(want.ino, order, Owner::LEAST);
        self.queue.range(range).filter(|(_, lock)| lock.excludes(want))
    }
    /// The latest place among the requests.
    fn last_order(&self) -> u64 {
        self.queue.keys().map(|key| key.1).max().unwrap_or(0)
    }
}

/// Which nodes are alive, asked once each.
pub(crate) struct Verdicts<'a> {
    lives: &'a dyn Lives,
    known: BTreeMap<Life, bool>,
}

impl<'a> Verdicts<'a> {
    pub fn new(lives: &'a dyn Lives) -> Self {
        Self { lives, known: BTreeMap::new() }
    }
    pub fn of(&mut self, entry: &Entry) -> bool {
        let node = entry.lock.owner.node;
        *self.known.entry(node).or_insert_with(|| self.lives.is_live(node))
    }
}

impl State {
    /// Entries that this node needs on the devices.
    pub fn needed(&self) -> usize {
        self.mine.len() + self.waits.len()
    }
    fn entries(&self) -> BTreeSet<Entry> {
        let held = self.mine.iter().map(|lock| Entry { order: 0, lock });
        let waits = self.waits.iter().map(|(key, w)| Entry { order: key.1, lock: w.lock });
        held.chain(waits).collect()
    }
    /// Blocks, by their places in the chain and the last first, that are not needed and have no entry of another node
    /// that lives; at most `most`. Half a block is kept spare, so that a program at the edge does not allocate and free
    /// in turns.
    pub fn superfluous(&mut self, lives: &dyn Lives, capacity: usize, most: usize) -> Vec<usize> {
        let needed = self.needed();
        let Some(seen) = &mut self.seen else { return Vec::new() };
        let excess = |seen: &Seen| {
            let used = (seen.others_len + needed + capacity / 2).div_ceil(capacity).max(1);
            seen.blocks.len().saturating_sub(used).min(most)
        };
        if excess(seen) == 0 {
            return Vec::new();
        }
        seen.forget_dead(lives);
        let mut alive = Verdicts::new(lives);
        let mut foreign = |e: &Entry| e.lock.owner.node != lives.me() && alive.of(e);
        let places = (1..seen.blocks.len()).rev();
        let free = places.filter(|n| {
            seen.blocks.get(*n).is_some_and(|(_, b)| !b.entries.iter().any(&mut foreign))
        });
        free.take(excess(seen)).collect()
    }
    /// Entries that find room on the devices beyond these.
    pub fn room(&self, capacity: usize) -> Growth {
        let Some(seen) = &self.seen else { return 0 };
        let free = (seen.blocks.len() * capacity).checked_sub(seen.others_len + self.needed());
        Growth::try_from(free.unwrap_or(0)).unwrap_or(Growth::MAX)
    }
    /// Grants a lock that conflicts with nothing, if that takes no more entries than `room`. `order`: the
    /// request's place.
    pub fn grant(
        &mut self,
        users: &Users,
        (lock, order): (&Lock, u64),
        uid: u32,
        room: Growth,
    ) -> bool {
        let mut in_turn = true;
        for (key, _) in self.seen.iter().flat_map(|seen| seen.before(lock, order)) {
            in_turn = false;
            self.passed.entry(*key).or_insert_with(Instant::now);
        }
        if in_turn {
            self.turn = Some((lock.ino, lock.owner.flock, Instant::now()));
        }
        let Some(growth) = self.mine.change(lock, Some(lock.exclusive), room) else { return false };
        users.count(*self.uids.entry((lock.ino, lock.owner)).or_insert(uid), growth);
        self.changed = true;
        true
    }
    /// Takes a range off its owner. `false`, and nothing is changed: it would split a lock, and the owner's user has
    /// twice as many as he may have. That is never so of all that an owner has on a file.
    pub fn take(&mut self, users: &Users, lock: &Lock) -> bool {
        let key = (lock.ino, lock.owner);
        let uid = self.uids.get(&key).copied().unwrap_or(0);
        let Some(growth) = self.mine.change(lock, None, users.room_to_split(uid)) else {
            return false;
        };
        users.count(uid, growth);
        if !self.mine.has(lock.ino, lock.owner) {
            self.uids.remove(&key);
        }
        self.changed = true;
        true
    }
    /// What conflicts with a request at this place among the others.
    pub fn outcome(&self, lock: &Lock, order: u64) -> Outcome {
        let Some(seen) = &self.seen else { return Outcome::Far };
        if self.mine.excludes(lock) {
            return Outcome::Near;
        }
        if seen.others.excludes(lock) {
            return Outcome::Far;
        }
        // A request that waits for the asking owner cannot be served before that owner.
        let held = [&self.mine, &seen.others];
        let waiting = [&self.waits.waiting, &seen.waiting];
        let holds = self.mine.has(lock.ino, lock.owner);
        let mut budget = Budget::of_request();
        let mut ahead =
            |w: &&Lock| !holds || !waits_for(&held, &waiting, w, lock.owner, &mut budget);
        let far = seen.before(lock, order).filter(|(key, lock)| !self.may_pass(key, lock));
        let far = far.map(|(_, lock)| lock);
        let mut before = self.waits.before(lock, order).chain(far);
        if before.any(|w| ahead(&w)) { Outcome::NotYet } else { Outcome::Free }
    }
    /// Whether it is this node's turn, and not for long enough to keep this request of another node waiting.
    fn may_pass(&self, key: &FarKey, lock: &Lock) -> bool {
        let turn = self.turn.is_some_and(|(ino, flock, since)| {
            (ino, flock) == (lock.ino, lock.owner.flock) && since.elapsed() < TURN
        });
        turn && self.passed.get(key).is_none_or(|since| since.elapsed() < TURN)
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
    /// Records what conflicts with a wait. Returns whether it can be granted.
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
    /// Grants a wait, if nothing conflicts with it. `last`: there will be no more room.
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
        let granted = self.grant(users, (&lock, key.1), uid, room);
        if !granted && !last {
            return Served::NeedsRoom;
        }
        users.count(uid, -1);
        let how = if granted { Ok(()) } else { Err(Error::NoLocks) };
        self.waits.remove(key).map_or(Served::Waits, |wait| Served::Ended(wait.ends(how)))
    }
    /// The lock of a wait that asks for less than its owner may hold there.
    pub fn weakened_by(&self, key: (InodeNo, u64)) -> Option<Lock> {
        let lock = self.waits.get(key)?.lock;
        (!lock.exclusive && self.mine.has(lock.ino, lock.owner)).then_some(lock)
    }
    /// All waits, which end.
    pub fn take_waits(&mut self) -> Vec<Wait> {
        self.changed = true;
        self.waits.take()
    }
    /// Whether programs here wait for fcntl locks, or have yet to be told that they no longer do.
    pub fn any_fcntl(&self) -> bool {
        self.waits.fcntl() > 0 || !self.parting.is_empty()
    }
    /// What was read under the cluster lock is known.
    pub fn learn(&mut self, seen: Seen) {
        self.passed.retain(|key, _| seen.queue.contains_key(key));
        self.told.clear();
        self.seen = Some(seen);
        self.changed = true;
    }
    /// Nodes that are to be told that a request of theirs can be granted; each hears of it once.
    pub fn turns(&mut self) -> Vec<Life> {
        let Some(seen) = &self.seen else { return Vec::new() };
        let (mut turns, mut budget) = (Vec::new(), Budget::of_request());
        for (key, lock) in seen.queue.iter().take(TURNS_MAX) {
            let cost = self.mine.owners(lock.ino) + seen.others.owners(lock.ino);
            if !budget.spend(cost + self.waits.len()) {
                // Whoever is not told looks after a pause.
                break;
            }
            let blocked = self.mine.excludes(lock)
                || seen.others.excludes(lock)
                || seen.before(lock, key.1).next().is_some()
                || self.waits.before(lock, key.1).next().is_some();
            if !blocked && self.told.insert(*key) && !turns.contains(&lock.owner.node) {
                turns.push(lock.owner.node);
            }
        }
        turns
    }
    /// Forgets locks of other nodes that are dead.
    pub fn forget_dead(&mut self, lives: &dyn Lives) {
        if let Some(seen) = &mut self.seen {
            seen.forget_dead(lives);
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
    /// Whether one of the first requests of this node comes before those of all others.
    fn is_next(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        let mut first = self.waits.iter().take(4);
        first.any(|(key, wait)| seen.before(&wait.lock, key.1).next().is_none())
    }
    /// Whether waiting for `lock` would close a circle within this bucket.
    pub fn would_close_circle(&self, lock: &Lock) -> bool {
        let (mine, waiting) = (&self.mine, &self.waits.waiting);
        let mut budget = Budget::of_request();
        match &self.seen {
            Some(seen) => {
                let (held, waiting) = ([mine, &seen.others], [waiting, &seen.waiting]);
                would_close(&held, &waiting, lock, &mut budget)
            }
            None => would_close(&[mine], &[waiting], lock, &mut budget),
        }
    }
    /// Where this node's entries go. `None`: what is there is what there is to be.
    pub fn placed(&mut self, lives: &dyn Lives, capacity: usize) -> Option<Vec<(BlockNo, Block)>> {
        let seen = self.seen.as_ref()?;
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let blocks: Vec<Block> = seen.blocks.iter().map(|(_, b)| b.clone()).collect();
        let alive = std::cell::RefCell::new(Verdicts::new(lives));
        let keep = |e: &Entry| e.lock.owner.node != lives.me() && alive.borrow_mut().of(e);
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
    /// The cluster lock is gone: another node is about to change the bucket. A thread that waits
    /// here looks at it afterwards, because looking means to wait for that node.
    pub fn forget(&self) {
        let mut state = self.state();
        state.poll.next = state.is_next();
        state.seen = None;
        if state.poll.far && state.poll.next {
            state.poll.called = true;
            self.called.notify_all();
        }
    }
    /// Another node says that a lock is free that a program of this node waits for.
    pub fn your_turn(&self) {
        let mut state = self.state();
        if state.poll.far {
            (state.poll.next, state.poll.called) = (true, true);
            self.called.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::{Bytes, Incarnation, NodeId};

    use super::*;

    const FILE: InodeNo = InodeNo(5);

    /// Node 0, among nodes that all live.
    struct AllLive;
    impl Lives for AllLive {
        fn me(&self) -> Life {
            node(0)
        }
        fn is_live(&self, _: Life) -> bool {
            true
        }
    }
    fn node(slot: u16) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(1) }
    }
    fn lock(slot: u16, ino: InodeNo) -> Lock {
        let owner = Owner { node: node(slot), id: 1, flock: true };
        Lock { ino, start: 0, end: u64::MAX, owner, pid: 1, exclusive: true }
    }
    /// What node 0 knows when these nodes wait for the file's lock, in this order.
    fn behind(slots: &[u16]) -> State {
        let mut state = State::default();
        learn(&mut state, slots);
        state
    }
    fn learn(state: &mut State, slots: &[u16]) {
        let entry = |(slot, order)| Entry { order, lock: lock(slot, FILE) };
        let entries = slots.iter().copied().zip(1..).map(entry).collect();
        let mut seen = Seen::new(vec![(BlockNo(1), Block { next: None, entries })]);
        seen.forget_dead(&AllLive);
        state.learn(seen);
    }
    /// A program of this node takes the file's lock, which nothing blocks, and gives it up.
    fn lock_and_unlock(state: &mut State, users: &Users) {
        let lock = lock(0, FILE);
        assert_eq!(state.outcome(&lock, u64::MAX), Outcome::Free);
        assert!(state.grant(users, (&lock, u64::MAX), 7, Growth::MAX));
        assert!(state.take(users, &lock));
    }
    fn long_ago() -> Instant {
        Instant::now().checked_sub(TURN).unwrap()
    }

    #[test]
    fn programs_of_a_node_whose_turn_it_is_follow_one_another_for_a_while() {
        let users = Users::new(Bytes(1 << 20));
        let mut state = behind(&[]);
        lock_and_unlock(&mut state, &users);
        // Another node's request comes.
        learn(&mut state, &[1]);
        lock_and_unlock(&mut state, &users);
        lock_and_unlock(&mut state, &users);
        // The turn is over.
        let over = state.turn.unwrap();
        state.turn = Some((over.0, over.1, long_ago()));
        assert_eq!(state.outcome(&lock(0, FILE), u64::MAX), Outcome::NotYet);
        // Not by another file's lock either, nor by one of the other kind.
        let mut fcntl = lock(0, FILE);
        fcntl.owner.flock = false;
        for other in [lock(0, InodeNo(6)), fcntl] {
            assert_eq!(state.outcome(&other, u64::MAX), Outcome::Free);
            assert!(state.grant(&users, (&other, u64::MAX), 7, Growth::MAX));
            assert_eq!(state.outcome(&lock(0, FILE), u64::MAX), Outcome::NotYet);
        }
    }

    #[test]
    fn a_request_is_kept_waiting_for_one_turn_of_a_node_however_that_goes_on() {
        let users = Users::new(Bytes(1 << 20));
        let mut state = behind(&[]);
        lock_and_unlock(&mut state, &users);
        learn(&mut state, &[1]);
        lock_and_unlock(&mut state, &users);
        state.passed.values_mut().for_each(|since| *since = long_ago());
        state.turn = Some((FILE, true, Instant::now()));
        assert_eq!(state.outcome(&lock(0, FILE), u64::MAX), Outcome::NotYet);
        // It was served, and another one waits.
        learn(&mut state, &[]);
        learn(&mut state, &[2]);
        assert_eq!(state.outcome(&lock(0, FILE), u64::MAX), Outcome::Free);
    }

    #[test]
    fn who_is_not_in_its_turn_passes_nobody() {
        let state = behind(&[1]);
        assert_eq!(state.outcome(&lock(0, FILE), u64::MAX), Outcome::NotYet);
        assert_eq!(state.outcome(&lock(0, FILE), 0), Outcome::Free, "one that must not block");
    }

    #[test]
    fn the_first_who_can_be_served_is_told_once() {
        let users = Users::new(Bytes(1 << 20));
        let mut state = behind(&[2, 1]);
        assert!(state.grant(&users, (&lock(0, FILE), 0), 7, Growth::MAX));
        assert_eq!(state.turns(), []);
        assert!(state.take(&users, &lock(0, FILE)));
        assert_eq!(state.turns(), [node(2)]);
        assert_eq!(state.turns(), []);
        // The bucket was elsewhere: perhaps the node looked too early.
        learn(&mut state, &[2, 1]);
        assert_eq!(state.turns(), [node(2)]);
    }
}
