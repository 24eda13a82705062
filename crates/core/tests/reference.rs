//! Each algorithm against a naive model of it: same requests in the same order, whatever happens in between.
//!
//! The models are written from the descriptions at the heads of the policies' files, with plain lists and searches over
//! everything. A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-core --test reference` tries harder.

mod harness;
mod models;

use harness::{Answer, Harness, Item, Step, limits, request, steps};
use models::{Choice, Model, extent_around};
use proptest::prelude::*;
use sluice_core::{EngineConfig, PolicyConfig, Time};

/// Plays the steps on an engine and a model, and compares every choice.
struct Comparison<M: Model> {
    harness: Harness,
    model: M,
    aggregates: bool,
}

impl<M: Model> Comparison<M> {
    fn new(config: EngineConfig, policy: &PolicyConfig, aggregates: bool, model: M) -> Comparison<M> {
        Comparison { harness: Harness::new(config, policy), model, aggregates }
    }

    fn released(&mut self, released: Vec<Item>) {
        // They come one by one, as the engine sees them.
        for at in 0..released.len() {
            let later: Vec<u64> = released[at + 1..].iter().map(|item| item.number).collect();
            let queued: Vec<Item> =
                self.harness.queued().into_iter().filter(|item| !later.contains(&item.number)).collect();
            self.model.enqueue(&released[at], &queued);
        }
    }

    fn expected(&mut self) -> Answer {
        let queued = self.harness.queued();
        let config = self.harness.engine.config().clone();
        if queued.is_empty() || self.harness.at_limit() {
            return Answer::Nothing;
        }
        let oldest = queued[0];
        let since = oldest.eligible.map(|(since, _)| since).unwrap_or_default();
        let deadline = if config.max_wait_ns == 0 { Time(u64::MAX) } else { since.after(config.max_wait_ns) };
        let now = self.harness.now;
        let (extent, picked) = if deadline <= now {
            let extent = if self.aggregates { extent_around(&queued, &oldest, &config) } else { vec![oldest] };
            (extent, false)
        } else {
            match self.model.pick(now, &queued, self.harness.batches.len(), &config) {
                Choice::Batch(extent) => (extent, true),
                Choice::Wait(at) => return Answer::Wait(at.min(deadline)),
                Choice::Idle if deadline == Time(u64::MAX) => return Answer::Nothing,
                Choice::Idle => return Answer::Wait(deadline),
            }
        };
        let left: Vec<Item> =
            queued.into_iter().filter(|item| extent.iter().all(|r| r.number != item.number)).collect();
        self.model.dispatched(&extent, picked, &left, &config);
        Answer::Batch(extent.iter().map(|item| item.number).collect())
    }

    fn play(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Submit { .. } => {
                    let released = self.harness.submit(request(step, 0));
                    self.released(released);
                }
                Step::Dispatch => {
                    let expected = self.expected();
                    assert_eq!(self.harness.dispatch(), expected, "at {:?}", self.harness.now);
                }
                Step::Complete(at) => {
                    let released = self.harness.complete(at);
                    self.released(released);
                }
                Step::Cancel(at) => {
                    if let Some((item, released)) = self.harness.cancel(at) {
                        if item.is_queued() {
                            let later: Vec<u64> = released.iter().map(|item| item.number).collect();
                            let left: Vec<Item> =
                                self.harness.queued().into_iter().filter(|i| !later.contains(&i.number)).collect();
                            self.model.cancelled(&item, &left);
                        }
                        self.released(released);
                    }
                }
                Step::Pass(ns) => self.harness.now = self.harness.now.after(ns),
            }
        }
    }
}

fn policy(name: &str, params: &[(&str, String)]) -> PolicyConfig {
    let plain = PolicyConfig::parse(name).expect("a name from the table");
    params.iter().fold(plain, |policy, (key, value)| policy.with(key, value).expect("a valid parameter"))
}

fn compare(config: EngineConfig, policy: &PolicyConfig, aggregates: bool, model: impl Model, steps: &[Step]) {
    Comparison::new(config, policy, aggregates, model).play(steps);
}

proptest! {
    #[test]
    fn noop_and_to(config in limits(), steps in steps()) {
        for name in ["noop", "to"] {
            compare(config.clone(), &policy(name, &[]), false, models::TimeOrder, &steps);
        }
    }

    #[test]
    fn to_agg(config in limits(), steps in steps()) {
        compare(config, &policy("to-agg", &[]), true, models::TimeOrderAggregating, &steps);
    }

    #[test]
    fn sjf(config in limits(), steps in steps()) {
        compare(config, &policy("sjf", &[]), true, models::ShortestJobFirst::default(), &steps);
    }

    #[test]
    fn hbrr(config in limits(), steps in steps(), ranges in 1..4_u64, batch in 1..4_u32) {
        let policy = policy("hbrr", &[("ranges", ranges.to_string()), ("batch", batch.to_string())]);
        compare(config, &policy, true, models::HandleRoundRobin::new(ranges, batch), &steps);
    }

    #[test]
    fn sw(config in limits(), steps in steps(), window_ms in 1..5_u64) {
        let policy = policy("sw", &[("window", format!("{window_ms}ms"))]);
        compare(config, &policy, false, models::ServerWindows { window_ns: window_ms * 1_000_000 }, &steps);
    }

    #[test]
    fn twins(
        config in limits(),
        steps in steps(),
        servers in 1..5_u64,
        node in 0..7_u64,
        window_us in 100..3_000_u64,
        work_conserving: bool,
        alone_after_us in prop_oneof![Just(0), 1..10_000_u64],
    ) {
        let policy = policy("twins", &[
            ("servers", servers.to_string()),
            ("node", node.to_string()),
            ("window", format!("{window_us}us")),
            ("epoch", "70us".to_owned()),
            ("work_conserving", work_conserving.to_string()),
            ("alone_after", format!("{alone_after_us}us")),
        ]);
        let model = models::TimeWindows {
            servers,
            node,
            window_ns: window_us * 1_000,
            epoch: 70_000,
            work_conserving,
            alone_after_ns: alone_after_us * 1_000,
            arrivals: Vec::new(),
        };
        compare(config, &policy, false, model, &steps);
    }

    #[test]
    fn wfq(config in limits(), steps in steps(), weights in [1..9_u64, 1..9_u64], aggregate: bool) {
        let policy = policy("wfq", &[
            ("weight.0", weights[0].to_string()),
            ("weight.2", weights[1].to_string()),
            ("weight", "3".to_owned()),
            ("aggregate", aggregate.to_string()),
        ]);
        compare(config, &policy, aggregate, models::FairQueueing::new([weights[0], 3, weights[1]], aggregate), &steps);
    }

    #[test]
    fn mlf(config in limits(), steps in steps(), base in 1..4_000_u64, wait_us in prop_oneof![Just(0), 100..2_000_u64]) {
        let policy = policy("mlf", &[("quantum", base.to_string()), ("wait_time", format!("{wait_us}us"))]);
        compare(config, &policy, true, models::MultilevelFeedback::new(base, wait_us * 1_000), &steps);
    }

    #[test]
    fn aioli(
        config in limits(),
        steps in steps(),
        base in 1..4_000_u64,
        wait_us in prop_oneof![Just(0), 100..2_000_u64],
        synchronous: bool,
    ) {
        let policy = policy("aioli", &[
            ("quantum", base.to_string()),
            ("wait_time", format!("{wait_us}us")),
            ("synchronous", synchronous.to_string()),
        ]);
        compare(config, &policy, true, models::Aioli::new(base, wait_us * 1_000, synchronous), &steps);
    }
}
