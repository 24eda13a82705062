//! Whether writes should go to the SSD (X. Zhang, *Rethinking the design and implementation of the I/O software stack for
//! high-performance computing*, 2012, 6.2.2 and 6.2.3). A state machine: times are arguments.
//!
//! Deviations: the paper's ghost queue is as large as the SSD's in bytes; here it holds
//! [`Config::ghost_requests`](crate::Config::ghost_requests) at most, and at first only 32, then twice as many each time, so that
//! there is an answer soon: a disk takes seconds for a thousand random writes. When it is full it is emptied, as write-back makes passes: an algorithm that takes the lowest offset first would otherwise keep the
//! high ones for ever and hand through what comes. What write-back would put together ([`Config::fill_bytes`]) leaves the ghost
//! queue together, too. Two streams without any distance
//! between requests have the same locality, whatever their first one was.

use std::collections::HashMap;

use sluice_core::{
    AppId, Batch, ConfigError, Engine, EngineConfig, FileId, Op, Ordering, Outcome, Request, TargetId, Time,
};

use crate::config::Config;

/// Requests of the ghost queue's first pass.
const FIRST_PASS: u32 = 32;
/// Of what a request anywhere costs a disk: half a revolution.
const ROTATION: f64 = 0.3;

/// When writes go to the SSD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Always.
    Always,
    /// Never, but what is in the log stays valid.
    Never,
    /// The paper's: the locality of what leaves memory over that of what leaves the ghost queue (or the SSD), H.
    Ratio {
        /// Starts above this.
        start: f64,
        /// Stops below this.
        stop: f64,
    },
    /// Ours: the time that the disk needs for what leaves memory over the time that it would need with the SSD. H knows
    /// neither that a jump costs a disk the same whether it is long or very long, nor what a request's bytes cost, nor what
    /// the SSD does; and with weights of 1/8 and 7/8 a single jump decides it. Means over some 32 requests.
    Cost {
        /// Starts above this.
        start: f64,
        /// Stops below this.
        stop: f64,
        /// What a request anywhere costs the disk beside its bytes, in nanoseconds. Three tenths of it are rotation; the rest
        /// grows with the root of the distance (Ruemmler, Wilkes, *An introduction to disk drive modeling*, 1994).
        positioning_ns: u64,
        /// What a byte costs the disk, in nanoseconds.
        disk_byte_ns: f64,
        /// What a request costs the SSD, in nanoseconds,
        ssd_request_ns: u64,
        /// and what a byte.
        ssd_byte_ns: f64,
    },
}

impl Rule {
    /// The paper's, with its numbers.
    #[must_use]
    pub fn paper() -> Rule {
        Rule::Ratio { start: 4.0, stop: 2.0 }
    }

    /// Ours, for a disk of 7,200 revolutions a minute: until a profile says more.
    #[must_use]
    pub fn cost() -> Rule {
        Rule::Cost {
            start: 1.5,
            stop: 1.1,
            positioning_ns: 12_000_000,
            disk_byte_ns: 7.0,
            ssd_request_ns: 100_000,
            ssd_byte_ns: 2.0,
        }
    }

    /// [`Rule::Cost`] from the disk's profile: what requests of `bytes` take there; an SSD that needs 100 us and 2 ns a byte.
    #[must_use]
    pub fn from_profile(profile: &sluice_device::profile::Profile, bytes: u64) -> Rule {
        let op = sluice_device::Op::Write;
        let random = profile.random_ns(op, bytes) as f64;
        let sequential = random / profile.ratio(op, bytes).max(1.0);
        Rule::Cost {
            start: 1.5,
            stop: 1.1,
            positioning_ns: (random - sequential) as u64,
            disk_byte_ns: sequential / bytes.max(1) as f64,
            ssd_request_ns: 100_000,
            ssd_byte_ns: 2.0,
        }
    }
}

/// Locality of a stream of requests: L(0) = 1/S(0), L(n+1) = L(n)/8 + 7/8 D(n)/S(n+1). Smaller is stronger.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Locality {
    value: Option<f64>,
    end: u64,
    /// Up to where requests have been.
    span: u64,
    /// Mean cost, for [`Rule::Cost`], in nanoseconds a byte.
    cost: f64,
}

impl Locality {
    /// The stream's next request. `free`: it was served in time that nobody needed, so its distance counts as 0.
    pub fn add(&mut self, offset: u64, len: u64, free: bool) -> f64 {
        let size = len.max(1) as f64;
        let distance = if free { 0 } else { offset.abs_diff(self.end) };
        self.end = offset.saturating_add(len);
        let value = match self.value {
            None => 1.0 / size,
            Some(before) => before / 8.0 + 7.0 / 8.0 * (distance as f64 / size),
        };
        self.value = Some(value);
        value
    }

    /// The same with the cost of the request.
    fn add_with(&mut self, rule: &Rule, whole: &Whole) {
        let Whole { offset, len, own, free } = *whole;
        if let Rule::Cost { positioning_ns, disk_byte_ns, .. } = *rule {
            self.span = self.span.max(offset.saturating_add(len));
            let way = (offset.abs_diff(self.end) as f64 / self.span.max(1) as f64 * 3.0).sqrt();
            let jump = self.value.is_some() && offset != self.end;
            let turn = positioning_ns as f64 * ROTATION;
            let (mut positions, mut moved) = (0.0, len);
            if jump {
                positions += turn + positioning_ns as f64 * (1.0 - ROTATION) * way.min(1.5);
            }
            if own < len {
                // Read, and written when it comes round again.
                positions += turn;
                moved += len;
            }
            // What is free takes nobody's time, but the disk's for its bytes: a stream has no more than that to gain.
            let positions = if free { 0.0 } else { positions };
            let cost = (positions + disk_byte_ns * moved as f64) / own.max(1) as f64;
            self.cost = if self.value.is_none() { cost } else { self.cost + (cost - self.cost) / 32.0 };
        }
        self.add(offset, len, free);
    }

    /// L, if there was a request.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.value
    }
}

/// Pieces that go to the disk together, and what lies between them.
#[derive(Clone, Copy, Debug)]
struct Whole {
    offset: u64,
    len: u64,
    /// Bytes of the pieces.
    own: u64,
    /// Nobody was disturbed by any of them.
    free: bool,
}

/// The same scheduler run over what would be in the SSD's queue; only metadata.
struct Ghost {
    engine: Engine,
    /// Most requests of this pass, and of any.
    requests: u32,
    requests_max: u32,
    bytes_max: u64,
    /// As write-back has it.
    fill: u64,
    together_max: u64,
    bytes: u64,
    /// Of the engine: ahead of the world's when the policy wanted to wait.
    now: Time,
    batch: Batch,
    /// Writes whose service nobody disturbed, by their cookie.
    free: HashMap<u64, bool>,
    next: u64,
}

impl Ghost {
    fn submit(&mut self, now: Time, op: Op, offset: u64, len: u64) -> u64 {
        self.now = self.now.max(now);
        let cookie = self.next;
        self.next += 1;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let (file, app, target) = (FileId(0), AppId(0), TargetId(0));
        if self.engine.submit(self.now, Request { cookie, file, app, target, op, offset, len }).is_ok() {
            self.bytes += u64::from(len);
            self.free.insert(cookie, false);
        }
        cookie
    }

    fn is_full(&self) -> bool {
        self.engine.queued() >= self.requests || self.bytes >= self.bytes_max
    }

    /// What would leave the queue next.
    fn release(&mut self) -> Option<Whole> {
        if !self.engine.poll_dispatch(self.now, &mut self.batch) {
            self.now = self.engine.poll_timeout().unwrap_or(self.now).max(self.now);
            if !self.engine.poll_dispatch(self.now, &mut self.batch) {
                return None;
            }
        }
        let mut free = true;
        for part in self.batch.parts() {
            free &= self.free.remove(&part.request.cookie).unwrap_or(false);
            let done = self.engine.complete(self.now, part.id, Outcome::ok(part.request.len));
            debug_assert!(done.is_ok(), "dispatched just now");
        }
        let len = self.batch.bytes();
        self.bytes -= len;
        Some(Whole { offset: self.batch.offset(), len, own: len, free })
    }

    /// A pass, as write-back makes them: all that is in the queue, put together as there.
    fn pass(&mut self, mut each: impl FnMut(&Whole)) {
        let mut before: Option<Whole> = None;
        while let Some(next) = self.release() {
            if let Some(whole) = &mut before {
                let end = whole.offset + whole.len;
                let near = self.fill > 0 && next.offset >= end && next.offset - end <= self.fill;
                if near && next.offset + next.len - whole.offset <= self.together_max {
                    whole.len = next.offset + next.len - whole.offset;
                    whole.own += next.own;
                    whole.free &= next.free;
                    continue;
                }
                each(whole);
            }
            before = Some(next);
        }
        before.iter().for_each(each);
    }
}

/// What the tier has decided, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Decision {
    /// Writes go to the SSD.
    pub on: bool,
    /// How much better the disk's requests would be, or are, by the rule's measure; 0 before it is known.
    pub h: f64,
    /// Locality of what leaves memory.
    pub memory: f64,
    /// Of what would leave the SSD's queue: the ghost's.
    pub ghost: f64,
    /// Of what has left it.
    pub ssd: f64,
    /// Times that it was turned on.
    pub starts: u64,
}

/// Decides whether writes go to the SSD. O(log n) for each request, n being those in the ghost queue.
pub struct Decider {
    rule: Rule,
    memory: Locality,
    ghost: Ghost,
    ghosts: Locality,
    ssd: Locality,
    /// Of the requests that leave memory.
    mean_bytes: f64,
    decision: Decision,
}

impl Decider {
    /// One for a log of `queue_bytes`.
    ///
    /// # Errors
    /// If the number of requests is out of its range.
    pub fn new(config: &Config, queue_bytes: u64) -> Result<Decider, ConfigError> {
        let (rule, requests) = (config.rule, config.ghost_requests);
        let limits = EngineConfig {
            capacity: requests,
            files_max: 4,
            // Of metadata there is nothing to keep in order.
            ordering: Ordering::None,
            max_wait_ns: 0,
            apps_max: 1,
            ..EngineConfig::default()
        };
        let engine = Engine::new(limits, &config.ghost_policy, Time::ZERO)?;
        let ghost = Ghost {
            engine,
            requests: requests.min(FIRST_PASS),
            requests_max: requests,
            bytes_max: queue_bytes,
            fill: config.fill_bytes,
            together_max: config.writeback_bytes as u64,
            bytes: 0,
            now: Time::ZERO,
            batch: Batch::new(),
            free: HashMap::new(),
            next: 0,
        };
        let on = rule == Rule::Always;
        Ok(Decider {
            rule,
            memory: Locality::default(),
            ghost,
            ghosts: Locality::default(),
            ssd: Locality::default(),
            mean_bytes: 0.0,
            decision: Decision { on, ..Decision::default() },
        })
    }

    /// A request leaves memory. Returns its ticket for [`Decider::undisturbed`].
    pub fn leaves_memory(&mut self, now: Time, op: Op, offset: u64, len: u64) -> u64 {
        if matches!(self.rule, Rule::Always | Rule::Never) {
            return 0;
        }
        self.memory.add_with(&self.rule, &Whole { offset, len, own: len, free: false });
        self.mean_bytes += (len as f64 - self.mean_bytes) / if self.mean_bytes == 0.0 { 1.0 } else { 32.0 };
        // Before this one joins, of which it is not known yet whether it is disturbed.
        if self.ghost.is_full() {
            self.ghost.pass(|whole| self.ghosts.add_with(&self.rule, whole));
            self.ghost.requests = self.ghost.requests.saturating_mul(2).min(self.ghost.requests_max);
        }
        let ticket = self.ghost.submit(now, op, offset, len);
        self.decide();
        ticket
    }

    /// The write with this ticket was served, and nothing had arrived meanwhile: it could have been written back in that time.
    pub fn undisturbed(&mut self, ticket: u64) {
        if let Some(free) = self.ghost.free.get_mut(&ticket) {
            *free = true;
        }
    }

    /// A write has gone from the SSD to the disk, of which `own` bytes were in the log, and the rest lies between them; `free`:
    /// nothing arrived meanwhile.
    pub fn leaves_ssd(&mut self, offset: u64, len: u64, own: u64, free: bool) {
        self.ssd.add_with(&self.rule, &Whole { offset, len, own, free });
        self.decide();
    }

    /// Writes go to the SSD.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.decision.on
    }

    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    fn decide(&mut self) {
        let (start, stop) = match self.rule {
            Rule::Always | Rule::Never => return,
            Rule::Ratio { start, stop } | Rule::Cost { start, stop, .. } => (start, stop),
        };
        let decision = &mut self.decision;
        decision.memory = self.memory.value().unwrap_or(0.0);
        decision.ghost = self.ghosts.value().unwrap_or(0.0);
        decision.ssd = self.ssd.value().unwrap_or(0.0);
        // While it is off, and until something was written back, the ghost queue is all there is.
        let other = if decision.on && self.ssd.value().is_some() { &self.ssd } else { &self.ghosts };
        let Some(locality) = other.value() else { return };
        decision.h = match self.rule {
            Rule::Cost { ssd_request_ns, ssd_byte_ns, .. } => {
                let ssd = ssd_byte_ns + ssd_request_ns as f64 / self.mean_bytes.max(1.0);
                self.memory.cost / (ssd + other.cost)
            }
            _ if decision.memory < 1e-6 && locality < 1e-6 => 1.0,
            _ => decision.memory / locality.max(1e-9),
        };
        if !decision.on && decision.h > start {
            decision.on = true;
            decision.starts += 1;
            // What was written back in an earlier period says nothing of this one.
            self.ssd = Locality::default();
        } else if decision.on && decision.h < stop {
            decision.on = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Random;
    use sluice_core::PolicyConfig;

    const KB: u64 = 1024;

    fn decider(rule: Rule) -> Decider {
        Decider::new(&Config { rule, ghost_requests: 256, ..Config::default() }, 1 << 30).unwrap()
    }

    const COST: Rule = Rule::Cost {
        start: 1.5,
        stop: 1.1,
        positioning_ns: 8_000_000,
        disk_byte_ns: 10.0,
        ssd_request_ns: 100_000,
        ssd_byte_ns: 2.0,
    };

    #[test]
    fn locality_is_the_papers_formula() {
        let mut locality = Locality::default();
        assert_eq!(locality.value(), None);
        assert_eq!(locality.add(100, 4, false), 0.25);
        assert_eq!(locality.add(104, 2, false), 0.25 / 8.0);
        assert_eq!(locality.add(6, 10, false), 0.25 / 64.0 + 7.0 / 8.0 * 10.0);
        let before = locality.value().unwrap();
        assert_eq!(locality.add(1 << 40, 10, true), before / 8.0, "free time: no distance");
    }

    #[test]
    fn random_writes_go_to_the_ssd_and_a_stream_does_not() {
        for rule in [Rule::paper(), COST] {
            let mut random = Random(1);
            let mut tier = decider(rule);
            let mut on = 0;
            for at in 0..2000 {
                tier.leaves_memory(Time(at), Op::Write, random.below(1 << 24) * 4 * KB, 4 * KB);
                on += u32::from(tier.is_on());
            }
            // It takes a pass of the ghost queue; then H is noisy, with those weights.
            assert!(on > 1600, "{rule:?}: {on}, {:?}", tier.decision());
            let mut stream = decider(rule);
            for at in 0..2000 {
                stream.leaves_memory(Time(at), Op::Write, at * 64 * KB, 64 * KB);
            }
            assert!(!stream.is_on(), "{rule:?}: {:?}", stream.decision());
        }
    }

    #[test]
    fn it_stops_when_what_leaves_the_ssd_is_no_better() {
        let mut random = Random(2);
        let mut tier = decider(Rule::paper());
        for at in 0..1000 {
            tier.leaves_memory(Time(at), Op::Write, random.below(1 << 24) * 4 * KB, 4 * KB);
        }
        assert!(tier.is_on());
        for _ in 0..8 {
            tier.leaves_ssd(random.below(1 << 24) * 4 * KB, 4 * KB, 4 * KB, true);
        }
        assert!(tier.is_on(), "in idle time disorder costs nothing: {:?}", tier.decision());
        for at in 0..100 {
            tier.leaves_ssd(random.below(1 << 24) * 4 * KB, 4 * KB, 4 * KB, false);
            if at > 0 && !tier.is_on() {
                return;
            }
        }
        panic!("as far apart as in memory: {:?}", tier.decision());
    }

    #[test]
    fn writes_that_nobody_disturbs_make_the_ghost_look_good() {
        let mut random = Random(3);
        let mut values = [0.0; 2];
        for (free, value) in [false, true].into_iter().zip(&mut values) {
            // A queue of one request sorts nothing.
            let config = Config {
                rule: Rule::paper(),
                ghost_policy: PolicyConfig::parse("to").unwrap(),
                ghost_requests: 1,
                ..Config::default()
            };
            let mut tier = Decider::new(&config, 1 << 30).unwrap();
            for at in 0..100 {
                let ticket = tier.leaves_memory(Time(at), Op::Write, random.below(1 << 24) * 4 * KB, 4 * KB);
                if free {
                    tier.undisturbed(ticket);
                }
            }
            *value = tier.decision().ghost;
            assert_eq!(tier.is_on(), free, "{:?}", tier.decision());
        }
        assert!(values[1] < values[0] / 1e3);
    }

    /// What the paper's rule pays for its weights, and ours does not.
    #[test]
    fn one_jump_in_a_stream_starts_the_papers_rule_and_not_ours() {
        let starts = |rule| {
            let mut tier = decider(rule);
            for at in 0..2000_u64 {
                let jump = if at % 500 == 499 { 1 << 40 } else { 0 };
                tier.leaves_memory(Time(at), Op::Write, jump + at * 64 * KB, 64 * KB);
            }
            tier.decision().starts
        };
        assert!(starts(Rule::paper()) > 0);
        assert_eq!(starts(COST), 0);
    }

    /// One writer is never disturbed. What it writes anywhere is better written back, what it writes in a row is not.
    #[test]
    fn time_that_nobody_needs_speaks_for_random_writes_and_not_for_a_stream() {
        let mut random = Random(4);
        for stream in [true, false] {
            let mut tier = decider(Rule::cost());
            for at in 0..500_u64 {
                let place = if stream { at } else { random.below(1 << 20) };
                let ticket = tier.leaves_memory(Time(at), Op::Write, place * 64 * KB, 64 * KB);
                tier.undisturbed(ticket);
            }
            assert_eq!(tier.is_on(), !stream, "{:?}", tier.decision());
        }
    }

    /// Regions 8 KiB apart in three files, most of the time of one file at a time, as a disk's own queue makes processes go on: the
    /// paper's rule forgets after a few requests that there was any distance. Ours sees what a piece costs for itself, and what
    /// they cost together.
    #[test]
    fn ours_keeps_strided_writes_on_the_ssd_and_the_papers_does_not() {
        let on = |rule| {
            let mut tier = decider(rule);
            let mut next = [0, 20 << 30, 40 << 30_u64];
            let mut on = 0;
            for at in 0..4000_u64 {
                let file = &mut next[(at / 40 % 3) as usize];
                tier.leaves_memory(Time(at), Op::Write, *file, 2 * KB);
                *file += 10 * KB;
                on += u32::from(tier.is_on());
            }
            on
        };
        let (papers, ours) = (on(Rule::paper()), on(Rule::cost()));
        assert!(papers < 2000 && ours > 3900, "{papers} {ours}");
    }

    #[test]
    fn fixed_rules_stay() {
        assert!(decider(Rule::Always).is_on() && !decider(Rule::Never).is_on());
        assert!(Decider::new(&Config { ghost_requests: u32::MAX, ..Config::default() }, 1).is_err());
    }
}
