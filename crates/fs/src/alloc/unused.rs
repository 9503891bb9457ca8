//! Metadata slots that nobody uses become free blocks again, and how many there are. When that may be
//! done says [`crate::unused_metadata`].

use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, Bytes, LockNo};
use braid_lock::{Deltas, Local, Mode};
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;

use super::bits;
use super::group::{Edits, Group, headers};
use super::inner::{Alloc, Inner};
use crate::error::Result;
use crate::groups::{takes_data, takes_slots};

/// Zeros written by one request.
const PIECE: Bytes = Bytes(1 << 20);
/// Requests at once.
const BATCH: usize = 16;

/// Blocks of a group that a node's private blocks speak of: (first block, blocks).
pub(crate) type PrivateRange = (u64, u64);

impl Alloc {
    /// Blocks that may hold file data, and blocks of free slots that no window has, in groups for both.
    pub fn data_and_unused(&self) -> Result<(u64, u64)> {
        let inner = &self.inner;
        let volume = &inner.volume;
        let both: Vec<u64> = (0..volume.groups.count()).filter(|i| inner.is_for_both(*i)).collect();
        let mut unused = 0;
        headers(volume, &both, &mut |_, header| {
            unused += header?.map_or(0, |raw| raw.free_meta.get());
            Ok(())
        })?;
        Ok((inner.total().0, unused))
    }

    /// Makes free blocks of the free slots of group `index` if they are a chunk or more, except
    /// those that `private_ranges` names. `alone` is called with the group's lock held, and says whether
    /// that may be done; if not, the result is `None`. Durable on return; the slots' lock records
    /// are gone then.
    pub fn free_unused(
        &self,
        index: u64,
        private_ranges: &[PrivateRange],
        alone: &dyn Fn() -> Result<bool>,
    ) -> Result<Option<u64>> {
        let inner = &self.inner;
        if !inner.is_for_both(index) {
            return Ok(Some(0));
        }
        let lock = LockNo::from(inner.volume.rgrp(index));
        let guard = inner.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        if !alone()? {
            return Ok(None);
        }
        let mut group = Group::load(&inner.volume, &inner.meta, index)?;
        let runs = unused(&group, private_ranges, inner.volume.geo.chunk_blocks());
        let mut freed = 0;
        for part in of_bitmaps(&runs, group.blocks_of_bitmap()) {
            freed += inner.turn_free(&mut group, &part)?;
        }
        if freed > 0 {
            // Not before: a slot must be whole as long as it may be one.
            inner.meta.commit()?;
            inner.wipe(&group, &runs)?;
            inner.meta.note_data_written();
            inner.meta.commit_and_flush()?;
        }
        drop(guard);
        inner.note_space();
        Ok(Some(freed))
    }
}

impl Inner {
    fn is_for_both(&self, index: u64) -> bool {
        let groups = &self.volume.groups;
        let kind = groups.kind(index);
        takes_data(kind) && takes_slots(kind) && groups.is_open(index)
    }

    /// The transaction for runs whose bits stand in one bitmap.
    fn turn_free(&self, group: &mut Group, runs: &[(u64, u64)]) -> Result<u64> {
        let mut edits = Edits::default();
        let mut freed = 0;
        for &(at, n) in runs {
            edits.push(at, n, BlockState::MetaFree, BlockState::Free);
            freed += n;
        }
        let mut tx = self.meta.begin()?;
        let blocks = Self::signed(freed);
        let change = Deltas { free: blocks, meta: -blocks, ..Deltas::default() };
        let done = group.apply(&mut tx, &edits).and_then(|()| self.count(&mut tx, change));
        drop(tx);
        // Half of a transaction must not be committed.
        self.meta.fatal(done)?;
        Ok(freed)
    }

    /// Writes zeros where slots were. A node that comes with the number of an old inode must not
    /// find a lock record there, because its compare-and-write would then change file data.
    fn wipe(&self, group: &Group, runs: &[(u64, u64)]) -> Result<()> {
        let size = self.volume.geo.block_size;
        let piece = size.blocks_for(PIECE).get().max(1);
        let zeros = AlignedBuf::zeroed(Bytes(piece << size.shift()).to_usize());
        let pieces: Vec<(u64, u64)> = runs.iter().flat_map(|run| cut(*run, piece)).collect();
        for batch in pieces.chunks(BATCH) {
            let mut requests: Vec<PoolRequest<'_>> = batch
                .iter()
                .map(|&(at, n)| {
                    let len = Bytes(n << size.shift()).to_usize();
                    let zeros = zeros.get(..len).unwrap_or(&zeros);
                    PoolRequest::write(size.offset_of(BlockNo(group.block(at))), zeros)
                })
                .collect();
            self.volume.run(&mut requests)?;
        }
        Ok(())
    }
}

/// Runs of free slots that are a chunk or more, without those in `private_ranges`: (index in the group, blocks).
fn unused(group: &Group, private_ranges: &[PrivateRange], chunk: u64) -> Vec<(u64, u64)> {
    let mut map = group.bits.clone();
    let (first, end) = (group.block(0), group.block(group.shape.block_count));
    for &(start, len) in private_ranges {
        let (from, to) = (start.max(first), start.saturating_add(len).min(end));
        if from < to {
            bits::fill(&mut map, from - first, to - from, BlockState::Data);
        }
    }
    bits::runs(&map, 0, group.shape.block_count, BlockState::MetaFree)
        .filter(|(_, n)| *n >= chunk)
        .collect()
}

/// A run in pieces of at most `most`.
fn cut((start, len): (u64, u64), most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(most)).map(move |i| (start + i * most, most.min(len - i * most)))
}

/// Runs by the bitmap that speaks of them, `per` blocks each.
fn of_bitmaps(runs: &[(u64, u64)], per: u64) -> Vec<Vec<(u64, u64)>> {
    let mut all: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
    for &(start, len) in runs {
        let (mut at, end) = (start, start + len);
        while at < end {
            let bitmap = at / per.max(1);
            let to = end.min((bitmap + 1) * per.max(1));
            match all.last_mut() {
                Some((last, part)) if *last == bitmap => part.push((at, to - at)),
                _ => all.push((bitmap, vec![(at, to - at)])),
            }
            at = to;
        }
    }
    all.into_iter().map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use braid_format::label::SubpoolKind;

    use super::*;

    #[test]
    fn free_slots_that_are_a_chunk_and_in_no_private_range_are_unused() {
        let slots = [(10, 50), (100, 19), (120, 20)].map(|(at, n)| (at, n, BlockState::MetaFree));
        let group = Group::for_tests(SubpoolKind::General, &slots);
        let found = |ranges: &[PrivateRange]| unused(&group, ranges, 20);
        assert_eq!(found(&[]), [(10, 50), (120, 20)]);
        // What is private may begin before the group, or end behind it.
        assert_eq!(found(&[(990, 25)]), [(15, 45), (120, 20)]);
        assert_eq!(found(&[(1035, 2), (1130, 5000)]), [(10, 25), (37, 23)]);
        assert_eq!(found(&[(900, 100), (1400, 10), (1070, 30)]), [(10, 50), (120, 20)]);
        assert_eq!(found(&[(0, u64::MAX)]), []);
    }

    #[test]
    fn runs_are_cut_where_their_bitmaps_end() {
        let parts = of_bitmaps(&[(2, 3), (8, 14), (30, 1)], 10);
        let expected = vec![vec![(2, 3), (8, 2)], vec![(10, 10)], vec![(20, 2)], vec![(30, 1)]];
        assert_eq!(parts, expected);
        assert_eq!(cut((5, 7), 3).collect::<Vec<_>>(), [(5, 3), (8, 3), (11, 1)]);
    }
}
