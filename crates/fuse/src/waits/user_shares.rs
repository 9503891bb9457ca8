//! How many threads the requests of one user may keep busy.
//!
//! A request may wait for another node, and a program there can make that last: by storing to a shared mapping
//! without a pause, for example. So one user could make every thread wait. While few threads are busy, nobody counts
//! whose requests they answer. Beyond that each user other than root has a bound, and all of them together leave
//! some threads to root. A request beyond these bounds waits here, by user, and each that ends lets the next one
//! begin. What frees others and does not wait for other nodes is never asked to wait here.
//!
//! Unlocks and closes wait for other nodes, too, and others wait for them. Each of the two has threads of its own that
//! are bounded in the same way: so they wait only for others of their kind, which end without them. An unlock waits
//! for the lock of a bucket of program locks, which no node keeps until a program does something; a close waits for
//! that, but not for long, so it does not wait behind unlocks. None of them is refused.
//!
//! Over io_uring a request has its thread from the start, so nothing is bounded there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_device::fitting;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::{InHeader, ReadIn, op};
use crate::transport::queue::{Class, HeldPages, QueuedRequests, Wanted, held_pages};
use crate::transport::space::{Kept, Space};

/// The part (divisor) of the threads of which nobody counts for whom they are busy.
const UNCOUNTED: usize = 4;
/// The part that users other than root leave to it. Each leaves something to the others, too.
const ROOT: usize = 8;
/// The part that unlocks of such users may keep busy, and that closes may.
const UNLOCKS: usize = 16;
/// How many of either may begin while every thread is busy. Root's requests may have come to that; those threads that
/// are kept then are for what waits for nothing.
const UNLOCKS_KEPT: usize = 2;
/// Most requests that wait, of all users: the kernel has 65,535 under way at most that no program waits for, pages that
/// it writes back among them. One user may have half of what others leave.
const WAITING: usize = 32_768;
/// Most bytes of messages that wait, and of the pages that are to be filled by them. One user may have half of what
/// others leave.
const BYTES: usize = 256 << 20;

/// All the bounds of a mount.
#[derive(Debug)]
pub(crate) struct Shares {
    calls: Arc<UserShares>,
    unlocks: Arc<UserShares>,
    closes: Arc<UserShares>,
}

impl Shares {
    /// For a mount with so many threads.
    pub fn new(threads: usize) -> Self {
        let unlocks = || Arc::new(UserShares::of_unlocks(threads));
        let calls = Arc::new(UserShares::of_calls(threads));
        Self { calls, unlocks: unlocks(), closes: unlocks() }
    }
    /// Those for requests of a class; `None`: they have no bound.
    pub fn of(&self, class: Class) -> Option<&UserShares> {
        match class {
            Class::Frees => None,
            Class::Unlocks => Some(&self.unlocks),
            Class::Closes => Some(&self.closes),
            Class::Other => Some(&self.calls),
        }
    }
    /// Those for what frees nobody. Only there the kernel may hold pages for what waits.
    pub fn calls(&self) -> &UserShares {
        &self.calls
    }
    /// Begins an unlock or a close that has begun to wait while every thread was busy, if it need not wait any more:
    /// of which class, for whom, and its message is in `space`. [`UserShares::end`] follows.
    pub fn begin_waiting(&self, space: &mut Space) -> Option<(Class, u32)> {
        [Class::Unlocks, Class::Closes].into_iter().find_map(|class| {
            let shares =
                self.of(class).filter(|shares| shares.some_wait.load(Ordering::Relaxed))?;
            Some((class, shares.begin_next(&mut shares.state.lock(), space)?))
        })
    }
    /// What waits.
    pub fn queues(&self) -> impl Iterator<Item = Arc<dyn QueuedRequests>> {
        [&self.calls, &self.unlocks, &self.closes].map(|s| Arc::clone(s) as _).into_iter()
    }
}

/// The bounds of some requests of a mount, and what waits.
#[derive(Debug)]
pub(crate) struct UserShares {
    uncounted: usize,
    all: usize,
    /// Instead of `all`, for one that is to begin while every thread is busy.
    all_kept: usize,
    /// Whether too many that wait are refused. Of unlocks and closes there are no more than threads of programs, and
    /// open files with locks.
    refuses: bool,
    state: Mutex<State>,
    /// Something waited the last time that something began to wait, or to be answered.
    some_wait: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<u32, User>,
    counted: usize,
    /// Requests that wait, their bytes, and how many of them the kernel holds pages for.
    waiting: usize,
    bytes: usize,
    held: usize,
    /// Whose request began last out of those that waited: the next user comes next.
    last: u32,
}

#[derive(Debug, Default)]
struct User {
    counted: usize,
    waiting: VecDeque<Kept>,
    bytes: usize,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is answered now, and counts for nobody.
    Uncounted,
    /// It is answered now, and counts for this user: [`UserShares::end`] follows.
    Counted(u32),
    /// Its message waits.
    Waits,
    /// Too many wait already.
    Refused,
}

impl UserShares {
    /// For what frees nobody, of a mount with so many threads.
    fn of_calls(threads: usize) -> Self {
        let uncounted = threads / UNCOUNTED;
        let others = uncounted + 2 * Self::of_unlocks(threads).all;
        let all = (threads - threads / ROOT).saturating_sub(others).max(1);
        Self {
            uncounted,
            all,
            all_kept: all,
            refuses: true,
            state: Mutex::default(),
            some_wait: AtomicBool::new(false),
        }
    }
    /// For unlocks, or closes.
    fn of_unlocks(threads: usize) -> Self {
        let all = (threads / UNLOCKS).max(1);
        Self {
            uncounted: threads / UNCOUNTED,
            all,
            all_kept: all.min(UNLOCKS_KEPT),
            refuses: false,
            state: Mutex::default(),
            some_wait: AtomicBool::new(false),
        }
    }
    /// Whether requests count for their users while so many threads are busy.
    pub fn are_counted(&self, busy: usize) -> bool {
        busy >= self.uncounted
    }
    /// Begins a request of user `uid` that counts, unless too many of that user are under way. `crowded`: every thread
    /// is busy but those that are kept.
    pub fn begin(&self, uid: u32, space: &mut Space, crowded: bool) -> Begun {
        if uid == 0 {
            return Begun::Uncounted;
        }
        let state = &mut *self.state.lock();
        let left = if crowded { self.all_kept } else { self.all }.saturating_sub(state.counted);
        let user = state.users.entry(uid).or_default();
        if may_have_more(user, left) || state.counted == 0 {
            user.counted += 1;
            state.counted += 1;
            return Begun::Counted(uid);
        }
        let weight = weight(space.message());
        let half_left = |most: usize, all: usize, own: usize| most.saturating_sub(all - own) / 2;
        let full = user.waiting.len() >= half_left(WAITING, state.waiting, user.waiting.len())
            || user.bytes + weight > half_left(fitting(BYTES), state.bytes, user.bytes);
        if full && self.refuses {
            state.forget_if_idle(uid);
            return Begun::Refused;
        }
        user.bytes += weight;
        state.bytes += weight;
        state.waiting += 1;
        state.held += usize::from(held_pages(space.message()).is_some());
        user.waiting.push_back(space.take());
        self.some_wait.store(true, Ordering::Relaxed);
        Begun::Waits
    }
    /// One has ended that counts for `uid`. Another that waited may begin: whose, and its message is in `space`.
    pub fn end(&self, uid: u32, space: &mut Space) -> Option<u32> {
        let state = &mut *self.state.lock();
        if let Some(user) = state.users.get_mut(&uid) {
            user.counted -= 1;
            state.counted -= 1;
            state.forget_if_idle(uid);
        }
        self.begin_next(state, space)
    }
    /// Begins one that waited, if it may: whose, and its message is in `space`.
    fn begin_next(&self, state: &mut State, space: &mut Space) -> Option<u32> {
        let (left, none) = (self.all.saturating_sub(state.counted), state.counted == 0);
        let may_begin =
            |user: &User| !user.waiting.is_empty() && (may_have_more(user, left) || none);
        let after = (Bound::Excluded(state.last), Bound::Unbounded);
        let mut users = state.users.range(after).chain(state.users.range(..=state.last));
        let next = users.find(|(_, user)| may_begin(user)).map(|(uid, _)| *uid)?;
        let user = state.users.get_mut(&next)?;
        let message = user.waiting.pop_front()?;
        user.counted += 1;
        state.counted += 1;
        state.left(next, &message);
        state.last = next;
        self.some_wait.store(state.waiting > 0, Ordering::Relaxed);
        space.put(message);
        Some(next)
    }
}

impl State {
    /// A message of a user does not wait any more.
    fn left(&mut self, uid: u32, message: &Kept) {
        let weight = weight(message.bytes());
        if let Some(user) = self.users.get_mut(&uid) {
            user.bytes -= weight;
        }
        self.bytes -= weight;
        self.waiting -= 1;
        self.held -= usize::from(held_pages(message.bytes()).is_some());
    }
    /// Takes the first message out that is wanted.
    fn take(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Option<Kept> {
        let (uid, place) = self.users.iter().find_map(|(uid, user)| {
            user.waiting.iter().position(|m| wanted(m.bytes())).map(|place| (*uid, place))
        })?;
        let message = self.users.get_mut(&uid)?.waiting.remove(place)?;
        self.left(uid, &message);
        self.forget_if_idle(uid);
        Some(message)
    }
    fn forget_if_idle(&mut self, uid: u32) {
        if self.users.get(&uid).is_some_and(|user| user.counted == 0 && user.waiting.is_empty()) {
            self.users.remove(&uid);
        }
    }
}

impl QueuedRequests for UserShares {
    fn whose(&self) -> HashMap<u64, u32> {
        let state = self.state.lock();
        let messages = state.users.values().flat_map(|user| &user.waiting);
        messages
            .filter_map(|m| header(m.bytes()))
            .filter(|header| !is_seen_through(header.opcode))
            .map(|header| (header.unique, header.pid))
            .collect()
    }
    fn remove(&self, unique: u64) -> bool {
        self.state
            .lock()
            .take(|message| header(message).is_some_and(|h| h.unique == unique))
            .is_some()
    }
    fn take_held_pages(&self, wanted: Wanted<'_>) -> Option<Kept> {
        let mut state = self.state.lock();
        let is_wanted = |message: &[u8]| held_pages(message).is_some_and(|held| wanted(&held));
        (state.held > 0).then(|| state.take(is_wanted)).flatten()
    }
    fn has_held_pages(&self, wanted: Wanted<'_>) -> bool {
        let state = self.state.lock();
        let mut messages = state.users.values().flat_map(|user| &user.waiting);
        let is_wanted = |m: &Kept| held_pages(m.bytes()).is_some_and(|held| wanted(&held));
        state.held > 0 && messages.any(is_wanted)
    }
    fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let messages = state.users.values().filter(|_| state.held > 0);
        HeldPages::filled(messages.flat_map(|user| &user.waiting), node)
    }
}

/// Whether a request of a user may begin while so many threads are left to all users. The fewer these are, the fewer one
/// user may have: something is left for each further one.
fn may_have_more(user: &User, left: usize) -> bool {
    user.counted < left.div_ceil(2)
}

/// Whether a request is answered though its program is killed: nobody else gives up what the program has locked.
fn is_seen_through(opcode: u32) -> bool {
    matches!(opcode, op::FLUSH | op::RELEASE)
}

/// Bytes of memory that a message keeps while it waits: its own, and those of pages that the kernel wants filled.
fn weight(message: &[u8]) -> usize {
    let body = message.get(size_of::<InHeader>()..).unwrap_or_default();
    let filled = held_pages(message).and_then(|_| ReadIn::read_from_prefix(body).ok());
    let is_read = header(message).is_some_and(|header| header.opcode == op::READ);
    let pages = filled.filter(|_| is_read).map_or(0, |(read, _)| read.size);
    message.len() + usize::try_from(pages).unwrap_or(0)
}

fn header(message: &[u8]) -> Option<InHeader> {
    InHeader::read_from_prefix(message).ok().map(|(header, _)| header)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use zerocopy::IntoBytes;

    use super::*;

    fn space(uid: u32, unique: u64) -> Space {
        let header = InHeader { uid, unique, opcode: op::GETATTR, ..InHeader::default() };
        let mut space = Space::new(4096);
        space.put(Kept::Short(header.as_bytes().into()));
        space
    }
    fn unique(space: &Space) -> u64 {
        InHeader::read_from_prefix(space.message()).unwrap().0.unique
    }
    /// Begins it while some threads are free.
    fn begin(shares: &UserShares, space: &mut Space) -> Begun {
        let uid = header(space.message()).unwrap().uid;
        shares.begin(uid, space, false)
    }
    /// Users 1 and up: each asks five times.
    fn crowd(shares: &UserShares, users: u32) -> Vec<u32> {
        let mut begun = Vec::new();
        for (uid, n) in (1..=users).flat_map(|uid| (0..=4).map(move |n| (uid, n))) {
            if let Begun::Counted(uid) = begin(shares, &mut space(uid, u64::from(uid) * 10 + n)) {
                begun.push(uid);
            }
        }
        begun
    }
    fn fill(uid: u32, nodeid: u64, size: u32) -> Space {
        let header = InHeader { opcode: op::READ, uid, nodeid, ..InHeader::default() };
        let read = ReadIn { size, ..ReadIn::default() };
        let mut space = Space::new(4096);
        space.put(Kept::Short([header.as_bytes(), read.as_bytes()].concat().into()));
        space
    }

    #[test]
    fn each_user_leaves_threads_for_others_and_all_leave_some_to_root() {
        let shares = UserShares::of_calls(16);
        assert!(!shares.are_counted(3) && shares.are_counted(4));
        for uid in [7, 7, 7, 8, 8, 9, 10, 11] {
            assert_eq!(begin(&shares, &mut space(uid, 1)), Begun::Counted(uid));
            if uid == 8 {
                assert_eq!(begin(&shares, &mut space(7, 1)), Begun::Waits);
            }
        }
        for uid in [8, 9, 10, 12] {
            assert_eq!(begin(&shares, &mut space(uid, 1)), Begun::Waits, "the last are root's");
        }
        assert_eq!(begin(&shares, &mut space(0, 1)), Begun::Uncounted);
        for threads in 1..9 {
            let few = UserShares::of_calls(threads);
            assert_eq!(begin(&few, &mut space(7, 1)), Begun::Counted(7), "{threads} threads");
        }
    }

    #[test]
    fn those_that_wait_all_begin_and_each_user_s_in_order() {
        for threads in [1, 2, 4, 16, 64] {
            let shares = UserShares::of_calls(threads);
            let mut under_way = VecDeque::from(crowd(&shares, 3));
            let (at_once, mut later) = (under_way.len(), BTreeMap::<u32, Vec<u64>>::new());
            let mut ended = space(0, 0);
            while let Some(uid) = under_way.pop_front() {
                if let Some(next) = shares.end(uid, &mut ended) {
                    later.entry(next).or_default().push(unique(&ended));
                    under_way.push_back(next);
                }
            }
            assert_eq!(at_once + later.values().map(Vec::len).sum::<usize>(), 15);
            assert!(later.values().all(|of_one| of_one.is_sorted()), "{later:?}");
            let state = shares.state.lock();
            assert_eq!((state.users.len(), state.counted, state.held), (0, 0, 0));
        }
    }

    #[test]
    fn what_waits_can_be_taken_out_and_has_a_bound() {
        let shares = UserShares::of_calls(16);
        assert_eq!(crowd(&shares, 2), [1, 1, 1, 2, 2]);
        assert_eq!(shares.whose().len(), 5);
        assert!(shares.remove(14) && !shares.remove(14) && !shares.remove(10) && shares.remove(13));
        assert_eq!(shares.whose().into_keys().collect::<BTreeSet<_>>(), [22, 23, 24].into());
        // Pages that wait to be filled are memory, too.
        let fits = |mut space: Space| begin(&shares, &mut space) == Begun::Waits;
        let filled = (0..100_000).take_while(|_| fits(fill(1, 9, 1 << 20))).count();
        assert_eq!(
            filled,
            fitting(BYTES) / 2 / (size_of::<InHeader>() + size_of::<ReadIn>() + (1 << 20))
        );
        let of = |node| move |held: &HeldPages| held.node == node;
        assert!(shares.has_held_pages(&of(9)) && !shares.has_held_pages(&of(8)));
        assert!(shares.take_held_pages(&of(8)).is_none());
        assert_eq!(
            (0..100_000).take_while(|_| shares.take_held_pages(&of(9)).is_some()).count(),
            filled
        );
        assert!(!shares.has_held_pages(&of(9)));
        let waiting = (0..100_000).take_while(|_| fits(space(1, 1))).count();
        let others = 3;
        assert_eq!(waiting, (WAITING - others) / 2);
        assert!(fits(space(2, 1)), "others have room");
        // However many users there are.
        let all: usize =
            (2..40).map(|uid| (0..100_000).take_while(|_| fits(space(uid, 1))).count()).sum();
        assert!(waiting + all < WAITING, "{all}");
        assert!(shares.state.lock().bytes <= fitting(BYTES));
    }

    /// Begins as many requests of that class as may begin, of many users, while the threads are not all busy.
    fn most(shares: &Shares, class: Class) -> usize {
        let shares = shares.of(class).unwrap();
        let users = (1..1000).filter(|uid| {
            std::iter::repeat_with(|| begin(shares, &mut space(*uid, 1)))
                .take_while(|begun| *begun != Begun::Waits)
                .count()
                > 0
        });
        users.count();
        shares.state.lock().counted
    }

    #[test]
    fn whatever_users_do_threads_are_left_to_root() {
        for (threads, left) in [(512, 64), (64, 8), (16, 2), (8, 1)] {
            let shares = Shares::new(threads);
            let unlocks = [Class::Unlocks, Class::Closes].map(|class| most(&shares, class));
            assert_eq!(unlocks, [(threads / 16).max(1); 2], "{threads}");
            let all = unlocks.iter().sum::<usize>() + most(&shares, Class::Other);
            assert_eq!(threads - threads / UNCOUNTED - all, left, "{threads}");
        }
        assert!(Shares::new(2).of(Class::Frees).is_none());
    }

    /// What came while every thread was busy does not wait for those few that began then.
    #[test]
    fn unlocks_of_a_crowd_begin_once_it_is_over() {
        let shares = Shares::new(64);
        let unlocks = shares.of(Class::Unlocks).unwrap();
        let begun: Vec<Begun> =
            (1..=6).map(|uid| unlocks.begin(uid, &mut space(uid, 1), true)).collect();
        assert_eq!(begun.iter().filter(|begun| **begun == Begun::Waits).count(), 4, "{begun:?}");
        let mut next = space(0, 0);
        let later: Vec<_> = (0..4).map(|_| shares.begin_waiting(&mut next)).collect();
        assert_eq!(later, [3, 4, 0, 0].map(|uid| (uid > 0).then_some((Class::Unlocks, uid))));
        assert_eq!(unlocks.end(1, &mut next), Some(5));
        assert_eq!(shares.begin_waiting(&mut next), None);
    }

    #[test]
    fn unlocks_and_closes_wait_only_for_their_like_and_none_is_refused() {
        let shares = Shares::new(64);
        let of = |class| shares.of(class).unwrap();
        while begin(of(Class::Other), &mut space(7, 1)) != Begun::Waits {}
        for class in [Class::Unlocks, Class::Closes] {
            assert_eq!(begin(of(class), &mut space(7, 2)), Begun::Counted(7), "{class:?}");
            while begin(of(class), &mut space(7, 3)) != Begun::Waits {}
            assert_eq!(begin(of(class), &mut space(8, 3)), Begun::Counted(8), "{class:?}");
            let many = (0..2 * WAITING).map(|_| begin(of(class), &mut space(7, 4)));
            assert_eq!(many.filter(|begun| *begun == Begun::Waits).count(), 2 * WAITING);
            assert_eq!(begin(of(class), &mut space(0, 5)), Begun::Uncounted);
        }
    }

    #[test]
    fn of_those_kept_a_few_are_for_unlocks() {
        let unlocks = UserShares::of_unlocks(512);
        let begun = (1..=9).map(|uid| unlocks.begin(uid, &mut space(uid, 1), true));
        let counted = begun.filter(|begun| matches!(begun, Begun::Counted(_))).count();
        assert_eq!(counted, UNLOCKS_KEPT);
        assert_eq!(begin(&unlocks, &mut space(20, 1)), Begun::Counted(20));
        let mut under_way = VecDeque::from([1, 2, 20]);
        let (mut ended, mut later) = (space(0, 0), 0);
        while let Some(uid) = under_way.pop_front() {
            let next = unlocks.end(uid, &mut ended);
            later += next.iter().count();
            under_way.extend(next);
        }
        assert_eq!(later, 9 - UNLOCKS_KEPT);
    }

    #[test]
    fn a_close_goes_on_though_its_program_is_killed() {
        let closes = UserShares::of_unlocks(1);
        for (unique, opcode) in [(2, op::SETLK), (4, op::SETLK), (6, op::FLUSH), (8, op::RELEASE)] {
            let header = InHeader { uid: 7, unique, pid: 10, opcode, ..InHeader::default() };
            let mut space = space(7, unique);
            space.put(Kept::Short(header.as_bytes().into()));
            begin(&closes, &mut space);
        }
        assert_eq!(closes.whose(), HashMap::from([(4, 10)]));
    }
}
