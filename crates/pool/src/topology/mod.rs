//! One epoch of a pool: its label, the map that the label compiles to, and the members' devices. It
//! is replaced as a whole.

mod info;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_device::{CountedDevice, Device, DeviceError};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{ByteOffset, MemberIndex};
use smallvec::SmallVec;
use uuid::Uuid;

pub use info::{MemberInfo, PoolInfo, SubpoolInfo};

use crate::devices::migration::{MemberMigration, MigratingMember};
use crate::error::PoolError;
use crate::health::suspect::{SUSPECT_AT, Suspicion};
use crate::identity::has_small_regions;
use crate::labels::moving;
use crate::layout::group::Group;
use crate::layout::map::Map;

/// Bytes at the beginning of the pool that may be written without a note, at least.
const UNNOTED: u64 = 64 << 20;

/// A member that failed a write, by its place in the epoch in which it did, and how.
pub(crate) type Lost = Vec<(MemberIndex, DeviceError)>;

/// The same by identity: places change with the epoch.
pub(crate) type FailedMembers = Vec<(Uuid, DeviceError)>;

/// An epoch as a heartbeat names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochTag {
    /// Low bits of its number.
    pub epoch: u32,
    /// First half of its `change_id`.
    pub change: u64,
}

/// An epoch, and the devices of its members.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub label: Label,
    pub map: Map,
    /// The same, for those outside.
    pub info: Arc<PoolInfo>,
    /// In member order; what is asked of them is counted.
    pub devices: Vec<Arc<dyn Device>>,
    /// What a member that is being moved, and its successor, are together.
    pub(crate) migration: Option<MigratingMember>,
    /// Members of which some zone uses bytes that no group protects.
    pub bare: Vec<MemberIndex>,
    /// Members that were not found count as failed, but no label says so yet: nothing may be
    /// written.
    pub provisional: bool,
    /// A member is offline, or catches up: what is written is noted for it.
    pub notes_missed: bool,
    /// Where what may be written without a note ends, in this epoch and all others: heartbeats, and what a node writes
    /// before it has its log.
    pub unnoted: Arc<AtomicU64>,
    /// Members that return garbage, in this epoch and all others.
    pub suspicion: Arc<Suspicion>,
}

impl Topology {
    /// Compiles a verified label over its members' devices.
    ///
    /// # Errors
    /// [`PoolError::Map`]; [`PoolError::TooManyLost`] when the members that are not in sync are
    /// more than a group can spare.
    pub fn new(label: Label, devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        let map = Map::new(&label)?;
        let devices: Vec<_> = devices.into_iter().map(CountedDevice::over).collect();
        let info = Arc::new(PoolInfo::of(&label, &map, &devices));
        let bare = map.bare_members();
        let migration = moving(&label).and_then(|m| {
            let side = |i: MemberIndex| {
                let place = usize::from(i.0);
                Some((label.members.get(place)?, devices.get(place)?.clone()))
            };
            Some(MigratingMember::new(
                m.leaving,
                MemberMigration::new(side(m.leaving)?, side(m.successor)?),
            ))
        });
        let topology = Self {
            notes_missed: label.members.iter().any(|m| m.offline),
            label,
            map,
            info,
            devices,
            migration,
            bare,
            provisional: false,
            unnoted: Arc::new(AtomicU64::new(if has_small_regions() { 0 } else { UNNOTED })),
            suspicion: Arc::default(),
        };
        topology.enough()?;
        topology.heed_marks();
        Ok(topology)
    }

    /// What is known of members that return garbage goes on from `before`, and of the move under way,
    /// if it is the same move.
    pub fn continue_from(&mut self, before: &Self) {
        self.suspicion = before.suspicion.clone();
        self.unnoted = before.unnoted.clone();
        self.heed_marks();
        // Whoever ended a suspicion has read all of the member.
        let marked = before.label.members.iter().filter(|m| m.suspected);
        for Member { uuid, .. } in marked {
            if self.index_of(*uuid).is_none_or(|m| !self.is_marked(m)) {
                self.suspicion.forget(*uuid);
            }
        }
        // What the successor has, and whether it failed, is known there, if it is the same move.
        let since =
            |t: &Self, m: MemberIndex| t.label.members.get(usize::from(m.0)).map(|m| m.state_epoch);
        let began = self.migration.as_ref().map(|now| since(self, now.leaving));
        if let (Some(now), Some(pair)) = (&mut self.migration, &before.migration)
            && now.migration.pair == pair.migration.pair
            && began == Some(since(before, pair.leaving))
        {
            *now = MigratingMember { leaving: now.leaving, ..pair.clone() };
        }
    }

    /// Reads look at suspicions from now on, if the label has some.
    fn heed_marks(&self) {
        if self.label.members.iter().any(|m| m.suspected) {
            self.suspicion.note_marked();
        }
    }

    /// Whether the label says that a member is suspected.
    pub fn is_marked(&self, member: MemberIndex) -> bool {
        self.label.members.get(usize::from(member.0)).is_some_and(|m| m.suspected)
    }

    /// The epoch, as heartbeats name it.
    pub fn tag(&self) -> EpochTag {
        let epoch = u32::try_from(self.label.epoch.0 & u64::from(u32::MAX)).unwrap_or(0);
        EpochTag { epoch, change: self.label.change_id.as_u64_pair().0 }
    }

    /// The same epoch under another number.
    pub fn relabel(&mut self, label: Label) {
        self.notes_missed = label.members.iter().any(|m| m.offline);
        self.info = Arc::new(PoolInfo { epoch: label.epoch, ..PoolInfo::clone(&self.info) });
        self.label = label;
    }

    /// Whether what is in sync holds every byte of the pool.
    fn enough(&self) -> Result<(), PoolError> {
        for group in self.map.groups() {
            if group.members().filter(|m| !self.readable(*m)).count() > group.tolerance() {
                return Err(self.too_many_lost(group));
            }
        }
        let lost: Vec<String> =
            self.bare.iter().filter(|m| !self.readable(**m)).map(|m| self.name(*m)).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let name = self.label.name.clone();
        Err(PoolError::TooManyLost { name, can_lose: 0, lost, refused: false })
    }

    /// More of a group's columns are lost than it can spare.
    pub fn too_many_lost(&self, group: &Group) -> PoolError {
        let lost = group.members().filter(|m| !self.readable(*m)).map(|m| self.name(m));
        PoolError::TooManyLost {
            name: self.label.name.clone(),
            can_lose: group.tolerance(),
            lost: lost.collect(),
            refused: false,
        }
    }

    /// All members, in use or not.
    pub fn members(&self) -> impl Iterator<Item = MemberIndex> + use<> {
        // A label holds at most 256.
        (0..u16::try_from(self.label.members.len()).unwrap_or(u16::MAX)).map(MemberIndex)
    }

    /// Members by identity, which outlives the epoch.
    pub fn named(&self, lost: &Lost) -> FailedMembers {
        let named = lost.iter().filter_map(|(m, e)| Some((self.uuid(*m)?, e.clone())));
        named.collect()
    }

    /// A member's identity.
    pub fn uuid(&self, member: MemberIndex) -> Option<Uuid> {
        self.label.members.get(usize::from(member.0)).map(|m| m.uuid)
    }

    /// The place of a member, if it is one still.
    pub fn index_of(&self, uuid: Uuid) -> Option<MemberIndex> {
        self.members().find(|m| self.uuid(*m) == Some(uuid))
    }

    /// A member failed: it is added to `lost`.
    ///
    /// # Errors
    /// `error`, if the pool needs it.
    pub fn do_without(
        &self,
        member: MemberIndex,
        error: DeviceError,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        if !self.can_lose(member) {
            return Err(error.into());
        }
        lost.push((member, error));
        Ok(())
    }

    /// A member, for people.
    pub fn name(&self, member: MemberIndex) -> String {
        let path = self.devices.get(usize::from(member.0)).map(|d| d.info().name.clone());
        format!("member {member} ({})", path.unwrap_or_default())
    }

    /// What a member's bytes are read from and written to. The map names only members that exist.
    pub fn device(&self, member: MemberIndex) -> &Arc<dyn Device> {
        if let Some(pair) = &self.migration
            && pair.leaving == member
        {
            return &pair.device;
        }
        self.devices
            .get(usize::from(member.0))
            .expect("the map names only members that were opened")
    }

    /// What a member is just now.
    pub fn state(&self, member: MemberIndex) -> MemberState {
        let member: Option<&Member> = self.label.members.get(usize::from(member.0));
        member.map_or(MemberState::Failed, |m| m.state)
    }

    /// Whether all bytes of a member are current.
    pub fn readable(&self, member: MemberIndex) -> bool {
        matches!(self.state(member), MemberState::Active | MemberState::Leaving)
    }

    /// Members that hold some bytes and are not in sync.
    pub fn lost(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        self.map.members().into_iter().filter(|m| !self.readable(*m))
    }

    /// Whether a member must get every write.
    pub fn writable(&self, member: MemberIndex) -> bool {
        self.readable(member) || self.state(member) == MemberState::Rebuilding
    }

    /// Whether a column of the group is being filled: all nodes know it, by the epoch.
    pub fn is_filled(&self, group: &Group) -> bool {
        group.members().any(|m| self.state(m) == MemberState::Rebuilding)
    }

    /// Whether a member may fail without a loss: only groups use it, and each of these can do
    /// without it, and without its members that are suspected to return garbage.
    pub fn can_lose(&self, member: MemberIndex) -> bool {
        self.can_lose_all(&[member])
    }

    /// The same, of several members together.
    pub fn can_lose_all(&self, members: &[MemberIndex]) -> bool {
        self.can_lose_without(members, |m| self.is_suspected(m))
    }

    /// The same, where members do not count that are `doubtful`, but all others do.
    pub fn can_lose_without(
        &self,
        members: &[MemberIndex],
        doubtful: impl Fn(MemberIndex) -> bool,
    ) -> bool {
        let spared = |g: &Group| {
            g.members().all(|m| !members.contains(&m))
                || self.can_do_without(g, |m| members.contains(&m) || doubtful(m))
        };
        !members.iter().any(|m| self.bare.contains(m)) && self.map.groups().iter().all(spared)
    }

    /// Whether a group's other members hold all that is to be on those that are `gone`, or lost already.
    pub fn can_do_without(&self, group: &Group, gone: impl Fn(MemberIndex) -> bool) -> bool {
        let gone = |m: &MemberIndex| !self.readable(*m) || gone(*m);
        group.members().filter(gone).count() <= group.tolerance()
    }

    /// Whether a member may be taken out, or is out already.
    ///
    /// # Errors
    /// [`PoolError::TooManyLost`].
    pub fn check_can_lose(&self, member: MemberIndex) -> Result<(), PoolError> {
        let trusted = |_| false;
        if self.state(member) == MemberState::Failed || self.can_lose_without(&[member], trusted) {
            return Ok(());
        }
        let mut lost: Vec<String> = self.lost().map(|m| self.name(m)).collect();
        lost.push(self.name(member));
        let can_lose = lost.len() - 1;
        let name = self.label.name.clone();
        Err(PoolError::TooManyLost { name, can_lose, lost, refused: true })
    }

    /// Whether a member may be taken out by an operator, or is out already: what it holds undamaged is not
    /// missing on others that are suspected.
    ///
    /// # Errors
    /// [`PoolError::TooManyLost`], [`PoolError::OthersSuspected`].
    pub fn check_can_take_out(&self, member: MemberIndex) -> Result<(), PoolError> {
        self.check_can_lose(member)?;
        let suspected = |m| self.is_suspected(m);
        if self.state(member) == MemberState::Failed || self.can_lose_without(&[member], suspected)
        {
            return Ok(());
        }
        let others = self.members().filter(|m| *m != member && suspected(*m));
        let others = others.map(|m| (m, self.name(m))).collect();
        let too = self.is_suspected(member);
        Err(PoolError::OthersSuspected { member: self.name(member), index: member, too, others })
    }

    /// Whether a member is suspected to return garbage, by the label or by what this node has met.
    pub fn is_suspected(&self, member: MemberIndex) -> bool {
        self.suspicion.any() && (self.is_marked(member) || self.damaged(member) >= SUSPECT_AT)
    }

    /// Damaged places that this node has met on a member.
    pub fn damaged(&self, member: MemberIndex) -> usize {
        self.uuid(member).map_or(0, |m| self.suspicion.count(m))
    }

    /// Whether a member would be suspected with these places, and the label does not say so yet.
    pub fn would_suspect(&self, blamed: &[(MemberIndex, ByteOffset)]) -> bool {
        let mut places: BTreeMap<MemberIndex, BTreeSet<u64>> = BTreeMap::new();
        for (member, at) in blamed {
            places.entry(*member).or_default().insert(at.0);
        }
        places.iter().any(|(member, places)| {
            let count = |uuid| self.suspicion.count_with(uuid, places);
            !self.is_marked(*member) && self.uuid(*member).map_or(0, count) >= SUSPECT_AT
        })
    }

    /// Whether a member is not to be read, because it is suspected and the group's others have all that
    /// it should have.
    pub fn is_avoided(&self, group: &Group, member: MemberIndex) -> bool {
        self.is_suspected(member) && self.can_do_without(group, |m| self.is_suspected(m))
    }

    /// The columns of a mirror that reads go to: those in sync of members that are not suspected, or
    /// all in sync if there are none of these. The others still hold the bytes.
    pub fn columns_to_read(&self, group: &Group) -> SmallVec<[usize; 4]> {
        let mut live: SmallVec<[usize; 4]> = self.copies(group).collect();
        if self.suspicion.any() {
            let sound = |column: &usize| !self.is_suspected(group.at(*column, 0).0);
            let sound: SmallVec<[usize; 4]> = live.iter().copied().filter(sound).collect();
            live = if sound.is_empty() { live } else { sound };
        }
        live
    }

    /// The columns of a mirror that hold current bytes.
    pub fn copies<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = usize> + 'a {
        let current = |(_, m): &(usize, MemberIndex)| self.readable(*m);
        group.members().enumerate().filter(current).map(|(i, _)| i)
    }
}
