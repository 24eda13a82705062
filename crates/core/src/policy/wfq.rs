//! `wfq`: weighted fair queueing in bytes between applications (the service classes of AGIOS v2), as start-time fair
//! queueing (Goyal et al. 1996): the application whose oldest request has the least start tag goes next. Its tag then
//! grows by the bytes divided by its weight; one that comes back after a pause starts at the tag in service.
//!
//! While two applications have requests, the bytes served for each, divided by its weight, differ by at most one
//! batch of each. Of equal tags the application that became active first goes first. With `aggregate`, contiguous
//! requests of the same application that follow the chosen one go with it. Deviation: where more than 1,024 applications
//! have requests at the same time, those beyond share one flow of weight 1 (`weight`).
//!
//! Requests are charged when they are picked. Where a batch is delayed for predicted neighbours, these are charged when
//! they join it, and what the batch leaves behind gets its charge back.

use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::heap::IndexedHeap;
use crate::id_map::IdMap;
use crate::list::{Links, List};
use crate::queues::{Queues, Slot};
use crate::request::{AppId, Time};

/// Applications told apart at a time.
const FLOWS_MAX: u32 = 1_024;
/// The flow of all beyond.
const COMMON: u32 = FLOWS_MAX;
/// Of a request that no flow was charged for.
const UNCHARGED: u16 = u16::MAX;
/// Tags count bytes in 2^-32ths, so that large weights do not round to nothing.
const TAG_SHIFT: u32 = 32;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "wfq",
    summary: "weighted fair queueing in bytes between applications",
    source: "AGIOS v2; Goyal et al. 1996",
    params: &[
        ParamInfo {
            key: "weight",
            kind: Kind::PerApp,
            default: 1,
            min: 1,
            max: 1_000_000,
            help: "share of an application relative to others: weight.APP = N",
        },
        ParamInfo {
            key: "aggregate",
            kind: Kind::Bool,
            default: 0,
            min: 0,
            max: 1,
            help: "true: dispatch contiguous requests of the same application together",
        },
    ],
    aggregates: false,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |params: &Params<'_>, context: PolicyContext| {
        let mut weights: Vec<_> = params.per_app("weight").collect();
        weights.sort_unstable();
        let flow = Flow { app: AppId(0), weight: params.get("weight"), tag: 0, requests: List::new() };
        Box::new(WeightedFairQueueing {
            default_weight: params.get("weight"),
            weights,
            aggregate: params.flag("aggregate"),
            virtual_time: 0,
            activations: 0,
            flows: vec![flow; COMMON as usize + 1],
            used: 0,
            index: IdMap::new(FLOWS_MAX),
            idle: List::new(),
            flow_links: Links::new(FLOWS_MAX),
            active: IndexedHeap::new(COMMON + 1),
            links: Links::new(context.capacity),
            flow_of: vec![UNCHARGED; context.capacity as usize],
        })
    },
};

#[derive(Clone, Debug)]
struct Flow {
    app: AppId,
    weight: u64,
    /// Start tag of its oldest request; if it has none, of its next one unless the virtual time has passed it.
    tag: u128,
    requests: List,
}

#[derive(Debug)]
struct WeightedFairQueueing {
    default_weight: u64,
    /// Sorted by application.
    weights: Vec<(AppId, u64)>,
    aggregate: bool,
    /// Start tag of the batch dispatched last.
    virtual_time: u128,
    activations: u64,
    flows: Vec<Flow>,
    /// Flows from here on (up to the common one) were never used.
    used: u32,
    index: IdMap,
    /// Flows without requests, the longest idle in front.
    idle: List,
    flow_links: Links,
    /// Flows with requests by tag, then by the order in which they became active.
    active: IndexedHeap<(u128, u64)>,
    /// Orders the requests of each flow.
    links: Links,
    /// Of each queued request, and of those charged for, the flow.
    flow_of: Vec<u16>,
}

impl WeightedFairQueueing {
    /// The flow of an application, found or made.
    fn flow(&mut self, app: AppId) -> u32 {
        let flows = &self.flows;
        let app_of = |flow: u32| u64::from(flows[flow as usize].app.0);
        if let Some(flow) = self.index.find(u64::from(app.0), app_of) {
            return flow;
        }
        let flow = if self.used < FLOWS_MAX {
            self.used += 1;
            self.idle.push_back(&mut self.flow_links, self.used - 1);
            self.used - 1
        } else {
            let Some(flow) = self.idle.front() else { return COMMON };
            self.index.remove(app_of(flow), flow, app_of);
            flow
        };
        let weight = self.weights.binary_search_by_key(&app, |&(a, _)| a);
        let weight = weight.map_or(self.default_weight, |at| self.weights[at].1);
        self.flows[flow as usize] = Flow { app, weight, tag: 0, requests: List::new() };
        self.index.insert(u64::from(app.0), flow);
        flow
    }

    /// The flow's place in the order follows its tag.
    fn reorder(&mut self, flow: u32) {
        if let Some((_, activation)) = self.active.key(flow) {
            self.active.set(flow, (self.flows[flow as usize].tag, activation));
        }
    }
}

impl Flow {
    fn charge(&self, slot: Slot, queues: &Queues) -> u128 {
        (u128::from(queues.len(slot)) << TAG_SHIFT) / u128::from(self.weight)
    }
}

impl Policy for WeightedFairQueueing {
    fn aggregates(&self) -> bool {
        self.aggregate
    }

    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let flow = self.flow(queues.app(slot));
        self.flow_of[slot as usize] = flow as u16;
        let record = &mut self.flows[flow as usize];
        let was_idle = record.requests.front().is_none();
        record.requests.push_back(&mut self.links, slot);
        if was_idle {
            record.tag = record.tag.max(self.virtual_time);
            self.activations += 1;
            self.active.set(flow, (record.tag, self.activations));
            if flow != COMMON {
                self.idle.remove(&mut self.flow_links, flow);
            }
        }
    }

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        let least = self.active.peek().and_then(|(_, flow)| self.flows[flow as usize].requests.front());
        let Some(slot) = least else { return Pick::Idle };
        if !self.aggregate {
            return Pick::one(slot);
        }
        let app = queues.app(slot);
        Pick::extent(queues.extent_while(slot, u64::MAX, u32::MAX, |next| queues.app(next) == app))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], why: Removal, queues: &Queues) {
        if why == Removal::Picked {
            let flow = self.flow_of[requests[0] as usize];
            self.virtual_time = self.virtual_time.max(self.flows[usize::from(flow)].tag);
        }
        for &slot in requests {
            let flow = u32::from(self.flow_of[slot as usize]);
            let record = &mut self.flows[flow as usize];
            if why != Removal::Cancelled {
                record.tag += record.charge(slot, queues);
            }
            record.requests.remove(&mut self.links, slot);
            if record.requests.front().is_some() {
                self.reorder(flow);
            } else {
                self.active.remove(flow);
                if flow != COMMON {
                    self.idle.push_back(&mut self.flow_links, flow);
                }
            }
        }
    }

    fn joined(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let flow = self.flow(queues.app(slot));
        self.flow_of[slot as usize] = flow as u16;
        let record = &mut self.flows[flow as usize];
        if record.requests.front().is_none() {
            record.tag = record.tag.max(self.virtual_time);
        }
        record.tag += record.charge(slot, queues);
        self.reorder(flow);
    }

    fn returned(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let flow = std::mem::replace(&mut self.flow_of[slot as usize], UNCHARGED);
        // Charged by the algorithm before this one, or to a flow that another application has now: nothing to give back.
        let known = self.flows.get(usize::from(flow)).is_some_and(|record| record.app == queues.app(slot));
        if known || u32::from(flow) == COMMON {
            let record = &mut self.flows[usize::from(flow)];
            record.tag = record.tag.saturating_sub(record.charge(slot, queues));
            self.reorder(flow.into());
        }
    }
}
