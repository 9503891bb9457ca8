//! Quantities for people: each by the unit that fits it.

/// A unit that is taken from so much on, and its name.
type Step = (f64, &'static str);

const BANDWIDTHS: [Step; 3] = [(1e3, " GB/s"), (1.0, " MB/s"), (1e-3, " kB/s")];
const TIMES: [Step; 3] = [(1e6, " s"), (1e3, " ms"), (1.0, " \u{b5}s")];
const SECONDS: [Step; 3] = [(1.0, " s"), (1e-3, " ms"), (1e-6, " \u{b5}s")];
const NUMBERS: [Step; 4] = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")];

/// A value with its unit, such as `1.25 GB/s` and `340 µs`; of other quantities the number alone.
pub(super) fn human(value: f64, unit: &str) -> String {
    let steps: &[Step] = match unit {
        "MB/s" => &BANDWIDTHS,
        "us" => &TIMES,
        "s" | "seconds" => &SECONDS,
        _ => &NUMBERS,
    };
    // Of what is smaller than all steps the plain unit is taken.
    let plain =
        steps.iter().find(|step| (step.0 - 1.0).abs() < f64::EPSILON).copied().unwrap_or((1.0, ""));
    let fits = |step: &&Step| value.abs() >= step.0;
    let (factor, name) = steps.iter().find(fits).copied().unwrap_or(plain);
    format!("{}{name}", short(value / factor))
}

/// Three digits, without zeros at the end.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// What stands beside an axis of values in this unit.
pub(super) fn quantity(unit: &str) -> &str {
    match unit {
        "MB/s" => "throughput",
        "us" => "latency",
        "IOPS" => "requests per second",
        "per s" => "operations per second",
        other => other,
    }
}

/// What stands below an axis of this parameter.
pub(super) fn parameter(key: &str) -> &str {
    match key {
        "request" => "request size",
        "transfer" => "transfer size",
        "file" => "file size",
        "unit" => "stripe unit",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_by_the_unit_that_fits() {
        for (value, unit, text) in [
            (1250.0, "MB/s", "1.25 GB/s"),
            (340.0, "MB/s", "340 MB/s"),
            (0.5, "MB/s", "500 kB/s"),
            (0.0, "MB/s", "0 MB/s"),
            (90.0, "us", "90 \u{b5}s"),
            (12_500.0, "us", "12.5 ms"),
            (2e6, "us", "2 s"),
            (45_000.0, "IOPS", "45 k"),
            (0.95, "of it", "0.95"),
            (0.0042, "s", "4.2 ms"),
        ] {
            assert_eq!(human(value, unit), text);
        }
    }
}
