//! Samples, confidence intervals, and how numbers are printed.

pub(crate) mod interval;
mod samples;

pub(crate) use interval::Interval;
pub(crate) use samples::Samples;

/// Three digits that matter.
pub(crate) fn rate(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Ratios, as tables have them.
pub(crate) fn three_digits(value: f64) -> String {
    format!("{value:.3}")
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts of bytes and requests, far below 2^52")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}
