//! `sw`: server-side coordination by time windows (Song et al. 2011). Requests go by the window of time in which they
//! arrived, within a window by application, within an application in order of arrival: servers that use equal windows
//! serve the applications in the same order without talking to each other.
//!
//! The paper's window is 1 s on hard disks (the default) and 250 ms on solid state disks. Windows are aligned to the
//! driver's clock. Deviation: applications follow each other by number within every window; the paper does not say.

use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::heap::IndexedHeap;
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "sw",
    summary: "by window of arrival time, then application, then arrival",
    source: "Song et al. 2011",
    params: &[ParamInfo {
        key: "window",
        kind: Kind::Duration,
        default: 1_000_000_000,
        min: 1_000_000,
        max: 3_600_000_000_000,
        help: "length of a window; 250ms suits solid state disks",
    }],
    aggregates: false,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |params: &Params<'_>, context: PolicyContext| {
        Box::new(ServerWindows { window_ns: params.get("window"), base: 0, order: IndexedHeap::new(context.capacity) })
    },
};

#[derive(Debug)]
struct ServerWindows {
    window_ns: u64,
    /// Windows are counted from this one, so that a window and an application share one word of the key. Set whenever
    /// nothing is queued, 2^31 windows back (of at least 1 ms: 24 days), as requests that were held back for ordering
    /// safety come late.
    base: u64,
    /// Queued requests by (window, application) and order of arrival.
    order: IndexedHeap<(u64, u64)>,
}

impl Policy for ServerWindows {
    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let window = queues.arrived(slot).0 / self.window_ns;
        if self.order.peek().is_none() {
            self.base = window.saturating_sub(1 << 31);
        }
        let window = window.saturating_sub(self.base).min(u32::MAX.into());
        self.order.set(slot, (window << 32 | u64::from(queues.app(slot).0), queues.place(slot)));
    }

    fn pick(&mut self, _: Time, _: &Queues) -> Pick {
        self.order.peek().map_or(Pick::Idle, |(_, slot)| Pick::one(slot))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], _: Removal, _: &Queues) {
        requests.iter().for_each(|&slot| self.order.remove(slot));
    }
}
