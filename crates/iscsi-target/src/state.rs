//! What the threads of a target have in common.

use std::sync::Arc;

use crate::buffers::Buffers;
use crate::chap::Chap;
use crate::faults::Faults;
use crate::lun::Lun;
use crate::session_table::SessionTable;
use crate::tasks::{Abort, Task, Tasks};
use crate::workers::Workers;

/// A target's units, its sessions and the commands under way.
#[derive(Debug)]
pub struct TargetState {
    /// Its name.
    pub name: String,
    /// Its units.
    pub luns: Vec<Arc<Lun>>,
    /// Who may log in.
    pub chap: Chap,
    /// Faults on purpose.
    pub faults: Faults,
    /// Commands under way.
    pub tasks: Tasks,
    /// Threads that run them.
    pub workers: Workers,
    /// Memory for their data.
    pub buffers: Buffers,
    /// Its sessions.
    pub sessions: SessionTable,
}

impl TargetState {
    /// A target of this name with these units.
    pub fn new(name: String, luns: Vec<Arc<Lun>>, chap: Chap) -> Self {
        Self {
            name,
            luns,
            chap,
            faults: Faults::default(),
            tasks: Tasks::default(),
            workers: Workers::default(),
            buffers: Buffers::default(),
            sessions: SessionTable::default(),
        }
    }
    /// Aborts commands of any session: see [`Tasks::abort`]. Those that had not begun and that
    /// somebody else ended are answered, by a worker.
    pub fn abort(&self, why: Abort, on_behalf: Option<&Task>, which: impl Fn(&Task) -> bool) {
        for task in self.tasks.abort(why, on_behalf, which) {
            if why == Abort::Other {
                let answer = move || task.conn.answer_aborted(task.tag, task.immediate);
                self.workers.run(Box::new(answer));
            } else {
                task.conn.widen_window(task.immediate);
            }
        }
    }
}
