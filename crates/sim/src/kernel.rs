//! What the kernel of a node's host has cached of files, and lets programs read without asking the node.
//!
//! A page is there from a use under a lock until that lock is given up, or the node's lease ends: the
//! notices of `braid_lock::node::lease` say when everything must go. Programs read at any time, also while
//! the process of the node is stopped: then nobody can have its kernel drop anything, and what they read is
//! promised by nobody until the process goes on and has dropped it.

use std::time::Duration;

use braid_lock::dlock::Time;
use braid_lock::node::lease::{Notice, Tell};

use crate::Sabotage;
use crate::disk::blocks_of;
use crate::image::{BLOCKS, BlockIndex, LOCKS_MAX};
use crate::node::State;
use crate::world::{Event, Pid, World};

/// Between two reads of a node's programs, at most.
const READS: Duration = Duration::from_millis(20);

/// The caches of one node's kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pages: Vec<Option<u64>>,
    notice: Notice,
    /// The process was stopped when its lease ended.
    excused: bool,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Self { pages: vec![None; LOCKS_MAX * BLOCKS], notice: Notice::default(), excused: false }
    }
    /// A read or a write of a program puts a page there.
    pub(crate) fn fill(&mut self, block: BlockIndex, value: u64) {
        if let Some(page) = self.pages.get_mut(block) {
            *page = Some(value);
        }
    }
    pub(crate) fn drop_lock(&mut self, lock: usize) {
        self.pages.get_mut(blocks_of(lock)).into_iter().for_each(|pages| pages.fill(None));
    }
    /// The process does not run until then.
    pub(crate) fn stopped_until(&mut self, until: Time, lease: Option<Time>) {
        self.excused |= lease.is_some_and(|lease| lease < until);
    }
}

impl World {
    pub(crate) fn begin_programs(&mut self, pid: Pid) {
        let pause = self.random.time(READS);
        self.after(pause, Event::Program { pid });
        self.after(Duration::ZERO, Event::LeaseLook { pid });
    }
    /// A program reads what the kernel has.
    pub(crate) fn program_reads(&mut self, pid: Pid) {
        let at = self.random.below((LOCKS_MAX * BLOCKS) as u64);
        let block = usize::try_from(at).unwrap_or(0);
        let pause = self.random.time(READS);
        let Some(process) = self.processes.get(pid) else { return };
        if matches!(process.state, State::Gone) {
            return;
        }
        let page = process.kernel.pages.get(block).copied().flatten();
        if let Some(value) = page.filter(|_| !process.kernel.excused) {
            self.report.program_reads += 1;
            let (latest, me) = (self.model.value(block), process.me);
            if value != latest {
                let what = format!(
                    "a program on the host of {me:?} reads {value} in block {block}, which holds {latest}"
                );
                return self.fail(what);
            }
        }
        self.after(pause, Event::Program { pid });
    }

    /// The lease may be over, or last again.
    pub(crate) fn lease_look(&mut self, pid: Pid) {
        let (now, grace) = (self.now, self.timing().grace());
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(until) = process.member.lease_until() else { return };
        let tell = process.kernel.notice.look(now, until, false);
        let next = process.kernel.notice.next(until);
        if tell == Some(Tell::Over) {
            let pause = self.random.time(grace * 3 / 4);
            self.after(pause, Event::DropPages { pid });
        }
        if let Some(next) = next {
            self.at(next, Event::LeaseLook { pid });
        }
    }
    /// Somebody extends the lease.
    pub(crate) fn lease_extended(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(pid) else { return };
        if process.kernel.notice.is_over() {
            self.after(Duration::ZERO, Event::LeaseLook { pid });
        }
    }
    /// The kernel has dropped all, as it was told.
    pub(crate) fn drop_pages(&mut self, pid: Pid) {
        if self.cluster.sabotage == Some(Sabotage::KeepKernelCaches) {
            return;
        }
        let Some(process) = self.processes.get_mut(pid) else { return };
        process.kernel.pages.fill(None);
        process.kernel.excused = false;
    }
}
