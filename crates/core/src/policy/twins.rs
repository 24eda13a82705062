//! `twins`: time windows (Bez et al. 2017). During a window, requests to one data server only are dispatched, in order of
//! arrival; then the next server's window opens, round robin. I/O node k serves server (s + k) mod S in slot s, with the
//! slots of all nodes aligned to one epoch, so that each server sees few nodes at a time.
//!
//! A window whose server has no requests is idled through, as in the paper, unless `work_conserving` is set: then the
//! oldest request to any server goes.
//!
//! Deviations: targets beyond `servers` share the windows of the lower ones (modulo). And where there is nothing to take
//! turns with, no window is waited for: when requests to one server only are queued, and none to another was queued during
//! the last `alone_after`, the oldest goes. `alone_after=0` is the paper: every window is waited for.

use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::list::{Links, List};
use crate::queues::{Queues, Slot};
use crate::request::Time;

const SERVERS_MAX: u64 = 65_536;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "twins",
    summary: "oldest request to the data server whose time window is open",
    source: "Bez et al. 2017",
    params: &[
        ParamInfo {
            key: "servers",
            kind: Kind::Count,
            default: 4,
            min: 1,
            max: SERVERS_MAX,
            help: "number of data servers (targets)",
        },
        ParamInfo {
            key: "node",
            kind: Kind::Count,
            default: 0,
            min: 0,
            max: u32::MAX as u64,
            help: "number of this I/O node, which shifts its windows",
        },
        ParamInfo {
            key: "window",
            kind: Kind::Duration,
            default: 1_000_000,
            min: 1_000,
            max: 3_600_000_000_000,
            help: "length of a window; the papers consider 125us to 8ms",
        },
        ParamInfo {
            key: "epoch",
            kind: Kind::Duration,
            default: 0,
            min: 0,
            max: u64::MAX / 2,
            help: "time of the driver's clock at which slot 0 begins, the same on all I/O nodes",
        },
        ParamInfo {
            key: "work_conserving",
            kind: Kind::Bool,
            default: 0,
            min: 0,
            max: 1,
            help: "true: serve other servers rather than idle through a window",
        },
        ParamInfo {
            key: "alone_after",
            kind: Kind::Duration,
            default: 100_000_000,
            min: 0,
            max: 3_600_000_000_000,
            help: "with requests to one server only for so long, do not wait for its window; 0: always wait",
        },
    ],
    aggregates: false,
    waits: true,
    bypasses_queue: false,
    shared_engine: true,
    build: |params: &Params<'_>, context: PolicyContext| {
        let servers = params.get("servers");
        Box::new(TimeWindows {
            servers,
            node: params.get("node"),
            window_ns: params.get("window"),
            epoch: Time(params.get("epoch")),
            work_conserving: params.flag("work_conserving"),
            by_server: vec![List::new(); servers as usize],
            links: Links::new(context.capacity),
            waiting: vec![0; servers.div_ceil(64) as usize],
            waiting_servers: 0,
            alone_after_ns: params.get("alone_after"),
            latest: None,
            other: None,
        })
    },
};

#[derive(Debug)]
struct TimeWindows {
    servers: u64,
    node: u64,
    window_ns: u64,
    epoch: Time,
    work_conserving: bool,
    /// Queued requests to each server in order of arrival.
    by_server: Vec<List>,
    links: Links,
    /// One bit for each server that has queued requests.
    waiting: Vec<u64>,
    /// How many have.
    waiting_servers: u32,
    alone_after_ns: u64,
    /// The server of the last request that was queued, and when.
    latest: Option<(usize, Time)>,
    /// When a request to another server than that one was queued last.
    other: Option<Time>,
}

impl TimeWindows {
    fn server(&self, slot: Slot, queues: &Queues) -> usize {
        (u64::from(queues.target(slot).0) % self.servers) as usize
    }

    /// The first server with requests at or after `from`, going round. O(servers / 64).
    fn next_waiting(&self, from: usize) -> Option<usize> {
        let words = self.waiting.len();
        let ahead = self.waiting[from / 64] >> (from % 64);
        if ahead != 0 {
            return Some(from + ahead.trailing_zeros() as usize);
        }
        let word = (1..=words).map(|w| (from / 64 + w) % words).find(|&w| self.waiting[w] != 0)?;
        Some(word * 64 + self.waiting[word].trailing_zeros() as usize)
    }

    /// From when on `server`, which has requests, has nobody to take turns with; `None`: not as things are. O(1).
    fn alone_from(&self, server: usize) -> Option<Time> {
        if self.waiting_servers > 1 || self.alone_after_ns == 0 {
            return None;
        }
        let other = match self.latest {
            Some((latest, at)) if latest != server => Some(at),
            _ => self.other,
        };
        Some(other.map_or(Time::ZERO, |at| at.after(self.alone_after_ns)))
    }
}

impl Policy for TimeWindows {
    fn enqueue(&mut self, now: Time, slot: Slot, queues: &Queues) {
        let server = self.server(slot, queues);
        if self.by_server[server].front().is_none() {
            self.waiting[server / 64] |= 1 << (server % 64);
            self.waiting_servers += 1;
        }
        self.by_server[server].push_back(&mut self.links, slot);
        match self.latest.replace((server, now)) {
            Some((before, at)) if before != server => self.other = Some(at),
            _ => {}
        }
    }

    fn pick(&mut self, now: Time, queues: &Queues) -> Pick {
        let slot_number = now.since(self.epoch) / self.window_ns;
        let open = (slot_number % self.servers + self.node % self.servers) % self.servers;
        if let Some(slot) = self.by_server[open as usize].front() {
            return Pick::one(slot);
        }
        if self.work_conserving {
            return queues.oldest().map_or(Pick::Idle, Pick::one);
        }
        let Some(next) = self.next_waiting(open as usize) else { return Pick::Idle };
        let alone_from = self.alone_from(next).unwrap_or(Time(u64::MAX));
        if alone_from <= now
            && let Some(slot) = self.by_server[next].front()
        {
            return Pick::one(slot);
        }
        let ahead = (next as u64 + self.servers - open) % self.servers;
        let opens = self.epoch.after((slot_number + ahead).saturating_mul(self.window_ns));
        Pick::WaitUntil(opens.min(alone_from))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], _: Removal, queues: &Queues) {
        for &slot in requests {
            let server = self.server(slot, queues);
            self.by_server[server].remove(&mut self.links, slot);
            if self.by_server[server].front().is_none() {
                self.waiting[server / 64] &= !(1 << (server % 64));
                self.waiting_servers -= 1;
            }
        }
    }
}
