//! Samples as text: OpenMetrics, or the older format that Prometheus' tools and others read.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::families::{Family, Kind, PREFIX, SECTIONS};
use super::samples::{Sample, Value};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Format {
    /// What HTTP calls it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All samples as text.
///
/// # Errors
/// Never: a string takes everything.
pub fn encode(samples: Vec<Sample>, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Gathered(samples)));
    let mut out = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut out, &registry)?,
        Format::Prometheus => prometheus_text::encode(&mut out, &registry)?,
    }
    Ok(out)
}

#[derive(Debug)]
struct Gathered(Vec<Sample>);

impl Collector for Gathered {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in SECTIONS.iter().flat_map(|(_, families)| *families) {
            let mut samples = self.0.iter().filter(|s| s.family == family).peekable();
            if samples.peek().is_none() {
                continue;
            }
            let unit = match family.unit {
                "bytes" => Some(Unit::Bytes),
                "seconds" => Some(Unit::Seconds),
                _ => None,
            };
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Info => MetricType::Info,
                Kind::Histogram => MetricType::Histogram,
            };
            let (name, help) = (family.name, format!("{}.", family.help));
            let mut metric = encoder.encode_descriptor(name, &help, unit.as_ref(), kind)?;
            samples.try_for_each(|sample| encode_one(family, sample, &mut metric))?;
        }
        Ok(())
    }
}

fn encode_one(family: &Family, sample: &Sample, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    let labels: Vec<(&str, &str)> =
        family.labels.iter().copied().zip(sample.labels.iter().map(String::as_str)).collect();
    if family.kind == Kind::Info {
        return metric.encode_info(&labels);
    }
    if labels.is_empty() {
        return encode_value(family, sample, metric);
    }
    encode_value(family, sample, &mut metric.encode_family(&labels)?)
}

fn encode_value(family: &Family, sample: &Sample, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    match &sample.value {
        Value::Whole(n) if family.kind == Kind::Counter => {
            metric.encode_counter(n, None::<&Exemplar<NoLabelSet, f64>>)
        }
        Value::Whole(n) => metric.encode_gauge(n),
        Value::Real(x) => metric.encode_gauge(x),
        Value::Histogram { sum, buckets } => {
            let count = buckets.iter().map(|(_, n)| n).sum();
            metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::{DIRTY, LOCK_POLLS, LOCK_WAIT, MEMBER_ERRORS, NODE};
    use super::*;

    #[test]
    fn samples_are_grouped_by_family_and_named_by_kind_and_unit() {
        let one = |family, labels: &[&str], value| {
            let labels = labels.iter().map(|&l| l.to_owned()).collect();
            Sample { family, labels, value }
        };
        let buckets = vec![(0.001, 2), (f64::INFINITY, 1)];
        let samples = || {
            vec![
                one(&MEMBER_ERRORS, &["1", "/dev/a \"b\"\n"], Value::Whole(3)),
                one(&LOCK_POLLS, &[], Value::Whole(7)),
                one(&MEMBER_ERRORS, &["0", "/dev/c"], Value::Whole(0)),
                one(&DIRTY, &[], Value::Whole(4096)),
                one(&LOCK_WAIT, &[], Value::Histogram { sum: 2.5, buckets: buckets.clone() }),
                one(&NODE, &["p", "u", "0", "h", "/m"], Value::Whole(1)),
            ]
        };
        let text = encode(samples(), Format::OpenMetrics).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("# HELP")).collect();
        let wanted = [
            "# TYPE braid_node info",
            "braid_node_info{pool=\"p\",uuid=\"u\",node=\"0\",host=\"h\",mount_point=\"/m\"} 1",
            "# TYPE braid_lock_wait_seconds histogram",
            "# UNIT braid_lock_wait_seconds seconds",
            "braid_lock_wait_seconds_sum 2.5",
            "braid_lock_wait_seconds_count 3",
            "braid_lock_wait_seconds_bucket{le=\"0.001\"} 2",
            "braid_lock_wait_seconds_bucket{le=\"+Inf\"} 3",
            "# TYPE braid_lock_polls counter",
            "braid_lock_polls_total 7",
            "# TYPE braid_dirty_data_bytes gauge",
            "# UNIT braid_dirty_data_bytes bytes",
            "braid_dirty_data_bytes 4096",
            "# TYPE braid_member_errors counter",
            "braid_member_errors_total{member=\"1\",device=\"/dev/a \\\"b\\\"\\n\"} 3",
            "braid_member_errors_total{member=\"0\",device=\"/dev/c\"} 0",
            "# EOF",
        ];
        assert_eq!(lines, wanted);
        let text = encode(samples(), Format::Prometheus).unwrap();
        assert!(text.contains("# TYPE braid_lock_polls_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }
}
