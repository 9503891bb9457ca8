//! The demoters: threads that look at records others ask about and give locks up.
//!
//! A demoter never waits for users: the last user to leave puts the lock back into the queue.
//! `GlockOps::demote` runs without any mutex of this crate.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::core::{Core, Entry};
use super::fills::ToDrop;
use super::ops::{Demoting, NoFills, PageDrops};
use super::post::Post;
use super::state::Local;
use super::step::Event;
use super::work_queue::WorkQueue;
use crate::Mode;
use crate::runtime::AbortOnPanic;

impl Core {
    /// A demoter's life.
    pub(super) fn demoter(&self, work: &WorkQueue<Entry>) {
        let _abort = AbortOnPanic;
        while let Some(entry) = work.next() {
            self.visit(&entry, &mut Post::at_once());
        }
    }

    pub(super) fn visit(&self, entry: &Arc<Entry>, post: &mut Post) {
        let mut state = entry.state.lock();
        let ran = self.run(entry, &mut state, Event::Visit, post);
        let many = self.table.count() > self.options.locks_max / 2;
        let leaves = state.is_idle() && (ran.released || many);
        drop(state);
        if leaves {
            self.table.remove_idle(entry);
        }
        if ran.released {
            self.shrinks.done();
        }
    }

    /// All that is dirty made stable, for the end; several threads share the locks.
    pub(super) fn demote_share(&self, all: &Mutex<Vec<Arc<Entry>>>) -> bool {
        loop {
            let Some(entry) = all.lock().pop() else { return true };
            let mut state = entry.state.lock();
            let held = state.dlock().held();
            if held == Mode::Unlocked {
                continue;
            }
            // Keeps everybody out, fills included, until the process has gone.
            let alone = state.admit(held, Local::Exclusive);
            let done = MutexGuard::unlocked(&mut state, || {
                let pages = &NoFills::default();
                let (lock, from, to) = (entry.lock, held, Mode::Unlocked);
                self.ops.demote(&Demoting { lock, from, to, pages })
            });
            if done.is_ok() {
                MutexGuard::unlocked(&mut state, || self.ops.forget(entry.lock));
            }
            state.end(&alone);
            if done.is_err() {
                return false;
            }
        }
    }
}

/// The kernel's pages under a lock that a demoter gives up.
pub(super) struct Drops<'a> {
    pub core: &'a Core,
    pub entry: &'a Arc<Entry>,
}

impl PageDrops for Drops<'_> {
    fn next(&self, unbegun: &dyn Fn() -> Vec<(u64, u64)>) -> Option<ToDrop> {
        let mut state = self.entry.state.lock();
        // Under the mutex: what has begun meanwhile stands in the queue here, later.
        self.core.tell(self.entry, &mut state, Event::Drops(unbegun()));
        state.drops()
    }
    fn with_all_fills(&self, f: &mut dyn FnMut()) {
        self.let_in_all(true);
        f();
        self.let_in_all(false);
    }
}

impl Drops<'_> {
    fn let_in_all(&self, all: bool) {
        let mut state = self.entry.state.lock();
        self.core.tell(self.entry, &mut state, Event::LetsIn(all));
    }
}
