//! Shares of a row for members of unequal speed.

/// Largest weight.
pub const MAX: u16 = 16;
/// Speeds that differ by less than this part of the fastest are taken for equal.
const SPREAD: f64 = 0.15;
/// Bandwidth that smaller weights may cost.
const CLOSE: f64 = 0.99;

/// How the weights of a stripe are found, where the layout does not say them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Weights {
    /// All equal.
    #[default]
    None,
    /// From the members' bandwidth, when it is known of all and differs.
    Speed,
    /// One for each device, in the order of the list.
    List(Vec<u16>),
}

/// The weights with which a row of the given speeds moves the most bytes per second: a row takes
/// as long as its slowest column, `max(weight / speed)`. Small numbers are preferred. All 1 where
/// a speed is not known or all are nearly equal.
pub fn by_speed(speeds: &[u64]) -> Vec<u16> {
    let equal = vec![1; speeds.len()];
    let most = speeds.iter().copied().max().unwrap_or(0);
    let least = speeds.iter().copied().min().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "speeds far below 2^53")]
    let speeds: Vec<f64> = speeds.iter().map(|s| *s as f64).collect();
    #[expect(clippy::cast_precision_loss, reason = "speeds far below 2^53")]
    if least == 0 || (most - least) as f64 <= SPREAD * most as f64 {
        return equal;
    }
    // In the best row some member is busy throughout with a whole number of units.
    let mut best = (bandwidth(&equal, &speeds), equal);
    let mut tried: Vec<f64> =
        speeds.iter().flat_map(|v| (1..=MAX).map(move |w| f64::from(w) / v)).collect();
    tried.sort_by(f64::total_cmp);
    tried.dedup();
    for time in tried {
        let fit = |v: &f64| {
            let units = (v * time * (1.0 + 1e-9)).floor().clamp(1.0, f64::from(MAX));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 1 and MAX"
            )]
            let units = units as u16;
            units
        };
        let weights: Vec<u16> = speeds.iter().map(fit).collect();
        let speed = bandwidth(&weights, &speeds);
        // Later candidates have longer rows: they must be worth it.
        if speed * CLOSE > best.0 {
            best = (speed, weights);
        }
    }
    best.1
}

/// Units per second of a row.
fn bandwidth(weights: &[u16], speeds: &[f64]) -> f64 {
    let time = weights.iter().zip(speeds).map(|(w, v)| f64::from(*w) / v).fold(0.0, f64::max);
    weights.iter().map(|w| f64::from(*w)).sum::<f64>() / time
}
