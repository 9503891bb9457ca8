//! Threads that do the parts of a large request at once, beside the caller.
//!
//! A call is cut into parts with a number each. The caller and up to [`HELPERS`] threads take the next number until
//! none is left; the caller returns when all are done. The threads begin when they are first needed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Threads beside the caller.
const HELPERS: usize = 7;

/// The threads of a node.
#[derive(Default)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to do, or nothing ever again.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Calls that want another thread, once for each.
    queue: VecDeque<Arc<Call>>,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Call {
    parts: usize,
    next: AtomicUsize,
    work: Box<dyn Fn(usize) + Send + Sync>,
    done: Mutex<usize>,
    all_done: Condvar,
}

/// Counts a part as done, also if its work panics: the caller would wait for ever.
struct Part<'a>(&'a Call);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut done = self.0.done.lock();
        *done += 1;
        if *done == self.0.parts {
            self.0.all_done.notify_all();
        }
    }
}

impl Call {
    /// Does parts until none is left.
    fn help(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            let _counted = Part(self);
            (self.work)(part);
        }
    }
}

impl Workers {
    /// Calls `work` with each number below `parts`, on several threads; returns when all calls have ended. `work` is not
    /// called after that.
    pub fn run(&self, parts: usize, work: impl Fn(usize) + Send + Sync + 'static) {
        let call = Arc::new(Call {
            parts,
            next: AtomicUsize::new(0),
            work: Box::new(work),
            done: Mutex::new(0),
            all_done: Condvar::new(),
        });
        self.ask(&call, parts.saturating_sub(1).min(HELPERS));
        call.help();
        let mut done = call.done.lock();
        while *done < parts {
            call.all_done.wait(&mut done);
        }
    }

    /// Has `helpers` threads help with a call. If there are fewer, the others do more.
    fn ask(&self, call: &Arc<Call>, helpers: usize) {
        let mut state = self.shared.state.lock();
        for _ in 0..helpers {
            state.queue.push_back(call.clone());
            if state.idle > 0 {
                state.idle -= 1;
                self.shared.wake.notify_one();
            } else if state.threads < HELPERS {
                let shared = self.shared.clone();
                let thread = std::thread::Builder::new().name("braid-python-io".into());
                state.threads += usize::from(thread.spawn(move || shared.serve()).is_ok());
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(call) = state.queue.pop_front() {
                drop(state);
                call.help();
                drop(call);
                state = self.state.lock();
            } else {
                state.idle += 1;
                self.wake.wait(&mut state);
            }
        }
    }
}
