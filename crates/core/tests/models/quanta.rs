//! The algorithms with quanta and short waits: every quantum is a number that grows step by step.

use super::{Choice, Model, Queue, bytes, extent_from, head_extent, in_order, queues};
use crate::harness::Item;
use sluice_core::{EngineConfig, Time};
use std::collections::{HashMap, VecDeque};

#[derive(Clone, Copy, Default)]
struct Memory {
    start: u64,
    end: u64,
    parts: usize,
    backwards: bool,
    waited_for_shift: bool,
    waited_for_parts: bool,
}

/// Short waits before a queue's head goes.
struct Waits {
    wait_ns: u64,
    memory: HashMap<Queue, Memory>,
    /// Queues that wait, with the time until which.
    waiting: Vec<(Queue, Time)>,
}

impl Waits {
    fn new(wait_ns: u64) -> Waits {
        Waits { wait_ns, memory: HashMap::new(), waiting: Vec::new() }
    }

    fn is_waiting(&self, queue: Queue) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == queue)
    }

    fn reasons(memory: &Memory, extent: &[Item], full: bool) -> (bool, bool) {
        let beyond = memory.parts > 0 && extent[0].request.offset > memory.end;
        (beyond && memory.backwards, beyond && extent.len() < memory.parts && !full)
    }

    /// True if the queue is to wait before this extent.
    fn wait(&mut self, now: Time, queue: Queue, extent: &[Item], full: bool) -> bool {
        let memory = self.memory.entry(queue).or_default();
        let (shift, parts) = Self::reasons(memory, extent, full);
        if self.wait_ns == 0 {
            return false;
        } else if shift && !memory.waited_for_shift {
            memory.waited_for_shift = true;
        } else if parts && !memory.waited_for_parts {
            memory.waited_for_parts = true;
        } else {
            return false;
        }
        self.waiting.push((queue, now.after(self.wait_ns)));
        true
    }

    /// After an arrival: true if the queue need not wait any longer.
    fn satisfied(&mut self, queue: Queue, extent: &[Item], full: bool) -> bool {
        let memory = self.memory[&queue];
        let satisfied = Self::reasons(&memory, extent, full) == (false, false);
        if satisfied {
            self.waiting.retain(|(waiting, _)| *waiting != queue);
        }
        satisfied
    }

    fn expire(&mut self, now: Time) -> Option<Queue> {
        let (queue, until) = *self.waiting.first()?;
        (until <= now).then(|| self.waiting.remove(0)).map(|_| queue)
    }

    fn dispatched(&mut self, extent: &[Item]) {
        let memory = self.memory.entry(extent[0].queue()).or_default();
        let start = extent[0].request.offset;
        *memory = Memory {
            start,
            end: extent[extent.len() - 1].request.end(),
            parts: extent.len(),
            backwards: memory.parts > 0 && start < memory.start,
            ..Memory::default()
        };
    }

    fn clear(&mut self, left: &[Item]) {
        self.waiting.retain(|(queue, _)| queues(left).contains(queue));
    }

    fn choice(&self) -> Choice {
        self.waiting.first().map_or(Choice::Idle, |(_, until)| Choice::Wait(*until))
    }
}

/// Quanta by number of the request.
#[derive(Default)]
struct Quanta {
    base: u64,
    of: HashMap<u64, u128>,
}

impl Quanta {
    fn grow(&mut self, items: &[Item]) {
        for item in items {
            let quantum = self.of.entry(item.number).or_default();
            *quantum = if *quantum == 0 { self.base.into() } else { quantum.saturating_mul(2) };
        }
    }

    fn cover(&self, extent: &[Item]) -> bool {
        let sum = extent.iter().map(|item| self.of.get(&item.number).copied().unwrap_or_default());
        sum.fold(0, u128::saturating_add) >= bytes(extent).into()
    }
}

/// What is unbounded in every test, so that extents do not depend on bounds.
fn config() -> EngineConfig {
    EngineConfig { batch_bytes_max: u64::MAX, batch_requests_max: u32::MAX, ..EngineConfig::default() }
}

pub struct MultilevelFeedback {
    ring: VecDeque<Queue>,
    quanta: Quanta,
    waits: Waits,
    config: EngineConfig,
}

impl MultilevelFeedback {
    pub fn new(base: u64, wait_ns: u64) -> MultilevelFeedback {
        let quanta = Quanta { base, ..Quanta::default() };
        MultilevelFeedback { ring: VecDeque::new(), quanta, waits: Waits::new(wait_ns), config: config() }
    }
}

impl Model for MultilevelFeedback {
    fn enqueue(&mut self, item: &Item, queued: &[Item]) {
        let queue = item.queue();
        if self.waits.is_waiting(queue) {
            let (extent, full) = head_extent(queued, queue, &self.config);
            if self.waits.satisfied(queue, &extent, full) {
                self.ring.push_front(queue);
            }
        } else if !self.ring.contains(&queue) {
            self.ring.push_back(queue);
        }
    }

    fn pick(&mut self, now: Time, queued: &[Item], _: usize, config: &EngineConfig) -> Choice {
        self.config = config.clone();
        while let Some(queue) = self.waits.expire(now) {
            self.ring.push_front(queue);
        }
        while let Some(queue) = self.ring.front().copied() {
            self.quanta.grow(&in_order(queued, queue));
            let (extent, full) = head_extent(queued, queue, config);
            if !self.quanta.cover(&extent) {
                self.ring.rotate_left(1);
            } else if self.waits.wait(now, queue, &extent, full) {
                self.ring.pop_front();
            } else {
                return Choice::Batch(extent);
            }
        }
        self.waits.choice()
    }

    fn dispatched(&mut self, extent: &[Item], picked: bool, left: &[Item], _: &EngineConfig) {
        self.waits.dispatched(extent);
        if picked {
            self.ring.rotate_left(1);
        }
        self.cancelled(&extent[0], left);
    }

    fn cancelled(&mut self, _: &Item, left: &[Item]) {
        self.waits.clear(left);
        self.ring.retain(|queue| queues(left).contains(queue));
    }
}

pub struct Aioli {
    synchronous: bool,
    quanta: Quanta,
    /// Quantum of each queue's next turn.
    turns: HashMap<Queue, u64>,
    /// Queue, end of its last batch, bytes used.
    turn: Option<(Queue, u64, u64)>,
    waits: Waits,
    config: EngineConfig,
}

impl Aioli {
    pub fn new(base: u64, wait_ns: u64, synchronous: bool) -> Aioli {
        let quanta = Quanta { base, ..Quanta::default() };
        let waits = Waits::new(wait_ns);
        Aioli { synchronous, quanta, turns: HashMap::new(), turn: None, waits, config: config() }
    }

    fn given(&self, queue: Queue) -> u64 {
        self.turns.get(&queue).copied().unwrap_or(self.quanta.base)
    }

    fn go_on(&self, queued: &[Item], config: &EngineConfig) -> Option<Vec<Item>> {
        let (queue, end, used) = self.turn?;
        let left = self.given(queue).checked_sub(used)?;
        let first = in_order(queued, queue).into_iter().find(|item| item.request.offset == end)?;
        if u64::from(first.request.len) > left {
            return None;
        }
        Some(extent_from(queued, &first, left.min(config.batch_bytes_max), config.batch_requests_max, false).0)
    }

    fn end_turn(&mut self, config: &EngineConfig) {
        let Some((queue, _, used)) = self.turn.take() else { return };
        let given = self.given(queue);
        let ratio = used as f64 / given as f64;
        let next = match ratio {
            ratio if ratio >= 1.75 => given * 2,
            ratio if ratio >= 1.25 => given + given / 2,
            ratio if ratio >= 0.75 => given,
            _ => given / 2,
        };
        self.turns.insert(queue, next.min(config.batch_bytes_max).max(self.quanta.base));
    }
}

impl Model for Aioli {
    fn enqueue(&mut self, item: &Item, queued: &[Item]) {
        if self.waits.is_waiting(item.queue()) {
            let (extent, full) = head_extent(queued, item.queue(), &self.config);
            self.waits.satisfied(item.queue(), &extent, full);
        }
    }

    fn pick(&mut self, now: Time, queued: &[Item], batches_in_flight: usize, config: &EngineConfig) -> Choice {
        self.config = config.clone();
        if self.synchronous && batches_in_flight > 0 {
            return Choice::Idle;
        }
        if let Some(extent) = self.go_on(queued, config) {
            return Choice::Batch(extent);
        }
        self.end_turn(config);
        while self.waits.expire(now).is_some() {}
        self.quanta.grow(queued);
        loop {
            let mut covered = None;
            let mut any = false;
            for queue in queues(queued).into_iter().filter(|queue| !self.waits.is_waiting(*queue)) {
                any = true;
                let (extent, full) = head_extent(queued, queue, config);
                if self.quanta.cover(&extent) {
                    covered = Some((queue, extent, full));
                    break;
                }
            }
            match covered {
                Some((queue, extent, full)) if self.waits.wait(now, queue, &extent, full) => {}
                Some((_, extent, _)) => return Choice::Batch(extent),
                None if any => self.quanta.grow(queued),
                None => return self.waits.choice(),
            }
        }
    }

    fn dispatched(&mut self, extent: &[Item], picked: bool, left: &[Item], _: &EngineConfig) {
        self.waits.dispatched(extent);
        if picked {
            let used = self.turn.map_or(0, |(.., used)| used);
            self.turn = Some((extent[0].queue(), extent[extent.len() - 1].request.end(), used + bytes(extent)));
        }
        self.waits.clear(left);
    }

    fn cancelled(&mut self, _: &Item, left: &[Item]) {
        self.waits.clear(left);
    }
}
