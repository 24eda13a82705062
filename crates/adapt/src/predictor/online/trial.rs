//! Whether waiting pays: by the throughput of programs with and without it.
//!
//! What a wait has gained cannot be told from the wait: a batch that grew may have cost more than it saved, since the
//! processes whose requests it held issue their next ones later. So time is cut into *epochs*, and the throughput of each
//! application in an epoch with waiting is compared with that of the same application without:
//!
//! * in the recorded runs, whose pace is known, as long as that tells them apart. A run begins with waiting: processes that
//!   have drifted apart once seldom come together again, so that an epoch without it would spoil what follows.
//! * in an epoch without waiting, where the recorded runs do not tell, or were too slow or too fast for another reason. The
//!   first part of an epoch does not count: what was held in the one before is in it.
//!
//! Where the engine anticipates it is the other way round: processes come into step by themselves, in half a second or so, and one
//! wait before that may keep them from it. So a run begins without waiting there, and what does not pay is seldom tried again.
//!
//! A forecast that does not pay is switched off. It is tried again when what the trial has lost is a small share of the time
//! since. Time is that in which requests come: a pause of the programs does not count.

use sluice_core::{AppId, Time};

/// Longer pauses between two requests are the programs' own, in nanoseconds.
pub(in super::super) const PAUSE_NS: u64 = 100_000_000;
/// Shortest epoch.
const EPOCH_NS: u64 = 100_000_000;
/// Longest.
const EPOCH_MAX_NS: u64 = 500_000_000;
/// An epoch ends when every outstanding request has been replaced so many times.
const ROUNDS: u64 = 3;
/// What does not count before it, in nanoseconds.
const SETTLES_NS: u64 = 50_000_000;
/// Requests of an epoch that are enough.
const ENOUGH: u64 = 64;
/// Weight of the epochs before the newest one, where how fast a run goes on is looked at all the time.
const KEPT: f64 = 0.8;
/// Where the engine anticipates, waiting must have been better in so many pairs: there noise lasts longer than an epoch.
const PAIRS_ANTICIPATING: u32 = 2;
/// Pairs of epochs after which a decision is taken in any case: within two seconds, where enough requests come.
const PAIRS_MAX: u32 = 3;
/// Standard deviation of one pair's result, as long as nothing better is known.
const NOISE: f64 = 0.1;
/// Waiting must gain that much to be worth it: logarithm of a ratio of throughputs.
const GAIN_MIN: f64 = 0.02;
/// What the recorded runs must differ by to tell.
const RECORDED_MIN: f64 = 0.05;
/// Where a run that was faster becomes slower than them by so much, an epoch without waiting is to tell.
const RECORDED_LOSS: f64 = -0.15;
/// Where they differ by so much, nothing else is asked.
const RECORDED_SURE: f64 = 0.2;
/// A trial that loses so much ends in the middle of its first epoch.
const LOSS_MAX: f64 = -0.5;
/// As long as nothing is known, the device may idle in vain so long, in nanoseconds, and so much of the time.
const IDLE_NS: f64 = 5e6;
const IDLE_SHARE: f64 = 0.01;
/// What trials may cost, as a share of the time.
const COST_SHARE: f64 = 0.005;
/// A decision is put to the test after so long at the earliest, in nanoseconds.
const REST_NS: u64 = 2_000_000_000;
/// One that waiting does not pay, where the engine anticipates.
const REST_ANTICIPATING_NS: u64 = 30_000_000_000;
/// At the latest: one that waiting does not pay,
const REST_MAX_NS: u64 = 120_000_000_000;
/// and one that it pays, for what has changed since may do harm for so long.
const REST_PAYS_MAX_NS: u64 = 30_000_000_000;
/// Where the engine anticipates, waiting begins so long after there was something to wait for, in nanoseconds.
const LATE_NS: u64 = 500_000_000;
/// After so long without any request what was seen before is of another program, in nanoseconds.
const FORGETS_NS: u64 = 5_000_000_000;
/// Longest epoch of programs of which little comes.
const EPOCH_SLOW_NS: u64 = 4_000_000_000;
/// Applications that are told apart; more share places.
const APPS: usize = 16;
/// Requests of an application in an epoch that tell something.
const REQUESTS_MIN: u64 = 16;

/// What is known of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// Nothing: there was nothing to wait for, or too little happened.
    #[default]
    Unknown,
    /// It gains.
    Pays,
    /// It does not: nothing is waited for.
    DoesNotPay,
}

/// What an epoch saw of an application.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: u64,
    /// Of its requests to known files: the time between them, and that in the recorded runs, in nanoseconds.
    took: f64,
    recorded: f64,
}

/// An epoch, as far as it counts.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    ns: u64,
    apps: [Seen; APPS],
}

impl Epoch {
    /// Mean of what some applications say; `None`: none says anything.
    fn mean(&self, of: impl Fn(usize, &Seen) -> Option<f64>) -> Option<f64> {
        let said = self.apps.iter().enumerate().filter_map(|(app, seen)| of(app, seen));
        let (sum, count) = said.fold((0.0, 0), |(sum, count), score| (sum + score, count + 1));
        (count > 0).then(|| (sum / f64::from(count)).clamp(-2.0, 2.0))
    }

    /// What was seen before counts less from now on, and this as well.
    fn add(&mut self, newer: &Epoch) {
        for (seen, newer) in self.apps.iter_mut().zip(&newer.apps) {
            seen.requests = (seen.requests as f64 * KEPT) as u64 + newer.requests;
            seen.took = seen.took * KEPT + newer.took;
            seen.recorded = seen.recorded * KEPT + newer.recorded;
        }
    }

    /// Logarithm of the ratio of throughputs of this one and another one.
    fn against(&self, other: &Epoch) -> Option<f64> {
        let rate = |epoch: &Epoch, requests: u64| requests.max(1) as f64 / epoch.ns.max(1) as f64;
        self.mean(|app, seen| {
            let others = other.apps[app].requests;
            // A program that has ended is not one that waiting stops.
            (others >= REQUESTS_MIN && seen.requests > 0)
                .then(|| (rate(self, seen.requests) / rate(other, others)).ln())
        })
    }

    /// The same of this one and the recorded runs.
    fn against_recorded(&self) -> Option<f64> {
        let tells = |seen: &Seen| seen.requests >= REQUESTS_MIN && seen.took > 0.0 && seen.recorded > 0.0;
        self.mean(|_, seen| tells(seen).then(|| (seen.recorded / seen.took).ln()))
    }
}

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    With,
    Without,
    /// As was decided, until the next test.
    Rest,
}

/// Trials of waiting, and what came of them.
#[derive(Debug)]
pub(super) struct Trial {
    /// Time in which requests came, up to `last`.
    clock: u64,
    last: Option<Time>,
    /// Something could have been waited for.
    wanted: bool,
    /// What the first epoch with waiting must not be before, and how long that is after the first wait that was wanted.
    begins: u64,
    late_ns: u64,
    /// Least pairs of epochs by which waiting pays.
    pairs_min: u32,
    /// The shortest rest of what does not pay.
    rest_min: u64,
    phase: Phase,
    /// Of the epoch.
    began: u64,
    /// Before this nothing of it is counted.
    settled: u64,
    epoch: Epoch,
    /// The newest epochs without and with waiting.
    without: Option<Epoch>,
    with: Option<Epoch>,
    /// All since the decision that waiting pays, the older the less.
    recent: Epoch,
    /// Most requests outstanding, and requests that came, in the epoch.
    outstanding: u64,
    requests: u64,
    /// Batches of the epoch that were allowed to wait.
    waits: u32,
    /// Results of the pairs of this test: how many, their sum, and that of their squares.
    pairs: u32,
    sum: f64,
    squares: f64,
    /// Comparisons of this test that told nothing.
    untold: u32,
    /// How far behind the recorded runs this one was when that was put to the test last.
    behind: f64,
    verdict: Verdict,
    gain: f64,
    /// Time that the device has idled in vain while waiting had not shown yet that it pays.
    idled: f64,
    /// End of the rest, and how long it is.
    until: u64,
    rest: u64,
}

impl Trial {
    /// `anticipates`: the engine does.
    pub(super) fn new(anticipates: bool) -> Trial {
        let (phase, late_ns, pairs_min, rest_min) = match anticipates {
            true => (Phase::Without, LATE_NS, PAIRS_ANTICIPATING, REST_ANTICIPATING_NS),
            false => (Phase::With, 0, 1, REST_NS),
        };
        Trial {
            clock: 0,
            last: None,
            wanted: false,
            begins: 0,
            late_ns,
            pairs_min,
            rest_min,
            phase,
            began: 0,
            settled: 0,
            epoch: Epoch::default(),
            without: None,
            with: None,
            recent: Epoch::default(),
            outstanding: 0,
            requests: 0,
            waits: 0,
            pairs: 0,
            sum: 0.0,
            squares: 0.0,
            untold: 0,
            behind: 0.0,
            verdict: Verdict::Unknown,
            gain: 0.0,
            idled: 0.0,
            until: 0,
            rest: 0,
        }
    }

    /// What is known.
    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// By how much waiting made programs faster when that was measured last: 0.1 is a tenth more throughput. 0: not known.
    pub(super) fn gain(&self) -> f64 {
        self.gain.exp() - 1.0
    }

    /// Something could be waited for; whether it may be.
    pub(super) fn allows(&mut self) -> bool {
        self.wanted = true;
        self.phase != Phase::Without && !self.rests_without()
    }

    /// Waiting does not pay, and is not tried now.
    pub(super) fn rests_without(&self) -> bool {
        self.phase == Phase::Rest && self.verdict == Verdict::DoesNotPay
    }

    /// A batch waits.
    pub(super) fn waits(&mut self) {
        self.waits += 1;
    }

    /// Whether the device may idle for a batch. As long as waiting has not shown that it pays, what idling in vain may take
    /// bounds it.
    pub(super) fn may_idle(&self) -> bool {
        let since = self.clock.saturating_sub(self.begins.saturating_sub(self.late_ns));
        self.verdict == Verdict::Pays || self.idled < IDLE_NS + since as f64 * IDLE_SHARE
    }

    /// A wait is over that did not bring all, and in which the device idled so long.
    pub(super) fn idled_in_vain(&mut self, ns: u64) {
        if self.verdict != Verdict::Pays {
            self.idled += ns as f64;
        }
    }

    /// Requests accepted and not complete, now.
    pub(super) fn outstanding(&mut self, requests: u32) {
        self.outstanding = self.outstanding.max(requests.into());
    }

    /// A request has arrived.
    pub(super) fn arrives(&mut self, now: Time, app: AppId) {
        let passed = self.last.map_or(0, |last| now.since(last));
        self.last = Some(now);
        self.clock += passed.min(PAUSE_NS);
        if passed > FORGETS_NS && self.verdict == Verdict::Unknown {
            *self = Trial { clock: self.clock, last: self.last, ..Trial::new(self.late_ns > 0) };
        }
        if !self.wanted {
            (self.began, self.settled) = (self.clock, self.clock + SETTLES_NS);
            self.begins = self.clock + self.late_ns;
            self.outstanding = 0;
        }
        if self.clock >= self.settled {
            self.requests += 1;
            self.epoch.ns = self.clock - self.settled;
            self.epoch.apps[app.0 as usize % APPS].requests += 1;
        }
        if self.is_over() {
            self.next();
        }
    }

    /// It came so long after the one before it of its file, and in the recorded runs so long.
    pub(super) fn advances(&mut self, app: AppId, took_ns: f64, recorded_ns: f64) {
        if self.wanted && self.clock >= self.settled {
            let seen = &mut self.epoch.apps[app.0 as usize % APPS];
            seen.took += took_ns;
            seen.recorded += recorded_ns;
        }
    }

    fn is_over(&self) -> bool {
        let tells = self.epoch.apps.iter().any(|seen| seen.requests >= REQUESTS_MIN);
        if self.phase == Phase::Rest {
            let ends = self.clock >= self.until && self.epoch.ns >= EPOCH_NS;
            return ends || self.epoch.ns >= EPOCH_MAX_NS;
        }
        if self.epoch.ns >= if tells { EPOCH_MAX_NS } else { EPOCH_SLOW_NS } {
            return true;
        }
        let is_disaster = || {
            let score =
                self.without.map_or_else(|| self.epoch.against_recorded(), |without| self.epoch.against(&without));
            self.phase == Phase::With && self.epoch.ns >= EPOCH_NS / 3 && score.is_some_and(|score| score < LOSS_MAX)
        };
        let is_whole = self.epoch.ns >= EPOCH_NS && self.requests >= ENOUGH.max(ROUNDS * self.outstanding);
        is_whole || (tells && is_disaster())
    }

    fn begin(&mut self, phase: Phase) {
        // What rests goes on as before.
        self.settled = self.clock + if phase == Phase::Rest { 0 } else { SETTLES_NS };
        self.phase = phase;
        self.began = self.clock;
        self.epoch = Epoch::default();
        (self.requests, self.waits, self.outstanding) = (0, 0, 0);
    }

    /// An epoch is over.
    fn next(&mut self) {
        let (epoch, waited) = (self.epoch, self.waits > 0);
        match (self.phase, self.verdict) {
            (Phase::With, verdict) => {
                if !waited {
                    return self.begin(Phase::With);
                }
                self.with = Some(epoch);
                let recorded = epoch.against_recorded();
                // What comes into step by itself soon is faster than the recorded runs were at that time, whoever waits.
                let asks_both = self.late_ns > 0 && self.without.is_some();
                match (verdict, recorded) {
                    (Verdict::Unknown, Some(score)) if score > RECORDED_MIN && !asks_both => self.decide(true, score),
                    (Verdict::Unknown, Some(score)) if score < -RECORDED_MIN => self.decide(false, score),
                    _ if self.without.is_some() => self.compare(),
                    _ => self.begin(Phase::Without),
                }
            }
            (Phase::Without, _) => {
                self.without = Some(epoch);
                match self.with {
                    Some(_) => self.compare(),
                    None if self.clock < self.begins => self.begin(Phase::Without),
                    None => self.begin(Phase::With),
                }
            }
            (Phase::Rest, Verdict::DoesNotPay) => {
                self.without = Some(epoch);
                let over = self.clock >= self.until;
                self.begin(if over { Phase::With } else { Phase::Rest });
            }
            (Phase::Rest, _) => {
                self.with = Some(epoch);
                self.recent.add(&epoch);
                let recorded = self.recent.against_recorded().unwrap_or(0.0);
                let falls = recorded < self.behind + RECORDED_LOSS;
                let tests = waited && (falls || (self.clock >= self.until && recorded < RECORDED_SURE));
                if tests {
                    self.behind = recorded.min(0.0);
                }
                self.begin(if tests { Phase::Without } else { Phase::Rest });
            }
        }
    }

    /// Epochs with and without waiting are to be compared.
    fn compare(&mut self) {
        let Some(score) = self.with.zip(self.without).and_then(|(with, without)| with.against(&without)) else {
            self.untold += 1;
            if self.untold > PAIRS_MAX {
                return self.decide(false, 0.0);
            }
            return self.begin(if self.phase == Phase::With { Phase::Without } else { Phase::With });
        };
        self.pairs += 1;
        self.sum += score;
        self.squares += score * score;
        let pairs = f64::from(self.pairs);
        let mean = self.sum / pairs;
        let variance = (self.squares / pairs - mean * mean).max(0.0);
        // The noise that was assumed weighs as much as two pairs.
        let error = ((2.0 * NOISE * NOISE + variance * pairs) / (2.0 + pairs) / pairs).sqrt();
        let is_open = (mean - GAIN_MIN).abs() < error && self.pairs < PAIRS_MAX;
        if is_open || (mean > 0.0 && self.pairs < self.pairs_min) {
            let next = if self.phase == Phase::With { Phase::Without } else { Phase::With };
            return self.begin(next);
        }
        self.decide(mean - error > GAIN_MIN, mean);
    }

    fn decide(&mut self, pays: bool, score: f64) {
        let verdict = if pays { Verdict::Pays } else { Verdict::DoesNotPay };
        let before = std::mem::replace(&mut self.verdict, verdict);
        self.gain = score;
        // What a test may cost: what its epochs with waiting lose, or those without do not gain.
        let lasted = (self.clock - self.began) * u64::from(self.pairs.max(1));
        let cost = lasted as f64 * (1.0 - (-score.abs()).exp());
        let (rest_min, rest_max) = if pays { (REST_NS, REST_PAYS_MAX_NS) } else { (self.rest_min, REST_MAX_NS) };
        let least = if before == verdict { self.rest.saturating_mul(2) } else { rest_min };
        self.rest = ((cost / COST_SHARE) as u64).max(least).min(rest_max);
        self.untold = 0;
        (self.pairs, self.sum, self.squares) = (0, 0.0, 0.0);
        self.recent = self.with.unwrap_or_default();
        self.begin(Phase::Rest);
        self.until = self.clock + self.rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// In which millisecond a batch is allowed to wait first, of requests that come one in a millisecond.
    fn first_wait(anticipates: bool) -> u64 {
        let mut trial = Trial::new(anticipates);
        let mut allowed = |ms: u64| {
            trial.arrives(Time(ms * MS), AppId(0));
            trial.advances(AppId(0), 1e6, 1e6);
            // Nothing to wait for in the first ten seconds.
            ms >= 10_000 && trial.allows()
        };
        (0..20_000).find(|&ms| allowed(ms)).unwrap() - 10_000
    }

    #[test]
    fn waiting_begins_at_once_or_where_the_engine_anticipates_half_a_second_late() {
        assert_eq!(first_wait(false), 0);
        let late = first_wait(true);
        assert!((500..700).contains(&late), "{late} ms");
    }

    /// Programs whose requests come at an even pace, but for chance.
    struct Programs {
        trial: Trial,
        now: u64,
        random: u64,
    }

    impl Programs {
        fn new(anticipates: bool) -> Programs {
            Programs { trial: Trial::new(anticipates), now: 0, random: 1 }
        }

        /// For so many milliseconds a request each `every_ms` of one of `apps` by turns, which takes `slower` times as long while
        /// something is waited for, and took `recorded_ms` in the recorded runs, if that is known. Share of the time with waiting.
        fn go(&mut self, ms: u64, apps: &[u32], every_ms: f64, slower: f64, recorded_ms: f64) -> f64 {
            let (end, mut waited, mut total) = (self.now + ms * MS, 0.0, 0.0);
            for app in apps.iter().cycle() {
                if self.now >= end {
                    break;
                }
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let chance = 0.8 + 0.4 * (self.random >> 40) as f64 / (1 << 24) as f64;
                let waits = self.trial.allows();
                let took = every_ms * 1e6 * chance * if waits { slower } else { 1.0 };
                if waits {
                    self.trial.waits();
                    waited += took;
                }
                total += took;
                self.now += took as u64;
                self.trial.arrives(Time(self.now), AppId(*app));
                if recorded_ms > 0.0 {
                    self.trial.advances(AppId(*app), took, recorded_ms * 1e6);
                }
            }
            waited / total
        }
    }

    #[test]
    fn waiting_that_does_harm_ends_however_few_requests_come() {
        for anticipates in [false, true] {
            for (apps, every_ms) in [(1, 1.0), (1, 5.0), (1, 20.0), (1, 33.0), (4, 9.0), (8, 4.0)] {
                let apps: Vec<u32> = (0..apps).collect();
                let waited = Programs::new(anticipates).go(600_000, &apps, every_ms, 2.0, 0.0);
                assert!(waited < 0.03, "{anticipates}, {} each {every_ms} ms: {waited}", apps.len());
            }
        }
    }

    #[test]
    fn what_has_paid_and_does_harm_now_ends_within_forty_seconds() {
        for (anticipates, before_ms) in [(false, 5_000), (false, 100_000), (true, 5_000), (true, 100_000)] {
            let mut programs = Programs::new(anticipates);
            programs.go(before_ms, &[0], 1.0, 0.6, 0.0);
            assert_eq!(programs.trial.verdict(), Verdict::Pays);
            let harm = programs.go(300_000, &[0], 1.0, 2.0, 0.0) * 300.0;
            assert!(harm < 40.0, "{anticipates}, after {before_ms} ms: {harm} s");
        }
    }

    #[test]
    fn a_run_behind_the_recorded_ones_is_not_put_to_the_test_again_and_again() {
        for anticipates in [false, true] {
            let mut programs = Programs::new(anticipates);
            programs.go(10_000, &[0], 2.0, 0.5, 2.0);
            let waited = programs.go(300_000, &[0], 4.0, 0.5, 1.6);
            assert!(waited > 0.95, "{anticipates}: {waited}");
        }
    }

    #[test]
    fn a_program_that_has_ended_is_not_one_that_waiting_stops() {
        for (anticipates, first_ms) in [(false, 120), (false, 400), (true, 300), (true, 560)] {
            let mut programs = Programs::new(anticipates);
            programs.go(first_ms, &[0], 1.0, 0.7, 0.0);
            programs.now += 60_000 * MS;
            let waited = programs.go(25_000, &[1], 1.0, 0.7, 0.0);
            assert!(waited > 0.9, "{anticipates}, after {first_ms} ms: {waited}");
        }
    }
}
