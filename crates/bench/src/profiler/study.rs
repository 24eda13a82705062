//! How right the profiler is: its results on models against complete profiling of the same models, in virtual time.
//!
//! *Complete* is what SeRRa was compared with: every size from 8 to 64 KiB by 8 KiB and to 4 MiB by 32 KiB, all of a file
//! of 1.2 GB read and written sequentially and at random, at least six times, until the 90 % confidence interval of the
//! mean (Student) is within 10 %.

use serde::Serialize;
use sluice_device::profiler::{Burst, Modelled, Options, Order, TESTS, Test, profile};
use sluice_device::{ModelError, Op};

use crate::random::SplitMix64;

/// Runs of each test at least, and at most.
const RUNS_MIN: u32 = 6;
const RUNS_MAX: u32 = 100;
/// Half the width of the 90 % confidence interval over the mean that is small enough.
const COMPLETE: f64 = 0.10;

/// One size and operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Case {
    /// Reads, or writes.
    pub(super) write: bool,
    /// Bytes of a request.
    pub(super) size_bytes: u64,
    /// The ratio by complete profiling and by the profiler.
    pub(super) ratio: [f64; 2],
    /// The time to process, in nanoseconds, the same way.
    pub(super) ttp_ns: [f64; 2],
}

impl Case {
    /// Error of the ratio over its value.
    pub(super) fn ratio_error(&self) -> f64 {
        (self.ratio[1] / self.ratio[0] - 1.0).abs()
    }

    /// Error of the time to process over its value.
    pub(super) fn ttp_error(&self) -> f64 {
        (self.ttp_ns[1] / self.ttp_ns[0] - 1.0).abs()
    }
}

/// Of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DeviceStudy {
    /// The model.
    pub(super) device: String,
    /// It is a model.
    pub(super) emulated: bool,
    /// Median, 95th percentile and largest error of the ratio over the cases.
    pub(super) median_error: f64,
    /// See `median_error`.
    pub(super) p95_error: f64,
    /// See `median_error`.
    pub(super) max_error: f64,
    /// Median error of the time to process.
    pub(super) ttp_median_error: f64,
    /// Largest.
    pub(super) ttp_max_error: f64,
    /// Virtual seconds of the profiler.
    pub(super) profiler_s: f64,
    /// Virtual seconds of complete profiling.
    pub(super) complete_s: f64,
    /// One over the other.
    pub(super) time_fraction: f64,
    /// All cases.
    #[serde(skip)]
    pub(super) cases: Vec<Case>,
}

/// Of several devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Study {
    /// Median error of the ratio over all devices, sizes and operations.
    pub(super) median_error: f64,
    /// 95 % of the errors are at most this.
    pub(super) p95_error: f64,
    /// Largest error.
    pub(super) max_error: f64,
    /// Median error of the time to process.
    pub(super) ttp_median_error: f64,
    /// Largest part of the complete profiling's time that the profiler needed for a device.
    pub(super) time_fraction: f64,
    /// Each device.
    pub(super) devices: Vec<DeviceStudy>,
}

impl Study {
    /// Puts devices together.
    pub(super) fn of(devices: Vec<DeviceStudy>) -> Study {
        let cases: Vec<Case> = devices.iter().flat_map(|device| device.cases.iter().copied()).collect();
        let [median_error, p95_error, max_error] = percentiles(cases.iter().map(Case::ratio_error));
        let [ttp_median_error, ..] = percentiles(cases.iter().map(Case::ttp_error));
        let time_fraction = devices.iter().map(|device| device.time_fraction).fold(0.0, f64::max);
        Study { median_error, p95_error, max_error, ttp_median_error, time_fraction, devices }
    }
}

/// Median, 95th percentile, largest.
fn percentiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| values.get((values.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0.0);
    [at(50), at(95), at(100)]
}

/// Profiles a model completely and with the profiler, and compares: the same drives, as SeRRa did (how the spindles of an array stand
/// to each other is its own: for large requests a RAID-0 is a fifth faster where they stand alike), asked for other places. `sizes`: of the complete profiling, in the order of rising size.
///
/// # Errors
/// If there is no such model, or it takes no time.
pub(super) fn study(name: &str, options: &Options, sizes: &[u64]) -> Result<DeviceStudy, ModelError> {
    let mut complete = Modelled::of(name, options.seed, options.file_bytes)?;
    let mut times = Vec::new();
    for size in sizes {
        times.push(TESTS.map(|test| complete_mean(&mut complete, test, *size, options)));
    }
    let complete_s = complete.now_ns() as f64 * 1e-9;
    let mut target = Modelled::of(name, options.seed, options.file_bytes)?;
    let Ok(report) = profile(&mut target, options);
    let mut cases = Vec::new();
    for (size_bytes, times) in sizes.iter().zip(&times) {
        for (write, op) in [(false, Op::Read), (true, Op::Write)] {
            let of = |order: Order| {
                let at = TESTS.iter().position(|test| test.op == op && test.order == order);
                at.map_or(f64::NAN, |at| times[at])
            };
            let (sequential, random) = (of(Order::Sequential), of(Order::Random));
            let ratio = [random / sequential, report.profile.ratio(op, *size_bytes)];
            let ttp_ns = [sequential, report.profile.ttp_ns(op, *size_bytes) as f64];
            cases.push(Case { write, size_bytes: *size_bytes, ratio, ttp_ns });
        }
    }
    let [median_error, p95_error, max_error] = percentiles(cases.iter().map(Case::ratio_error));
    let [ttp_median_error, _, ttp_max_error] = percentiles(cases.iter().map(Case::ttp_error));
    let profiler_s = report.elapsed_ns as f64 * 1e-9;
    Ok(DeviceStudy {
        device: name.to_owned(),
        emulated: true,
        median_error,
        p95_error,
        max_error,
        ttp_median_error,
        ttp_max_error,
        profiler_s,
        complete_s,
        time_fraction: profiler_s / complete_s,
        cases,
    })
}

/// Mean nanoseconds of a request, over as many runs over the whole file as it takes to be sure.
fn complete_mean(target: &mut Modelled, test: Test, size: u64, options: &Options) -> f64 {
    let (mut runs, mut seed): (Vec<f64>, u64) = (Vec::new(), options.seed ^ 0x5eed ^ size << 20);
    let requests = options.file_bytes / size;
    loop {
        let burst = Burst::for_time(test, size, options.file_bytes, u64::MAX, seed);
        let begin = target.now_ns();
        for number in 0..requests {
            target.request(test.op, burst.offset(number), size);
        }
        runs.push((target.now_ns() - begin) as f64 / requests as f64);
        seed = SplitMix64(seed).next();
        let count = runs.len() as f64;
        let mean = runs.iter().sum::<f64>() / count;
        let spread = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        // 95 % quantile of Student's distribution with 5 degrees of freedom: more runs only make it smaller.
        let half_width = 2.015 * (spread / count).sqrt();
        if runs.len() as u32 >= RUNS_MAX || (runs.len() as u32 >= RUNS_MIN && half_width <= COMPLETE * mean) {
            return mean;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiler_agrees_with_complete_profiling_in_a_fraction_of_its_time() {
        let sizes: Vec<u64> = [8, 24, 64, 512, 2048].map(|kib| kib << 10).to_vec();
        let options = Options { file_bytes: 512 << 20, ..Options::default() };
        for device in ["hdd-7200", "suno", "ssd-sata", "nvme"] {
            let study = study(device, &options, &sizes).unwrap();
            assert_eq!(study.cases.len(), 2 * sizes.len());
            assert!(study.median_error < 0.03 && study.max_error < 0.3, "{study:?}");
            assert!(study.time_fraction < 0.5, "{study:?}");
        }
        assert!(study("hdd-9000", &options, &sizes).is_err());
        assert!(matches!(study("null", &options, &sizes), Err(ModelError::TakesNoTime { .. })));
    }

    #[test]
    fn percentiles_are_values() {
        assert_eq!(percentiles((1..=100).rev().map(f64::from)), [50.0, 95.0, 100.0]);
        assert_eq!(percentiles([7.0].into_iter()), [7.0; 3]);
    }
}
