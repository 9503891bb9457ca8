//! The 95 % confidence interval of a median.

use super::Samples;

/// A median and the interval that holds the true one with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}..{:.3}", self.low, self.high)
    }
}

impl Interval {
    /// Of samples: the order statistics between which the median lies with at least 95 %
    /// probability, whatever the distribution. `None` for fewer than six samples, of which no two
    /// enclose it so surely.
    ///
    /// # Source
    /// The sign test; e.g. Le Boudec, Performance Evaluation of Computer and Communication Systems,
    /// theorem 2.1.
    pub fn of(samples: &Samples) -> Option<Self> {
        let mut sorted = samples.0.clone();
        sorted.retain(|s| s.is_finite());
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        // The probability that at most k - 1 of n lie below the median, twice, is the risk. By
        // logarithms: 2^-n itself is no number from n = 1075 on.
        let float = |n: usize| super::float(n as u64);
        let mut term = float(n) * 0.5_f64.ln();
        let (mut risk, mut k) = (0.0, 0_usize);
        while 2.0 * (risk + term.exp()) <= 0.05 && k < n / 2 {
            risk += term.exp();
            term += (float(n - k) / float(k + 1)).ln();
            k += 1;
        }
        if k == 0 {
            return None;
        }
        let (low, high) = (*sorted.get(k - 1)?, *sorted.get(n - k)?);
        Some(Self { median: samples.median(), low, high })
    }
    /// Its width as a part of the median.
    pub fn width(&self) -> f64 {
        if self.median.abs() < f64::MIN_POSITIVE {
            return if self.high > self.low { f64::INFINITY } else { 0.0 };
        }
        (self.high - self.low) / self.median.abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_of_the_sign_test() {
        let of = |n: u32| Interval::of(&Samples((1..=n).map(f64::from).collect()));
        assert_eq!(of(5), None);
        // Tables of the sign test: 6 -> (1, 6), 10 -> (2, 9), 20 -> (6, 15), 71 -> (27, 45).
        for (n, low, high) in [(6, 1, 6), (10, 2, 9), (20, 6, 15), (71, 27, 45)] {
            let i = of(n).unwrap();
            assert!((i.low - f64::from(low)).abs() < 1e-9, "{n}: {i:?}");
            assert!((i.high - f64::from(high)).abs() < 1e-9, "{n}: {i:?}");
        }
        // Many: as the normal distribution has it, (n -+ 1.96 sqrt n) / 2.
        for n in [1074, 1075, 2000, 100_000] {
            let i = of(n).unwrap();
            let half = 1.96 * f64::from(n).sqrt() / 2.0;
            assert!((i.low - (f64::from(n) / 2.0 - half)).abs() < 2.0, "{n}: {i:?}");
            assert!((i.high - (f64::from(n) / 2.0 + half)).abs() < 2.0, "{n}: {i:?}");
        }
        let same = Interval::of(&Samples(vec![2.0; 6])).unwrap();
        assert!(same.width().abs() < 1e-12);
        let zero = Interval::of(&Samples(vec![0.0, 0.0, 0.0, 0.0, 0.0, 1.0])).unwrap();
        assert!(zero.width().is_infinite());
    }
}
