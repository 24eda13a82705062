//! The pattern network: how a system's processes go through their files, as an I/O node sees it (Bez et al. 2019, V).
//!
//! A node tells an [`Observation`] of each second; a [`Network`] says which of the council's three
//! [`Pattern`]s that was. Two come with Sluicegate, made by `python -m sluicegate train council`: the paper's, five inputs and
//! five hidden units ([`Network::paper`]), and ours ([`Network::shipped`]), which is asked with what a
//! [`Watcher`](crate::features::Watcher) saw. Of windows with fewer than [`REQUESTS_MIN`] requests nothing is said, and the council
//! keeps what it had. What a node goes by is what a [`Filter`] makes of several windows.
//!
//! # The file
//! JSON in lines. The first is `{`, the second `"format": "sluice-net 1",`, the third `"crc32": "89abcdef",`: the CRC-32 (that of
//! zlib) of all the other bytes of the file. Further keys:
//!
//! | key | what |
//! |---|---|
//! | `kind` | `council` |
//! | `features` | version of the features that it was made for |
//! | `inputs` | names of the inputs, in order |
//! | `classes` | names of the patterns, in order |
//! | `trained` | where it comes from; for people |
//! | `ranges` | least and largest value of each input that it was trained with: what is beyond counts as that |
//! | `lambdas` | of each input: parameter of the transformation of Yeo and Johnson (2000), which makes it look normal |
//! | `means`, `deviations` | of each transformed input: the mean is subtracted, the deviation divided by |
//! | `layers` | for each layer `weights`, an array for each of its units, and `bias` |
//!
//! Units of all layers but the last are rectified (ReLU), those of the last are shared out by softmax. All numbers are of 64 bits.

mod filter;
mod inputs;

use serde::Deserialize;

pub use filter::Filter;
pub use inputs::{INPUTS, Observation, PAPER_INPUTS};

use crate::council::Pattern;
use crate::features;
use crate::forest::{head, winner};

/// What files say in their second line.
pub const FORMAT: &str = "sluice-net 1";
/// Of windows with fewer requests nothing is said.
pub const REQUESTS_MIN: u64 = 16;
/// Names of the patterns, in the order of the networks' classes.
pub const CLASSES: [&str; 3] = ["own-contiguous", "shared-contiguous", "shared-strided"];
const PATTERNS: [Pattern; 3] = [Pattern::OwnContiguous, Pattern::SharedContiguous, Pattern::SharedStrided];

/// Longest file that is read, in bytes.
const BYTES_MAX: usize = 1 << 20;
/// Most inputs, and units of a layer: what an evaluation needs is on the stack.
const WIDTH_MAX: usize = 64;
const _: () = assert!(INPUTS.len() <= WIDTH_MAX);
/// Most layers.
const LAYERS_MAX: usize = 8;

const SHIPPED: &str = include_str!("../../../../models/council.json");
const PAPER: &str = include_str!("../../../../models/council-paper.json");

/// Why there is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Something else, or of another version.
    #[error("not a network: it does not begin with \"format\": \"{FORMAT}\"; train it anew with this version")]
    Foreign,
    /// The checksum is wrong.
    #[error(
        "the network is damaged: its checksum is {found:08x}, and {stated} is stated; take a fresh copy or train it anew"
    )]
    Damaged {
        /// Of the bytes that are there.
        found: u32,
        /// What the file says.
        stated: String,
    },
    /// It has its checksum, but is none.
    #[error("not a network: {0}; train it anew")]
    Invalid(String),
}

#[derive(Deserialize)]
struct File {
    kind: String,
    features: u32,
    inputs: Vec<String>,
    classes: Vec<String>,
    ranges: Vec<[f64; 2]>,
    lambdas: Vec<f64>,
    means: Vec<f64>,
    deviations: Vec<f64>,
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Deserialize)]
struct Layer {
    weights: Vec<Vec<f64>>,
    bias: Vec<f64>,
}

/// How an input is made one of a normal distribution.
#[derive(Clone, Copy, Debug)]
struct Scaling {
    range: [f64; 2],
    lambda: f64,
    mean: f64,
    deviation: f64,
}

impl Scaling {
    fn apply(&self, value: f64) -> f64 {
        (yeo_johnson(value.clamp(self.range[0], self.range[1]), self.lambda) - self.mean) / self.deviation
    }
}

/// Yeo and Johnson 2000, equation 2.1.
fn yeo_johnson(value: f64, lambda: f64) -> f64 {
    let power = |base: f64, exponent: f64| {
        if exponent.abs() < f64::EPSILON { base.ln_1p() } else { ((base + 1.0).powf(exponent) - 1.0) / exponent }
    };
    if value >= 0.0 { power(value, lambda) } else { -power(-value, 2.0 - lambda) }
}

/// A checked network.
#[derive(Clone, Debug)]
pub struct Network {
    is_paper: bool,
    scalings: Vec<Scaling>,
    layers: Vec<Layer>,
}

/// What a network says of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The most likely pattern.
    pub pattern: Pattern,
    /// Shares of the patterns in the order of [`CLASSES`], together 1.
    pub shares: [f64; CLASSES.len()],
}

impl Network {
    /// Reads a file's text. What it is asked with follows from its inputs.
    ///
    /// # Errors
    /// If it is damaged, of another version, or made for something else.
    pub fn parse(text: &str) -> Result<Network, NetError> {
        if text.len() > BYTES_MAX {
            return Err(NetError::Invalid(format!("{} bytes; it has at most {BYTES_MAX}", text.len())));
        }
        let (format, stated, found) = head(text).ok_or(NetError::Foreign)?;
        if format != FORMAT {
            return Err(NetError::Foreign);
        }
        if stated != format!("{found:08x}") {
            return Err(NetError::Damaged { found, stated: stated.to_owned() });
        }
        let file: File = serde_json::from_str(text).map_err(|error| NetError::Invalid(error.to_string()))?;
        file.build().map_err(NetError::Invalid)
    }

    /// The one that comes with Sluicegate, `models/council.json`.
    ///
    /// # Errors
    /// If that was built in damaged.
    pub fn shipped() -> Result<Network, NetError> {
        Network::parse(SHIPPED)
    }

    /// The paper's, trained with the same windows, `models/council-paper.json`.
    ///
    /// # Errors
    /// As [`shipped`](Network::shipped).
    pub fn paper() -> Result<Network, NetError> {
        Network::parse(PAPER)
    }

    /// The pattern of a window; `None` for too few requests, or where nobody saw what this network asks for. Allocates nothing;
    /// O(weights): some microseconds.
    #[must_use]
    pub fn classify(&self, observation: &Observation) -> Option<Verdict> {
        if observation.requests < REQUESTS_MIN {
            return None;
        }
        let inputs: &[f64] = if self.is_paper { &observation.paper } else { observation.inputs.as_ref()? };
        let shares = self.shares(inputs)?;
        Some(Verdict { pattern: PATTERNS[winner(&shares)], shares })
    }

    /// Shares of the patterns; `None` if the inputs are not as many as it has, or one is no number.
    #[must_use]
    pub fn shares(&self, inputs: &[f64]) -> Option<[f64; CLASSES.len()]> {
        if inputs.len() != self.scalings.len() || inputs.iter().any(|input| input.is_nan()) {
            return None;
        }
        let (mut values, mut next) = ([0.0; WIDTH_MAX], [0.0; WIDTH_MAX]);
        values.iter_mut().zip(inputs).zip(&self.scalings).for_each(|((value, input), it)| *value = it.apply(*input));
        for (number, layer) in self.layers.iter().enumerate() {
            let is_last = number + 1 == self.layers.len();
            for ((unit, weights), bias) in next.iter_mut().zip(&layer.weights).zip(&layer.bias) {
                let sum = weights.iter().zip(&values).fold(*bias, |sum, (weight, value)| sum + weight * value);
                *unit = if is_last { sum } else { sum.max(0.0) };
            }
            std::mem::swap(&mut values, &mut next);
        }
        let mut shares = [0.0; CLASSES.len()];
        // The largest is subtracted, so that no power overflows.
        let most = values[..CLASSES.len()].iter().fold(f64::NEG_INFINITY, |most, value| most.max(*value));
        shares.iter_mut().zip(&values).for_each(|(share, value)| *share = (value - most).exp());
        let sum: f64 = shares.iter().sum();
        Some(shares.map(|share| share / sum))
    }
}

impl File {
    fn build(self) -> Result<Network, String> {
        let count = self.inputs.len();
        let is_paper = self.inputs == PAPER_INPUTS;
        if self.kind != "council" || self.classes != CLASSES || !(is_paper || self.inputs == INPUTS) {
            return Err("it is made for other inputs or patterns".to_owned());
        }
        if self.features != features::VERSION {
            return Err(format!("it is made for version {} of the features, not {}", self.features, features::VERSION));
        }
        if [self.ranges.len(), self.lambdas.len(), self.means.len(), self.deviations.len()] != [count; 4] {
            return Err("its scaling is not one for each input".to_owned());
        }
        let scaling = |at: usize| Scaling {
            range: self.ranges[at],
            lambda: self.lambdas[at],
            mean: self.means[at],
            deviation: self.deviations[at],
        };
        let scalings: Vec<Scaling> = (0..count).map(scaling).collect();
        // JSON has no infinities, but numbers that overflow.
        let is_good = |it: &Scaling| {
            it.range[0] <= it.range[1] && it.deviation > 0.0 && it.range.iter().all(|end| it.apply(*end).is_finite())
        };
        if let Some(at) = scalings.iter().position(|it| !is_good(it)) {
            return Err(format!("the scaling of its input {:?} makes no sense", self.inputs[at]));
        }
        if self.layers.is_empty() || self.layers.len() > LAYERS_MAX {
            return Err(format!("{} layers; 1 to {LAYERS_MAX}", self.layers.len()));
        }
        let mut width = count;
        for (number, layer) in self.layers.iter().enumerate() {
            let units = layer.weights.len();
            let fits = layer.bias.len() == units && layer.weights.iter().all(|weights| weights.len() == width);
            if !fits || !(1..=WIDTH_MAX).contains(&units) {
                return Err(format!(
                    "layer {number} does not fit: 1 to {WIDTH_MAX} units, a weight for each of {width}"
                ));
            }
            let mut numbers = layer.weights.iter().flatten().chain(&layer.bias);
            if !numbers.all(|number| number.abs() < 1e6) {
                return Err(format!("layer {number} has weights of a million or more"));
            }
            width = units;
        }
        if width != CLASSES.len() {
            return Err(format!("{width} units in the last layer; {}", CLASSES.len()));
        }
        Ok(Network { is_paper, scalings, layers: self.layers })
    }
}
