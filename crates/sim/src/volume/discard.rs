//! Space is given back.

use braid_format::{ByteOffset, Bytes};

use super::acts::Node;
use super::verify::{LOCKS, compare, lock_area, whole_rows};
use crate::contents::{SECTOR, value_of};

const SECTOR_BYTES: u64 = SECTOR as u64;

impl Node {
    /// Where and how much may be given back, in sectors: rows of parity too, and clear of the locks.
    fn range_to_give(&self) -> (u64, u64) {
        let (at, len) = self.range();
        let size = self.pool.info().size.0 / SECTOR_BYTES;
        let more = (len * (self.below(8) + 1)).min(size - at);
        let locks = lock_area(&self.pool).map(|at| at / SECTOR_BYTES);
        match locks {
            Some(from) if at < from + LOCKS / SECTOR_BYTES && at + more > from => (at, len),
            _ => (at, more),
        }
    }

    pub(super) fn discard(&self) {
        let (at, len) = self.range_to_give();
        let whole = whole_rows(&self.pool, &[(at, len)]);
        let Some(id) = self.take_range(at, len) else { return };
        self.world.state().model.begin_as((id, 0), at, len, |s| whole.contains(&s));
        let bytes = Bytes(len * SECTOR_BYTES);
        let given = self.pool.discard(ByteOffset(at * SECTOR_BYTES), bytes);
        self.tell(format!("gives back {id}, {at}+{len}: {given:?}"));
        match given {
            Ok(given) => self.look_at_given((at, len), id, given == bytes),
            Err(error) => self.has_failed("discard", (at, len), id, &error),
        }
        self.give_range(at, len);
    }

    /// What was given back is zeros, or as it was: which of them is known from now on. What was zeros already
    /// and did not go back is as it was: a write that failed may still come over it, when its node is recovered.
    fn look_at_given(&self, (at, len): (u64, u64), id: u64, all: bool) {
        let mut bytes = vec![0; Bytes(len * SECTOR_BYTES).to_usize()];
        let from = self.world.state().model.now();
        if let Err(error) = self.pool.read(ByteOffset(at * SECTOR_BYTES), &mut bytes) {
            return self.check("read of what was given back", &error);
        }
        let mut state = self.world.state();
        state.report.discards += 1;
        state.report.discarded += u64::from(all);
        for (sector, bytes) in (at..).zip(bytes.chunks(SECTOR)) {
            let value = value_of(sector, bytes);
            if value == 0 && (all || !state.model.may_be_without(sector, id, 0)) {
                state.model.acknowledge(sector, 1, id);
            } else if all {
                let said = state.model.say(sector);
                let what = format!("sector {sector} was given back and is {value:#x}: {said}");
                return state.fail(what);
            } else {
                state.model.withdraw(sector, 1, id);
            }
        }
        compare(&mut state, &self.pool, at, &bytes, from);
    }
}
