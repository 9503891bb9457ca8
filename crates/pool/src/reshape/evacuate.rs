//! Moving the contents of a member to another device while the pool is in use.
//!
//! ```text
//!   Active ---> Leaving, with a successor (a spare) ---> the successor, Active, in its place
//!      ^                |                                 and the old one, Leaving, holds nothing
//!      +---cancelled----+
//! ```
//! Each arrow is an epoch. During the move every write goes to both devices ([`MemberMigration`]),
//! and reads go to the old one. So redundancy is never less, and a pool without redundancy can move
//! a member too. Which bytes were copied is not recorded: after a crash the copying begins again.
//! It also begins again if another node dies, because that node may have written to the old device
//! and not to the new one. The node that recovers the dead one starts it again in a new epoch,
//! before any node gets the dead node's locks ([`Pool::restart_migration`]).
//!
//! Rot on the old device is copied as it is, and the other members are not compared. The number of
//! copies with that rot does not grow, so a later scrub decides as it would have before. (Filling a
//! member, or moving file data, multiplies what it reads: there copies are compared.) But a member
//! that is suspected to return garbage is not moved if the others have what it should hold: it is read
//! last, and its successor would be read like any other. It is replaced instead, from the others. A move
//! ends if the suspicion comes up while it is under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::{AlignedBuf, Device, DeviceError};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use uuid::Uuid;

use crate::cluster::RegionHold;
use crate::devices::migration::MemberMigration;
use crate::error::{ChangeError, PoolError};
use crate::labels::{Moving, fits, moving, next_epoch, state_word};
use crate::layout::group::{Group, Shape};
use crate::layout::stretch::Span;
use crate::membership::claims::moved;
use crate::membership::joining::Joining;
use crate::membership::selector::{MemberSelector, ResolvedMember};
use crate::pace::Progress;
use crate::pool::Pool;
use crate::redundancy::EpochInUse;
use crate::redundancy::decode::{Sources, decode_row};
use crate::redundancy::reconstruct::{mend_copy, read_reconstructed};
use crate::redundancy::sectors::sectors;
use crate::topology::{Lost, Topology};

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// A move, its two devices, and the runs of bytes to be copied.
type Work = (Moving, Arc<MemberMigration>, Vec<(ByteOffset, Bytes)>);

/// The next label, as far as it has a successor; the devices, and the successor's place.
type Begun = (Label, Vec<Arc<dyn Device>>, MemberIndex);

/// Where the contents of a member go.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A device that joins for that.
    Device {
        /// It.
        device: Arc<dyn Device>,
        /// Whatever is on it.
        force: bool,
    },
    /// A spare, or another member on which nothing stands.
    Member(MemberSelector),
}

/// A [`Destination`], whatever other nodes do meanwhile.
enum Goal {
    Device { device: Arc<dyn Device>, force: bool },
    Member(ResolvedMember),
}

impl Topology {
    fn no_move(&self) -> Result<(), PoolError> {
        let Some(Moving { leaving, successor }) = moving(&self.label) else { return Ok(()) };
        let (leaving, successor) = (self.name(leaving), self.name(successor));
        Err(ChangeError::Moving { leaving, successor }.into())
    }

    /// Whether `member` may leave.
    fn may_leave(&self, member: MemberIndex) -> Result<Member, PoolError> {
        let old = self.label.members.get(usize::from(member.0));
        let old = old.ok_or(PoolError::NoSuchMember { member })?;
        self.no_move()?;
        let name = self.name(member);
        if !self.map.members().contains(&member) {
            return Err(ChangeError::HoldsNothing { member: name }.into());
        }
        if !self.readable(member) {
            return Err(ChangeError::NotWhole { member: name, state: state_word(old.state) }.into());
        }
        self.check_trusted(member)?;
        Ok(old.clone())
    }

    /// What `member` returns may be copied if it is not suspected, or if no other members hold it, be they
    /// suspected as well: the copy would be trusted.
    ///
    /// # Errors
    /// [`ChangeError::Suspected`].
    fn check_trusted(&self, member: MemberIndex) -> Result<(), PoolError> {
        let others_hold_it = |group: &Group| {
            group.members().any(|m| m == member) && self.can_do_without(group, |m| m == member)
        };
        if !self.is_suspected(member) || !self.map.groups().iter().any(others_hold_it) {
            return Ok(());
        }
        Err(ChangeError::Suspected { member: self.name(member), index: member }.into())
    }
}

impl Pool {
    /// Begins to move all that stands on `member` to another device: on return every write goes
    /// to both. [`Pool::evacuate`] copies what was there before.
    ///
    /// # Errors
    /// [`ChangeError`]; what [`Pool::create`] says of devices; [`PoolError::TooSmall`].
    pub fn begin_evacuation(
        &self,
        member: impl Into<MemberSelector>,
        to: Destination,
    ) -> Result<Moving, PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        let to = self.goal_of(to)?;
        self.0.changing(move || self.try_begin(&resolved, &to))
    }

    /// What [`Pool::begin_evacuation`] would refuse; nothing is changed. The place of the member that would get
    /// everything.
    ///
    /// # Errors
    /// As there.
    pub fn plan_evacuation(
        &self,
        member: impl Into<MemberSelector>,
        to: &Destination,
    ) -> Result<MemberIndex, PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let goal = self.goal_of(to.clone())?;
        let topology = self.0.epochs.read();
        let (_, _, successor) = self.may_begin(&topology, topology.place_of(&resolved)?, &goal)?;
        Ok(successor)
    }

    fn goal_of(&self, to: Destination) -> Result<Goal, PoolError> {
        Ok(match to {
            Destination::Device { device, force } => Goal::Device { device, force },
            Destination::Member(selector) => Goal::Member(self.0.resolve_member(selector)?),
        })
    }

    /// The next label, as far as it has the successor of `member`; the devices, and the successor's place.
    fn may_begin(
        &self,
        topology: &EpochInUse,
        member: MemberIndex,
        to: &Goal,
    ) -> Result<Begun, PoolError> {
        if topology.provisional {
            return Err(PoolError::Provisional { name: topology.label.name.clone() });
        }
        if self.0.io.queued.load(Ordering::Acquire) > 0 {
            return Err(ChangeError::Busy.into());
        }
        let old = topology.may_leave(member)?;
        let mut next = next_epoch(&topology.label);
        let mut devices = topology.devices.clone();
        let target = match to {
            Goal::Device { device, force } => {
                let target = fits(device, &old)?;
                self.0.check_joins(topology, device, *force)?;
                let count = next.members.len() + 1;
                if count > Label::MEMBERS_MAX {
                    return Err(PoolError::TooManyMembers { count });
                }
                next.members.push(target);
                devices.push(device.clone());
                count - 1
            }
            Goal::Member(to) => free_member(topology, &mut next, member, topology.place_of(to)?)?,
        };
        Ok((next, devices, MemberIndex(u16::try_from(target).unwrap_or(u16::MAX))))
    }

    fn try_begin(&self, resolved: &ResolvedMember, to: &Goal) -> Result<Moving, PoolError> {
        let topology = self.0.epochs.write();
        let member = topology.place_of(resolved)?;
        let (mut next, devices, successor) = self.may_begin(&topology, member, to)?;
        let epoch = next.epoch;
        if let Some(m) = next.members.get_mut(usize::from(successor.0)) {
            (m.state, m.state_epoch) = (MemberState::Spare, epoch);
        }
        if let Some(m) = next.members.get_mut(usize::from(member.0)) {
            (m.state, m.state_epoch) = (MemberState::Leaving, epoch);
            m.successor = Some(successor);
        }
        let joining = match to {
            Goal::Device { device, force } => Joining::new(std::slice::from_ref(device), *force),
            Goal::Member(_) => Joining::NONE,
        };
        self.0.change_with(topology, next, devices, &joining)?;
        Ok(Moving { leaving: member, successor })
    }

    /// Members that may get all that stands on `member`, the smallest first, with their identities:
    /// sound ones that are large enough, on which nothing stands, or would if it were not for what
    /// those in `idle` hold. A member whose contents were moved away is not one of them. Nothing is
    /// changed.
    ///
    /// # Errors
    /// As [`Pool::begin_evacuation`] of `member`.
    pub fn successors(
        &self,
        member: impl Into<MemberSelector>,
        idle: &[MemberIndex],
    ) -> Result<Vec<(MemberIndex, Uuid)>, PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        let old = topology.may_leave(topology.place_of(&resolved)?)?;
        let used = topology.map.members();
        let mut successors: Vec<_> = (0..)
            .map(MemberIndex)
            .zip(&topology.label.members)
            .filter(|(_, m)| can_succeed(m.state) && m.state != MemberState::Leaving)
            .filter(|(i, _)| idle.contains(i) || !used.contains(i))
            .filter(|(i, m)| m.uuid != old.uuid && fits(topology.device(*i), &old).is_ok())
            .collect();
        successors.sort_by_key(|(_, m)| m.device_size);
        Ok(successors.into_iter().map(|(i, m)| (i, m.uuid)).collect())
    }

    /// The move under way.
    pub fn moving(&self) -> Option<Moving> {
        moving(&self.0.epochs.snapshot().label)
    }

    /// Ends the move under way: the member is what it was, and its successor a spare.
    ///
    /// # Errors
    /// [`ChangeError::NotMoving`]; [`PoolError::Device`].
    pub fn cancel_evacuation(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            is_moved(&topology, topology.place_of(&resolved)?)?;
            self.0.end_move(topology, None)
        })
    }

    /// What [`Pool::cancel_evacuation`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_cancel(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        is_moved(&topology, topology.place_of(&resolved)?)
    }

    /// Copies what stands on the member that is being moved, while the pool is in use, and puts its
    /// successor in its place. `pace` is called after every chunk (by several threads): it may
    /// sleep, and ends the work by returning `false`; it then begins again from the start. `false` is
    /// also the answer when the move was cancelled meanwhile.
    ///
    /// # Errors
    /// The successor fails (it is then out of use, and the member what it was), or bytes can be
    /// read neither on the old device nor on other members (the move then stays under way).
    pub fn evacuate(&self, pace: &(dyn Fn(Progress) -> bool + Sync)) -> Result<bool, PoolError> {
        loop {
            let Some(work) = self.chunks() else { return Ok(true) };
            let migration = work.1.clone();
            match self.copy_all(work, pace) {
                // A node has died meanwhile.
                Err(_) if self.begins_again(&migration) => {}
                // It was cancelled.
                Err(PoolError::Change(ChangeError::NotMoving { .. })) => return Ok(false),
                done => return done,
            }
        }
    }

    /// Whether the move of `migration` is under way, but is no longer that one.
    fn begins_again(&self, migration: &Arc<MemberMigration>) -> bool {
        let topology = self.0.epochs.read();
        topology
            .migration()
            .is_some_and(|(_, now)| now.pair == migration.pair && !Arc::ptr_eq(now, migration))
    }

    /// Called when a node has died, before what it had locked is anybody's: a move that is under way
    /// begins again, for all, in an epoch. What the dead node wrote to the old device alone is copied
    /// so; and until then nobody has seen it.
    ///
    /// # Errors
    /// [`PoolError::Device`]: it is to be tried again.
    pub fn restart_migration(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        if !self.is_shared() || self.moving().is_none() {
            return Ok(());
        }
        self.0.follow()?;
        loop {
            self.0.await_ready()?;
            let topology = self.0.epochs.write();
            let mut next = next_epoch(&topology.label);
            let epoch = next.epoch;
            let Some(moving) = moving(&next) else { return Ok(()) };
            let target = topology.uuid(moving.successor);
            let migration = topology.migration().map(|(_, migration)| migration.clone());
            if let Some(m) = next.members.get_mut(usize::from(moving.leaving.0)) {
                m.state_epoch = epoch;
            }
            let devices = topology.devices.clone();
            match self.0.install(topology, (next, devices), &Joining::NONE) {
                Ok(lost) if lost.is_empty() => return self.0.await_settled(),
                Ok(lost) => return self.0.fail_members(&lost),
                Err((_, PoolError::EpochMoved { by, .. })) => self.0.give_way(by)?,
                // Then nothing is moved any more.
                Err((Some(failed), PoolError::Device { .. })) if Some(failed) == target => {
                    if let Some(migration) = &migration {
                        self.0.give_up_successor(migration)?;
                    }
                }
                Err((Some(failed), PoolError::Device { source })) => {
                    self.0.fail_members(&vec![(failed, *source)])?;
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Copies everything, once.
    fn copy_all(
        &self,
        (moving, migration, chunks): Work,
        pace: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<bool, PoolError> {
        let copy = |chunk: &(ByteOffset, Bytes)| self.copy_chunk(moving, &migration, *chunk);
        let copied = self.0.in_parallel(&chunks, |c| c.1, copy, pace);
        if let Some(failure) = migration.broken() {
            self.give_up(&migration)?;
            return Err(failure.clone().into());
        }
        if let Err(PoolError::Change(ChangeError::Suspected { .. })) = copied {
            self.stop(&migration)?;
        }
        if !copied? {
            return Ok(false);
        }
        self.succeed(&migration)?;
        Ok(true)
    }

    /// What is to be copied: the logs before the data area, and every slice.
    fn chunks(&self) -> Option<Work> {
        let topology = self.0.epochs.read();
        let (moving, migration) = topology.migration()?;
        let member = topology.label.members.get(usize::from(moving.leaving.0))?;
        let base = member.data_start.0;
        let mut runs = vec![(Label::DATA_AT.0, base)];
        let slices = topology.label.slices_on(moving.leaving);
        runs.extend(slices.map(|(start, len)| (base + start.0, base + start.0 + len.0)));
        runs.sort_unstable();
        let mut chunks = Vec::new();
        for (mut at, to) in runs {
            while at < to {
                let end = to.min(at / CHUNK * CHUNK + CHUNK);
                chunks.push((ByteOffset(at), Bytes(end - at)));
                at = end;
            }
        }
        Some((moving, migration.clone(), chunks))
    }

    fn copy_chunk(
        &self,
        moving: Moving,
        migration: &Arc<MemberMigration>,
        (at, len): (ByteOffset, Bytes),
    ) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let topology = self.0.enter()?;
        // Its place may have changed since the move began.
        let Some((moving, _)) = topology.migration().filter(|(_, t)| Arc::ptr_eq(t, migration))
        else {
            return Err(ChangeError::NotMoving { member: topology.name(moving.leaving) }.into());
        };
        if let Some(error) = migration.broken() {
            return Err(error.clone().into());
        }
        topology.check_trusted(moving.leaving)?;
        let concurrent = self.0.cluster.shared().is_some();
        let Err(error) = migration.copy(at, len, concurrent) else { return Ok(()) };
        let start = topology.label.members.get(usize::from(moving.leaving.0)).map(|m| m.data_start);
        if start.is_some_and(|start| at < start) {
            // A log: the other members that keep it have it too.
            return Ok(());
        }
        let spans = spans_at(&topology, moving.leaving, at, len);
        if spans.is_empty() {
            return Err(error.into());
        }
        tracing::warn!(%error, "cannot be read while its contents are moved; the other members have it");
        drop(topology);
        self.copy_reconstructed(migration, (at, len), &spans)
    }

    /// Copies what the leaving device can read, sector by sector, and the rest, on `spans`, from the
    /// other members.
    fn copy_reconstructed(
        &self,
        migration: &Arc<MemberMigration>,
        run: (ByteOffset, Bytes),
        spans: &[Span],
    ) -> Result<(), PoolError> {
        let _held = self.0.hold_spans(spans, RegionHold::Alone)?;
        loop {
            let topology = self.0.enter()?;
            // Places may have changed meanwhile.
            let Some((moving, _)) = topology.migration().filter(|(_, t)| Arc::ptr_eq(t, migration))
            else {
                return Err(ChangeError::NotMoving { member: migration.name() }.into());
            };
            let mut lost = Lost::new();
            let concurrent = self.0.cluster.shared().is_some();
            let copied =
                copy_sectors(&topology, (moving.leaving, migration), run, concurrent, &mut lost);
            let old = lost.iter().find(|l| l.0 == moving.leaving).map(|l| l.1.clone());
            let lost = topology.named(&lost);
            drop(topology);
            if lost.is_empty() {
                return copied;
            }
            self.0.fail_members(&lost)?;
            if let Some(error) = old {
                return Err(error.into());
            }
        }
    }

    /// The successor failed.
    fn give_up(&self, migration: &Arc<MemberMigration>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.0.give_up_successor(migration)
    }

    /// Ends the move: both devices are what they were.
    fn stop(&self, migration: &Arc<MemberMigration>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            match topology.migration() {
                Some((_, now)) if Arc::ptr_eq(now, migration) => self.0.end_move(topology, None),
                _ => Ok(()),
            }
        })
    }

    /// Puts the successor, which has everything, in its place.
    fn succeed(&self, migration: &Arc<MemberMigration>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| self.try_succeed(migration))
    }

    fn try_succeed(&self, migration: &Arc<MemberMigration>) -> Result<(), PoolError> {
        let topology = self.0.epochs.write();
        let Some((moving, _)) = topology.migration().filter(|(_, t)| Arc::ptr_eq(t, migration))
        else {
            return Err(ChangeError::NotMoving { member: migration.name() }.into());
        };
        if let Err(suspected) = topology.check_trusted(moving.leaving) {
            self.0.end_move(topology, None)?;
            return Err(suspected);
        }
        migration.flush()?;
        if let Some(error) = migration.broken().cloned() {
            self.0.end_move(topology, Some(moving.successor))?;
            return Err(error.into());
        }
        let (old, target) = migration.pair;
        let next = exchanged(&topology, moving, MemberState::Leaving);
        let (member, error) = match self.0.install(topology, next, &Joining::NONE) {
            Ok(lost) if lost.is_empty() => return Ok(()),
            Ok(lost) => return self.0.fail_members(&lost),
            Err(refused) => refused,
        };
        let topology = self.0.epochs.write();
        if !topology.migration().is_some_and(|(m, t)| m == moving && Arc::ptr_eq(t, migration)) {
            return Err(error);
        }
        match (member, error) {
            // A device that is moved because it dies may no longer take a label: then it has failed.
            (Some(member), error @ PoolError::Device { .. }) if member == old => {
                tracing::warn!(%error, "the labels cannot be written: the old device is left out");
                let (next, devices) = exchanged(&topology, moving, MemberState::Failed);
                self.0.change(topology, next, devices)
            }
            (Some(member), error @ PoolError::Device { .. }) if member == target => {
                self.0.end_move(topology, Some(moving.successor))?;
                Err(error)
            }
            (Some(member), PoolError::Device { source }) => {
                drop(topology);
                self.0.fail_members(&vec![(member, (*source).clone())])?;
                Err(moved(&self.0.epochs.read()))
            }
            (_, error) => Err(error),
        }
    }
}

/// The label and the devices with the successor in its place, and the old one, in `state`, in the
/// successor's.
fn exchanged(
    topology: &Topology,
    moving: Moving,
    state: MemberState,
) -> (Label, Vec<Arc<dyn Device>>) {
    let mut next = next_epoch(&topology.label);
    let epoch = next.epoch;
    let (leaving, target) = (usize::from(moving.leaving.0), usize::from(moving.successor.0));
    next.members.swap(leaving, target);
    if let Some(m) = next.members.get_mut(leaving) {
        (m.state, m.state_epoch) = (MemberState::Active, epoch);
    }
    if let Some(m) = next.members.get_mut(target) {
        (m.state, m.state_epoch) = (state, epoch);
        m.successor = None;
    }
    let mut devices = topology.devices.clone();
    devices.swap(leaving, target);
    (next, devices)
}

/// Whether a member that holds nothing may get what another one holds.
const fn can_succeed(state: MemberState) -> bool {
    matches!(state, MemberState::Spare | MemberState::Active | MemberState::Leaving)
}

fn is_moved(topology: &Topology, member: MemberIndex) -> Result<(), PoolError> {
    if moving(&topology.label).is_none_or(|m| m.leaving != member) {
        return Err(ChangeError::NotMoving { member: topology.name(member) }.into());
    }
    Ok(())
}

/// Makes the member `to` of `next` fit to succeed `member`; its place.
fn free_member(
    topology: &Topology,
    next: &mut Label,
    member: MemberIndex,
    to: MemberIndex,
) -> Result<usize, PoolError> {
    let name = || topology.name(to);
    if to == member {
        return Err(ChangeError::ToItself { member: name() }.into());
    }
    let place = usize::from(to.0);
    let target = next.members.get(place).ok_or(PoolError::NoSuchMember { member: to })?;
    let (uuid, state) = (target.uuid, target.state);
    if !can_succeed(state) || topology.map.members().contains(&to) {
        return Err(ChangeError::NotFree { member: name(), state: state_word(state) }.into());
    }
    let old = next.members.get(usize::from(member.0));
    let old = old.ok_or(PoolError::NoSuchMember { member })?;
    let new = fits(topology.device(to), old)?;
    if let Some(m) = next.members.get_mut(place) {
        *m = Member { uuid, bus: m.bus, serial: m.serial.clone(), ..new };
    }
    Ok(place)
}

/// Copies a run of the leaving member's bytes; what its device cannot read is written to both from
/// the other members. A member that fails that is `lost`.
fn copy_sectors(
    topology: &EpochInUse,
    (leaving, migration): (MemberIndex, &MemberMigration),
    (at, len): (ByteOffset, Bytes),
    concurrent: bool,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let sector = topology.label.lock_sector;
    for (here, len) in sectors(at.0, len.to_usize(), sector.to_usize()) {
        let (here, len) = (ByteOffset(here), Bytes::from(len));
        let Err(error) = migration.copy(here, len, concurrent) else { continue };
        let spans = spans_at(topology, leaving, here, len);
        let mut written = Bytes(0);
        for span in &spans {
            match mend_old(topology, leaving, *span, (here, len), &error)? {
                Ok(mended) => written.0 += mended.0,
                Err((failed, error)) => return topology.do_without(failed, error, lost),
            }
        }
        match migration.copy(here, len, concurrent) {
            // The successor has it, whatever the old device does with what it is given.
            Err(error) if written == len => {
                tracing::warn!(%error, "cannot be read where it was just written");
            }
            // A slice may end behind what its group uses.
            Err(_) if spans.is_empty() => {}
            copied => copied?,
        }
    }
    Ok(())
}

/// Writes a sector that `leaving` cannot read as the other columns of the group have it. How writing
/// ended, and how much it was, is the inner result.
fn mend_old(
    topology: &EpochInUse,
    leaving: MemberIndex,
    (index, from, to): Span,
    (at, len): (ByteOffset, Bytes),
    unread: &DeviceError,
) -> Result<Result<Bytes, (MemberIndex, DeviceError)>, PoolError> {
    let group = topology.map.group(index);
    let Some(column) = group.members().position(|m| m == leaving) else { return Ok(Ok(Bytes(0))) };
    let _held = topology.lock(index, vec![(from, to)]);
    let none = |_| PoolError::from(unread.clone());
    let Shape::Parity { unit, .. } = group.shape else {
        let mut bytes = AlignedBuf::zeroed(Bytes(to - from).to_usize());
        read_reconstructed(topology, group, from, &mut bytes, (Some(leaving), Sources::All))
            .map_err(none)?;
        return Ok(mend_copy(topology, group, column, (from, &bytes)));
    };
    let offset = at.0 - group.at(column, 0).1.0;
    let (row, within) = (offset / unit, offset % unit);
    let range = (within, within + len.0);
    let columns =
        decode_row(topology, group, row, range, (Some(leaving), Sources::All)).map_err(none)?;
    let bytes = columns.get(group.place_of(row, column)).map_or(&[][..], |b| &b[..]);
    Ok(topology.device(leaving).write(at, bytes).map(|()| len).map_err(|e| (leaving, e)))
}

/// The runs of groups that stand on bytes of a member's device.
fn spans_at(topology: &Topology, member: MemberIndex, at: ByteOffset, len: Bytes) -> Vec<Span> {
    let mut spans = Vec::new();
    for (index, group) in (0_u16..).zip(topology.map.groups()) {
        let Some(column) = group.columns.iter().find(|c| c.member == member) else { continue };
        let from = at.0.max(column.base) - column.base;
        let to = (at.0 + len.0).saturating_sub(column.base).min(group.column_len());
        if from >= to {
            continue;
        }
        spans.push(match (group.shape, group.row_len()) {
            (Shape::Parity { unit, .. }, Some(row)) => {
                (index, from / unit * row, to.div_ceil(unit) * row)
            }
            _ => (index, from, to),
        });
    }
    spans
}

#[cfg(test)]
mod tests;
