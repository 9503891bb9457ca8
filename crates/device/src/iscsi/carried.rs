//! What outlives a session: which of this process broke with commands under way, and what those of one
//! port hand on.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Sessions of this process that broke with commands under way, by their numbers in the order in which
/// they did: how many there have been, and those after which their ports have not logged in again.
/// What was under way in these may still land.
static BROKEN: Mutex<(u64, BTreeSet<u64>)> = Mutex::new((0, BTreeSet::new()));

/// The number of the last session of this process that broke with commands under way.
pub fn last_broken() -> u64 {
    BROKEN.lock().0
}

/// Whether something of this process may still land that was under way in a session that broke after
/// the one with number `after`.
pub fn is_unsettled(after: u64) -> bool {
    BROKEN.lock().1.last().is_some_and(|last| *last > after)
}

/// Others may take the sessions of this process over.
static LET_GO: AtomicBool = AtomicBool::new(false);

/// From now on others may take the sessions of this process over: no port of it logs in again.
pub fn let_go() {
    LET_GO.store(true, Ordering::Release);
}

/// Whether others may take the sessions of this process over.
pub fn has_let_go() -> bool {
    LET_GO.load(Ordering::Acquire)
}

/// What the sessions of one port hand on, each to the next.
#[derive(Debug, Default)]
pub struct Carried {
    /// Commands that brought data of which the loss does harm, and were done.
    written: AtomicU64,
    /// The number of the one that broke with commands under way, if no login as the same port has
    /// ended those.
    unsettled: Mutex<Option<u64>>,
    /// Milliseconds in which a command is to be answered; 0: the usual.
    answers_within: AtomicU64,
    /// Whoever uses the unit next takes this port's sessions over.
    left: AtomicBool,
    /// Blocks whose contents are written again before long.
    repeated: Mutex<Range<u64>>,
}

/// In which a command is to be answered where nobody says it: as long as a kernel gives a disk.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Longest such time, so that a session's ring of seconds holds it (see `unanswered`).
const ANSWERS_WITHIN_MAX: Duration = Duration::from_secs(40);

impl Carried {
    /// In which a command is to be answered.
    pub fn answers_within(&self) -> Duration {
        match self.answers_within.load(Ordering::Relaxed) {
            0 => ANSWERS_WITHIN,
            ms => Duration::from_millis(ms),
        }
    }
    /// Sets it; at least two seconds.
    pub fn set_answers_within(&self, time: Duration) {
        let time = time.clamp(Duration::from_secs(2), ANSWERS_WITHIN_MAX);
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.answers_within.store(ms, Ordering::Relaxed);
    }
    /// From now on these blocks are those whose contents are written again before long.
    pub fn set_repeated(&self, blocks: Range<u64>) {
        *self.repeated.lock() = blocks;
    }
    /// Whether what is written to `blocks` is written again before long.
    pub fn is_repeated(&self, blocks: &Range<u64>) -> bool {
        let repeated = self.repeated.lock();
        !blocks.is_empty() && repeated.start <= blocks.start && blocks.end <= repeated.end
    }
    /// Commands that brought data of which the loss does harm, and were done.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }
    /// One more.
    pub fn wrote(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }
    /// A session has ended with commands under way.
    pub fn unsettle(&self) {
        let mut unsettled = self.unsettled.lock();
        if unsettled.is_none() {
            let (last, open) = &mut *BROKEN.lock();
            *last += 1;
            open.insert(*last);
            *unsettled = Some(*last);
        }
    }
    /// From now on whoever uses the unit next takes this port's sessions over, also of what is under way now: it logs in
    /// no more.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
        self.settle();
    }
    /// Nobody does any more, but this process: the unit is used again by it.
    pub fn come_back(&self) {
        self.left.store(false, Ordering::Release);
    }
    /// Whether others may take this port's sessions over.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
    /// Whether something of a session of this port that broke may still land.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.lock().is_some()
    }
    /// The target has ended all that this port had under way, or there was nothing that could land, or whoever uses
    /// the unit next sees to that.
    pub fn settle(&self) {
        if let Some(number) = self.unsettled.lock().take() {
            BROKEN.lock().1.remove(&number);
        }
    }
}
