//! The threads that answer requests. Each reads one request, answers it, reads the next. When the
//! last thread that waited for a request gets one, another is started, so that a request blocked
//! on a lock of another node never holds up those behind it; threads beyond a few idle ones end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::dispatch::Server;
use crate::error::FuseError;
use crate::files::Files;
use crate::intake::Intake;
use crate::reply::Device;
use crate::request::RequestBuf;

/// Threads that may wait for a request at a time, beyond one per processor.
const IDLE_SPARE: usize = 2;

/// Superfluous threads end one in this time.
const END_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Pool<F> {
    device: Device,
    intake: Intake,
    server: Arc<Server<F>>,
    threads_max: usize,
    idle_max: usize,
    /// Waiting in read(2).
    idle: AtomicUsize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// When the last superfluous thread ended.
    ended: Option<Instant>,
    failure: Option<FuseError>,
    /// The bound was met, and said so.
    bound_met: bool,
}

/// Answers requests until the device says that the file system is unmounted, and every request
/// under way is answered.
///
/// # Errors
/// The device failed, or no thread could be started.
pub fn run<F: Files>(
    device: &Device,
    server: &Arc<Server<F>>,
    threads_max: usize,
) -> Result<(), FuseError> {
    let pool = Arc::new(Pool {
        device: Arc::clone(device),
        intake: Intake::new(Arc::clone(device)).map_err(FuseError::Device)?,
        server: Arc::clone(server),
        threads_max,
        idle_max: std::thread::available_parallelism().map_or(1, usize::from) + IDLE_SPARE,
        idle: AtomicUsize::new(0),
        state: Mutex::default(),
        ended: Condvar::new(),
    });
    pool.start()?;
    let mut state = pool.state.lock();
    while state.threads > 0 {
        pool.ended.wait(&mut state);
    }
    state.failure.take().map_or(Ok(()), Err)
}

impl<F: Files> Pool<F> {
    /// Starts a thread, unless there are as many as there may be.
    fn start(self: &Arc<Self>) -> Result<(), FuseError> {
        let mut state = self.state.lock();
        if state.threads >= self.threads_max {
            if !state.bound_met {
                state.bound_met = true;
                tracing::warn!(
                    threads = state.threads,
                    "every thread is busy; further requests wait (workers_max)"
                );
            }
            return Ok(());
        }
        let pool = Arc::clone(self);
        std::thread::Builder::new()
            .name("fuse-worker".into())
            .spawn(move || pool.work())
            .map_err(FuseError::Thread)?;
        state.threads += 1;
        Ok(())
    }

    /// Whether a superfluous thread may end. Few may at a time: a program's requests come in bursts,
    /// and a thread costs more to start than to keep.
    fn may_end(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.ended.is_none_or(|last| last.elapsed() >= END_INTERVAL);
        if may {
            state.ended = Some(Instant::now());
        }
        may
    }

    fn work(self: Arc<Self>) {
        let _abort = AbortOnPanic;
        let failure = self.serve().err();
        if failure.is_some() {
            tracing::error!(?failure, "a thread that answers requests ended");
        }
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.failure.is_none() {
            state.failure = failure;
        }
        self.ended.notify_all();
    }

    /// Until unmounted or superfluous.
    fn serve(self: &Arc<Self>) -> Result<(), FuseError> {
        let mut buf = RequestBuf::new(self.server.terms().max_write.to_usize());
        let mut scratch = Vec::new();
        let bed = self.intake.bed().map_err(FuseError::Device)?;
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let read = self.intake.next(&bed, buf.space());
            let others = self.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            match read {
                Ok(len) => {
                    if others == 0
                        && let Err(error) = self.start()
                    {
                        tracing::error!(%error, "requests may have to wait");
                    }
                    self.server.answer(&self.device, buf.filled(len), &mut scratch);
                    if self.idle.load(Ordering::SeqCst) >= self.idle_max && self.may_end() {
                        return Ok(());
                    }
                }
                // ENOENT: the request was withdrawn while it was being read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => {
                    // Waits for locks would otherwise outlive the mount.
                    self.server.close();
                    return Ok(());
                }
                Err(errno) => {
                    self.server.close();
                    return Err(FuseError::Device(errno));
                }
            }
        }
    }
}

/// Ends the process when a thread panics; the message has been printed by then.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a request met a broken invariant: this node stops");
            std::process::abort();
        }
    }
}
