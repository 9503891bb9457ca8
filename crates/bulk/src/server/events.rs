//! Waits of a session for locks of programs, and what its client has not heard of them yet.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use braid_fs::Errno;
use parking_lot::{Condvar, Mutex};

use crate::wire::LockEvent;

/// Most waits of a session, with those that have ended and of which the client has not heard.
const WAITS_MAX: usize = 4096;
/// Of them those of one user who is not root.
const USER_WAITS_MAX: usize = WAITS_MAX / 8;

/// A wait, as the file system names it; of whatever type that is.
type Named = Box<dyn Any + Send>;

/// How far a wait is.
enum Wait {
    /// It is asked for.
    Begun,
    /// It is to end as soon as it has a name.
    Cancelled,
    /// It stands.
    Stands(Named),
}

#[derive(Default)]
struct State {
    /// Number of the last event.
    last: u64,
    unseen: VecDeque<LockEvent>,
    waits: HashMap<u64, Wait>,
    /// Users who are not root, and the waits of each.
    users: HashMap<u32, HashSet<u64>>,
    ended: bool,
}

impl State {
    fn remove(&mut self, wait: u64) -> Option<Wait> {
        let removed = self.waits.remove(&wait)?;
        self.users.retain(|_, waits| {
            waits.remove(&wait);
            !waits.is_empty()
        });
        Some(removed)
    }
}

/// Waits and events of a session.
#[derive(Default)]
pub struct Events {
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// A wait of that number is about to be asked for, by that user. `false`: there are too many of all or of the
    /// user, or there is one of it.
    pub fn begin(&self, wait: u64, uid: u32) -> bool {
        let mut state = self.state.lock();
        let full = state.ended || state.waits.len() + state.unseen.len() >= WAITS_MAX;
        let of_user = state.users.get(&uid).map_or(0, HashSet::len);
        if full || of_user >= USER_WAITS_MAX || state.waits.contains_key(&wait) {
            return false;
        }
        state.waits.insert(wait, Wait::Begun);
        if uid != 0 {
            state.users.entry(uid).or_default().insert(wait);
        }
        true
    }
    /// It stands, and has a name. Gives it back if it is to end.
    pub fn stands<W: Any + Send>(&self, wait: u64, named: W) -> Option<W> {
        let mut state = self.state.lock();
        let ended = state.ended;
        match state.waits.get_mut(&wait) {
            Some(Wait::Cancelled) => Some(named),
            Some(_) if ended => Some(named),
            Some(entry) => {
                *entry = Wait::Stands(Box::new(named));
                None
            }
            // It is over already.
            None => None,
        }
    }
    /// It does not stand: granted at once, or refused.
    pub fn forget(&self, wait: u64) {
        self.state.lock().remove(wait);
    }
    /// It is over: the client will hear.
    pub fn over(&self, wait: u64, how: Result<(), Errno>) {
        let mut state = self.state.lock();
        if state.remove(wait).is_none() {
            return;
        }
        state.last += 1;
        let errno = how.err().map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        let event = LockEvent { number: state.last, wait, errno };
        state.unseen.push_back(event);
        self.changed.notify_all();
    }
    /// The client does not wait any more: the name of what is to be ended, if it stands.
    pub fn cancel<W: Any + Copy>(&self, wait: u64) -> Option<W> {
        let mut state = self.state.lock();
        match state.waits.get_mut(&wait)? {
            Wait::Stands(named) => named.downcast_ref().copied(),
            begun => {
                *begun = Wait::Cancelled;
                None
            }
        }
    }
    /// How many there are.
    pub fn waits(&self) -> usize {
        self.state.lock().waits.len()
    }
    /// Whether nothing is waited for.
    pub fn is_idle(&self) -> bool {
        self.state.lock().waits.is_empty()
    }
    /// The session ends: nobody waits for events any more.
    pub fn wake(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
    /// The session has ended: names of all that is to be ended.
    pub fn end<W: Any + Copy>(&self) -> Vec<W> {
        let mut state = self.state.lock();
        state.ended = true;
        self.changed.notify_all();
        let named = state.waits.values().filter_map(|wait| match wait {
            Wait::Stands(named) => named.downcast_ref().copied(),
            _ => None,
        });
        named.collect()
    }
    /// At most `most` events after number `seen`, which the client has heard of; waits for one for `patience`.
    pub fn take(&self, seen: u64, patience: Duration, most: usize) -> Vec<LockEvent> {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        state.unseen.retain(|event| event.number > seen);
        while state.unseen.is_empty() && !state.ended {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.unseen.iter().take(most).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_until_it_is_seen() {
        let events = Events::default();
        assert!(events.begin(7, 0) && !events.begin(7, 0));
        assert_eq!(events.stands(7, 'a'), None);
        events.over(7, Err(Errno::INTR));
        events.over(7, Ok(()));
        let told = events.take(0, Duration::ZERO, 9);
        assert_eq!(told, [LockEvent { number: 1, wait: 7, errno: 4 }]);
        assert_eq!(events.take(0, Duration::ZERO, 9), told, "lost on the way, and asked for again");
        assert_eq!(events.take(1, Duration::ZERO, 9), []);
    }

    #[test]
    fn a_wait_that_is_cancelled_early_ends_once_it_has_a_name() {
        let events = Events::default();
        assert!(events.begin(1, 0) && events.begin(2, 0));
        assert_eq!(events.cancel::<char>(1), None);
        assert_eq!(events.stands(1, 'a'), Some('a'));
        assert_eq!(events.stands(2, 'b'), None);
        assert_eq!(events.cancel::<char>(2), Some('b'));
        assert_eq!(events.end::<char>(), ['b']);
        assert!(!events.begin(3, 0), "the session has ended");
    }

    #[test]
    fn waits_are_bounded_for_each_user_and_all() {
        let events = Events::default();
        let most = USER_WAITS_MAX as u64;
        assert!((0..most).all(|n| events.begin(n, 7)));
        assert!(!events.begin(most, 7) && events.begin(most, 8));
        assert!((most + 1..WAITS_MAX as u64).all(|n| events.begin(n, 0)));
        assert!(!events.begin(u64::MAX, 0));
        events.forget(0);
        assert!(events.begin(u64::MAX, 7));
    }
}
