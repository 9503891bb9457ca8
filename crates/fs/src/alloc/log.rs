//! The free log in memory: which places of which log block hold what. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use braid_format::rgrp::{BlockState, RawFreeLog, RawFreed};
use braid_format::{BlockNo, FormatError};
use zerocopy::{FromBytes, IntoBytes};

/// A freed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Freed {
    pub start: u64,
    pub len: u64,
    /// `Free` or `MetaFree`.
    pub state: BlockState,
}

/// A place in the log: its block, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub block: u64,
    pub index: usize,
}

/// All places of a node's free log.
#[derive(Debug)]
pub(super) struct FreeLog {
    used: BTreeMap<Place, Freed>,
    empty: BinaryHeap<Reverse<Place>>,
}

impl FreeLog {
    /// Of `blocks` blocks with `per_block` places each, all empty.
    pub fn new(blocks: u64, per_block: usize) -> Self {
        let places = (0..blocks)
            .flat_map(|block| (0..per_block).map(move |index| Reverse(Place { block, index })));
        Self { used: BTreeMap::new(), empty: places.collect() }
    }
    /// Places without an entry.
    pub fn room(&self) -> u64 {
        self.empty.len() as u64
    }
    /// All places.
    pub fn capacity(&self) -> u64 {
        (self.empty.len() + self.used.len()) as u64
    }
    /// Takes the first empty place.
    ///
    /// # Panics
    /// If there is none: reservations count them.
    pub fn add(&mut self, freed: Freed) -> Place {
        let Reverse(place) = self.empty.pop().expect("free log reserved");
        self.used.insert(place, freed);
        place
    }
    /// Empties a place.
    pub fn remove(&mut self, place: Place) {
        if self.used.remove(&place).is_some() {
            self.empty.push(Reverse(place));
        }
    }
    /// Entries in use (a copy).
    pub fn entries(&self) -> Vec<(Place, Freed)> {
        self.used.iter().map(|(p, f)| (*p, *f)).collect()
    }
    /// Takes over entries as read.
    pub fn load(&mut self, entries: Vec<(Place, Freed)>) {
        self.used.extend(entries);
        let used = &self.used;
        self.empty.retain(|Reverse(place)| !used.contains_key(place));
    }
}

fn entry_at(index: usize) -> usize {
    size_of::<RawFreeLog>() + index * size_of::<RawFreed>()
}

/// The entries of a log block's body.
pub(super) fn decode(body: &[u8], block: BlockNo) -> Result<Vec<(usize, Freed)>, FormatError> {
    let bad =
        |field, value| FormatError::BadField { what: "free log", at: block.get(), field, value };
    let mut out = Vec::new();
    for index in 0..RawFreeLog::capacity(body.len()) {
        let Some(bytes) = body.get(entry_at(index)..) else { break };
        let Ok((raw, _)) = RawFreed::read_from_prefix(bytes) else { break };
        if raw.len.get() == 0 {
            continue;
        }
        let state = match raw.state.get() {
            0 => BlockState::Free,
            2 => BlockState::MetaFree,
            other => return Err(bad("state", u64::from(other))),
        };
        let len = u64::from(raw.len.get());
        if raw.start.get().checked_add(len).is_none() {
            return Err(bad("start", raw.start.get()));
        }
        out.push((index, Freed { start: raw.start.get(), len, state }));
    }
    Ok(out)
}

/// An entry as it stands in a log block; `None`: an empty place.
///
/// # Errors
/// A run of no block, or of more than an entry can say: it would be read as no entry.
pub(super) fn encode(freed: Option<Freed>, block: BlockNo) -> Result<RawFreed, FormatError> {
    let Some(f) = freed else {
        return Ok(RawFreed { start: 0.into(), len: 0.into(), state: 0.into() });
    };
    let (what, at, field) = ("free log", block.get(), "len");
    let len = u32::try_from(f.len).ok().filter(|len| *len > 0);
    let len = len.ok_or(FormatError::BadField { what, at, field, value: f.len })?;
    Ok(RawFreed { start: f.start.into(), len: len.into(), state: (f.state as u32).into() })
}

/// Writes an entry to a place of a log block's body.
pub(super) fn write(body: &mut [u8], index: usize, raw: &RawFreed) {
    let used = raw.len.get() > 0;
    if let Some(bytes) = body.get_mut(entry_at(index)..) {
        let _ = raw.write_to_prefix(bytes);
    }
    if let Ok((head, _)) = RawFreeLog::mut_from_prefix(body) {
        let count = head.count.get();
        head.count.set(if used { count + 1 } else { count.saturating_sub(1) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut body = vec![0; 3584];
        let a = Freed { start: 7, len: 3, state: BlockState::Free };
        let b = Freed { start: 70, len: 1, state: BlockState::MetaFree };
        let write = |body: &mut [u8], index, freed| {
            super::write(body, index, &encode(freed, BlockNo(1)).unwrap());
        };
        write(&mut body, 0, Some(a));
        write(&mut body, 220, Some(b));
        assert_eq!(decode(&body, BlockNo(1)).unwrap(), [(0, a), (220, b)]);
        let used = |body: &[u8]| RawFreeLog::read_from_prefix(body).unwrap().0.count.get();
        assert_eq!(used(&body), 2);
        write(&mut body, 0, None);
        assert_eq!(used(&body), 1);
        assert_eq!(decode(&body, BlockNo(1)).unwrap(), [(220, b)]);
        body[48 + 220 * 16 + 12] = 1;
        assert!(decode(&body, BlockNo(1)).is_err());
    }
    #[test]
    fn a_run_that_no_entry_can_say_is_an_error_and_not_an_empty_place() {
        for len in [0, 1 << 32, u64::MAX] {
            let freed = Freed { start: 7, len, state: BlockState::Free };
            assert!(encode(Some(freed), BlockNo(1)).is_err(), "{len}");
        }
        let most = Freed { start: 7, len: u64::from(u32::MAX), state: BlockState::Free };
        assert_eq!(u64::from(encode(Some(most), BlockNo(1)).unwrap().len.get()), most.len);
    }
    #[test]
    fn places_are_used_again() {
        let mut log = FreeLog::new(2, 3);
        let f = Freed { start: 1, len: 1, state: BlockState::Free };
        let places: Vec<Place> = (0..6).map(|_| log.add(f)).collect();
        assert_eq!((log.room(), log.capacity()), (0, 6));
        log.remove(places[4]);
        log.remove(places[4]);
        assert_eq!(log.room(), 1);
        assert_eq!(log.add(f), places[4]);
    }
    #[test]
    fn what_was_read_from_the_log_is_not_written_over() {
        let mut log = FreeLog::new(2, 3);
        let f = Freed { start: 1, len: 1, state: BlockState::Free };
        let place = |block, index| Place { block, index };
        log.load(vec![(place(0, 0), f), (place(0, 2), f)]);
        assert_eq!((log.room(), log.capacity()), (4, 6));
        assert_eq!([log.add(f), log.add(f)], [place(0, 1), place(1, 0)]);
        assert_eq!(log.entries().len(), 4);
    }
}
