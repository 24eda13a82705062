//! The models that are judged: the shipped one, and for each platform one that was trained without it; ours, and the papers' trees.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use sluice_adapt::forest::{Forest, ForestError, Leaves, Purpose};
use sluice_adapt::selector::{MODEL_VERSION, Model, ModelError, SHIPPED_MODEL};

use super::cases::THESIS_INPUTS;

/// Platform, ours, T1 to T5, of `models/selection`.
macro_rules! built_in {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../models/selection/without-", $name, ".json")),
            include_str!(concat!("../../../../models/selection/without-", $name, "-thesis.json")))),*]
    };
}
const BUILT_IN: [(&str, &str, &str); 8] =
    built_in!("pastel", "graphene", "suno", "edel", "hdd-7200", "taurus", "ssd-sata", "nvme");

/// What T1 to T5 are made for: a file has the five trees in order.
const THESIS_PURPOSE: Purpose<'static> = Purpose {
    kind: "selection-thesis",
    features: MODEL_VERSION,
    inputs: &THESIS_INPUTS,
    classes: None,
    leaves: Leaves::Shares,
};

pub(super) struct Models {
    pub(super) shipped: Model,
    without: BTreeMap<String, (Model, Forest)>,
}

pub(super) fn ours(text: &str) -> Result<Model, ModelError> {
    Model::parse(text, "model")
}

pub(super) fn thesis(text: &str) -> Result<Forest, ForestError> {
    Forest::parse(text, &THESIS_PURPOSE)
}

impl Models {
    /// Those built in, or those in a directory.
    pub(super) fn load(dir: Option<&Path>) -> anyhow::Result<Models> {
        let Some(dir) = dir else {
            let one = |(name, model, trees): (&str, &str, &str)| -> anyhow::Result<_> {
                Ok((name.to_owned(), (ours(model)?, thesis(trees)?)))
            };
            let without = BUILT_IN.into_iter().map(one).collect::<anyhow::Result<_>>()?;
            return Ok(Models { shipped: ours(SHIPPED_MODEL)?, without });
        };
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let mut without = BTreeMap::new();
        for (name, ..) in BUILT_IN {
            let model = ours(&read(&format!("selection/without-{name}.json"))?)?;
            let trees = thesis(&read(&format!("selection/without-{name}-thesis.json"))?)?;
            without.insert(name.to_owned(), (model, trees));
        }
        Ok(Models { shipped: ours(&read("selection.json")?)?, without })
    }

    /// What was trained without a platform.
    pub(super) fn without(&self, platform: &str) -> (Option<&Model>, Option<&Forest>) {
        self.without.get(platform).map_or((None, None), |(model, trees)| (Some(model), Some(trees)))
    }
}
