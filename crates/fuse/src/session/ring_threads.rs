//! The threads that answer requests by io_uring, one for each [`RingEntry`]. A few for each processor's
//! queue are there from the start; as long as fewer than [`RESERVE`] of a queue are free, more are
//! added, up to the bound of all that answer: a request that waits has its thread, and the next one
//! finds another.
//!
//! FORGET and INTERRUPT still come from the device, and everything does if the kernel refuses.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use braid_device::processors;
use braid_fs::FileSystem;
use braid_fs::lock::AbortOnPanic;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::handlers::Server;
use crate::options::FuseOptions;
use crate::session::threads::Note;
use crate::transport::reply::{Device, Way};
use crate::transport::request::RequestBuf;
use crate::transport::ring::RingEntry;

/// RingThreads of each queue at the start.
const FIRST: usize = 4;
/// The least of them.
const LEAST: usize = 2;
/// RingThreads of a queue that are to be free.
const RESERVE: usize = 2;
/// The processors that there may ever be: each has a queue.
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

type Work = Box<dyn FnOnce(RingEntry) + Send>;

/// Threads with their entries, of which the kernel does not know yet. They end when this is dropped.
#[derive(Debug)]
pub struct PreparedRing {
    queues: u16,
    threads: Vec<(u16, SyncSender<Work>)>,
}

impl PreparedRing {
    /// Everything that the kernel could refuse, short of taking requests to it.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn new(device: &Device, max: usize, options: &FuseOptions) -> Result<Self, String> {
        let text = std::fs::read_to_string(PROCESSORS).map_err(|e| format!("{PROCESSORS}: {e}"))?;
        let queues = processors(&text).ok_or_else(|| format!("{PROCESSORS} says {text:?}"))?;
        raise_descriptors(options.workers_max);
        let each = (options.workers_max / usize::from(queues)).min(FIRST);
        if each < LEAST {
            let need = LEAST * usize::from(queues);
            return Err(format!("{queues} processors need workers_max={need} or more"));
        }
        let mut threads = Vec::new();
        for queue in (0..queues).flat_map(|queue| std::iter::repeat_n(queue, each)) {
            let (give, work) = sync_channel(1);
            let (tell, made) = sync_channel(1);
            let device = Arc::clone(device);
            spawn(move || sit(&device, queue, max, &tell, &work))
                .map_err(|e| format!("cannot start a thread: {e}"))?;
            made.recv().map_err(|e| e.to_string())?.map_err(|e| format!("io_uring: {e}"))?;
            threads.push((queue, give));
        }
        Ok(Self { queues, threads })
    }
    /// Tells the kernel of the entries: requests are answered from now on.
    pub fn start<F: FileSystem>(
        self,
        device: &Device,
        server: &Arc<Server<F>>,
        options: &FuseOptions,
        note: Arc<dyn Note>,
    ) -> Arc<RingThreads<F>> {
        let queue = |_| Queue { free: AtomicUsize::new(0), coming: AtomicBool::new(false) };
        let all = Arc::new(RingThreads {
            device: Arc::clone(device),
            server: Arc::clone(server),
            queues: (0..self.queues).map(queue).collect(),
            threads_max: options.workers_max,
            mount_point: options.mount_point.clone(),
            note,
            threads: Mutex::new(self.threads.len()),
            bound_met: AtomicBool::new(false),
            ended: Condvar::new(),
        });
        for (queue, give) in self.threads {
            let work = Arc::clone(&all);
            // It waits for this.
            let _ = give.send(Box::new(move |entry| work.run(entry, queue, Came::First)));
        }
        all
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("fuse-ring".into()).spawn(work).map(drop)
}

/// A thread before it has its first work.
fn sit(
    device: &Device,
    queue: u16,
    max: usize,
    tell: &SyncSender<std::io::Result<()>>,
    work: &Receiver<Work>,
) {
    processors::keep_to(usize::from(queue));
    match RingEntry::new(device, queue, max) {
        Ok(entry) => {
            let _ = tell.send(Ok(()));
            if let Ok(work) = work.recv() {
                work(entry);
            }
        }
        Err(error) => drop(tell.send(Err(error))),
    }
}

/// Each thread has a ring of its own here, and another for the devices: allows for that many
/// descriptors, as far as this process may.
fn raise_descriptors(threads: usize) {
    let need = u64::try_from(threads).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(1024);
    let mut limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(need, |most| most.min(need));
    if limit.current.is_some_and(|now| now < allowed) {
        limit.current = Some(allowed);
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// How many processors a list such as `0-3,8` names.
fn processors(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for range in list.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (from.parse::<u16>().ok()?, to.parse::<u16>().ok()?);
        count = count.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    Some(count)
}

#[derive(Debug)]
struct Queue {
    free: AtomicUsize,
    /// One more is on the way.
    coming: AtomicBool,
}

/// When an entry came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// With the mount, before anybody could waits in the queue.
    First,
    /// Later, because few were free.
    Added,
}

/// The threads of a mount.
pub struct RingThreads<F: FileSystem> {
    device: Device,
    server: Arc<Server<F>>,
    queues: Vec<Queue>,
    threads_max: usize,
    mount_point: PathBuf,
    /// Is called for every request.
    note: Arc<dyn Note>,
    threads: Mutex<usize>,
    /// That there is no further thread has been said.
    bound_met: AtomicBool,
    ended: Condvar,
}

impl<F: FileSystem> RingThreads<F> {
    /// Waits until the mount is gone and every request under way is answered.
    pub fn wait(&self) {
        let mut threads = self.threads.lock();
        while *threads > 0 {
            self.ended.wait(&mut threads);
        }
    }
    fn queue(&self, queue: u16) -> &Queue {
        &self.queues[usize::from(queue)]
    }

    fn run(self: Arc<Self>, mut entry: RingEntry, queue: u16, came: Came) {
        let _abort = AbortOnPanic;
        if let Err(errno) = self.serve(&mut entry, queue, came) {
            tracing::warn!(queue, %errno, "the kernel refused a thread that answers requests");
        }
        self.leave();
    }
    fn leave(&self) {
        *self.threads.lock() -= 1;
        self.ended.notify_all();
    }
    /// Until unmounted.
    fn serve(self: &Arc<Self>, entry: &mut RingEntry, queue: u16, came: Came) -> Result<(), Errno> {
        entry.register().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let own = self.queue(queue);
        own.coming.store(false, Ordering::SeqCst);
        let mut copy = RequestBuf::new(self.server.terms().max_write.to_usize());
        let mut scratch = Vec::new();
        let _place = self.server.place(&self.device);
        own.free.fetch_add(1, Ordering::SeqCst);
        if came == Came::Added {
            self.nudge(queue);
        }
        loop {
            let taken = match entry.next(&mut copy) {
                Ok(taken) => taken,
                Err(Errno::NOTCONN | Errno::CANCELED | Errno::CONNABORTED) => break,
                Err(errno) => {
                    own.free.fetch_sub(1, Ordering::SeqCst);
                    return Err(errno);
                }
            };
            let left = own.free.fetch_sub(1, Ordering::SeqCst) - 1;
            self.note.note();
            if left < RESERVE {
                self.grow(queue);
            }
            taken.serve(&mut copy, |entry, message| {
                self.server.answer(Way::Ring(entry), message, &mut scratch);
            });
            own.free.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
    /// One more entry in a queue.
    fn grow(self: &Arc<Self>, queue: u16) {
        if self.queue(queue).coming.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut threads = self.threads.lock();
        if *threads >= self.threads_max {
            return self.no_more(queue, "as many as workers_max");
        }
        let all = Arc::clone(self);
        let started = spawn(move || {
            processors::keep_to(usize::from(queue));
            let max = all.server.terms().max_write.to_usize();
            match RingEntry::new(&all.device, queue, max) {
                Ok(entry) => all.run(entry, queue, Came::Added),
                Err(error) => {
                    all.no_more(queue, &error.to_string());
                    all.leave();
                }
            }
        });
        match started {
            Ok(()) => *threads += 1,
            Err(error) => self.no_more(queue, &error.to_string()),
        }
    }
    /// There is no further entry for now.
    fn no_more(&self, queue: u16, why: &str) {
        self.queue(queue).coming.store(false, Ordering::SeqCst);
        if !self.bound_met.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "every thread is busy; further requests wait");
        }
    }
    /// The kernel gives a request that waits in its queue to an entry that has just been answered,
    /// not to an entry that has just come. This makes a request that the new entry gets and
    /// answers, so that it takes one from the line, whatever all the others wait for. Each added
    /// entry needs that: when it was asked for, another was free, but the line may have formed
    /// since.
    fn nudge(&self, queue: u16) {
        let mount_point = self.mount_point.clone();
        let _ = spawn(move || {
            processors::keep_to(usize::from(queue));
            let _ = rustix::fs::statfs(&mount_point);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(processors("0-1\n"), Some(2));
        assert_eq!(processors("0\n"), Some(1));
        assert_eq!(processors("0-3,8,10-11\n"), Some(7));
        for bad in ["", "x", "3-1", "0-65535", "1-"] {
            assert_eq!(processors(bad), None, "{bad}");
        }
    }
}
