//! Which strategy serves a collective call best: a model says what is worth trying, and what came of it decides.
//!
//! The model is of the time that the slowest server needs (positioning and transfer, from a profile of its device) and that the
//! exchange takes (latency and bandwidth, measured when the first file was opened). It only ranks: before a strategy is used,
//! the library's own collective call is timed for calls of that kind, and only what is expected to be faster than that is tried.
//! How wrong the model was of what was tried corrects what it says next. A strategy that is slower than the library twice in a row
//! is never used for the file again, nor asked for: then calls cost nothing more than without. What was measured is kept for the
//! next file of the same processes ([`Chooser::next_file`]), so that programs of many files do not try anew in each.

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
}

/// A call whose end has not been told.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    kind: Kind,
    strategy: Strategy,
    bytes: i64,
    predicted: f64,
}

/// Decides for a file; the same on every process, as all see the same.
#[derive(Debug)]
pub struct Chooser {
    costs: Costs,
    forced: Option<Strategy>,
    outcomes: HashMap<(Kind, Strategy), Outcome>,
    known: HashMap<(Kind, Strategy), Known>,
    /// How many times longer than predicted what was tried has taken, lately.
    correction: f64,
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
            forced,
            outcomes: HashMap::new(),
            known: HashMap::new(),
            correction: 1.0,
            running: None,
            wrong: 0,
            dull: 0,
            is_settled: forced == Some(Strategy::Library),
        }
    }

    /// For another file of the same processes on servers of the same layout: with what is known.
    #[must_use]
    pub fn next_file(self, forced: Option<Strategy>) -> Chooser {
        Chooser { known: self.known, correction: self.correction, ..Chooser::new(self.costs, forced) }
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
        let library = predicted(Strategy::Library);
        let candidates = [Strategy::Agents, Strategy::Early, Strategy::Timed];
        let best = match self.forced {
            Some(forced) => forced,
            None => candidates
                .into_iter()
                .min_by(|&a, &b| predicted(a).total_cmp(&predicted(b)))
                .unwrap_or(Strategy::Library),
        };
        let expected = predicted(best);
        let strategy = if !is_safe || expected.is_infinite() {
            Strategy::Library
        } else if self.forced.is_some() {
            best
        } else {
            self.judge(kind, best, (expected, library), call.bytes() as f64)
        };
        let told = if strategy == Strategy::Library { library } else { expected };
        self.running = Some(Running { kind, strategy, bytes: call.bytes(), predicted: told });
        strategy
    }

    fn judge(&mut self, kind: Kind, best: Strategy, (expected, of_library): (f64, f64), bytes: f64) -> Strategy {
        let known = |strategy| self.known.get(&(kind, strategy)).copied().unwrap_or_default();
        let (library, tried) = (known(Strategy::Library), known(best));
        let is_dull = if library.calls < BASELINE {
            expected > of_library * WORTHWHILE
        } else {
            tried.calls == 0 && expected * self.correction > library.rate * bytes * WORTHWHILE
        };
        if is_dull {
            self.cannot();
            return Strategy::Library;
        }
        self.dull = 0;
        let was_slower = tried.calls > 0 && tried.rate > library.rate;
        let is_due = tried.calls == 1 && library.calls >= SECOND_CHANCE;
        // Also later the library is timed, ever more seldom: what its first calls took may have had other reasons.
        let is_probe = tried.calls.is_power_of_two() && library.calls <= BASELINE + u64::from(tried.calls.ilog2());
        if library.calls < BASELINE || is_probe || was_slower && !is_due { Strategy::Library } else { best }
    }

    /// A call that nothing is expected of, or that cannot be served.
    pub fn cannot(&mut self) {
        self.dull += 1;
        self.is_settled |= self.forced.is_none() && self.dull >= DULL;
    }

    /// A call that the library carries out without ranges having been looked at.
    pub fn left(&mut self, kind: Kind, bytes: i64) {
        self.running = Some(Running { kind, strategy: Strategy::Library, bytes, predicted: 0.0 });
    }

    /// What the last call took, in seconds of the slowest process. O(1).
    pub fn ended(&mut self, seconds: f64) {
        if let Some(running) = self.ended_alone(seconds) {
            self.learn(running, seconds);
        }
    }

    /// As [`Chooser::ended`] where the others are not told the same: it counts, and nothing is learned. Gives what has ended.
    pub fn ended_alone(&mut self, seconds: f64) -> Option<Running> {
        let running @ Running { kind, strategy, bytes, predicted } =
            self.running.take().filter(|running| running.bytes > 0 && seconds > 0.0)?;
        let outcome = self.outcomes.entry((kind, strategy)).or_default();
        outcome.calls += 1;
        outcome.bytes += bytes;
        outcome.seconds += seconds;
        outcome.predicted += predicted;
        Some(running)
    }

    fn learn(&mut self, Running { kind, strategy, bytes, predicted }: Running, seconds: f64) {
        let rate = seconds / bytes as f64;
        let library = self.known.get(&(kind, Strategy::Library)).map_or(f64::INFINITY, |known| known.rate);
        let known = self.known.entry((kind, strategy)).or_default();
        // A first call has costs of its own.
        known.rate = if known.calls < 2 { rate } else { 0.6 * known.rate + 0.4 * rate };
        known.calls += 1;
        let is_slower = rate > library && known.rate > library;
        if self.forced.is_some() || strategy == Strategy::Library {
            return;
        }
        self.correction = (seconds / predicted).max(1.0);
        self.wrong = if is_slower { self.wrong + 1 } else { 0 };
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
