//! Naive models of the algorithms: plain lists, searched from end to end.

mod quanta;

pub use quanta::{Aioli, MultilevelFeedback};

use crate::harness::Item;
use sluice_core::{EngineConfig, Op, Time};
use std::collections::VecDeque;

/// A file queue: file, target, operation.
pub type Queue = (u64, u32, Op);

pub enum Choice {
    Batch(Vec<Item>),
    Wait(Time),
    Idle,
}

/// `queued` and `left` are all queued requests in order of arrival.
pub trait Model {
    /// `item`, which is among `queued`, has arrived.
    fn enqueue(&mut self, _item: &Item, _queued: &[Item]) {}
    fn pick(&mut self, now: Time, queued: &[Item], batches_in_flight: usize, config: &EngineConfig) -> Choice;
    /// `extent` went, `picked` or because it was overdue; `left` is left.
    fn dispatched(&mut self, _run: &[Item], _picked: bool, _left: &[Item], _config: &EngineConfig) {}
    fn cancelled(&mut self, _item: &Item, _left: &[Item]) {}
}

/// A queue in offset order; equal offsets in order of arrival.
pub fn in_order(queued: &[Item], queue: Queue) -> Vec<Item> {
    let mut items: Vec<Item> = queued.iter().filter(|item| item.queue() == queue).copied().collect();
    items.sort_by_key(|item| (item.request.offset, item.place()));
    items
}

fn bytes(extent: &[Item]) -> u64 {
    extent.iter().map(|item| u64::from(item.request.len)).sum()
}

/// The extent that starts with `first`; and whether a bound cut it.
pub fn extent_from(
    queued: &[Item],
    first: &Item,
    bytes_max: u64,
    requests_max: u32,
    same_app: bool,
) -> (Vec<Item>, bool) {
    let items = in_order(queued, first.queue());
    let from = items.iter().position(|item| item.number == first.number).expect("it is queued");
    let mut extent = vec![*first];
    for item in &items[from + 1..] {
        let follows = item.request.offset == extent[extent.len() - 1].request.end();
        if !follows || (same_app && item.request.app != first.request.app) {
            break;
        }
        if extent.len() >= requests_max as usize || bytes(&extent) + u64::from(item.request.len) > bytes_max {
            return (extent, true);
        }
        extent.push(*item);
    }
    (extent, false)
}

/// The extent from the lowest offset of a queue.
pub fn head_extent(queued: &[Item], queue: Queue, config: &EngineConfig) -> (Vec<Item>, bool) {
    let head = in_order(queued, queue)[0];
    extent_from(queued, &head, config.batch_bytes_max, config.batch_requests_max, false)
}

pub fn extent_around(queued: &[Item], item: &Item, config: &EngineConfig) -> Vec<Item> {
    let (mut extent, _) = extent_from(queued, item, config.batch_bytes_max, config.batch_requests_max, false);
    let items = in_order(queued, item.queue());
    let mut at = items.iter().position(|i| i.number == item.number).expect("it is queued");
    while at > 0 && items[at - 1].request.end() == items[at].request.offset {
        at -= 1;
        let grown = bytes(&extent) + u64::from(items[at].request.len);
        if extent.len() >= config.batch_requests_max as usize || grown > config.batch_bytes_max {
            break;
        }
        extent.insert(0, items[at]);
    }
    extent
}

/// Queues that have requests, in the order of their oldest ones.
pub fn queues(queued: &[Item]) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for item in queued {
        if !queues.contains(&item.queue()) {
            queues.push(item.queue());
        }
    }
    queues
}

pub struct TimeOrder;

impl Model for TimeOrder {
    fn pick(&mut self, _: Time, queued: &[Item], _: usize, _: &EngineConfig) -> Choice {
        Choice::Batch(vec![queued[0]])
    }
}

pub struct TimeOrderAggregating;

impl Model for TimeOrderAggregating {
    fn pick(&mut self, _: Time, queued: &[Item], _: usize, config: &EngineConfig) -> Choice {
        Choice::Batch(extent_around(queued, &queued[0], config))
    }
}

/// Non-empty queues in the order in which they became so.
#[derive(Default)]
pub struct ShortestJobFirst(Vec<Queue>);

impl Model for ShortestJobFirst {
    fn enqueue(&mut self, item: &Item, _: &[Item]) {
        if !self.0.contains(&item.queue()) {
            self.0.push(item.queue());
        }
    }

    fn pick(&mut self, _: Time, queued: &[Item], _: usize, config: &EngineConfig) -> Choice {
        let shortest = self.0.iter().min_by_key(|queue| bytes(&in_order(queued, **queue)));
        Choice::Batch(head_extent(queued, *shortest.expect("something is queued"), config).0)
    }

    fn dispatched(&mut self, _: &[Item], _: bool, left: &[Item], _: &EngineConfig) {
        self.0.retain(|queue| queues(left).contains(queue));
    }

    fn cancelled(&mut self, _: &Item, left: &[Item]) {
        self.0.retain(|queue| queues(left).contains(queue));
    }
}

pub struct HandleRoundRobin {
    ranges: u64,
    batch: u32,
    ring: VecDeque<Queue>,
    sent: u64,
}

impl HandleRoundRobin {
    pub fn new(ranges: u64, batch: u32) -> HandleRoundRobin {
        HandleRoundRobin { ranges, batch, ring: VecDeque::new(), sent: 0 }
    }

    fn clear(&mut self, left: &[Item]) {
        let front = self.ring.front().copied();
        self.ring.retain(|queue| queues(left).contains(queue));
        if self.ring.front().copied() != front {
            self.sent = 0;
        }
    }
}

impl Model for HandleRoundRobin {
    fn enqueue(&mut self, item: &Item, _: &[Item]) {
        if !self.ring.contains(&item.queue()) {
            self.ring.push_back(item.queue());
        }
    }

    fn pick(&mut self, _: Time, queued: &[Item], _: usize, config: &EngineConfig) -> Choice {
        if self.sent >= self.ranges {
            self.sent = 0;
            self.ring.rotate_left(1);
        }
        let head = in_order(queued, self.ring[0])[0];
        let requests_max = self.batch.min(config.batch_requests_max);
        Choice::Batch(extent_from(queued, &head, config.batch_bytes_max, requests_max, false).0)
    }

    fn dispatched(&mut self, _: &[Item], picked: bool, left: &[Item], _: &EngineConfig) {
        self.sent += u64::from(picked);
        self.clear(left);
    }

    fn cancelled(&mut self, _: &Item, left: &[Item]) {
        self.clear(left);
    }
}

pub struct ServerWindows {
    pub window_ns: u64,
}

impl Model for ServerWindows {
    fn pick(&mut self, _: Time, queued: &[Item], _: usize, _: &EngineConfig) -> Choice {
        let key = |item: &&Item| (item.arrived.0 / self.window_ns, item.request.app, item.place());
        Choice::Batch(vec![*queued.iter().min_by_key(key).expect("something is queued")])
    }
}

pub struct TimeWindows {
    pub servers: u64,
    pub node: u64,
    pub window_ns: u64,
    pub epoch: u64,
    pub work_conserving: bool,
    pub alone_after_ns: u64,
    /// Server and time of every request that was queued.
    pub arrivals: Vec<(u64, Time)>,
}

impl Model for TimeWindows {
    fn enqueue(&mut self, item: &Item, _: &[Item]) {
        let (since, _) = item.eligible.expect("it is queued");
        self.arrivals.push((u64::from(item.request.target.0) % self.servers, since));
    }

    fn pick(&mut self, now: Time, queued: &[Item], _: usize, _: &EngineConfig) -> Choice {
        let slot = now.0.saturating_sub(self.epoch) / self.window_ns;
        let serves = |slot: u64, item: &&Item| {
            (slot + self.node) % self.servers == u64::from(item.request.target.0) % self.servers
        };
        if let Some(item) = queued.iter().find(|item| serves(slot, item)) {
            return Choice::Batch(vec![*item]);
        }
        if self.work_conserving {
            return Choice::Batch(vec![queued[0]]);
        }
        let next = (slot..).find(|slot| queued.iter().any(|item| serves(*slot, &item)));
        let opens = Time(self.epoch + next.expect("every server has its turn") * self.window_ns);
        let server = |item: &Item| u64::from(item.request.target.0) % self.servers;
        let only = server(&queued[0]);
        if self.alone_after_ns == 0 || queued.iter().any(|item| server(item) != only) {
            return Choice::Wait(opens);
        }
        let last = self.arrivals.iter().filter(|(other, _)| *other != only).map(|(_, at)| *at).max();
        match last.map(|at| at.after(self.alone_after_ns)) {
            Some(alone_from) if now < alone_from => Choice::Wait(opens.min(alone_from)),
            _ => Choice::Batch(vec![queued[0]]),
        }
    }
}

pub struct FairQueueing {
    weights: [u64; 3],
    aggregate: bool,
    tags: [u128; 3],
    now: u128,
    /// Applications with requests, in the order in which they became so.
    active: Vec<usize>,
}

impl FairQueueing {
    pub fn new(weights: [u64; 3], aggregate: bool) -> FairQueueing {
        FairQueueing { weights, aggregate, tags: [0; 3], now: 0, active: Vec::new() }
    }

    fn clear(&mut self, left: &[Item]) {
        self.active.retain(|app| left.iter().any(|item| item.request.app.0 as usize == *app));
    }
}

impl Model for FairQueueing {
    fn enqueue(&mut self, item: &Item, _: &[Item]) {
        let app = item.request.app.0 as usize;
        if !self.active.contains(&app) {
            self.active.push(app);
            self.tags[app] = self.tags[app].max(self.now);
        }
    }

    fn pick(&mut self, _: Time, queued: &[Item], _: usize, config: &EngineConfig) -> Choice {
        let least = *self.active.iter().min_by_key(|app| self.tags[**app]).expect("something is queued");
        let first = queued.iter().find(|item| item.request.app.0 as usize == least).expect("it is active");
        if !self.aggregate {
            return Choice::Batch(vec![*first]);
        }
        Choice::Batch(extent_from(queued, first, config.batch_bytes_max, config.batch_requests_max, true).0)
    }

    fn dispatched(&mut self, extent: &[Item], picked: bool, left: &[Item], _: &EngineConfig) {
        if picked {
            self.now = self.now.max(self.tags[extent[0].request.app.0 as usize]);
        }
        for item in extent {
            let app = item.request.app.0 as usize;
            self.tags[app] += (u128::from(item.request.len) << 32) / u128::from(self.weights[app]);
        }
        self.clear(left);
    }

    fn cancelled(&mut self, _: &Item, left: &[Item]) {
        self.clear(left);
    }
}
