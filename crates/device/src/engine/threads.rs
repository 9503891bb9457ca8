//! Threads that call `pread`, `pwrite` and `fdatasync`, shared by the whole process: as many as
//! there are calls at once, up to a limit; an idle one ends after a while.
//!
//! A forked child has workers of its own. Locks are std's: each stands in its own memory, and these
//! are new in the child. Those of `parking_lot` share a table, in which the parent's threads may be
//! changing something at the moment of the fork, and then hold it for ever in the child.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::call::{Call, Kind, Memory};

/// Most threads of a process.
const THREADS_MAX: usize = 32;
/// An idle thread ends after this.
const IDLE: Duration = Duration::from_secs(10);

/// Nothing here is left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where one engine's completions are put.
#[derive(Debug, Default)]
struct Mailbox {
    done: Mutex<Vec<(u32, i32)>>,
    arrived: Condvar,
}

struct Job {
    token: u32,
    call: Call,
    to: Arc<Mailbox>,
}
// SAFETY: the memory of the call belongs to the call until its completion is posted
// (contract of `push`), and system calls may be made on it from any thread.
unsafe impl Send for Job {}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Workers {
    jobs: Mutex<Jobs>,
    work: Condvar,
}

impl Workers {
    /// This process's. A forked child has its own: threads do not survive a `fork`.
    fn of_this_process() -> Arc<Self> {
        static WORKERS: Mutex<Option<(u32, Arc<Workers>)>> = Mutex::new(None);
        let process = std::process::id();
        let mut workers = lock(&WORKERS);
        match &*workers {
            Some((owner, w)) if *owner == process => w.clone(),
            _ => workers.insert((process, Arc::default())).1.clone(),
        }
    }
    /// Queues a job; `false` when no thread is there to do it and none can be started.
    fn submit(self: &Arc<Self>, job: Job) -> Result<(), Job> {
        let mut jobs = lock(&self.jobs);
        jobs.queue.push_back(job);
        if jobs.idle >= jobs.queue.len() || jobs.threads >= THREADS_MAX {
            self.work.notify_one();
            return Ok(());
        }
        let me = self.clone();
        let spawned =
            std::thread::Builder::new().name("braid-io".to_owned()).spawn(move || me.work());
        match spawned {
            Ok(_) => jobs.threads += 1,
            // Others will come to it.
            Err(_) if jobs.threads > 0 => {}
            Err(_) => return jobs.queue.pop_back().map_or(Ok(()), Err),
        }
        self.work.notify_one();
        Ok(())
    }
    fn work(&self) {
        crate::processors::roam();
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                drop(jobs);
                // SAFETY: contract of `push`: the memory and the descriptor last until the post.
                let result = unsafe { perform(&job.call) };
                post(&job, result);
                jobs = lock(&self.jobs);
                continue;
            }
            jobs.idle += 1;
            let slept = self.work.wait_timeout(jobs, IDLE);
            let (woken, slept) = slept.unwrap_or_else(PoisonError::into_inner);
            jobs = woken;
            jobs.idle -= 1;
            if slept.timed_out() && jobs.queue.is_empty() {
                jobs.threads -= 1;
                return;
            }
        }
    }
}

fn post(job: &Job, result: i32) {
    lock(&job.to.done).push((job.token, result));
    job.to.arrived.notify_one();
}

/// One system call: bytes moved, or a negative error number, as a ring would say it.
///
/// # Safety
/// `call.memory` may be read or written by the kernel.
pub(super) unsafe fn perform(call: &Call) -> i32 {
    let at = i64::try_from(call.at).unwrap_or(i64::MAX);
    let fd = call.fd;
    // SAFETY: the caller's promise; a flush takes no memory.
    let moved = unsafe {
        match (call.kind, call.memory) {
            (Kind::Read, Memory::Plain(base, len)) => {
                libc::pread64(fd, base.cast(), len as usize, at)
            }
            (Kind::Write, Memory::Plain(base, len)) => {
                libc::pwrite64(fd, base.cast_const().cast(), len as usize, at)
            }
            (Kind::Read, Memory::Vectors(list, len)) => {
                libc::preadv64(fd, list, len.cast_signed(), at)
            }
            (Kind::Write, Memory::Vectors(list, len)) => {
                libc::pwritev64(fd, list, len.cast_signed(), at)
            }
            (Kind::Flush, _) => libc::fdatasync(fd) as isize,
        }
    };
    if moved < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    i32::try_from(moved).unwrap_or(i32::MAX)
}

/// An engine on the process's threads.
pub(super) struct Threads {
    workers: Arc<Workers>,
    mailbox: Arc<Mailbox>,
    /// For another thread it would do, but engines are of one thread.
    _thread: std::marker::PhantomData<*const ()>,
}
impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Threads")
    }
}

impl Threads {
    pub fn new() -> Self {
        Self {
            workers: Workers::of_this_process(),
            mailbox: Arc::default(),
            _thread: std::marker::PhantomData,
        }
    }
    /// # Safety
    /// See [`Call`].
    pub unsafe fn push(&mut self, token: u32, call: &Call) {
        let job = Job { token, call: *call, to: self.mailbox.clone() };
        if let Err(job) = self.workers.submit(job) {
            // SAFETY: the caller's promise.
            let result = unsafe { perform(&job.call) };
            post(&job, result);
        }
    }
    pub fn wait(&mut self, at_least: usize, done: &mut Vec<(u32, i32)>) {
        let mut mail = lock(&self.mailbox.done);
        loop {
            done.append(&mut mail);
            if done.len() >= at_least {
                return;
            }
            mail = self.mailbox.arrived.wait(mail).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
