//! Commands under way: who sent them, whether they were aborted, whether their I/O has ended.
//!
//! ```text
//! Waiting ----start----> Running ----end----> Ended ----gone----> (not in the table)
//!    |  (for data, or a worker)   (its I/O)      (its answer)
//!    +--abort--> (not in the table; start says so)
//! ```
//!
//! An abort marks what runs and waits for its end: I/O that a device has begun cannot be recalled.
//! A task that waits for other tasks to end stops waiting when it is itself aborted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::connection::Connection;
use crate::pdu::CommandPdu;

/// Why a task was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// Its connection ended: what was to land late still does.
    Lost,
    /// Its own initiator wanted it: no answer.
    Own,
    /// Another initiator did: TASK ABORTED is answered.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Waiting,
    Running,
    Ended,
    Gone,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    aborted: Option<Abort>,
    late: bool,
}

/// A command under way.
#[derive(Debug)]
pub struct Task {
    id: u64,
    /// Where it came from.
    pub conn: Arc<Connection>,
    /// The initiator's tag.
    pub tag: u32,
    /// Outside the order of commands, and so outside the window.
    pub immediate: bool,
    /// The unit it is for, if there is such a one.
    pub lun: Option<u16>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Task {
    /// Begins to run it, unless it was aborted.
    pub fn start(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.aborted.is_none() && state.phase == Phase::Waiting;
        if may {
            state.phase = Phase::Running;
        }
        may
    }
    /// The end of its connection does not end it.
    pub fn will_be_late(&self) {
        self.state.lock().late = true;
    }
    /// Waits; false if it is aborted meanwhile.
    pub fn pause(&self, time: Duration) -> bool {
        let until = now() + time;
        let mut state = self.state.lock();
        let late = state.late;
        while state.aborted.is_none_or(|why| late && why == Abort::Lost) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return true;
            }
        }
        false
    }
    /// Its I/O has ended; whether it was aborted.
    pub fn end(&self) -> Option<Abort> {
        let mut state = self.state.lock();
        state.phase = Phase::Ended;
        self.changed.notify_all();
        state.aborted
    }
    /// Whether it was aborted.
    pub fn aborted(&self) -> bool {
        self.state.lock().aborted.is_some()
    }
    /// Whether it has begun and its I/O has not ended.
    fn is_running(&self) -> bool {
        self.state.lock().phase == Phase::Running
    }
    /// Whether its I/O may go on.
    fn at_least(&self, phase: Phase, patience: Duration) -> bool {
        let mut state = self.state.lock();
        if state.phase < phase {
            self.changed.wait_for(&mut state, patience);
        }
        state.phase >= phase
    }
}

/// A clock of the system: faults and waits are in real time.
fn now() -> Instant {
    Instant::now()
}

/// All commands under way.
#[derive(Debug, Default)]
pub struct Tasks {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    all: HashMap<u64, Arc<Task>>,
}

/// How often a waiting task looks whether it was aborted itself.
const LOOK: Duration = Duration::from_millis(20);

impl Tasks {
    /// A new task, waiting.
    pub fn begin(&self, conn: &Arc<Connection>, pdu: &CommandPdu, lun: Option<u16>) -> Arc<Task> {
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        let state = Mutex::new(State { phase: Phase::Waiting, aborted: None, late: false });
        let (conn, tag, immediate) = (conn.clone(), pdu.tag, pdu.immediate);
        let task = Task { id, conn, tag, immediate, lun, state, changed: Condvar::new() };
        let task = Arc::new(task);
        table.all.insert(id, task.clone());
        task
    }
    /// Its answer was sent, or will never be.
    pub fn gone(&self, task: &Task) {
        task.state.lock().phase = Phase::Gone;
        task.changed.notify_all();
        self.table.lock().all.remove(&task.id);
    }
    /// The tasks that `which` chooses.
    fn matching(&self, which: impl Fn(&Task) -> bool) -> Vec<Arc<Task>> {
        self.table.lock().all.values().filter(|t| which(t)).cloned().collect()
    }
    /// Aborts the tasks that `which` chooses and waits until their I/O has ended (`why` is not
    /// [`Abort::Own`]), or until their answers are out of the way too. Returns those that had not
    /// begun. `on_behalf` is not waited for, and ends the wait when it is aborted itself.
    pub fn abort(
        &self,
        why: Abort,
        on_behalf: Option<&Task>,
        which: impl Fn(&Task) -> bool,
    ) -> Vec<Arc<Task>> {
        let chosen = self.matching(|t| on_behalf.is_none_or(|own| own.id != t.id) && which(t));
        let (mut idle, mut running) = (Vec::new(), Vec::new());
        for task in chosen {
            let mut state = task.state.lock();
            let before = state.aborted;
            if before.is_none() || before == Some(Abort::Lost) {
                state.aborted = Some(why);
            }
            let waits = state.phase == Phase::Waiting;
            if waits {
                state.phase = Phase::Gone;
            }
            // What is to land late after its session is nobody's to wait for.
            let left_alone = why == Abort::Lost && state.late;
            task.changed.notify_all();
            drop(state);
            if waits {
                self.table.lock().all.remove(&task.id);
                idle.push(task);
            } else if !left_alone {
                running.push(task);
            }
        }
        let until = if why == Abort::Own { Phase::Gone } else { Phase::Ended };
        for task in running {
            while !task.at_least(until, LOOK) {
                if on_behalf.is_some_and(Task::aborted) {
                    return idle;
                }
            }
        }
        idle
    }
    /// Whether there is one that `which` chooses.
    pub fn any(&self, which: impl Fn(&Task) -> bool) -> bool {
        self.table.lock().all.values().any(|t| which(t))
    }
    /// How many a connection has.
    pub fn count_of(&self, conn: &Arc<Connection>) -> usize {
        self.table.lock().all.values().filter(|t| Arc::ptr_eq(&t.conn, conn)).count()
    }
    /// How many there are.
    pub fn count(&self) -> usize {
        self.table.lock().all.len()
    }
    /// How many of them have begun and have not ended.
    pub fn running(&self) -> usize {
        self.table.lock().all.values().filter(|t| t.is_running()).count()
    }
}
