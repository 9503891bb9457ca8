//! Parts that leave: windows go back to them and no others are taken, and they are counted apart.

use std::time::Duration;

use braid_format::meta::MetaKind;
use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, InodeNo, LockNo};
use braid_lock::{Local, Mode};
use parking_lot::MutexGuard;

use super::bits;
use super::closed_space::ClosedSpace;
use super::group::{Group, headers};
use super::inner::{Alloc, Inner};
use super::refill::{Need, Refill};
use crate::error::{Error, Result};
use crate::groups::{takes_data, takes_slots};
use crate::meta::Tx;

/// Windows taken elsewhere for those that are given back, in one call.
const ROUNDS: u32 = 32;

/// What closed parts have is counted again after this.
const AGE_MAX: Duration = Duration::from_secs(2);

/// What the bitmap of a group says, or of several. What is in a node's window counts as in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Blocks of file data, or in windows.
    pub data: u64,
    /// Blocks of metadata in use, or in windows.
    pub meta: u64,
    /// As the cluster's counters count them: free blocks that may become file data.
    pub free: u64,
    /// Free slots, and free blocks of groups for metadata alone.
    pub free_meta: u64,
}

impl std::ops::AddAssign for Use {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.meta += other.meta;
        self.free += other.free;
        self.free_meta += other.free_meta;
    }
}

impl Inner {
    /// Gives back the windows of closed groups; whether there is none left.
    pub(super) fn leave_closed(&self, refill: &mut MutexGuard<'_, Refill>) -> Result<bool> {
        refill.follow(&self.volume);
        let groups = &self.volume.groups;
        for _ in 0..ROUNDS {
            let closed = self.state.lock().close_of(|group| groups.is_closed(group));
            self.give_back(closed)?;
            let left = {
                let state = self.state.lock();
                let closed = |w: &&super::window::Window| w.len != 0 && groups.is_closed(w.group);
                let mut left = state.windows.iter().filter(closed);
                let Some(first) = left.next() else { return Ok(true) };
                let idle = std::iter::once(first).chain(left).find(|w| w.is_open() && w.busy == 0);
                idle.map(|w| (w.data.count(), w.slots.count()))
            };
            // The others go when what is claimed of them is used.
            let Some((data, slots)) = left else { return Ok(false) };
            // What is in it is reserved: it has to come from elsewhere.
            let more = match slots {
                0 => {
                    let need =
                        Need { data: data.max(1), slots: false, home: false, existing: false };
                    self.extend(refill, need, &mut 0)?
                }
                n => self.more_slots(refill, data, n, &mut 0)?,
            };
            if !more {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// The same by what was read last: asks no device.
    pub(super) fn last_closed_space(&self) -> ClosedSpace {
        let version = self.volume.groups.version();
        let kept = self.closed.try_lock().and_then(|kept| *kept);
        kept.filter(|closed| closed.version == version)
            .unwrap_or_else(|| ClosedSpace::none(version))
    }

    /// What closed parts have: by their headers, without their locks, now and then.
    pub(super) fn closed_space(&self) -> ClosedSpace {
        let volume = &self.volume;
        let version = volume.groups.version();
        let none = ClosedSpace::none(version);
        if !volume.groups.any_closed() {
            return none;
        }
        let mut kept = self.closed.lock();
        if let Some(closed) = *kept
            && closed.version == version
            && closed.since.elapsed() < AGE_MAX
        {
            return closed;
        }
        let closed: Vec<u64> =
            (0..volume.groups.count()).filter(|i| volume.groups.is_closed(*i)).collect();
        let mut found = none;
        let counted = headers(volume, &closed, &mut |index, header| {
            // A group that is being written, or cannot be read, is counted the next time.
            let raw = header.ok().flatten();
            let free = raw.as_ref().map_or(0, |raw| raw.free_blocks.get());
            found.meta += raw.map_or(0, |raw| raw.free_meta.get());
            if takes_data(volume.groups.kind(index)) {
                found.blocks += volume.group_shape(index).map_or(0, |s| s.block_count);
                found.free += free;
            } else {
                found.meta += free;
            }
            Ok(())
        });
        debug_assert!(counted.is_ok(), "nothing is refused");
        *kept = Some(found);
        found
    }
}

/// What a group's bitmap says.
fn use_of(group: &Group) -> Use {
    let count = |state| bits::count(&group.bits, 0, group.shape.block_count, state);
    let (free, chunks) = (count(BlockState::Free), count(BlockState::MetaFree));
    let apart = !takes_data(group.shape.kind);
    Use {
        data: count(BlockState::Data),
        meta: count(BlockState::MetaUsed),
        free: if apart { 0 } else { free },
        free_meta: if apart { free + chunks } else { chunks },
    }
}

impl Alloc {
    /// Gives back idle windows of parts that are closed; windows of others hold what was reserved of
    /// them. Whether there is none left.
    pub fn leave(&self) -> Result<bool> {
        let inner = &self.inner;
        if !inner.volume.groups.any_closed() {
            return Ok(true);
        }
        // Blocks whose free is not durable yet keep their window.
        inner.meta.commit()?;
        let _share = inner.share(Mode::Shared)?;
        let mut refill = inner.refill.lock();
        inner.drain_usable(&mut refill)?;
        inner.leave_closed(&mut refill)
    }

    /// What the bitmap of group `index` says.
    pub fn look_at(&self, index: u64) -> Result<Use> {
        let inner = &self.inner;
        let lock = LockNo::from(inner.volume.rgrp(index));
        let _guard = inner.locks.acquire(lock, Mode::Shared, Local::Shared)?;
        Ok(use_of(&Group::load(&inner.volume, &inner.meta, index)?))
    }

    /// Looks at a group whose part is closed, with only its lock held: nobody takes anything from
    /// it any more. What is known of it is in place, durably, on return.
    pub fn look_at_last(&self, index: u64) -> Result<Use> {
        let inner = &self.inner;
        let lock = LockNo::from(inner.volume.rgrp(index));
        let _guard = inner.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        inner.meta.sync_owner(lock)?;
        Ok(use_of(&Group::load(&inner.volume, &inner.meta, index)?))
    }

    /// Inodes that metadata in use in group `index` belongs to; at most `most`.
    pub fn owners_in(&self, index: u64, most: usize) -> Result<Vec<InodeNo>> {
        let inner = &self.inner;
        let volume = &inner.volume;
        let mut owners: Vec<InodeNo> = Vec::new();
        if !takes_slots(volume.groups.kind(index)) {
            return Ok(owners);
        }
        let lock = LockNo::from(volume.rgrp(index));
        let group = {
            let _guard = inner.locks.acquire(lock, Mode::Shared, Local::Shared)?;
            Group::load(volume, &inner.meta, index)?
        };
        let step = usize::try_from(inner.slot_blocks()).unwrap_or(1);
        let used = bits::runs(&group.bits, 0, group.shape.block_count, BlockState::MetaUsed);
        for at in used.flat_map(|(start, n)| (start..start + n).step_by(step)) {
            if owners.len() >= most {
                break;
            }
            // Only to name it: what is being written just now is passed by.
            let body = volume.read_body(BlockNo(group.block(at)));
            let Ok((_, header, kind)) = body else { continue };
            if kind == MetaKind::Free {
                // In a window, and used by nobody.
                continue;
            }
            let owner = InodeNo(header.owner.get());
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        Ok(owners)
    }

    /// Counts what groups that leave have had free, in the transaction in which they do.
    pub fn count_gone(&self, tx: &mut Tx<'_>, gone: Use) -> Result<()> {
        let less = |n| -Inner::signed(n);
        let change = braid_lock::Deltas {
            free: less(gone.free),
            meta: less(gone.free_meta),
            ..braid_lock::Deltas::default()
        };
        self.inner.count(tx, change)
    }

    /// Free blocks of groups that give out file data.
    pub fn room(&self) -> Result<u64> {
        let groups = &self.inner.volume.groups;
        let mut room = 0;
        for index in groups.numbers(false) {
            room += self.look_at(index)?.free;
        }
        Ok(room)
    }
}

/// Nothing of a group is in use.
pub(crate) fn is_empty(found: Use) -> Result<()> {
    match found.data + found.meta {
        0 => Ok(()),
        blocks => Err(Error::NotEmptied { blocks }),
    }
}

#[cfg(test)]
mod tests {
    use braid_format::label::SubpoolKind;

    use super::*;

    #[test]
    fn what_a_bitmap_says_is_counted_by_what_the_group_is_for() {
        let runs = [
            (0, 3, BlockState::Free),
            (10, 5, BlockState::MetaFree),
            (20, 7, BlockState::MetaUsed),
        ];
        let both = use_of(&Group::for_tests(SubpoolKind::General, &runs));
        assert_eq!(both, Use { data: 385, meta: 7, free: 3, free_meta: 5 });
        let apart = use_of(&Group::for_tests(SubpoolKind::Metadata, &runs));
        assert_eq!(apart, Use { data: 385, meta: 7, free: 0, free_meta: 8 });
    }

    #[test]
    fn uses_add_up() {
        let mut sum = Use { data: 1, meta: 2, free: 3, free_meta: 4 };
        sum += Use { data: 10, meta: 20, free: 30, free_meta: 40 };
        assert_eq!(sum, Use { data: 11, meta: 22, free: 33, free_meta: 44 });
    }

    #[test]
    fn a_part_with_data_or_metadata_in_it_is_not_empty() {
        let in_use = |data, meta| match is_empty(Use { data, meta, free: 9, free_meta: 9 }) {
            Ok(()) => 0,
            Err(Error::NotEmptied { blocks }) => blocks,
            Err(e) => panic!("{e}"),
        };
        assert_eq!([(0, 0), (3, 0), (0, 3), (3, 3)].map(|(d, m)| in_use(d, m)), [0, 3, 3, 6]);
    }
}
