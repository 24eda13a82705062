//! What goes wrong, and the protocol that lives with it.
//!
//! Requests are numbered by their sender, and sent again when no answer comes. A receiver remembers what it has seen of
//! each sender, so that nothing is done twice; with each request the sender says below which number it awaits nothing any
//! more, so that the receiver can forget. A machine that loses its memory gets a new epoch. Requests meant for an older one
//! are refused with the new epoch, since nobody knows any more what was seen before; then the sender sends again. An I/O
//! node begins its numbers anew in each epoch, above all earlier ones, so that what it sent before is not executed after
//! what it sent since.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::elevator::Owner;
use super::records::{Job, Parent, Reply, Sent, Stage};
use super::{Failure, Simulation};
use crate::calendar::Event;
use crate::link::Message;
use crate::scenario::{FaultEvent, FaultKind, Faults, Place};
use crate::slab::NONE;

/// Numbers of an epoch.
const EPOCH_SHIFT: u32 = 40;
/// A device's error is answered by another attempt after this time.
const PAUSE_NS: u64 = 1_000_000;

/// What went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Messages that were lost.
    pub lost: u64,
    /// Messages that came twice.
    pub doubled: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Repetitions that the receiver recognised.
    pub recognised: u64,
    /// Requests refused because the receiver had lost its memory.
    pub refused: u64,
    /// Errors of devices.
    pub failed: u64,
    /// Machines that lost their memory.
    pub crashes: u64,
}

impl FaultCounts {
    /// Adds those of another simulation.
    pub fn add(&mut self, other: &FaultCounts) {
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.repeated += other.repeated;
        self.recognised += other.recognised;
        self.refused += other.refused;
        self.failed += other.failed;
        self.crashes += other.crashes;
    }
}

/// What a receiver knows of one sender.
#[derive(Debug, Default)]
struct Known {
    /// Lower numbers are answered and will not come again.
    low: u64,
    /// `None`: not yet executed. Else what was read.
    numbers: BTreeMap<u64, Option<Vec<u64>>>,
}

/// What a receiver has seen.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<u32, Known>);

/// The state of everything that can go wrong.
pub(super) struct Trouble {
    pub(super) faults: Faults,
    pub(super) counts: FaultCounts,
    /// Numbers of each sender that are not answered.
    awaited: HashMap<u32, BTreeSet<u64>>,
    /// Epochs as senders know them: (sender, receiver).
    epochs: HashMap<(u32, u32), u32>,
    attempts: u32,
    /// Numbers of the events that have begun and not ended.
    running: BTreeSet<usize>,
    /// For tests of the checker: receivers do not recognise repetitions.
    pub(super) forgetful: bool,
}

/// What the events that run do to a machine together.
#[derive(Debug, PartialEq, Eq)]
struct Condition {
    down: bool,
    slowness: u64,
    failing: u64,
    skew_ns: u64,
}

impl Trouble {
    pub(super) fn new(faults: Faults) -> Trouble {
        Trouble {
            faults,
            counts: FaultCounts::default(),
            awaited: HashMap::new(),
            epochs: HashMap::new(),
            attempts: 0,
            running: BTreeSet::new(),
            forgetful: false,
        }
    }

    /// How a machine is: of events of one kind that overlap, the worst counts.
    fn condition(&self, place: Place) -> Condition {
        let mut all = Condition { down: false, slowness: 1, failing: 0, skew_ns: 0 };
        let running = self.running.iter().map(|&number| &self.faults.events[number]);
        for event in running.filter(|event| event.place == place) {
            match event.kind {
                FaultKind::Crash => all.down = true,
                FaultKind::Slow(factor) => all.slowness = all.slowness.max(factor),
                FaultKind::DeviceErrors(share) => all.failing = all.failing.max(share),
                FaultKind::Skew(by) => all.skew_ns = all.skew_ns.max(by),
            }
        }
        all
    }

    pub(super) fn settled(&mut self, from: u32, number: u64) {
        if let Some(awaited) = self.awaited.get_mut(&from) {
            awaited.remove(&number);
        }
    }
}

impl Simulation<'_> {
    /// Numbers a new request and sends it.
    pub(super) fn send_unreliably(&mut self, sent: u32) {
        let Some(trouble) = &mut self.faults else { return };
        let record = &mut self.sent[sent];
        if record.from >= self.clients {
            let epoch = self.nodes[(record.from - self.clients) as usize].epoch;
            record.number |= u64::from(epoch) << EPOCH_SHIFT;
        }
        trouble.awaited.entry(record.from).or_default().insert(record.number);
        self.send_again(sent);
    }

    /// Sends a request that is not answered, and plans the next attempt.
    fn send_again(&mut self, sent: u32) {
        let now = self.calendar.now();
        let Some(trouble) = &mut self.faults else { return };
        let record = &mut self.sent[sent];
        trouble.counts.repeated += u64::from(record.attempts > 0);
        trouble.attempts = trouble.attempts.wrapping_add(1);
        record.attempt = trouble.attempts;
        let wait = trouble.faults.timeout_ns << record.attempts.min(6);
        record.attempts += 1;
        self.calendar.plan(now + wait, Event::Retry(sent, record.attempt));
        let mut job = Job::new(sent, record);
        let (from, to) = (record.from, record.to);
        job.versions.clone_from(&record.versions);
        job.low = trouble.awaited.get(&from).and_then(|numbers| numbers.first().copied()).unwrap_or(0);
        job.epoch = trouble.epochs.get(&(from, to)).copied().unwrap_or(0);
        self.carry(job, from, to, false);
    }

    /// Sends an answer, and keeps what a repetition will be answered.
    pub(super) fn answer_unreliably(&mut self, job: u32) {
        let record = &self.jobs[job];
        let (from, to) = (record.to, record.from);
        let here = &mut self.nodes[(from - self.clients) as usize];
        if let Some(known) = here.seen.0.get_mut(&to) {
            match record.reply {
                Reply::Ok => {
                    if let Some(done) = known.numbers.get_mut(&record.number) {
                        *done = Some(record.versions.clone());
                    }
                }
                // The next attempt will be executed.
                Reply::Failed => drop(known.numbers.remove(&record.number)),
                Reply::Restarted(_) => {}
            }
        }
        let copy = record.clone();
        self.jobs.free(job);
        self.carry(copy, from, to, true);
    }

    /// Carries a message, if it is not lost; perhaps late, perhaps twice.
    fn carry(&mut self, job: Job, from: u32, to: u32, is_answer: bool) {
        let Some(trouble) = &mut self.faults else { return };
        let (content, delay_ns) = (job.content, trouble.faults.delay_ns);
        if self.random.chance(trouble.faults.loss) {
            trouble.counts.lost += 1;
            return self.transmit(&content, (from, to), Message { job: NONE, is_answer, late_ns: 0 });
        }
        let copies = 1 + u32::from(self.random.chance(trouble.faults.duplicate));
        trouble.counts.doubled += u64::from(copies - 1);
        for _ in 0..copies {
            let late_ns = self.random.below(delay_ns + 1);
            let job = self.jobs.insert(job.clone());
            self.transmit(&content, (from, to), Message { job, is_answer, late_ns });
        }
    }

    /// Whether a request that was received is to be executed; if not, it is answered or dropped.
    pub(super) fn is_new(&mut self, node: u32, job: u32) -> bool {
        let Some(trouble) = &mut self.faults else { return true };
        let here = &mut self.nodes[node as usize];
        let record = &mut self.jobs[job];
        if here.down {
            here.leaves(record.from);
            self.jobs.free(job);
            return false;
        }
        if record.epoch != here.epoch {
            trouble.counts.refused += 1;
            record.versions.clear();
            self.answer(job, Reply::Restarted(self.nodes[node as usize].epoch));
            return false;
        }
        let known = here.seen.0.entry(record.from).or_default();
        if record.low > known.low {
            known.low = record.low;
            known.numbers = known.numbers.split_off(&record.low);
        }
        if trouble.forgetful {
            return true;
        }
        if record.number < known.low {
            trouble.counts.recognised += 1;
            here.leaves(record.from);
            self.jobs.free(job);
            return false;
        }
        match known.numbers.get(&record.number) {
            None => {
                known.numbers.insert(record.number, None);
                true
            }
            Some(None) => {
                trouble.counts.recognised += 1;
                here.leaves(record.from);
                self.jobs.free(job);
                false
            }
            Some(Some(versions)) => {
                trouble.counts.recognised += 1;
                record.versions.clone_from(versions);
                self.answer(job, Reply::Ok);
                false
            }
        }
    }

    /// Whether an answer is the one that is awaited.
    pub(super) fn is_awaited(&mut self, sent: u32, number: u64, reply: Reply) -> bool {
        let record = &self.sent[sent];
        if record.number != number {
            return false;
        }
        let (from, to, attempt) = (record.from, record.to, record.attempt);
        let now = self.calendar.now();
        let Some(trouble) = &mut self.faults else { return true };
        match reply {
            Reply::Ok => true,
            Reply::Failed => {
                trouble.counts.failed += 1;
                self.calendar.plan(now + PAUSE_NS, Event::Retry(sent, attempt));
                false
            }
            Reply::Restarted(epoch) => {
                let known = trouble.epochs.entry((from, to)).or_insert(0);
                if *known < epoch {
                    *known = epoch;
                }
                let current = *known;
                if current == epoch {
                    self.send_again(sent);
                }
                false
            }
        }
    }

    /// An answer is late.
    pub(super) fn retry(&mut self, sent: u32, attempt: u32) {
        let record = &self.sent[sent];
        if record.number != 0 && record.attempt == attempt {
            self.send_again(sent);
        }
    }

    /// A planned fault begins or ends.
    pub(super) fn fault(&mut self, number: u32) -> Result<(), Failure> {
        let Some(trouble) = &mut self.faults else { return Ok(()) };
        let (event, begins) = (number as usize / 2, number.is_multiple_of(2));
        let FaultEvent { kind, place, .. } = trouble.faults.events[event];
        if begins {
            trouble.running.insert(event);
        } else {
            trouble.running.remove(&event);
        }
        trouble.counts.crashes += u64::from(begins && kind == FaultKind::Crash);
        let Condition { down, slowness, failing, skew_ns } = trouble.condition(place);
        let node = match place {
            Place::Server(server) => self.io_nodes + server,
            Place::IoNode(node) => node,
        };
        let here = &mut self.nodes[node as usize];
        (here.down, here.failing, here.skew_ns) = (down, failing, skew_ns);
        if let Some(disk) = &mut here.disk {
            disk.slowness = slowness;
        }
        match kind {
            FaultKind::Crash if begins => self.crash(node),
            FaultKind::Skew(_) => self.pump(node)?,
            _ => {}
        }
        Ok(())
    }

    /// A machine loses what it has in memory.
    fn crash(&mut self, node: u32) {
        let now = self.calendar.now();
        let inside: Vec<u32> = self.inside(node).collect();
        for job in inside {
            // Not to be found again before its place is used anew.
            self.jobs[job].stage = Stage::Returning;
            self.jobs.free(job);
        }
        let machine = self.nodes[node as usize].machine;
        for sent in self.sent.places() {
            let Sent { from, number, parent, .. } = self.sent[sent];
            if from == machine && number != 0 && matches!(parent, Parent::Batch(_)) {
                self.sent[sent].number = 0;
                self.sent.free(sent);
            }
        }
        if let Some(trouble) = &mut self.faults {
            trouble.awaited.remove(&machine);
        }
        // Those at a device are given back when it has served them.
        let at_device: Vec<u32> = self.running.places().filter(|&at| self.running[at].0 == node).collect();
        let owners = at_device.into_iter().flat_map(|at| self.running[at].1.owners().collect::<Vec<_>>());
        let batches = owners.filter_map(|(owner, _)| match owner {
            Owner::Batch(batch) => Some(batch),
            Owner::Pages(_) | Owner::Tier(_) => None,
        });
        let at_device: BTreeSet<u32> = batches.collect();
        for batch in self.batches.places() {
            let record = &mut self.batches[batch];
            if record.node == node && record.live {
                record.live = false;
                if !at_device.contains(&batch) {
                    self.batches.free(batch);
                }
            }
        }
        self.nodes[node as usize].restart(now);
        self.watch_locality_again(node);
        self.predict(node);
        if let Some(check) = &mut self.check {
            check.lost(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_events_that_overlap_the_worst_counts_and_the_end_of_one_ends_no_other() {
        let (here, there) = (Place::Server(1), Place::IoNode(1));
        let kinds = [
            (here, FaultKind::Crash),
            (here, FaultKind::Crash),
            (here, FaultKind::Slow(9)),
            (here, FaultKind::Slow(3)),
            (here, FaultKind::DeviceErrors(70)),
            (here, FaultKind::DeviceErrors(20)),
            (here, FaultKind::Skew(8)),
            (here, FaultKind::Skew(5)),
            (there, FaultKind::Skew(6)),
        ];
        let events = kinds.map(|(place, kind)| FaultEvent { kind, place, at_ns: 0, lasts_ns: 1 }).to_vec();
        let mut trouble = Trouble::new(Faults { timeout_ns: 1, loss: 0, duplicate: 0, delay_ns: 0, events });
        let well = Condition { down: false, slowness: 1, failing: 0, skew_ns: 0 };
        assert_eq!(trouble.condition(here), well);
        trouble.running.extend(0..kinds.len());
        let worst = Condition { down: true, slowness: 9, failing: 70, skew_ns: 8 };
        assert_eq!(trouble.condition(here), worst);
        assert_eq!(trouble.condition(there), Condition { skew_ns: 6, ..well });
        // One of each kind ends: the other one goes on.
        trouble.running.retain(|number| number.is_multiple_of(2));
        assert_eq!(trouble.condition(here), worst);
        trouble.running.clear();
        trouble.running.extend([1, 3, 5, 7]);
        assert_eq!(trouble.condition(here), Condition { down: true, slowness: 3, failing: 20, skew_ns: 5 });
    }
}
