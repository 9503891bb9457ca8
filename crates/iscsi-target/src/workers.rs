//! Threads that run what would keep a connection's reader from reading.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Most threads that wait for work or do it.
const THREADS_MAX: usize = 32;

/// What a worker does.
pub type Job = Box<dyn FnOnce() + Send>;

/// The workers of a target.
#[derive(Clone, Default)]
pub struct Workers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    stopped: bool,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({})", self.0.state.lock().threads)
    }
}

impl Workers {
    /// Has a job done, by a thread that is idle, or a new one, or the next that has time.
    pub fn run(&self, job: Job) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads >= THREADS_MAX {
            self.0.work.notify_one();
            return;
        }
        state.threads += 1;
        let inner = self.0.clone();
        let name = format!("target-{}", state.threads);
        let spawned = std::thread::Builder::new().name(name).spawn(move || inner.work());
        if let Err(error) = spawned {
            state.threads -= 1;
            tracing::error!(%error, "no thread for a command");
            if state.threads == 0 {
                // Nobody else would ever do it.
                let job = state.jobs.pop_back();
                drop(state);
                if let Some(job) = job {
                    job();
                }
            }
        }
    }
    /// A thread of its own: for a job that will sleep and is to keep no other from running, or that
    /// must run however busy the workers are. A worker runs it if there is no thread to be had.
    pub fn run_apart(&self, job: Job) {
        let kept = Arc::new(Mutex::new(Some(job)));
        let of_thread = kept.clone();
        let run = move || {
            let job = of_thread.lock().take();
            if let Some(job) = job {
                job();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("target-apart".into()).spawn(run) {
            tracing::warn!(%error, "no thread for a command of its own");
            let job = kept.lock().take();
            if let Some(job) = job {
                self.run(job);
            }
        }
    }
    /// Ends the threads when their work is done.
    pub fn stop(&self) {
        self.0.state.lock().stopped = true;
        self.0.work.notify_all();
    }
}

impl Inner {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            if state.stopped {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            self.work.wait(&mut state);
            state.idle -= 1;
        }
    }
}
