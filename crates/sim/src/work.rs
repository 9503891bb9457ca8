//! What a node does under its locks: transactions on real metadata through the real journal,
//! commits, write-back when a lock is given up, replay for the dead.
//!
//! Each node has some lanes: one for each of its threads (they read and change), one for all
//! that commits or writes back (a commit by one job and a wait for it by another would sleep for
//! ever), one for recoveries, and where it has a pool of its own one for what the pool owes others, and one for
//! members. Jobs of different lanes overlap at their requests; those of a node with a pool of its own where
//! they wait for other nodes only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use braid_format::node::{DamagedPart, SlotDamage};
use braid_format::{Bytes, LockNo, MemberIndex, NodeId};
use braid_fs::Error;
use braid_fs::simulation::{Metadata, Places, Replayed, Writer, replay, replay_believing};
use braid_lock::dlock::{Hint, Time};
use braid_lock::{Life, Mode, NotRecovered, simulation};
use braid_pool::{EpochTag, PoolRequest};

use crate::Sabotage;
use crate::disk::{Answer, LEN, blocks_of};
use crate::files::{contents_of, values_of};
use crate::image::{BlockIndex, CELLS, Image, SECTORS, SLOTS, set_value, value_of};
use crate::lane::{Lane, Other, Reply, Request, Stop};
use crate::mirrors::Own;
use crate::node::Purpose;
use crate::world::{Event, Pid, World};

/// Bound of clean metadata in a node's memory.
const CACHE: Bytes = Bytes::MIB;

/// Between two looks of a lane that waits for other nodes.
const PAUSE: Duration = Duration::from_micros(400);

/// The first lane of recoveries, where a node has a pool of its own: one for each slot.
const RECOVERIES: usize = 5;
/// The first lane of a thread.
const THREADS: usize = RECOVERIES + SLOTS as usize;

/// Something a node does that takes requests.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Puts a pool of its own together.
    Assemble,
    /// Other nodes have changed the pool, or may have before this one `joins`.
    Follow { joins: bool },
    /// Gives up regions that others want.
    GiveUp,
    /// A message about a region came.
    Heard { from: Life, lock: LockNo, hint: Hint },
    /// A device takes the place of a member that has failed.
    Replace { member: MemberIndex },
    /// Fills a member.
    Rebuild { member: MemberIndex },
    /// Takes over the journal of its slot.
    Open,
    /// Thread `thread` holds `locks` in `mode`: reads all blocks under them, and changes `change`.
    /// With files it reads contents, too; `value` is new, and so tells when that began.
    Use {
        thread: usize,
        locks: Vec<usize>,
        mode: Mode,
        change: Vec<BlockIndex>,
        value: u64,
        files: bool,
    },
    /// Thread `thread` writes contents.
    Overwrite { thread: usize, cell: usize, value: u64, split: bool },
    /// Makes what was closed before durable: `count` transactions.
    Commit { count: usize },
    /// The same, and what was written of contents before `from`. `skimps`: as it once was, by a commit alone.
    Sync { count: usize, from: u64, skimps: bool },
    /// Puts all that is durable in place.
    Checkpoint,
    /// Puts everything under a lock in place; of this node's transactions `count` were closed when it began, up to the
    /// last that changed something there.
    Demote { lock: usize, count: usize },
    /// Replays the journal of a dead node; `believing` a header that says clean.
    Recover { dead: Life, by: Option<Life>, believing: bool },
    /// Leaves the journal clean.
    Close,
}

/// How a task ended.
pub(crate) enum Outcome {
    Assembled(Result<Arc<Own>, Error>),
    /// What the pool owed others is done.
    Settled(Result<(), Error>),
    Opened(Result<Metadata, Error>),
    /// What was read.
    Used(Result<Read, Error>),
    Overwritten(Result<(), Error>),
    Synced(Result<(), Error>),
    Replayed(Result<Replayed, NotRecovered>),
}

/// What was read: metadata, contents by sectors.
pub(crate) struct Read {
    blocks: Vec<(BlockIndex, Option<u64>)>,
    sectors: Vec<(u64, u64)>,
}

/// A lane, what it does, and what it will do.
#[derive(Default)]
struct Queue {
    lane: Option<Lane<Outcome>>,
    now: Option<Task>,
    /// When it began that.
    since: Time,
    later: VecDeque<Task>,
}

/// What a lane waits for its turn with.
#[derive(PartialEq, Eq)]
enum Waiting {
    Begin(usize),
    GoOn(usize),
}

/// A node's work.
pub(crate) struct Work {
    image: Arc<Image>,
    /// The committing one, the recovering one, that of epochs, that of members, that of regions, then one for each
    /// thread.
    queues: Vec<Queue>,
    /// With mirrors: how it puts its pool together.
    assembler: Option<Assembler>,
    /// Its pool, where it has one of its own.
    own: Option<Arc<Own>>,
    /// The lane whose turn it is, where they take turns, and those that wait.
    turn: Option<usize>,
    waiting: VecDeque<Waiting>,
    pub(crate) metadata: Option<Metadata>,
    /// Dead lives whose journals are being replayed here, one after the other.
    pub(crate) recovering: Vec<Life>,
}

impl Work {
    pub(crate) fn new(image: Arc<Image>, threads: usize, assembler: Option<Assembler>) -> Self {
        let queues = std::iter::repeat_with(Queue::default).take(THREADS + threads).collect();
        Self {
            image,
            queues,
            assembler,
            own: None,
            turn: None,
            waiting: VecDeque::new(),
            metadata: None,
            recovering: Vec::new(),
        }
    }
    /// The node has died: its lanes end, what it was doing is remembered.
    pub(crate) fn die(&mut self) {
        // First the one that may hold what others wait for.
        if let Some(queue) = self.turn.and_then(|turn| self.queues.get_mut(turn)) {
            queue.lane = None;
        }
        self.queues.clear();
        self.waiting.clear();
        (self.metadata, self.own) = (None, None);
    }
    fn lane_of(&self, task: &Task) -> usize {
        match task {
            Task::Assemble
            | Task::Open
            | Task::Commit { .. }
            | Task::Sync { .. }
            | Task::Checkpoint
            | Task::Demote { .. }
            | Task::Close => 0,
            // As the watcher does it: each by itself, for one may wait for what another ends.
            Task::Recover { dead, .. } if self.assembler.is_some() => {
                RECOVERIES + usize::from(dead.slot.get())
            }
            Task::Recover { .. } => 1,
            Task::Follow { .. } => 2,
            Task::Replace { .. } | Task::Rebuild { .. } => 3,
            Task::GiveUp | Task::Heard { .. } => 4,
            Task::Use { thread, .. } | Task::Overwrite { thread, .. } => THREADS + thread,
        }
    }
    /// Tasks that commit or write back, under way or waiting.
    pub(crate) fn syncs(&self) -> usize {
        self.queues.first().map_or(0, |q| q.later.len() + usize::from(q.now.is_some()))
    }
    /// Begins the next task of a lane, if it has none, and it is its turn.
    fn begin(&mut self, lane: usize, me: Option<Life>, now: Time) -> Option<Stop<Outcome>> {
        let queue = self.queues.get(lane)?;
        if queue.now.is_some() || queue.later.is_empty() || !self.takes_turn(Waiting::Begin(lane)) {
            return None;
        }
        let queue = self.queues.get_mut(lane)?;
        let task = queue.later.pop_front()?;
        let tools = Tools {
            image: self.image.clone(),
            assembler: self.assembler.clone(),
            own: self.own.clone(),
            metadata: self.metadata.clone(),
        };
        let job = job(&task, tools, me);
        (queue.now, queue.since) = (Some(task), now);
        let lane = queue.lane.get_or_insert_with(Lane::new);
        Some(job.map_or_else(|| Stop::Done(Outcome::Synced(Ok(()))), |job| lane.start(job)))
    }
    fn reply(&mut self, lane: usize, reply: Reply) -> Option<Stop<Outcome>> {
        Some(self.queues.get_mut(lane)?.lane.as_mut()?.reply(reply))
    }
    /// A lane goes on after a pause, if it is its turn.
    fn go_on(&mut self, lane: usize) -> Option<Stop<Outcome>> {
        if !self.takes_turn(Waiting::GoOn(lane)) {
            return None;
        }
        self.reply(lane, Ok(Vec::new()))
    }
    /// Where the node has a pool of its own, lanes take turns.
    fn takes_turn(&mut self, waiting: Waiting) -> bool {
        let (Waiting::Begin(lane) | Waiting::GoOn(lane)) = waiting;
        let free = self.assembler.is_none() || self.turn.is_none_or(|turn| turn == lane);
        if free {
            self.turn = Some(lane);
        } else if !self.waiting.contains(&waiting) {
            self.waiting.push_back(waiting);
        }
        free
    }
    /// The lane that waits for longest, once none has its turn.
    fn next_in_turn(&mut self) -> Option<Waiting> {
        self.waiting.pop_front().filter(|_| self.turn.is_none())
    }
    /// It replaces or fills a member.
    pub(crate) fn maintains(&self) -> bool {
        self.queues.get(3).is_some_and(|q| q.now.is_some() || !q.later.is_empty())
    }
    /// What its lanes do, and since when.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (&Task, Time)> {
        self.queues.iter().filter_map(|queue| Some((queue.now.as_ref()?, queue.since)))
    }
    /// It has a pool of its own, and nothing to do in a lane.
    fn is_free(&self, lane: usize) -> bool {
        self.own.is_some()
            && self.queues.get(lane).is_some_and(|q| q.now.is_none() && q.later.is_empty())
    }
    /// Its pool, where it has one of its own.
    pub(crate) fn own(&self) -> Option<&Arc<Own>> {
        self.own.as_ref()
    }
}

/// How a node puts its pool together.
pub(crate) type Assembler = Arc<dyn Fn() -> Result<Arc<Own>, Error> + Send + Sync>;

/// What tasks work with.
struct Tools {
    image: Arc<Image>,
    assembler: Option<Assembler>,
    own: Option<Arc<Own>>,
    metadata: Option<Metadata>,
}

impl Tools {
    /// The file system as this node reaches it.
    fn places(&self) -> &Places {
        self.own.as_ref().map_or(&self.image.places, |own| &own.places)
    }
    fn recover(
        &self,
        (dead, by): (Life, Option<Life>),
        believing: bool,
    ) -> Result<Replayed, NotRecovered> {
        if let (Some(own), Some(by)) = (&self.own, by) {
            return own.recover(dead, by);
        }
        let replay = if believing { replay_believing } else { replay };
        let done = replay(&self.image.places, dead.slot, Writer::Life(dead.incarnation));
        done.map_err(not_recovered)
    }
}

/// As whoever recovers says it.
fn not_recovered(e: Error) -> NotRecovered {
    let (block, part) = match &e {
        Error::Journal { block, .. } => (*block, DamagedPart::Journal),
        Error::Damaged { block, .. } | Error::Inconsistent { block, .. } => {
            (*block, DamagedPart::Shared)
        }
        _ => return NotRecovered::Failed(e.into()),
    };
    NotRecovered::Damaged { damage: SlotDamage { block, part, replayed: false }, source: e.into() }
}

type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// The code of a task of the pool itself. `None`: the node has none of its own yet.
fn pool_job(task: &Task, tools: &Tools) -> Option<Job> {
    if matches!(task, Task::Assemble) {
        let assemble = tools.assembler.clone()?;
        return Some(Box::new(move || Outcome::Assembled(assemble())));
    }
    let (own, task) = (tools.own.clone()?, task.clone());
    Some(Box::new(move || {
        Outcome::Settled(match task {
            Task::GiveUp => {
                own.sharing.demote_due();
                Ok(())
            }
            Task::Heard { from, lock, hint } => {
                own.sharing.heard(from, lock, &hint);
                Ok(())
            }
            Task::Replace { member } => own.replace(member),
            Task::Rebuild { member } => own.rebuild(member),
            _ => own.follow(),
        })
    }))
}

/// The code of a task. `None`: nothing can be done yet.
fn job(task: &Task, tools: Tools, me: Option<Life>) -> Option<Job> {
    let (metadata, own) = (tools.metadata.clone(), tools.own.clone());
    Some(match task.clone() {
        Task::Open => {
            let me = me?;
            Box::new(move || {
                Outcome::Opened(match own {
                    Some(own) => own.open(me, CACHE),
                    None => Metadata::open(tools.places(), me.slot, me.incarnation, CACHE),
                })
            })
        }
        Task::Recover { dead, by, believing } => {
            Box::new(move || Outcome::Replayed(tools.recover((dead, by), believing)))
        }
        Task::Use { locks, change, value, files, .. } => {
            let metadata = metadata?;
            Box::new(move || {
                // First, for what is changed counts as closed when this ends.
                let cells = locks.iter().flat_map(|l| l * CELLS..(l + 1) * CELLS);
                let sectors: Result<Vec<_>, Error> =
                    cells.filter(|_| files).map(|cell| read_cell(&tools, cell)).collect();
                let used = || {
                    let sectors = sectors?.concat();
                    let blocks = use_locks(&tools.image, &metadata, &locks, (&change, value))?;
                    Ok(Read { blocks, sectors })
                };
                Outcome::Used(used())
            })
        }
        Task::Overwrite { cell, value, split, .. } => {
            let metadata = metadata?;
            Box::new(move || {
                let written = overwrite(&tools, (cell, value), split);
                written.as_ref().iter().for_each(|()| metadata.note_data_written());
                Outcome::Overwritten(written)
            })
        }
        Task::Sync { skimps, .. } => {
            let metadata = metadata?;
            let sync = if skimps { Metadata::commit } else { Metadata::commit_and_flush };
            Box::new(move || Outcome::Synced(sync(&metadata)))
        }
        Task::Commit { .. } => {
            let metadata = metadata?;
            Box::new(move || Outcome::Synced(metadata.commit()))
        }
        Task::Checkpoint => {
            let metadata = metadata?;
            Box::new(move || Outcome::Synced(metadata.checkpoint()))
        }
        Task::Close => {
            let metadata = metadata?;
            let leave = move || own.map_or(Ok(()), |own| own.leave());
            Box::new(move || Outcome::Synced(metadata.close().and_then(|()| leave())))
        }
        Task::Assemble
        | Task::Follow { .. }
        | Task::GiveUp
        | Task::Heard { .. }
        | Task::Replace { .. }
        | Task::Rebuild { .. } => return pool_job(task, &tools),
        Task::Demote { lock, .. } => {
            let metadata = metadata?;
            Box::new(move || Outcome::Synced(metadata.sync_owner(tools.image.lock_no(lock))))
        }
    })
}

/// Reads everything under some locks, then changes some of it in one transaction.
fn use_locks(
    image: &Image,
    metadata: &Metadata,
    locks: &[usize],
    (change, value): (&[BlockIndex], u64),
) -> Result<Vec<(BlockIndex, Option<u64>)>, Error> {
    let mut reads = Vec::new();
    for block in locks.iter().flat_map(|lock| blocks_of(*lock)) {
        let (no, owner) = image.owned(block);
        reads.push((block, value_of(&metadata.read(no, owner)?)));
    }
    if !change.is_empty() {
        let blocks: Vec<_> = change.iter().map(|b| image.owned(*b)).collect();
        metadata.change(&blocks, |body| set_value(body, value))?;
    }
    Ok(reads)
}

/// The contents of a file, past all caches.
fn read_cell(tools: &Tools, cell: usize) -> Result<Vec<(u64, u64)>, Error> {
    let mut bytes = vec![0; SECTORS * LEN];
    tools.places().pool().read(tools.image.cell(cell), &mut bytes)?;
    Ok(values_of(cell, &bytes))
}

/// As an overwrite does under a concurrent hold. `split`: as it once did, without a look at the copies.
fn overwrite(tools: &Tools, (cell, value): (usize, u64), split: bool) -> Result<(), Error> {
    let bytes = contents_of(cell, value);
    let mut batch = [PoolRequest::write(tools.image.cell(cell), &bytes)];
    let pool = tools.places().pool();
    if split {
        pool.run(&mut batch);
    } else {
        pool.run_concurrent(&mut batch);
    }
    let [PoolRequest { result, .. }] = batch;
    Ok(result?)
}

impl World {
    /// Gives a node something to do.
    pub(crate) fn work(&mut self, pid: Pid, task: Task) {
        self.note(|| format!("process {pid} is to {task:?}"));
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(work) = &mut process.work else { return };
        let lane = work.lane_of(&task);
        if let Task::Recover { dead, .. } = task {
            work.recovering.push(dead);
        }
        if let Some(queue) = work.queues.get_mut(lane) {
            queue.later.push_back(task);
        }
        self.proceed(pid, lane, None);
    }
    /// What runs in lanes of a process knows the time by its clock.
    pub(crate) fn set_clock(&self, pid: Pid) {
        simulation::set_time(self.clock(pid));
    }
    /// A request of a lane is answered.
    pub(crate) fn work_answered(&mut self, pid: Pid, lane: usize, answer: Answer) {
        let reply = match answer {
            Answer::Done(bytes) | Answer::Mismatch(bytes) => Ok(bytes),
            Answer::Failed | Answer::Fenced => Err(()),
        };
        self.set_clock(pid);
        let Some(process) = self.processes.get_mut(pid) else { return };
        let stop = process.work.as_mut().and_then(|work| work.reply(lane, reply));
        self.proceed(pid, lane, stop);
    }
    /// Lets a lane run until it asks for something, or has nothing to do.
    fn proceed(&mut self, pid: Pid, lane: usize, stop: Option<Stop<Outcome>>) {
        self.set_clock(pid);
        self.run_lane(pid, lane, stop);
        self.see_to_regions(pid);
    }
    fn run_lane(&mut self, pid: Pid, lane: usize, mut stop: Option<Stop<Outcome>>) {
        loop {
            let Some(process) = self.processes.get_mut(pid) else { return };
            let (me, now) = (process.me, self.now);
            let Some(work) = &mut process.work else { return };
            let Some(next) = stop.take().or_else(|| work.begin(lane, me, now)) else { return };
            match next {
                Stop::Asks(request) => return self.work_request(pid, lane, request),
                Stop::Panicked(what) => {
                    let task = work.queues.get(lane).and_then(|q| q.now.clone());
                    return self.fail(format!("process {pid} {me:?} at {task:?}: {what}"));
                }
                Stop::Done(outcome) => {
                    let task = work.queues.get_mut(lane).and_then(|q| q.now.take());
                    work.turn = None;
                    if let Some(task) = task {
                        self.work_done(pid, task, outcome);
                    }
                    self.next_lane(pid);
                }
            }
        }
    }
    /// Lanes that wait for their turn go on.
    fn next_lane(&mut self, pid: Pid) {
        loop {
            let work = self.processes.get_mut(pid).and_then(|p| p.work.as_mut());
            let Some(work) = work.filter(|work| work.turn.is_none()) else { return };
            match work.next_in_turn() {
                Some(Waiting::Begin(lane)) => self.proceed(pid, lane, None),
                Some(Waiting::GoOn(lane)) => self.lane_goes_on(pid, lane),
                None => return,
            }
        }
    }
    /// A lane waits for other nodes.
    fn lane_pauses(&mut self, pid: Pid, lane: usize, free: bool) {
        self.after(PAUSE, Event::GoOn { pid, lane });
        let work = self.processes.get_mut(pid).and_then(|p| p.work.as_mut());
        if let Some(work) = work.filter(|_| free) {
            work.turn = None;
            self.next_lane(pid);
        }
    }
    pub(crate) fn lane_goes_on(&mut self, pid: Pid, lane: usize) {
        self.set_clock(pid);
        let work = self.processes.get_mut(pid).and_then(|p| p.work.as_mut());
        if let Some(stop) = work.and_then(|work| work.go_on(lane)) {
            self.proceed(pid, lane, Some(stop));
        }
    }
    /// The pool's epoch that a node says it uses.
    pub(crate) fn epoch_of(&self, pid: Pid) -> EpochTag {
        let own = self.processes.get(pid).and_then(|p| p.work.as_ref()).and_then(Work::own);
        own.map_or(EpochTag { epoch: 1, change: 0 }, |own| own.epoch())
    }
    /// As if a run took minutes: what is done every few seconds is done now and then.
    pub(crate) fn tell_seconds(&mut self) {
        self.peers.set_seconds(u64::try_from(self.now.as_millis() / 20).unwrap_or(u64::MAX));
    }
    pub(crate) fn work_if_free(&mut self, pid: Pid, task: Task) {
        let work = self.processes.get(pid).and_then(|p| p.work.as_ref());
        if work.is_some_and(|work| work.is_free(work.lane_of(&task))) {
            self.work(pid, task);
        }
    }
    fn work_request(&mut self, pid: Pid, lane: usize, request: Request) {
        match request.into_command() {
            Ok((address, op)) => self.submit(pid, address, op, Purpose::Work(lane)),
            Err(Other::Pause { free }) => self.lane_pauses(pid, lane, free),
            Err(Other::IsLifeLocked(slot)) => {
                let locked = u8::from(self.is_life_locked(pid, NodeId(slot)));
                let work = self.processes.get_mut(pid).and_then(|p| p.work.as_mut());
                let stop = work.and_then(|work| work.reply(lane, Ok(vec![locked])));
                self.run_lane(pid, lane, stop);
            }
        }
    }
    fn work_done(&mut self, pid: Pid, task: Task, outcome: Outcome) {
        let me = self.processes.get(pid).and_then(|p| p.me);
        match (task, outcome) {
            (Task::Assemble, Outcome::Assembled(Ok(own))) => self.assembled(pid, own),
            (task, Outcome::Settled(done)) => self.settled(pid, &task, done),
            (Task::Open, Outcome::Opened(Ok(metadata))) => self.opened(pid, metadata),
            (Task::Recover { dead, .. }, Outcome::Replayed(done)) => self.replayed(pid, dead, done),
            (Task::Use { thread, mode, change, value, .. }, Outcome::Used(Ok(read))) => {
                let Some(me) = me else { return };
                let Read { blocks: reads, sectors } = read;
                self.check_contents(me, value, &sectors);
                self.check_reads(me, &reads);
                self.fill_pages(pid, &reads);
                if mode == Mode::Exclusive && !change.is_empty() {
                    self.model.closed(me, &change, value);
                    self.fill_pages(
                        pid,
                        &change.iter().map(|b| (*b, Some(value))).collect::<Vec<_>>(),
                    );
                    self.report.transactions += 1;
                    self.check_dirty(pid, &change);
                }
                self.use_done(pid, thread);
            }
            // A read failed: the mount fails, or the node withdraws, as it does where a change has begun.
            (
                _,
                Outcome::Opened(Err(e @ (Error::Pool(_) | Error::Unreadable { .. })))
                | Outcome::Used(Err(e @ (Error::Pool(_) | Error::Unreadable { .. })))
                | Outcome::Assembled(Err(e)),
            ) => {
                self.gives_up(pid, &e);
            }
            (Task::Overwrite { thread, cell, value, .. }, Outcome::Overwritten(Ok(()))) => {
                self.overwritten(pid, thread, (cell, value));
            }
            (Task::Commit { count }, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    self.model.durable(me, count);
                }
            }
            (Task::Sync { count, from, .. }, Outcome::Synced(Ok(()))) => {
                self.synced(pid, count, from);
            }
            (Task::Checkpoint, Outcome::Synced(Ok(()))) => {}
            (Task::Demote { lock, count }, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    self.model.durable(me, count);
                }
                self.demoted(pid, lock);
            }
            (Task::Close, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    self.model.durable(me, self.model.closed_by(me));
                }
                self.closed(pid);
            }
            (
                task,
                Outcome::Opened(Err(e))
                | Outcome::Used(Err(e))
                | Outcome::Overwritten(Err(e))
                | Outcome::Synced(Err(e)),
            ) => {
                if self.processes.get(pid).is_some_and(|p| p.withdraws) {
                    return self.gives_up(pid, &e);
                }
                self.fail(format!("process {pid} {me:?} at {task:?}: {e}"));
            }
            (task, _) => self.fail(format!("process {pid} {me:?}: wrong outcome of {task:?}")),
        }
    }
    /// All that was written before `from` is durable.
    fn synced(&mut self, pid: Pid, count: usize, from: u64) {
        let Some(me) = self.processes.get(pid).and_then(|p| p.me) else { return };
        self.model.durable(me, count);
        // Of what other nodes write at the same time it promises nothing.
        self.files.contents.flushed(from, |node| node == pid);
        if self.cluster.mirrors.is_some() {
            let now = self.nonce();
            self.files.contents.steady(now);
        }
    }
    /// A task of the pool itself has ended.
    fn settled(&mut self, pid: Pid, task: &Task, done: Result<(), Error>) {
        if matches!((task, &done), (Task::Follow { joins: true }, Ok(()))) {
            return self.join_goes_on(pid);
        }
        match (task, done) {
            (Task::Replace { .. }, Ok(())) => self.report.replaced += 1,
            (Task::Rebuild { .. }, Ok(())) => self.report.rebuilt += 1,
            (_, Ok(())) => {}
            (Task::Replace { .. } | Task::Rebuild { .. }, Err(e)) => {
                self.note(|| format!("process {pid} at {task:?}: {e}"));
            }
            // In an epoch that it cannot use a node does not go on.
            (_, Err(e)) => self.gives_up(pid, &e),
        }
    }
    fn assembled(&mut self, pid: Pid, own: Arc<Own>) {
        if let Some(work) = self.processes.get_mut(pid).and_then(|p| p.work.as_mut()) {
            work.own = Some(own);
        }
        self.begin_join(pid);
    }
    fn fill_pages(&mut self, pid: Pid, pages: &[(BlockIndex, Option<u64>)]) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        for (block, value) in pages {
            if let Some(value) = value {
                process.kernel.fill(*block, *value);
            }
        }
    }
    /// A thread has all the locks it wanted.
    pub(crate) fn use_begins(&mut self, pid: Pid, thread: usize, locks: Vec<usize>, mode: Mode) {
        if thread >= usize::from(self.cluster.threads) {
            return self.has_locked_to_recover(pid, thread);
        }
        let mut change = Vec::new();
        if mode == Mode::Exclusive {
            let all: Vec<BlockIndex> = locks.iter().flat_map(|lock| blocks_of(*lock)).collect();
            let share = 1 + self.random.below(4);
            change.extend(all.iter().copied().filter(|_| self.random.below(4) < share));
        }
        let value = self.nonce();
        let files = self.cluster.files;
        self.work(pid, Task::Use { thread, locks, mode, change, value, files });
    }
    pub(crate) fn use_done(&mut self, pid: Pid, thread: usize) {
        let pause = self.random.time(Duration::from_millis(2));
        self.after(pause, Event::EndUse { pid, thread });
        if self.random.below(4) == 0 {
            self.sync(pid, false);
        }
    }
    /// As `fsync`, or a housekeeper.
    pub(crate) fn commit(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(pid) else { return };
        let (Some(me), Some(work)) = (process.me, &process.work) else { return };
        if work.syncs() < 3 && work.metadata.is_some() {
            self.work(pid, Task::Commit { count: self.model.closed_by(me) });
        }
    }
    /// As `fsync`, or the housekeeper.
    pub(crate) fn sync(&mut self, pid: Pid, house: bool) {
        if !self.cluster.files {
            return self.commit(pid);
        }
        let from = self.nonce();
        let Some(process) = self.processes.get(pid) else { return };
        let (Some(me), Some(work)) = (process.me, &process.work) else { return };
        if work.syncs() < 3 && work.metadata.is_some() {
            let skimps = house && self.cluster.sabotage == Some(Sabotage::UnflushedContents);
            self.work(pid, Task::Sync { count: self.model.closed_by(me), from, skimps });
        }
    }
    /// As a housekeeper does that finds the journal half full.
    pub(crate) fn checkpoint(&mut self, pid: Pid) {
        let idle = |work: &Work| work.syncs() == 0 && work.metadata.is_some();
        if self.processes.get(pid).and_then(|p| p.work.as_ref()).is_some_and(idle) {
            self.work(pid, Task::Checkpoint);
        }
    }
    /// Makes what is cached under a lock stable.
    pub(crate) fn demote_work(&mut self, pid: Pid, lock: usize) {
        match self.cluster.sabotage {
            Some(Sabotage::KeepDirty) => return self.demoted(pid, lock),
            Some(Sabotage::ReleaseEarly) => {
                self.demoted(pid, lock);
            }
            _ => {}
        }
        let Some(me) = self.processes.get(pid).map(|p| p.me) else { return };
        // A thread may change more meanwhile; then the lock is not given up.
        let count = me.map_or(0, |me| self.model.last_in(me, &blocks_of(lock)));
        self.work(pid, Task::Demote { lock, count });
    }
    fn replayed(&mut self, pid: Pid, dead: Life, done: Result<Replayed, NotRecovered>) {
        if let Some(work) = self.processes.get_mut(pid).and_then(|p| p.work.as_mut()) {
            work.recovering.retain(|life| *life != dead);
        }
        match done {
            Ok(done) => {
                self.note(|| format!("process {pid} has replayed {dead:?}: {done:?}"));
                self.report.replayed += done.written;
                self.report.recoveries += 1;
                self.has_replayed(dead.slot);
                self.recovered_by(pid, dead, true);
            }
            // A read failed, or the journal is refused: it is done again.
            Err(NotRecovered::Failed(e)) => {
                self.note(|| format!("process {pid} cannot replay {dead:?}: {e}"));
                self.recovered_by(pid, dead, false);
            }
            Err(NotRecovered::Damaged { damage, source })
                if damage.part == DamagedPart::Journal =>
            {
                self.note(|| format!("process {pid} cannot replay {dead:?}: {source}"));
                self.repair_journal(dead.slot);
                self.recovered_by(pid, dead, false);
            }
            Err(e) => self.fail(format!("process {pid} cannot replay {dead:?}: {e}")),
        }
    }
}
