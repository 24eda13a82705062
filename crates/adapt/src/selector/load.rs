//! What was asked for and done in a window, over all engines of a device or volume.

use sluice_core::{Op, Time, WindowFeatures};

/// What a request counts for beside its bytes: requests of no bytes are work, too.
const REQUEST_BYTES: f64 = 4096.0;
/// With fewer requests outstanding on average there is nothing to choose from.
const CHOICE_MIN: f64 = 1.3;
/// A device that answers faster than a request is handed from thread to thread, in nanoseconds, has no order to be served in.
const IMMEDIATE_NS: f64 = 20_000.0;
/// Bytes that are copied in a nanosecond, about: no device's work.
const COPIED_BYTES_PER_NS: f64 = 4.0;
/// Files that count, for each request outstanding: some of them are without one now and then.
const FILES_OF_REQUESTS: f64 = 1.3;

/// Requests of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct OpLoad {
    requests: u64,
    bytes: u64,
    distances: u64,
    contiguous: f64,
    /// Sum of the distances, in lengths.
    lengths: f64,
    completed: u64,
    moved: u64,
}

/// A window, over all engines together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// When the first of them began and the last one ended.
    pub start: Time,
    /// See `start`.
    pub end: Time,
    /// Engines that saw something.
    pub engines: u32,
    /// Time in which an engine had requests, in nanoseconds, added up over engines.
    pub busy_ns: u64,
    /// The same of the engine that had requests for the longest part of each window.
    busiest_ns: u64,
    ops: [OpLoad; 2],
    /// Requests outstanding, their bytes, and the reads among them, added up over the busy time.
    outstanding_ns: f64,
    outstanding_bytes_ns: f64,
    outstanding_reads_ns: f64,
    /// Requests whose time of service is known, and the time from dispatch to completion of all of them.
    served: u64,
    service_ns: f64,
    /// Smallest and largest request in bytes; 0 without requests.
    sizes: [u32; 2],
    /// Batches dispatched, those of them that bring programs into step, and requests in all of them.
    batches: u64,
    catching_up: u64,
    batched: f64,
    files: u32,
    files_at_a_time: f64,
    apps: u32,
    apps_waiting: u32,
}

impl Load {
    /// Of one engine.
    #[must_use]
    pub fn of(window: &WindowFeatures) -> Load {
        let mut load = Load::default();
        load.add(window);
        load
    }

    /// Adds another engine's window of the same time.
    pub fn add(&mut self, window: &WindowFeatures) {
        let is_first = self.engines == 0;
        self.start = if is_first { window.start } else { self.start.min(window.start) };
        self.end = self.end.max(window.end);
        self.engines += 1;
        self.busy_ns += window.busy_ns;
        self.busiest_ns = self.busiest_ns.max(window.busy_ns);
        for (mine, theirs) in self.ops.iter_mut().zip(&window.ops) {
            mine.requests += theirs.requests;
            mine.bytes += theirs.bytes;
            mine.distances += theirs.distances;
            mine.contiguous += theirs.contiguous * theirs.distances as f64;
            mine.lengths += theirs.distance_normalised * theirs.distances as f64;
            mine.completed += theirs.completed;
            mine.moved += theirs.moved;
        }
        let of_ops = window.ops.iter().filter(|op| op.requests > 0);
        of_ops.for_each(|op| self.add_sizes([op.size_min, op.size_max]));
        self.outstanding_ns += window.outstanding_mean * window.busy_ns as f64;
        self.outstanding_bytes_ns += window.outstanding_bytes_mean * window.busy_ns as f64;
        self.outstanding_reads_ns += window.outstanding_reads_mean * window.busy_ns as f64;
        self.served += window.service.count;
        self.service_ns += window.service.mean_ns as f64 * window.service.count as f64;
        self.batches += window.batches;
        self.catching_up += window.catching_up;
        self.batched += window.batch_requests_mean * window.batches as f64;
        // The same files and applications on all engines, mostly.
        self.files = self.files.max(window.files);
        let at_most = (FILES_OF_REQUESTS * window.outstanding_mean).max(2.0);
        let files = f64::from(window.files.max(window.files_outstanding)).min(at_most);
        self.files_at_a_time = self.files_at_a_time.max(files);
        self.apps = self.apps.max(window.apps);
        self.apps_waiting = self.apps_waiting.max(window.apps_outstanding);
    }

    /// Adds what came after it.
    pub(super) fn append(&mut self, next: &Load) {
        if self.engines == 0 {
            *self = *next;
            return;
        }
        // What an engine did whose window was seen late it did while others were busy.
        let is_new_ns = if next.start < self.end { next.end.since(self.end) } else { u64::MAX };
        self.end = self.end.max(next.end);
        self.engines = self.engines.max(next.engines);
        self.busy_ns += next.busy_ns;
        self.busiest_ns += next.busiest_ns.min(is_new_ns);
        self.outstanding_ns += next.outstanding_ns;
        self.outstanding_bytes_ns += next.outstanding_bytes_ns;
        self.outstanding_reads_ns += next.outstanding_reads_ns;
        if next.arrived() > 0 {
            self.add_sizes(next.sizes);
        }
        self.served += next.served;
        self.service_ns += next.service_ns;
        self.batches += next.batches;
        self.catching_up += next.catching_up;
        self.batched += next.batched;
        for (mine, theirs) in self.ops.iter_mut().zip(&next.ops) {
            mine.requests += theirs.requests;
            mine.bytes += theirs.bytes;
            mine.distances += theirs.distances;
            mine.contiguous += theirs.contiguous;
            mine.lengths += theirs.lengths;
            mine.completed += theirs.completed;
            mine.moved += theirs.moved;
        }
        (self.files, self.apps) = (self.files.max(next.files), self.apps.max(next.apps));
        self.files_at_a_time = self.files_at_a_time.max(next.files_at_a_time);
        self.apps_waiting = self.apps_waiting.max(next.apps_waiting);
    }

    fn add_sizes(&mut self, [least, most]: [u32; 2]) {
        let is_first = self.sizes[1] == 0;
        self.sizes = [if is_first { least } else { self.sizes[0].min(least) }, self.sizes[1].max(most)];
    }

    fn sum(&self, of: impl Fn(&OpLoad) -> u64) -> f64 {
        self.ops.iter().map(of).sum::<u64>() as f64
    }

    /// Length in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end.since(self.start) as f64 * 1e-9
    }

    /// Share of the time, 0 to 1, in which there were requests.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let time = self.end.since(self.start) as f64 * f64::from(self.engines);
        if time > 0.0 { self.busy_ns as f64 / time } else { 0.0 }
    }

    /// Requests completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.ops.iter().map(|op| op.completed).sum()
    }

    /// Bytes moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.ops.iter().map(|op| op.moved).sum()
    }

    /// Bytes written, of those.
    pub(super) fn written(&self) -> f64 {
        self.ops[Op::Write.index()].moved as f64
    }

    /// Requests outstanding on average while there were any, in each engine.
    #[must_use]
    pub fn concurrency(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { self.outstanding_ns / self.busy_ns as f64 }
    }

    /// There is something to choose from. Where not, what was done says nothing of whoever chose.
    #[must_use]
    pub fn has_choice(&self) -> bool {
        self.completed() > 0 && self.concurrency() >= CHOICE_MIN && !self.is_immediate()
    }

    /// What serves the requests is memory, by the time that it takes beyond copying: whatever order they come in, and whoever
    /// orders them only delays them.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        let copying_ns = self.moved() as f64 / COPIED_BYTES_PER_NS;
        self.served > 0 && self.service_ns - copying_ns < IMMEDIATE_NS * self.served as f64
    }

    /// Bytes moved, and 4 KiB for each request.
    fn work(&self) -> f64 {
        self.sum(|op| op.moved) + REQUEST_BYTES * self.sum(|op| op.completed)
    }

    /// Work done, of all engines, per second in which the busiest of them had requests: bytes, and 4 KiB for each request. What
    /// was not asked for does not count, and neither does the time in which nothing was: so the offered load does not matter, only
    /// what was made of it. An engine without requests while another has some does not count as unasked for: its clients may wait
    /// for the other one.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.busiest_ns == 0 { 0.0 } else { self.work() * 1e9 / self.busiest_ns as f64 }
    }

    /// Work done per second in which an engine had requests, of the mean engine.
    pub(super) fn rate_of_engine(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { self.work() * 1e9 / self.busy_ns as f64 }
    }

    /// Requests that arrived: without any it is not known what the workload looks like.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.ops.iter().map(|op| op.requests).sum()
    }

    /// Share of reads among the requests, 0 to 1.
    #[must_use]
    pub fn read_share(&self) -> f64 {
        let all = self.sum(|op| op.requests);
        if all > 0.0 { self.ops[Op::Read.index()].requests as f64 / all } else { 0.5 }
    }

    /// Mean size of a request in bytes.
    #[must_use]
    pub fn size(&self) -> f64 {
        let all = self.sum(|op| op.requests);
        if all > 0.0 { self.sum(|op| op.bytes) / all } else { 0.0 }
    }

    /// Mean size in bytes of the requests that wait or are served, over time: what programs ask for. The mean of those that arrive
    /// says who is served as well: of one who reads a stream beside many who read here and there, and each waits for its answer
    /// before it asks again, it is what one or the others ask for.
    #[must_use]
    pub fn waiting_size(&self) -> f64 {
        if self.outstanding_bytes_ns > 0.0 { self.outstanding_bytes_ns / self.outstanding_ns } else { self.size() }
    }

    /// Share of reads, 0 to 1, whoever is served: among those that arrive or those that wait, whichever has more of both. What
    /// memory takes at once waits for nothing, and what nobody serves does not arrive.
    #[must_use]
    pub fn mixed_read_share(&self) -> f64 {
        let arrive = self.read_share();
        let wait = if self.outstanding_ns > 0.0 { self.outstanding_reads_ns / self.outstanding_ns } else { arrive };
        match (arrive - 0.5, wait - 0.5) {
            (arrive, wait) if arrive * wait < 0.0 => 0.5,
            (more, less) if more.abs() < less.abs() => more + 0.5,
            (_, more) => more + 0.5,
        }
    }

    /// Applications with requests that wait or are served at any time, on the engine that had most.
    #[must_use]
    pub fn apps_waiting(&self) -> u32 {
        self.apps_waiting.max(self.apps)
    }

    /// Files that programs work on at a time: those with requests that wait or are served at any time, of those that nobody serves, too; but hardly
    /// more than there are requests at a time. Who reads here and there in many files has more of them in a longer window, and in one in
    /// which a stream has its turn less. Of the engine that had most.
    #[must_use]
    pub fn files_at_a_time(&self) -> f64 {
        self.files_at_a_time
    }

    /// Sizes of the smallest and of the largest request in bytes; 0 without requests.
    #[must_use]
    pub fn sizes(&self) -> [f64; 2] {
        self.sizes.map(f64::from)
    }

    /// Share of the requests, 0 to 1, that begin where the one before of the same file and operation ended.
    #[must_use]
    pub fn contiguous(&self) -> f64 {
        let all = self.sum(|op| op.distances);
        let contiguous: f64 = self.ops.iter().map(|op| op.contiguous).sum();
        if all > 0.0 { contiguous / all } else { 0.0 }
    }

    /// Mean distance from a request's end to the beginning of the next one of its file and operation, in lengths: the measure D of
    /// F. Z. Boito's thesis (4.3.1).
    #[must_use]
    pub fn distance(&self) -> f64 {
        let all = self.sum(|op| op.distances);
        let lengths: f64 = self.ops.iter().map(|op| op.lengths).sum();
        if all > 0.0 { lengths / all } else { 0.0 }
    }

    /// Mean time from dispatch to completion, in nanoseconds; 0 if nothing was completed.
    #[must_use]
    pub fn service_ns(&self) -> f64 {
        if self.served == 0 { 0.0 } else { self.service_ns / self.served as f64 }
    }

    /// Mean number of requests in a batch; 0 without batches.
    #[must_use]
    pub fn batch_requests(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.batched / self.batches as f64 }
    }

    /// Share of the batches, 0 to 1, by which programs that take turns in a file are brought into step: what an arm makes of them then
    /// is not yet to be seen.
    #[must_use]
    pub fn catching_up(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.catching_up as f64 / self.batches as f64 }
    }

    /// Files with requests, on the engine that had most.
    #[must_use]
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Applications, on the engine that had most.
    #[must_use]
    pub fn apps(&self) -> u32 {
        self.apps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::{DurationFeatures, OpFeatures};

    fn window(busy_ns: u64, reads: u64) -> WindowFeatures {
        let read = OpFeatures {
            requests: reads,
            bytes: reads << 16,
            completed: reads,
            moved: reads << 16,
            ..Default::default()
        };
        let ops = [read, OpFeatures::default()];
        let outstanding_mean = reads as f64 * 2e7 / busy_ns as f64;
        WindowFeatures {
            end: Time(1_000_000_000),
            busy_ns,
            outstanding_mean,
            ops,
            files: 3,
            apps: 1,
            ..Default::default()
        }
    }

    #[test]
    fn the_rate_does_not_depend_on_how_much_is_offered() {
        let (full, half) = (Load::of(&window(1_000_000_000, 100)), Load::of(&window(500_000_000, 50)));
        assert!((full.rate() / half.rate() - 1.0).abs() < 1e-9);
        assert_eq!((full.busy_share(), half.busy_share()), (1.0, 0.5));
        assert!((full.concurrency() - 2.0).abs() < 1e-9 && full.has_choice());
        assert!(!Load::of(&window(1_000_000_000, 50)).has_choice(), "one request at a time");
        assert!(!Load::default().has_choice());
    }

    #[test]
    fn memory_leaves_nothing_to_choose() {
        let served_in = |ns| {
            let service = DurationFeatures { count: 100, mean_ns: ns, ..Default::default() };
            Load::of(&WindowFeatures { service, ..window(1_000_000_000, 100) })
        };
        // 64 KiB are copied in 16 us.
        assert!(served_in(30_000).is_immediate() && !served_in(30_000).has_choice());
        assert!(!served_in(40_000).is_immediate() && served_in(40_000).has_choice());
    }

    #[test]
    fn engines_are_added_up() {
        let mut both = Load::of(&window(1_000_000_000, 100));
        both.add(&window(500_000_000, 50));
        assert_eq!((both.engines, both.completed(), both.files(), both.busy_share()), (2, 150, 3, 0.75));
        let mut two = both;
        let mut next = both;
        (next.start, next.end) = (both.end, both.end.after(1_000_000_000));
        two.append(&next);
        assert_eq!((two.seconds(), two.completed(), two.rate()), (2.0, 300, both.rate()));
    }

    /// One engine's window of the same 100 ms is seen after the others'.
    #[test]
    fn what_is_seen_late_was_done_meanwhile() {
        let mut together = Load::of(&window(1_000_000_000, 100));
        together.add(&window(1_000_000_000, 100));
        let mut split = Load::of(&window(1_000_000_000, 100));
        split.append(&Load::of(&window(1_000_000_000, 100)));
        assert_eq!((split.rate(), split.seconds()), (together.rate(), together.seconds()));
    }

    #[test]
    fn an_engine_that_waits_for_another_makes_nothing_faster() {
        let mut even = Load::of(&window(1_000_000_000, 100));
        even.add(&window(1_000_000_000, 100));
        // The same work in the same time; the second was idle for half of it.
        let mut uneven = Load::of(&window(1_000_000_000, 100));
        uneven.add(&window(500_000_000, 100));
        assert_eq!(even.rate(), uneven.rate());
        assert!(even.rate_of_engine() < uneven.rate_of_engine());
        // Nor does it matter which of them waits.
        let mut turns = uneven;
        let mut next = Load::of(&window(500_000_000, 100));
        next.add(&window(1_000_000_000, 100));
        (next.start, next.end) = (turns.end, turns.end.after(1_000_000_000));
        turns.append(&next);
        assert_eq!(turns.rate(), uneven.rate());
    }
}
