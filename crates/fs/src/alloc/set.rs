//! A set of small numbers as a bitmap, with fast search for runs. Pure.

/// Members are below the length given at creation.
#[derive(Debug, Clone, Default)]
pub(super) struct Set {
    words: Vec<u64>,
    len: u64,
    count: u64,
}

fn place(i: u64) -> (usize, u32) {
    (usize::try_from(i / 64).unwrap_or(usize::MAX), u32::try_from(i % 64).unwrap_or(0))
}

impl Set {
    /// Empty; members will be below `len`.
    pub fn new(len: u64) -> Self {
        let words = usize::try_from(len.div_ceil(64)).unwrap_or(0);
        Self { words: vec![0; words], len, count: 0 }
    }
    /// Members.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// Whether `i` is a member.
    pub fn has(&self, i: u64) -> bool {
        let (at, bit) = place(i);
        self.words.get(at).is_some_and(|w| w >> bit & 1 == 1)
    }
    /// Adds `n` numbers from `start`, none of which may be a member.
    ///
    /// # Panics
    /// If one is, or lies outside: space would be handed out twice.
    pub fn add(&mut self, start: u64, n: u64) {
        self.each_word(start, n, |word, mask| {
            assert_eq!(*word & mask, 0, "space returned twice");
            *word |= mask;
        });
        self.count += n;
    }
    /// Removes `n` numbers from `start`, all of which must be members.
    ///
    /// # Panics
    /// If one is not: space would be handed out twice.
    pub fn remove(&mut self, start: u64, n: u64) {
        self.each_word(start, n, |word, mask| {
            assert_eq!(*word & mask, mask, "space taken twice");
            *word &= !mask;
        });
        self.count -= n;
    }
    fn each_word(&mut self, start: u64, n: u64, mut f: impl FnMut(&mut u64, u64)) {
        assert!(start + n <= self.len, "run {start}+{n} outside a set of {}", self.len);
        let end = start + n;
        let mut i = start;
        while i < end {
            let (at, bit) = place(i);
            let take = (64 - u64::from(bit)).min(end - i);
            let mask = if take == 64 { u64::MAX } else { ((1 << take) - 1) << bit };
            if let Some(word) = self.words.get_mut(at) {
                f(word, mask);
            }
            i += take;
        }
    }
    /// First `i` in `from..` for which membership is `want`; the length if there is none.
    fn find(&self, from: u64, want: bool) -> u64 {
        let flip = if want { 0 } else { u64::MAX };
        let (mut at, bit) = place(from);
        let mut mask = u64::MAX << bit;
        while let Some(word) = self.words.get(at) {
            let w = (word ^ flip) & mask;
            if w != 0 {
                return (at as u64 * 64 + u64::from(w.trailing_zeros())).min(self.len);
            }
            mask = u64::MAX;
            at += 1;
        }
        self.len
    }
    /// The first run at or after `from`, as (start, length).
    pub fn run_from(&self, from: u64) -> Option<(u64, u64)> {
        let start = self.find(from, true);
        (start < self.len).then(|| (start, self.find(start, false) - start))
    }
    /// All runs, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let (start, n) = self.run_from(at)?;
            at = start + n;
            Some((start, n))
        })
    }
    /// The first run at or after `from` of at least `n`.
    pub fn run_of(&self, from: u64, n: u64) -> Option<(u64, u64)> {
        let mut at = from;
        loop {
            let (start, len) = self.run_from(at)?;
            if len >= n {
                return Some((start, len));
            }
            at = start + len;
        }
    }
    /// The longest run; the first of several.
    pub fn longest(&self) -> Option<(u64, u64)> {
        self.runs().fold(None, |best, run| match best {
            Some((_, n)) if n >= run.1 => best,
            _ => Some(run),
        })
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_an_array(ops in prop::collection::vec((0_u64..300, 1_u64..130), 1..60)) {
            let mut set = Set::new(300);
            let mut model = [false; 300];
            for (start, n) in ops {
                let n = n.min(300 - start);
                let range = start as usize..(start + n) as usize;
                if model[range.clone()].iter().all(|m| !m) {
                    set.add(start, n);
                    model[range].fill(true);
                } else if model[range.clone()].iter().all(|m| *m) {
                    set.remove(start, n);
                    model[range].fill(false);
                }
                prop_assert_eq!(set.count(), model.iter().filter(|m| **m).count() as u64);
                let mut seen = [false; 300];
                for (s, n) in set.runs() {
                    seen[s as usize..(s + n) as usize].fill(true);
                }
                prop_assert_eq!(seen, model);
                for (i, member) in (0..).zip(model) {
                    prop_assert_eq!(set.has(i), member);
                }
                let longest = set.runs().map(|r| r.1).max();
                prop_assert_eq!(set.longest().map(|r| r.1), longest);
            }
        }
    }

    #[test]
    #[should_panic(expected = "taken twice")]
    fn removing_what_is_not_there_panics() {
        let mut set = Set::new(100);
        set.add(3, 5);
        set.remove(7, 2);
    }
    #[test]
    #[should_panic(expected = "returned twice")]
    fn adding_what_is_there_panics() {
        let mut set = Set::new(100);
        set.add(3, 5);
        set.add(7, 2);
    }
    #[test]
    #[should_panic(expected = "outside a set")]
    fn nothing_is_added_outside() {
        Set::new(100).add(99, 2);
    }
    #[test]
    fn the_first_run_that_is_long_enough_is_found() {
        let mut set = Set::new(200);
        for (start, n) in [(3, 5), (60, 10), (100, 10), (190, 10)] {
            set.add(start, n);
        }
        assert_eq!(set.run_from(0), Some((3, 5)));
        assert_eq!(set.run_from(4), Some((4, 4)), "from the middle of one");
        assert_eq!(set.run_from(8), Some((60, 10)));
        assert_eq!(set.run_from(195), Some((195, 5)), "up to the end");
        assert_eq!(set.run_from(200), None);
        assert_eq!(set.run_of(0, 5), Some((3, 5)));
        assert_eq!(set.run_of(0, 6), Some((60, 10)));
        assert_eq!(set.run_of(61, 10), Some((100, 10)));
        assert_eq!(set.run_of(0, 11), None);
        assert_eq!(set.longest(), Some((60, 10)), "the first of several");
        assert_eq!(Set::new(200).longest(), None);
        assert!(!set.has(200) && !set.has(1000), "outside there are no members");
    }
}
