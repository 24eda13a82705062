//! What nodes announce, once it is known to make sense.

use serde::Serialize;
use sluice_adapt::council::Pattern;
use sluice_adapt::net::Observation;
use sluice_core::{Op, OpFeatures, WindowFeatures};

use crate::wire;

/// Longest names of nodes and algorithms.
pub(crate) const NAME_MAX: usize = 64;
/// What no node sees in a second: larger numbers are mistakes or lies.
const COUNT_MAX: u64 = 1 << 40;
const BYTES_MAX: u64 = 1 << 50;
const PERIOD_MAX_NS: u64 = 3_600_000_000_000;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Forwards requests to several data servers.
    Forwarder,
    /// Has the data.
    Server,
}

/// The algorithm that a node uses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct InForce {
    /// Its name.
    pub policy: String,
    /// Length of its time windows in nanoseconds; 0: it has none.
    pub window_ns: u64,
}

/// What a node has seen since its last announcement, wholly under the algorithm in force. Sums, means and counts as in
/// [`WindowFeatures`].
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// What the node is.
    pub kind: Kind,
    /// Data servers that it forwards to.
    pub servers: u32,
    /// How long was looked, in nanoseconds; 0: nothing was asked of it.
    pub period_ns: u64,
    /// By operation: index with [`Op::index`].
    pub ops: [OpFeatures; 2],
    /// Files used, the same on several data servers counted for each.
    pub files: u32,
    /// Applications.
    pub apps: u32,
    /// Data servers used.
    pub targets: u32,
    /// Nanoseconds in which at least one request was under way.
    pub busy_ns: u64,
    /// Requests under way, mean over that time.
    pub outstanding: f64,
    /// The algorithm.
    pub in_force: InForce,
    /// How processes go through their files, if the node can say.
    pub pattern: Option<Pattern>,
    /// By what it does, if the coordinator wants to know.
    pub observed: Option<Box<Observation>>,
}

impl Seen {
    /// Nothing yet.
    #[must_use]
    pub fn nothing(kind: Kind, servers: u32, in_force: InForce) -> Seen {
        Seen {
            kind,
            servers,
            period_ns: 0,
            ops: <[OpFeatures; 2]>::default(),
            files: 0,
            apps: 0,
            targets: 0,
            busy_ns: 0,
            outstanding: 0.0,
            in_force,
            pattern: None,
            observed: None,
        }
    }

    /// Adds a window of an engine: one that follows, or, of another engine, one at the same time (`beside`). O(1).
    pub fn add(&mut self, window: &WindowFeatures, beside: bool) {
        if !beside {
            self.period_ns += window.end.since(window.start);
        }
        for (mine, theirs) in self.ops.iter_mut().zip(&window.ops) {
            add(mine, theirs);
        }
        let count = |mine: u32, theirs: u32| if beside { mine.saturating_add(theirs) } else { mine.max(theirs) };
        self.files = count(self.files, window.files);
        self.targets = count(self.targets, window.targets);
        self.apps = self.apps.max(window.apps);
        let all = self.busy_ns + window.busy_ns;
        if all > 0 {
            let weighted = self.outstanding * self.busy_ns as f64 + window.outstanding_mean * window.busy_ns as f64;
            self.outstanding = weighted / all as f64;
        }
        self.busy_ns = all;
    }

    /// Requests that arrived.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.ops.iter().map(|op| op.requests).sum()
    }

    /// What most of the requests are.
    #[must_use]
    pub fn majority(&self) -> Op {
        if self.ops[Op::Write.index()].requests > self.ops[Op::Read.index()].requests { Op::Write } else { Op::Read }
    }

    /// Bytes moved in a second in which something was under way; `None` if nothing was. What was asked for in the rest of the
    /// time does not matter, so that a load that becomes less does not look like a system that becomes slower.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let moved = self.moved();
        (self.busy_ns > 0 && moved > 0).then(|| moved as f64 * 1e9 / self.busy_ns as f64)
    }

    /// Bytes moved in a second, busy or not.
    pub(crate) fn throughput(&self) -> f64 {
        self.moved() as f64 * 1e9 / self.period_ns.max(1) as f64
    }

    fn moved(&self) -> u64 {
        self.ops.iter().map(|op| op.moved).sum()
    }

    /// As a message, without what the node knows of clocks and decisions.
    pub(crate) fn to_wire(&self) -> wire::Announcement {
        let load = |op: &OpFeatures| wire::Load {
            requests: op.requests,
            bytes: op.bytes,
            moved: op.moved,
            size_min: op.size_min,
            size_mean: op.size_mean,
            size_max: op.size_max,
            distance_mean: op.distance_mean,
            distance_abs_mean: op.distance_abs_mean,
            contiguous: op.contiguous,
        };
        wire::Announcement {
            kind: match self.kind {
                Kind::Forwarder => wire::Kind::Forwarder.into(),
                Kind::Server => wire::Kind::Server.into(),
            },
            servers: self.servers,
            period_ns: self.period_ns,
            read: Some(load(&self.ops[Op::Read.index()])),
            write: Some(load(&self.ops[Op::Write.index()])),
            files: self.files,
            apps: self.apps,
            targets: self.targets,
            busy_ns: self.busy_ns,
            outstanding: self.outstanding,
            policy: self.in_force.policy.clone(),
            window_ns: self.in_force.window_ns,
            pattern: match self.pattern {
                None => wire::Pattern::Unspecified.into(),
                Some(Pattern::OwnContiguous) => wire::Pattern::OwnContiguous.into(),
                Some(Pattern::SharedContiguous) => wire::Pattern::SharedContiguous.into(),
                Some(Pattern::SharedStrided) => wire::Pattern::SharedStrided.into(),
            },
            observed: self.observed.as_ref().map(|observed| wire::Observed {
                writes: observed.op == Op::Write,
                requests: observed.requests,
                paper: observed.paper.to_vec(),
                inputs: observed.inputs.iter().flatten().copied().collect(),
            }),
            ..wire::Announcement::default()
        }
    }

    /// Of a message.
    ///
    /// # Errors
    /// If something in it cannot be: what.
    pub(crate) fn of(said: &wire::Announcement) -> Result<Seen, &'static str> {
        let check = |is_fine: bool, what: &'static str| if is_fine { Ok(()) } else { Err(what) };
        let kind = match wire::Kind::try_from(said.kind) {
            Ok(wire::Kind::Forwarder) => Kind::Forwarder,
            Ok(wire::Kind::Server) => Kind::Server,
            Ok(wire::Kind::Unspecified) | Err(_) => return Err("kind"),
        };
        check(said.servers <= 65_536, "servers")?;
        check(said.period_ns <= PERIOD_MAX_NS, "period_ns")?;
        // Several engines are busy at the same time.
        check(said.busy_ns <= said.period_ns.saturating_mul(64), "busy_ns")?;
        check((0.0..=1e9).contains(&said.outstanding), "outstanding")?;
        check(is_name(&said.policy), "policy")?;
        check(said.window_ns <= PERIOD_MAX_NS, "window_ns")?;
        let mut ops = <[OpFeatures; 2]>::default();
        for (op, load) in [(Op::Read, &said.read), (Op::Write, &said.write)] {
            if let Some(load) = load {
                ops[op.index()] = features(load)?;
            }
        }
        let pattern = match wire::Pattern::try_from(said.pattern) {
            Ok(wire::Pattern::OwnContiguous) => Some(Pattern::OwnContiguous),
            Ok(wire::Pattern::SharedContiguous) => Some(Pattern::SharedContiguous),
            Ok(wire::Pattern::SharedStrided) => Some(Pattern::SharedStrided),
            // Also one of a later version.
            Ok(wire::Pattern::Unspecified) | Err(_) => None,
        };
        let in_force = InForce { policy: said.policy.clone(), window_ns: said.window_ns };
        let observed = said.observed.as_ref().map(observed).transpose()?;
        Ok(Seen {
            kind,
            servers: said.servers,
            period_ns: said.period_ns,
            ops,
            files: said.files,
            apps: said.apps,
            targets: said.targets,
            busy_ns: said.busy_ns,
            outstanding: said.outstanding,
            in_force,
            pattern,
            observed,
        })
    }
}

fn observed(said: &wire::Observed) -> Result<Box<Observation>, &'static str> {
    let check = |is_fine: bool| if is_fine { Ok(()) } else { Err("observed") };
    check(said.requests <= COUNT_MAX && said.paper.iter().chain(&said.inputs).all(|value| value.is_finite()))?;
    // A node of another version may have other inputs.
    let inputs = if said.inputs.is_empty() { None } else { Some(said.inputs.as_slice().try_into()) };
    Ok(Box::new(Observation {
        op: if said.writes { Op::Write } else { Op::Read },
        requests: said.requests,
        paper: said.paper.as_slice().try_into().map_err(|_| "observed")?,
        inputs: inputs.transpose().map_err(|_| "observed")?,
    }))
}

fn features(load: &wire::Load) -> Result<OpFeatures, &'static str> {
    let check = |is_fine: bool, what: &'static str| if is_fine { Ok(()) } else { Err(what) };
    check(load.requests <= COUNT_MAX, "requests")?;
    check(load.bytes <= BYTES_MAX && load.moved <= BYTES_MAX, "bytes")?;
    let least = f64::from(load.size_min);
    // What is a mean of others lies between them, up to rounding.
    check((least - 1.0..=f64::from(load.size_max) + 1.0).contains(&load.size_mean), "size_mean")?;
    check(load.distance_mean.abs() <= load.distance_abs_mean + 1.0, "distance_mean")?;
    check((0.0..=1e19).contains(&load.distance_abs_mean), "distance_abs_mean")?;
    check((0.0..=1.0).contains(&load.contiguous), "contiguous")?;
    Ok(OpFeatures {
        requests: load.requests,
        bytes: load.bytes,
        moved: load.moved,
        size_min: load.size_min,
        size_mean: load.size_mean,
        size_max: load.size_max,
        distance_mean: load.distance_mean,
        distance_abs_mean: load.distance_abs_mean,
        contiguous: load.contiguous,
        ..OpFeatures::default()
    })
}

/// Letters, digits and some signs, at least one.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:/".contains(c);
    !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(fits)
}

fn add(mine: &mut OpFeatures, theirs: &OpFeatures) {
    let mean = |a: f64, of_a: u64, b: f64, of_b: u64| match of_a + of_b {
        0 => 0.0,
        both => (a * of_a as f64 + b * of_b as f64) / both as f64,
    };
    let (of_mine, of_theirs) = (mine.distances, theirs.distances);
    mine.distance_mean = mean(mine.distance_mean, of_mine, theirs.distance_mean, of_theirs);
    mine.distance_abs_mean = mean(mine.distance_abs_mean, of_mine, theirs.distance_abs_mean, of_theirs);
    mine.contiguous = mean(mine.contiguous, of_mine, theirs.contiguous, of_theirs);
    mine.distances += of_theirs;
    mine.size_mean = mean(mine.size_mean, mine.requests, theirs.size_mean, theirs.requests);
    mine.size_min = match (mine.requests, theirs.requests) {
        (_, 0) => mine.size_min,
        (0, _) => theirs.size_min,
        _ => mine.size_min.min(theirs.size_min),
    };
    mine.size_max = mine.size_max.max(theirs.size_max);
    mine.requests += theirs.requests;
    mine.bytes += theirs.bytes;
    mine.moved += theirs.moved;
    mine.completed += theirs.completed;
    mine.errors += theirs.errors;
}

#[cfg(test)]
mod tests {
    use sluice_core::Time;

    use super::*;

    fn window(at: u64, requests: u64, size: u32) -> WindowFeatures {
        let op = OpFeatures {
            requests,
            bytes: requests * u64::from(size),
            moved: requests * u64::from(size),
            size_min: size,
            size_mean: f64::from(size),
            size_max: size,
            distances: requests,
            distance_mean: f64::from(size),
            distance_abs_mean: f64::from(size),
            contiguous: 0.5,
            ..OpFeatures::default()
        };
        WindowFeatures {
            start: Time(at),
            end: Time(at + 1000),
            ops: [op, OpFeatures::default()],
            files: 3,
            busy_ns: 500,
            outstanding_mean: requests as f64,
            ..WindowFeatures::default()
        }
    }

    #[test]
    fn windows_add_up_and_survive_the_way() {
        let force = InForce { policy: "hbrr".into(), window_ns: 0 };
        let mut seen = Seen::nothing(Kind::Forwarder, 4, force);
        assert_eq!(seen.rate(), None);
        seen.add(&window(0, 10, 100), false);
        seen.add(&window(1000, 30, 200), false);
        let read = &seen.ops[0];
        assert_eq!((seen.period_ns, seen.files, read.requests, read.size_min, read.size_max), (2000, 3, 40, 100, 200));
        assert!((read.size_mean - 175.0).abs() < 1e-9 && (seen.outstanding - 20.0).abs() < 1e-9);
        assert_eq!(seen.rate(), Some(7000.0 * 1e9 / 1000.0));
        seen.ops[0].distances = 0;
        seen.pattern = Some(Pattern::SharedStrided);
        seen.observed = Some(Box::new(Observation::of_counts(&seen.ops, 3, 4, None)));
        assert_eq!(Seen::of(&seen.to_wire()), Ok(seen));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let force = InForce { policy: "hbrr".into(), window_ns: 0 };
        let mut seen = Seen::nothing(Kind::Server, 4, force);
        seen.add(&window(0, 10, 100), false);
        let refused = |what: &str, change: &dyn Fn(&mut wire::Announcement)| {
            let mut said = seen.to_wire();
            change(&mut said);
            assert_eq!(Seen::of(&said), Err(what));
        };
        refused("kind", &|said| said.kind = 17);
        refused("outstanding", &|said| said.outstanding = f64::NAN);
        refused("busy_ns", &|said| said.busy_ns = u64::MAX);
        refused("policy", &|said| said.policy = "x".repeat(1000));
        refused("size_mean", &|said| said.read.as_mut().unwrap().size_mean = f64::INFINITY);
        refused("bytes", &|said| said.read.as_mut().unwrap().moved = u64::MAX);
        refused("contiguous", &|said| said.read.as_mut().unwrap().contiguous = -0.1);
        refused("observed", &|said| {
            said.observed = Some(wire::Observed { paper: vec![1.0; 4], ..wire::Observed::default() })
        });
        refused("observed", &|said| {
            said.observed = Some(wire::Observed { paper: vec![f64::NAN; 5], ..wire::Observed::default() });
        });
        refused("distance_mean", &|said| said.read.as_mut().unwrap().distance_mean = f64::NAN);
    }
}
