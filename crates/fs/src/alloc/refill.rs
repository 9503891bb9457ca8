//! Where a node looks for space: what it believes of the groups, and which one is next.

use std::time::Instant;

use braid_format::{BlockSize, Bytes, NodeId};
use braid_pool::device::AlignedBuf;

use super::private::window_capacity;
use crate::volume::Volume;

/// First window of a node that begins to write.
const WINDOW_FIRST: Bytes = Bytes(16 << 20);

/// File data goes to what was added first when less than this part (divisor) of the rest is free.
const HOME: u64 = 16;

/// What is believed of a group without its lock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hint {
    pub(super) free: u64,
    pub(super) free_meta: u64,
    /// Where the last window ended, from the group's first block.
    pub(super) near: Option<u64>,
}

/// Groups for one use, and where windows of them come from.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) groups: Vec<u64>,
    /// Group that windows come from now.
    pub(super) current: u64,
    /// Blocks of the next window.
    pub(super) target: u64,
}

impl Side {
    /// Nodes begin spread evenly over the groups.
    pub(super) fn new(volume: &Volume, node: NodeId, groups: Vec<u64>) -> Self {
        let nodes = u64::from(volume.sb.node_slots.get()).max(1);
        let target = blocks(volume.geo.block_size, WINDOW_FIRST);
        let target = target.min(window_capacity(volume));
        let count = groups.len() as u64;
        let place = usize::try_from(u64::from(node.get()) * count / nodes).unwrap_or(0);
        let current = groups.get(place).copied().unwrap_or(0);
        Self { groups, current, target }
    }
}

/// Held by the one thread that gets or returns space.
#[derive(Debug)]
pub(super) struct Refill {
    /// Of all groups.
    pub(super) hints: Vec<Hint>,
    pub(super) hinted: bool,
    /// When all hints were read.
    pub(super) read: Instant,
    /// Groups that take metadata; all, where groups are for both.
    pub(super) first: Side,
    /// Groups for file data alone.
    pub(super) data: Option<Side>,
    /// Chunks carved next.
    pub chunks: u64,
    /// What the last ones were written from: fresh memory costs more than writing it.
    pub carved: AlignedBuf,
    /// Claims when the housekeeper last looked.
    pub(super) claims: u64,
    /// Of the groups, when they were last looked at.
    pub(super) version: (u64, u64),
}

impl Refill {
    /// Nothing is known of any group.
    pub fn new(volume: &Volume, node: NodeId) -> Self {
        let groups = &volume.groups;
        let hints = vec![Hint::default(); usize::try_from(groups.count()).unwrap_or(0)];
        let first = Side::new(volume, node, groups.numbers(true));
        let data = || Side::new(volume, node, groups.numbers(false));
        let data = groups.split().then(data);
        let carved = AlignedBuf::zeroed(0);
        let version = groups.version();
        let read = Instant::now();
        Self { hints, hinted: false, read, first, data, chunks: 1, carved, claims: 0, version }
    }
    /// Takes note of groups that have come, or are closed.
    pub fn follow(&mut self, volume: &Volume) {
        let groups = &volume.groups;
        if std::mem::replace(&mut self.version, groups.version()) == groups.version() {
            return;
        }
        self.hints.resize(usize::try_from(groups.count()).unwrap_or(0), Hint::default());
        self.hinted = false;
        self.first.groups = groups.numbers(true);
        if let Some(data) = &mut self.data {
            data.groups = groups.numbers(false);
        }
    }
    /// Whether nothing was claimed since the last call.
    pub fn is_idle(&mut self, claims: u64) -> bool {
        std::mem::replace(&mut self.claims, claims) == claims
    }
    pub(super) fn side(&self, need: Need) -> &Side {
        self.data.as_ref().filter(|_| !need.slots).unwrap_or(&self.first)
    }
    pub(super) fn side_mut(&mut self, need: Need) -> &mut Side {
        self.data.as_mut().filter(|_| !need.slots).unwrap_or(&mut self.first)
    }
    pub(super) fn hint(&self, index: u64) -> Hint {
        usize::try_from(index).ok().and_then(|i| self.hints.get(i)).copied().unwrap_or_default()
    }
    pub(super) fn set_hint(&mut self, index: u64, f: impl FnOnce(&mut Hint)) {
        if let Some(h) = usize::try_from(index).ok().and_then(|i| self.hints.get_mut(i)) {
            f(h);
        }
    }
    /// Groups from the current one on, those with room for a whole window first.
    ///
    /// What was added may leave again, if there is nothing but file data in it: metadata goes there
    /// last, and file data leaves some room for it in what was there at first.
    pub(super) fn order(&self, need: Need, volume: &Volume) -> Vec<u64> {
        let Side { groups, current, target } = self.side(need);
        let place = groups.iter().position(|g| g == current).unwrap_or(0);
        let (before, after) = groups.split_at(place);
        let mut all: Vec<u64> = after.iter().chain(before).copied().collect();
        let added = |g: &u64| volume.groups.is_added(*g);
        if need.home {
            all.retain(|g| !added(g));
        } else if need.slots {
            all.sort_by_key(added);
        } else if all.iter().any(added) && self.data.is_none() && self.is_home_short(volume) {
            all.sort_by_key(|g| !added(g));
        }
        let (mut good, mut poor) = (Vec::new(), Vec::new());
        for index in all {
            let hint = self.hint(index);
            if hint.free >= *target {
                good.push(index);
            } else if hint.free > 0 || need.slots && hint.free_meta > 0 {
                poor.push(index);
            }
        }
        poor.sort_by_key(|&index| std::cmp::Reverse(self.hint(index).free));
        good.extend(poor);
        good
    }
    /// Whether little is free in the groups that were made with the file system.
    pub(super) fn is_home_short(&self, volume: &Volume) -> bool {
        let home = self.first.groups.iter().filter(|g| !volume.groups.is_added(**g));
        let (free, blocks) = home.fold((0_u64, 0_u64), |(free, blocks), g| {
            let shape = volume.group_shape(*g).map_or(0, |s| s.block_count);
            (free + self.hint(*g).free, blocks + shape)
        });
        free < blocks / HOME
    }
}

/// What is short.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Blocks wanted in the window.
    pub data: u64,
    /// Slots are wanted, wherever they come from.
    pub slots: bool,
    /// In groups that were made with the file system, or nowhere.
    pub home: bool,
    /// Only slots that groups have already; none are made.
    pub existing: bool,
}

pub(super) fn blocks(size: BlockSize, len: Bytes) -> u64 {
    size.blocks_for(len).get()
}

#[cfg(test)]
mod tests {
    use braid_pool::Pool;

    use super::*;
    use crate::groups::{Part, Span};
    use crate::make::{MakeOptions, make};
    use crate::test_volume::{Shape, TestVolume};

    const DATA: Need = Need { data: 1, slots: false, home: false, existing: false };
    const SLOTS: Need = Need { slots: true, ..DATA };

    /// A file system of several groups.
    fn volume() -> Volume {
        let pool = Pool::for_tests(1, Bytes(128 << 20));
        make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        Volume::open(pool).unwrap()
    }
    /// Adds two groups: the number of the first.
    fn add_groups(volume: &Volume) -> u64 {
        let first = volume.groups.count();
        let (made, start) = (volume.groups.made(), volume.total_blocks());
        let span = Span { start, stride: 1000, count: 2, end: start + 2000 };
        assert!(volume.groups.push(Part { first: span, ..made }));
        first
    }
    fn hint_of(refill: &mut Refill, index: u64, free: u64, free_meta: u64) {
        refill.set_hint(index, |h| (h.free, h.free_meta) = (free, free_meta));
    }

    #[test]
    fn nodes_begin_spread_over_the_groups() {
        let volume = TestVolume::new(Shape { nodes: 3, ..Shape::default() }).volume;
        let begins = |n: u16| Side::new(&volume, NodeId(n), (10..16).collect()).current;
        assert_eq!([0, 1, 2].map(begins), [10, 12, 14]);
        assert_eq!(Side::new(&volume, NodeId(0), vec![10]).target, 4096, "16 MiB");
    }

    #[test]
    fn groups_with_room_for_a_window_come_first_from_the_current_one_on() {
        let volume = volume();
        let mut refill = Refill::new(&volume, NodeId(0));
        let groups = refill.first.groups.clone();
        assert!(groups.len() >= 4, "the test wants several: {groups:?}");
        let target = refill.first.target;
        refill.first.groups.truncate(4);
        assert_eq!(refill.order(DATA, &volume), [0; 0], "nothing is known to be free");
        for index in 0..4 {
            hint_of(&mut refill, index, target, 0);
        }
        refill.first.current = 1;
        assert_eq!(refill.order(DATA, &volume), [1, 2, 3, 0]);
        hint_of(&mut refill, 1, 0, 5);
        hint_of(&mut refill, 2, 20, 0);
        hint_of(&mut refill, 3, target - 1, 0);
        assert_eq!(refill.order(DATA, &volume), [0, 3, 2]);
        assert_eq!(refill.order(SLOTS, &volume), [0, 3, 2, 1]);
        assert_eq!(refill.hint(1_000_000).free, 0, "outside nothing is believed");
    }

    #[test]
    fn metadata_stays_out_of_what_was_added_and_data_leaves_room_for_it() {
        let volume = volume();
        let added = add_groups(&volume);
        let mut refill = Refill::new(&volume, NodeId(0));
        refill.first.current = added;
        let target = refill.first.target;
        let home: u64 = (0..added).map(|i| volume.group_shape(i).unwrap().block_count).sum();
        for index in 0..added + 2 {
            hint_of(&mut refill, index, target, 0);
        }
        let at_home: Vec<u64> = (0..added).collect();
        let elsewhere = vec![added, added + 1];
        let home_first = [at_home.clone(), elsewhere.clone()].concat();
        assert_eq!(refill.order(Need { home: true, ..SLOTS }, &volume), at_home);
        assert_eq!(refill.order(SLOTS, &volume), home_first);
        let added_first = [elsewhere, at_home].concat();
        // By chance also the order from the current group on.
        assert_eq!(refill.order(DATA, &volume), added_first);
        refill.first.current = 0;
        assert_eq!(refill.order(DATA, &volume), home_first, "there is room for metadata");
        refill.first.target = 1;
        for index in 0..added {
            hint_of(&mut refill, index, u64::from(index == 0) * (home / HOME), 0);
        }
        assert!(!refill.is_home_short(&volume));
        hint_of(&mut refill, 0, home / HOME - 1, 0);
        assert!(refill.is_home_short(&volume));
        assert_eq!(refill.order(DATA, &volume), [added, added + 1, 0]);
        assert_eq!(refill.order(SLOTS, &volume), [0, added, added + 1]);
    }

    #[test]
    fn groups_that_come_are_taken_note_of() {
        let volume = volume();
        let mut refill = Refill::new(&volume, NodeId(0));
        refill.hinted = true;
        refill.follow(&volume);
        assert!(refill.hinted, "nothing has changed");
        let added = add_groups(&volume);
        refill.follow(&volume);
        assert!(!refill.hinted);
        assert_eq!(refill.hints.len() as u64, added + 2);
        assert_eq!(refill.first.groups, (0..added + 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_node_that_has_claimed_nothing_since_is_idle() {
        let volume = TestVolume::new(Shape::default()).volume;
        let mut refill = Refill::new(&volume, NodeId(0));
        assert_eq!([5, 5, 6, 6].map(|claims| refill.is_idle(claims)), [false, true, false, true]);
    }

    #[test]
    fn where_groups_are_for_one_use_each_has_a_side() {
        let volume = TestVolume::new(Shape::default()).volume;
        let mut refill = Refill::new(&volume, NodeId(0));
        assert_eq!(refill.side(DATA).groups, [0]);
        refill.data = Some(Side::new(&volume, NodeId(0), vec![7]));
        assert_eq!(
            (&refill.side(DATA).groups[..], &refill.side(SLOTS).groups[..]),
            (&[7][..], &[0][..])
        );
        assert_eq!(refill.side_mut(DATA).groups, [7]);
        assert_eq!(refill.side_mut(SLOTS).groups, [0]);
    }
}
