//! The checkers: see the list at the top of the crate.

use std::sync::Arc;

use braid_format::NodeId;
use braid_fs::simulation::{Replayed, Writer, replay};
use braid_lock::{Life, Mode};

use crate::disk::{Address, Answer, Op, blocks_of};
use crate::image::{BLOCKS, BlockIndex, CELLS, LOCKS_MAX, Place, SLOTS};
use crate::lane::{Lane, Stop};
use crate::mirrors::Own;
use crate::node::{Process, State};
use crate::world::{Pid, World};

impl World {
    /// Exclusion and belief.
    pub(crate) fn check_lock(&mut self, lock: usize) {
        let record = match self.disk.record(lock) {
            Ok(record) => record,
            Err(e) => return self.fail(e),
        };
        let mut others = Vec::new();
        let mut broken = None;
        for process in self.processes.iter().filter(|p| !p.recovered) {
            let (Some(me), Some(l)) = (process.me, process.locks.get(lock)) else { continue };
            let held = l.held();
            if let Some(other) = others.iter().find(|other: &&Mode| !held.beside().covers(**other))
            {
                broken = Some(format!("lock {lock} is {held:?} beside {other:?}: {record:?}"));
            }
            others.push(held);
            if !record.mode_of(me).covers(held) {
                broken = Some(format!("{me:?} believes in {held:?} of lock {lock}: {record:?}"));
            }
            if l.is_overused() {
                broken = Some(format!("{me:?} uses lock {lock} beyond {held:?}"));
            }
        }
        if let Some(what) = broken {
            self.fail(what);
        }
        self.check_openers(lock);
    }

    /// Protection and order: who writes a body in place holds its lock, now, or recovers one who
    /// does; and what it writes is not older than what stands there.
    pub(crate) fn check_landing(&mut self, pid: Pid, address: Address, op: &Op) {
        let (Address::Data(place, _), Op::Write(bytes)) = (address, op) else { return };
        if let Some(cell) = self.disk.image.cells.iter().position(|c| c.contains(&place)) {
            return self.check_overwrite(pid, (cell, place), bytes);
        }
        let Some(block) = self.disk.block_at(place) else { return };
        // As the other copy has it: the two are made the same.
        if self.disk.other_copy(place, bytes.len()).is_some_and(|other| other == *bytes) {
            return;
        }
        let lock = block / BLOCKS;
        let Some(process) = self.processes.get(pid) else { return };
        let record = match self.disk.record(lock) {
            Ok(record) => record,
            Err(e) => return self.fail(e),
        };
        let holds = process.me.is_some_and(|me| record.mode_of(me) == Mode::Exclusive);
        let recovering = process.work.as_ref().map_or(&[][..], |work| &work.recovering);
        if !holds && recovering.is_empty() {
            let me = process.me;
            self.fail(format!("{me:?} writes block {block} without its lock: {record:?}"));
        } else if !holds && let Some(user) = self.user_of(lock) {
            self.fail(format!("replay of {recovering:?} writes block {block}, held by {user:?}"));
        }
        let Some((new, _)) = self.disk.image.decode(block, bytes) else {
            return self.fail(format!("process {pid} writes damage to block {block}"));
        };
        if let Some((old, _)) = self.disk.seen_at(block, place)
            && new < old
        {
            self.fail(format!("process {pid} writes {new:?} of block {block} over {old:?}"));
        }
    }
    /// Who writes contents holds their lock exclusively or concurrently, or writes what another copy holds.
    fn check_overwrite(&mut self, pid: Pid, (cell, place): (usize, Place), bytes: &[u8]) {
        if self.is_parity() && self.makes_rows_whole(pid) {
            return;
        }
        let copies = self.disk.seen_cell(cell);
        let mut others = copies.iter().filter(|(at, _)| *at != place);
        if others.any(|(_, other)| other.iter().zip(bytes).all(|(a, b)| a == b)) {
            return;
        }
        let me = self.processes.get(pid).and_then(|p| p.me);
        match self.disk.record(cell / CELLS) {
            Ok(record) if me.is_some_and(|me| record.mode_of(me).covers(Mode::Concurrent)) => {}
            Ok(record) => self.fail(format!("{me:?} writes contents under {record:?}")),
            Err(e) => self.fail(e),
        }
    }
    /// It recovers a log, its own or another's, or fills a member.
    fn makes_rows_whole(&self, pid: Pid) -> bool {
        let Some(process) = self.processes.get(pid) else { return true };
        let Some(work) = &process.work else { return true };
        process.state == State::Joining || !work.recovering.is_empty() || work.maintains()
    }
    /// A living node that believes in a lock. (One that was fenced may believe what it likes.)
    fn user_of(&self, lock: usize) -> Option<Life> {
        let living = self.processes.iter().filter(|p| p.state != State::Gone && !p.fenced);
        let living = living.filter(|p| !p.recovered);
        let mut holders =
            living.filter(|p| p.locks.get(lock).is_some_and(|l| l.held() > Mode::Unlocked));
        holders.next().and_then(|p| p.me)
    }
    /// What a node reads under a lock is the latest there is.
    pub(crate) fn check_reads(&mut self, me: Life, reads: &[(BlockIndex, Option<u64>)]) {
        for (block, value) in reads {
            let latest = self.model.value(*block);
            if *value != Some(latest) {
                self.fail(format!("{me:?} reads {value:?} in block {block}, which holds {latest}"));
            }
        }
    }
    /// Of the blocks that this node has changed, no other has something that is not in place.
    pub(crate) fn check_dirty(&mut self, pid: Pid, changed: &[BlockIndex]) {
        // One that was fenced and recovered, and does not know yet, keeps what it likes.
        let others = self.processes.iter().enumerate();
        let others = others.filter(|(other, p)| *other != pid && !p.recovered);
        let metadata =
            others.filter_map(|(other, p)| Some((other, p.work.as_ref()?.metadata.as_ref()?)));
        let mut broken = None;
        for (other, metadata) in metadata {
            if let Some(block) =
                changed.iter().find(|b| metadata.is_dirty(self.disk.image.block(**b)))
            {
                broken = Some(format!("block {block} is dirty in processes {pid} and {other}"));
            }
        }
        if let Some(what) = broken {
            self.fail(what);
        }
    }
    /// What stands in place under a lock that no living or unrecovered node holds exclusively is
    /// stable, and the latest.
    fn check_settled(&mut self, lock: usize) {
        let Ok(record) = self.disk.record(lock) else { return };
        let unsettled = |p: &Process| {
            !p.recovered && p.me.is_some_and(|me| record.mode_of(me) == Mode::Exclusive)
        };
        if self.processes.iter().any(unsettled) {
            return;
        }
        // After a power cut, the record of a lock may be older than what was done under it.
        let dead = self.processes.iter().filter(|p| p.state == State::Gone && !p.recovered);
        let dead: Vec<Life> = dead.filter_map(|p| p.me).collect();
        for block in blocks_of(lock).filter(|b| !self.model.unsure(*b, &dead)).collect::<Vec<_>>() {
            for stands in self.disk.stable_copies(block) {
                if let Err(broken) = self.model.settled(block, stands) {
                    self.fail(format!("{broken}; lock {lock}: {record:?}"));
                }
            }
        }
    }
    /// A life is over and recovered.
    pub(crate) fn check_recovered(&mut self, me: Life) {
        let disk = &self.disk;
        let stands = |block| disk.stable(block).map(|(_, value)| value);
        if let Err(broken) = self.model.recovered(me, stands) {
            self.fail(broken);
        }
        for lock in 0..usize::from(self.cluster.locks) {
            self.check_settled(lock);
        }
    }

    /// Something on a device has changed.
    pub(crate) fn changed(&mut self, address: Address) {
        match address {
            Address::Lock(lock) => {
                if let Ok(record) = self.disk.record(lock) {
                    self.note(|| format!("lock {lock}: {:?} {:?}", record.mode, record.holders));
                }
                self.check_lock(lock);
                self.check_settled(lock);
            }
            Address::Slot(slot) => {
                self.slot_changed(slot);
            }
            Address::Slots | Address::Beat(_) | Address::Data(..) | Address::Device(_) => {}
        }
    }

    /// After all faults: everybody is served, the dead are recovered, all nodes are back.
    pub(crate) fn check_end(&mut self) {
        let early = self.now.saturating_sub(self.cluster.faults.patience / 4);
        let mut broken = None;
        let mut running = 0;
        for (pid, process) in self.processes.iter().enumerate() {
            match process.state {
                State::Running => running += 1,
                State::Gone => {
                    if process.me.is_some() && !process.recovered {
                        broken = Some(format!("process {pid} was never recovered"));
                    }
                    continue;
                }
                State::Joining | State::Leaving => continue,
            }
            if let Some(since) = process.waits.iter().flatten().find(|since| **since < early) {
                broken = Some(format!("a thread of process {pid} waits since {since:?}"));
            }
        }
        self.check_orphans(early);
        if running < usize::from(self.cluster.nodes) {
            broken.get_or_insert(format!("only {running} nodes run at the end"));
        }
        if let Some(what) = broken {
            self.fail(what);
        }
    }

    /// The last power cut: all journals are replayed by nobody but the replay, and what then
    /// stands is what the model says. Doing it all again changes nothing.
    pub(crate) fn end(&mut self) {
        self.power_cut();
        let headers = self.disk.journal_headers();
        let own = self.recover_pool();
        if let Some(own) = own.as_ref().filter(|_| !self.is_parity()) {
            self.check_copies_at_last(&own.member_states());
        } else if let Some(own) = &own {
            self.check_rows_at_last(own);
        }
        let first = self.replay_all(own.as_ref());
        self.report.replayed += first.iter().map(|r| r.written).sum::<u64>();
        let lives: Vec<Life> =
            self.processes.iter().filter(|p| !p.recovered).filter_map(|p| p.me).collect();
        for me in lives {
            self.check_recovered(me);
        }
        for process in &mut self.processes {
            process.recovered = true;
        }
        for lock in 0..usize::from(self.cluster.locks) {
            self.check_settled(lock);
        }
        for (place, bytes) in headers {
            self.disk.land(0, Address::Data(place, bytes.len()), &Op::Write(bytes));
        }
        let again = self.replay_all(own.as_ref());
        let same = |(a, b): (&Replayed, &Replayed)| {
            a.transactions == b.transactions && a.written + a.skipped == b.skipped
        };
        if self.broken.is_none() && !first.iter().zip(&again).all(same) {
            self.fail(format!("replayed again, {first:?} became {again:?}"));
        }
    }
    /// With parity: what the pool gives of contents once all logs are recovered.
    fn check_rows_at_last(&mut self, own: &Arc<Own>) {
        for cell in 0..LOCKS_MAX * CELLS {
            let (image, own) = (self.disk.image.clone(), own.clone());
            match self.run_alone(move || own.read(image.cell(cell))) {
                Some(Ok(bytes)) => self.check_cell_at_last(cell, &bytes),
                Some(Err(e)) => self.fail(format!("contents cannot be read at last: {e}")),
                None => {}
            }
        }
    }
    fn replay_all(&mut self, own: Option<&Arc<Own>>) -> Vec<Replayed> {
        let mut all = Vec::new();
        for slot in 0..SLOTS {
            let (image, own, slot) = (self.disk.image.clone(), own.cloned(), NodeId(slot));
            let writer = Writer::of_record(self.disk.slot(slot.0).ok().as_ref());
            let done = self.run_alone(move || {
                replay(own.as_ref().map_or(&image.places, |own| &own.places), slot, writer)
            });
            match done {
                Some(Ok(done)) => all.push(done),
                Some(Err(e)) => self.fail(format!("slot {slot} cannot be replayed at last: {e}")),
                None => {}
            }
        }
        all
    }
    /// With mirrors: the pool as it is put together when nobody uses it, with all copies equal.
    fn recover_pool(&mut self) -> Option<Arc<Own>> {
        let assemble = self.assembler(self.processes.len())?;
        let recovered = self.run_alone(move || {
            let own = assemble()?;
            own.recover_all(SLOTS)?;
            Ok::<_, braid_fs::Error>(own)
        });
        match recovered? {
            Ok(own) => Some(own),
            Err(e) => {
                self.fail(format!("the pool cannot be put together at last: {e}"));
                None
            }
        }
    }
    /// Runs a job while nobody else does anything, on devices that do at once what they are asked.
    fn run_alone<T: Send + 'static>(
        &mut self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut lane = Lane::new();
        let mut stop = lane.start(Box::new(job));
        loop {
            let asked = match stop {
                Stop::Asks(request) => request.into_command(),
                Stop::Done(done) => return Some(done),
                Stop::Panicked(what) => {
                    self.fail(what);
                    return None;
                }
            };
            let Ok((address, op)) = asked else {
                self.fail("who is alone waits for others".to_owned());
                return None;
            };
            stop = lane.reply(match self.disk.land(0, address, &op) {
                Answer::Done(bytes) | Answer::Mismatch(bytes) => Ok(bytes),
                Answer::Failed | Answer::Fenced => Err(()),
            });
        }
    }
}
