//! Contents by which each sector tells which write it is of, and what is allowed where writes overlap in time.

use std::collections::BTreeMap;

use braid_format::lock_record::RawLockRecord;

/// Bytes in a sector.
pub(crate) const SECTOR: usize = 512;

/// What a sector holds: 0 for zeros, the number of the write, or of anything else a hash with the
/// highest bit set.
pub(crate) type Value = u64;

/// The content that write `value` gives to `sector`.
pub(crate) fn content(sector: u64, value: Value) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (i, b) in (0_u64..).zip(bytes.chunks_exact_mut(16)) {
        b[..8].copy_from_slice(&(sector * 31 + i + 1).to_le_bytes());
        b[8..].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The same where a lock stands: it begins as its record does.
pub(crate) fn lock_content(sector: u64, value: Value) -> [u8; SECTOR] {
    let mut bytes = content(sector, value);
    bytes[..4].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    bytes
}

/// Whether `bytes` begin as [`lock_content`] does.
pub(crate) fn is_lock(bytes: &[u8]) -> bool {
    bytes.starts_with(&RawLockRecord::MAGIC.to_le_bytes())
}

/// Which write `bytes`, read from `sector`, are.
pub(crate) fn value_of(sector: u64, bytes: &[u8]) -> Value {
    if bytes.iter().all(|b| *b == 0) {
        return 0;
    }
    let number = bytes.get(8..16).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let is = |v: Value| bytes == content(sector, v) || bytes == lock_content(sector, v);
    if let Some(value) = number.filter(|v| *v != 0 && is(*v)) {
        return value;
    }
    let hash = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash) | 1 << 63
}

/// Whether a value is that of no write.
pub(crate) const fn is_unknown(value: Value) -> bool {
    value >> 63 != 0
}

/// Writes of a sector that are kept at least.
const KEPT: usize = 32;

/// A write of one sector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    value: Value,
    node: usize,
    began: u64,
    /// Nothing of it reaches a device later.
    ended: Option<u64>,
    /// It has succeeded.
    good: bool,
    /// A flush has succeeded that began after that.
    durable: bool,
    /// Reads that begin earlier may miss it: a device that had it has lost power before it was flushed.
    sure_from: u64,
}

impl Write {
    fn settled(value: Value, at: u64) -> Self {
        let ended = Some(at);
        Self { value, node: 0, began: at, ended, good: true, durable: true, sure_from: 0 }
    }
    pub fn value(&self) -> Value {
        self.value
    }
    /// It began after `other` had ended.
    fn follows(&self, other: &Self) -> bool {
        other.ended.is_some_and(|ended| self.began > ended)
    }
}

/// What sectors may hold that several nodes write at once: of writes that overlap in time either may stay.
#[derive(Debug, Default)]
pub(crate) struct Overlapping {
    pub sectors: BTreeMap<u64, Vec<Write>>,
    /// A write has failed, or its node has died: copies may differ until a recovery has compared them.
    pub uneven: bool,
}

impl Overlapping {
    pub fn begin(&mut self, (sector, node): (u64, usize), value: Value, began: u64) {
        let zero = Write::settled(0, 0);
        let write = Write { value, node, began, ended: None, good: false, ..zero };
        let write = Write { durable: false, ..write };
        self.sectors.entry(sector).or_insert_with(|| vec![zero]).push(write);
    }
    fn all(&mut self) -> impl Iterator<Item = &mut Write> {
        self.sectors.values_mut().flatten()
    }
    pub fn end(&mut self, value: Value, now: u64, good: bool) {
        self.all().filter(|w| w.value == value).for_each(|w| (w.ended, w.good) = (Some(now), good));
    }
    /// What these nodes had under way has ended with them.
    pub fn die(&mut self, node: impl Fn(usize) -> bool, now: u64) {
        let mut died = false;
        for write in self.all().filter(|w| w.ended.is_none() && node(w.node)) {
            write.ended = Some(now);
            died = true;
        }
        self.uneven |= died;
    }
    /// A device has lost power: what was not flushed may be lost there.
    pub fn shake(&mut self) {
        self.all().filter(|w| !w.durable).for_each(|w| w.sure_from = u64::MAX);
    }
    /// What is durable now is so on all devices that are read.
    pub fn steady(&mut self, now: u64) {
        self.all().filter(|w| w.durable).for_each(|w| w.sure_from = w.sure_from.min(now));
    }
    /// A flush that began then has succeeded, and covers what these nodes wrote.
    pub fn flushed(&mut self, from: u64, node: impl Fn(usize) -> bool) {
        for writes in self.sectors.values_mut() {
            for write in writes
                .iter_mut()
                .filter(|w| w.good && node(w.node) && w.ended.is_some_and(|e| e <= from))
            {
                write.durable = true;
            }
            // What is long over no read can see any more.
            if writes.len() > 2 * KEPT {
                let durable: Vec<Write> = writes.iter().filter(|w| w.durable).copied().collect();
                let recent = writes.len() - KEPT;
                let mut at = 0..;
                writes
                    .retain(|w| at.next() > Some(recent) || !durable.iter().any(|d| d.follows(w)));
            }
        }
    }
    pub fn is_written(&self, (block, sectors): (u64, u64)) -> bool {
        let mut written = self.sectors.range(block..block + sectors);
        written.any(|(_, writes)| writes.iter().any(|w| w.ended.is_none()))
    }
    /// Whether a read that began at `from` may give this.
    pub fn may_read(&self, sector: u64, value: Value, from: u64) -> bool {
        let settled =
            |w: &&Write| w.good && w.ended.is_some_and(|ended| ended.max(w.sure_from) <= from);
        self.may_be(sector, value, settled)
    }
    pub fn may_survive(&self, sector: u64, value: Value) -> bool {
        self.may_be(sector, value, |w| w.durable)
    }
    fn may_be(&self, sector: u64, value: Value, settled: impl Fn(&&Write) -> bool) -> bool {
        let Some(writes) = self.sectors.get(&sector) else { return value == 0 };
        let over = |w: &Write| writes.iter().filter(&settled).any(|later| later.follows(w));
        writes.iter().any(|w| w.value == value && !over(w))
    }
    /// After a power cut it is what it is: one of these values, if copies differ.
    pub fn settle(&mut self, sector: u64, values: &[Value], now: u64) {
        let write = |value: &Value| Write::settled(*value, now);
        self.sectors.insert(sector, values.iter().map(write).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_writes_that_overlap_either_may_stay() {
        let mut shared = Overlapping::default();
        shared.begin((0, 0), 1, 1);
        shared.begin((0, 1), 2, 2);
        assert!(
            shared.is_written((0, 8)) && [0, 1, 2].map(|v| shared.may_read(0, v, 3)) == [true; 3]
        );
        shared.end(2, 3, true);
        shared.end(1, 4, true);
        assert!(!shared.is_written((0, 8)));
        assert_eq!([0, 1, 2].map(|v| shared.may_read(0, v, 5)), [false, true, true]);
        // None of them is durable.
        assert_eq!([0, 1, 2].map(|v| shared.may_survive(0, v)), [true; 3]);
        shared.flushed(3, |_| true);
        assert_eq!([0, 1, 2].map(|v| shared.may_survive(0, v)), [false, true, true]);
        shared.begin((0, 0), 3, 6);
        shared.end(3, 7, true);
        assert_eq!([1, 2, 3].map(|v| shared.may_read(0, v, 8)), [false, false, true]);
        assert_eq!([1, 2, 3].map(|v| shared.may_survive(0, v)), [true; 3]);
        shared.flushed(8, |node| node == 1);
        assert_eq!([1, 2, 3].map(|v| shared.may_survive(0, v)), [true; 3], "another's");
        shared.flushed(8, |_| true);
        assert_eq!([1, 2, 3].map(|v| shared.may_survive(0, v)), [false, false, true]);
    }
    #[test]
    fn what_a_dead_node_wrote_may_be_there_or_not() {
        let mut shared = Overlapping::default();
        shared.begin((0, 1), 1, 1);
        shared.die(|node| node == 1, 2);
        assert!(shared.uneven && !shared.is_written((0, 8)));
        assert!(shared.may_read(0, 0, 3) && shared.may_read(0, 1, 3));
        shared.begin((0, 0), 2, 4);
        shared.end(2, 5, true);
        assert_eq!([0, 1, 2].map(|v| shared.may_read(0, v, 6)), [false, false, true]);
        shared.settle(0, &[1], 7);
        assert_eq!([0, 1, 2].map(|v| shared.may_read(0, v, 8)), [false, true, false]);
    }
}
