//! What a simulation has found.

use serde::Serialize;
use sluice_core::{Counters, Histogram};

use super::cache::CacheOutcome;
use super::data_driven::DataDrivenCounts;
use super::disk::{DeviceOutcome, Started};
use super::faults::FaultCounts;
use super::orchestration::OrchestrationOutcome;
use super::patterns::PatternWindow;
use super::prediction::PredictionCounts;
use super::resonant::ResonantCounts;
use super::tier::TierOutcome;
use super::windows::Window;
use sluice_adapt::device::Estimate;

/// A distribution of durations in nanoseconds; percentiles are at most 12.5 % too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Durations {
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

impl From<&Histogram> for Durations {
    fn from(histogram: &Histogram) -> Durations {
        Durations {
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.percentile_ns(50.0),
            p95_ns: histogram.percentile_ns(95.0),
            p99_ns: histogram.percentile_ns(99.0),
            max_ns: histogram.max_ns(),
        }
    }
}

/// One application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AppOutcome {
    /// Its name.
    pub name: String,
    /// From its start to the end of its last process, in nanoseconds.
    pub makespan_ns: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Requests of its processes.
    pub calls: u64,
    /// From a request of a process to its answer.
    pub latency: Durations,
    /// Makespan divided by that of the same application alone; absent if not simulated.
    pub slow_down: Option<f64>,
    /// What was done if it is data-driven; absent if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_driven: Option<DataDrivenCounts>,
    /// How its collective calls were carried out, if Resonant I/O does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resonant: Option<ResonantCounts>,
}

/// All nodes of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodesOutcome {
    /// Requests completed.
    pub requests: u64,
    /// Batches dispatched.
    pub batches: u64,
    /// Requests in a batch on average.
    pub aggregation: f64,
    /// Requests waiting on average, as arriving ones see it.
    pub depth: f64,
    /// From submission to dispatch.
    pub wait: Durations,
    /// From dispatch to completion.
    pub service: Durations,
    /// Batches that went first because of `max_wait`.
    pub expired: u64,
    /// Requests that were blocked by an earlier overlapping one.
    pub blocked: u64,
    /// Submissions that found the engine full.
    pub refused: u64,
}

impl NodesOutcome {
    pub(super) fn new(all: impl Iterator<Item = Counters>) -> NodesOutcome {
        let mut sum = Counters::default();
        all.for_each(|counters| sum.merge(&counters));
        NodesOutcome {
            requests: sum.completed(),
            batches: sum.batches,
            aggregation: sum.mean_aggregation(),
            depth: sum.mean_depth(),
            wait: (&sum.wait).into(),
            service: (&sum.service).into(),
            expired: sum.expired,
            blocked: sum.blocked,
            refused: sum.refused,
        }
    }
}

/// What one simulation has found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// From the first start of an application to the last end, in nanoseconds.
    pub makespan_ns: u64,
    /// Bytes read and written by applications.
    pub bytes: u64,
    /// Of all answers and completions with their times: equal digests, equal simulations.
    pub digest: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Requests that data servers received.
    pub server_requests: u64,
    /// Most requests that were under way at a time.
    pub under_way_max: u64,
    /// Messages that found the buffer of a port full and were sent again.
    pub retransmitted: u64,
    /// Applications.
    pub apps: Vec<AppOutcome>,
    /// Data servers.
    pub servers: NodesOutcome,
    /// I/O nodes; absent if there are none.
    pub io_nodes: Option<NodesOutcome>,
    /// All devices together.
    pub device: DeviceOutcome,
    /// Number of devices.
    pub devices: u32,
    /// What the servers' page caches did; absent without them.
    pub cache: Option<CacheOutcome>,
    /// What the SSDs before the servers' devices did; absent without them.
    pub tier: Option<TierOutcome>,
    /// Times that a [`Selector`](super::Selector) changed an algorithm.
    pub policy_changes: u64,
    /// What data servers' requests were like and what they were, if wanted: server by server, in order of time.
    #[serde(skip)]
    pub patterns: Vec<PatternWindow>,
    /// What is known of each data server's device, if wanted.
    #[serde(skip)]
    pub learned: Vec<Estimate>,
    /// Features of all windows, if wanted.
    #[serde(skip)]
    pub windows: Vec<Window>,
    /// What predictions did; absent without them.
    pub predictions: Option<PredictionCounts>,
    /// What an orchestrator did; absent without one.
    pub orchestration: Option<OrchestrationOutcome>,
    /// What went wrong; absent if nothing could.
    pub faults: Option<FaultCounts>,
    /// Details, if wanted.
    pub record: Option<Record>,
}

impl Outcome {
    /// Bytes of all applications per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.bytes as f64 / (self.makespan_ns.max(1) as f64 * 1e-9)
    }

    /// Share of the makespan during which a device was at work, on average over devices.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        self.device.busy_ns as f64 / (self.makespan_ns.max(1) as f64 * f64::from(self.devices.max(1)))
    }

    /// Jain's index of the applications' slow-downs (or throughputs, if those are not known): 1 is fair, 1/n is not.
    #[must_use]
    pub fn jain(&self) -> f64 {
        let rate = |app: &AppOutcome| app.bytes as f64 / app.makespan_ns.max(1) as f64;
        let slow: Option<Vec<f64>> = self.apps.iter().map(|app| app.slow_down).collect();
        jain(&slow.unwrap_or_else(|| self.apps.iter().map(rate).collect()))
    }

    /// Largest slow-down of an application; `None` if not known.
    #[must_use]
    pub fn slow_down_max(&self) -> Option<f64> {
        self.apps.iter().filter_map(|app| app.slow_down).reduce(f64::max)
    }
}

/// Jain's fairness index.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

/// Most bins of a time line.
const BINS: usize = 240;
/// Most points of a request path.
const POINTS: usize = 4096;

/// A stretch of time of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Bytes whose commands began then.
    pub bytes: u64,
    /// Time at work for them, in nanoseconds.
    pub busy_ns: u64,
    /// Of that, positioning.
    pub seek_ns: u64,
}

/// A command of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// When it began.
    pub at_ns: u64,
    /// Data server.
    pub server: u32,
    /// First byte on the device.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Application of its first part; [`u32::MAX`] for what the page cache or a tier moves.
    pub app: u32,
}

/// Details of a simulation: a time line for each server, and the path over the devices' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Length of a bin in nanoseconds.
    pub bin_ns: u64,
    /// By server.
    pub servers: Vec<Vec<Bin>>,
    /// Every so many of the commands are in the path.
    pub every: u64,
    /// In order of time.
    pub path: Vec<Point>,
    #[serde(skip)]
    commands: u64,
}

impl Record {
    pub(super) fn new(servers: u32) -> Record {
        let servers = vec![Vec::new(); servers as usize];
        Record { bin_ns: 1_000_000, servers, every: 1, path: Vec::new(), commands: 0 }
    }

    pub(super) fn command(&mut self, server: u32, now: u64, started: &Started, app: u32) {
        while now / self.bin_ns >= BINS as u64 {
            self.halve_bins();
        }
        let bins = &mut self.servers[server as usize];
        let bin = (now / self.bin_ns) as usize;
        if bins.len() <= bin {
            bins.resize(bin + 1, Bin::default());
        }
        bins[bin].bytes += started.command.len;
        bins[bin].busy_ns += started.service.total_ns;
        bins[bin].seek_ns += started.service.seek_ns + started.service.rotation_ns;
        if self.commands.is_multiple_of(self.every) {
            let (address, len) = (started.command.address, started.command.len);
            self.path.push(Point { at_ns: now, server, address, len, app });
        }
        self.commands += 1;
        if self.path.len() == POINTS {
            let mut number = 0;
            self.path.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    fn halve_bins(&mut self) {
        self.bin_ns *= 2;
        for bins in &mut self.servers {
            let merge = |pair: &[Bin]| {
                pair.iter().fold(Bin::default(), |a, b| Bin {
                    bytes: a.bytes + b.bytes,
                    busy_ns: a.busy_ns + b.busy_ns,
                    seek_ns: a.seek_ns + b.seek_ns,
                })
            };
            *bins = bins.chunks(2).map(merge).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::elevator::Owner;
    use super::*;
    use sluice_device::{Command, Op, Service};

    #[test]
    fn jain_is_1_for_equals_and_1_nth_for_one_of_n() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn a_record_stays_small_and_loses_no_bytes() {
        let mut record = Record::new(2);
        let command = Command { op: Op::Read, address: 7, len: 10 };
        let service = Service { total_ns: 3, ..Service::default() };
        let started =
            Started { owner: Owner::Batch(0), more: Vec::new(), context: 0, command, service, positioned: None };
        for number in 0..20_000 {
            record.command(number % 2, u64::from(number) * 1_000_000, &started, 0);
        }
        assert!(record.path.len() < POINTS && record.servers.iter().all(|bins| bins.len() <= BINS));
        let bytes: u64 = record.servers.iter().flatten().map(|bin| bin.bytes).sum();
        assert_eq!(bytes, 200_000);
        assert!(record.path.windows(2).all(|pair| pair[1].at_ns - pair[0].at_ns == record.every * 1_000_000));
    }
}
