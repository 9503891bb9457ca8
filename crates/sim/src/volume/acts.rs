//! What a node does in one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::label::{Member, MemberState};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use braid_pool::device::{CawOutcome, Device, FaultKind, On};
use braid_pool::{AddOptions, Destination, NoChecksums, Pool, PoolError, PoolRequest, Progress};

use super::node::{Port, Wire};
use super::shape::{Shape, size_of};
use super::verify::{LOCKS, compare, is_computed, lock_area, scrub, verify, whole_rows};
use super::world::World;
use crate::contents::{SECTOR, content, is_lock, lock_content, value_of};

const SECTOR_BYTES: u64 = SECTOR as u64;
/// Bytes in a lock's sector.
pub(super) const LOCK: u64 = 4096;

/// A node that uses the pool.
pub(super) struct Node {
    pub world: Arc<World>,
    pub me: usize,
    pub pool: Arc<Pool>,
    pub port: Arc<Port>,
}

/// The first of the draws that stand for what is done.
const WRITE: u64 = 0;
const DISCARD: u64 = 29;
const FLUSH: u64 = 44;
const EXCHANGE: u64 = 52;
const ROT: u64 = 65;
const REPLACE: u64 = 71;
const REBUILD: u64 = 79;
const BEGIN_MOVE: u64 = 88;
const MOVE_ON: u64 = 91;
/// Beyond them: what only [`Shape::concurrent`] does.
const WRITE_CONCURRENT: u64 = 100;
const READ_CONCURRENT: u64 = 101;
/// What only [`Shape::offline`] does.
const OFFLINE: u64 = 102;
const ONLINE: u64 = 103;

/// One step; `false`: there are no more.
pub(super) fn step(node: &Node, shape: &Shape) -> bool {
    let (world, me) = (&node.world, node.me);
    node.port.duties();
    let (what, dead) = {
        let mut state = world.state();
        if state.has_ended(me) || state.steps == 0 {
            return false;
        }
        state.steps -= 1;
        state.report.steps += 1;
        if let Some(n) = state.nodes.get_mut(me) {
            n.aborted = false;
        }
        let mortal = state.nodes.len() > 1 && !state.report.overloaded && !shape.contended;
        if mortal && state.rng.below(40) == 0 {
            let after = state.rng.below(40);
            if let Some(n) = state.nodes.get_mut(me) {
                n.death = Some(after);
            }
        }
        let gone = |(i, n): (usize, &super::world::Node)| i != me && !n.joined && n.unrecovered;
        let dead = state.nodes.iter().enumerate().filter(|n| gone(*n)).map(|n| n.0);
        let free = !state.nodes.iter().any(|n| n.recovers.is_some());
        let dead = dead.min().filter(|_| free);
        let rots = state.nodes.len() == 1 && state.rng.below(8) == 0;
        (if rots { ROT } else { state.rng.below(100) }, dead)
    };
    if let Some(slot) = dead {
        node.recover(slot);
    }
    let what = match shape {
        Shape { contended: true, .. } => contended(what, node.world.others_fill(me)),
        Shape { concurrent: true, .. } => concurrent(what),
        Shape { offline: true, .. } => offline(what),
        _ => what,
    };
    match what {
        WRITE_CONCURRENT => node.write_concurrent(),
        READ_CONCURRENT => node.read_concurrent(),
        WRITE..DISCARD => node.write(),
        DISCARD..33 => node.discard(),
        33..FLUSH => node.read(),
        FLUSH..EXCHANGE => node.flush(),
        EXCHANGE..58 => node.exchange(),
        58..64 => node.fault(),
        64..ROT => node.rot(),
        ROT..66 => node.rot_and_more(),
        66..68 => node.scrub(),
        _ => {
            node.perhaps_cut();
            match what {
                68..REPLACE => node.fail(),
                REPLACE..75 => node.replace(),
                75..76 => node.add_spare(),
                76..REBUILD => node.use_spare(),
                REBUILD..BEGIN_MOVE => node.rebuild(),
                BEGIN_MOVE..MOVE_ON => node.begin_move(),
                MOVE_ON..95 => node.move_on(),
                95..96 => node.cancel(),
                96..98 => node.remove(),
                OFFLINE => node.take_offline(),
                ONLINE => node.bring_online(),
                _ => node.add(shape),
            }
        }
    }
    true
}

/// What is done, of a hundred draws, where locks are changed while members are filled and moved.
const fn contended(what: u64, others_fill: bool) -> u64 {
    match what {
        0..80 if others_fill => EXCHANGE,
        80..90 if others_fill => WRITE,
        0..50 => EXCHANGE,
        50..56 => WRITE,
        56..60 => FLUSH,
        60..70 => REPLACE,
        70..86 => REBUILD,
        86..91 => BEGIN_MOVE,
        _ => MOVE_ON,
    }
}

/// What is done, of a hundred draws, where nodes write the same blocks at once.
const fn concurrent(what: u64) -> u64 {
    match what {
        0..62 => WRITE_CONCURRENT,
        62..76 => READ_CONCURRENT,
        76..84 => FLUSH,
        84..88 => REPLACE,
        _ => REBUILD,
    }
}

/// What is done, of a hundred draws, where members go offline and come back.
const fn offline(what: u64) -> u64 {
    match what {
        34..40 => DISCARD,
        40..44 => 33,
        44..50 => FLUSH,
        50..56 => EXCHANGE,
        56..58 => 58,
        58..60 | 98 => 66,
        60..72 => OFFLINE,
        72..82 => ONLINE,
        82..93 => REBUILD,
        93..95 => REPLACE,
        95 => 68,
        96 => BEGIN_MOVE,
        97 => MOVE_ON,
        _ => WRITE,
    }
}

impl Node {
    pub(super) fn tell(&self, what: impl AsRef<str>) {
        let what = what.as_ref();
        let mut state = self.world.state();
        state.tell(format!("node {}: {what}", self.me));
    }

    pub(super) fn below(&self, n: u64) -> u64 {
        self.world.state().rng.below(n)
    }

    /// Whether an error is one that may be.
    fn excused(&self) -> bool {
        let state = self.world.state();
        let aborted = state.nodes.get(self.me).is_some_and(|n| n.aborted);
        let bare = !self.pool.map().bare_members().is_empty();
        state.has_ended(self.me) || aborted || bare && !state.suspects().is_empty()
    }

    pub(super) fn check(&self, what: &str, error: &PoolError) {
        let excused = self.excused();
        self.tell(format!("{what}: {error}"));
        if !excused {
            self.world.state().fail(format!("{what}: {error}"));
        }
    }

    /// Where and how much, in sectors, clear of the locks.
    pub(super) fn range(&self) -> (u64, u64) {
        let size = self.pool.info().size.0 / SECTOR_BYTES;
        let locks = lock_area(&self.pool).map(|at| at / SECTOR_BYTES);
        let mut state = self.world.state();
        let r = &mut state.rng;
        let len = match r.below(10) {
            0..5 => r.below(4) + 1,
            5..9 => r.below(64) + 1,
            _ => r.below(400) + 1,
        };
        let places = r.below(6);
        let at = (size / 6 * places + r.below(600)).min(size - len);
        match locks {
            Some(from) if at < from + LOCKS / SECTOR_BYTES && at + len > from => {
                ((from + LOCKS / SECTOR_BYTES).min(size - len), len)
            }
            _ => (at, len),
        }
    }

    pub(super) fn write(&self) {
        let count = self.below(4) + 1;
        let mut runs: Vec<(u64, u64, u64, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let (at, len) = self.range();
            let Some(value) = self.take_range(at, len) else { continue };
            let bytes = (at..at + len).flat_map(|s| content(s, value)).collect();
            runs.push((at, len, value, bytes));
        }
        let places: Vec<(u64, u64)> = runs.iter().map(|r| (r.0, r.1)).collect();
        let whole = whole_rows(&self.pool, &places);
        for (at, len, value, _) in &runs {
            self.world.state().model.begin(*at, *len, *value, |s| whole.contains(&s));
        }
        let mut batch: Vec<PoolRequest<'_>> =
            runs.iter().map(|r| PoolRequest::write(ByteOffset(r.0 * SECTOR_BYTES), &r.3)).collect();
        self.pool.run(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|r| r.result).collect();
        for ((at, len, value, _), result) in runs.iter().zip(results) {
            self.tell(format!("write {value} of {at}+{len}: {}", result.is_ok()));
            match result {
                Ok(()) => {
                    let mut state = self.world.state();
                    state.model.acknowledge(*at, *len, *value);
                    state.report.writes += 1;
                }
                Err(error) => self.has_failed("write", (*at, *len), *value, &error),
            }
            self.give_range(*at, *len);
        }
    }

    /// The number of a change of a range, which nobody else changes until it is given back. Whoever writes the
    /// same bytes at once locks them above the pool.
    pub(super) fn take_range(&self, at: u64, len: u64) -> Option<u64> {
        let mut state = self.world.state();
        if state.busy.iter().any(|(_, from, to)| at < *to && at + len > *from) {
            return None;
        }
        state.values += 1;
        state.busy.push((self.me, at, at + len));
        Some(state.values)
    }

    /// Others may change it.
    pub(super) fn give_range(&self, at: u64, len: u64) {
        self.world.state().busy.retain(|b| *b != (self.me, at, at + len));
    }

    /// Change `id` of a range has not ended well.
    pub(super) fn has_failed(&self, what: &str, (at, len): (u64, u64), id: u64, error: &PoolError) {
        let mut state = self.world.state();
        for s in at..at + len {
            if is_computed(&state, &self.pool, s * SECTOR_BYTES) {
                state.model.loosen(s, id);
            }
        }
        drop(state);
        self.check(what, error);
    }

    fn read(&self) {
        let (at, len) = self.range();
        let mut bytes = vec![0; Bytes(len * SECTOR_BYTES).to_usize()];
        let from = self.world.state().model.now();
        match self.pool.read(ByteOffset(at * SECTOR_BYTES), &mut bytes) {
            Ok(()) => {
                self.tell(format!("read {at}+{len}"));
                compare(&mut self.world.state(), &self.pool, at, &bytes, from);
            }
            Err(error) => self.check("read", &error),
        }
    }

    fn flush(&self) {
        let from = self.world.state().model.now();
        match self.pool.flush() {
            Ok(()) => {
                self.tell("flush");
                let mut state = self.world.state();
                state.report.flushes += 1;
                state.model.flushed(from);
            }
            Err(error) => self.check("flush", &error),
        }
    }

    /// A compare-and-write of a lock.
    fn exchange(&self) {
        self.world.state().exchanging += 1;
        self.try_exchange();
        self.world.state().exchanging -= 1;
    }

    fn try_exchange(&self) {
        let Some(area) = lock_area(&self.pool) else { return };
        let at = area + self.below(LOCKS / LOCK) * LOCK;
        let first = at / SECTOR_BYTES;
        let sectors = LOCK / SECTOR_BYTES;
        let mut old = vec![0; Bytes(LOCK).to_usize()];
        if let Err(error) = self.pool.read_lock(ByteOffset(at), &mut old) {
            return self.check("read of a lock", &error);
        }
        let value = {
            let mut state = self.world.state();
            state.values += 1;
            state.values
        };
        let new: Vec<u8> = (first..first + sectors).flat_map(|s| lock_content(s, value)).collect();
        self.world.state().model.begin(first, sectors, value, |_| false);
        let before = value_of(first, old.get(..SECTOR).unwrap_or(&[]));
        match self.pool.compare_and_write(ByteOffset(at), &old, &new) {
            Ok(CawOutcome::Written) => {
                self.tell(format!("lock {at}: {before} to {value}"));
                let mut state = self.world.state();
                state.model.acknowledge(first, sectors, value);
                state.report.exchanges += 1;
                if !state.exchanged.insert((at, before)) {
                    state.fail(format!("two compare-and-writes from {before} succeeded at {at}"));
                }
            }
            Ok(CawOutcome::Mismatch(_)) => {
                let mut state = self.world.state();
                state.model.withdraw(first, sectors, value);
                if state.nodes.len() == 1 {
                    state.fail(format!("lock {at} is not what was read"));
                }
            }
            // While a copy is filled nobody compares with what was no lock's before.
            Err(PoolError::NoRecord { .. }) if !is_lock(&old) => {
                self.world.state().model.withdraw(first, sectors, value);
            }
            Err(error) => self.check("compare-and-write", &error),
        }
    }

    /// The disks of the members, in their order.
    pub(super) fn members(&self) -> Vec<Option<usize>> {
        let info = self.pool.info();
        let state = self.world.state();
        info.members.iter().map(|m| state.disk_named(&m.path)).collect()
    }

    /// Whether the pool can do without one more disk, given those that may fail.
    fn can_spare(&self, disk: usize) -> bool {
        let members = self.members();
        let map = self.pool.map();
        let states = self.pool.member_states();
        let moving = self.pool.moving();
        let state = self.world.state();
        let mine = self.pool.epoch_tag();
        if state.nodes.iter().any(|n| n.joined && n.tag != mine) && state.nodes.len() > 1 {
            return false;
        }
        let doubtful = |disk: Option<usize>| {
            let disk = disk.and_then(|d| state.disks.get(d));
            disk.is_none_or(|d| d.suspect || d.lost || !d.bad.is_empty())
        };
        let of = |m: MemberIndex| members.get(usize::from(m.0)).copied().flatten();
        // Those that are about to join may become a group that spares one of them.
        let outside = |d: &usize| !members.contains(&Some(*d));
        let mut others = (0..state.disks.len()).filter(|d| *d != disk).filter(outside);
        if outside(&disk) && others.any(|d| doubtful(Some(d))) {
            return false;
        }
        let successor_of =
            |m: MemberIndex| moving.filter(|x| x.leaving == m).and_then(|x| of(x.successor));
        let weak = |m: &MemberIndex| {
            let s = states.get(usize::from(m.0)).map(|s| s.1);
            let readable = matches!(s, Some(MemberState::Active | MemberState::Leaving));
            let hit = of(*m) == Some(disk) || successor_of(*m) == Some(disk);
            !readable
                || hit
                || doubtful(of(*m))
                || successor_of(*m).is_some_and(|h| doubtful(Some(h)))
        };
        let bare = map.bare_members();
        if bare.iter().any(|m| of(*m) == Some(disk) || successor_of(*m) == Some(disk)) {
            return false;
        }
        map.groups().iter().all(|g| g.members().filter(weak).count() <= g.tolerance())
    }

    /// A disk, in the pool or not.
    fn any_disk(&self) -> usize {
        let count = self.world.state().disks.len() as u64;
        usize::try_from(self.below(count)).unwrap_or(0)
    }

    /// Something goes wrong with a disk.
    fn fault(&self) {
        let disk = self.any_disk();
        let bare = !self.pool.map().bare_members().is_empty();
        if !bare && !self.can_spare(disk) {
            return;
        }
        let (kind, on, after) = {
            let mut state = self.world.state();
            let on = *state.rng.pick(&[On::Read, On::Write, On::Flush, On::CompareAndWrite]);
            let torn = FaultKind::FailsTorn(Bytes(512));
            let kinds = [FaultKind::Gone, FaultKind::Fails, FaultKind::FailsDone, torn];
            (*state.rng.pick(&kinds), on, state.rng.below(30))
        };
        let what = self.below(4);
        let mut state = self.world.state();
        state.report.faults += 1;
        let sectors: Vec<u64> = {
            let size = size_of(0) / 512;
            let at = size + state.rng.below(4096);
            (0..=state.rng.below(20)).map(|i| at + i * 3).collect()
        };
        let Some(d) = state.disks.get_mut(disk) else { return };
        let told = match what {
            // Only where somebody can do without.
            0 if !bare => {
                d.lost = true;
                format!("d{disk} is gone for good")
            }
            1 if !bare => {
                let last = d.faulty.info().size.0 / 512;
                d.bad.extend(sectors.iter().filter(|s| **s < last));
                format!("d{disk} cannot read {sectors:?}")
            }
            _ if bare && kind == FaultKind::Gone => return,
            _ => {
                d.faulty.arm(on, after, kind);
                d.suspect = true;
                format!("d{disk}: the {after}th {on:?} {kind:?}")
            }
        };
        drop(state);
        self.tell(told);
    }

    /// Whether one sector may rot: nothing else is wrong, and all of it is there.
    pub(super) fn may_rot(&self) -> bool {
        if self.world.state().nodes.len() > 1 || !self.world.state().suspects().is_empty() {
            return false;
        }
        let states = self.pool.member_states();
        let whole =
            |m: MemberIndex| matches!(states.get(usize::from(m.0)), Some((_, MemberState::Active)));
        let map = self.pool.map();
        map.groups().iter().all(|g| g.members().all(whole)) && map.bare_members().is_empty()
    }

    /// A sector of one member changes by itself, and a scrub finds it.
    fn rot(&self) {
        if !self.may_rot() {
            return;
        }
        let map = self.pool.map();
        let members = self.members();
        let which = usize::try_from(self.below(members.len() as u64)).unwrap_or(0);
        let at = ByteOffset(size_of(0) / 512 * 512 + self.below(4096) * 512);
        let at = ByteOffset(at.0 - (1 << 20));
        let index = MemberIndex(u16::try_from(which).unwrap_or(0));
        let (Some(Some(disk)), true) = (members.get(which), map.inverse(index, at).is_some())
        else {
            return;
        };
        if !self.flip(*disk, at) {
            return;
        }
        // Until it is healed nothing else goes wrong: who reads rot gets rot.
        let power = self.world.state().power.take();
        self.tell(format!("d{disk} rots at {at}"));
        scrub(&self.world, self.me, &self.pool, true);
        verify(&self.world, self.me, &self.pool, false);
        let mut state = self.world.state();
        state.power = power;
        state.report.rot += 1;
    }

    /// Some bytes of a sector of a disk change.
    pub(super) fn flip(&self, disk: usize, at: ByteOffset) -> bool {
        let faulty = self.world.state().disks.get(disk).map(|d| d.faulty.clone());
        let Some(faulty) = faulty else { return false };
        let mut bytes = vec![0; SECTOR];
        faulty.read(at, &mut bytes).is_ok() && {
            let place = usize::try_from(self.below(SECTOR_BYTES)).unwrap_or(0);
            bytes.iter_mut().skip(place).take(3).for_each(|b| *b ^= 0x41);
            // It is not taken back by a power cut, mostly.
            let kept = self.below(4) != 0;
            faulty.write(at, &bytes).is_ok() && (!kept || faulty.flush().is_ok())
        }
    }

    fn scrub(&self) {
        self.tell("scrub");
        scrub(&self.world, self.me, &self.pool, false);
    }

    /// The power may go soon.
    fn perhaps_cut(&self) {
        let mut state = self.world.state();
        if state.power.is_none() && !state.contended && state.rng.below(8) == 0 {
            state.power = Some(state.rng.below(50));
        }
    }

    /// Counts how a change of the pool ended.
    pub(super) fn changed<T>(&self, what: &str, result: Result<T, PoolError>) -> Option<T> {
        match result {
            Ok(done) => {
                self.tell(format!("{what}: done"));
                Some(done)
            }
            Err(error) => {
                self.tell(format!("{what}: {error}"));
                self.world.state().report.refused += 1;
                None
            }
        }
    }

    fn member(&self) -> (MemberIndex, Option<usize>) {
        let members = self.members();
        let which = usize::try_from(self.below(members.len() as u64)).unwrap_or(0);
        let index = MemberIndex(u16::try_from(which).unwrap_or(0));
        (index, members.get(which).copied().flatten())
    }

    /// A member that may be taken out; it counts as lost from now on.
    fn victim(&self) -> Option<MemberIndex> {
        let (index, disk) = self.member();
        let disk = disk?;
        let failed = |s: &(MemberIndex, MemberState)| s.0 == index && s.1 == MemberState::Failed;
        if !self.pool.member_states().iter().any(failed) && !self.can_spare(disk) {
            return None;
        }
        let mut state = self.world.state();
        state.disks.get_mut(disk)?.suspect = true;
        Some(index)
    }

    fn fail(&self) {
        let Some(member) = self.victim() else { return };
        self.changed(&format!("fail {member}"), self.pool.fail_member(member));
    }

    /// A member goes for a while. Nothing is wrong with it.
    fn take_offline(&self) {
        if self.pool.label().members.iter().any(Member::is_offline) && self.below(4) != 0 {
            return;
        }
        let before: Vec<String> = self.world.state().suspects();
        let Some(member) = self.victim() else { return };
        let disk = self.members().get(usize::from(member.0)).copied().flatten();
        let taken = self.pool.take_offline(member);
        let done = self.changed(&format!("take {member} offline"), taken);
        let mut state = self.world.state();
        state.report.offline += u64::from(done.is_some());
        // Others may have become suspect meanwhile.
        if let Some(disk) = disk.and_then(|d| state.disks.get_mut(d)) {
            disk.suspect &= before.contains(&disk.faulty.info().name);
        }
    }

    /// One that is offline comes back.
    pub(super) fn bring_online(&self) {
        let label = self.pool.label();
        let Some(which) = label.members.iter().position(Member::is_offline) else { return };
        let member = MemberIndex(u16::try_from(which).unwrap_or(0));
        let disk = self.members().get(which).copied().flatten();
        let Some(wire) = disk.and_then(|disk| Wire::of(&self.world, self.me, disk)) else { return };
        let back = self.pool.bring_online(member, &wire);
        if let Some(caught) = self.changed(&format!("bring {member} online"), back) {
            self.tell(format!("{caught:?}"));
            self.world.state().report.caught_up += u64::from(caught.fill < caught.whole);
        }
    }

    pub(super) fn new_disk(&self) -> Option<(usize, Arc<dyn Device>)> {
        if self.world.state().disks.len() > 24 {
            return None;
        }
        let disk = self.world.make_disk(size_of(self.below(2) + 4));
        Some((disk, Wire::of(&self.world, self.me, disk)?))
    }

    fn replace(&self) {
        let failed = self.pool.member_states().into_iter().find(|s| s.1 == MemberState::Failed);
        let member = match failed {
            Some((member, _)) if self.below(4) != 0 => member,
            _ => match self.victim() {
                Some(member) => member,
                None => return,
            },
        };
        let Some((disk, wire)) = self.new_disk() else { return };
        let replaced = self.pool.replace(member, wire, false);
        if self.changed(&format!("replace {member} by d{disk}"), replaced).is_some() {
            self.world.state().report.replaced += 1;
        }
    }

    fn add_spare(&self) {
        let Some((disk, wire)) = self.new_disk() else { return };
        self.changed(&format!("spare d{disk}"), self.pool.add_spare(wire, false));
    }

    fn use_spare(&self) {
        if let Some(Some(member)) = self.changed("use a spare", self.pool.use_spare()) {
            self.tell(format!("a spare is member {member} now"));
            self.world.state().report.replaced += 1;
        }
    }

    /// Lets filling or moving go on, mostly to its end.
    fn pace(&self) -> impl Fn(Progress) -> bool + Sync + use<> {
        let chunks = AtomicU64::new(if self.below(3) == 0 { self.below(4) } else { 1000 });
        move |_| {
            chunks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        }
    }

    /// Does what fills or moves a member.
    pub(super) fn filling<T>(&self, work: impl FnOnce() -> T) -> T {
        let says = |fills: bool| {
            if let Some(n) = self.world.state().nodes.get_mut(self.me) {
                n.fills = fills;
            }
        };
        says(true);
        let done = work();
        says(false);
        done
    }

    /// What has just been filled, or moved, is looked at before the next change makes it good.
    fn look_at_copies(&self) {
        let quiet = {
            let state = self.world.state();
            (state.contended && state.exchanging == 0).then_some(state.values)
        };
        let Some(before) = quiet else { return };
        let Ok(found) = self.pool.scrub(&NoChecksums, &mut |_, _| true) else { return };
        let mut state = self.world.state();
        // Nobody has begun to change anything meanwhile.
        if state.values == before && (found.healed.0 != 0 || found.undecided.0 != 0) {
            state.fail(format!("a copy was left behind: {found:?}"));
        }
    }

    fn rebuild(&self) {
        let Some(member) = self.pool.rebuilding() else { return };
        let done = self.filling(|| self.pool.rebuild(member, &self.pace()));
        let done = self.changed(&format!("fill {member}"), done) == Some(true);
        if done {
            self.look_at_copies();
        }
        let mut state = self.world.state();
        *if done { &mut state.report.rebuilt } else { &mut state.report.unbuilt } += 1;
    }

    fn begin_move(&self) {
        let (member, _) = self.member();
        let free = self.pool.member_states().into_iter().find(|s| s.1 == MemberState::Spare);
        let healthy = free.and_then(|s| {
            let disk = self.members().get(usize::from(s.0.0)).copied().flatten()?;
            let state = self.world.state();
            state.disks.get(disk).filter(|d| !d.suspect && !d.lost && d.bad.is_empty())?;
            Some(s.0)
        });
        let to = match healthy {
            Some(spare) if self.below(2) == 0 => Destination::Member(spare.into()),
            _ => match self.new_disk() {
                Some((_, device)) => Destination::Device { device, force: false },
                None => return,
            },
        };
        self.changed(&format!("begin to move {member}"), self.pool.begin_evacuation(member, to));
    }

    fn move_on(&self) {
        if self.pool.moving().is_none() {
            return;
        }
        let done = self.filling(|| self.pool.evacuate(&self.pace()));
        let done = self.changed("move", done) == Some(true);
        if done {
            self.look_at_copies();
        }
        let mut state = self.world.state();
        *if done { &mut state.report.moved } else { &mut state.report.unmoved } += 1;
    }

    fn cancel(&self) {
        if let Some(moving) = self.pool.moving() {
            self.changed("cancel the move", self.pool.cancel_evacuation(moving.leaving));
        }
    }

    fn remove(&self) {
        let idle = self.pool.map().members();
        let count = u16::try_from(self.pool.info().members.len()).unwrap_or(0);
        let Some(member) = (0..count).map(MemberIndex).find(|m| !idle.contains(m)) else { return };
        let removed = self.pool.remove_member(member);
        if self.changed(&format!("remove {member}"), removed).is_some() {
            self.world.state().report.removed += 1;
        }
    }

    /// New space.
    fn add(&self, shape: &Shape) {
        if self.pool.info().members.len() > 12 {
            return;
        }
        let new: Vec<_> =
            (0..shape.sizes.len()).filter_map(|_| self.new_disk()).map(|d| d.1).collect();
        if new.len() < shape.sizes.len() {
            return;
        }
        let added = self.pool.add(&new, &AddOptions::default());
        if self.changed("add", added).is_some() {
            self.world.state().report.added += 1;
        }
    }

    /// Recovers what a dead node left.
    fn recover(&self, slot: usize) {
        if let Some(n) = self.world.state().nodes.get_mut(self.me) {
            n.recovers = Some(slot);
        }
        let recovered = self.pool.recover_log(u16::try_from(slot).unwrap_or(0));
        match recovered {
            Ok(recovered) => {
                self.tell(format!("recovers {slot}: {recovered:?}"));
                let mut state = self.world.state();
                state.report.recoveries += 1;
                state.regions.forget(slot);
                if let Some(n) = state.nodes.get_mut(slot) {
                    n.unrecovered = false;
                }
            }
            Err(error) => self.check("recovery of a log", &error),
        }
        if let Some(n) = self.world.state().nodes.get_mut(self.me) {
            n.recovers = None;
        }
    }
}
