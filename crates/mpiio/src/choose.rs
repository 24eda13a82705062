//! Which strategy serves a collective call best: a model says what is worth trying, and what came of it decides.
//!
//! The model is of the time that the slowest server needs (positioning and transfer, from a profile of its device) and that the
//! exchange takes (latency and bandwidth, measured when that first matters). It only ranks: before a strategy is used,
//! the library's own collective call is timed for calls of that kind, and only what is expected to be faster than that is tried.
//! How wrong the model was of what was tried corrects what it says next.
//!
//! What is bounded is the loss, not the number of trials. What a trial is *expected* to lose, where strategies take between 1/[`DOUBT`]
//! and [`DOUBT`] times as long as predicted, is at most [`LOSS`] of the time of collective calls so far, with all that looks and trials
//! have lost before; and should it take [`DOUBT`] times as long, and the program end then, less than [`WORST`] is lost. So a gain
//! beyond the model's error is tried after some six calls, and a doubtful one when there has been time to pay for it. The model
//! may be wrong of the devices and right of how calls compare: if it is wrong of the library's calls, it is taken to be as wrong of others
//! where that makes them slower, and doubted less where it makes them faster.
//!
//! Another program on the same disks makes single calls take ten times as long, whoever carries them out. So what is compared is what
//! calls usually take and what they take on average (`known.rs`), not the last two; what a strategy lost in a call that may
//! have been disturbed is pardoned as far as the library's own calls turn out to be disturbed; a half of what strategies gain pays for
//! later trials; and nothing is for ever. What was found slower may be tried again after 16 calls, then after twice as many each time. After
//! two calls in a row that were slower than the library's, by strategies that are slower by what is known of them, the file is left
//! to the library for `REST` calls, the next time, after one such call, for twice as many, and so on; so it is after
//! `DULL` looks in a row, later one, that found nothing to gain. What is faster than the library goes on, and what may be
//! faster still is tried beside it when it is affordable, ever more seldom.
//!
//! A look at a call costs, too: a message among all, and ranges. After one that left the call to the library, so many calls go there
//! without a look, nor a word between processes, that looks cost [`LOOKS`], and that the trial is affordable then. Calls
//! that are [`SHORT`] are left alone.
//! What was measured, spent and lost is kept for the next file of the same processes ([`Chooser::next_file`]), so that programs of
//! many files do not try anew in each.

use std::collections::HashMap;

use crate::known::{DISTURBED, Known};
use crate::plan::{Call, Strategy};

/// Calls in a row that nothing is expected of, after which a file is left alone for a while.
const DULL: u32 = 8;
/// Calls that strategies are slower in, one after the other, after which it is, too.
const WRONG: u32 = 2;
/// For how many calls, the first time; then for twice as many each time.
const REST: u32 = 64;
/// For how many at most.
const LONGEST_REST: u32 = 1 << 20;
/// What a strategy may be expected to take of the library's time to be tried.
const WORTHWHILE: f64 = 0.85;
/// Calls with a strategy, before another one is tried that may be faster still; then after twice as many each time.
const SETTLED_IN: u64 = 8;
/// Calls of a kind that the library carries out before anything else does: the first one has costs of its own.
const BASELINE: u64 = 2;
/// Share of the time of collective calls that trials and looks may be expected to lose.
pub const LOSS: f64 = 0.01;
/// The same at worst, in a program that ends after a trial.
pub const WORST: f64 = 0.018;
/// Share of the same that looks at calls which are left to the library may take.
pub const LOOKS: f64 = 0.004;
/// Calls that the library carries out in less, in seconds, are left to it: messages and positioning are not short against them.
pub const SHORT: f64 = 2e-3;
/// How many times longer than predicted what was never tried may take, as far as risks go.
pub const DOUBT: f64 = 1.5;
/// The same where it depends on what a file system keeps, which nobody tells.
const MORE_DOUBT: f64 = 3.0;
/// What a trial is expected to lose at least, of the library's time: one prediction of twenty is about something else, and the call
/// takes twice as long. So there are some calls before the first one.
const SURPRISE: f64 = 0.05;
/// Times what calls usually take; above it the mean of many is of disturbed ones.
const CALM: f64 = 1.25;
/// Times the library's time; what is expected to take longer is not tried, however calls compare in the model.
const HOPELESS: f64 = 2.0;
/// Messages to each process that measuring what they take is about, and that what processes tell each other in a look is.
const MEASURING: f64 = 12.0;
const GATHERS: f64 = 2.0;
/// Calls that go without a look at most.
const MOST_SKIPPED: f64 = 1000.0;

/// Times that predictions are made of, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Until a server's device is at a place that it does not come by anyway.
    pub position: f64,
    /// Of a byte of the device, in sequence.
    pub byte: f64,
    /// Of one request, on its way.
    pub request: f64,
    /// Of a message.
    pub message: f64,
    /// Of a byte sent.
    pub sent: f64,
}

impl Default for Costs {
    /// A hard disk behind a network; its profile and a measurement of the network say better.
    fn default() -> Costs {
        Costs { position: 5e-3, byte: 1e-8, request: 1e-4, message: 5e-5, sent: 1e-9 }
    }
}

impl Costs {
    /// What a call takes; infinite if it cannot be done so. `write`: it writes. O(pieces).
    #[must_use]
    pub fn predict(&self, call: &Call, write: bool, strategy: Strategy) -> f64 {
        let bytes = call.bytes() as f64;
        let ranks = call.ranks as f64;
        let servers = 0..call.servers;
        let slowest = |positions: &dyn Fn(usize) -> f64| {
            let of_server = |s: usize| positions(s) * self.position + call.bytes_of_server(s) as f64 * self.byte;
            servers.clone().map(of_server).fold(0.0, f64::max)
        };
        let runs = call.runs();
        let chunks = call.chunks();
        let ascending = slowest(&|server| runs[server] as f64);
        let mut requests = vec![0usize; call.ranks];
        call.pieces.iter().for_each(|piece| requests[piece.owner] += 1);
        let most = requests.iter().copied().max().unwrap_or(0) as f64;
        let exchange = bytes / ranks * self.sent + ranks * self.message;
        match strategy {
            // File domains of equal size, one of each process: a server has some of all of them, whose chunks come in an order
            // that nobody sets (4.1.2).
            Strategy::Library => {
                let random = |server: usize| (chunks[server] as f64).max(runs[server] as f64);
                slowest(&random) + exchange
            }
            Strategy::Agents if call.overlaps() => f64::INFINITY,
            Strategy::Agents => ascending + exchange + call.pieces.len() as f64 / ranks * self.request / 64.0,
            Strategy::Early if write => f64::INFINITY,
            // Only where what was asked for is kept, which nobody tells.
            Strategy::Early => 1.1 * (ascending + most * self.request + self.message),
            Strategy::Timed if !call.is_ordered() => f64::INFINITY,
            Strategy::Timed => {
                let groups = (ranks / call.servers as f64).ceil();
                1.05 * (ascending + most * self.request + groups * (self.message + DELAY))
            }
        }
    }
}

/// Between the requests of processes that are timed, in seconds (0.1 to 1 ms do, 4.2.4).
pub const DELAY: f64 = 2e-4;

/// Calls that are alike: direction, and the powers of two of their bytes and of the mean length of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// It writes.
    pub write: bool,
    /// log2 of the bytes of all processes.
    pub bytes: u32,
    /// log2 of the mean bytes of a range.
    pub range: u32,
}

/// What came of a file's calls of a kind with a strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How many there were.
    pub calls: u64,
    /// Bytes of all processes.
    pub bytes: i64,
    /// Of the slowest process, together.
    pub seconds: f64,
    /// What was predicted of them.
    pub predicted: f64,
}

/// A call whose end has not been told.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    kind: Kind,
    strategy: Strategy,
    bytes: i64,
    predicted: f64,
}

/// What the call before this one took, in seconds of the slowest process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ended {
    /// From when it was known how it is carried out.
    pub call: f64,
    /// Looking at it: until then, without waiting for others.
    pub look: f64,
    /// Calls since the one before it that nobody looked at, together.
    pub skipped: f64,
}

/// What a call loses on average, in seconds, that takes from `expected / doubt` to `expected * doubt` seconds, in equal parts of
/// powers, where the library takes `library`.
fn expected_loss(expected: f64, doubt: f64, library: f64) -> f64 {
    let even = (library / expected).max(1.0 / doubt);
    match doubt {
        doubt if doubt <= 1.0 => (expected - library).max(0.0),
        doubt if even >= doubt => 0.0,
        doubt => (expected * (doubt - even) - library * (doubt / even).ln()) / (2.0 * doubt.ln()),
    }
}

/// What is to be said of trying a strategy, in seconds.
#[derive(Clone, Copy, Debug)]
struct Trial {
    strategy: Strategy,
    /// By the model alone.
    told: f64,
    expected: f64,
    /// Without what disturbs it.
    usual: f64,
    /// How many times longer it may take.
    doubt: f64,
    /// What it takes if all goes well.
    hoped: f64,
    /// The number of calls before which it is not tried.
    due: u64,
}

impl Trial {
    fn worst(&self) -> f64 {
        self.expected * self.doubt
    }
}

/// Also later the library is timed, ever more seldom: what its first calls took may have had other reasons. Where the gain is beyond
/// what noise explains, half as often.
fn is_probe(used: &Known, library: &Known) -> bool {
    let step = if used.usual() * DOUBT < library.usual() { 2 } else { 1 };
    used.calls.is_power_of_two()
        && used.calls.ilog2().is_multiple_of(step)
        && library.calls <= used.library + u64::from(used.calls.ilog2() / step)
}

/// Decides for a file; the same on every process, as all see the same.
#[derive(Debug)]
pub struct Chooser {
    costs: Costs,
    /// Times of messages: measured, and to be measured since something may come of it.
    is_measured: bool,
    wants_costs: bool,
    forced: Option<Strategy>,
    outcomes: HashMap<(Kind, Strategy), Outcome>,
    known: HashMap<(Kind, Strategy), Known>,
    /// How many times longer than predicted what was tried has taken, lately.
    corrections: HashMap<Strategy, f64>,
    /// Time of collective calls of these processes, and what of it the library alone would not have taken, in seconds.
    spent: f64,
    lost: f64,
    /// What of that was lost in calls that may have been disturbed.
    doubtful: f64,
    /// Of a look: the shorter and the last one of the last two; and of the call that it was for, in seconds.
    look: f64,
    last_look: f64,
    call: f64,
    /// All calls so far.
    asked: u64,
    /// Calls that go to the library without a look, and those that have gone.
    skipping: u32,
    skipped: u32,
    running: Option<Running>,
    wrong: u32,
    dull: u32,
    /// Why the file is left alone, and how often it has been.
    rest: Option<Rest>,
    rests: u32,
}

/// Why a file is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Slower,
    NothingToGain,
}

impl Chooser {
    /// With these costs; always with `forced`, where it can be done, if given.
    #[must_use]
    pub fn new(costs: Costs, forced: Option<Strategy>) -> Chooser {
        Chooser {
            costs,
            is_measured: false,
            wants_costs: false,
            forced,
            outcomes: HashMap::new(),
            known: HashMap::new(),
            corrections: HashMap::new(),
            spent: 0.0,
            lost: 0.0,
            doubtful: 0.0,
            look: 0.0,
            last_look: f64::INFINITY,
            call: 0.0,
            asked: 0,
            skipping: 0,
            skipped: 0,
            running: None,
            wrong: 0,
            dull: 0,
            rest: None,
            rests: 0,
        }
    }

    /// For another file of the same processes on servers of the same layout: with what is known.
    #[must_use]
    pub fn next_file(self, forced: Option<Strategy>) -> Chooser {
        let skipping = if self.rest.is_some() { 0 } else { self.skipping };
        Chooser {
            outcomes: HashMap::new(),
            running: None,
            skipping,
            wrong: 0,
            dull: 0,
            rest: None,
            rests: 0,
            forced,
            ..self
        }
    }

    /// Whether the file is left alone: its next calls go to the library without a word between processes.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.rest.is_some() && self.skipping > 0
    }

    /// Whether somebody else has decided.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Asked once for each call, by all processes: whether it goes to the library without a word between them.
    pub fn skips(&mut self) -> bool {
        let skips = match self.forced {
            None => self.skipping > 0,
            forced => forced == Some(Strategy::Library),
        };
        self.asked += 1;
        self.skipping = self.skipping.saturating_sub(1);
        self.skipped += u32::from(skips);
        skips
    }

    /// Whether times of messages are to be measured, which costs some: only where something may come of it.
    #[must_use]
    pub fn wants_costs(&self) -> bool {
        self.wants_costs
    }

    /// They were: seconds of a message, and of a byte sent.
    pub fn measured(&mut self, message: f64, sent: f64) {
        self.costs = Costs { message, sent, ..self.costs };
        (self.is_measured, self.wants_costs) = (true, false);
    }

    /// Why, for reports.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self.rest {
            _ if self.forced == Some(Strategy::Library) => "the library, as told",
            Some(Rest::Slower) => "the library: slower than it twice in a row",
            Some(Rest::NothingToGain) => "the library: nothing to gain",
            None => "open",
        }
    }

    /// How a call is carried out. O(pieces log pieces).
    pub fn choose(&mut self, call: &Call, kind: Kind) -> Strategy {
        let is_safe = !(kind.write && call.overlaps());
        let predicted = |strategy| self.costs.predict(call, kind.write, strategy);
        let of_library = predicted(Strategy::Library);
        let (strategy, told) = match self.forced {
            Some(forced) if is_safe && predicted(forced).is_finite() => (forced, predicted(forced)),
            None if is_safe && !self.rests() => {
                let candidates = [Strategy::Agents, Strategy::Early, Strategy::Timed].map(|s| (s, predicted(s)));
                self.judge(kind, &candidates, of_library, call)
            }
            _ => {
                self.skip();
                (Strategy::Library, of_library)
            }
        };
        self.running = Some(Running { kind, strategy, bytes: call.bytes(), predicted: told });
        strategy
    }

    /// Whether the library carries out a call of this kind, whatever its ranges are, which then nobody has to tell.
    #[must_use]
    pub fn leaves(&self, kind: Kind, bytes: i64) -> bool {
        let library = self.known(kind, Strategy::Library);
        self.forced.is_none() && (library.calls < BASELINE || library.usual() * (bytes as f64) < SHORT)
    }

    fn known(&self, kind: Kind, strategy: Strategy) -> Known {
        self.known.get(&(kind, strategy)).copied().unwrap_or_default()
    }

    fn judge(&mut self, kind: Kind, candidates: &[(Strategy, f64)], predicted: f64, call: &Call) -> (Strategy, f64) {
        let left = (Strategy::Library, predicted);
        let library = self.known(kind, Strategy::Library);
        let finite: Vec<(Strategy, f64)> = candidates.iter().copied().filter(|(_, told)| told.is_finite()).collect();
        let is_better = |&&(strategy, _): &&(Strategy, f64)| {
            let tried = self.known(kind, strategy);
            tried.calls > 0 && !tried.is_slower(&library)
        };
        let mean = |&(strategy, _): &(Strategy, f64)| self.known(kind, strategy).mean();
        let best = finite.iter().filter(is_better).min_by(|a, b| mean(a).total_cmp(&mean(b))).copied();
        match best {
            Some(best) if is_probe(&self.known(kind, best.0), &library) => left,
            Some(best) => self.rival(kind, best, &finite, call.bytes() as f64).unwrap_or(best),
            None => self.first(kind, &finite, predicted, call).unwrap_or(left),
        }
    }

    /// What may be faster than `best`, which is faster than the library, and is to be tried now.
    fn rival(
        &mut self,
        kind: Kind,
        best: (Strategy, f64),
        candidates: &[(Strategy, f64)],
        bytes: f64,
    ) -> Option<(Strategy, f64)> {
        let (used, library) = (self.known(kind, best.0), self.known(kind, Strategy::Library));
        if used.calls < SETTLED_IN {
            return None;
        }
        let is_rival = |trial: &Trial| {
            let of_best = if trial.doubt > 1.0 { used.usual() * trial.doubt } else { used.mean() };
            trial.hoped < of_best * bytes * WORTHWHILE
                && trial.due <= self.asked
                && self.needed(trial, &library, bytes, 0.0) <= self.spent
        };
        // As wrong as the model is of the best one, it is of the others.
        let ratio = used.usual() * bytes / best.1;
        let others = candidates.iter().filter(|(strategy, _)| *strategy != best.0);
        let rivals = others.map(|other| self.trial(kind, other, ratio, bytes)).filter(is_rival);
        let rival = rivals.min_by(|a, b| a.worst().total_cmp(&b.worst()))?;
        let asked = self.asked;
        self.known.entry((kind, rival.strategy)).or_default().put_off(asked);
        Some((rival.strategy, rival.told))
    }

    /// What may be faster than the library, and is to be tried now, where nothing is known to be.
    fn first(
        &mut self,
        kind: Kind,
        candidates: &[(Strategy, f64)],
        predicted: f64,
        call: &Call,
    ) -> Option<(Strategy, f64)> {
        let (library, bytes) = (self.known(kind, Strategy::Library), call.bytes() as f64);
        let of_library = library.usual() * bytes;
        // How much slower the library is than the model says.
        let slower = if predicted > 0.0 { of_library / predicted } else { 1.0 };
        // Where the model was wrong about all that was tried, it is about the rest.
        let least = self.corrections.values().copied().min_by(f64::total_cmp).unwrap_or(1.0);
        let trials = candidates.iter().map(|candidate| {
            let correction = self.corrections.get(&candidate.0).copied().unwrap_or(least);
            let trial = self.trial(kind, candidate, correction.max(slower), bytes);
            // At best the model of the devices is too slow, too.
            Trial { hoped: if trial.doubt > 1.0 { trial.expected * slower.min(1.0) } else { 0.0 }, ..trial }
        });
        let is_hopeful = |trial: &Trial| trial.hoped <= of_library * WORTHWHILE && trial.usual <= of_library * HOPELESS;
        let waits = |trial: &Trial| trial.due > self.asked;
        let sooner = |a: &Trial, b: &Trial| waits(a).cmp(&waits(b)).then(a.worst().total_cmp(&b.worst()));
        let Some(trial) = trials.filter(is_hopeful).min_by(sooner) else {
            self.cannot();
            return None;
        };
        self.dull = 0;
        // Not where the exchange is a small part, nor where it does not matter how right the model is.
        let ranks = call.ranks as f64;
        let exchange = bytes / ranks * self.costs.sent + ranks * self.costs.message;
        let is_clear = trial.worst() <= of_library || exchange <= SURPRISE * of_library;
        let measuring = if self.is_measured || is_clear { 0.0 } else { MEASURING * ranks * self.costs.message };
        let needed = self.needed(&trial, &library, bytes, measuring);
        let waits = (trial.due.saturating_sub(self.asked) as f64).max((needed - self.spent) / of_library);
        if waits > 0.0 {
            self.skip();
            // What the library's calls take meanwhile may say that less was lost.
            let most = if self.doubtful > 0.0 { f64::from(REST) } else { MOST_SKIPPED };
            self.skipping = self.skipping.max(waits.min(most) as u32);
            return None;
        }
        // If so, the next call is looked at with what these processes' messages take.
        self.wants_costs = measuring > 0.0;
        (!self.wants_costs).then_some((trial.strategy, trial.told))
    }

    /// What is to be said of a trial, where strategies take `ratio` times as long as predicted.
    fn trial(&self, kind: Kind, &(strategy, told): &(Strategy, f64), ratio: f64, bytes: f64) -> Trial {
        let (tried, library) = (self.known(kind, strategy), self.known(kind, Strategy::Library));
        let (expected, usual, doubt) = match strategy {
            _ if tried.calls > 0 && !tried.is_disturbed(&library) => {
                (tried.steady(&library) * bytes, tried.usual() * bytes, 1.0)
            }
            Strategy::Early => (told * ratio, told * ratio, MORE_DOUBT),
            _ => (told * ratio, told * ratio, DOUBT),
        };
        Trial { strategy, told, expected, usual, doubt, hoped: expected, due: tried.due }
    }

    /// The time that there has to have been for a trial.
    fn needed(&self, trial: &Trial, library: &Known, bytes: f64, measuring: f64) -> f64 {
        let of_library = if trial.doubt > 1.0 { library.usual() } else { library.expected() } * bytes;
        let sure = self.lost + self.look + measuring;
        // Between all that it may take.
        let (least, most) = (trial.hoped / trial.doubt, trial.worst());
        let loss = match trial.doubt {
            doubt if doubt > 1.0 => expected_loss((least * most).sqrt(), (most / least).sqrt(), of_library),
            doubt => expected_loss(trial.expected, doubt, of_library),
        };
        let on_average = sure + loss + SURPRISE * of_library;
        let at_worst = sure + (trial.worst() - of_library).max(0.0);
        (on_average / LOSS).max(at_worst / WORST - of_library)
    }

    /// After a look that was in vain: how many calls go without.
    fn skip(&mut self) {
        if self.call > 0.0 {
            let skipping = (self.look / (LOOKS * self.call)).min(MOST_SKIPPED) as u32;
            self.skipping = self.skipping.max(skipping);
        }
    }

    /// The file is left alone, each time for twice as long; what then comes first decides whether it is again.
    fn leave_alone(&mut self, why: Rest) {
        if self.forced.is_none() {
            let calls = REST.checked_shl(self.rests).unwrap_or(LONGEST_REST).clamp(REST, LONGEST_REST);
            self.skipping = self.skipping.max(calls);
            self.rest = Some(why);
            self.rests = (self.rests + 1).min(LONGEST_REST.ilog2());
            (self.wrong, self.dull) = (WRONG - 1, DULL - 1);
        }
    }

    /// A call that nothing is expected of, or that cannot be served.
    pub fn cannot(&mut self) {
        let rests = self.rests();
        self.dull += 1;
        self.skip();
        if self.dull >= DULL && !rests {
            self.leave_alone(Rest::NothingToGain);
        }
    }

    /// A call that the library carries out without ranges having been looked at.
    pub fn left(&mut self, kind: Kind, bytes: i64) {
        self.running = Some(Running { kind, strategy: Strategy::Library, bytes, predicted: 0.0 });
        let is_short = self.known(kind, Strategy::Library).calls >= BASELINE;
        if is_short { self.cannot() } else { self.skip() }
    }

    /// What the last call took. O(1).
    pub fn ended(&mut self, ended: Ended) {
        self.spent += ended.call + ended.skipped;
        if ended.call > 0.0 {
            let look = ended.look + GATHERS * self.costs.message;
            // One that took longer than the one before had other reasons.
            (self.look, self.last_look, self.call) = (look.min(self.last_look), look, ended.call);
            self.lost += look;
        }
        let skipped = std::mem::take(&mut self.skipped);
        if let Some(running) = self.ended_alone(ended) {
            self.learn(running, ended.call);
            // Calls that nobody looked at are like the one before them, if they took as long.
            let rate = ended.skipped / f64::from(skipped) / running.bytes as f64;
            let known = self.known.get_mut(&(running.kind, Strategy::Library)).filter(|known| {
                let usual = known.usual();
                running.strategy == Strategy::Library && (0.25 * usual..4.0 * usual).contains(&rate)
            });
            let Some(known) = known else { return };
            known.add_many(rate, f64::from(skipped));
            if rate > CALM * known.usual() {
                let beyond = ended.skipped - f64::from(skipped) * known.usual() * running.bytes as f64;
                self.library_disturbed(beyond);
            }
        }
    }

    /// The library's own calls took so much longer than they usually do: so much of what strategies have lost in such calls was not
    /// theirs.
    fn library_disturbed(&mut self, seconds: f64) {
        let pardoned = seconds.min(self.doubtful);
        self.doubtful -= pardoned;
        self.lost -= pardoned;
    }

    /// As [`Chooser::ended`] where the others are not told the same: it counts, and nothing is learned. Gives what has ended.
    pub fn ended_alone(&mut self, ended: Ended) -> Option<Running> {
        let running @ Running { kind, strategy, bytes, predicted } =
            self.running.take().filter(|running| running.bytes > 0 && ended.call > 0.0)?;
        let outcome = self.outcomes.entry((kind, strategy)).or_default();
        outcome.calls += 1;
        outcome.bytes += bytes;
        outcome.seconds += ended.call;
        outcome.predicted += predicted;
        Some(running)
    }

    fn learn(&mut self, Running { kind, strategy, bytes, predicted }: Running, seconds: f64) {
        let library = self.known.get(&(kind, Strategy::Library)).copied();
        let is_library = strategy == Strategy::Library;
        // The library alone would not have looked.
        let rate = (seconds + if is_library { 0.0 } else { self.look }) / bytes as f64;
        let known = self.known.entry((kind, strategy)).or_default();
        if is_library {
            let beyond = seconds - known.usual() * bytes as f64;
            if known.calls > BASELINE && rate > DISTURBED * known.usual() {
                self.library_disturbed(beyond);
            }
            self.known.entry((kind, strategy)).or_default().add_of_library(rate);
            return;
        }
        known.add(rate);
        let Some(library) = library.filter(|_| self.forced.is_none()) else { return };
        if known.calls == 1 {
            known.library = library.calls;
        }
        let is_disturbed = known.is_disturbed(&library);
        let is_slower = rate > library.usual() && known.is_slower(&library);
        if is_slower {
            known.put_off(self.asked);
        }
        if !is_disturbed {
            self.corrections.insert(strategy, (known.usual() * bytes as f64 / predicted).max(1.0));
        }
        // Gains count by a half: what they are against is known by chance.
        let difference = match seconds - library.expected() * bytes as f64 {
            gain @ ..0.0 => 0.5 * gain,
            loss => loss,
        };
        self.lost += difference;
        if rate > DISTURBED * library.usual() {
            self.doubtful += difference.max(0.0);
        }
        self.wrong = if is_slower && !is_disturbed { self.wrong + 1 } else { 0 };
        if self.wrong >= WRONG {
            self.leave_alone(Rest::Slower);
        } else if !is_slower {
            self.rest = None;
        }
    }

    /// What came of what, in a fixed order.
    #[must_use]
    pub fn outcomes(&self) -> Vec<(Kind, Strategy, Outcome)> {
        let mut all: Vec<_> =
            self.outcomes.iter().map(|(&(kind, strategy), &outcome)| (kind, strategy, outcome)).collect();
        all.sort_by_key(|&(kind, strategy, _)| (kind.write, kind.bytes, kind.range, strategy));
        all
    }
}
