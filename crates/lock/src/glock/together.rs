//! Many locks that another node holds, asked for by one message.
//!
//! The thread stands in the queue of each lock, and asks for it as any thread does; only the messages go together, and
//! so do the answers. It is let into none of them ([`Request::passes`]): whoever waits for several locks and holds some
//! of them could be part of a circle.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::tasks::{self, Awaited};
use braid_format::LockNo;

use super::core::{Core, Entry};
use super::post::Post;
use super::state::{Local, Request};
use super::step::Event;
use super::table::Thread;
use crate::Mode;
use crate::dlock::Time;
use crate::interrupt;
use crate::simulation;

/// All of them are waited for no longer than this.
const WAIT_MAX: Duration = Duration::from_millis(100);

impl Core {
    /// See [`LockManager::fetch_together`](super::LockManager::fetch_together).
    pub(super) fn fetch_together(
        self: &Arc<Self>,
        locks: &[LockNo],
        mode: Mode,
        is_over: &dyn Fn() -> bool,
    ) -> usize {
        let mut post = Post::together();
        let ask = |lock: &LockNo| self.ask_with_others(*lock, mode, &mut post);
        let asked: Vec<(Arc<Entry>, Thread)> = locks.iter().filter_map(ask).collect();
        self.send_kept(&mut post);
        let until = self.now() + WAIT_MAX;
        // Answers come in the order of the asks: once the last one is here this thread is woken no more.
        for (entry, thread) in asked.iter().rev() {
            self.await_passing(entry, thread, until, is_over);
        }
        asked.len()
    }

    /// Asks for `lock`, if that is what an acquisition would do now and nobody here does it.
    fn ask_with_others(
        self: &Arc<Self>,
        lock: LockNo,
        mode: Mode,
        post: &mut Post,
    ) -> Option<(Arc<Entry>, Thread)> {
        if self.stopped().is_some() {
            return None;
        }
        self.presumed.presume(lock);
        if self.table.get(lock).is_none() && self.may_ask(lock, None).is_none() {
            return None;
        }
        let entry = self.entry(lock);
        let mut state = entry.state.lock();
        let known = state.dlock().known();
        let asks = match known {
            Some(known) => known.waiters.is_empty() && !known.mode.beside().covers(mode),
            None => true,
        };
        let free = !state.gone && state.waiters().next().is_none() && !state.is_worked_on();
        if !asks
            || !free
            || state.dlock().held() != Mode::Unlocked
            || self.may_ask(lock, known).is_none()
        {
            return None;
        }
        state.used = self.tick.load(Ordering::Relaxed);
        self.counters.slow.fetch_add(1, Ordering::Relaxed);
        let thread = Thread::default();
        let request = Request { cluster: mode, local: Local::Shared, fill: None, passes: true };
        state.queue_up(thread.clone(), request);
        let ran = self.run(&entry, &mut state, Event::Turn(thread.clone()), post);
        if ran.released {
            self.shrinks.done();
        }
        drop(state);
        Some((entry, thread))
    }

    /// Waits until the lock is here, or the time for that is over; then the thread is in its queue no more.
    fn await_passing(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        thread: &Thread,
        until: Time,
        is_over: &dyn Fn() -> bool,
    ) {
        let _waits = tasks::wait(Awaited::Lock(entry.lock.get()));
        let mut state = entry.state.lock();
        loop {
            if thread.answer().is_some() {
                return;
            }
            let asked_until = state.wait_until(thread).map_or(until, |at| at.min(until));
            let ends = self.stopped().is_some()
                || simulation::has_ended()
                || interrupt::is_interrupted()
                || self.now() >= asked_until
                || is_over();
            if ends {
                return self.tell(entry, &mut state, Event::GaveUp(thread.clone()));
            }
            if self.take_turn(entry, &mut state, thread, &mut Post::at_once())
                || thread.is_answered()
            {
                continue;
            }
            let asked_until = state.wait_until(thread).map_or(until, |at| at.min(until));
            thread.sleep(&mut state, Some(self.origin + asked_until));
        }
    }
}
