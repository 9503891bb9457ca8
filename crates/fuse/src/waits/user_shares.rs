//! How many threads the requests of one user may keep busy.
//!
//! A request may wait for another node, and a program there can make that last: by storing to a shared mapping
//! without a pause, for example. So one user could make every thread wait. While few threads are busy, nobody counts
//! whose requests they answer. Beyond that each user other than root has a bound, and all of them together leave
//! some threads to root. A request beyond these bounds waits here, by user, and each that ends lets the next one
//! begin. What frees others is never asked to wait here.
//!
//! Over io_uring a request has its thread from the start, so nothing is bounded there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::InHeader;
use crate::transport::queue::{QueuedRequests, RequestQueue, counted};
use crate::transport::space::{Kept, Space};

/// The part (divisor) of the threads of which nobody counts for whom they are busy.
const UNCOUNTED: usize = 4;
/// The part that one user may keep busy besides.
const EACH: usize = 4;
/// The part that users other than root leave to it.
const ROOT: usize = 8;
/// Most requests of one user that wait: the kernel has 65,535 under way at most that no program waits for, pages that
/// it writes back among them.
const WAITING_EACH: usize = 16_384;
/// Most bytes of one user's short messages that wait. Long ones keep the memory that is lent for them.
const BYTES_EACH: usize = 128 << 20;
/// So many users may have so many.
const USERS: usize = 3;

/// The bounds of a mount, and what waits.
#[derive(Debug)]
pub(crate) struct UserShares {
    uncounted: usize,
    each: usize,
    all: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<u32, User>,
    counted: usize,
    waiting: usize,
    bytes: usize,
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
    /// For a mount with so many threads.
    pub fn new(threads: usize) -> Self {
        let uncounted = threads / UNCOUNTED;
        Self {
            uncounted,
            each: (threads / EACH).max(1),
            all: (threads - threads / ROOT).saturating_sub(uncounted).max(1),
            state: Mutex::default(),
        }
    }
    /// Whether requests count for their users while so many threads are busy.
    pub fn are_counted(&self, busy: usize) -> bool {
        busy >= self.uncounted
    }
    /// Begins a request that counts, and frees nobody, unless too many of its user are under way.
    pub fn begin(&self, space: &mut Space) -> Begun {
        let uid = InHeader::read_from_prefix(space.message()).map_or(0, |(header, _)| header.uid);
        if uid == 0 {
            return Begun::Uncounted;
        }
        let state = &mut *self.state.lock();
        let user = state.users.entry(uid).or_default();
        if user.counted < self.each && state.counted < self.all {
            user.counted += 1;
            state.counted += 1;
            return Begun::Counted(uid);
        }
        let bytes = if space.is_long() { 0 } else { space.message().len() };
        let each = user.waiting.len() >= WAITING_EACH || user.bytes + bytes > BYTES_EACH;
        let all = state.waiting >= USERS * WAITING_EACH || state.bytes + bytes > USERS * BYTES_EACH;
        if each || all {
            return Begun::Refused;
        }
        user.bytes += bytes;
        state.bytes += bytes;
        state.waiting += 1;
        user.waiting.push_back(space.take());
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
        let may_begin = |user: &User| !user.waiting.is_empty() && user.counted < self.each;
        let after = state.last.saturating_add(1);
        let mut users = state.users.range(after..).chain(state.users.range(..after));
        let next = users.find(|(_, user)| may_begin(user)).map(|(uid, _)| *uid)?;
        let user = state.users.get_mut(&next)?;
        let message = user.waiting.pop_front()?;
        user.counted += 1;
        user.bytes -= counted(&message);
        state.counted += 1;
        state.bytes -= counted(&message);
        state.waiting -= 1;
        state.last = next;
        space.put(message);
        Some(next)
    }
}

impl State {
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
        messages.filter_map(header).map(|header| (header.unique, header.pid)).collect()
    }
    fn remove(&self, unique: u64) -> bool {
        let state = &mut *self.state.lock();
        let is_it = |message: &Kept| header(message).is_some_and(|h| h.unique == unique);
        let found = state
            .users
            .iter()
            .find_map(|(uid, user)| user.waiting.iter().position(is_it).map(|place| (*uid, place)));
        let Some((uid, place)) = found else { return false };
        let Some(user) = state.users.get_mut(&uid) else { return false };
        let Some(message) = user.waiting.remove(place) else { return false };
        user.bytes -= counted(&message);
        state.bytes -= counted(&message);
        state.waiting -= 1;
        state.forget_if_idle(uid);
        true
    }
    fn take_held_pages(&self, node: u64) -> Vec<Kept> {
        let state = &mut *self.state.lock();
        let mut all = Vec::new();
        for user in state.users.values_mut() {
            let (taken, bytes) = RequestQueue::split(&mut user.waiting, node);
            user.bytes -= bytes;
            state.bytes -= bytes;
            state.waiting -= taken.len();
            all.extend(taken);
        }
        state.users.retain(|_, user| user.counted > 0 || !user.waiting.is_empty());
        all
    }
}

fn header(message: &Kept) -> Option<InHeader> {
    InHeader::read_from_prefix(message.bytes()).ok().map(|(header, _)| header)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::abi::{ReadIn, op};

    fn space(uid: u32, unique: u64) -> Space {
        let header = InHeader { uid, unique, opcode: op::GETATTR, ..InHeader::default() };
        let mut space = Space::new(4096);
        space.put(Kept::Short(header.as_bytes().into()));
        space
    }
    fn unique(space: &Space) -> u64 {
        InHeader::read_from_prefix(space.message()).unwrap().0.unique
    }
    /// Users 1 and up, each with a request that waits; all threads that there are for them are busy.
    fn crowd(shares: &UserShares, users: u32) {
        for (uid, n) in (1..=users).flat_map(|uid| (0..=4).map(move |n| (uid, n))) {
            shares.begin(&mut space(uid, u64::from(uid) * 10 + n));
        }
    }

    #[test]
    fn one_user_leaves_threads_for_others_and_all_leave_some_to_root() {
        let shares = UserShares::new(16);
        assert!(!shares.are_counted(3) && shares.are_counted(4));
        for _ in 0..4 {
            assert_eq!(shares.begin(&mut space(7, 1)), Begun::Counted(7));
        }
        assert_eq!(shares.begin(&mut space(7, 2)), Begun::Waits);
        for uid in [8, 8, 8, 8, 9, 9] {
            assert_eq!(shares.begin(&mut space(uid, 1)), Begun::Counted(uid));
        }
        assert_eq!(shares.begin(&mut space(9, 3)), Begun::Waits, "the last are root's");
        assert_eq!(shares.begin(&mut space(0, 1)), Begun::Uncounted);
    }

    #[test]
    fn those_that_wait_begin_by_turns_of_their_users_and_each_in_order() {
        let shares = UserShares::new(16);
        crowd(&shares, 3);
        shares.begin(&mut space(1, 15));
        // Of the third user two are under way, and three wait: the bound of all was met.
        let mut ended = space(0, 0);
        let mut order = Vec::new();
        let mut of = 1;
        while let Some(next) = shares.end(of, &mut ended) {
            order.push((next, unique(&ended)));
            of = next;
        }
        assert_eq!(order, [(1, 14), (3, 32), (1, 15), (3, 33), (3, 34)]);
        // One user has met its own bound: the others' requests come first.
        let shares = UserShares::new(16);
        crowd(&shares, 2);
        assert_eq!(shares.end(2, &mut ended), Some(2));
        assert_eq!(shares.end(2, &mut ended), None, "the first user's share is busy");
        assert_eq!(shares.end(1, &mut ended), Some(1));
        for uid in [1, 1, 1, 1, 2, 2, 2] {
            assert_eq!(shares.end(uid, &mut ended), None);
        }
        let state = shares.state.lock();
        let left = (state.users.len(), state.counted, state.waiting, state.bytes);
        assert_eq!(left, (0, 0, 0, 0));
    }

    #[test]
    fn what_waits_can_be_taken_out_and_has_a_bound() {
        let shares = UserShares::new(16);
        crowd(&shares, 2);
        assert_eq!(shares.whose().len(), 2);
        assert!(shares.remove(14) && !shares.remove(14) && !shares.remove(10));
        assert_eq!(shares.whose().into_keys().collect::<Vec<_>>(), [24]);
        let with = |bytes: usize| {
            let mut space = space(1, 1);
            space.put(Kept::Short([space.message(), &vec![0; bytes]].concat().into()));
            shares.begin(&mut space)
        };
        let fit = |bytes: usize| (0..100_000).take_while(|_| with(bytes) == Begun::Waits).count();
        assert_eq!(fit(12 << 10), BYTES_EACH / (size_of::<InHeader>() + (12 << 10)));
        let shares = UserShares::new(16);
        crowd(&shares, 2);
        let small = || shares.begin(&mut space(1, 1)) == Begun::Waits;
        assert_eq!((0..100_000).take_while(|_| small()).count(), WAITING_EACH - 1);
        assert_eq!(shares.begin(&mut space(2, 1)), Begun::Waits, "others have room");
        let mut fill = space(2, 1);
        let header = InHeader { uid: 2, nodeid: 9, opcode: op::READ, ..InHeader::default() };
        let message = [header.as_bytes(), ReadIn::default().as_bytes()].concat();
        fill.put(Kept::Short(message.into()));
        assert_eq!(shares.begin(&mut fill), Begun::Waits);
        assert_eq!((shares.take_held_pages(8).len(), shares.take_held_pages(9).len()), (0, 1));
        assert_eq!(shares.state.lock().waiting, WAITING_EACH + 2);
    }
}
