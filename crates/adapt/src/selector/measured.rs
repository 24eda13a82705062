//! Knowledge by measuring: each arm in turn under one load.

use super::knowledge::{DEVIATION, Known, Value, WEIGHT_MAX};
use super::{Context, Knowledge};

/// What an arm did under a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The arm, as text.
    pub arm: String,
    /// What the load looked like under it; `None`: no window was closed, as where requests go by the engine.
    pub look: Option<Context>,
    /// Work per busy second (as [`Load::rate`](super::Load::rate) has it) in each window; those that are not above 0 do not count.
    pub rates: Vec<f64>,
}

impl Knowledge {
    /// Learns what each arm does under one load, which all of them had, in windows of so many seconds. The load is known by what it looks
    /// like under the first of them that has a look; without any, nothing is learned. Returns it.
    pub fn measured(&mut self, window_s: f64, arms: &[Measured]) -> Option<Context> {
        let context = arms.iter().find_map(|one| one.look)?;
        let logarithms = |one: &Measured| -> Vec<f64> {
            one.rates.iter().filter(|rate| **rate > 0.0 && rate.is_finite()).map(|rate| rate.ln()).collect()
        };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let all: Vec<(&Measured, Vec<f64>)> =
            arms.iter().map(|one| (one, logarithms(one))).filter(|(_, values)| !values.is_empty()).collect();
        let windows: usize = all.iter().map(|(_, values)| values.len()).sum();
        let level = mean(&all.first()?.1);
        self.clock_s += windows as f64 * window_s;
        let now_s = self.clock_s;
        let mut known = Known { level, windows: windows as u64, seen_s: now_s, ..Known::default() };
        for (one, values) in &all {
            let gain = mean(values) - level;
            let squares = values.iter().map(|value| (value - level - gain).powi(2)).sum::<f64>();
            // By few the deviation is hardly known: what is usual counts as one more, and nothing was learned of it by one alone.
            let variance = (squares + DEVIATION * DEVIATION) / values.len() as f64;
            let mut value = Value::measured(gain, variance, values.len() as f64);
            (value.seen_s, value.weight) = (now_s, value.weight.min(WEIGHT_MAX));
            known.arms.insert(one.arm.clone(), value);
        }
        known.looks = all.iter().filter_map(|(one, _)| Some((one.arm.clone(), one.look?))).collect();
        let mut own = Knowledge { clock_s: now_s, ..Knowledge::new(self.device) };
        own.contexts.insert(context, known);
        // Loads that look alike are one. What is known to the last digit already is left alone.
        if self.merge(&own).is_ok() && !self.contexts.contains_key(&context) {
            return None;
        }
        Some(context)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Kind, Selector, Settings, arms};
    use super::*;
    use sluice_core::EngineConfig;

    fn measured(arm: &str, look: Option<&str>, rates: &[f64]) -> Measured {
        Measured { arm: arm.to_owned(), look: look.and_then(Context::parse), rates: rates.to_vec() }
    }

    impl Knowledge {
        fn measured_alone(mut self, arm: &str) -> Value {
            let context = self.measured(0.25, &[measured(arm, Some("r1.q0.d1.f1.a0"), &[1e8])]).unwrap();
            self.contexts[&context].arms[arm]
        }
    }

    #[test]
    fn what_was_measured_is_known_and_survives() {
        let mut knowledge = Knowledge::new(Device::Disk);
        let loads = [
            measured("hbrr", Some("r1.q0.d1.f1.a0"), &[2e8, 2.2e8]),
            measured("noop", None, &[1e8, 1e8, 1e8]),
            measured("sjf", Some("r1.q1.d1.f1.a0"), &[0.0, f64::NAN]),
        ];
        let context = knowledge.measured(0.25, &loads).unwrap();
        assert_eq!(context.to_string(), "r1.q0.d1.f1.a0");
        let known = &knowledge.contexts[&context];
        assert_eq!(known.best().unwrap().0, "hbrr");
        assert!((known.arms["noop"].gain + 2.1_f64.ln()).abs() < 0.01 && known.arms.len() == 2, "{known:?}");
        assert_eq!((known.arms["noop"].weight, known.looks.len()), (3.0, 1));
        let once = Knowledge::new(Device::Disk).measured_alone("noop");
        assert!((once.deviation(0.0) - 0.1).abs() < 1e-9, "seen once: as where it is not known yet: {once:?}");
        let again = Knowledge::from_text(knowledge.to_text().as_bytes()).unwrap();
        assert_eq!(again, knowledge);
        let host = EngineConfig::default();
        let all = arms(Device::Disk, &host);
        let first = all[1].clone();
        let mut selector = Selector::new(Settings::new(Kind::Bandit, Device::Disk), all, &first, None).unwrap();
        selector.remember(again).unwrap();
        assert_eq!(selector.knowledge().contexts.len(), 1);
        assert_eq!(knowledge.measured(0.25, &[measured("noop", None, &[1e8])]), None);
        // Nearly the same again counts for more, and moves nothing. Exactly the same is no second measurement.
        let again = loads.map(|one| Measured { rates: one.rates.iter().map(|rate| rate * 1.001).collect(), ..one });
        let again = again.map(|one| if one.arm == "noop" { measured("noop", None, &[1e8, 1e8, 1.003e8]) } else { one });
        knowledge.measured(0.25, &again).unwrap();
        assert!((knowledge.contexts[&context].arms["noop"].weight - 6.0).abs() < 1e-9);
        assert!((knowledge.contexts[&context].arms["noop"].gain + 2.1_f64.ln()).abs() < 0.01);
    }
}
