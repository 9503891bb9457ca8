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
use std::ops::Bound;

use braid_device::fitting;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::{InHeader, ReadIn, op};
use crate::transport::queue::{QueuedRequests, Wanted, held_pages};
use crate::transport::space::{Kept, Space};

/// The part (divisor) of the threads of which nobody counts for whom they are busy.
const UNCOUNTED: usize = 4;
/// The part that one user may keep busy besides.
const EACH: usize = 4;
/// The part that users other than root leave to it. Each leaves something to the others, too.
const ROOT: usize = 8;
/// Most requests of one user that wait: the kernel has 65,535 under way at most that no program waits for, pages that
/// it writes back among them.
const WAITING_EACH: usize = 16_384;
/// Most bytes of one user's messages that wait, and of the pages that are to be filled by them.
const BYTES_EACH: usize = 256 << 20;

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
    /// Requests that wait for which the kernel holds pages.
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
        let all = state.counted;
        let user = state.users.entry(uid).or_default();
        if self.may_have_more(user, all) {
            user.counted += 1;
            state.counted += 1;
            return Begun::Counted(uid);
        }
        let weight = weight(space.message());
        if user.waiting.len() >= WAITING_EACH || user.bytes + weight > fitting(BYTES_EACH) {
            return Begun::Refused;
        }
        user.bytes += weight;
        state.held += usize::from(held_pages(space.message()).is_some());
        user.waiting.push_back(space.take());
        Begun::Waits
    }
    /// Whether a request of a user may begin while so many of all users are under way. The more these are, the fewer
    /// one user may have: something is left for each further one.
    fn may_have_more(&self, user: &User, all: usize) -> bool {
        let left = self.all.saturating_sub(all);
        user.counted < self.each.min(left.div_ceil(2)) || all == 0
    }
    /// One has ended that counts for `uid`. Another that waited may begin: whose, and its message is in `space`.
    pub fn end(&self, uid: u32, space: &mut Space) -> Option<u32> {
        let state = &mut *self.state.lock();
        if let Some(user) = state.users.get_mut(&uid) {
            user.counted -= 1;
            state.counted -= 1;
            state.forget_if_idle(uid);
        }
        let may_begin =
            |user: &User| !user.waiting.is_empty() && self.may_have_more(user, state.counted);
        let after = (Bound::Excluded(state.last), Bound::Unbounded);
        let mut users = state.users.range(after).chain(state.users.range(..=state.last));
        let next = users.find(|(_, user)| may_begin(user)).map(|(uid, _)| *uid)?;
        let user = state.users.get_mut(&next)?;
        let message = user.waiting.pop_front()?;
        user.counted += 1;
        state.counted += 1;
        state.left(next, &message);
        state.last = next;
        space.put(message);
        Some(next)
    }
}

impl State {
    /// A message of a user does not wait any more.
    fn left(&mut self, uid: u32, message: &Kept) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.bytes -= weight(message.bytes());
        }
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
    use crate::transport::queue::HeldPages;

    fn space(uid: u32, unique: u64) -> Space {
        let header = InHeader { uid, unique, opcode: op::GETATTR, ..InHeader::default() };
        let mut space = Space::new(4096);
        space.put(Kept::Short(header.as_bytes().into()));
        space
    }
    fn unique(space: &Space) -> u64 {
        InHeader::read_from_prefix(space.message()).unwrap().0.unique
    }
    /// Users 1 and up: each asks five times.
    fn crowd(shares: &UserShares, users: u32) -> Vec<u32> {
        let mut begun = Vec::new();
        for (uid, n) in (1..=users).flat_map(|uid| (0..=4).map(move |n| (uid, n))) {
            if let Begun::Counted(uid) = shares.begin(&mut space(uid, u64::from(uid) * 10 + n)) {
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
        let shares = UserShares::new(16);
        assert!(!shares.are_counted(3) && shares.are_counted(4));
        for uid in [7, 7, 7, 7, 8, 8, 9, 9, 10, 11] {
            assert_eq!(shares.begin(&mut space(uid, 1)), Begun::Counted(uid));
            if uid == 8 {
                assert_eq!(shares.begin(&mut space(7, 1)), Begun::Waits);
            }
        }
        for uid in [8, 9, 10, 12] {
            assert_eq!(shares.begin(&mut space(uid, 1)), Begun::Waits, "the last are root's");
        }
        assert_eq!(shares.begin(&mut space(0, 1)), Begun::Uncounted);
        for threads in 1..9 {
            let few = UserShares::new(threads);
            assert_eq!(few.begin(&mut space(7, 1)), Begun::Counted(7), "{threads} threads");
        }
    }

    #[test]
    fn those_that_wait_all_begin_and_each_user_s_in_order() {
        for threads in [1, 2, 4, 16, 64] {
            let shares = UserShares::new(threads);
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
        let shares = UserShares::new(16);
        assert_eq!(crowd(&shares, 2), [1, 1, 1, 1, 2, 2]);
        assert_eq!(shares.whose().len(), 4);
        assert!(shares.remove(14) && !shares.remove(14) && !shares.remove(10));
        assert_eq!(shares.whose().into_keys().collect::<BTreeSet<_>>(), [22, 23, 24].into());
        // Pages that wait to be filled are memory, too.
        let fits = |mut space: Space| shares.begin(&mut space) == Begun::Waits;
        let filled = (0..100_000).take_while(|_| fits(fill(1, 9, 1 << 20))).count();
        assert_eq!(
            filled,
            fitting(BYTES_EACH) / (size_of::<InHeader>() + size_of::<ReadIn>() + (1 << 20))
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
        assert_eq!(waiting, WAITING_EACH);
        assert!(fits(space(2, 1)), "others have room");
    }
}
