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
//! A look at a call costs, too: a message among all, and ranges. After one that left the call to the library, so many calls go there
//! without a look, nor a word between processes, that looks cost [`LOOKS`], and that the trial is affordable then. Calls
//! that are [`SHORT`] are left alone. A strategy that is slower than the library twice in a row is never used for the file again.
//! What was measured, spent and lost is kept for the next file of the same processes ([`Chooser::next_file`]), so that programs of
//! many files do not try anew in each.

use std::collections::HashMap;

use crate::plan::{Call, Strategy};

/// Calls in a row that nothing is expected of, after which a file is left alone.
const DULL: u32 = 8;
/// What a strategy may be expected to take of the library's time to be tried.
const WORTHWHILE: f64 = 0.85;
/// Calls of a kind by the library after which what was slower once, perhaps for other reasons, is tried again.
const SECOND_CHANCE: u64 = 16;
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

/// What is known of calls of a kind with a strategy, of whichever file.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    calls: u64,
    /// Seconds of a byte, lately.
    rate: f64,
    /// The library's calls before the first one.
    library: u64,
}

impl Known {
    fn add(&mut self, rate: f64, is_library: bool) {
        self.rate = match self.calls {
            0 => rate,
            // A first call has costs of its own, and nobody is to look good against them.
            1 if is_library => rate.min(self.rate),
            1 => rate,
            _ => 0.6 * self.rate + 0.4 * rate,
        };
        self.calls += 1;
    }
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
    /// Of a look: the shorter and the last one of the last two; and of the call that it was for, in seconds.
    look: f64,
    last_look: f64,
    call: f64,
    /// Calls that go to the library without a look, and those that have gone.
    skipping: u32,
    skipped: u32,
    running: Option<Running>,
    wrong: u32,
    dull: u32,
    is_settled: bool,
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
            look: 0.0,
            last_look: f64::INFINITY,
            call: 0.0,
            skipping: 0,
            skipped: 0,
            running: None,
            wrong: 0,
            dull: 0,
            is_settled: forced == Some(Strategy::Library),
        }
    }

    /// For another file of the same processes on servers of the same layout: with what is known.
    #[must_use]
    pub fn next_file(self, forced: Option<Strategy>) -> Chooser {
        let fresh = Chooser::new(self.costs, forced);
        Chooser {
            outcomes: fresh.outcomes,
            running: None,
            wrong: 0,
            dull: 0,
            forced,
            is_settled: fresh.is_settled,
            ..self
        }
    }

    /// Whether calls go to the library from now on, without a word between processes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Whether somebody else has decided.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Asked once for each call, by all processes: whether it goes to the library without a word between them.
    pub fn skips(&mut self) -> bool {
        let skips = self.is_settled || (self.skipping > 0 && self.forced.is_none());
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
        match self.is_settled {
            true if self.forced.is_some() => "the library, as told",
            true if self.wrong >= 2 => "the library: slower than it twice in a row",
            true => "the library: nothing to gain",
            false => "open",
        }
    }

    /// How a call is carried out. O(pieces log pieces).
    pub fn choose(&mut self, call: &Call, kind: Kind) -> Strategy {
        let is_safe = !(kind.write && call.overlaps());
        let predicted = |strategy| self.costs.predict(call, kind.write, strategy);
        let of_library = predicted(Strategy::Library);
        let (strategy, told) = match self.forced {
            Some(forced) if is_safe && predicted(forced).is_finite() => (forced, predicted(forced)),
            None if is_safe => {
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
        self.forced.is_none() && (library.calls < BASELINE || library.rate * (bytes as f64) < SHORT)
    }

    fn known(&self, kind: Kind, strategy: Strategy) -> Known {
        self.known.get(&(kind, strategy)).copied().unwrap_or_default()
    }

    fn judge(&mut self, kind: Kind, candidates: &[(Strategy, f64)], predicted: f64, call: &Call) -> (Strategy, f64) {
        let left = (Strategy::Library, predicted);
        let bytes = call.bytes() as f64;
        let library = self.known(kind, Strategy::Library);
        let of_library = library.rate * bytes;
        // Where the model was wrong about all that was tried, it is about the rest.
        let correction = |strategy| {
            let least = self.corrections.values().copied().min_by(f64::total_cmp).unwrap_or(1.0);
            self.corrections.get(&strategy).copied().unwrap_or(least)
        };
        // How much slower the library is than the model says.
        let slower = if predicted > 0.0 { of_library / predicted } else { 1.0 };
        // What each is expected to take, and how many times that it may take.
        let estimate = |&(strategy, expected): &(Strategy, f64)| {
            let tried = self.known(kind, strategy);
            let expected_now = expected * correction(strategy).max(slower);
            match strategy {
                _ if tried.calls > 0 => (tried.rate * bytes, 1.0),
                Strategy::Early => (expected_now, MORE_DOUBT),
                _ => (expected_now, DOUBT),
            }
        };
        let worst = |candidate: &(Strategy, f64)| {
            let (expected, doubt) = estimate(candidate);
            expected * doubt
        };
        let finite = candidates.iter().filter(|(_, expected)| expected.is_finite());
        let Some(&best) = finite.min_by(|a, b| worst(a).total_cmp(&worst(b))) else {
            self.cannot();
            return left;
        };
        let (estimated, doubt) = estimate(&best);
        let tried = self.known(kind, best.0);
        let was_slower = tried.calls > 0 && tried.rate > library.rate;
        // What it is at best: also the model of the devices may be too slow.
        let hoped = if tried.calls > 0 { 0.0 } else { estimated * slower.min(1.0) };
        let is_hopeless = hoped > of_library * WORTHWHILE || estimated > of_library * HOPELESS;
        if is_hopeless || was_slower && tried.calls > 1 {
            self.cannot();
            return left;
        }
        self.dull = 0;
        let is_due = tried.calls == 1 && library.calls >= SECOND_CHANCE;
        // Also later the library is timed, ever more seldom: what its first calls took may have had other reasons.
        // Where the gain is beyond what noise explains, half as often.
        let step = if tried.rate * DOUBT < library.rate { 2 } else { 1 };
        let is_probe = tried.calls.is_power_of_two()
            && tried.calls.ilog2().is_multiple_of(step)
            && library.calls <= tried.library + u64::from(tried.calls.ilog2() / step);
        if is_probe {
            return left;
        }
        let is_trial = tried.calls == 0 || was_slower;
        // Not where the exchange is a small part, nor where it does not matter how right the model is.
        let ranks = call.ranks as f64;
        let exchange = bytes / ranks * self.costs.sent + ranks * self.costs.message;
        let is_clear = estimated * doubt <= of_library || exchange <= SURPRISE * of_library;
        let measuring = if self.is_measured || is_clear { 0.0 } else { MEASURING * ranks * self.costs.message };
        let sure = self.lost + self.look + measuring;
        let on_average = sure + expected_loss(estimated, doubt, of_library) + SURPRISE * of_library;
        let at_worst = sure + (estimated * doubt - of_library).max(0.0);
        // The time that there has to have been.
        let needed = (on_average / LOSS).max(at_worst / WORST - of_library);
        if was_slower && !is_due {
            self.skip();
            return left;
        }
        if is_trial && needed > self.spent {
            self.skip();
            self.skipping = self.skipping.max(((needed - self.spent) / of_library).min(MOST_SKIPPED) as u32);
            return left;
        }
        if measuring > 0.0 && is_trial {
            // The next call is looked at with what these processes' messages take.
            self.wants_costs = true;
            return left;
        }
        best
    }

    /// After a look that was in vain: how many calls go without.
    fn skip(&mut self) {
        if self.call > 0.0 {
            self.skipping = (self.look / (LOOKS * self.call)).min(MOST_SKIPPED) as u32;
        }
    }

    /// A call that nothing is expected of, or that cannot be served.
    pub fn cannot(&mut self) {
        self.dull += 1;
        self.skip();
        self.is_settled |= self.forced.is_none() && self.dull >= DULL;
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
                running.strategy == Strategy::Library && (0.25 * known.rate..4.0 * known.rate).contains(&rate)
            });
            known.into_iter().for_each(|known| known.add(rate, true));
        }
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
        known.add(rate, is_library);
        if known.calls == 1 {
            known.library = library.map_or(0, |library| library.calls);
        }
        let now = known.rate;
        let Some(library) = library.map(|library| library.rate).filter(|_| !is_library && self.forced.is_none()) else {
            return;
        };
        self.lost = (self.lost + seconds - library * bytes as f64).max(0.0);
        self.corrections.insert(strategy, (seconds / predicted).max(1.0));
        self.wrong = if rate > library && now > library { self.wrong + 1 } else { 0 };
        self.is_settled |= self.wrong >= 2;
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
