//! Where values lie along an axis, and which of them are written there.

/// Values that differ by so much are spread by their logarithms.
const WIDE: f64 = 50.0;

pub(super) struct Axis {
    low: f64,
    high: f64,
    pub log: bool,
}

impl Axis {
    /// Of quantities that are compared: from zero, or by logarithms where they differ much. `ratios` are never.
    pub fn of_values(values: &[f64], ratios: bool) -> Self {
        let positive = || values.iter().copied().filter(|v| v.is_finite() && *v > 0.0);
        let least = positive().fold(f64::INFINITY, f64::min);
        let most = positive().fold(0.0, f64::max);
        let log = !ratios && least.is_finite() && most / least >= WIDE;
        if log {
            // Whole powers of ten, so that every bar has a length.
            let power = |v: f64| 10_f64.powf(v);
            return Self { low: power(least.log10().floor()), high: most * 1.3, log };
        }
        let low = values.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::min);
        let high = if most > 0.0 { most * 1.08 } else { 1.0 };
        Self { low, high: high.max(low + f64::MIN_POSITIVE), log }
    }
    /// Of places: spread evenly where they are powers of two and the like.
    pub fn of_places(places: &[f64]) -> Self {
        let (low, high) = match (places.first(), places.last()) {
            (Some(low), Some(high)) => (*low, *high),
            _ => (0.0, 1.0),
        };
        let log = low > 0.0 && high / low >= 16.0;
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, log }
    }
    /// 0 to 1.
    pub fn part(&self, v: f64) -> f64 {
        let part = if self.log {
            (v.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (v - self.low) / (self.high - self.low)
        };
        part.clamp(0.0, 1.0)
    }
    /// Values that are written.
    pub fn ticks(&self) -> Vec<f64> {
        const MOST: usize = 20;
        if self.log {
            let first = 10_f64.powf(self.low.log10().ceil());
            let powers = std::iter::successors(Some(first), |t| Some(t * 10.0));
            return powers.take_while(|t| *t <= self.high * 1.0001).take(MOST).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * unit).find(|s| *s >= rough);
        let step = step.unwrap_or(unit * 10.0).max(f64::MIN_POSITIVE);
        let first = (self.low / step).ceil() * step;
        let all = std::iter::successors(Some(first), |t| Some(t + step));
        all.take_while(|t| *t <= self.high).take(MOST).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_much_is_spread_by_logarithms_and_ratios_never_are() {
        let wide = [2.0, 30.0, 5000.0];
        assert!(Axis::of_values(&wide, false).log && !Axis::of_values(&wide, true).log);
        let axis = Axis::of_values(&[90.0, 100.0], false);
        assert!(!axis.log && axis.part(0.0) == 0.0 && axis.part(100.0) < 1.0);
        assert_eq!(Axis::of_values(&wide, false).ticks(), [1.0, 10.0, 100.0, 1000.0]);
        for none in [Axis::of_values(&[], false), Axis::of_values(&[0.0], false)] {
            assert!(none.part(0.0).is_finite() && none.ticks().len() < 20);
        }
    }
}
