//! Values on their way to a text.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sluice_core::Histogram;

use crate::names::{Kind, METRICS, name};

/// Upper bounds of the classes of durations, in seconds.
const BOUNDS_S: [f64; 11] = [1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0];

#[derive(Debug)]
enum Value {
    Number(f64),
    Durations { sum_s: f64, count: u64, classes: Vec<(f64, u64)> },
}

/// What there is to tell at a moment.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<&'static str, Vec<(Labels, Value)>>);

/// Names and values.
type Labels = Vec<(&'static str, String)>;

impl Samples {
    fn add(&mut self, metric: &str, labels: &[&str], value: Value) {
        let metric = name(metric);
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let labels = metric.labels.iter().zip(labels).map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.0.entry(metric.name).or_default().push((labels, value));
    }

    /// Adds a number. `labels`: values of the metric's labels, in their order.
    pub fn set(&mut self, metric: &str, labels: &[&str], value: f64) {
        self.add(metric, labels, Value::Number(value));
    }

    /// Adds durations.
    pub fn durations(&mut self, metric: &str, histogram: &Histogram) {
        let mut below = 0;
        let mut class = |bound_s: f64| {
            let up_to = histogram.at_most((bound_s * 1e9) as u64);
            (bound_s, up_to - std::mem::replace(&mut below, up_to))
        };
        let mut classes: Vec<(f64, u64)> = BOUNDS_S.iter().map(|bound| class(*bound)).collect();
        classes.push((f64::INFINITY, histogram.count() - below));
        let (sum_s, count) = (histogram.sum_ns() as f64 / 1e9, histogram.count());
        self.add(metric, &[], Value::Durations { sum_s, count, classes });
    }

    /// The text, as OpenMetrics 1.0 wants it.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in METRICS {
            let Some(samples) = self.0.get(metric.name) else { continue };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut encoder = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in samples {
                // Else there would be empty braces.
                match labels.as_slice() {
                    [] => write(&mut encoder, metric.kind, value)?,
                    _ => write(&mut encoder.encode_family(labels)?, metric.kind, value)?,
                }
            }
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Number(number), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(number, None),
        (Value::Number(number), _) => encoder.encode_gauge(number),
        (Value::Durations { sum_s, count, classes }, _) => {
            encoder.encode_histogram::<NoLabelSet>(*sum_s, *count, classes, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut samples = Samples::default();
        samples.set("sluice_requests", &["read"], 7.0);
        samples.set("sluice_requests", &["write"], 0.0);
        samples.set("sluice_queued", &[], 3.0);
        let mut histogram = Histogram::default();
        [2_000, 700_000, 9_000_000_000].into_iter().for_each(|ns| histogram.record(ns));
        samples.durations("sluice_wait_seconds", &histogram);
        let text = samples.text().unwrap();
        for line in [
            "# TYPE sluice_requests counter",
            "sluice_requests_total{op=\"read\"} 7.0",
            "sluice_queued 3.0",
            "sluice_wait_seconds_count 3",
            "sluice_wait_seconds_bucket{le=\"0.00001\"} 1",
            "sluice_wait_seconds_bucket{le=\"0.001\"} 2",
            "sluice_wait_seconds_bucket{le=\"5.0\"} 2",
            "sluice_wait_seconds_bucket{le=\"+Inf\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
