//! What a selector says about itself.

use serde::{Deserialize, Serialize};

use super::live::{Mode, Selector};
use super::{Device, Kind, Load};

/// Lines of the log kept until somebody takes them.
const RECORDS_MAX: usize = 256;

/// Why a line stands in the log of decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The selector begins.
    Begin,
    /// The devices are something else than was thought, or more is known of them: from now on there are other arms to choose from.
    NewDevice,
    /// Nothing was decided: a window, as it was.
    Window,
    /// A kind of workload that was never seen.
    NewWorkload,
    /// A kind of workload that is known.
    KnownWorkload,
    /// An arm is tried.
    Trial,
    /// It was better, and stays.
    TrialWon,
    /// It was not, and another one is tried, or the one before is back.
    TrialLost,
    /// The workload ended, or became too light, before that was known.
    TrialEnded,
    /// By what is known now another arm is better.
    Better,
    /// The reward has changed although the workload has not: what is known is doubted.
    Doubt,
    /// It is back: what was known is as true as before.
    DoubtEnded,
    /// There has been nothing to choose from for a while.
    Resting,
}

/// An access pattern that was recognised ([`detector`](crate::detector)): of those of Boito 2015 the one that most bytes of a
/// window belong to, or come closest to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// Its name ([`Class::NAMES`](crate::detector::Class::NAMES)).
    pub class: String,
    /// Mean share, 0 to 1, of the model's votes for it. Where the requests are of none of the patterns, votes tend to be divided.
    pub confidence: f64,
    /// Share of the bytes, 0 to 1, that belong to it, among those of files with enough requests to say.
    pub share: f64,
    /// What speaks for it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long ago, in seconds before the last window closed.
    #[serde(default)]
    pub ago_s: f64,
}

/// A line of the log of decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// End of the window by which it was decided, in seconds on the clock of the engines.
    pub t: f64,
    /// Why.
    pub why: Why,
    /// The kind of workload, for programs; see [`Context`](super::Context).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The arm from now on; of a window, the one in it.
    pub arm: String,
    /// The one before, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Moved in the window, in MB a second.
    pub mb_s: f64,
    /// Work done per busy second in the window, in MB.
    pub rate_mb_s: f64,
    /// What was expected of the arm in the window, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_mb_s: Option<f64>,
    /// The best arm that is known for the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
    /// What the arm of the window is expected to lose against that, 0 to 1; of a trial that has ended what it lost against the arm
    /// that had been in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regret: Option<f64>,
    /// The access pattern that was recognised last with this workload, and how sure that is ([`Pattern`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// See `pattern`; 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern_confidence: Option<f64>,
    /// For people: of a trial what was tried, for how long, and what it did against what.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// An arm that could be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The arm.
    pub arm: String,
    /// What it is expected to gain over the one in use, in percent.
    pub gain_percent: f64,
    /// Two standard deviations of that, in percent.
    pub uncertainty_percent: f64,
    /// Observations of it, of a quarter of a second or more, with this kind of workload, as far as they still count.
    pub windows: f64,
    /// Why it is used or not.
    pub verdict: String,
}

/// A change of arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// How long ago, in seconds, when the last window closed.
    pub ago_s: f64,
    /// From which.
    pub from: String,
    /// To which.
    pub to: String,
    /// Why.
    pub why: Why,
}

/// What a selector sees, expects, and has decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Who chooses.
    pub selector: Kind,
    /// The model that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the devices are.
    pub device: Device,
    /// The workload, for people; absent while there is nothing to choose from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The same for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The access pattern, as far as somebody has looked ([`Selector::see`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// Share of the windows since it began that looked like it, 0 to 1.
    pub confidence: f64,
    /// Seconds of load since it began.
    pub lasts_s: f64,
    /// Requests outstanding in each engine, on average while there are any.
    pub concurrency: f64,
    /// Share of the time, 0 to 1, in which there are any.
    pub busy: f64,
    /// The arm in force.
    pub arm: String,
    /// What is being done: `steady`, `trying`, `resting`.
    pub mode: String,
    /// Work per busy second that is expected of it, in MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_mb_s: Option<f64>,
    /// Work per busy second in the last window, in MB.
    pub got_mb_s: f64,
    /// The others, best first, and the one in use.
    pub alternatives: Vec<Alternative>,
    /// The last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<Change>,
    /// Changes so far.
    pub changes: u64,
    /// Arms tried so far.
    pub trials: u64,
    /// Seconds of load so far, with what was remembered.
    pub loaded_s: f64,
    /// Seconds of that spent on trying since the start.
    pub tried_s: f64,
    /// Seconds that may still be spent on it; below 0: that are to be earned first.
    pub budget_s: f64,
    /// What a change costs, in seconds of the device's work.
    pub switch_s: f64,
    /// Kinds of workload known.
    pub contexts: usize,
}

impl Selector {
    /// What it sees, expects, and has decided. O(arms x contexts).
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let knowledge = &self.knowledge;
        let last = self.last.unwrap_or_default();
        let place = self.place.as_ref();
        let expected = place.map(|place| self.expectations(&place.context, &last));
        let alternatives = place.zip(expected.as_ref()).map(|(_, expected)| {
            let now = expected[self.arm];
            let mut list: Vec<Alternative> = (0..self.arms.len())
                .map(|at| Alternative {
                    arm: self.names[at].clone(),
                    gain_percent: ((expected[at].gain - now.gain).exp() - 1.0) * 100.0,
                    uncertainty_percent: ((2.0 * expected[at].deviation).exp() - 1.0) * 100.0,
                    windows: expected[at].windows,
                    verdict: self.verdict(at, expected),
                })
                .collect();
            list.sort_by(|a, b| b.gain_percent.total_cmp(&a.gain_percent));
            list
        });
        Explanation {
            selector: self.settings.kind,
            model: self.prior.as_ref().map(|prior| prior.name()),
            device: self.settings.device,
            workload: place.map(|place| place.context.describe()),
            context: place.map(|place| place.context.to_string()),
            pattern: self
                .pattern
                .as_ref()
                .map(|(at, pattern)| Pattern { ago_s: last.end.since(*at) as f64 * 1e-9, ..pattern.clone() }),
            confidence: place.map_or(0.0, |place| place.alike as f64 / place.windows.max(1) as f64),
            lasts_s: place.map_or(0.0, |place| knowledge.clock_s - place.since_s),
            concurrency: last.concurrency(),
            busy: last.busy_share(),
            arm: self.names[self.arm].clone(),
            mode: match self.mode {
                Mode::Steady => "steady",
                Mode::Trial(_) => "trying",
                Mode::Resting => "resting",
            }
            .to_owned(),
            expected_mb_s: self.expected_rate().map(|rate| rate / 1e6),
            got_mb_s: last.rate() / 1e6,
            alternatives: alternatives.unwrap_or_default(),
            last_change: self
                .change
                .as_ref()
                .map(|(at, change)| Change { ago_s: last.end.since(*at) as f64 * 1e-9, ..change.clone() }),
            changes: self.changes,
            trials: self.trials,
            loaded_s: knowledge.clock_s,
            tried_s: self.tried_s,
            budget_s: knowledge.budget_s,
            switch_s: knowledge.switch_s,
            contexts: knowledge.contexts.len(),
        }
    }

    fn verdict(&self, at: usize, expected: &[super::Expectation]) -> String {
        let one = expected[at];
        if at == self.arm {
            return if at == self.incumbent { "in use" } else { "being tried" }.to_owned();
        }
        let loss = expected[self.incumbent].gain - one.gain;
        let percent = (1.0 - (-loss).exp()) * 100.0;
        match (one.windows > 0.0, self.is_excluded(at, expected)) {
            (true, true) => format!("lost {percent:.0} %: not tried again"),
            (true, false) if loss > 0.0 => format!("was {percent:.1} % worse"),
            (true, false) if self.lets_come_apart(at) => "no better by enough to let programs come apart".to_owned(),
            (true, false) => "as good within what a change costs".to_owned(),
            (false, true) => format!("expected to lose {percent:.0} %: not tried"),
            (false, false) if self.knowledge.budget_s <= 0.0 => "not tried yet: no time left for it now".to_owned(),
            (false, false) => "not tried yet".to_owned(),
        }
    }

    pub(super) fn record_window(&mut self, load: &Load) {
        self.last = Some(*load);
        self.record(load, Why::Window, None, String::new());
    }

    pub(super) fn record(&mut self, load: &Load, why: Why, from: Option<String>, text: String) {
        let known = self.place.as_ref().and_then(|place| self.knowledge.contexts.get(&place.context));
        let best = known.and_then(|known| known.best());
        let own = known.and_then(|known| known.arms.get(&self.names[self.arm]));
        let regret = match why {
            Why::TrialWon | Why::TrialLost => self.trial_gain.map(|gain| (1.0 - gain.exp()).max(0.0)),
            _ => best.zip(own).map(|((_, best), own)| 1.0 - (own.gain - best.gain).exp()),
        };
        let seconds = load.seconds();
        let record = Record {
            t: load.end.0 as f64 * 1e-9,
            why,
            context: self.place.as_ref().map(|place| place.context.to_string()),
            arm: self.names[self.arm].clone(),
            from,
            mb_s: if seconds > 0.0 { load.moved() as f64 / 1e6 / seconds } else { 0.0 },
            rate_mb_s: load.rate() / 1e6,
            expected_mb_s: self.expected_rate().map(|rate| rate / 1e6),
            best: best.map(|(name, _)| name.to_owned()),
            regret,
            pattern: self.pattern.as_ref().map(|(_, pattern)| pattern.class.clone()),
            pattern_confidence: self.pattern.as_ref().map(|(_, pattern)| pattern.confidence),
            text,
        };
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }
}
