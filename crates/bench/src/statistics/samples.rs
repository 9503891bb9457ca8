//! Samples of one quantity: median, mean, spread.

#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Samples(pub Vec<f64>);

impl Samples {
    /// The middle value (mean of the two middle ones for an even count); 0 without samples.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }
    /// The middle value, if there are samples.
    pub fn known_median(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.median())
    }
    /// Smallest and largest.
    pub fn spread(&self) -> (f64, f64) {
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.0.is_empty() { (0.0, 0.0) } else { (min, max) }
    }
    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        let n = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if n == 0 { 0.0 } else { self.0.iter().sum::<f64>() / f64::from(n) }
    }
    /// The standard deviation of the sample; 0 for fewer than two.
    pub fn deviation(&self) -> f64 {
        let n = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if n < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|s| (s - mean) * (s - mean)).sum();
        (squares / f64::from(n - 1)).sqrt()
    }
    /// Sample by sample quotient with `base` (same repeat, so the machine's drift cancels).
    pub fn ratio_to(&self, base: &Self) -> Self {
        Self(self.0.iter().zip(&base.0).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn medians() {
        assert!((Samples(vec![3.0, 1.0, 2.0]).median() - 2.0).abs() < 1e-9);
        assert!((Samples(vec![4.0, 1.0, 2.0, 3.0]).median() - 2.5).abs() < 1e-9);
        assert!(Samples::default().median().abs() < 1e-9);
        let r = Samples(vec![2.0, 9.0]).ratio_to(&Samples(vec![4.0, 3.0]));
        assert_eq!(r.0, vec![0.5, 3.0]);
        let s = Samples(vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((s.mean() - 5.0).abs() < 1e-9);
        assert!((s.deviation() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-9);
    }
}
