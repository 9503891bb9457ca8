//! Numbers that depend on the seed alone (SplitMix64).

use std::cell::RefCell;

use braid_pool::simulation::SourceScope;

/// A sequence.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`; zero for `n` zero.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.word() % n }
    }
    /// True in `n` of a thousand cases.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
    /// A number from `low` to `high`.
    pub fn small(&mut self, low: u16, high: u16) -> u16 {
        low + u16::try_from(self.below(u64::from(high - low) + 1)).unwrap_or(0)
    }
    /// One of several.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        from.get(at).expect("something to pick from")
    }
    /// A duration below `most`, never zero.
    pub fn time(&mut self, most: std::time::Duration) -> std::time::Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        std::time::Duration::from_micros(1 + self.below(micros))
    }
}

/// What is random in the labels of pools follows from this while the result is held by the same thread.
pub(crate) fn draw_identities(seed: u64) -> SourceScope {
    let random = RefCell::new(Random::new(seed ^ 0x6964_656e_7469_7479));
    SourceScope::from(Box::new(move || {
        let mut random = random.borrow_mut();
        u128::from(random.word()) << 64 | u128::from(random.word())
    }))
}
