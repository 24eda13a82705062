//! The profile of a device: what the scheduler, the predictions and the simulator need to know about it, in a file.
//!
//! For reads and writes apart it says, at some request sizes, how long a request takes if it continues the one before
//! (*sequential*) and if it is anywhere in the file (*random*), each with an uncertainty. From that follow
//!
//! * the **ratio** of sequential to random throughput, [`Profile::ratio`]: near 1 the order of requests is worth little;
//! * the **time to process** a request, [`Profile::ttp_ns`]: what several requests cost over one of their size together.
//!
//! [`Profile::saturation`] says how many requests in flight still help. Between the sizes times are interpolated linearly;
//! beyond the largest the last line goes on, below the smallest a request takes as long as the smallest.
//!
//! # The file
//! TOML, for people too. Unknown keys are refused, and so is what contradicts itself; errors name the line.
//!
//! ```
//! # let text = r#"
//! version = 1
//! method = "adaptive points, 95 % confidence intervals"
//! date = "2026-01-31T12:00:00Z"
//! host = "node7"
//! device = "/scratch"
//! emulated = false
//! file_bytes = 1_258_291_200
//!
//! [saturation]
//! read = 16
//! write = 4
//!
//! [[read]]
//! size_bytes = 8192
//! sequential_ns = 200_000
//! random_ns = 8_000_000
//! ## Half the width of the 95 % confidence interval over the value.
//! sequential_error = 0.01
//! random_error = 0.02
//! ratio = 40.0
//!
//! [[write]]
//! size_bytes = 8192
//! sequential_ns = 300_000
//! random_ns = 5_400_000
//! sequential_error = 0.01
//! random_error = 0.02
//! ratio = 18.0
//! # "#;
//! # let profile = sluice_device::profile::Profile::parse("example", text).unwrap();
//! # assert_eq!(profile.ttp_ns(sluice_device::Op::Read, 8192), 200_000);
//! # assert!((profile.ratio(sluice_device::Op::Write, 8192) - 18.0).abs() < 1e-9);
//! ```

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::Op;

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;
/// How far a file's `ratio` may be from that of its times, which count.
const RATIO_TOLERANCE: f64 = 0.01;
/// Sizes in a profile.
const POINTS_MAX: usize = 100_000;
/// Times in a profile: a week.
const TIME_MAX_NS: f64 = 6.048e14;

/// What a request of one size takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Size of the request.
    pub size_bytes: u64,
    /// Time, in nanoseconds, if it continues the one before.
    pub sequential_ns: f64,
    /// Time, in nanoseconds, at a random place.
    pub random_ns: f64,
    /// Half the width of the 95 % confidence interval of `sequential_ns`, over its value.
    pub sequential_error: f64,
    /// The same for `random_ns`.
    pub random_error: f64,
    /// `random_ns / sequential_ns`, for people.
    pub ratio: f64,
}

impl Point {
    /// Uncertainty of the ratio: half the width of its 95 % confidence interval over its value.
    #[must_use]
    pub fn ratio_error(&self) -> f64 {
        self.sequential_error.hypot(self.random_error)
    }
}

/// Mean, least and largest ratio over the sizes 8 to 56 KiB by 8 KiB and 64 KiB to 4 MiB by 32 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Arithmetic mean over the sizes.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// How many requests in flight still help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saturation {
    /// Of reads.
    pub read: u32,
    /// Of writes.
    pub write: u32,
}

/// A device's profile; see the [module documentation](self).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// How it was measured.
    pub method: String,
    /// When, as in RFC 3339.
    pub date: String,
    /// On which machine.
    pub host: String,
    /// Path or model.
    pub device: String,
    /// The device is emulated: these are not the times of anything that exists.
    pub emulated: bool,
    /// Size of the file that was read and written.
    pub file_bytes: u64,
    /// How many requests in flight still help.
    pub saturation: Saturation,
    /// Reads, by rising size; not empty.
    #[serde(rename = "read")]
    pub reads: Vec<Point>,
    /// Writes, by rising size; not empty.
    #[serde(rename = "write")]
    pub writes: Vec<Point>,
}

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// It is not TOML, or lacks a key, or has one that is not known.
    #[error("device profile {name}: {reason}")]
    Syntax {
        /// Name or path of the profile.
        name: String,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// It contradicts itself or the world.
    #[error("device profile {name}, line {line}: {reason}")]
    Invalid {
        /// Name or path of the profile.
        name: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Spanned<u32>,
    method: String,
    date: String,
    host: String,
    device: String,
    emulated: bool,
    file_bytes: u64,
    saturation: Spanned<Saturation>,
    #[serde(default)]
    read: Vec<Spanned<Point>>,
    #[serde(default)]
    write: Vec<Spanned<Point>>,
}

/// Request sizes over which the ratio is averaged.
pub fn standard_sizes() -> impl Iterator<Item = u64> {
    (8..64).step_by(8).chain((64..=4096).step_by(32)).map(|kib| kib << 10)
}

impl Profile {
    /// Loads the profile in the file at that path.
    ///
    /// # Errors
    /// If it cannot be read, or is no profile; says what and in which line.
    pub fn load(path: impl AsRef<Path>) -> Result<Profile, ProfileError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path);
        Profile::parse(&name, &text.map_err(|error| ProfileError::Io { path: name.clone(), error })?)
    }

    /// Reads a profile from its text; `name` is for errors.
    ///
    /// # Errors
    /// If it is no profile; says what and in which line.
    pub fn parse(name: &str, text: &str) -> Result<Profile, ProfileError> {
        let file: File = toml::from_str(text)
            .map_err(|error| ProfileError::Syntax { name: name.to_owned(), reason: error.to_string() })?;
        let invalid = |at: usize, reason: String| {
            let line = 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
            ProfileError::Invalid { name: name.to_owned(), line, reason }
        };
        let version = *file.version.get_ref();
        if version != VERSION {
            let reason = format!("version {version} is not known, only {VERSION}; profile the device again");
            return Err(invalid(file.version.span().start, reason));
        }
        let saturation = *file.saturation.get_ref();
        if saturation.read == 0 || saturation.write == 0 {
            return Err(invalid(file.saturation.span().start, "the saturation is at least 1".to_owned()));
        }
        for (op, points) in [("read", &file.read), ("write", &file.write)] {
            check(op, points).map_err(|(at, reason)| invalid(at.unwrap_or(text.len()), reason))?;
        }
        let points = |points: Vec<Spanned<Point>>| points.into_iter().map(Spanned::into_inner).collect();
        Ok(Profile {
            version,
            method: file.method,
            date: file.date,
            host: file.host,
            device: file.device,
            emulated: file.emulated,
            file_bytes: file.file_bytes,
            saturation,
            reads: points(file.read),
            writes: points(file.write),
        })
    }

    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::from(
            "# A device profile: what a request takes by size, sequential and random. Errors are half the width of the 95 %\n\
             # confidence interval over the value. Made and shown by `sluice profile`.\n\n",
        );
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let _ = write!(
            text,
            "version = {}\nmethod = {}\ndate = {}\nhost = {}\ndevice = {}\nemulated = {}\nfile_bytes = {}\n\n\
             # Requests in flight up to which more still help.\n[saturation]\nread = {}\nwrite = {}\n",
            self.version,
            quoted(&self.method),
            quoted(&self.date),
            quoted(&self.host),
            quoted(&self.device),
            self.emulated,
            self.file_bytes,
            self.saturation.read,
            self.saturation.write,
        );
        for (op, points) in [("read", &self.reads), ("write", &self.writes)] {
            for point in points {
                let _ = write!(
                    text,
                    "\n[[{op}]]\nsize_bytes = {}\nsequential_ns = {:?}\nrandom_ns = {:?}\nsequential_error = {:?}\n\
                     random_error = {:?}\nratio = {:?}\n",
                    point.size_bytes,
                    point.sequential_ns,
                    point.random_ns,
                    point.sequential_error,
                    point.random_error,
                    point.ratio,
                );
            }
        }
        text
    }

    /// The measured sizes of an operation; a flush is a write.
    #[must_use]
    pub fn points(&self, op: Op) -> &[Point] {
        match op {
            Op::Read => &self.reads,
            Op::Write | Op::Flush => &self.writes,
        }
    }

    /// Time in nanoseconds to process a request of so many bytes that continues the one before; never 0.
    #[must_use]
    pub fn ttp_ns(&self, op: Op, bytes: u64) -> u64 {
        (interpolate(self.points(op), bytes, |point| point.sequential_ns) as u64).max(1)
    }

    /// Time in nanoseconds to process a request of so many bytes at a random place; never 0.
    #[must_use]
    pub fn random_ns(&self, op: Op, bytes: u64) -> u64 {
        (interpolate(self.points(op), bytes, |point| point.random_ns) as u64).max(1)
    }

    /// Sequential over random throughput of requests of so many bytes.
    #[must_use]
    pub fn ratio(&self, op: Op, bytes: u64) -> f64 {
        let points = self.points(op);
        interpolate(points, bytes, |point| point.random_ns) / interpolate(points, bytes, |point| point.sequential_ns)
    }

    /// The number of requests in flight up to which more still help.
    #[must_use]
    pub fn saturation(&self, op: Op) -> u32 {
        match op {
            Op::Read => self.saturation.read,
            Op::Write | Op::Flush => self.saturation.write,
        }
    }

    /// The ratios over the [`standard_sizes`].
    #[must_use]
    pub fn ratios(&self, op: Op) -> Ratios {
        let (mut sum, mut count, mut min, mut max) = (0.0, 0.0, f64::INFINITY, 0.0_f64);
        for ratio in standard_sizes().map(|size| self.ratio(op, size)) {
            (sum, count) = (sum + ratio, count + 1.0);
            (min, max) = (min.min(ratio), max.max(ratio));
        }
        Ratios { mean: sum / count, min, max }
    }
}

/// Where (if not at the end) and why these are not the points of an operation.
fn check(op: &str, points: &[Spanned<Point>]) -> Result<(), (Option<usize>, String)> {
    if points.is_empty() {
        return Err((None, format!("there is no [[{op}]]: a profile needs at least one size of each operation")));
    }
    if points.len() > POINTS_MAX {
        return Err((Some(points[POINTS_MAX].span().start), format!("more than {POINTS_MAX} sizes")));
    }
    let mut last = 0;
    for spanned in points {
        let point = spanned.get_ref();
        let fail = |reason: String| Err((Some(spanned.span().start), reason));
        if point.size_bytes <= last || point.size_bytes > 1 << 40 {
            return fail(format!("size_bytes {} must be above {last} (sizes rise) and at most 2^40", point.size_bytes));
        }
        last = point.size_bytes;
        point.check().or_else(fail)?;
    }
    Ok(())
}

impl Point {
    /// Why these cannot be times of a device, if they cannot.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, value) in [("sequential_ns", self.sequential_ns), ("random_ns", self.random_ns)] {
            if !(1.0..=TIME_MAX_NS).contains(&value) {
                return Err(format!("{name} is {value}, must be from 1 to {TIME_MAX_NS}"));
            }
        }
        for (name, value) in [("sequential_error", self.sequential_error), ("random_error", self.random_error)] {
            if !(0.0..=1e6).contains(&value) {
                return Err(format!("{name} is {value}, must be from 0 to 1000000"));
            }
        }
        let ratio = self.random_ns / self.sequential_ns;
        if self.ratio.is_nan() || (self.ratio / ratio - 1.0).abs() > RATIO_TOLERANCE {
            return Err(format!("ratio is {}, but random_ns / sequential_ns is {ratio:.3}", self.ratio));
        }
        Ok(())
    }
}

/// The value at a size between measured ones.
fn interpolate(points: &[Point], bytes: u64, value: impl Fn(&Point) -> f64) -> f64 {
    let above = points.partition_point(|point| point.size_bytes < bytes);
    let (low, high) = match (above, points.len()) {
        (0, _) => return value(&points[0]),
        // From 0 bytes in no time, if there is but one size.
        (_, 1) => return value(&points[0]) * bytes as f64 / points[0].size_bytes as f64,
        (above, len) => (&points[above.min(len - 1) - 1], &points[above.min(len - 1)]),
    };
    let slope = (value(high) - value(low)) / (high.size_bytes - low.size_bytes) as f64;
    if above == points.len() {
        // Longer requests do not take less time, whatever two uncertain points say.
        return value(high) + slope.max(0.0) * (bytes - high.size_bytes) as f64;
    }
    value(low) + slope * (bytes - low.size_bytes) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(size_bytes: u64, sequential_ns: f64, random_ns: f64) -> Point {
        let ratio = random_ns / sequential_ns;
        Point { size_bytes, sequential_ns, random_ns, sequential_error: 0.01, random_error: 0.02, ratio }
    }

    fn profile() -> Profile {
        Profile {
            version: VERSION,
            method: "by \"hand\"".into(),
            date: "2026-01-31T12:00:00Z".into(),
            host: "node7".into(),
            device: "emulated hdd-7200".into(),
            emulated: true,
            file_bytes: 1 << 30,
            saturation: Saturation { read: 16, write: 4 },
            reads: vec![point(8192, 200e3, 8e6), point(65_536, 500e3, 8.3e6), point(1 << 20, 8e6, 16e6)],
            writes: vec![point(8192, 300e3, 4e6)],
        }
    }

    #[test]
    fn sizes_between_and_beyond_are_interpolated() {
        let profile = profile();
        assert_eq!(profile.ttp_ns(Op::Read, 8192), 200_000);
        assert_eq!(profile.ttp_ns(Op::Read, (8192 + 65_536) / 2), 350_000);
        assert_eq!(profile.ttp_ns(Op::Read, 1), 200_000);
        let slope = 7.5e6 / f64::from((1 << 20) - 65_536);
        assert_eq!(profile.ttp_ns(Op::Read, 2 << 20), (8e6 + slope * f64::from(1 << 20)) as u64);
        assert_eq!(profile.ttp_ns(Op::Write, 16_384), 600_000);
        assert!((profile.ratio(Op::Read, 65_536) - 16.6).abs() < 1e-9);
        assert_eq!((profile.saturation(Op::Read), profile.saturation(Op::Write)), (16, 4));
        let ratios = profile.ratios(Op::Read);
        assert!(ratios.max == 40.0 && ratios.min < ratios.mean && ratios.mean < 16.0, "{ratios:?}");
    }

    #[test]
    fn bad_files_are_refused_with_line_and_reason() {
        let text = profile().to_text();
        let error = |text: &str| Profile::parse("mine.toml", text).unwrap_err().to_string();
        let line_of = |text: &str, what: &str| 1 + text.lines().position(|line| line.starts_with(what)).unwrap();
        let broken = text.replace("version = 1", "version = 7");
        assert!(error(&broken).contains("line 4: version 7 is not known"), "{}", error(&broken));
        let broken = text.replace("random_ns = 16000000.0", "random_ns = -1.0");
        let last = 1 + text.lines().enumerate().filter(|(_, l)| *l == "[[read]]").last().unwrap().0;
        assert!(error(&broken).contains(&format!("line {last}: random_ns is -1")), "{}", error(&broken));
        let broken = text.replace("size_bytes = 65536", "size_bytes = 4096");
        assert!(error(&broken).contains("sizes rise"));
        let broken = text.replace("ratio = 2.0", "ratio = 2.5");
        assert!(error(&broken).contains("ratio is 2.5, but"));
        let broken = text.replace("host", "hots");
        assert!(error(&broken).contains(&format!("line {}", line_of(&broken, "hots"))), "{}", error(&broken));
        assert!(error("version = ").contains("line 1"));
        let reads_only = &text[..text.find("[[write]]").unwrap()];
        assert!(error(reads_only).contains("there is no [[write]]"));
        assert!(error(&text.replace("read = 16", "read = 0")).contains("saturation"));
        assert!(Profile::load("/nowhere/at/all").unwrap_err().to_string().contains("/nowhere/at/all"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(times in proptest::collection::vec((1u64..1 << 20, 1.0f64..1e12, 1.0f64..1e12), 1..20), name in "\\PC*") {
            let mut size = 0;
            let points: Vec<Point> = times.iter().map(|t| { size += t.0; point(size, t.1, t.2) }).collect();
            let written = Profile { device: name, reads: points.clone(), writes: points, ..profile() };
            let read = Profile::parse("x", &written.to_text()).unwrap();
            prop_assert_eq!(&written, &read);
            for bytes in [0, 1, size / 2, size, size * 3, u64::MAX] {
                prop_assert!(read.ttp_ns(Op::Read, bytes) > 0 && read.ratio(Op::Write, bytes) > 0.0);
            }
        }

        /// Nothing that is done to a file makes the loader panic, and what it accepts can be used.
        #[test]
        fn any_text_is_taken(at in any::<proptest::sample::Index>(), len in 0usize..40, junk in "\\PC{0,20}", value in any::<f64>()) {
            let text = profile().to_text();
            let from = at.index(text.len());
            let to = (from + len).min(text.len());
            let mut broken = text[..from].to_owned();
            broken.push_str(&junk);
            broken.push_str(&text[to..]);
            for text in [broken, text.replace("8000000.0", &format!("{value:?}")), junk] {
                if let Ok(profile) = Profile::parse("x", &text) {
                    prop_assert!(profile.ttp_ns(Op::Read, 1 << 16) > 0 && profile.ratios(Op::Read).mean > 0.0);
                }
            }
        }
    }
}
