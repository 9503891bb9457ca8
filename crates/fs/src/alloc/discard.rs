//! What was freed here goes back to the devices by itself, a while later (`-o discard`).
//!
//! The places that are remembered are only hints: what goes back is what the groups themselves call
//! `Free`, by the rules of [`super::trim`]. So it does not matter what has become of a place since:
//! what a node has taken again is `Data`, and stays.
//!
//! ```text
//! freed --> remembered --interval--> free log drained --> in a window of this node?
//!               ^                                           yes |          | no
//!               +------------ until the window is back ---------+          +--> its group's turn:
//!                                                                   what is free there is discarded
//! ```
//!
//! What a crash or an unmount makes forgotten is found by a trim.

use std::collections::BTreeMap;
use std::time::Instant;

use braid_format::LockNo;
use braid_lock::{Local, Mode};

use super::freed_places::Remembered;
use super::group::Group;
use super::inner::{Alloc, Inner};
use super::trimmed::HOLD;
use crate::error::Result;

impl Alloc {
    /// From now on what is freed is remembered, for [`Alloc::discard_freed`].
    pub fn remember_freed(&self) {
        self.inner.freed.lock().get_or_insert_default();
    }

    /// Discards what was freed since the last time, as far as it is free for all: how many bytes went
    /// back. Each group's turn comes by itself, and its lock is held for moments.
    ///
    /// # Errors
    /// Those of the locks and of the devices.
    pub fn discard_freed(&self, stop: &dyn Fn() -> bool) -> Result<u64> {
        let mut given = 0;
        let mut turns = self.inner.turns()?.into_iter();
        while let Some((index, places)) = turns.next() {
            let mut places = self.inner.whole_rows(index, &places);
            while !places.is_empty() {
                if stop() {
                    let left = turns.flat_map(|(_, places)| places);
                    self.inner.remember(places.into_iter().chain(left));
                    return Ok(given);
                }
                let (bytes, left) = match self.inner.discard_in(index, places, stop) {
                    // Until a repair: the other groups are sound.
                    Err(e) if e.is_of_one_group() => {
                        tracing::warn!("cannot give back free space of group {index}: {e}");
                        break;
                    }
                    turn => turn?,
                };
                given += bytes;
                places = left;
            }
        }
        Ok(given)
    }
}

impl Inner {
    /// A run was freed, in a transaction that need not be durable.
    pub(super) fn note_freed(&self, start: u64, len: u64) {
        if let Some(freed) = &mut *self.freed.lock() {
            freed.add(start, start + len);
        }
    }
    fn remember(&self, places: impl Iterator<Item = (u64, u64)>) {
        if let Some(freed) = &mut *self.freed.lock() {
            places.for_each(|(start, end)| freed.add(start, end));
        }
    }
    /// Whether windows of this node keep places from going back.
    pub(super) fn withholds_freed(&self) -> bool {
        let freed = self.freed.lock();
        let Some(freed) = freed.as_ref().filter(|f| !f.0.is_empty()) else { return false };
        let state = self.state.lock();
        freed.iter().any(|(start, end)| !state.overlaps(start, end - start).is_empty())
    }
    /// Places by their groups, but those that this node has in windows.
    fn turns(&self) -> Result<BTreeMap<u64, Vec<(u64, u64)>>> {
        let mut turns: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let all = self.freed.lock().as_mut().map(std::mem::take).unwrap_or_default();
        if all.0.is_empty() {
            return Ok(turns);
        }
        // As long as it stands in the free log only, its group does not call it free.
        if let Err(e) = self.drain_usable(&mut self.refill.lock()) {
            self.remember(all.iter());
            return Err(e);
        }
        let mut freed = self.freed.lock();
        let state = self.state.lock();
        let groups = &self.volume.groups;
        for (start, end) in all.iter() {
            let mut kept: Vec<_> = state
                .overlaps(start, end - start)
                .into_iter()
                .map(|(_, _, from, len)| (start + from, start + from + len))
                .collect();
            kept.sort_unstable();
            if let Some(freed) = freed.as_mut() {
                for (from, to) in &kept {
                    freed.add(*from, *to);
                }
            }
            let mut at = start;
            for (from, to) in kept.into_iter().chain([(end, end)]) {
                while at < from {
                    let len = groups.part(at, from - at).max(1);
                    if let Some(index) = groups.of_block(braid_format::BlockNo(at)) {
                        turns.entry(index).or_default().push((at, at + len));
                    }
                    at += len;
                }
                at = at.max(to);
            }
        }
        Ok(turns)
    }
    /// A group's turn: bytes that went back, and the places that it had no time for.
    fn discard_in(
        &self,
        index: u64,
        places: Vec<(u64, u64)>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(u64, Vec<(u64, u64)>)> {
        let lock = LockNo::from(self.volume.rgrp(index));
        let _guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        // As for a trim: a node that empties a part looks at each group after all nodes know that
        // it is closed.
        if !self.volume.groups.is_open(index) {
            return Ok((0, Vec::new()));
        }
        self.meta.commit()?;
        let group = Group::load(&self.volume, &self.meta, index)?;
        let (begin, first) = (Instant::now(), group.shape.first_block);
        let (mut given, mut left) = (0, Vec::new());
        for (start, end) in places {
            if !left.is_empty() || begin.elapsed() > HOLD {
                left.push((start, end));
                continue;
            }
            let (from, to) = (start.saturating_sub(first), end.saturating_sub(first));
            let to = to.min(group.shape.block_count);
            let step = self.discard(&group, (from, to), (1, None), stop)?;
            given += step.given;
            if let Some(at) = step.goes_on_at() {
                left.push((first + at, end));
            }
        }
        Ok((given, left))
    }
    /// Places of a group. If the pool has parity, also the rest of their rows, which go back whole
    /// or not at all. None touches another.
    fn whole_rows(&self, index: u64, places: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let map = self.volume.pool.map();
        let parity = map.groups().iter().any(|g| g.row_len().is_some());
        in_rows(places, |start| if parity { self.volume.rows_at(index, start) } else { (0, 0) })
    }
}

/// Places with the rest of their rows; `rows_of` says where rows begin, and how long they are (0: there are
/// none). None touches another.
fn in_rows(places: &[(u64, u64)], rows_of: impl Fn(u64) -> (u64, u64)) -> Vec<(u64, u64)> {
    let mut wide = Remembered::default();
    for &(start, end) in places {
        let (rows, row) = rows_of(start);
        if row == 0 {
            wide.add(start, end);
        } else {
            let into = start.saturating_sub(rows) % row;
            wide.add(start - into, rows + end.saturating_sub(rows).next_multiple_of(row));
        }
    }
    wide.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_whole_rows() {
        let places = [(113, 118), (121, 125), (150, 160), (171, 172)];
        assert_eq!(in_rows(&places, |_| (0, 0)), places);
        let rows = |_| (100, 10);
        assert_eq!(in_rows(&places, rows), [(110, 130), (150, 160), (170, 180)]);
        // Rows of the first half are longer.
        let rows = |start| if start < 140 { (100, 20) } else { (140, 10) };
        assert_eq!(in_rows(&places, rows), [(100, 140), (150, 160), (170, 180)]);
    }
}
