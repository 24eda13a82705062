//! A model that says what each arm would give: a forest of regression trees, trained by `python -m sluicegate train selection`.
//!
//! Its classes are arms, as text; the number of a leaf is the logarithm of the arm's throughput over that of the best arm of the
//! cases that ended there. Trees that disagree know little: what is expected of an arm is the mean of the trees' numbers, less as
//! many of their standard deviations as the model says ([`Forest::caution`]). Of devices of which nothing is known, and of windows
//! unlike anything that it was trained with, it says nothing.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Arm, ArmError, Device, Load, Prior};
use crate::forest::{Forest, ForestError, Leaves, Purpose};

/// Grows when an input changes its meaning.
pub const MODEL_VERSION: u32 = 1;

/// Names of the inputs, in order; `log2` ones are of a number plus 0.001, so that 0 has a logarithm.
pub const INPUTS: [&str; 15] = [
    "disk",
    "read_share",
    "size_log2",
    "contiguous",
    "distance_log2",
    "concurrency_log2",
    "files_log2",
    "apps_log2",
    "per_file_log2",
    "service_us_log2",
    "request_us_log2",
    "rate_log2",
    "batch_log2",
    "in_device_log2",
    "busy",
];

/// The model that comes with Sluicegate, `models/selection.json`.
pub const SHIPPED_MODEL: &str = include_str!("../../../../models/selection.json");

/// What models for selectors are made for. Their classes are arms.
pub const PURPOSE: Purpose<'static> =
    Purpose { kind: "selection", features: MODEL_VERSION, inputs: &INPUTS, classes: None, leaves: Leaves::Numbers };

/// What a model is asked with.
#[must_use]
pub fn inputs(load: &Load, device: Device) -> [f32; INPUTS.len()] {
    let log2 = |value: f64| (value + 1e-3).log2() as f32;
    let files = f64::from(load.files().max(1));
    let request_us = load.busy_ns as f64 / 1e3 / load.completed().max(1) as f64;
    [
        if device == Device::Disk { 1.0 } else { 0.0 },
        load.read_share() as f32,
        log2(load.size()),
        load.contiguous() as f32,
        log2(load.distance()),
        log2(load.concurrency()),
        log2(files),
        log2(f64::from(load.apps())),
        log2(load.concurrency() / files),
        log2(load.service_ns() / 1e3),
        log2(request_us),
        log2(load.rate_of_engine() / 1e6),
        log2(load.batch_requests()),
        log2(load.service_ns() / 1e3 / request_us.max(1e-3)),
        load.busy_share() as f32,
    ]
}

/// A model that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It is damaged, of another version, or made for something else.
    #[error(transparent)]
    Forest(#[from] ForestError),
    /// One of its classes cannot be chosen.
    #[error("not a model of this version: {0}; train it anew")]
    Arm(#[from] ArmError),
}

/// What was asked last, and what was answered.
type Answer = (Load, Device, Option<Vec<f64>>);

/// A checked model. Clones share it.
#[derive(Clone, Debug)]
pub struct Model {
    name: String,
    forest: Arc<Forest>,
    arms: Arc<[Arm]>,
    /// The last answer: a selector asks of each arm, often more than once a window.
    last: RefCell<Option<Answer>>,
}

impl Model {
    /// With a model in a file's text. `name`: for people.
    ///
    /// # Errors
    /// If it is damaged, of another version, made for something else, or has arms that there are not.
    pub fn parse(text: &str, name: &str) -> Result<Model, ModelError> {
        let forest = Forest::parse(text, &PURPOSE)?;
        let arms = forest.about().classes.iter().map(|class| Arm::parse(class)).collect::<Result<Vec<Arm>, _>>()?;
        Ok(Model { name: name.to_owned(), forest: Arc::new(forest), arms: arms.into(), last: RefCell::default() })
    }

    /// The model that comes with Sluicegate.
    ///
    /// # Errors
    /// If it was built in damaged.
    pub fn shipped() -> Result<Model, ModelError> {
        Model::parse(SHIPPED_MODEL, "shipped")
    }

    /// The forest.
    #[must_use]
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The arms that it knows.
    #[must_use]
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Logarithmic throughput that is to be expected of each of its [arms](Model::arms), comparable with each other; `None`: it was
    /// trained with nothing like this. O(trees x (depth + arms)). `inputs`: see [`inputs`].
    #[must_use]
    pub fn values(&self, inputs: &[f32]) -> Option<Vec<f64>> {
        if !self.forest.knows(inputs) {
            return None;
        }
        let (trees, caution) = (self.forest.size().0, self.forest.caution());
        let mut means = vec![0.0; self.arms.len()];
        self.forest.votes(inputs, &mut means);
        if caution > 0.0 {
            let mut squares = vec![0.0; means.len()];
            for tree in 0..trees {
                let leaf = self.forest.leaf(tree, inputs);
                for ((square, value), mean) in squares.iter_mut().zip(leaf).zip(&means) {
                    *square += (value - mean) * (value - mean);
                }
            }
            let deviation = |square: f64| (square / trees as f64).sqrt();
            means.iter_mut().zip(squares).for_each(|(mean, square)| *mean -= caution * deviation(square));
        }
        Some(means)
    }
}

impl Prior for Model {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn expected(&self, load: &Load, device: Device, arm: &Arm) -> Option<f64> {
        if device == Device::Unknown {
            return None;
        }
        let at = self.arms.iter().position(|known| known == arm)?;
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(asked, of, _)| asked != load || *of != device) {
            *last = Some((*load, device, self.values(&inputs(load, device))));
        }
        last.as_ref()?.2.as_ref().map(|values| values[at].exp())
    }
}
