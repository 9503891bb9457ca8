//! Numbers from a seed, the same everywhere: what a faulty device does must be replayable.

/// A SplitMix64 generator.
///
/// # Source
/// Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// True `k` times in `n`.
    pub fn chance(&mut self, k: u64, n: u64) -> bool {
        self.below(n) < k
    }
}

/// What survives of writes that were under way at a power cut: `apply(n, sectors)` says for the
/// n-th, in order, which of its `count(n)` sectors landed; writes that are not reported are lost.
pub(crate) fn survivors(
    seed: u64,
    writes: usize,
    count: impl Fn(usize) -> usize,
    mut apply: impl FnMut(usize, std::ops::Range<usize>),
) {
    let mut random = Random::new(seed);
    // From "nothing survives" to "everything does", so that both ends are met often.
    let kept_of_4 = random.below(5);
    let torn_of_8 = random.below(3);
    for n in 0..writes {
        if !random.chance(kept_of_4, 4) {
            continue;
        }
        let sectors = count(n);
        if sectors == 0 {
            continue;
        }
        if random.chance(torn_of_8, 8) {
            // A torn write: some of its sectors, each by itself.
            for s in 0..sectors {
                if random.chance(1, 2) {
                    apply(n, s..s + 1);
                }
            }
        } else {
            apply(n, 0..sectors);
        }
    }
}
