//! Files, one under each lock ([`Cluster::files`]): what programs do with them beside what is done with
//! metadata. They open them and keep them open while their node gives the lock up, overwrite contents under
//! concurrent holds, on several nodes at once, and unlink them while others have them open.
//!
//! Of `braid_fs` this runs who notes that the record names its node as an opener (`OpenFile`), the overwrite's
//! note for the next flush, and the commit and flush of fsync and of the housekeeper; of `braid_lock` the openers in a
//! record. That a file has no name, and which node lists it, is known to the world alone.
//!
//! [`Cluster::files`]: crate::Cluster::files

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use braid_format::label::MemberState;
use braid_format::lock_record::LockRecord;
use braid_format::{MemberIndex, NodeId};
use braid_fs::simulation::OpenFile;
use braid_lock::dlock::Time;
use braid_lock::glock::{Demoted, Wish};
use braid_lock::{Life, Mode};

use crate::contents::{Overlapping, Write, content, value_of};
use crate::disk::LEN;
use crate::image::{CELLS, LOCKS_MAX, Place, SECTORS};
use crate::locks::{Lock, Plan};
use crate::node::State;
use crate::work::Task;
use crate::world::{Event, Pid, World};
use crate::{Mirrors, Sabotage};

/// How long a program keeps a file open, at most.
const OPEN: Duration = Duration::from_millis(300);
/// The housekeeper comes once in so many heartbeats.
const HOUSE: u64 = 16;

/// What a thread wants its locks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Then {
    /// To read and change metadata.
    #[default]
    Use,
    Overwrite,
    Open,
    Unlink,
    /// To leave the record, and to delete what has no name and is used by nobody.
    Reap,
}

/// What is true of all files.
#[derive(Default)]
pub(crate) struct Files {
    /// Those without a name, since when.
    unlinked: BTreeMap<usize, Time>,
    /// Those that a slot's node is to delete.
    lists: BTreeMap<NodeId, BTreeSet<usize>>,
    pub(crate) contents: Overlapping,
}

/// What a process has open.
pub(crate) struct Opened {
    files: Vec<OpenFile>,
    /// Locks that it takes one after the other: see [`Then::Reap`].
    to_reap: VecDeque<usize>,
    reaping: Option<usize>,
}

impl Opened {
    pub(crate) fn new() -> Self {
        let files = (0..LOCKS_MAX).map(|_| OpenFile::default()).collect();
        Self { files, to_reap: VecDeque::new(), reaping: None }
    }
    fn is_open(&self, lock: usize) -> bool {
        self.files.get(lock).is_some_and(OpenFile::is_open)
    }
    /// Its record will name this node no more, in time, if nobody here opens it again.
    fn ends_opener(&self, lock: usize) -> bool {
        self.files.get(lock).is_some_and(OpenFile::may_be_opener)
            || self.reaping == Some(lock)
            || self.to_reap.contains(&lock)
    }
}

/// The sectors of a cell, as [`Overlapping`] numbers them.
pub(crate) fn sectors_of(cell: usize) -> std::ops::Range<u64> {
    let first = (cell * SECTORS) as u64;
    first..first + SECTORS as u64
}
/// What a write gives a cell.
pub(crate) fn contents_of(cell: usize, value: u64) -> Vec<u8> {
    sectors_of(cell).flat_map(|sector| content(sector, value)).collect()
}
/// What the sectors of a cell hold.
pub(crate) fn values_of(cell: usize, bytes: &[u8]) -> Vec<(u64, u64)> {
    sectors_of(cell).zip(bytes.chunks(LEN)).map(|(s, b)| (s, value_of(s, b))).collect()
}

/// Of a row with one parity: whether its parts, taken together, are not zeros.
fn is_uneven(row: &[(Place, Vec<u8>)]) -> bool {
    let mut sum = vec![0; SECTORS * LEN];
    let parts = row.iter().flat_map(|(_, part)| (0..).zip(part));
    for (n, byte) in parts {
        if let Some(of_sum) = sum.get_mut::<usize>(n) {
            *of_sum ^= byte;
        }
    }
    sum.iter().any(|byte| *byte != 0)
}

fn is_active(members: &[(MemberIndex, MemberState)], device: u16) -> bool {
    let state = members.iter().find(|(member, _)| member.0 == device).map(|m| m.1);
    state == Some(MemberState::Active)
}

impl World {
    /// The thread that takes locks for [`Then::Reap`].
    pub(crate) fn reaper(&self) -> usize {
        self.all_threads() - 1
    }
    fn file(&self, pid: Pid, lock: usize) -> Option<&OpenFile> {
        self.processes.get(pid)?.opened.files.get(lock)
    }

    /// A thread does something with a file, instead of metadata.
    pub(crate) fn file_plan(&mut self, pid: Pid) -> Option<Plan> {
        if !self.cluster.files || self.random.below(8) < 3 {
            return None;
        }
        let lock = self.random.below(u64::from(self.cluster.locks));
        let lock = usize::try_from(lock).unwrap_or(0);
        let then = *self.random.pick(&[
            Then::Overwrite,
            Then::Overwrite,
            Then::Overwrite,
            Then::Open,
            Then::Open,
            Then::Unlink,
        ]);
        let forced = self.random.below(2) == 0;
        let process = self.processes.get(pid)?;
        let mode = match then {
            Then::Overwrite if forced => Mode::Concurrent,
            Then::Overwrite => {
                let wish = Wish { mode: Mode::Exclusive, concurrent: true };
                process.locks.get(lock)?.mode_for(wish, process.me?)
            }
            Then::Open => Mode::Shared,
            _ => Mode::Exclusive,
        };
        Some(Plan::of(lock, mode, then))
    }

    /// A thread has its lock for something else than metadata.
    pub(crate) fn file_use_begins(&mut self, pid: Pid, thread: usize, (lock, then): (usize, Then)) {
        match then {
            Then::Overwrite => return self.overwrite(pid, thread, lock),
            Then::Reap => return self.reap(pid, lock),
            Then::Open => self.open_file(pid, lock),
            Then::Unlink => self.unlink(pid, lock),
            Then::Use => {}
        }
        self.after(Duration::ZERO, Event::EndUse { pid, thread });
    }
    fn overwrite(&mut self, pid: Pid, thread: usize, lock: usize) {
        let nth = usize::try_from(self.random.below(CELLS as u64)).unwrap_or(0);
        let (cell, value) = (lock * CELLS + nth, self.nonce());
        for sector in sectors_of(cell) {
            self.files.contents.begin((sector, pid), value, value);
        }
        let split = self.cluster.sabotage == Some(Sabotage::SplitCopies);
        self.work(pid, Task::Overwrite { thread, cell, value, split });
    }
    pub(crate) fn overwritten(&mut self, pid: Pid, thread: usize, (cell, value): (usize, u64)) {
        let now = self.nonce();
        self.files.contents.end(value, now, true);
        self.check_copies(cell);
        self.report.overwrites += 1;
        self.use_done(pid, thread);
    }
    /// What was read of contents under a lock, by a read that began then.
    pub(crate) fn check_contents(&mut self, me: Life, from: u64, read: &[(u64, u64)]) {
        for (sector, value) in read {
            if !self.files.contents.may_read(*sector, *value, from) {
                let writes = self.files.contents.sectors.get(sector).cloned();
                let what = format!("{me:?} reads {value} in sector {sector} of a file: {writes:?}");
                self.fail(what);
            }
        }
    }

    // Open, close, unlink.

    fn open_file(&mut self, pid: Pid, lock: usize) {
        if self.files.unlinked.contains_key(&lock) {
            return;
        }
        self.note(|| format!("process {pid} opens the file of lock {lock}"));
        self.report.opened += 1;
        if let Some(file) = self.file(pid, lock) {
            file.open();
        }
        let pause = self.random.time(OPEN);
        self.after(pause, Event::Close { pid, lock });
    }
    pub(crate) fn close_file(&mut self, pid: Pid, lock: usize) {
        let unlinked = self.files.unlinked.contains_key(&lock);
        let Some(file) = self.file(pid, lock).filter(|file| file.is_open()) else { return };
        file.close();
        let ends = file.end_opener() || unlinked && !file.is_open();
        self.note(|| format!("process {pid} closes the file of lock {lock}: {ends}"));
        if ends {
            self.is_to_reap(pid, lock);
        }
        self.check_openers(lock);
    }
    fn unlink(&mut self, pid: Pid, lock: usize) {
        let Some(process) = self.processes.get(pid) else { return };
        let Some(me) = process.me else { return };
        if self.files.unlinked.contains_key(&lock) {
            return;
        }
        self.note(|| format!("process {pid} unlinks the file of lock {lock}"));
        let now = self.now;
        self.files.unlinked.insert(lock, now);
        if self.is_in_use(pid, lock) {
            self.files.lists.entry(me.slot).or_default().insert(lock);
        } else {
            self.delete_file(pid, lock);
        }
    }
    /// Held exclusively: whether a program here or elsewhere has it open.
    fn is_in_use(&self, pid: Pid, lock: usize) -> bool {
        let Some(process) = self.processes.get(pid) else { return false };
        let record = process.locks.get(lock).and_then(Lock::known);
        let other = |life: &Life| Some(*life) != process.me && !process.says_dead(*life);
        process.opened.is_open(lock) || record.is_some_and(|r| r.openers.iter().any(other))
    }
    fn delete_file(&mut self, pid: Pid, lock: usize) {
        self.note(|| format!("process {pid} deletes the file of lock {lock}"));
        self.report.deleted += 1;
        self.files.unlinked.remove(&lock);
        self.files.lists.values_mut().for_each(|list| _ = list.remove(&lock));
        if let Some(file) = self.file(pid, lock) {
            file.no_opener();
        }
        let user = self.processes.iter().find(|p| {
            p.state != State::Gone && !p.fenced && !p.recovered && p.opened.is_open(lock)
        });
        if let Some(me) = user.map(|p| p.me) {
            self.fail(format!("the file of lock {lock} is deleted, and {me:?} has it open"));
        }
    }

    // What is left for later.

    fn is_to_reap(&mut self, pid: Pid, lock: usize) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        if !process.opened.to_reap.contains(&lock) {
            process.opened.to_reap.push_back(lock);
        }
        self.reap_next(pid);
    }
    fn reap_next(&mut self, pid: Pid) {
        let reaper = self.reaper();
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.state != State::Running || process.opened.reaping.is_some() {
            return;
        }
        let Some(lock) = process.opened.to_reap.pop_front() else { return };
        process.opened.reaping = Some(lock);
        if let Some(plan) = process.plans.get_mut(reaper) {
            *plan = Plan::of(lock, Mode::Exclusive, Then::Reap);
        }
        self.wants_next(pid, reaper);
    }
    fn reap(&mut self, pid: Pid, lock: usize) {
        if !self.files.unlinked.contains_key(&lock) {
            self.files.lists.values_mut().for_each(|list| _ = list.remove(&lock));
        } else if !self.is_in_use(pid, lock) {
            self.delete_file(pid, lock);
        }
        self.has_reaped(pid);
    }
    fn has_reaped(&mut self, pid: Pid) {
        self.let_go(pid, self.reaper());
        if let Some(process) = self.processes.get_mut(pid) {
            process.opened.reaping = None;
        }
        self.reap_next(pid);
    }
    /// The lock could not be taken.
    pub(crate) fn cannot_reap(&mut self, pid: Pid) {
        let reaping = self.processes.get(pid).and_then(|p| p.opened.reaping);
        if let Some(file) = reaping.and_then(|lock| self.file(pid, lock)) {
            file.still_opener();
        }
        self.has_reaped(pid);
    }
    /// At a heartbeat of this number.
    pub(crate) fn keep_house(&mut self, pid: Pid, sequence: u64) {
        if !self.cluster.files || !sequence.is_multiple_of(HOUSE) {
            return;
        }
        let Some(process) = self.processes.get(pid) else { return };
        let Some(me) = process.me.filter(|_| process.state == State::Running) else { return };
        let closed = |lock: &usize| self.file(pid, *lock).is_some_and(OpenFile::end_opener);
        let mut due: Vec<usize> = (0..usize::from(self.cluster.locks)).filter(closed).collect();
        let listed = self.files.lists.get(&me.slot).into_iter().flatten();
        due.extend(listed.filter(|lock| !process.opened.is_open(**lock)));
        for lock in due {
            self.is_to_reap(pid, lock);
        }
        self.sync(pid, true);
    }
    /// A node that has recovered another goes on with what that one listed.
    pub(crate) fn inherit_files(&mut self, pid: Pid, dead: Life) {
        let Some(me) = self.processes.get(pid).and_then(|p| p.me) else { return };
        if let Some(list) = self.files.lists.remove(&dead.slot) {
            self.files.lists.entry(me.slot).or_default().extend(list);
        }
    }
    /// Its programs have gone before it.
    pub(crate) fn close_all(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(pid) else { return };
        for file in process.opened.files.iter().filter(|file| file.is_open()) {
            while file.is_open() {
                file.close();
            }
            // Its life ends, and with it what records say of it.
            file.still_opener();
        }
    }

    // A lock is given up.

    /// It begins: often a program closes the file just then. What was open at the beginning counted once.
    pub(crate) fn begins_to_give_up(&mut self, pid: Pid, lock: usize) {
        let open = self.processes.get(pid).is_some_and(|p| p.opened.is_open(lock));
        if open && self.random.below(4) == 0 {
            let pause = self.random.time(Duration::from_millis(1));
            self.after(pause, Event::Close { pid, lock });
        }
        if let Some(l) = self.lock_mut(pid, lock) {
            l.opened_before = open;
        }
    }
    /// What is left behind of a lock that is given up down to `to`.
    pub(crate) fn left_behind(&mut self, pid: Pid, lock: usize, to: Mode) -> Demoted {
        if !self.cluster.files || to != Mode::Unlocked {
            return Demoted::default();
        }
        let before = self.lock_mut(pid, lock).is_some_and(|l| l.opened_before);
        let Some(file) = self.file(pid, lock) else { return Demoted::default() };
        let opened = if self.cluster.sabotage == Some(Sabotage::OpenerForEver) {
            // Who has closed it in between has found no note.
            let noted = before && file.is_open();
            let note = if noted { OpenFile::still_opener } else { OpenFile::no_opener };
            note(file);
            before
        } else {
            file.leaves_opener()
        };
        Demoted { opened, written: None }
    }

    // Checkers.

    /// Who has a file open holds its lock, or is named in its record; and who is named there has it open, or
    /// sees to it that it is named no more.
    pub(crate) fn check_openers(&mut self, lock: usize) {
        if !self.cluster.files {
            return;
        }
        let Ok(record) = self.disk.record(lock) else { return };
        let mut broken = None;
        for process in self.processes.iter().filter(|p| p.state == State::Running) {
            let Some(me) = process.me.filter(|_| !process.fenced && !process.recovered) else {
                continue;
            };
            let Some(l) = process.locks.get(lock) else { continue };
            if record.mode_of(me) != Mode::Unlocked || l.held() != Mode::Unlocked {
                continue;
            }
            let (open, named) = (process.opened.is_open(lock), record.openers.contains(&me));
            let comes = l.in_use() || record.waiters.iter().any(|w| w.life == me);
            if open && !named {
                broken = Some(format!("{me:?} has the file of lock {lock} open: {record:?}"));
            } else if named && !open && !comes && !process.opened.ends_opener(lock) {
                broken = Some(format!("{me:?} is an opener of lock {lock} for ever: {record:?}"));
            }
        }
        if let Some(what) = broken {
            self.fail(what);
        }
    }
    /// A life is over, and nothing of it lands any more.
    pub(crate) fn life_has_ended(&mut self, pid: Pid) {
        if !self.cluster.files {
            return;
        }
        let now = self.nonce();
        self.files.contents.die(|node| node == pid, now);
    }
    /// Power has been cut: contents are those of some write that nothing durable has followed.
    pub(crate) fn check_contents_left(&mut self) {
        if !self.cluster.files {
            return;
        }
        let now = self.nonce();
        self.files.contents.die(|_| true, now);
        for cell in 0..LOCKS_MAX * CELLS {
            if self.is_parity() {
                // What a recovery makes of it is seen at the end: until then whatever may be left is.
                for sector in sectors_of(cell) {
                    let contents = &self.files.contents;
                    let writes = contents.sectors.get(&sector).into_iter().flatten();
                    let values: Vec<u64> = writes.map(Write::value).collect();
                    let survives = |value: &u64| contents.may_survive(sector, *value);
                    let survivors: Vec<u64> = values.into_iter().filter(survives).collect();
                    if !survivors.is_empty() {
                        self.files.contents.settle(sector, &survivors, now);
                    }
                }
                continue;
            }
            let copies = self.disk.cell(cell);
            let values =
                copies.iter().map(|((device, _), bytes)| (*device, values_of(cell, bytes)));
            let values: Vec<(u16, Vec<(u64, u64)>)> = values.collect();
            for (n, sector) in sectors_of(cell).enumerate() {
                let of_sector = |copy: &(u16, Vec<(u64, u64)>)| Some((copy.0, copy.1.get(n)?.1));
                let found: Vec<(u16, u64)> = values.iter().filter_map(of_sector).collect();
                self.check_sector_left(sector, &found, now);
            }
        }
    }
    /// Of several copies any may be the one that a recovery takes. What one of a member that has failed holds may
    /// be of any time.
    fn check_sector_left(&mut self, sector: u64, found: &[(u16, u64)], now: u64) {
        let contents = &self.files.contents;
        let lost = |(device, value): &&(u16, u64)| {
            self.is_read(*device) && !contents.may_survive(sector, *value)
        };
        if let Some((device, value)) = found.iter().find(lost).copied() {
            let writes = contents.sectors.get(&sector).cloned();
            let what = format!(
                "sector {sector} of a file is left with {value} on device {device}: {writes:?}"
            );
            return self.fail(what);
        }
        let survivors = found.iter().map(|f| f.1).filter(|v| contents.may_survive(sector, *v));
        let survivors: Vec<u64> = survivors.collect();
        self.files.contents.settle(sector, &survivors, now);
    }
    /// Power has been cut, all logs are recovered, and the pool gives this.
    pub(crate) fn check_cell_at_last(&mut self, cell: usize, bytes: &[u8]) {
        for (sector, value) in values_of(cell, bytes) {
            let contents = &self.files.contents;
            if !contents.may_survive(sector, value) {
                let writes = contents.sectors.get(&sector).cloned();
                let what = format!("sector {sector} of a file is left with {value}: {writes:?}");
                return self.fail(what);
            }
        }
    }
    pub(crate) fn is_parity(&self) -> bool {
        self.cluster.mirrors.is_some_and(Mirrors::is_parity)
    }
    /// Whether nodes read what a device holds.
    fn is_read(&self, device: u16) -> bool {
        self.cluster.mirrors.is_none() || is_active(&self.peers.members(), device)
    }
    /// Nobody writes a cell any more, and no dead node is left that did: all its copies are the same.
    fn check_copies(&mut self, cell: usize) {
        let members = self.peers.members();
        let whole = members.iter().all(|m| m.1 == MemberState::Active);
        let unrecovered = |p: &crate::node::Process| {
            p.state == State::Gone && p.me.is_some() && !p.recovered && !p.left
        };
        let first = sectors_of(cell).start;
        if !whole
            || self.members.may_differ()
            || !self.peers.agree()
            || self.processes.iter().any(unrecovered)
            || self.files.contents.is_written((first, SECTORS as u64))
        {
            return;
        }
        self.compare_copies(cell, &self.disk.seen_cell(cell));
    }
    /// All logs are recovered, and nobody uses the pool: all copies that would be read are the same.
    pub(crate) fn check_copies_at_last(&mut self, members: &[(MemberIndex, MemberState)]) {
        for cell in 0..LOCKS_MAX * CELLS {
            let mut copies = self.disk.cell(cell);
            copies.retain(|((device, _), _)| is_active(members, *device));
            self.compare_copies(cell, &copies);
        }
    }
    fn compare_copies(&mut self, cell: usize, copies: &[(Place, Vec<u8>)]) {
        let differ = if self.is_parity() {
            is_uneven(copies)
        } else {
            copies.windows(2).any(|pair| matches!(pair, [(_, a), (_, b)] if a != b))
        };
        if differ {
            let found: Vec<_> = copies.iter().map(|(at, b)| (at.0, values_of(cell, b))).collect();
            self.fail(format!("copies differ, and nobody writes: (device, values) {found:?}"));
        }
    }
    /// No file without a name stays for ever.
    pub(crate) fn check_orphans(&mut self, early: Time) {
        for (lock, since) in self.files.unlinked.clone() {
            let open =
                self.processes.iter().any(|p| p.state != State::Gone && p.opened.is_open(lock));
            let lists = self.files.lists.iter().find(|(_, list)| list.contains(&lock));
            let cared_for = lists.is_none_or(|(slot, _)| {
                let runs = |p: &&crate::node::Process| p.state == State::Running;
                self.processes.iter().filter(runs).any(|p| p.me.is_some_and(|me| me.slot == *slot))
            });
            if since < early && !open && cared_for {
                let record: Option<LockRecord> = self.disk.record(lock).ok();
                self.fail(format!(
                    "the file of lock {lock} has no name since {since:?}: {record:?}"
                ));
            }
        }
    }
}
