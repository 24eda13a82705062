//! What the engine saw: totals since the start, the same for windows of fixed length, and a record of
//! [features](WindowFeatures) of each window.

mod features;

pub use features::{DurationFeatures, OpFeatures, WindowFeatures};

pub(crate) use features::Trail;
use features::{Features, Waiting};

use crate::engine::EngineConfig;
use crate::histogram::Histogram;
use crate::policy::Removal;
use crate::request::{AppId, Op, Outcome, Request, Time};

/// Requests of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Requests submitted.
    pub submitted: u64,
    /// Requests completed, with or without an error.
    pub completed: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Bytes moved by completed requests.
    pub bytes: u64,
}

impl OpCounts {
    fn merge(&mut self, other: &OpCounts) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.errors += other.errors;
        self.bytes += other.bytes;
    }
}

/// Requests of one application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppCounts {
    /// The application; `None` collects all beyond `apps_max`.
    pub app: Option<AppId>,
    /// Completed requests.
    pub completed: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// From submission to completion.
    pub latency: Histogram,
}

/// Counters over some stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// When the stretch began.
    pub start: Time,
    /// How long it is, or how long it has lasted so far.
    pub len_ns: u64,
    /// By operation: index with [`Op::index`].
    pub ops: [OpCounts; 2],
    /// Requests cancelled.
    pub cancelled: u64,
    /// Submissions refused because the engine was full.
    pub refused: u64,
    /// Requests that were blocked by an earlier overlapping one.
    pub blocked: u64,
    /// Batches that went first because a request in them had waited longer than `max_wait`.
    pub expired: u64,
    /// Batches that went first because they go on with the stream that is being served
    /// ([`Anticipation`](crate::Anticipation)).
    pub continued: u64,
    /// Batches dispatched while a stream was served that others gave way to, as it was behind them: programs that take turns in a file
    /// are being brought into step ([`Anticipation`](crate::Anticipation)).
    pub catching_up: u64,
    /// Batches dispatched.
    pub batches: u64,
    /// Requests in them.
    pub batched_requests: u64,
    /// Largest batch in requests.
    pub batch_requests_max: u32,
    /// Sum over submissions of the number of requests waiting then.
    pub depth_sum: u64,
    /// Most requests waiting at a submission.
    pub depth_max: u32,
    /// Time in nanoseconds in which at least one request was outstanding, queued or in flight, up to the last time that none
    /// was or a window ended; over several engines the sum. 0 for requests that went by the engine.
    pub busy_ns: u64,
    /// Requests outstanding, added up over that time: divided by `busy_ns` it is how many there were on average.
    pub outstanding_ns: u64,
    /// Bytes of outstanding requests, added up over that time.
    pub outstanding_bytes_ns: u128,
    /// Outstanding reads, added up over that time.
    pub outstanding_reads_ns: u64,
    /// From submission to dispatch.
    pub wait: Histogram,
    /// From dispatch to completion.
    pub service: Histogram,
    /// By application, in order of first appearance; the last entry may be the collecting one.
    pub apps: Vec<AppCounts>,
}

impl Counters {
    /// Requests in a batch on average; 0 if there was none.
    #[must_use]
    pub fn mean_aggregation(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.batched_requests as f64 / self.batches as f64 }
    }

    /// Requests waiting on average, seen by arriving ones.
    #[must_use]
    pub fn mean_depth(&self) -> f64 {
        let submitted = self.ops[0].submitted + self.ops[1].submitted;
        if submitted == 0 { 0.0 } else { self.depth_sum as f64 / submitted as f64 }
    }

    /// Bytes moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ops[0].bytes + self.ops[1].bytes
    }

    /// Requests completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.ops[0].completed + self.ops[1].completed
    }

    /// Requests submitted.
    #[must_use]
    pub fn submitted(&self) -> u64 {
        self.ops[0].submitted + self.ops[1].submitted
    }

    /// Adds the counters of another engine (another shard) over the same stretch of time.
    pub fn merge(&mut self, other: &Counters) {
        let depth_max = self.depth_max + other.depth_max;
        self.len_ns = self.len_ns.max(other.len_ns);
        self.add(other);
        self.depth_max = depth_max;
    }

    /// Adds the counters of the same engine over the stretch that follows.
    fn append(&mut self, next: &Counters) {
        self.len_ns = next.start.after(next.len_ns).since(self.start);
        self.add(next);
    }

    fn add(&mut self, other: &Counters) {
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            mine.merge(theirs);
        }
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.blocked += other.blocked;
        self.expired += other.expired;
        self.continued += other.continued;
        self.catching_up += other.catching_up;
        self.batches += other.batches;
        self.batched_requests += other.batched_requests;
        self.batch_requests_max = self.batch_requests_max.max(other.batch_requests_max);
        self.depth_sum += other.depth_sum;
        self.depth_max = self.depth_max.max(other.depth_max);
        self.busy_ns += other.busy_ns;
        self.outstanding_ns = self.outstanding_ns.saturating_add(other.outstanding_ns);
        self.outstanding_bytes_ns = self.outstanding_bytes_ns.saturating_add(other.outstanding_bytes_ns);
        self.outstanding_reads_ns = self.outstanding_reads_ns.saturating_add(other.outstanding_reads_ns);
        self.wait.merge(&other.wait);
        self.service.merge(&other.service);
        for theirs in &other.apps {
            match self.apps.iter_mut().find(|mine| mine.app == theirs.app) {
                Some(mine) => {
                    mine.completed += theirs.completed;
                    mine.bytes += theirs.bytes;
                    mine.latency.merge(&theirs.latency);
                }
                None => self.apps.push(theirs.clone()),
            }
        }
    }

    /// Anything but the time.
    fn has_seen_anything(&self) -> bool {
        self.submitted() + self.completed() + self.cancelled + self.refused + self.batches + self.busy_ns > 0
    }

    /// Empties the counters for a new stretch, keeping allocated room and the table of applications.
    fn restart(&mut self, start: Time) {
        let mut apps = std::mem::take(&mut self.apps);
        for app in &mut apps {
            (app.completed, app.bytes, app.latency) = (0, 0, Histogram::default());
        }
        *self = Counters { start, apps, ..Counters::default() };
    }

    fn complete(&mut self, done: &Completion, app: usize) {
        let op = &mut self.ops[done.op.index()];
        op.completed += 1;
        op.bytes += u64::from(done.bytes);
        op.errors += u64::from(done.error);
        self.service.record(done.service_ns);
        let app = &mut self.apps[app];
        app.completed += 1;
        app.bytes += u64::from(done.bytes);
        app.latency.record(done.latency_ns);
    }
}

/// What the engine tells the statistics about one completed request.
pub(crate) struct Completion {
    pub(crate) op: Op,
    pub(crate) app: AppId,
    pub(crate) len: u32,
    pub(crate) bytes: u32,
    pub(crate) error: bool,
    pub(crate) service_ns: u64,
    pub(crate) latency_ns: u64,
}

/// Requests submitted and neither completed nor cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Outstanding {
    requests: u64,
    bytes: u64,
    reads: u64,
}

impl Outstanding {
    fn add(&mut self, op: Op, len: u32) {
        self.requests += 1;
        self.bytes += u64::from(len);
        self.reads += u64::from(op == Op::Read);
    }

    fn take(&mut self, op: Op, len: u32) {
        self.requests -= 1;
        self.bytes -= u64::from(len);
        self.reads -= u64::from(op == Op::Read);
    }
}

/// Statistics of one engine. Cloning copies a consistent snapshot.
///
/// Every event is counted once, in the running window; windows that have ended are added up.
#[derive(Clone, Debug)]
pub struct Stats {
    ended: Counters,
    window: Counters,
    last: Counters,
    window_ns: u64,
    apps_max: usize,
    /// The application of the last completion and its place: most completions repeat it.
    recent_app: (AppId, usize),
    /// Requests submitted and neither completed nor cancelled, and when that changed last in this window.
    outstanding: Outstanding,
    waiting: Waiting,
    changed: Time,
    features: Features,
}

impl Stats {
    pub(crate) fn new(now: Time, window_ns: u64, apps_max: u32) -> Stats {
        let apps_max = apps_max as usize;
        let counters = || Counters { start: now, apps: Vec::with_capacity(apps_max + 1), ..Counters::default() };
        Stats {
            ended: counters(),
            window: counters(),
            last: counters(),
            window_ns,
            apps_max,
            recent_app: (AppId(0), usize::MAX),
            outstanding: Outstanding::default(),
            waiting: Waiting::new(),
            changed: now,
            features: Features::new(),
        }
    }

    /// Everything since the engine was made. Builds a new record.
    #[must_use]
    pub fn total(&self) -> Counters {
        let mut total = self.ended.clone();
        total.append(&self.window);
        total
    }

    /// The last window that has ended; empty before the first one has.
    #[must_use]
    pub fn last_window(&self) -> &Counters {
        &self.last
    }

    /// The window that is running.
    #[must_use]
    pub fn current_window(&self) -> &Counters {
        &self.window
    }

    /// When the running window ends, if it has seen anything or requests are outstanding: time in which they are is part of it.
    #[must_use]
    pub fn window_end(&self) -> Option<Time> {
        (self.outstanding.requests > 0 || self.window.has_seen_anything())
            .then(|| self.window.start.after(self.window_ns))
    }

    /// Records of closed windows that nobody [took](crate::Engine::closed_window) in time.
    #[must_use]
    pub fn windows_lost(&self) -> u64 {
        self.features.lost()
    }

    pub(crate) fn take_closed(&mut self) -> Option<WindowFeatures> {
        self.features.take_closed()
    }

    /// Adds another engine's statistics, to show several shards as one. Records of closed windows stay with their engines.
    pub fn merge(&mut self, other: &Stats) {
        self.ended.merge(&other.ended);
        self.window.merge(&other.window);
        self.last.merge(&other.last);
        self.recent_app = (AppId(0), usize::MAX);
    }

    /// Empty statistics for requests that a driver executes without the engine that has these settings
    /// ([`Engine::bypass_max`](crate::Engine::bypass_max)). `start`: that of the engine's own, so that windows agree.
    #[must_use]
    pub fn for_bypass(config: &EngineConfig, start: Time) -> Stats {
        Stats::new(start, config.window_ns, config.apps_max)
    }

    /// Counts a request that was executed without an engine, from `start` to `end`.
    pub fn count_bypassed(&mut self, start: Time, end: Time, request: &Request, outcome: Outcome) {
        self.roll(end);
        self.submitted(end, request, 0, None);
        self.waited(0);
        self.dispatched(1, Removal::Picked, false);
        let took_ns = end.since(start);
        let done = Completion {
            op: request.op,
            app: request.app,
            len: request.len,
            bytes: outcome.bytes.min(request.len),
            error: outcome.error != 0,
            service_ns: took_ns,
            latency_ns: took_ns,
        };
        self.completed(end, &done);
    }

    /// Ends the windows that are over at `now`. The engine does so at every event; in a copy of its statistics, a window
    /// may have ended since. Returns whether one has. O(`apps_max`) when a window ends, else O(1).
    #[inline]
    pub fn roll(&mut self, now: Time) -> bool {
        let elapsed = now.since(self.window.start);
        let is_over = elapsed >= self.window_ns;
        if is_over {
            self.close_windows(elapsed);
        }
        is_over
    }

    /// So many files had outstanding requests in the window that has just ended.
    pub(crate) fn waited_for(&mut self, files: u32) {
        self.features.waited_for(files);
    }

    #[cold]
    fn close_windows(&mut self, elapsed: u64) {
        let start = Time(self.window.start.0 + elapsed / self.window_ns * self.window_ns);
        self.window.len_ns = self.window_ns;
        self.pass(self.window.start.after(self.window_ns));
        self.changed = start;
        self.features.close(&self.window, self.waiting.end_window());
        self.ended.append(&self.window);
        self.ended.len_ns = start.since(self.ended.start);
        std::mem::swap(&mut self.window, &mut self.last);
        if elapsed >= 2 * self.window_ns {
            // Nothing happened for whole windows: the last one that ended is an empty one.
            self.last.restart(Time(start.0 - self.window_ns));
            self.last.len_ns = self.window_ns;
        }
        self.window.restart(start);
        // Both tables of applications have the same order; the one swapped in may miss the newest.
        for known in &self.ended.apps[self.window.apps.len().min(self.ended.apps.len())..] {
            self.window.apps.push(AppCounts { app: known.app, completed: 0, bytes: 0, latency: Histogram::default() });
        }
    }

    /// `trails`: of the request's file, by operation, if files are remembered.
    #[inline]
    pub(crate) fn submitted(&mut self, now: Time, request: &Request, waiting: u32, trails: Option<[&mut Trail; 2]>) {
        self.features.submitted(request, trails);
        self.pass(now);
        self.outstanding.add(request.op, request.len);
        self.waiting.add(request.app);
        let c = &mut self.window;
        c.ops[request.op.index()].submitted += 1;
        c.depth_sum += u64::from(waiting);
        c.depth_max = c.depth_max.max(waiting);
    }

    pub(crate) fn refused(&mut self) {
        self.window.refused += 1;
    }

    pub(crate) fn blocked(&mut self) {
        self.window.blocked += 1;
    }

    pub(crate) fn cancelled(&mut self, now: Time, request: &Request) {
        self.window.cancelled += 1;
        self.pass(now);
        self.outstanding.take(request.op, request.len);
        self.waiting.take(request.app);
    }

    /// So far the same requests were outstanding.
    #[inline]
    fn pass(&mut self, now: Time) {
        let passed = now.since(self.changed);
        let Outstanding { requests, bytes, reads } = self.outstanding;
        if requests > 0 {
            let window = &mut self.window;
            window.busy_ns += passed;
            window.outstanding_ns = window.outstanding_ns.saturating_add(passed.saturating_mul(requests));
            window.outstanding_reads_ns = window.outstanding_reads_ns.saturating_add(passed.saturating_mul(reads));
            window.outstanding_bytes_ns += u128::from(passed) * u128::from(bytes);
        }
        self.changed = now;
    }

    pub(crate) fn waited(&mut self, ns: u64) {
        self.window.wait.record(ns);
    }

    pub(crate) fn dispatched(&mut self, parts: u32, why: Removal, catches_up: bool) {
        let c = &mut self.window;
        c.batches += 1;
        c.batched_requests += u64::from(parts);
        c.batch_requests_max = c.batch_requests_max.max(parts);
        c.expired += u64::from(why == Removal::Overdue);
        c.continued += u64::from(why == Removal::Continued);
        c.catching_up += u64::from(catches_up);
    }

    pub(crate) fn completed(&mut self, now: Time, done: &Completion) {
        let app = self.app(done.app);
        self.window.complete(done, app);
        self.pass(now);
        self.outstanding.take(done.op, done.len);
        self.waiting.take(done.app);
        self.window.len_ns = now.since(self.window.start);
    }

    /// Place of an application's counters. O(`apps_max`) when the application changes, else O(1).
    fn app(&mut self, app: AppId) -> usize {
        let apps = &mut self.window.apps;
        if self.recent_app.0 == app && self.recent_app.1 < apps.len() {
            return self.recent_app.1;
        }
        let known = apps.iter().position(|a| a.app == Some(app) || a.app.is_none());
        let at = known.unwrap_or_else(|| {
            let app = (apps.len() < self.apps_max).then_some(app);
            apps.push(AppCounts { app, completed: 0, bytes: 0, latency: Histogram::default() });
            apps.len() - 1
        });
        self.recent_app = (app, at);
        at
    }
}
