//! The threads that answer requests. One of them at a time *leads*: it waits for a request at the
//! device; the others are busy or parked. Having got a request, the leader
//! * first calls another thread to lead, if the request may take long or others wait in the queue;
//! * otherwise answers it and leads on: a program's calls one after the other are then served
//!   without waking anybody but the program.
//!
//! A thread that has answered takes what waits in the queue, if requests lately did, before it parks: the
//! leader may be busy copying a large write out of the device.
//!
//! What looks short may block all the same, on a lock of another node. The *deputy* looks every
//! other millisecond whether the device has been without a leader since it last looked, and calls
//! one: so a request blocked on another node never holds up those behind it for longer. It also
//! sees to it that processors do not sleep deep in a burst of requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use braid_fs::FileSystem;
use braid_fs::lock::AbortOnPanic;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::abi::op;
use crate::caches::notify::{LetThrough, Near};
use crate::error::FuseError;
use crate::handlers::Server;
use crate::options::FuseOptions;
use crate::session::ring_threads::PreparedRing;
use crate::session::threads::Note;
use crate::transport::cpu_latency::{self, CpuLatency};
use crate::transport::payloads::Payloads;
use crate::transport::poller::RequestPoller;
use crate::transport::queue::{Class, HeldPages, class_of, held_pages};
use crate::transport::reply::{Device, Reply, Way};
use crate::transport::request::{Request, longest};
use crate::transport::space::Space;
use crate::waits::handle_lookups::is_bounded;
use crate::waits::user_shares::Begun;

/// Threads that stay parked, beyond one per processor, however long nothing happens.
const SPARE: usize = 2;
/// Threads beyond the bound, for requests that free others when all are busy: what they get besides
/// waits in the queue.
const KEPT: usize = 8;
/// Threads that answer page fills of one node while its pages are dropped, at most.
const HELPERS_MAX: usize = 8;
/// Others end after having been parked for so long.
const PARKED_MAX: Duration = Duration::from_secs(10);
/// How often the deputy looks.
const LOOK: Duration = Duration::from_millis(2);
/// After so many looks without any request, it sleeps until one comes.
const LOOKS_IDLE: u32 = 50;
const _: () = assert!(cpu_latency::LOOKS_QUIET < LOOKS_IDLE, "nobody looks any more");

#[derive(Debug)]
struct Pool<F: FileSystem> {
    device: Device,
    poller: RequestPoller,
    payloads: Arc<Payloads>,
    server: Arc<Server<F>>,
    threads_max: usize,
    /// Threads that answer.
    busy: AtomicUsize,
    spare: usize,
    /// Somebody leads.
    led: AtomicBool,
    /// Requests taken so far.
    taken: AtomicU64,
    /// The deputy sleeps.
    dozing: AtomicBool,
    state: Mutex<State>,
    /// A parked thread is called, or all are to end.
    called: Condvar,
    /// The deputy is called.
    roused: Condvar,
    ended: Condvar,
    /// Nodes whose page fills have threads of their own, and how many.
    helped: Mutex<HashMap<u64, usize>>,
    me: Weak<Self>,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// Threads that answer page fills: others read requests meanwhile.
    helpers: usize,
    parked: usize,
    /// Somebody has been called and is on the way. A second one would find nothing to do.
    coming: bool,
    failure: Option<FuseError>,
    /// Unmounted, or failed: everybody ends.
    closed: bool,
    /// The bound was met, and said so.
    bound_met: bool,
}

/// Answers requests until the device says that the file system is unmounted, and every request
/// under way is answered.
///
/// # Errors
/// The device failed, or no thread could be started.
pub fn run<F: FileSystem>(
    device: &Device,
    server: &Arc<Server<F>>,
    options: &FuseOptions,
    ring: Option<PreparedRing>,
) -> Result<(), FuseError> {
    let poller = RequestPoller::new(Arc::clone(device)).map_err(FuseError::Device)?;
    let pool = Arc::new_cyclic(|me| Pool {
        me: me.clone(),
        helped: Mutex::default(),
        device: Arc::clone(device),
        poller,
        payloads: Payloads::new(longest(server.terms().max_write.to_usize())),
        server: Arc::clone(server),
        threads_max: options.workers_max,
        busy: AtomicUsize::new(0),
        spare: std::thread::available_parallelism().map_or(1, usize::from) + SPARE,
        led: AtomicBool::new(false),
        taken: AtomicU64::new(0),
        dozing: AtomicBool::new(false),
        state: Mutex::default(),
        called: Condvar::new(),
        roused: Condvar::new(),
        ended: Condvar::new(),
    });
    server.link().held_up_by(Arc::downgrade(&pool));
    let ring = ring.map(|ring| {
        let note: Arc<dyn Note> = Arc::<Pool<F>>::clone(&pool);
        ring.start(device, server, options, note)
    });
    let deputy = Arc::clone(&pool);
    let latency = CpuLatency::new(options.keep_awake);
    let deputy = std::thread::Builder::new()
        .name("fuse-deputy".into())
        .spawn(move || deputy.stand_by(latency))
        .map_err(FuseError::Thread)?;
    let started = pool.start(&mut pool.state.lock());
    if started.is_err() {
        pool.close();
    }
    let mut state = pool.state.lock();
    while state.threads + state.helpers > 0 {
        pool.ended.wait(&mut state);
    }
    let failure = state.failure.take();
    drop(state);
    pool.close();
    // It does not panic; nothing is lost if it did.
    let _ = deputy.join();
    started.and(failure.map_or(Ok(()), Err))?;
    if let Some(ring) = ring {
        ring.wait();
    }
    Ok(())
}

impl<F: FileSystem> Note for Pool<F> {
    fn note(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.rouse();
    }
}

impl<F: FileSystem> LetThrough for Pool<F> {
    /// A thread of their own answers them one after the other, because all others may be busy. Those that it has not
    /// begun stay in their queues: when the pages need not be dropped any more, they wait like all.
    /// One that it has begun may wait for the node that wants the pages, as soon as others are dropped: then there is
    /// another thread.
    fn let_through(&self, node: u64, another: bool) {
        if !self.server.has_held_pages(node) || !self.is_to_help(node, another) {
            return;
        }
        let Some(pool) = self.me.upgrade() else { return };
        self.state.lock().helpers += 1;
        let thread = std::thread::Builder::new().name("fuse-fill".into());
        if let Err(error) = thread.spawn(move || pool.help(node)) {
            tracing::error!(%error, "cannot start a thread: programs wait for pages");
            Self::helps_no_more(&mut self.helped.lock(), node);
            self.ended_one();
        }
    }
    fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)> {
        self.server.unbegun_fills(node)
    }
}

impl<F: FileSystem> Pool<F> {
    /// Starts a thread, unless there are as many as there may be.
    fn start(self: &Arc<Self>, state: &mut State) -> Result<(), FuseError> {
        if state.threads >= self.threads_max && !state.bound_met {
            state.bound_met = true;
            tracing::warn!(
                threads = state.threads,
                "every thread is busy: requests wait, except those that others wait for (workers_max)"
            );
        }
        if state.threads >= self.threads_max + KEPT {
            return Ok(());
        }
        let pool = Arc::clone(self);
        std::thread::Builder::new()
            .name("fuse-worker".into())
            .spawn(move || pool.work())
            .map_err(FuseError::Thread)?;
        state.threads += 1;
        state.coming = true;
        Ok(())
    }
    /// Sends somebody to the device: a parked thread, or a new one.
    fn call(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.closed || state.coming || self.led.load(Ordering::SeqCst) {
            return;
        }
        if state.parked > 0 {
            state.coming = true;
            self.called.notify_one();
        } else if let Err(error) = self.start(&mut state) {
            tracing::error!(%error, "requests may have to wait");
        }
    }
    /// Everybody ends: parked threads at once, busy ones when they have answered.
    fn close(&self) {
        self.server.close();
        let mut state = self.state.lock();
        state.closed = true;
        self.called.notify_all();
        self.roused.notify_all();
    }

    /// Answers what a drop of a node's pages waits for.
    fn help(&self, node: u64) {
        let _abort = AbortOnPanic;
        let _place = self.server.place(&self.device);
        let mut space = Space::new(self.server.terms().max_write.to_usize());
        let mut scratch = Vec::new();
        loop {
            while let Some(message) = self.server.take_held_pages(node) {
                space.put(message);
                self.answer_one(&mut space, &mut scratch);
            }
            if self.server.has_held_pages(node) {
                // Of pages that the kernel may have locked together with those that are dropped: mostly it has not.
                std::thread::sleep(LOOK);
                continue;
            }
            let mut helped = self.helped.lock();
            // Whoever has put one into a queue before that may have seen that this thread is there.
            if !self.server.has_held_pages(node) {
                Self::helps_no_more(&mut helped, node);
                break;
            }
        }
        self.ended_one();
    }
    /// Whether a thread is to begin to answer fills of a node. It counts then, until [`Self::helps_no_more`].
    fn is_to_help(&self, node: u64, another: bool) -> bool {
        let mut helped = self.helped.lock();
        let threads = helped.entry(node).or_default();
        let begins = *threads == 0 || another && *threads < HELPERS_MAX;
        *threads += usize::from(begins);
        begins
    }
    fn helps_no_more(helped: &mut HashMap<u64, usize>, node: u64) {
        if let Some(threads) = helped.get_mut(&node) {
            *threads -= 1;
            if *threads == 0 {
                helped.remove(&node);
            }
        }
    }
    fn ended_one(&self) {
        self.state.lock().helpers -= 1;
        self.ended.notify_all();
    }

    fn work(self: Arc<Self>) {
        let _abort = AbortOnPanic;
        let failure = self.serve().err();
        if failure.is_some() {
            tracing::error!(?failure, "a thread that answers requests ended");
            self.close();
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
        let mut space = Space::new(self.server.terms().max_write.to_usize());
        let mut scratch = Vec::new();
        let _place = self.server.place(&self.device);
        self.state.lock().coming = false;
        while let Some(taken) = self.take(&mut space) {
            match taken {
                Ok(()) => {
                    self.leave(opcode(space.message()));
                    self.answer(&mut space, &mut scratch);
                }
                // ENOENT: the request was withdrawn while it was being read.
                // It may be long until this thread reads another: others have the memory meanwhile.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => space.clear(),
                Err(Errno::NODEV) => {
                    // Waits for locks would otherwise outlive the mount.
                    self.close();
                    return Ok(());
                }
                Err(errno) => return Err(FuseError::Device(errno)),
            }
        }
        Ok(())
    }
    /// Answers a request, and then what waits in the queue; or puts it there, if all threads but those
    /// kept for others are busy.
    fn answer(&self, space: &mut Space, scratch: &mut Vec<u8>) {
        let mut busy = self.busy.fetch_add(1, Ordering::SeqCst);
        let mut queued = false;
        if busy >= self.threads_max && class_of(space.message()) == Class::Other {
            let held = held_pages(space.message());
            queued = self.server.queue().push(space);
            self.let_through_if_dropped(held);
        }
        loop {
            if !queued {
                self.answer_within_bounds(space, busy, scratch);
            }
            queued = false;
            // A thread that is done, and leaves fewer busy threads than the bound, takes what waits
            // in the queue. So a queued request is taken at the latest by the last thread that was
            // busy when it was queued.
            if self.busy.fetch_sub(1, Ordering::SeqCst) > self.threads_max {
                return;
            }
            if self.server.queue().pop(space) {
                busy = self.busy.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            // What unlocks and closes may have come while every thread was busy, and waits for a few of its kind.
            let Some((class, uid)) = self.server.shares().begin_waiting(space) else { return };
            self.busy.fetch_add(1, Ordering::SeqCst);
            self.answer_for_users(class, uid, space, scratch);
            queued = true;
        }
    }
    /// A request has just begun to wait for which the kernel holds pages. Whoever began to drop them before has not
    /// seen it.
    fn let_through_if_dropped(&self, held: Option<HeldPages>) {
        let link = self.server.link();
        if let Some(held) = held.filter(|held| link.is_held_up_by(held, Near::MayBeLocked)) {
            self.let_through(held.node, link.is_held_up_by(&held, Near::Overlaps));
        }
    }
    /// Answers a request, unless too many of its kind or of its user are under way: then it waits until one of
    /// them ends. One that has ended is followed by the next of those that wait so. `busy`: threads that answer
    /// others.
    fn answer_within_bounds(&self, space: &mut Space, busy: usize, scratch: &mut Vec<u8>) {
        if is_bounded(space.message()) {
            let lookups = self.server.handle_lookups();
            let mut begun = lookups.begin(space);
            while begun {
                self.answer_one(space, scratch);
                begun = lookups.end(space);
            }
            return;
        }
        let class = class_of(space.message());
        let shares = self.server.shares().of(class).filter(|shares| shares.are_counted(busy));
        let Some(shares) = shares else { return self.answer_one(space, scratch) };
        let held = held_pages(space.message());
        let uid = self.server.user_of(space.message());
        match shares.begin(uid, space, busy >= self.threads_max) {
            Begun::Uncounted => self.answer_one(space, scratch),
            Begun::Counted(uid) => self.answer_for_users(class, uid, space, scratch),
            Begun::Waits => self.let_through_if_dropped(held),
            Begun::Refused => {
                if let Ok(request) = Request::parse(space.message()) {
                    let unique = request.header.unique;
                    Reply { way: Way::Device(&self.device), unique }.error(Errno::NOMEM);
                }
                space.clear();
            }
        }
    }
    /// Answers a request that counts for `uid`, and then those that waited for one of that class to end.
    fn answer_for_users(&self, class: Class, uid: u32, space: &mut Space, scratch: &mut Vec<u8>) {
        let Some(shares) = self.server.shares().of(class) else { return };
        let mut counted = Some(uid);
        while let Some(uid) = counted {
            self.answer_one(space, scratch);
            // Whoever serves users without end serves in turn what waits because all threads were busy. Not
            // who unlocks: no unlock waits for anything else.
            if class == Class::Other && self.server.queue().pop(space) {
                self.answer_one(space, scratch);
            }
            counted = shares.end(uid, space);
        }
    }
    fn answer_one(&self, space: &mut Space, scratch: &mut Vec<u8>) {
        space.with(|message| {
            self.server.answer(Way::Device(&self.device), message, scratch);
        });
        space.clear();
    }
    /// The next request. `None`: this thread is to end.
    fn take(&self, space: &mut Space) -> Option<Result<(), Errno>> {
        // Taking a large write out of the device is copying it. The leader may be doing that while
        // others wait in the queue.
        if self.led.load(Ordering::SeqCst) && self.poller.crowded() && space.prepare(&self.payloads)
        {
            if let Some(taken) = self.poller.beside(space) {
                return Some(taken.map(|len| space.filled(len)));
            }
            space.clear();
        }
        self.lead().then(|| {
            space.prepare_waiting(&self.payloads);
            let taken = self.poller.next(space).map(|len| space.filled(len));
            self.led.store(false, Ordering::SeqCst);
            taken
        })
    }
    /// Waits until this thread leads. `false`: it is to end.
    fn lead(&self) -> bool {
        if !self.led.swap(true, Ordering::SeqCst) {
            return true;
        }
        let mut state = self.state.lock();
        let mut waited = false;
        loop {
            if state.closed {
                return false;
            }
            // This is checked under the lock, so a thread that stops leading, and then calls, finds
            // this thread parked.
            if !self.led.swap(true, Ordering::SeqCst) {
                return true;
            }
            if waited && state.parked >= self.spare {
                return false;
            }
            state.parked += 1;
            waited = self.called.wait_for(&mut state, PARKED_MAX).timed_out();
            state.parked -= 1;
            state.coming = false;
        }
    }
    /// A thread has got a request: lets another one lead, or the deputy watch.
    fn leave(self: &Arc<Self>, opcode: u32) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.poller.crowded() || may_take_long(opcode) {
            self.call();
        } else {
            self.rouse();
        }
    }
    /// Something happens: the deputy looks again.
    fn rouse(&self) {
        if self.dozing.load(Ordering::SeqCst) {
            let _state = self.state.lock();
            self.dozing.store(false, Ordering::SeqCst);
            self.roused.notify_one();
        }
    }

    /// What the deputy does, until all ends.
    fn stand_by(self: Arc<Self>, mut latency: CpuLatency) {
        let (mut seen, mut idle) = (0, 0);
        let mut state = self.state.lock();
        while !state.closed {
            if idle < LOOKS_IDLE {
                self.roused.wait_for(&mut state, LOOK);
            } else {
                self.dozing.store(true, Ordering::SeqCst);
                // Either a leader that leaves sees `dozing`, or it is seen to have left.
                if self.led.load(Ordering::SeqCst)
                    && self.roused.wait_for(&mut state, PARKED_MAX).timed_out()
                {
                    self.payloads.give_back();
                    self.roused.wait(&mut state);
                }
                self.dozing.store(false, Ordering::SeqCst);
                idle = 0;
            }
            let taken = self.taken.load(Ordering::Relaxed);
            let led = self.led.load(Ordering::SeqCst);
            latency.look(taken.wrapping_sub(seen));
            if taken != seen {
                idle = 0;
            } else if led {
                idle += 1;
            } else {
                drop(state);
                self.call();
                state = self.state.lock();
            }
            seen = taken;
        }
    }
}

/// What a message asks for; 0, which nothing has, if it makes no sense.
fn opcode(message: &[u8]) -> u32 {
    Request::parse(message).map_or(0, |request| request.header.opcode)
}

/// Whether answering a request usually takes longer than calling another thread: contents are
/// moved, something is waited for.
fn may_take_long(opcode: u32) -> bool {
    !matches!(
        opcode,
        op::LOOKUP
            | op::FORGET
            | op::BATCH_FORGET
            | op::GETATTR
            | op::STATX
            | op::READLINK
            | op::SYMLINK
            | op::MKNOD
            | op::MKDIR
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::LINK
            | op::CREATE
            | op::OPEN
            | op::OPENDIR
            | op::FLUSH
            | op::RELEASE
            | op::RELEASEDIR
            | op::STATFS
            | op::GETXATTR
            | op::LISTXATTR
            | op::INTERRUPT
    )
}
