//! The shipped models of the devices of F. Z. Boito's thesis against what was measured there.

use serde::Serialize;
use sluice_device::profiler::{Modelled, Options, profile};
use sluice_device::{ModelError, Op};

/// What the thesis reports of a device: ratios of sequential to random throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Calibration {
    /// The shipped model.
    pub(super) model: &'static str,
    /// Of 8 KB requests (section 3.2), writes and reads, where it says.
    pub(super) at_8k: Option<[f64; 2]>,
    /// Mean over the sizes from 8 KB to 4 MB in 1.2 GB files (table 5.6), writes and reads.
    pub(super) mean: [f64; 2],
}

/// The nine devices.
pub(super) const CALIBRATION: [Calibration; 9] = [
    Calibration { model: "pastel", at_8k: Some([21.29, 38.91]), mean: [2.02, 2.24] },
    Calibration { model: "graphene", at_8k: Some([15.12, 40.68]), mean: [1.89, 2.67] },
    Calibration { model: "bali-hdd", at_8k: None, mean: [1.74, 2.61] },
    Calibration { model: "chimint", at_8k: None, mean: [1.95, 3.48] },
    Calibration { model: "suno", at_8k: Some([8.17, 25.46]), mean: [1.71, 2.76] },
    Calibration { model: "taurus", at_8k: None, mean: [1.62, 3.36] },
    Calibration { model: "edel", at_8k: Some([0.66, 2.37]), mean: [0.99, 1.08] },
    Calibration { model: "graphite", at_8k: None, mean: [1.01, 1.04] },
    Calibration { model: "bali-ssd", at_8k: None, mean: [1.38, 1.10] },
];

/// The same of a model, by the profiler. Always emulated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Measured {
    /// What it is compared with.
    #[serde(flatten)]
    pub(super) paper: Calibration,
    /// Ratio of 8 KiB requests, writes and reads.
    pub(super) model_at_8k: [f64; 2],
    /// Mean over the sizes.
    pub(super) model_mean: [f64; 2],
    /// Largest deviation of the ratios at 8 KiB, over the paper's; `None` where the paper does not say.
    pub(super) error_at_8k: Option<f64>,
    /// The same for the means.
    pub(super) error_mean: f64,
}

/// Profiles a model and compares it.
///
/// # Errors
/// If there is no such model.
pub(super) fn calibrate(paper: Calibration, options: &Options) -> Result<Measured, ModelError> {
    let mut target = Modelled::of(paper.model, options.seed, options.file_bytes)?;
    let Ok(report) = profile(&mut target, options);
    let of = |value: &dyn Fn(Op) -> f64| [Op::Write, Op::Read].map(value);
    let model_at_8k = of(&|op| report.profile.ratio(op, 8 << 10));
    let model_mean = of(&|op| report.profile.ratios(op).mean);
    let error =
        |model: [f64; 2], paper: [f64; 2]| (0..2).map(|i| (model[i] / paper[i] - 1.0).abs()).fold(0.0, f64::max);
    let error_at_8k = paper.at_8k.map(|paper| error(model_at_8k, paper));
    Ok(Measured { paper, model_at_8k, model_mean, error_at_8k, error_mean: error(model_mean, paper.mean) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_are_like_the_devices_of_the_thesis() {
        for paper in CALIBRATION {
            let measured = calibrate(paper, &Options::default()).unwrap();
            assert!(measured.error_at_8k.unwrap_or(0.0) < 0.10, "{measured:?}");
            assert!(measured.error_mean < 0.15, "{measured:?}");
        }
    }
}
