//! The time of one test over the request size: lines through measured points.

use std::collections::BTreeMap;

use super::sample::Sample;

/// A point further from the line than this part of its value, and further than its own uncertainty explains, says that
/// there is no line.
const BEND: f64 = 0.02;
/// In standard errors.
const BEND_ERRORS: f64 = 2.5;

/// A line through weighted points.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Weighted mean of sizes and times.
    x: f64,
    y: f64,
    slope: f64,
    /// Variances of `y` and of the slope.
    y_variance: f64,
    slope_variance: f64,
}

impl Line {
    /// Through (size, time, standard error); at least two different sizes.
    fn fit(points: &[(f64, f64, f64)]) -> Line {
        let weight = |error: f64, value: f64| 1.0 / (error * error + (value * 0.002).powi(2));
        let total: f64 = points.iter().map(|p| weight(p.2, p.1)).sum();
        let mean =
            |of: fn(&(f64, f64, f64)) -> f64| points.iter().map(|p| weight(p.2, p.1) * of(p)).sum::<f64>() / total;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let sxx: f64 = points.iter().map(|p| weight(p.2, p.1) * (p.0 - x).powi(2)).sum();
        let sxy: f64 = points.iter().map(|p| weight(p.2, p.1) * (p.0 - x) * (p.1 - y)).sum();
        Line { x, y, slope: sxy / sxx, y_variance: 1.0 / total, slope_variance: 1.0 / sxx }
    }

    fn at(&self, size: f64) -> Estimate {
        let variance = self.y_variance + self.slope_variance * (size - self.x).powi(2);
        Estimate { ns: self.y + self.slope * (size - self.x), error_ns: variance.sqrt() }
    }
}

/// A time and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) ns: f64,
    pub(super) error_ns: f64,
}

impl Estimate {
    /// Half the width of the 95 % confidence interval over the value.
    pub(super) fn relative(&self) -> f64 {
        2.0 * self.error_ns / self.ns.max(1.0)
    }

    /// What two estimates of the same say together.
    fn with(self, other: Estimate) -> Estimate {
        let (a, b) = (self.error_ns.max(1e-9).powi(-2), other.error_ns.max(1e-9).powi(-2));
        Estimate { ns: (a * self.ns + b * other.ns) / (a + b), error_ns: (1.0 / (a + b)).sqrt() }
    }
}

/// An interval of sizes, both ends in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) low: u64,
    pub(super) high: u64,
}

/// What is known about one test.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    pub(super) samples: BTreeMap<u64, Sample>,
    /// Where lines may be drawn; none if every size is for itself.
    pub(super) segments: Vec<Segment>,
}

impl Curve {
    fn points(&self, segment: Segment) -> Vec<(f64, f64, f64)> {
        let inside = self.samples.range(segment.low..=segment.high);
        inside.filter(|s| s.1.requests > 0).map(|(size, s)| (*size as f64, s.mean(), s.error())).collect()
    }

    /// The line of a segment, if the points are on one.
    fn line(&self, segment: Segment) -> Option<Line> {
        let points = self.points(segment);
        if points.len() < 2 {
            return None;
        }
        let line = Line::fit(&points);
        let fits = |p: &(f64, f64, f64)| (line.at(p.0).ns - p.1).abs() <= (BEND * p.1).max(BEND_ERRORS * p.2);
        let positive = [segment.low, segment.high].iter().all(|end| line.at(*end as f64).ns > 0.0);
        (positive && points.iter().all(fits)).then_some(line)
    }

    /// The size in a segment that is furthest off its line, if there is no line and one inside it is known.
    pub(super) fn bend(&self, segment: Segment) -> Option<u64> {
        if self.line(segment).is_some() {
            return None;
        }
        let points = self.points(segment);
        let line = Line::fit(&points);
        let inside = points.iter().filter(|p| p.0 > segment.low as f64 && p.0 < segment.high as f64);
        let off = |p: &&(f64, f64, f64)| (line.at(p.0).ns - p.1).abs() / p.1;
        inside.max_by(|a, b| off(a).total_cmp(&off(b))).map(|p| p.0 as u64)
    }

    /// The measured sizes next to this one (itself, if it was measured).
    fn neighbours(&self, size: u64) -> Option<(u64, u64)> {
        let known = |(size, sample): (&u64, &Sample)| (sample.requests > 0).then_some(*size);
        let below = self.samples.range(..=size).rev().find_map(known);
        let above = self.samples.range(size..).find_map(known);
        Some((below.or(above)?, above.or(below)?))
    }

    /// The time of a request of this size.
    pub(super) fn at(&self, size: u64) -> Option<Estimate> {
        let lines = self.segments.iter().filter(|s| (s.low..=s.high).contains(&size));
        let estimates = lines.filter_map(|segment| Some(self.line(*segment)?.at(size as f64)));
        // A line that may as well be at no time at all says less than what was measured.
        if let Some(estimate) = estimates.reduce(Estimate::with).filter(|e| e.ns > e.error_ns) {
            return Some(estimate);
        }
        let measured = |size: u64| {
            let sample = &self.samples[&size];
            Estimate { ns: sample.mean(), error_ns: sample.error() }
        };
        let (low, high) = self.neighbours(size)?;
        let (a, b) = (measured(low), measured(high));
        if low == high {
            return Some(a);
        }
        let part = (size - low) as f64 / (high - low) as f64;
        let between = |a: f64, b: f64| a + (b - a) * part;
        Some(Estimate { ns: between(a.ns, b.ns), error_ns: between(a.error_ns, b.error_ns) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn curve(time: impl Fn(u64) -> u64, sizes: &[u64], ends: (u64, u64)) -> Curve {
        let mut curve = Curve { segments: vec![Segment { low: ends.0, high: ends.1 }], ..Curve::default() };
        for size in sizes {
            let latencies_ns: Vec<u64> = (0..40).map(|i| time(*size) * (95 + i % 11) / 100).collect();
            curve.samples.entry(*size).or_default().add(&Outcome { elapsed_ns: 1, latencies_ns }, 0);
        }
        curve
    }

    #[test]
    fn a_line_is_found_and_narrows_the_interval() {
        let line = |size: u64| 1_000_000 + size;
        let curve = curve(line, &[8192, 16_384, 32_768, 65_536], (8192, 65_536));
        let estimate = curve.at(24_576).unwrap();
        assert!((estimate.ns / line(24_576) as f64 - 1.0).abs() < 0.01, "{estimate:?}");
        assert!(estimate.error_ns < curve.samples[&8192].error());
        assert_eq!(curve.bend(curve.segments[0]), None);
    }

    #[test]
    fn a_bend_is_found_where_it_is() {
        let bent = |size: u64| 1_000_000 + 40 * size.saturating_sub(32_768);
        let curve = curve(bent, &[8192, 16_384, 32_768, 65_536], (8192, 65_536));
        assert_eq!(curve.bend(curve.segments[0]), Some(32_768));
        let estimate = curve.at(49_152).unwrap();
        assert!((estimate.ns / bent(49_152) as f64 - 1.0).abs() < 0.01, "as measured: {estimate:?}");
    }
}
