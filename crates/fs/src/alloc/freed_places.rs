//! Places that were freed here, for discards.

use std::collections::BTreeMap;

/// Most places that are remembered. A trim finds the others.
const PLACES_MAX: usize = 65_536;

/// Places that were freed: their ends by their first blocks. None touches another.
#[derive(Debug, Default)]
pub(super) struct Remembered(pub(super) BTreeMap<u64, u64>);

impl Remembered {
    /// Blocks from `start` up to `end` were freed.
    pub fn add(&mut self, mut start: u64, mut end: u64) {
        while let Some((&s, &e)) = self.0.range(..=end).next_back()
            && e >= start
        {
            (start, end) = (start.min(s), end.max(e));
            self.0.remove(&s);
        }
        if self.0.len() < PLACES_MAX {
            self.0.insert(start, end);
        }
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_joined_and_bounded() {
        let mut freed = Remembered::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (20, 30), (55, 70), (0, 5), (52, 53)] {
            freed.add(start, end);
        }
        assert_eq!(freed.iter().collect::<Vec<_>>(), [(0, 5), (10, 40), (50, 70)]);
        freed.add(0, 100);
        assert_eq!(freed.iter().collect::<Vec<_>>(), [(0, 100)]);
        for n in 0..2 * PLACES_MAX as u64 {
            freed.add(1000 + 2 * n, 1001 + 2 * n);
        }
        assert_eq!(freed.0.len(), PLACES_MAX);
        freed.add(5, 1_000_000);
        assert_eq!(freed.iter().collect::<Vec<_>>(), [(0, 1_000_000)]);
    }
}
