//! What a node does under its locks: transactions on real metadata through the real journal,
//! commits, write-back when a lock is given up, replay for the dead.
//!
//! Each node has some lanes: one for each of its threads (they read and change), one for all
//! that commits or writes back (a commit by one job and a wait for it by another would sleep for
//! ever), one for recoveries. Jobs of different lanes overlap at their requests.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_format::Bytes;
use braid_fs::Error;
use braid_fs::simulation::{Metadata, Replayed, Writer, replay, replay_believing};
use braid_lock::{Life, Mode};
use braid_pool::PoolRequest;

use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op, blocks_of};
use crate::files::{contents_of, values_of};
use crate::image::{BlockIndex, CELLS, Image, SECTORS, set_value, value_of};
use crate::lane::{Lane, Request, Stop};
use crate::node::Purpose;
use crate::world::{Event, Pid, World};

/// Bound of clean metadata in a node's memory.
const CACHE: Bytes = Bytes::MIB;

/// Something a node does that takes requests.
#[derive(Debug, Clone)]
pub(crate) enum Task {
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
    Overwrite { thread: usize, cell: usize, value: u64 },
    /// Makes what was closed before durable: `count` transactions.
    Commit { count: usize },
    /// The same, and what was written of contents before `from`. `skimps`: as it once was, by a commit alone.
    Barrier { count: usize, from: u64, skimps: bool },
    /// Puts all that is durable in place.
    Checkpoint,
    /// Puts everything under a lock in place.
    Demote { lock: usize },
    /// Replays the journal of a dead node; `believing` a header that says clean.
    Recover { dead: Life, believing: bool },
    /// Leaves the journal clean.
    Close,
}

/// How a task ended.
pub(crate) enum Outcome {
    Opened(Result<Metadata, Error>),
    /// What was read.
    Used(Result<Read, Error>),
    Overwritten(Result<(), Error>),
    Synced(Result<(), Error>),
    Replayed(Result<Replayed, Error>),
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
    later: VecDeque<Task>,
}

/// A node's work.
pub(crate) struct Work {
    image: Arc<Image>,
    /// First the committing one, then the recovering one, then one for each thread.
    queues: Vec<Queue>,
    pub(crate) metadata: Option<Metadata>,
    /// Dead lives whose journals are being replayed here, one after the other.
    pub(crate) recovering: Vec<Life>,
}

impl Work {
    pub(crate) fn new(image: Arc<Image>, threads: usize) -> Self {
        let queues = std::iter::repeat_with(Queue::default).take(2 + threads).collect();
        Self { image, queues, metadata: None, recovering: Vec::new() }
    }
    /// The node has died: its lanes end, what it was doing is remembered.
    pub(crate) fn die(&mut self) {
        self.queues.clear();
        self.metadata = None;
    }
    fn lane_of(task: &Task) -> usize {
        match task {
            Task::Open
            | Task::Commit { .. }
            | Task::Barrier { .. }
            | Task::Checkpoint
            | Task::Demote { .. }
            | Task::Close => 0,
            Task::Recover { .. } => 1,
            Task::Use { thread, .. } | Task::Overwrite { thread, .. } => 2 + thread,
        }
    }
    /// Tasks that commit or write back, under way or waiting.
    pub(crate) fn syncs(&self) -> usize {
        self.queues.first().map_or(0, |q| q.later.len() + usize::from(q.now.is_some()))
    }
    /// Begins the next task of a lane, if it has none.
    fn begin(&mut self, lane: usize, me: Option<Life>) -> Option<Stop<Outcome>> {
        let queue = self.queues.get_mut(lane)?;
        if queue.now.is_some() {
            return None;
        }
        let task = queue.later.pop_front()?;
        let job = job(&task, &self.image, me, self.metadata.clone());
        queue.now = Some(task);
        let lane = queue.lane.get_or_insert_with(Lane::new);
        Some(job.map_or_else(|| Stop::Done(Outcome::Synced(Ok(()))), |job| lane.start(job)))
    }
    fn reply(&mut self, lane: usize, reply: Result<Vec<u8>, ()>) -> Option<Stop<Outcome>> {
        Some(self.queues.get_mut(lane)?.lane.as_mut()?.reply(reply))
    }
}

type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// The code of a task. `None`: nothing can be done yet.
fn job(
    task: &Task,
    image: &Arc<Image>,
    me: Option<Life>,
    metadata: Option<Metadata>,
) -> Option<Job> {
    let image = image.clone();
    Some(match task.clone() {
        Task::Open => {
            let me = me?;
            Box::new(move || {
                let open = Metadata::open(&image.places, me.slot, me.incarnation, CACHE);
                Outcome::Opened(open)
            })
        }
        Task::Recover { dead, believing } => {
            let replay = if believing { replay_believing } else { replay };
            let writer = Writer::Life(dead.incarnation);
            Box::new(move || Outcome::Replayed(replay(&image.places, dead.slot, writer)))
        }
        Task::Use { locks, change, value, files, .. } => {
            let metadata = metadata?;
            Box::new(move || {
                // First, for what is changed counts as closed when this ends.
                let cells = locks.iter().flat_map(|l| l * CELLS..(l + 1) * CELLS);
                let sectors: Result<Vec<_>, Error> =
                    cells.filter(|_| files).map(|cell| read_cell(&image, cell)).collect();
                let used = || {
                    let sectors = sectors?.concat();
                    let blocks = use_locks(&image, &metadata, &locks, (&change, value))?;
                    Ok(Read { blocks, sectors })
                };
                Outcome::Used(used())
            })
        }
        Task::Overwrite { cell, value, .. } => {
            let metadata = metadata?;
            Box::new(move || Outcome::Overwritten(overwrite(&image, &metadata, cell, value)))
        }
        Task::Barrier { skimps, .. } => {
            let metadata = metadata?;
            let sync = if skimps { Metadata::commit } else { Metadata::barrier };
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
            Box::new(move || Outcome::Synced(metadata.close()))
        }
        Task::Demote { lock } => {
            let metadata = metadata?;
            Box::new(move || Outcome::Synced(metadata.sync_owner(image.lock_no(lock))))
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
fn read_cell(image: &Image, cell: usize) -> Result<Vec<(u64, u64)>, Error> {
    let mut bytes = vec![0; SECTORS * LEN];
    image.places.pool().read(image.cell(cell), &mut bytes)?;
    Ok(values_of(cell, &bytes))
}

/// As an overwrite does under a concurrent hold.
fn overwrite(image: &Image, metadata: &Metadata, cell: usize, value: u64) -> Result<(), Error> {
    let bytes = contents_of(cell, value);
    let mut batch = [PoolRequest::write(image.cell(cell), &bytes)];
    image.places.pool().run_concurrent(&mut batch);
    let [PoolRequest { result, .. }] = batch;
    result?;
    metadata.note_data_written();
    Ok(())
}

impl World {
    /// Gives a node something to do.
    pub(crate) fn work(&mut self, pid: Pid, task: Task) {
        self.note(|| format!("process {pid} is to {task:?}"));
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(work) = &mut process.work else { return };
        let lane = Work::lane_of(&task);
        if let Task::Recover { dead, .. } = task {
            work.recovering.push(dead);
        }
        if let Some(queue) = work.queues.get_mut(lane) {
            queue.later.push_back(task);
        }
        self.proceed(pid, lane, None);
    }
    /// A request of a lane is answered.
    pub(crate) fn work_answered(&mut self, pid: Pid, lane: usize, answer: Answer) {
        let reply = match answer {
            Answer::Done(bytes) => Ok(bytes),
            Answer::Mismatch(_) | Answer::Failed | Answer::Fenced => Err(()),
        };
        let Some(process) = self.processes.get_mut(pid) else { return };
        let stop = process.work.as_mut().and_then(|work| work.reply(lane, reply));
        self.proceed(pid, lane, stop);
    }
    /// Lets a lane run until it asks for something, or has nothing to do.
    fn proceed(&mut self, pid: Pid, lane: usize, mut stop: Option<Stop<Outcome>>) {
        loop {
            let Some(process) = self.processes.get_mut(pid) else { return };
            let me = process.me;
            let Some(work) = &mut process.work else { return };
            let Some(next) = stop.take().or_else(|| work.begin(lane, me)) else { return };
            match next {
                Stop::Asks(request) => return self.work_request(pid, lane, request),
                Stop::Panicked(what) => {
                    let task = work.queues.get(lane).and_then(|q| q.now.clone());
                    return self.fail(format!("process {pid} {me:?} at {task:?}: {what}"));
                }
                Stop::Done(outcome) => {
                    let task = work.queues.get_mut(lane).and_then(|q| q.now.take());
                    if let Some(task) = task {
                        self.work_done(pid, task, outcome);
                    }
                }
            }
        }
    }
    fn work_request(&mut self, pid: Pid, lane: usize, request: Request) {
        let (address, op) = match request {
            Request::Read { place, len } => (Address::Data(place, len), Op::Read),
            Request::Write { place, bytes } => {
                (Address::Data(place, bytes.len()), Op::Write(bytes))
            }
            Request::Flush { device } => (Address::Device(device), Op::Flush),
        };
        self.submit(pid, address, op, Purpose::Work(lane));
    }
    fn work_done(&mut self, pid: Pid, task: Task, outcome: Outcome) {
        let me = self.processes.get(pid).and_then(|p| p.me);
        match (task, outcome) {
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
                | Outcome::Used(Err(e @ (Error::Pool(_) | Error::Unreadable { .. }))),
            ) => {
                self.gives_up(pid, &e);
            }
            (Task::Overwrite { thread, value, .. }, Outcome::Overwritten(Ok(()))) => {
                self.overwritten(pid, thread, value);
            }
            (Task::Commit { count }, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    self.model.durable(me, count);
                }
            }
            (Task::Barrier { count, from, .. }, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    self.model.durable(me, count);
                    // Of what other nodes write at the same time it promises nothing.
                    self.files.contents.flushed(from, |node| node == pid);
                }
            }
            (Task::Checkpoint, Outcome::Synced(Ok(()))) => {}
            (Task::Demote { lock }, Outcome::Synced(Ok(()))) => {
                if let Some(me) = me {
                    let count = self.model.last_in(me, &blocks_of(lock));
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
                self.fail(format!("process {pid} {me:?} at {task:?}: {e}"));
            }
            (task, _) => self.fail(format!("process {pid} {me:?}: wrong outcome of {task:?}")),
        }
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
        let pause = self.random.time(std::time::Duration::from_millis(2));
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
            self.work(pid, Task::Barrier { count: self.model.closed_by(me), from, skimps });
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
                return self.work(pid, Task::Demote { lock });
            }
            _ => {}
        }
        self.work(pid, Task::Demote { lock });
    }
    fn replayed(&mut self, pid: Pid, dead: Life, done: Result<Replayed, Error>) {
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
            Err(e) if !matches!(e, Error::Damaged { .. } | Error::Inconsistent { .. }) => {
                self.note(|| format!("process {pid} cannot replay {dead:?}: {e}"));
                if matches!(e, Error::Journal { .. }) {
                    self.repair_journal(dead.slot);
                }
                self.recovered_by(pid, dead, false);
            }
            Err(e) => self.fail(format!("process {pid} cannot replay {dead:?}: {e}")),
        }
    }
}
