//! Messages to the kernel that no request asked for: drops of cached attributes, pages and names.
//!
//! None but drops of attributes alone is sent by a thread that answers requests: dropping pages waits
//! for page fills, and a fill waits for an answer. Drops on behalf of the cluster come from the file system's demotion
//! threads; drops of pages that a local write has made old come from the threads of [`DeferredAnswers`],
//! which then answer the write.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_fs::lock::{may_be_locked_together, overlap};
use braid_fs::{KernelCache, UnseenWrite};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InvalInodeOut, PruneOut, ROOT_ID, notify};
use crate::caches::lease_gate::{LeaseGate, Rounds};
use crate::caches::moves::Moves;
use crate::caches::nodes::Nodes;
use crate::transport::queue::HeldPages;
use crate::transport::reply::{Device, Reply, Way, send};
use braid_device::processors;

/// Between two tries to drop an inode that the kernel makes of an answer it has been given.
const RETRY_FIRST: Duration = Duration::from_micros(20);
/// The longest such pause.
const RETRY_LONGEST: Duration = Duration::from_millis(5);
/// A node that no program has taken from its answer for so long counts as used.
const PRUNE_WITHIN: Duration = Duration::from_secs(1);
/// A thread that waits for a lock waits for so long until a program has taken the answer that fills
/// the cache. On a machine with much to do a program may not run for seconds; to go on means that
/// it reads what is old.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Threads that answer writes after dropping pages.
const DEFERRED_THREADS_MAX: usize = 8;
/// Threads that drop everything.
const DROPPERS: usize = 4;
/// What nobody holds up is dropped within this time.
const DROPPED_WITHIN: Duration = Duration::from_millis(16);
/// Between two tries to end the requests that keep pages from being dropped.
const FAIL_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Connection {
    device: Device,
    root: InodeNo,
    /// Names are cached that other nodes may change.
    drop_names: bool,
}

impl Connection {
    /// The root is 1 to the kernel.
    fn node(&self, ino: InodeNo) -> u64 {
        if ino == self.root { ROOT_ID } else { ino.get() }
    }
    /// Drops all names, if any are cached that other nodes may change.
    fn drop_all_names(&self) {
        if !self.drop_names {
            return;
        }
        match send(&self.device, 0, notify::INC_EPOCH, [&[], &[]]) {
            Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => {}
            Err(errno) => tracing::error!(%errno, "the kernel refused to drop names"),
        }
    }
    /// Drops the attributes of a node, and nothing else: waits for nobody.
    ///
    /// # Errors
    /// `ENOENT`: the kernel does not have it.
    fn drop_attributes(&self, node: u64) -> Result<(), Errno> {
        let message = InvalInodeOut { ino: node, off: -1, len: 0 };
        send(&self.device, 0, notify::INVAL_INODE, [message.as_bytes(), &[]])
    }
}

/// Has requests answered that wait for a thread, and for which the kernel holds a node's pages.
pub(crate) trait LetThrough: Send + Sync {
    /// Begins a thread that answers them as long as they hold up what is being dropped of it. `another`: also if there is
    /// one, because that one may be waiting itself.
    fn let_through(&self, node: u64, another: bool);
    /// The bytes of its pages that are to be filled by requests that wait for a thread. Never blocks.
    fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)>;
}

/// The way from the file system to the kernel's caches; a session has one
/// ([`crate::Session::kernel_cache`]). Until it serves, and after the unmount, the kernel caches
/// nothing and every call returns at once.
#[derive(Default)]
pub struct KernelLink {
    connection: OnceLock<Connection>,
    nodes: Arc<Nodes>,
    moves: Arc<Moves>,
    /// The mount is gone, and the kernel's caches with it.
    gone: AtomicBool,
    /// This kernel cannot be told to let go of an inode (before Linux 6.18).
    cannot_prune: AtomicBool,
    gate: LeaseGate,
    /// What is being dropped of the pages of nodes, for each thread that does so.
    going: Mutex<BTreeMap<u64, Vec<Dropped>>>,
    through: OnceLock<Weak<dyn LetThrough>>,
    /// Held while everything is dropped: whether that was done since the mount was suspended for good.
    dropping: Mutex<bool>,
    me: Weak<Self>,
}

impl std::fmt::Debug for KernelLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelLink").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// Bytes (from, to) that are being dropped, and since when.
type Dropped = ((u64, u64), Instant);

/// How near pages are to those that are being dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near {
    /// They are among them.
    Overlaps,
    /// The kernel may have locked them together: it locks more than a page at a time.
    MayBeLocked,
    /// The same, and that takes longer than to drop what nobody holds up.
    IsPerhapsLocked,
}

/// Pages of a node are being dropped, until this is dropped.
struct Going<'a>(&'a KernelLink, u64, (u64, u64));

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let mut going = self.0.going.lock();
        if let Some(ranges) = going.get_mut(&self.1) {
            if let Some(own) = ranges.iter().position(|(range, _)| *range == self.2) {
                ranges.swap_remove(own);
            }
            if ranges.is_empty() {
                going.remove(&self.1);
            }
        }
    }
}

impl KernelLink {
    /// Not connected yet.
    pub(crate) fn new() -> Arc<Self> {
        let nodes = Arc::<Nodes>::default();
        let moves = Moves::new(Arc::clone(&nodes));
        Arc::new_cyclic(|me| Self { me: me.clone(), nodes, moves, ..Self::default() })
    }
    /// From now on the kernel may cache. `drop_names`: names too, and other nodes may change them.
    pub(crate) fn connect(&self, device: Device, root: InodeNo, drop_names: bool) {
        // A session serves once.
        self.connection.get_or_init(|| Connection { device, root, drop_names });
    }
    /// The kernel has let go of the mount: nothing is cached any more, and inodes went without a
    /// FORGET each.
    pub(crate) fn disconnect(&self) {
        self.gone.store(true, Ordering::Release);
    }
    /// Whether requests are answered.
    pub(crate) fn gate(&self) -> &LeaseGate {
        &self.gate
    }
    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }
    pub(crate) fn moves(&self) -> &Arc<Moves> {
        &self.moves
    }
    /// Inodes that the kernel holds, for status displays.
    pub fn inodes_in_kernel(&self) -> usize {
        self.nodes.len()
    }

    /// Who has requests answered that a drop of pages waits for.
    pub(crate) fn held_up_by(&self, requests: Weak<impl LetThrough + 'static>) {
        self.through.get_or_init(|| requests);
    }
    /// Whether pages are being dropped that the kernel holds, or may hold: whatever it holds them for does not wait for
    /// a thread.
    pub(crate) fn is_held_up_by(&self, held: &HeldPages, near: Near) -> bool {
        let is_held_up = |(bytes, since): &Dropped| match near {
            Near::Overlaps => overlap(*bytes, held.bytes),
            Near::MayBeLocked => may_be_locked_together(*bytes, held.bytes),
            Near::IsPerhapsLocked => {
                since.elapsed() > DROPPED_WITHIN && may_be_locked_together(*bytes, held.bytes)
            }
        };
        self.going.lock().get(&held.node).is_some_and(|ranges| ranges.iter().any(is_held_up))
    }
    /// Pages of a node are about to be dropped, which waits until each request is answered for which the kernel
    /// holds some: also those that no thread has begun, and whose threads may all wait for who wants the drop.
    fn goes(&self, node: u64, (from, len): (u64, u64)) -> Going<'_> {
        let range = (from, if len == 0 { u64::MAX } else { from.saturating_add(len) });
        self.going.lock().entry(node).or_default().push((range, Instant::now()));
        let going = Going(self, node, range);
        if let Some(requests) = self.through.get().and_then(Weak::upgrade) {
            requests.let_through(node, true);
        }
        going
    }

    /// Drops attributes of `ino`, if the kernel may have any, as `marked` says.
    fn outdate(&self, ino: InodeNo, marked: impl FnOnce(u64) -> bool) {
        let Some(connection) = self.connection.get() else { return };
        let node = connection.node(ino);
        if marked(node) && !self.gone.load(Ordering::Acquire) {
            // A kernel that does not have the inode yet takes it from an answer that is on its way:
            // nobody has seen the attributes in that one, or later ones.
            let _ = connection.drop_attributes(node);
        }
    }

    /// Has the kernel drop a node that no program uses. Returns whether one does.
    fn prune(&self, connection: &Connection, node: u64) -> bool {
        let message = PruneOut { count: 1, ..PruneOut::default() };
        let node_id = node.to_ne_bytes();
        match send(&connection.device, 0, notify::PRUNE, [message.as_bytes(), &node_id]) {
            Ok(()) => {}
            Err(Errno::INVAL) => {
                self.cannot_prune.store(true, Ordering::Relaxed);
                return false;
            }
            Err(_) => return false,
        }
        let (start, mut pause) = (Instant::now(), RETRY_FIRST);
        while start.elapsed() < PRUNE_WITHIN {
            match connection.drop_attributes(node) {
                Ok(()) => return true,
                // Dropped, unless an answer that is on its way makes it again.
                Err(Errno::NOENT) => {
                    let settled = self.nodes.settled(node, Instant::now());
                    if settled || !self.nodes.referred(node) || self.gone.load(Ordering::Acquire) {
                        return false;
                    }
                }
                Err(_) => return false,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY_LONGEST);
        }
        true
    }

    /// Drops attributes of a node, and pages of `range` (bytes from, bytes; 0: to the end). If the
    /// kernel does not have the node, but an answer under way makes it with attributes that stay
    /// valid, waits until the program that asked has taken that answer: nothing but the processor is
    /// needed for that.
    fn drop_node(&self, device: &Device, node: u64, range: Option<(u64, u64)>, within: Duration) {
        let Some(promised) = self.nodes.invalidating(node) else { return };
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        let _going = range.map(|range| self.goes(node, range));
        let (from, len) = range.unwrap_or_default();
        let message = InvalInodeOut {
            ino: node,
            off: if range.is_some() { i64::try_from(from).unwrap_or(i64::MAX) } else { -1 },
            len: i64::try_from(len).unwrap_or(0),
        };
        let (start, mut pause) = (Instant::now(), RETRY_FIRST);
        while start.elapsed() < within {
            match send(device, 0, notify::INVAL_INODE, [message.as_bytes(), &[]]) {
                Ok(()) => return self.nodes.dropped(node, promised),
                Err(Errno::NODEV | Errno::NOTCONN) => return,
                Err(Errno::NOENT) => {
                    let gone = self.gone.load(Ordering::Acquire);
                    let awaited = self.nodes.promises_under_way(node, Instant::now(), TAKEN_WITHIN);
                    if gone || !awaited || node == ROOT_ID {
                        return;
                    }
                }
                Err(errno) => {
                    tracing::error!(inode = node, %errno, "the kernel refused to drop its cache");
                    return;
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY_LONGEST);
        }
        tracing::warn!(
            inode = node,
            "attributes sent to a program were not taken within {within:?}: they may be stale"
        );
    }
}

impl KernelLink {
    /// Drops attributes and pages of all nodes by several threads, so that one that waits for a page does not delay
    /// the rest.
    fn drop_by_threads(&self, connection: &Connection, within: Duration) -> Arc<Rounds> {
        let rounds = Rounds::new(self.nodes.all());
        for _ in 0..DROPPERS {
            let (rounds, me, device) =
                (Arc::clone(&rounds), self.me.clone(), Arc::clone(&connection.device));
            let work = move || {
                let Some(me) = me.upgrade() else { return };
                rounds.work(|node| me.drop_node(&device, node, Some((0, 0)), within));
            };
            let started = std::thread::Builder::new().name("fuse-drop".into()).spawn(work);
            if let Err(error) = started {
                tracing::error!(%error, "cannot start a thread");
            }
        }
        rounds
    }
    /// Drops everything that the kernel may have, by several threads, so that one that waits for a
    /// page does not delay the rest. After a quarter of `within` requests that hold pages are
    /// failed.
    fn drop_all(&self, connection: &Connection, within: Duration) {
        let since = Instant::now();
        connection.drop_all_names();
        let rounds = self.drop_by_threads(connection, within);
        let end = since + within;
        let mut left = rounds.wait_until(since + within / 4);
        while left > 0 && Instant::now() < end {
            self.gate.fail_pages(&connection.device);
            left = rounds.wait_until(Instant::now() + FAIL_AGAIN);
        }
        if left > 0 {
            tracing::error!(
                "{left} inodes are still in the kernel's caches after {within:?}: programs here may read what other nodes have changed since"
            );
        }
    }
}

impl KernelCache for KernelLink {
    fn suspend(&self, for_good: bool, within: Duration, patience: Duration) {
        let new = self.gate.suspend(for_good, patience);
        let Some(connection) = self.connection.get() else { return };
        // A second caller waits until the first is done.
        let mut dropped = self.dropping.lock();
        if *dropped || !(new || for_good) || self.gone.load(Ordering::Acquire) {
            return;
        }
        self.drop_all(connection, within);
        *dropped = for_good;
    }
    fn resume(&self) {
        self.gate.resume();
    }
    fn drop_pages(&self) {
        let Some(connection) = self.connection.get() else { return };
        // Nobody waits until they are done: one may wait for another node.
        self.drop_by_threads(connection, TAKEN_WITHIN);
    }
    fn invalidate_inode(&self, ino: InodeNo, data: bool) {
        let Some(connection) = self.connection.get() else { return };
        let node = connection.node(ino);
        self.nodes.pulled(node, Instant::now());
        self.drop_node(&connection.device, node, data.then_some((0, 0)), TAKEN_WITHIN);
    }
    fn unbegun_fills(&self, ino: InodeNo) -> Vec<(u64, u64)> {
        let requests = self.through.get().and_then(Weak::upgrade);
        let node = self.connection.get().map(|connection| connection.node(ino));
        requests.zip(node).map_or_else(Vec::new, |(requests, node)| requests.unbegun_fills(node))
    }
    fn invalidate_pages(&self, ino: InodeNo, bytes: Range<u64>) {
        let Some(connection) = self.connection.get() else { return };
        let range = (bytes.start, bytes.end - bytes.start);
        self.drop_node(&connection.device, connection.node(ino), Some(range), TAKEN_WITHIN);
    }
    fn handed_out(&self, ino: InodeNo) {
        if let Some(connection) = self.connection.get() {
            self.nodes.entered(connection.node(ino), Instant::now());
        }
    }
    fn kept_back(&self, ino: InodeNo) {
        if let Some(connection) = self.connection.get() {
            // Its last reference may be gone: then the inode is looked at when the file system next
            // looks after its orphans.
            self.nodes.forgot(connection.node(ino), 1);
        }
    }
    fn refers(&self, ino: InodeNo) -> bool {
        let connection = self.connection.get();
        let gone = self.gone.load(Ordering::Acquire);
        !gone && connection.is_some_and(|c| self.nodes.referred(c.node(ino)))
    }
    fn let_go(&self, ino: InodeNo) -> bool {
        if !self.refers(ino) || self.cannot_prune.load(Ordering::Relaxed) {
            return false;
        }
        let Some(connection) = self.connection.get() else { return false };
        self.prune(connection, connection.node(ino))
    }
    fn attributes_changed(&self, ino: InodeNo) {
        self.outdate(ino, |node| self.nodes.outdated(node));
    }
    fn change_begins(&self, ino: InodeNo) {
        self.outdate(ino, |node| self.nodes.change(node, true));
    }
    fn change_ends(&self, ino: InodeNo) {
        self.outdate(ino, |node| self.nodes.change(node, false));
    }
    fn directory_moved(&self, ino: InodeNo, dir: InodeNo) {
        if let Some(connection) = self.connection.get() {
            self.nodes.placed(connection.node(ino), connection.node(dir));
        }
    }
    fn invalidate_entries(&self, _dir: InodeNo) {
        let Some(connection) = self.connection.get() else { return };
        connection.drop_all_names();
    }
}

/// A write that makes a file longer, until this is dropped: see [`Nodes::grows`].
#[derive(Debug)]
pub(crate) struct Growth {
    link: Arc<KernelLink>,
    node: u64,
}

impl Growth {
    pub fn begin(link: &Arc<KernelLink>, node: u64, size: u64) -> Self {
        link.nodes.grows(node, size);
        Self { link: Arc::clone(link), node }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.link.nodes.grown(self.node);
    }
}

/// What is called when the pages of a write are dropped.
#[derive(Debug)]
pub(crate) enum AnswerTo {
    /// The program, by an answer to this request.
    Program(Device, u64),
    /// The thread that answers the program.
    Thread(SyncSender<()>),
}

/// A write that is done, but whose pages in the kernel may be old.
#[derive(Debug)]
pub(crate) struct DeferredAnswer {
    pub told: AnswerTo,
    pub node: u64,
    /// First byte and number of bytes; 0: to the end.
    pub range: (u64, u64),
    /// The writes, until the pages are dropped.
    pub unseen: Vec<UnseenWrite>,
    /// The kernel is told the size before, until the answer goes.
    pub growth: Option<Growth>,
    /// The answer.
    pub answer: Vec<u8>,
}

#[derive(Debug, Default)]
struct DeferredState {
    queue: VecDeque<DeferredAnswer>,
    idle: usize,
    threads: usize,
    closed: bool,
}

/// Threads that drop the pages, then answer the write. The queue is bounded by the programs that
/// wait in write(2); the threads by [`DEFERRED_THREADS_MAX`], since one can be held up by a page fill
/// that waits for another node.
#[derive(Debug)]
pub(crate) struct DeferredAnswers {
    link: Arc<KernelLink>,
    state: Mutex<DeferredState>,
    wake: Condvar,
}

impl DeferredAnswers {
    pub fn new(link: Arc<KernelLink>) -> Arc<Self> {
        Arc::new(Self { link, state: Mutex::default(), wake: Condvar::new() })
    }
    /// Takes over the answer of a write.
    pub fn submit(self: &Arc<Self>, write: DeferredAnswer) {
        let mut state = self.state.lock();
        state.queue.push_back(write);
        let grow = state.queue.len() > state.idle && state.threads < DEFERRED_THREADS_MAX;
        if grow {
            let me = Arc::clone(self);
            let started =
                std::thread::Builder::new().name("fuse-answers".into()).spawn(move || me.run());
            match started {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread");
                    if state.threads == 0 {
                        // Nobody would ever answer. The page cache may stay old until the lock
                        // moves; better than a program that hangs.
                        if let Some(write) = state.queue.pop_back() {
                            drop(state);
                            answer(write);
                        }
                        return;
                    }
                }
            }
        }
        drop(state);
        self.wake.notify_one();
    }
    fn run(&self) {
        processors::roam();
        let mut state = self.state.lock();
        loop {
            if let Some(write) = state.queue.pop_front() {
                drop(state);
                if let Some(connection) = self.link.connection.get() {
                    let link = &self.link;
                    link.drop_node(&connection.device, write.node, Some(write.range), TAKEN_WITHIN);
                }
                answer(write);
                state = self.state.lock();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
    /// Ends the threads once the queue is empty.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_all();
    }
}

fn answer(write: DeferredAnswer) {
    // No older page is left; one that is filled from now on has the write.
    drop((write.unseen, write.growth));
    match &write.told {
        AnswerTo::Program(device, unique) => {
            let reply = Reply { way: Way::Device(device), unique: *unique };
            reply.bytes(&write.answer);
        }
        // It waits; if not, it has gone with the mount.
        AnswerTo::Thread(tell) => drop(tell.try_send(())),
    }
}
