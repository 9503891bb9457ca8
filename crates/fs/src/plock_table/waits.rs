//! Waits for locks. A wait is a record, not a thread. The thread that frees the lock grants it to
//! the waiters, in the order of their requests, whatever node they are on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_format::{InodeNo, LockNo};

use super::circle::Waiting;
use super::table::Lock;
use crate::error::Result;

/// Called once, when a wait ends: with the lock, or with why not.
pub type LockDone = Box<dyn FnOnce(Result<()>) + Send>;

/// Names a wait of this node, to break it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitId {
    pub(crate) bucket: LockNo,
    pub(crate) ino: InodeNo,
    pub(crate) order: u64,
}

/// Longest time that a request gives way to one recorded before it although no held lock blocks it.
/// Then it is served out of turn: the two may wait for each other through locks of another bucket,
/// which one bucket does not show.
const GIVES_WAY: Duration = Duration::from_millis(500);

/// What conflicts with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing.
    Free,
    /// A lock that a program of this node holds.
    Near,
    /// One of another node.
    Far,
    /// Only one that was asked for before.
    NotYet,
}

/// A wait.
pub(crate) struct Wait {
    pub lock: Lock,
    pub uid: u32,
    pub since: Instant,
    /// What was last seen in its way.
    outcome: Outcome,
    /// Since when only earlier requests have been.
    gives_way: Option<Instant>,
    /// It is on the devices.
    recorded: bool,
    done: LockDone,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// A wait that has ended, and how. Called without any lock held.
pub(crate) type Ended = (LockDone, Result<()>);

/// Ends waits.
pub(crate) fn tell(ended: Vec<Ended>) {
    for (done, result) in ended {
        done(result);
    }
}

/// Waits that were broken off and are still on the devices. Another node could see one there, and take what its
/// owner does next for a circle of waiters; so the owner is told when the others can no longer see it.
#[derive(Default)]
pub(crate) struct Parting(Vec<(Instant, Ended)>);

impl Parting {
    pub fn add(&mut self, ended: Ended) {
        self.0.push((Instant::now(), ended));
    }
    /// Takes out those that were broken off this long ago or longer.
    pub fn take(&mut self, age: Duration) -> Vec<Ended> {
        let old = self.0.extract_if(.., |(since, _)| since.elapsed() >= age);
        old.map(|(_, ended)| ended).collect()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Parting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parting({})", self.0.len())
    }
}

pub(crate) type Key = (InodeNo, u64);

/// The waits in a bucket, by file, in order.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "they are the waits; the others are indexes of them")]
pub(crate) struct Waits {
    waits: BTreeMap<Key, Wait>,
    /// Those for fcntl locks, by owner.
    pub waiting: Waiting,
    /// How many those are.
    fcntl: usize,
}

impl Waits {
    /// Adds one, the last of its file.
    pub fn add(&mut self, order: u64, (lock, uid): (Lock, u32), done: LockDone) {
        let (since, recorded, gives_way) = (Instant::now(), false, None);
        let outcome = Outcome::Near;
        if !lock.owner.flock {
            self.waiting.add(lock);
            self.fcntl += 1;
        }
        let wait = Wait { lock, uid, since, outcome, gives_way, recorded, done };
        self.waits.insert((lock.ino, order), wait);
    }
    /// Takes one out.
    pub fn remove(&mut self, key: Key) -> Option<Wait> {
        let wait = self.waits.remove(&key)?;
        if !wait.lock.owner.flock {
            self.waiting.remove(&wait.lock);
            self.fcntl -= 1;
        }
        Some(wait)
    }
    /// Takes all out.
    pub fn take(&mut self) -> Vec<Wait> {
        std::mem::take(self).waits.into_values().collect()
    }
    /// Keys of the waits on a file that may be granted once somebody gives up some of `freed`. A
    /// wait that is blocked by a lock elsewhere in the file stays blocked, and is not looked at. So
    /// if many wait for parts of a file, a change does not cost a look at all of them.
    pub fn touched(&self, freed: &Lock) -> Vec<Key> {
        let of_file = self.waits.range((freed.ino, 0)..=(freed.ino, u64::MAX));
        let touched = |wait: &Wait| {
            let near = wait.outcome == Outcome::Near;
            !near || wait.lock.start <= freed.end && freed.start <= wait.lock.end
        };
        of_file.filter(|(_, wait)| touched(wait)).map(|(key, _)| *key).collect()
    }
    pub fn get(&self, key: Key) -> Option<&Wait> {
        self.waits.get(&key)
    }
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Wait> {
        self.waits.get_mut(&key)
    }
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Wait)> {
        self.waits.iter()
    }
    /// How many there are, all of which are put on the devices for other nodes to see.
    pub fn len(&self) -> usize {
        self.waits.len()
    }
    /// How many of them are for fcntl locks.
    pub fn fcntl(&self) -> usize {
        self.fcntl
    }
    /// Keys of all.
    pub fn keys(&self) -> Vec<Key> {
        self.waits.keys().copied().collect()
    }
    /// Those made before `order` for locks that cannot be had beside `want`.
    pub fn before<'a>(&'a self, want: &'a Lock, order: u64) -> impl Iterator<Item = &'a Lock> {
        let earlier = self.waits.range((want.ino, 0)..(want.ino, order));
        earlier.map(|(_, wait)| &wait.lock).filter(|lock| lock.excludes(want))
    }
    /// They stand there now.
    pub fn recorded_all(&mut self) {
        self.waits.values_mut().for_each(|wait| wait.recorded = true);
    }
}

impl Wait {
    /// Records what conflicts with it. Returns whether nothing does any more, or nothing that it
    /// still gives way to.
    pub fn is_free(&mut self, outcome: Outcome) -> bool {
        self.outcome = outcome;
        if outcome != Outcome::NotYet {
            self.gives_way = None;
            return outcome == Outcome::Free;
        }
        self.gives_way.get_or_insert_with(Instant::now).elapsed() >= GIVES_WAY
    }
    /// Whether nobody on this node will notice when it becomes free.
    pub fn is_watched(&self) -> bool {
        matches!(self.outcome, Outcome::Far | Outcome::NotYet)
    }
    /// Whether other nodes can see it.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }
    /// How it ends.
    pub fn ends(self, how: Result<()>) -> Ended {
        (self.done, how)
    }
}
