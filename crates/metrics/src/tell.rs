//! Who has something to tell, and what.

use sluice_control::{AgentStatus, Status};
use sluice_core::Op;
use sluice_runtime::Snapshot;

use crate::samples::Samples;

/// A scheduler, by its snapshot. O(engines x applications).
pub fn scheduler(snapshot: &Snapshot, samples: &mut Samples) {
    let total = snapshot.total.total();
    for (op, name) in [(Op::Read, "read"), (Op::Write, "write")] {
        let counts = &total.ops[op.index()];
        samples.set("sluice_requests", &[name], counts.completed as f64);
        samples.set("sluice_bytes", &[name], counts.bytes as f64);
        samples.set("sluice_errors", &[name], counts.errors as f64);
    }
    samples.set("sluice_batches", &[], total.batches as f64);
    samples.set("sluice_batched_requests", &[], total.batched_requests as f64);
    samples.set("sluice_blocked", &[], total.blocked as f64);
    samples.set("sluice_expired", &[], total.expired as f64);
    samples.set("sluice_queued", &[], snapshot.shards.iter().map(|shard| f64::from(shard.queued)).sum());
    samples.set("sluice_in_flight", &[], snapshot.shards.iter().map(|shard| f64::from(shard.in_flight)).sum());
    samples.durations("sluice_wait_seconds", &total.wait);
    samples.durations("sluice_service_seconds", &total.service);
    samples.set("sluice_policy", &[snapshot.policy.name()], 1.0);
    samples.set("sluice_window_seconds", &[], snapshot.policy.value("window").unwrap_or(0) as f64 / 1e9);
}

/// A node's side of a coordinator.
pub fn agent(status: &AgentStatus, samples: &mut Samples) {
    let address = [status.address.as_str()];
    samples.set("sluice_node_connected", &address, f64::from(u8::from(status.is_connected)));
    samples.set("sluice_node_announcements", &address, status.announcements as f64);
    samples.set("sluice_node_decisions", &address, status.decisions as f64);
    samples.set("sluice_node_disconnections", &address, status.disconnections as f64);
    samples.set("sluice_node_clock_offset_seconds", &address, status.offset_us / 1e6);
}

/// A coordinator. O(nodes).
pub fn coordinator(status: &Status, samples: &mut Samples) {
    let counts = &status.counts;
    samples.set("sluice_coordinator_nodes", &[], status.nodes.len() as f64);
    samples.set("sluice_coordinator_announcements", &[], counts.announcements as f64);
    samples.set("sluice_coordinator_decisions", &[], counts.decisions as f64);
    samples.set("sluice_coordinator_missing", &[], counts.missing as f64);
    samples.set("sluice_coordinator_stale", &[], counts.stale as f64);
    samples.set("sluice_coordinator_refused", &[], counts.refused as f64);
    samples.set("sluice_coordinator_lost", &[], counts.lost as f64);
    for node in &status.nodes {
        samples.set("sluice_coordinator_node_silent_seconds", &[&node.name], node.silent_s);
    }
}
