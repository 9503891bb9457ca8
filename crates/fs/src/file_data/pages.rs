//! A file's dirty contents in memory. Only dirty blocks are kept: clean data is the business of the
//! kernel's page cache.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_pool::device::{AlignedBuf, fitting};
use parking_lot::Mutex;

/// Bytes of file that one page covers: 16 blocks of 4 KiB, one of 64 KiB.
const PAGE: usize = 64 << 10;

/// One page. The buffer is as long as the last dirty block in it needs, rounded up to a power of
/// two.
#[derive(Debug)]
struct Page {
    buf: AlignedBuf,
    /// One bit a block: wholly there, and newer than the devices.
    dirty: u16,
}

/// Buffers of full pages to be used again: fresh memory costs a page fault each 4 KiB.
#[derive(Debug, Default)]
pub(crate) struct SpareBuffers(Mutex<Vec<AlignedBuf>>);

impl SpareBuffers {
    /// Most that are kept, in much memory.
    const KEPT_MAX: usize = 256;

    fn take(&self) -> AlignedBuf {
        self.0.lock().pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE))
    }
    fn give(&self, bufs: impl Iterator<Item = AlignedBuf>) {
        let mut kept = self.0.lock();
        let room = fitting(Self::KEPT_MAX).saturating_sub(kept.len());
        kept.extend(bufs.filter(|b| b.len() == PAGE).take(room));
    }
}

/// Dirty blocks by number.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    by_number: BTreeMap<u64, Page>,
    bytes: u64,
    blocks: u64,
}

fn to_u64(n: usize) -> u64 {
    n as u64
}

/// Blocks that a page covers.
fn per_page(shift: u32) -> u64 {
    to_u64(PAGE >> shift)
}

/// A page and the bit in it.
fn place(shift: u32, block: u64) -> (u64, u32) {
    let n = per_page(shift);
    (block / n, u32::try_from(block % n).unwrap_or(0))
}

impl Pages {
    /// Memory held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Dirty blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
    /// Nothing dirty.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }
    /// Whether `block` is dirty.
    pub fn has(&self, shift: u32, block: u64) -> bool {
        let (page, bit) = place(shift, block);
        self.by_number.get(&page).is_some_and(|p| p.dirty >> bit & 1 == 1)
    }
    /// Whether a block of `range` is dirty.
    pub fn any(&self, shift: u32, range: Range<u64>) -> bool {
        !self.runs(shift, range).is_empty()
    }
    /// Maximal runs of dirty blocks inside `range`, ascending.
    pub fn runs(&self, shift: u32, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        if range.is_empty() || self.by_number.is_empty() {
            return out;
        }
        let (first, last) = (place(shift, range.start).0, place(shift, range.end - 1).0);
        for (page, p) in self.by_number.range(first..=last) {
            let base = page * per_page(shift);
            for bit in 0..per_page(shift) {
                let block = base + bit;
                if p.dirty >> bit & 1 == 0 || !range.contains(&block) {
                    continue;
                }
                match out.last_mut() {
                    Some(run) if run.end == block => run.end += 1,
                    _ => out.push(block..block + 1),
                }
            }
        }
        out
    }
    /// Maximal runs of blocks of `range` that are not dirty, ascending.
    pub fn clean_runs(&self, shift: u32, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = range.start;
        for run in self.runs(shift, range.clone()) {
            if at < run.start {
                out.push(at..run.start);
            }
            at = run.end;
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }
    /// The bytes of dirty blocks `range` (all of them dirty), in pieces: first block, bytes.
    pub fn slices(&self, shift: u32, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let n = per_page(shift);
        let pages = if range.is_empty() { 1..1 } else { range.start / n..(range.end - 1) / n + 1 };
        pages.filter_map(move |page| {
            let first = range.start.max(page * n);
            let last = range.end.min((page + 1) * n);
            let from = usize::try_from(first - page * n).ok()? << shift;
            let to = usize::try_from(last - page * n).ok()? << shift;
            Some((first, self.by_number.get(&page)?.buf.get(from..to)?))
        })
    }
    /// Writes `data` at byte `offset`; every block it touches is dirty from then on. The rest of a
    /// block that is touched in part and was not dirty is zero.
    pub fn put(&mut self, spare: &SpareBuffers, shift: u32, offset: u64, data: &[u8]) {
        let mut offset = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let page = offset / to_u64(PAGE);
            let at = usize::try_from(offset % to_u64(PAGE)).unwrap_or(0);
            let (now, later) = rest.split_at(rest.len().min(PAGE - at));
            self.put_in_page(spare, shift, page, at, now);
            offset += to_u64(now.len());
            rest = later;
        }
    }
    fn put_in_page(&mut self, spare: &SpareBuffers, shift: u32, page: u64, at: usize, data: &[u8]) {
        let end = at + data.len();
        let least = end.next_multiple_of(1 << shift).next_power_of_two().min(PAGE);
        // A writer that continues from the page before will fill this one.
        let writes_on = at == 0 && page > 0 && self.by_number.contains_key(&(page - 1));
        let need = if writes_on { PAGE } else { least };
        let p = self
            .by_number
            .entry(page)
            .or_insert_with(|| Page { buf: AlignedBuf::zeroed(0), dirty: 0 });
        if p.buf.len() < need {
            let mut larger = if need == PAGE { spare.take() } else { AlignedBuf::zeroed(need) };
            if let Some(kept) = larger.get_mut(..p.buf.len()) {
                kept.copy_from_slice(&p.buf);
            }
            self.bytes += to_u64(need - p.buf.len());
            p.buf = larger;
        }
        // The buffer may still hold what was forgotten.
        let (first, last) = (at >> shift << shift, (end - 1) >> shift << shift);
        for block in [first, last] {
            if p.dirty >> (block >> shift) & 1 == 0
                && let Some(all) = p.buf.get_mut(block..block + (1 << shift))
            {
                all.fill(0);
            }
        }
        if let Some(to) = p.buf.get_mut(at..end) {
            to.copy_from_slice(data);
        }
        let before = p.dirty.count_ones();
        for block in at >> shift..=(end - 1) >> shift {
            p.dirty |= 1 << block;
        }
        self.blocks += u64::from(p.dirty.count_ones() - before);
    }
    /// Zeroes what a dirty block holds from byte `offset` to the block's end.
    pub fn zero_block_from(&mut self, shift: u32, offset: u64) {
        let (page, bit) = place(shift, offset >> shift);
        let Some(p) = self.by_number.get_mut(&page) else { return };
        if p.dirty >> bit & 1 == 0 {
            return;
        }
        let at = usize::try_from(offset % to_u64(PAGE)).unwrap_or(0);
        let end = (at + 1).next_multiple_of(1 << shift);
        if let Some(bytes) = p.buf.get_mut(at..end) {
            bytes.fill(0);
        }
    }
    /// Blocks of `range` are no longer dirty; their contents are forgotten.
    pub fn forget(&mut self, shift: u32, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (place(shift, range.start).0, place(shift, range.end - 1).0);
        let n = per_page(shift);
        let mut empty = Vec::new();
        for (page, p) in self.by_number.range_mut(first..=last) {
            let before = p.dirty.count_ones();
            for bit in 0..n {
                if range.contains(&(page * n + bit)) {
                    p.dirty &= !(1 << bit);
                }
            }
            self.blocks -= u64::from(before - p.dirty.count_ones());
            if p.dirty == 0 {
                empty.push(*page);
                self.bytes -= to_u64(p.buf.len());
            }
        }
        for page in empty {
            self.by_number.remove(&page);
        }
    }
    /// Everything is forgotten.
    pub fn clear(&mut self, spare: &SpareBuffers) {
        let pages = std::mem::take(&mut self.by_number);
        spare.give(pages.into_values().map(|p| p.buf));
        self.bytes = 0;
        self.blocks = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn keeps_what_was_put(
            shift in 12_u32..=16,
            ops in prop::collection::vec((0..40_u64, 1..12_u64, any::<u8>(), any::<bool>()), 1..40),
        ) {
            let bs = 1_u64 << shift;
            let (mut pages, spare) = (Pages::default(), SpareBuffers::default());
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            for (block, n, byte, put) in ops {
                if put {
                    pages.put(&spare, shift, block * bs, &vec![byte; usize::try_from(n * bs).unwrap()]);
                    model.extend((block..block + n).map(|b| (b, byte)));
                } else {
                    pages.forget(shift, block..block + n);
                    model.retain(|b, _| !(block..block + n).contains(b));
                }
                let dirty: Vec<u64> = pages.runs(shift, 0..60).into_iter().flatten().collect();
                prop_assert_eq!(pages.blocks(), dirty.len() as u64);
                prop_assert_eq!(&dirty, &model.keys().copied().collect::<Vec<_>>());
                let clean = pages.clean_runs(shift, 3..50).into_iter().flatten();
                prop_assert!(clean.eq((3..50).filter(|b| !model.contains_key(b))));
                for run in pages.runs(shift, 0..60) {
                    for (first, bytes) in pages.slices(shift, run) {
                        for (i, b) in bytes.chunks(1 << shift).enumerate() {
                            prop_assert!(b.iter().all(|x| *x == model[&(first + i as u64)]));
                        }
                    }
                }
            }
            // Buffers that come back are not clean: what is put in part is zero around it.
            pages.clear(&spare);
            pages.put(&spare, shift, 60_000, b"x");
            let block = 60_000 >> shift;
            let slices = pages.slices(shift, block..block + 1);
            let got: Vec<u8> = slices.flat_map(|s| s.1.to_vec()).collect();
            prop_assert_eq!(got.iter().filter(|b| **b != 0).count(), 1);
            pages.forget(shift, 0..100);
            prop_assert!(pages.is_empty() && pages.bytes() == 0);
        }
    }

    #[test]
    fn small_files_take_little_memory() {
        let mut pages = Pages::default();
        pages.put(&SpareBuffers::default(), 12, 0, &[1; 5_000]);
        assert_eq!(pages.bytes(), 8_192);
        pages.zero_block_from(12, 100);
        let all: Vec<u8> = pages.slices(12, 0..2).flat_map(|s| s.1.to_vec()).collect();
        assert!(all[..100].iter().all(|b| *b == 1) && all[100..4_096].iter().all(|b| *b == 0));
        assert!(all[4_096..5_000].iter().all(|b| *b == 1));
    }
}
