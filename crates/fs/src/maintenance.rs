//! What a mounted node does for its pool: fills members that have taken a failed one's place, lets
//! spares step in, moves what stands on a member that leaves, and reads everything now and then
//! when told to. It names members that are slow.
//!
//! One thread; one piece of work at a time; filling comes before moving, that before scrubbing. The pool stays in use:
//! while others read or write, the work takes a quarter of the time at most ([`Pace`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use braid_format::history::EventKind;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use braid_lock::interrupt::Interrupt;
use braid_pool::{
    BreakOff, ChangeError, EpochTag, Moving, Pace, Pool, PoolError, Progress, Scrubbed,
    Verification,
};
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::files_at::FilesAt;
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;

/// How often it is looked whether there is something to do.
const BEAT: Duration = Duration::from_millis(500);
/// A member that could not be filled is left alone for so long.
const RETRY: Duration = Duration::from_secs(30);
/// While it gives way it is looked so often whether the work is over.
const NAP: Duration = Duration::from_millis(50);

/// What the thread is doing, and what it has done.
#[derive(Debug, Clone, Default)]
pub struct MaintenanceStatus {
    /// This node, of all that have the pool mounted, fills members.
    pub turn: bool,
    /// The member that is being filled, and how far.
    pub rebuilding: Option<(MemberIndex, Progress)>,
    /// The member whose contents are being moved, and how far.
    pub moving: Option<(Moving, Progress)>,
    /// The scrub that is under way: how far, and what it has found so far.
    pub scrubbing: Option<(Progress, Scrubbed)>,
    /// When this node began to fill that member.
    pub rebuild_began: Option<WorkBegan>,
    /// When it began to move those contents.
    pub move_began: Option<WorkBegan>,
    /// When it began to scrub.
    pub scrub_began: Option<WorkBegan>,
    /// Scrubs that have ended.
    pub scrubs: u64,
    /// What the last scrub found; nothing if it ended in an error.
    pub scrubbed: Option<Scrubbed>,
    /// The files that have what it could not decide; none if all was decided.
    pub files: FilesAt,
    /// What went wrong last.
    pub error: Option<String>,
    /// What nobody could decide when this node last filled a member, if there was something.
    pub differed: Option<String>,
}

/// When long work began, or went on after it was broken off.
#[derive(Debug, Clone, Copy)]
pub struct WorkBegan {
    /// The time.
    pub at: Instant,
    /// How far it was.
    pub from: Bytes,
}

impl WorkBegan {
    fn now(progress: Progress) -> Self {
        Self { at: Instant::now(), from: progress.done }
    }
}

impl MaintenanceStatus {
    /// Whether the last scrub left something undecided, and whether something went wrong.
    pub fn found(&self) -> (bool, bool) {
        let undecided = self.scrubbed.as_ref().is_some_and(|found| found.undecided.get() > 0);
        (undecided, self.error.is_some() || self.differed.is_some())
    }
}

#[derive(Debug, Default)]
struct Shared {
    status: Mutex<MaintenanceStatus>,
    /// A scrub was asked for.
    scrub: AtomicBool,
    /// What could not be done is to be tried again at once.
    anew: AtomicBool,
    /// The suspicion of these was ended by an operator: what was done about them before counts no more.
    cleared: Mutex<Vec<Uuid>>,
    stop: AtomicBool,
    /// What the thread waits for locks of files for.
    interrupt: Mutex<Option<Interrupt>>,
    /// It was woken while it was at work: it looks once more before it sleeps.
    is_awake: AtomicBool,
    woken: Condvar,
    door: Mutex<()>,
}

impl Shared {
    fn wake(&self) {
        let _door = self.door.lock();
        self.is_awake.store(true, Ordering::Release);
        self.woken.notify_all();
    }
    /// Ends the wait for a lock of a file, and those that come before the next piece of work.
    fn interrupt(&self) {
        if let Some(interrupt) = &*self.interrupt.lock() {
            interrupt.trip_current();
        }
    }
    /// Looks for files, whose locks other nodes may hold.
    fn interruptible<T>(&self, over: &dyn Fn() -> bool, work: impl FnOnce() -> T) -> T {
        let interrupt = Interrupt::of_steps();
        let _scope = interrupt.scope();
        *self.interrupt.lock() = Some(interrupt.clone());
        if over() {
            interrupt.trip_current();
        }
        let done = work();
        *self.interrupt.lock() = None;
        done
    }
}

/// The thread.
pub(crate) struct Maintenance {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Maintenance {
    /// Begins.
    pub fn start(
        volume: &Arc<Volume>,
        peers: Box<dyn MaintenancePeers>,
        file_search: Box<FileSearch>,
        drop_pages: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (pool, volume) = (volume.pool.clone(), volume.clone());
        let woken = shared.clone();
        // The labels are told at once.
        pool.on_suspicion(move || woken.wake());
        let worker = Worker {
            pool,
            volume,
            peers,
            file_search,
            drop_pages,
            shared: shared.clone(),
            garbage: Mutex::default(),
        };
        let thread = std::thread::Builder::new()
            .name("braid-maint".into())
            .spawn(move || worker.run())
            .expect("a thread at mount time");
        Self { shared, thread: Mutex::new(Some(thread)) }
    }

    /// Does nothing.
    pub fn idle() -> Self {
        Self { shared: Arc::default(), thread: Mutex::new(None) }
    }

    /// What is being done.
    pub fn status(&self) -> MaintenanceStatus {
        self.shared.status.lock().clone()
    }

    /// Asks for a scrub, or for the end of the one under way.
    pub fn scrub(&self, run: bool) {
        self.shared.scrub.store(run, Ordering::Release);
        if !run {
            self.shared.interrupt();
        }
        self.wake();
    }

    /// Something new was asked for: what went wrong before is of no interest any more.
    pub fn begin(&self) {
        self.shared.status.lock().error = None;
        self.shared.anew.store(true, Ordering::Release);
        self.wake();
    }

    /// What was found or went wrong before is of no interest any more. Whether something was undecided, and whether
    /// something had gone wrong.
    pub fn forget(&self) -> (bool, bool) {
        let mut status = self.shared.status.lock();
        let found = status.found();
        if found.0 {
            status.scrubbed = None;
            status.files = FilesAt::default();
        }
        (status.error, status.differed) = (None, None);
        found
    }

    /// The suspicion of these members was ended by an operator.
    pub fn trusted(&self, members: &[Uuid]) {
        self.shared.cleared.lock().extend(members);
        self.wake();
    }

    /// Something may have changed.
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Ends what is under way (it begins again at the next mount) and the thread, soon: what they wait for other nodes
    /// for is left.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.interrupt();
        self.wake();
        if let Some(thread) = self.thread.lock().take() {
            thread.join().ok();
        }
    }
}

/// All that have the pool mounted.
pub(crate) trait MaintenancePeers: Send + Sync {
    /// Whether it is this node, of all, that fills members.
    fn turn(&self) -> bool;
    /// Says to the others which member this node could not fill or move, in which epoch.
    fn publish_stuck(&self, stuck: Option<(MemberIndex, EpochTag)>);
}

/// Looks for the files that have bytes of the pool, as long as it may go on.
pub(crate) type FileSearch = dyn Fn(&[ByteOffset], &dyn Fn() -> bool) -> FilesAt + Send + Sync;

struct Worker {
    pool: Pool,
    peers: Box<dyn MaintenancePeers>,
    volume: Arc<Volume>,
    file_search: Box<FileSearch>,
    /// The kernel's pages may hold garbage.
    drop_pages: Box<dyn Fn() + Send + Sync>,
    shared: Arc<Shared>,
    garbage: Mutex<Garbage>,
}

/// Members that are to be failed because they return garbage. Before that everything is read once more, so
/// that what only they hold undamaged is on others as well.
#[derive(Default)]
struct Garbage {
    /// For these a scrub was asked for.
    asked: HashSet<Uuid>,
    /// These were to be failed when a scrub began that has ended since.
    scrubbed: HashSet<Uuid>,
    /// Not before then, since the thread's beginning, the labels are told again of those suspected.
    mark_again: Duration,
    /// For these the kernel's pages were dropped: what was read from them before they were suspected.
    dropped: HashSet<MemberIndex>,
    /// They are dropped once more: reads may have been under way.
    drop_again: bool,
    /// When members were looked at for that.
    looked: Option<Instant>,
}

impl Garbage {
    /// These members are as if nothing had been wrong with them.
    fn forget(&mut self, members: &[Uuid]) {
        for member in members {
            self.asked.remove(member);
            self.scrubbed.remove(member);
        }
    }
}

impl Worker {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire) || self.pool.is_closed()
    }

    /// What this thread waits for other nodes for is left once the node leaves, or `also`.
    fn break_off(&self, also: impl Fn(&Shared) -> bool + Send + Sync + 'static) -> BreakOff {
        let shared = self.shared.clone();
        BreakOff::when(move || shared.stop.load(Ordering::Acquire) || also(&shared))
    }

    fn run(&self) {
        let _scope = self.break_off(|_| false).scope();
        let begun = Instant::now();
        // What could not be done is tried again then, or when the pool has changed.
        let mut retry: Option<(Instant, Epoch)> = None;
        while !self.stopped() {
            self.watch(begun.elapsed());
            let turn = self.peers.turn();
            self.shared.status.lock().turn = turn;
            let anew = self.shared.anew.swap(false, Ordering::AcqRel);
            let wait = retry
                .is_some_and(|(at, epoch)| Instant::now() < at && epoch == self.pool.info().epoch);
            if turn && (anew || !wait) {
                retry = (!self.work()).then(|| (Instant::now() + RETRY, self.pool.info().epoch));
            } else if !turn && retry.take().is_some() {
                // Another does it now: perhaps he can.
                self.peers.publish_stuck(None);
                self.shared.status.lock().error = None;
            }
            if self.shared.scrub.load(Ordering::Acquire) && !self.stopped() {
                self.scrub();
            }
            let mut door = self.shared.door.lock();
            if !self.stopped() && !self.shared.is_awake.swap(false, Ordering::AcqRel) {
                self.shared.woken.wait_for(&mut door, BEAT);
                self.shared.is_awake.store(false, Ordering::Release);
            }
        }
    }

    /// Fills and moves; whether that went well. If not, all nodes are told.
    fn work(&self) -> bool {
        let done = self.refill().and_then(|()| self.move_on());
        let Err(error) = done else {
            self.peers.publish_stuck(None);
            return true;
        };
        if matches!(error, PoolError::BrokenOff) && self.stopped() {
            return true;
        }
        if matches!(error, PoolError::Change(ChangeError::Overtaken { .. })) {
            // What is to be filled now is filled next.
            tracing::info!("the filling of a member has ended: {error}");
            self.peers.publish_stuck(None);
            return true;
        }
        tracing::error!(%error, "a member could not be filled, or moved");
        self.shared.status.lock().error = Some(error.to_string());
        let moving = || self.pool.moving().map(|m| m.leaving);
        let member = self.pool.rebuilding().or_else(moving);
        self.peers.publish_stuck(member.map(|m| (m, self.pool.epoch_tag())));
        false
    }

    /// Names members that have become slow, or are no longer slow. Nothing is done about them: a
    /// slow member is worth more than none. Marks and fails members that return garbage.
    fn watch(&self, now: Duration) {
        let cleared = std::mem::take(&mut *self.shared.cleared.lock());
        self.garbage.lock().forget(&cleared);
        self.drop_garbage();
        self.mark_suspects(now);
        self.watch_garbage();
        for n in self.pool.watch(now) {
            let device = self.pool.devices().get(usize::from(n.member.0)).cloned();
            let device = device.map_or_else(String::new, |d| d.info().name.clone());
            let (took, peers) = (n.took, n.peers);
            if n.slow {
                tracing::warn!(member = %n.member, device, ?took, ?peers, "a member is slow");
            } else {
                tracing::info!(member = %n.member, device, ?took, ?peers, "a member is slow no more");
            }
        }
    }

    /// Has the kernel drop its pages if a member is newly suspected, here or by another node: until now its bytes
    /// were read like any others. Looks at each [`BEAT`].
    fn drop_garbage(&self) {
        let mut garbage = self.garbage.lock();
        if garbage.looked.is_some_and(|looked| looked.elapsed() < BEAT / 2) {
            return;
        }
        garbage.looked = Some(Instant::now());
        let suspects: HashSet<_> = self.pool.suspects().into_iter().map(|(m, _)| m).collect();
        let new = !suspects.is_subset(&garbage.dropped);
        if new || std::mem::take(&mut garbage.drop_again) {
            (self.drop_pages)();
        }
        garbage.drop_again = new;
        garbage.dropped = suspects;
    }

    /// Says in the labels which members are suspected, for other nodes and for later.
    fn mark_suspects(&self, now: Duration) {
        let mut garbage = self.garbage.lock();
        if now < garbage.mark_again {
            return;
        }
        if let Err(error) = self.pool.mark_suspects()
            && !self.stopped()
        {
            garbage.mark_again = now + RETRY;
            tracing::error!(%error, "the labels could not be told which members are suspected");
        }
    }

    /// Scrubs, then fails members that return garbage.
    fn watch_garbage(&self) {
        let to_be_failed = self.pool.to_be_failed();
        if to_be_failed.is_empty() {
            return;
        }
        let mut garbage = self.garbage.lock();
        // Once for each: a person may end it.
        let new = |member: &Uuid| garbage.asked.insert(*member);
        if to_be_failed.into_iter().filter(new).count() > 0 {
            tracing::warn!("a member returns garbage: the pool is scrubbed before it is failed");
            self.shared.scrub.store(true, Ordering::Release);
        }
        if let Err(error) = self.pool.fail_suspects(&|member| garbage.scrubbed.contains(&member)) {
            tracing::error!(%error, "a member that returns garbage could not be failed");
        }
    }

    /// Fills what is to be filled, and lets a spare step in if a member has failed.
    fn refill(&self) -> Result<(), PoolError> {
        let member = match self.pool.rebuilding() {
            Some(member) => Some(member),
            None => self.pool.use_spare()?,
        };
        let Some(member) = member else { return Ok(()) };
        tracing::info!(%member, "filling a member");
        self.shared.status.lock().rebuild_began = None;
        let pacer = Pacer::new(&self.pool);
        let verifier = VolumeVerifier::of_mounted(&self.volume);
        let verification = Verification::by(&verifier);
        let done = self.pool.rebuild_with(member, &verification, &|progress| {
            let mut status = self.shared.status.lock();
            status.rebuilding = Some((member, progress));
            status.rebuild_began.get_or_insert_with(|| WorkBegan::now(progress));
            drop(status);
            self.drop_garbage();
            pacer.pace(&|| self.stopped())
        });
        self.shared.status.lock().rebuilding = None;
        if done? {
            let found = verification.found();
            let (healed, undecided) = (found.healed.get(), found.undecided.get());
            let files = self.files_at(&found, &|| self.stopped());
            let mut status = self.shared.status.lock();
            status.error = None;
            status.differed = (undecided > 0).then(|| said(member, &found, &files));
            drop(status);
            tracing::info!(%member, healed, undecided, "the member is filled and in use");
        }
        Ok(())
    }

    /// Goes on with the move of a member's contents.
    fn move_on(&self) -> Result<(), PoolError> {
        let Some(moving) = self.pool.moving().filter(|_| !self.stopped()) else { return Ok(()) };
        tracing::info!(member = %moving.leaving, to = %moving.successor, "moving a member");
        self.shared.status.lock().move_began = None;
        let pacer = Pacer::new(&self.pool);
        let done = self.pool.evacuate(&|progress| {
            let mut status = self.shared.status.lock();
            status.moving = Some((moving, progress));
            status.move_began.get_or_insert_with(|| WorkBegan::now(progress));
            drop(status);
            self.drop_garbage();
            pacer.pace(&|| self.stopped())
        });
        self.shared.status.lock().moving = None;
        if done? {
            self.shared.status.lock().error = None;
            tracing::info!(member = %moving.leaving, "moved");
        }
        Ok(())
    }

    /// The files that have what nobody could decide. The search ends early if the pool changes: what is to be done with
    /// its members comes first.
    fn files_at(&self, found: &Scrubbed, over: &dyn Fn() -> bool) -> FilesAt {
        if found.places.is_empty() {
            return FilesAt { complete: true, ..FilesAt::default() };
        }
        let (pacer, epoch) = (Pacer::new(&self.pool), self.pool.info().epoch);
        let is_over = || over() || self.pool.info().epoch != epoch;
        let search = || (self.file_search)(&found.places, &|| pacer.pace(&is_over));
        let files = self.shared.interruptible(&is_over, search);
        for file in &files.files {
            let (path, offsets) = (&file.path, &file.offsets);
            tracing::error!(?path, ino = %file.ino, ?offsets, "nothing says what is right of this file's bytes");
        }
        files
    }

    fn scrub(&self) {
        let _scope = self.break_off(|shared| !shared.scrub.load(Ordering::Acquire)).scope();
        let pacer = Pacer::new(&self.pool);
        let over = || self.stopped() || !self.shared.scrub.load(Ordering::Acquire);
        let verifier = VolumeVerifier::of_mounted(&self.volume);
        let to_be_failed = self.pool.to_be_failed();
        self.pool.record(EventKind::Scrub, None, SCRUB_BEGUN);
        self.shared.status.lock().scrub_began = None;
        let result = self.pool.scrub(&verifier, &mut |progress, found| {
            let mut status = self.shared.status.lock();
            status.scrubbing = Some((progress, found.clone()));
            status.scrub_began.get_or_insert_with(|| WorkBegan::now(progress));
            drop(status);
            self.drop_garbage();
            pacer.pace(&over)
        });
        if result.is_ok() && !over() {
            self.garbage.lock().scrubbed.extend(to_be_failed);
        }
        let files = result.as_ref().map(|found| self.files_at(found, &over)).unwrap_or_default();
        self.shared.scrub.store(false, Ordering::Release);
        self.pool.record(EventKind::Scrub, None, scrub_ended(&result));
        let mut status = self.shared.status.lock();
        status.scrubbing = None;
        status.scrubbed = None;
        status.files = files;
        status.scrubs += 1;
        match result {
            Ok(found) => {
                let (checked, healed) = (found.checked.get(), found.healed.get());
                let undecided = found.undecided.get();
                if healed + undecided > 0 {
                    tracing::warn!(checked, healed, undecided, "scrubbed, in bytes");
                } else {
                    tracing::info!(checked, "scrubbed, in bytes: nothing was wrong");
                }
                status.scrubbed = Some(found);
            }
            Err(error) => status.error = Some(error.to_string()),
        }
    }
}

/// What came of a scrub, for the pool's history.
fn scrub_ended(result: &Result<Scrubbed, PoolError>) -> String {
    match result {
        Ok(found) => {
            let (checked, healed) = (found.checked.get(), found.healed.get());
            let how = if found.finished { SCRUB_ENDED } else { "the scrub was stopped" };
            let undecided = found.undecided.get();
            format!("{how}: {checked} bytes read, {healed} healed, {undecided} undecided")
        }
        Err(error) => format!("the scrub has failed: {error}"),
    }
}

/// In the pool's history: a scrub has begun.
pub const SCRUB_BEGUN: &str = "a scrub has begun";
/// In the pool's history, what the line begins with: a scrub has read everything.
pub const SCRUB_ENDED: &str = "the scrub has ended";

/// What nobody could decide of the others while `member` was filled.
fn said(member: MemberIndex, found: &Scrubbed, files: &FilesAt) -> String {
    let bytes = found.undecided.get();
    let first = found
        .places
        .first()
        .map_or_else(String::new, |at| format!(", first at byte {at} of the pool"));
    let named = files.files.first().map_or_else(String::new, |file| {
        format!(", in {} files, such as {}", files.files.len(), file.quoted())
    });
    format!(
        "member {member} is filled, but the others differ in {bytes} bytes{first}{named}, and nothing says which is right: see the log, and restore what is there"
    )
}

/// Gives way to programs that use the pool.
struct Pacer<'a> {
    pool: &'a Pool,
    start: Instant,
    state: Mutex<(Pace, HashMap<ThreadId, Duration>)>,
}

impl<'a> Pacer<'a> {
    fn new(pool: &'a Pool) -> Self {
        let state = Mutex::new((Pace::new(pool.requests()), HashMap::new()));
        Self { pool, start: Instant::now(), state }
    }

    /// Called after each piece of work, by any of the threads; `false`: it is over.
    fn pace(&self, over: &dyn Fn() -> bool) -> bool {
        let thread = std::thread::current().id();
        let next = {
            let (pace, begun) = &mut *self.state.lock();
            let began = begun.get(&thread).copied().unwrap_or_default();
            let next = pace.next(began, self.start.elapsed(), self.pool.requests());
            begun.insert(thread, next);
            next
        };
        while !over() {
            let left = next.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                // The nap is not work, nor what it was longer than meant.
                self.state.lock().1.insert(thread, self.start.elapsed());
                return true;
            }
            std::thread::sleep(left.min(NAP));
        }
        false
    }
}

#[cfg(test)]
mod tests;
