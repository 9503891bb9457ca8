//! What threads are doing, and what they wait for: so that somebody can be told why a program waits.
//!
//! A thread that works for somebody begins a [`Task`]. Whatever it then waits for, in any layer, it notes while it
//! waits ([`wait`]). Others look at it meanwhile ([`Watched::now`]). A thread without a task notes nothing.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::DeviceInfo;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// A cluster lock, by its number.
    Lock(u64),
    /// Answers of this device.
    Device(DeviceKey),
    /// Another thread, which writes the journal or makes data durable for both.
    Commit,
    /// That less memory is in use: dirty data, reads under way.
    Memory,
    /// Another request for the same part of a file, or of a member.
    Request,
    /// That this node may write again.
    Lease,
    /// That space is freed.
    Space,
    /// That the pool is thawed.
    Thaw,
    /// The server of a mount from one.
    Server,
}

/// Which device: to be compared with that of others, as long as the device is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceKey(usize);

impl DeviceKey {
    /// Any of several.
    pub const SEVERAL: Self = Self(0);
    /// That of the device with this description.
    pub fn of(info: &DeviceInfo) -> Self {
        Self(std::ptr::from_ref(info).addr())
    }
}

/// Kinds of [`Awaited`].
pub const KINDS: usize = 9;

impl Awaited {
    /// What each kind is called, by its number.
    pub const NAMES: [&str; KINDS] =
        ["lock", "device", "commit", "memory", "request", "lease", "space", "thaw", "server"];
    /// The number of its kind, below [`KINDS`].
    pub const fn kind(self) -> usize {
        match self {
            Self::Lock(_) => 0,
            Self::Device(_) => 1,
            Self::Commit => 2,
            Self::Memory => 3,
            Self::Request => 4,
            Self::Lease => 5,
            Self::Space => 6,
            Self::Thaw => 7,
            Self::Server => 8,
        }
    }
}

/// How long a task has waited for what, by kind.
pub type Waited = [Duration; KINDS];

/// What a thread does for somebody: numbers that mean something to whoever begins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Which operation.
    pub operation: u32,
    /// Whose: a thread of a program.
    pub thread: u32,
    /// About which file.
    pub file: u64,
}

/// A task under way.
#[derive(Debug, Clone)]
pub struct Doing {
    /// What.
    pub task: Task,
    /// Since when.
    pub begun: Instant,
    /// What it waits for now, and since when; of waits within waits the innermost.
    pub awaited: Option<(Awaited, Instant)>,
    /// How long it waited for what, without the wait under way.
    pub waited: Waited,
}

impl Doing {
    /// From now on it waits for `next`. Returns what it waited for before.
    fn turn_to(&mut self, next: Option<Awaited>) -> Option<Awaited> {
        let now = Instant::now();
        let before = self.awaited.take();
        if let Some((awaited, since)) = before {
            self.waited[awaited.kind()] += now.saturating_duration_since(since);
        }
        self.awaited = next.map(|awaited| (awaited, now));
        before.map(|(awaited, _)| awaited)
    }
}

type Place = Arc<Mutex<Option<Doing>>>;

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Does `f` to this thread's task.
fn here<R>(f: impl FnOnce(&mut Option<Doing>) -> R) -> R {
    PLACE.with_borrow_mut(|place| f(&mut place.get_or_insert_default().lock()))
}

/// What this thread's task waits for from now on. Returns what it waited for before.
fn turn_to(next: Option<Awaited>) -> Option<Awaited> {
    here(|place| place.as_mut()?.turn_to(next))
}

/// A thread that is looked at by others.
#[derive(Debug, Clone)]
pub struct Watched(Weak<Mutex<Option<Doing>>>);

impl Watched {
    /// This thread.
    pub fn this_thread() -> Self {
        PLACE.with_borrow_mut(|place| Self(Arc::downgrade(place.get_or_insert_default())))
    }
    /// Whether it lives.
    pub fn lives(&self) -> bool {
        self.0.strong_count() > 0
    }
    /// What it is doing now.
    pub fn now(&self) -> Option<Doing> {
        self.0.upgrade()?.lock().clone()
    }
}

/// This thread begins a task, which ends with the answer. A thread has one task at a time: a second one counts as a
/// part of the first.
pub fn begin(task: Task) -> Begun {
    let (begun, is_first) = (Instant::now(), !BUSY.replace(true));
    if is_first {
        let doing = Doing { task, begun, awaited: None, waited: Waited::default() };
        here(|place| *place = Some(doing));
    }
    Begun { is_first, since: begun, _of_this_thread: std::marker::PhantomData }
}

/// See [`begin`].
#[must_use]
#[derive(Debug)]
pub struct Begun {
    is_first: bool,
    since: Instant,
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Begun {
    /// For how long it has gone on.
    pub fn time(&self) -> Duration {
        self.since.elapsed()
    }
    /// How long it has waited so far for what.
    pub fn waited(&self) -> Waited {
        here(|place| place.as_ref().map(|doing| doing.waited).unwrap_or_default())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_first {
            BUSY.set(false);
            here(|place| *place = None);
        }
    }
}

/// This thread waits until the answer is dropped.
pub fn wait(awaited: Awaited) -> Waiting {
    let is_noted = BUSY.get();
    let before = if is_noted { turn_to(Some(awaited)) } else { None };
    Waiting { is_noted, before, _of_this_thread: std::marker::PhantomData }
}

/// See [`wait`].
#[must_use]
#[derive(Debug)]
pub struct Waiting {
    is_noted: bool,
    /// What it waited for before.
    before: Option<Awaited>,
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_noted {
            turn_to(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::Bytes;

    use super::*;

    const TASK: Task = Task { operation: 1, thread: 2, file: 3 };

    #[test]
    fn a_thread_without_a_task_notes_nothing() {
        let watched = Watched::this_thread();
        let waiting = wait(Awaited::Commit);
        assert!(watched.now().is_none() && watched.lives());
        drop(waiting);
        let other = std::thread::spawn(Watched::this_thread).join().unwrap();
        assert!(!other.lives() && other.now().is_none());
    }

    #[test]
    fn of_waits_within_waits_each_counts_for_itself() {
        let watched = Watched::this_thread();
        let task = begin(TASK);
        let awaited = || watched.now().unwrap().awaited.map(|(awaited, _)| awaited);
        assert_eq!((watched.now().unwrap().task, awaited()), (TASK, None));
        let lock = wait(Awaited::Lock(7));
        std::thread::sleep(Duration::from_millis(5));
        {
            let _device = wait(Awaited::Commit);
            assert_eq!(awaited(), Some(Awaited::Commit));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(awaited(), Some(Awaited::Lock(7)));
        drop(lock);
        assert_eq!(awaited(), None);
        let waited = task.waited();
        let of = |awaited: Awaited| waited[awaited.kind()];
        assert!(of(Awaited::Commit) >= Duration::from_millis(20), "{waited:?}");
        assert!(of(Awaited::Lock(0)) >= Duration::from_millis(5), "{waited:?}");
        assert!(waited.iter().sum::<Duration>() <= watched.now().unwrap().begun.elapsed());
        assert_eq!(of(Awaited::Memory), Duration::ZERO);
        // One within another is a part of it.
        drop(begin(Task { operation: 9, ..TASK }));
        assert_eq!(watched.now().unwrap().task, TASK);
        drop(task);
        assert!(watched.now().is_none());
        assert_eq!(begin(TASK).waited(), Waited::default());
    }

    #[test]
    fn each_kind_has_a_number_of_its_own() {
        let info = crate::MemoryDevice::new("m", Bytes(4096), Bytes(512));
        let key = DeviceKey::of(crate::Device::info(&*info));
        let all = [
            Awaited::Lock(0),
            Awaited::Device(key),
            Awaited::Commit,
            Awaited::Memory,
            Awaited::Request,
            Awaited::Lease,
            Awaited::Space,
            Awaited::Thaw,
        ];
        assert!(all.iter().enumerate().all(|(n, awaited)| awaited.kind() == n));
    }
}
