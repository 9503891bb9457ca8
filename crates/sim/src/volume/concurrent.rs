//! The same blocks of a mirror written by several nodes at once, as under concurrent holds: no order between
//! two writes that overlap in time, and all copies equal when the last of them has returned.

use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes};
use braid_pool::PoolRequest;
use braid_pool::device::Device;

use super::acts::Node;
use super::world::World;
use crate::contents::{SECTOR, Value, content, value_of};

const SECTOR_BYTES: u64 = SECTOR as u64;
/// Where the blocks begin that all write.
const AT: u64 = 1 << 20;
/// So many sectors are a block.
const SECTORS: u64 = 8;
/// Few, so that writers meet.
const BLOCKS: u64 = 3;

impl Node {
    fn block(&self) -> u64 {
        AT / SECTOR_BYTES + self.below(BLOCKS) * SECTORS
    }

    /// One block, whoever else writes it.
    pub(super) fn write_concurrent(&self) {
        let block = self.block();
        let (value, split) = {
            let mut state = self.world.state();
            state.values += 1;
            let (value, began) = (state.values, state.model.now());
            let meets = state.model.shared.is_written((block, SECTORS));
            state.report.met += u64::from(meets);
            for sector in block..block + SECTORS {
                state.model.shared.begin((sector, self.me), value, began);
            }
            (value, state.split)
        };
        let bytes: Vec<u8> = (block..block + SECTORS).flat_map(|s| content(s, value)).collect();
        let mut batch = [PoolRequest::write(ByteOffset(block * SECTOR_BYTES), &bytes)];
        if split {
            self.pool.run(&mut batch);
        } else {
            self.pool.run_concurrent(&mut batch);
        }
        let [PoolRequest { result, .. }] = batch;
        self.tell(format!("write {value} of block {block} beside others: {}", result.is_ok()));
        {
            let mut state = self.world.state();
            if state.has_ended(self.me) {
                return;
            }
            let now = state.model.now();
            state.model.shared.end(value, now, result.is_ok());
            state.model.shared.uneven |= result.is_err();
            state.report.writes += u64::from(result.is_ok());
        }
        match result {
            Ok(()) => self.look_whether_equal(block),
            Err(error) => self.check("write beside others", &error),
        }
    }

    /// Nobody writes a block any more: all its copies are the same, and what a writer has written.
    fn look_whether_equal(&self, block: u64) {
        let tag = self.pool.epoch_tag();
        let whole = self.pool.member_states().iter().all(|s| s.1 == MemberState::Active);
        let members = self.members();
        let placements = self.pool.placements(ByteOffset(block * SECTOR_BYTES));
        let mut state = self.world.state();
        let dead = |n: &super::world::Node| !n.joined && n.unrecovered;
        let others = state.nodes.iter().any(|n| dead(n) || n.joined && n.tag != tag);
        if !whole
            || others
            || state.model.shared.uneven
            || state.model.shared.is_written((block, SECTORS))
        {
            return;
        }
        let mut copies = Vec::new();
        for (member, at) in placements {
            let disk = members.get(usize::from(member.0)).copied().flatten();
            let Some(disk) = disk.and_then(|d| state.disks.get(d)) else { return };
            let mut bytes = vec![0; Bytes(SECTORS * SECTOR_BYTES).to_usize()];
            if disk.faulty.read(at, &mut bytes).is_err() {
                return;
            }
            copies.push(bytes);
        }
        let values = |copy: &Vec<u8>| -> Vec<Value> {
            (block..).zip(copy.chunks(SECTOR)).map(|(s, b)| value_of(s, b)).collect()
        };
        if copies.windows(2).any(|pair| pair.first() != pair.last()) {
            let found: Vec<_> = copies.iter().map(values).collect();
            state
                .fail(format!("the copies of block {block} differ, and nobody writes: {found:x?}"));
        }
    }

    pub(super) fn read_concurrent(&self) {
        let block = self.block();
        let mut bytes = vec![0; Bytes(SECTORS * SECTOR_BYTES).to_usize()];
        let from = self.world.state().model.now();
        match self.pool.read(ByteOffset(block * SECTOR_BYTES), &mut bytes) {
            Ok(()) => {
                self.tell(format!("read block {block}"));
                compare(&self.world, (block, from), &bytes);
            }
            Err(error) => self.check("read beside others", &error),
        }
    }
}

fn compare(world: &World, (block, from): (u64, u64), bytes: &[u8]) {
    let mut state = world.state();
    state.report.reads += 1;
    for (sector, bytes) in (block..).zip(bytes.chunks(SECTOR)) {
        let value = value_of(sector, bytes);
        if !state.model.shared.may_read(sector, value, from) {
            let writes = state.model.shared.sectors.get(&sector).cloned();
            return state.fail(format!("sector {sector} reads as {value:#x}: {writes:?}"));
        }
    }
}

/// Reads all that was written so. After a `crash` it is what is durable, and is taken as it is.
pub(super) fn verify_shared(world: &World, me: usize, pool: &braid_pool::Pool, crash: bool) {
    let sectors: Vec<u64> = world.state().model.shared.sectors.keys().copied().collect();
    for sector in sectors {
        let mut bytes = vec![0; SECTOR];
        let from = world.state().model.now();
        let read = pool.read(ByteOffset(sector * SECTOR_BYTES), &mut bytes);
        if world.state().has_ended(me) {
            return;
        }
        if let Err(error) = read {
            return world.state().fail(format!("sector {sector} cannot be read: {error}"));
        }
        if !crash {
            compare(world, (sector, from), &bytes);
            continue;
        }
        let value = value_of(sector, &bytes);
        let mut state = world.state();
        let shared = &mut state.model.shared;
        if !shared.may_survive(sector, value) {
            let writes = shared.sectors.get(&sector).cloned();
            let what = format!("after the crash sector {sector} is {value:#x}: {writes:?}");
            return state.fail(what);
        }
        shared.settle(sector, &[value], from);
    }
    if crash {
        world.state().model.shared.uneven = false;
    }
}
