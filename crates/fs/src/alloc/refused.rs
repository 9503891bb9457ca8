//! Blocks that a file has and whose last write a device has refused: it may land yet, long after, and would change
//! whatever is in these blocks then. So once they are freed they are not given out again while this node lives. Pure.

use std::collections::BTreeMap;

/// Blocks that were refused: disjoint ranges, end by start.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<u64, u64>);

impl Refused {
    /// Writing `len` blocks from `start` has failed.
    pub fn add(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start.saturating_add(len));
        let touched = self.0.range(..=end).rev().take_while(|(_, to)| **to >= start);
        let touched: Vec<u64> = touched.map(|(from, _)| *from).collect();
        for from in touched {
            let to = self.0.remove(&from).unwrap_or(end);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }
    /// Whether one of `len` blocks from `start` was refused.
    pub fn meets(&self, start: u64, len: u64) -> bool {
        let before = self.0.range(..start.saturating_add(len)).next_back();
        before.is_some_and(|(_, end)| *end > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut refused = Refused::default();
        for (start, len) in [(10, 2), (20, 5), (12, 3), (30, 1), (18, 4)] {
            refused.add(start, len);
        }
        assert_eq!(refused.0.iter().collect::<Vec<_>>(), [(&10, &15), (&18, &25), (&30, &31)]);
        let meets: Vec<u64> = (8..33).filter(|at| refused.meets(*at, 1)).collect();
        let all = (10..15).chain(18..25).chain(30..31);
        assert_eq!(meets, all.collect::<Vec<_>>());
        assert!(refused.meets(0, 11) && refused.meets(14, 100) && refused.meets(0, u64::MAX));
        assert!(!refused.meets(15, 3) && !refused.meets(31, u64::MAX));
        refused.add(0, 100);
        assert_eq!(refused.0.iter().collect::<Vec<_>>(), [(&0, &100)]);
    }
}
