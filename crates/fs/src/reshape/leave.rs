//! The pool becomes smaller: parts that were added leave, with the members that hold nothing else.
//!
//! ```text
//!   open ---> closed: nothing is put there, ---> gone: no node looks   ---> the pool has a hole
//!     ^       file data moves elsewhere           there any more             there
//!     +------------stopped-----+
//! ```
//! The first two arrows are transactions on the superblock, each followed by an epoch of the pool,
//! in which every node reads it before it says that it uses it; the last one is an epoch. Power may
//! be cut anywhere. What is closed stays closed until a node goes on or ends it. What is gone and
//! still in the pool is taken out by the next mount, or the next command.
//!
//! A part is gone only when each of its groups was seen to be empty under its lock, after every node
//! knew that it was closed. Then no window, no free log and no file has anything there; what journals
//! say of it is old, is passed over in a replay, and its addresses are never used again. Metadata is
//! not moved: an inode's number is its address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::label::MemberState;
use braid_format::meta::MetaKind;
use braid_format::superblock::{RawLeaving, RawSuperblock};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use braid_lock::{Local, Mode};
use braid_pool::MemberSelector;
use zerocopy::FromBytes;

use super::rebalance::{Mover, alone};
use crate::Fs;
use crate::alloc::{Use, is_empty};
use crate::core::Core;
use crate::data::relocate::Places;
use crate::error::{Error, Result};
use crate::growth::{HERE, LIVE, Region, bit, copy, finish_leaving, regions};
use crate::jobs::Job;

/// Inodes that are named in a refusal.
const NAMED: usize = 10;
/// So long it is waited for blocks that no file of the tree has.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_millis(250);

/// What taking a member out comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Parts that leave with it, in the order in which they were added, counted from 1.
    pub parts: Vec<usize>,
    /// Members on which nothing stands then.
    pub members: Vec<MemberIndex>,
    /// Blocks that have to move.
    pub blocks: u64,
    /// Free blocks of the rest of the pool.
    pub room: u64,
}

/// How it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Blocks that were moved.
    pub moved: u64,
    /// Members that hold nothing any more.
    pub members: Vec<MemberIndex>,
    /// `false`: it was told to stop; the space is in use again.
    pub finished: bool,
}

/// Which bits a set of regions is.
fn bits_of(regions: &[Region]) -> u32 {
    regions.iter().fold(0, |bits, r| bits | bit(r.number))
}

/// Which bytes of the pool a set of regions is.
fn spans(regions: &[Region]) -> Vec<(ByteOffset, ByteOffset)> {
    regions.iter().map(|r| (r.from, r.to)).collect()
}

/// The groups of regions.
fn groups_of(core: &Core, regions: &[Region]) -> Vec<u64> {
    let groups = &core.volume.groups;
    regions.iter().flat_map(|r| groups.of_part(r.number + 1)).collect()
}

/// Data in groups of closed parts goes to others.
struct Out<'a>(&'a Core);

impl Places for Out<'_> {
    fn leaves(&self, group: u64) -> bool {
        self.0.volume.groups.is_closed(group)
    }
    fn takes(&self, group: u64) -> bool {
        self.0.volume.groups.is_open(group)
    }
}

impl Mover for Out<'_> {
    fn moved(&self, _from: u64, _to: u64, _blocks: u64) {}
    fn done(&self) -> bool {
        false
    }
}

impl Fs {
    /// What of the pool leaves with a member, if it can.
    ///
    /// # Errors
    /// [`Error::Founding`], [`Error::NoRoomElsewhere`], [`Error::Immovable`].
    pub fn plan_leaving(&self, member: impl Into<MemberSelector>) -> Result<Leaving> {
        let core = self.core();
        core.check_alive()?;
        let whole = self.whole(member.into())?;
        self.plan(&whole)
    }

    /// Makes the pool smaller by the parts that a member holds something of: file data in them
    /// moves elsewhere, and they leave. Members on which nothing else stands hold nothing any more.
    /// A removal that was begun before, and broken off, goes on. [`Fs::stop_leaving`] ends it.
    ///
    /// # Errors
    /// As [`Fs::plan_leaving`], before anything is changed; [`Error::NotEmptied`]: the space is in
    /// use again; another is under way, here or on another node ([`Error::UnderWay`]).
    pub fn leave(&self, member: impl Into<MemberSelector>) -> Result<Left> {
        self.may_reshape()?;
        let (core, switch) = (self.core(), &self.mounted.rebalance);
        if core.options.read_only {
            return Err(Error::ReadOnly);
        }
        let _running = switch.begin(Job::Leave)?;
        let _alone = alone(core)?;
        let mut members = finish_leaving(core);
        let whole = self.whole(member.into())?;
        // What could not be taken out just now is gone all the same: it does not leave twice.
        let gone = core.volume.groups.leaving().gone.get();
        let (out, whole): (Vec<_>, Vec<_>) =
            whole.into_iter().partition(|r| gone & bit(r.number) != 0);
        for r in out {
            members.extend(core.volume.pool.cut(r.from, r.to)?);
        }
        // The member holds nothing, or nothing any more.
        if whole.is_empty() {
            return Ok(Left { moved: 0, members, finished: true });
        }
        let leaving = self.plan(&whole)?;
        tracing::info!(blocks = leaving.blocks, parts = ?leaving.parts, "a part of the pool is emptied");
        core.watch(change(core, |l| l.closed |= bits_of(&whole)))?;
        let emptied = self.empty(&whole);
        self.mounted.progress.leaving.end();
        match emptied {
            Ok((moved, true)) => {
                for r in &whole {
                    members.extend(core.volume.pool.cut(r.from, r.to)?);
                }
                Ok(Left { moved, members, finished: true })
            }
            other => {
                // A removal that was not finished does not keep the part closed, unless the node is
                // leaving.
                if core.withdrawn.get().is_none() && !switch.is_closed() {
                    core.watch(change(core, |l| l.closed &= !bits_of(&whole)))?;
                }
                let moved = other?.0;
                Ok(Left { moved, members, finished: false })
            }
        }
    }

    /// Ends one that is under way, soon, or was broken off by the end of its node: the space is in use
    /// again.
    pub fn stop_leaving(&self) -> Result<()> {
        self.may_reshape()?;
        let core = self.core();
        if self.mounted.rebalance.stop(Job::Leave) {
            return Ok(());
        }
        let _alone = alone(core)?;
        core.volume.refresh()?;
        if core.volume.groups.any_closed() {
            core.watch(change(core, |l| l.closed = 0))?;
        }
        Ok(())
    }

    /// How much of what has to move, in bytes, has moved, if this node empties a part of the pool.
    pub fn leaving(&self) -> Option<(u64, u64)> {
        let progress = &self.mounted.progress.leaving;
        let (left, total) = progress.get();
        let shift = self.core().volume.geo.block_size.shift();
        (total > 0).then_some(((total - left) << shift, total << shift))
    }

    /// Since when this node empties a part of the pool.
    pub fn leaving_since(&self) -> Option<Instant> {
        self.mounted.progress.leaving.begun()
    }

    /// The regions that a member holds something of; all of what it holds must be of them.
    fn whole(&self, member: MemberSelector) -> Result<Vec<Region>> {
        let core = self.core();
        core.volume.refresh()?;
        let pool = &core.volume.pool;
        let place = match &member {
            MemberSelector::Index(place) => *place,
            MemberSelector::Uuid(uuid) => {
                let info = pool.info();
                let found = info.members.iter().find(|m| m.uuid == *uuid).map(|m| m.index);
                found.unwrap_or(MemberIndex(u16::MAX))
            }
        };
        let segments = pool.segments_of(member)?;
        let regions = regions(core)?;
        let of = |at: ByteOffset| regions.iter().find(|r| r.from <= at && at < r.to);
        let mut whole: Vec<Region> = Vec::new();
        for s in &segments {
            let Some(region) = of(s.start) else {
                let label = pool.label();
                let there = label.members.get(usize::from(place.get()));
                let failed = there.is_some_and(|m| m.state == MemberState::Failed);
                let bytes = label.bytes_on(place);
                return Err(Error::Founding { member: place.get(), bytes, failed });
            };
            if !whole.iter().any(|r| r.number == region.number) {
                whole.push(*region);
            }
        }
        Ok(whole)
    }

    /// For each member that holds nothing of what the pool was made with, what would leave with it, or
    /// why it cannot; and the parts of that, for people. Members that leave together are one.
    pub(super) fn plans(&self) -> Result<Vec<(String, Result<Leaving>)>> {
        let members = self.pool().label().members;
        let (mut seen, mut plans) = (Vec::new(), Vec::new());
        for uuid in members.iter().map(|m| m.uuid) {
            let whole = match self.whole(MemberSelector::Uuid(uuid)) {
                Err(Error::Founding { .. }) => continue,
                whole => whole?,
            };
            let bits = bits_of(&whole);
            if bits == 0 || seen.contains(&bits) {
                continue;
            }
            seen.push(bits);
            let parts: Vec<String> = whole.iter().map(|r| (r.number + 1).to_string()).collect();
            plans.push((parts.join(" and "), self.plan(&whole)));
        }
        Ok(plans)
    }

    fn plan(&self, whole: &[Region]) -> Result<Leaving> {
        let core = self.core();
        let pool = &core.volume.pool;
        self.sync()?;
        core.alloc.shrink()?;
        let groups = groups_of(core, whole);
        let used = used(core, &groups)?;
        immovable(core, &groups, used)?;
        let members = pool.plan_cut(&spans(whole))?;
        // What is free in the parts that leave is no room.
        let mut room = core.alloc.room()?;
        for index in &groups {
            if core.volume.groups.is_open(*index) {
                room = room.saturating_sub(core.alloc.look_at(*index)?.free);
            }
        }
        has_room(core, used.data, room)?;
        let parts = whole.iter().map(|r| r.number + 1).collect();
        Ok(Leaving { parts, members, blocks: used.data, room })
    }

    /// Moves all out of closed parts, and lets them go: blocks moved, and whether it was done.
    fn empty(&self, whole: &[Region]) -> Result<(u64, bool)> {
        let (core, switch) = (self.core(), &self.mounted.rebalance);
        let groups = groups_of(core, whole);
        let stopped = || switch.stops() || core.withdrawn.get().is_some();
        let (mut moved, mut patience) = (0, Patience::default());
        loop {
            self.sync()?;
            core.alloc.leave()?;
            let now = used(core, &groups)?;
            self.mounted.progress.leaving.set(now.data);
            if now.data == 0 {
                // What came in before all knew that it was closed.
                immovable(core, &groups, now)?;
            }
            if now.data + now.meta == 0 {
                // A move may have begun since.
                core.volume.pool.plan_cut(&spans(whole))?;
                core.watch(let_go(core, whole, &groups))?;
                return Ok((moved, true));
            }
            if stopped() {
                return Ok((moved, false));
            }
            let more = core.watch(self.move_out(&Out(core), &stopped))?;
            moved += more;
            if patience.ends(now.data + now.meta, more, Instant::now()) {
                has_room(core, now.data, core.alloc.room()?)?;
                return Err(Error::NotEmptied { blocks: now.data + now.meta });
            }
            if more == 0 {
                // Windows of other nodes come back by themselves.
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// How long no walk through the files has moved anything.
#[derive(Debug, Default)]
struct Patience {
    /// Fewest blocks that were left when a walk began.
    least: Option<u64>,
    /// When the first of the walks ended that have moved nothing since.
    no_progress_since: Option<Instant>,
}

impl Patience {
    /// A walk, before which `left` blocks were to be moved, has ended `now` and moved `moved` of
    /// them: whether another is not worth while.
    fn ends(&mut self, left: u64, moved: u64, now: Instant) -> bool {
        let fewer = self.least.is_none_or(|least| left < least);
        if fewer {
            self.least = Some(left);
        }
        if moved > 0 {
            self.no_progress_since = None;
            return false;
        }
        // Of fewer blocks it is the first.
        self.no_progress_since = self.no_progress_since.filter(|_| !fewer);
        now.saturating_duration_since(*self.no_progress_since.get_or_insert(now)) > PATIENCE
    }
}

/// Whether the rest of the pool has room for blocks that have to move.
fn has_room(core: &Core, need: u64, room: u64) -> Result<()> {
    let bytes = |blocks: u64| Bytes(blocks << core.volume.geo.block_size.shift());
    if need > room {
        return Err(Error::NoRoomElsewhere { need: bytes(need), room: bytes(room) });
    }
    Ok(())
}

/// What is used in groups.
fn used(core: &Core, groups: &[u64]) -> Result<Use> {
    let mut all = Use::default();
    for index in groups {
        all += core.alloc.look_at(*index)?;
    }
    Ok(all)
}

/// Metadata stays where it is. Free slots in nodes' windows look used, and come back by themselves.
fn immovable(core: &Core, groups: &[u64], used: Use) -> Result<()> {
    if used.meta == 0 {
        return Ok(());
    }
    let mut named = Vec::new();
    for index in groups {
        let more = core.alloc.owners_in(*index, NAMED + 1 - named.len().min(NAMED))?;
        named.extend(more.into_iter().map(|ino| ino.to_string()));
        if named.len() > NAMED {
            named.truncate(NAMED);
            named.push("...".to_owned());
            break;
        }
    }
    if named.is_empty() {
        return Ok(());
    }
    Err(Error::Immovable { blocks: used.meta, inodes: named.join(", ") })
}

/// The last arrow but one: each group is seen to be empty, then they are gone, for every node.
fn let_go(core: &Arc<Core>, whole: &[Region], groups: &[u64]) -> Result<()> {
    let mut gone = Use::default();
    for index in groups {
        let found = core.alloc.look_at_last(*index)?;
        is_empty(found)?;
        gone += found;
    }
    let bits = bits_of(whole);
    write(core, Some(gone), |l| {
        l.closed &= !bits;
        l.gone |= bits;
    })
}

/// What the superblock says of leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Words {
    closed: u32,
    gone: u32,
}

/// Changes which parts are closed, for every node.
fn change(core: &Arc<Core>, f: impl FnOnce(&mut Words)) -> Result<()> {
    write(core, None, f)
}

/// One transaction: the superblock says which parts leave; with `gone`, what was free in them is not
/// counted any more. On return it is in its place and in its copy, durably, and every node knows.
fn write(core: &Arc<Core>, gone: Option<Use>, f: impl FnOnce(&mut Words)) -> Result<()> {
    let volume = &core.volume;
    let guard = core.guard(LIVE, Mode::Exclusive, Local::Exclusive)?;
    volume.refresh()?;
    let now = volume.groups.leaving();
    let mut words = Words { closed: now.closed.get(), gone: now.gone.get() };
    let before = words;
    f(&mut words);
    if words != before {
        // Sound before the first change.
        core.meta.read(HERE, LIVE, MetaKind::Superblock)?;
        let mut tx = core.meta.begin()?;
        tx.modify(HERE, LIVE, MetaKind::Superblock, |body| {
            if let Some(Ok((raw, _))) =
                body.get_mut(RawLeaving::AT..).map(RawLeaving::mut_from_prefix)
            {
                raw.closed.set(words.closed);
                raw.gone.set(words.gone);
            }
            let Ok((sb, _)) = RawSuperblock::mut_from_prefix(body) else { return };
            let features = sb.features_incompat.get() & !RawSuperblock::LEAVING;
            let any = words.closed | words.gone != 0;
            let leaving = if any { RawSuperblock::LEAVING } else { 0 };
            sb.features_incompat.set(features | leaving);
        })?;
        if let Some(gone) = gone {
            core.meta.sealed(core.alloc.count_gone(&mut tx, gone))?;
        }
        drop(tx);
    }
    core.meta.sync_owner(LIVE)?;
    copy(volume)?;
    // An epoch that changes nothing: each node reads the superblock before it says that it uses it.
    volume.pool.renew_epoch()?;
    volume.refresh()?;
    drop(guard);
    Ok(())
}

#[cfg(test)]
mod tests;
