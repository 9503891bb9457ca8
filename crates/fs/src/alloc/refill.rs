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
