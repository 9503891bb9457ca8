//! Directories that other nodes have moved, and that this kernel still has at their old places.
//!
//! The kernel keeps one name per directory. If a lookup finds a directory under another name or
//! parent than it has, it moves its own entry, with all that is below, mounts too; but only
//! if it gets two locks at once: the old parent's, and the one lock of all renames across
//! directories. `rename(2)` across directories holds the latter while it looks its names up, so it
//! fails with `ESTALE`, and fails again in its one repetition: for ever, if nobody looks the
//! directory up otherwise. The same happens, for a moment, to any program while another one makes or
//! removes names in the old parent.
//!
//! So when a lookup is answered with a directory that the kernel has elsewhere ([`Nodes::place`]), a
//! thread looks the same name up, as a program does and outside of any rename, until the kernel has
//! moved its entry. Meanwhile lookups that lead to the new parent, or that come from the same program,
//! wait: the repetition of the failed call walks its path again, and so finds the entry moved. So do lookups
//! that lead to the old parent: programs that keep that busy leave the kernel a moment without its locks.
//! These waits are bounded ([`WAIT_MAX`]), since the thread may itself wait for a lock that the caller holds.
//!
//! Nothing is ever invalidated for this: that would take away what is mounted below.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use braid_device::own_mount::{self, MountedDir};
use parking_lot::{Condvar, Mutex};

use crate::abi::ROOT_ID;
use crate::caches::nodes::Nodes;

/// Moves that are handled at a time. If there are more, programs see `ESTALE` from the kernel.
const MOVES_MAX: usize = 64;
/// The kernel is asked to move an entry for so long.
const TRY_FOR: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(1);
/// A lookup waits for so long at most.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A directory that a lookup has found where the kernel does not have it.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    /// The directory.
    pub node: u64,
    /// The directory that the kernel has it in.
    pub from: u64,
    /// The directory it is in now.
    pub dir: u64,
    /// Tells apart nodes that had the number `dir`.
    pub generation: u32,
    /// Its name there.
    pub name: Box<[u8]>,
    /// The thread whose lookup found it.
    pub thread: u32,
}

#[derive(Debug, Default)]
struct State {
    moves: Vec<(Moved, Instant)>,
    started: bool,
    closed: bool,
}

/// All of them. Until [`Moves::connect`], none is looked after.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    nodes: Arc<Nodes>,
    mount_point: OnceLock<PathBuf>,
    /// As many as `state.moves`, to be looked at without its lock.
    count: AtomicUsize,
    /// The number of the thread, which never waits for itself.
    thread: AtomicI32,
    state: Mutex<State>,
    /// There is something to do.
    wake: Condvar,
    /// Something was done.
    done: Condvar,
}

impl Moves {
    pub fn new(nodes: Arc<Nodes>) -> Arc<Self> {
        Arc::new(Self { nodes, ..Self::default() })
    }
    /// From now on moves are looked after, in the file system mounted here.
    pub fn connect(&self, mount_point: PathBuf) {
        // A session serves once.
        let _ = self.mount_point.set(mount_point);
    }
    /// Where the kernel has a directory that a lookup finds in `dir`, if elsewhere.
    pub fn elsewhere(&self, node: u64, dir: u64) -> Option<u64> {
        self.mount_point.get().and_then(|_| self.nodes.place(node, dir))
    }
    /// Has the kernel move its entry, soon. The answer that says where goes out as usual: often the
    /// kernel moves the entry as it takes that.
    pub fn found(self: &Arc<Self>, moved: Moved) {
        let mut state = self.state.lock();
        let known = state.moves.iter().any(|(m, _)| m.node == moved.node && m.dir == moved.dir);
        if known || state.closed || state.moves.len() >= MOVES_MAX {
            return;
        }
        if !state.started {
            let me = Arc::clone(self);
            let thread = std::thread::Builder::new().name("fuse-moves".into());
            if let Err(error) = thread.spawn(move || me.run()) {
                tracing::error!(%error, "cannot start a thread");
                return;
            }
            state.started = true;
        }
        state.moves.push((moved, Instant::now()));
        self.count.store(state.moves.len(), Ordering::Release);
        drop(state);
        self.wake.notify_one();
    }
    /// Waits, if a lookup that leads to directory `node` may be on its way to one that is being moved.
    pub fn settle(&self, node: u64, thread: u32) {
        if self.count.load(Ordering::Acquire) == 0
            || u32::try_from(self.thread.load(Ordering::Relaxed)) == Ok(thread)
        {
            return;
        }
        let on_the_way =
            |m: &Moved| m.node != node && (m.dir == node || m.from == node || m.thread == thread);
        let mut state = self.state.lock();
        let mut left = WAIT_MAX;
        while state.moves.iter().any(|(m, _)| on_the_way(m)) && !left.is_zero() {
            let start = Instant::now();
            self.done.wait_for(&mut state, left);
            left = left.saturating_sub(start.elapsed());
        }
    }
    /// Ends the thread. The mount is gone, so that no walk in it waits.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.moves.clear();
        self.count.store(0, Ordering::Release);
        drop(state);
        self.wake.notify_all();
        self.done.notify_all();
    }

    fn run(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(tid, Ordering::Relaxed);
        let able = own_mount::leave_descriptors().is_ok();
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return;
            }
            if state.moves.is_empty() {
                self.wake.wait(&mut state);
                continue;
            }
            let round: Vec<Moved> = state.moves.iter().map(|(m, _)| m.clone()).collect();
            for moved in round {
                drop(state);
                let looked = if able { self.attempt(&moved) } else { Attempt::Over };
                state = self.state.lock();
                self.attempted(&mut state, &moved, looked);
            }
            if !state.moves.is_empty() {
                self.wake.wait_for(&mut state, PAUSE);
            }
        }
    }
    fn attempted(&self, state: &mut State, moved: &Moved, looked: Attempt) {
        let same = |m: &Moved| m.node == moved.node && m.dir == moved.dir;
        state.moves.retain(|(m, since)| {
            !same(m) || (looked == Attempt::Again && since.elapsed() < TRY_FOR)
        });
        self.count.store(state.moves.len(), Ordering::Release);
        self.done.notify_all();
    }
    fn attempt(&self, moved: &Moved) -> Attempt {
        let Some(mount_point) = self.mount_point.get() else { return Attempt::Over };
        let dir = MountedDir { node: moved.dir, generation: moved.generation };
        let dir = (moved.dir != ROOT_ID).then_some(dir);
        match own_mount::look_up(mount_point, dir, &moved.name) {
            Ok(()) => {
                self.nodes.placed(moved.node, moved.dir);
                Attempt::Over
            }
            // The kernel did not get the locks.
            Err(e) if e.kind() == io::ErrorKind::StaleNetworkFileHandle => Attempt::Again,
            // Moved again, removed, unmounted, or not allowed to this user.
            Err(_) => Attempt::Over,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The kernel refused for now.
    Again,
    /// Nothing is left to do, or can be done.
    Over,
}
