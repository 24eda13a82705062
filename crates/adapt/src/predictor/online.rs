//! Predictions while requests arrive.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sluice_core::{Chosen, Expected, FileId, Op, Predictor, Request, TargetId, Time, WaitReport, Work};

use super::aggregate::{Aggregations, estimate_alpha};
use super::cost::{DeviceCost, Load};
use super::forecast::Forecast;
use super::learn::Learner;
use super::learn::bursts::{Bursts, Place};
use super::stride::Groups;
use super::wait::{History, Trust};
use super::{Settings, TimeToProcess};

/// Knows the paths of files.
pub trait Names: Send + Sync {
    /// The path of a file, if it is known.
    fn path(&self, file: FileId) -> Option<Arc<[u8]>>;

    /// Grows whenever a number stands for another path than before.
    fn changes(&self) -> u64 {
        0
    }
}

impl<F: Fn(FileId) -> Option<Arc<[u8]>> + Send + Sync> Names for F {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        self(file)
    }
}

/// Files that are remembered. When there are more, all are asked for anew.
const FILES_MAX: usize = 65_536;
/// Arrived requests whose prediction is remembered: a power of two.
const LINKS: usize = 8_192;
/// What waits may cost before they have shown what they are good for.
const CREDIT_NS: f64 = 10e6;
/// Share of the time that waits in vain may cost.
const COST_SHARE: f64 = 0.01;
/// Most credit that successes earn.
const CREDIT_MAX_NS: f64 = 100e6;
/// Share of the time in which the device is busy, below which aggregations are not waited for.
const LOAD_MIN: f64 = 0.7;
/// While the device has other batches, waiting for a group may take so many times what it gains at once.
const BUSY_GAINS: u64 = 4;
/// Half as long again as predicted is waited, and at least so much longer: parts come late as often as early, and a wait ends
/// when all is there.
const SLACK_MIN_NS: u64 = 1_000_000;
/// Unlinked requests in a row that must agree about how late a run is.
const FOLLOW: u32 = 4;
/// Weight of the estimate among the observations of alpha: that of so much waiting.
const ESTIMATE_NS: f64 = 200e6;
/// By how much alpha must have changed for new aggregations.
const ALPHA_STEP: f64 = 0.1;

/// What predictions did so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counters {
    /// Requests to files that there are predictions for.
    pub known: u64,
    /// Of these, the ones that were predicted.
    pub linked: u64,
    /// Waits.
    pub waits: u64,
    /// Of these, the ones after which all was there.
    pub complete: u64,
    /// Bytes that joined batches by waiting.
    pub gained_bytes: u64,
    /// Time waited, in nanoseconds.
    pub waited_ns: u64,
    /// Of that, time in which the device had other requests.
    pub overlapped_ns: u64,
    /// Of the waits, those for which the device must not idle, because others had cost more than they gained.
    pub refused: u64,
    /// Share of overlapped waiting, as known now.
    pub alpha: f64,
}

/// What a predictor and whoever looks at it share.
#[derive(Debug, Default)]
struct Shared {
    counters: Mutex<Counters>,
    alpha_bits: AtomicU64,
    /// New aggregations wait to be taken over.
    fresh: AtomicBool,
    mailbox: Mutex<Option<(Arc<Forecast>, Aggregations)>>,
}

/// Looks at a predictor that an engine owns, and brings what it knows up to date.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    settings: Settings,
    ttp: TimeToProcess,
    /// What it was given last, and for which share of overlapped waiting.
    given: Arc<Mutex<(Arc<Forecast>, f64)>>,
}

impl Handle {
    /// What predictions did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.shared.counters.lock()
    }

    /// Predicted requests.
    #[must_use]
    pub fn predicted(&self) -> u64 {
        self.given.lock().0.totals().requests
    }

    /// Computes the aggregations anew if the observed share of overlapped waiting is another one than they were made for.
    /// Takes some time; the engine goes on meanwhile, and takes the new ones over with the next request. True if there are
    /// new ones.
    pub fn refresh(&self) -> bool {
        let alpha = self.alpha();
        let mut given = self.given.lock();
        if (alpha - given.1).abs() < ALPHA_STEP {
            return false;
        }
        given.1 = alpha;
        self.post(given.0.clone(), alpha);
        true
    }

    /// Gives it another forecast. Runs that are under way go on where the new one knows their files.
    pub fn replace(&self, forecast: Arc<Forecast>) {
        let mut given = self.given.lock();
        // Nothing was observed yet without predictions: only they can tell.
        let alpha = if given.0.requests.is_empty() { estimate_alpha(&forecast, &self.ttp) } else { self.alpha() };
        *given = (forecast.clone(), alpha);
        self.post(forecast, alpha);
    }

    fn alpha(&self) -> f64 {
        f64::from_bits(self.shared.alpha_bits.load(Ordering::Relaxed))
    }

    fn post(&self, forecast: Arc<Forecast>, alpha: f64) {
        let aggregations = Aggregations::new(&forecast, &self.settings, &self.ttp, alpha);
        *self.shared.mailbox.lock() = Some((forecast, aggregations));
        self.shared.fresh.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// Numbers as keys: files are numbered by inode, mostly.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

/// A file as the engine tells them apart.
type FileKey = (FileId, TargetId);

fn key(request: &Request) -> FileKey {
    (request.file, request.target)
}

fn key_of(chosen: &Chosen) -> FileKey {
    (chosen.file, chosen.target)
}

type Files = HashMap<FileKey, Known, BuildHasherDefault<NumberHasher>>;

/// A file that there are predictions for.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// In the forecast.
    file: u32,
    /// Number of its run: different for each run of each file.
    epoch: u32,
    /// When the run began with the first request.
    first: Time,
    /// By how much requests come later than predicted, in nanoseconds; negative: earlier.
    skew: i64,
    /// By how much the last unlinked ones would have, and how many in a row agree about it.
    other: (i64, u32),
    /// Predicted offsets count from here: not 0 in a burst behind the end of a file.
    base: u64,
    /// How often numbers had changed their paths when its path was looked up last.
    checked: u64,
}

/// An arrived request of a file that there are predictions for.
#[derive(Clone, Copy, Debug)]
struct Link {
    file: FileKey,
    offset: u64,
    op: Op,
    epoch: u32,
    /// The predicted request at its place that is nearest in time.
    request: u32,
    /// And near enough.
    linked: bool,
}

/// What a batch is to become, and until when to wait for that.
#[derive(Clone, Copy, Debug)]
struct Goal {
    range: (u64, u64),
    until: Time,
    /// Only requests that are predicted for about this time count.
    in_time: bool,
}

/// Holds batches of an engine back for what a [`Forecast`] says is about to arrive.
pub struct TracePredictor {
    forecast: Arc<Forecast>,
    settings: Settings,
    names: Arc<dyn Names>,
    /// Of the names, when `files` was right.
    changes: u64,
    aggregations: Aggregations,
    /// Of each file of the forecast, for reads and writes, what came of waits.
    histories: Vec<[History; 2]>,
    /// What came of all of them.
    trust: Trust,
    cost: DeviceCost,
    load: Load,
    files: Files,
    /// Those that nothing is predicted for.
    unknown: HashSet<FileKey, BuildHasherDefault<NumberHasher>>,
    bursts: Bursts,
    epochs: u32,
    links: Box<[Option<Link>]>,
    began: Option<Time>,
    /// What waits have gained, minus what they have cost, in nanoseconds.
    credit: f64,
    counters: Counters,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for TracePredictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TracePredictor").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// What is predicted for a path: a file, or bursts behind its end if that is more.
fn find_file(forecast: &Forecast, path: &[u8], target: u32) -> Option<usize> {
    let whole = forecast.find(path, target);
    let bursts = forecast.find(&Learner::bursts_of(path), target);
    let requests = |file: &usize| {
        let file = &forecast.files[*file];
        file.range(Op::Read).len() + file.range(Op::Write).len()
    };
    // The last one of those that are as good.
    bursts.into_iter().chain(whole).max_by_key(requests)
}

impl TracePredictor {
    /// A predictor, and a handle to look at it. `names` tells the path of a file when its first request arrives.
    #[must_use]
    pub fn new(
        forecast: Arc<Forecast>,
        settings: Settings,
        ttp: TimeToProcess,
        names: Arc<dyn Names>,
    ) -> (TracePredictor, Handle) {
        let alpha = estimate_alpha(&forecast, &ttp);
        let aggregations = Aggregations::new(&forecast, &settings, &ttp, alpha);
        TracePredictor::with_aggregations(forecast, settings, ttp, names, aggregations)
    }

    /// As [`TracePredictor::new`], with aggregations computed before: for several engines with the same forecast.
    #[must_use]
    pub fn with_aggregations(
        forecast: Arc<Forecast>,
        settings: Settings,
        ttp: TimeToProcess,
        names: Arc<dyn Names>,
        aggregations: Aggregations,
    ) -> (TracePredictor, Handle) {
        let alpha = aggregations.alpha();
        let shared = Arc::new(Shared::default());
        shared.alpha_bits.store(alpha.to_bits(), Ordering::Relaxed);
        let counters = Counters { alpha, ..Counters::default() };
        *shared.counters.lock() = counters;
        let handle = Handle {
            shared: shared.clone(),
            settings,
            ttp: ttp.clone(),
            given: Arc::new(Mutex::new((forecast.clone(), alpha))),
        };
        let predictor = TracePredictor {
            histories: vec![Default::default(); forecast.files.len()],
            trust: Trust::default(),
            cost: DeviceCost::new(&ttp),
            load: Load::default(),
            forecast,
            settings,
            changes: names.changes(),
            names,
            aggregations,
            files: Files::default(),
            unknown: HashSet::default(),
            bursts: Bursts::default(),
            epochs: 0,
            links: vec![None; LINKS].into(),
            began: None,
            credit: 0.0,
            counters,
            shared,
        };
        (predictor, handle)
    }

    fn take_over(&mut self) {
        self.shared.fresh.store(false, Ordering::Relaxed);
        let Some((forecast, aggregations)) = self.shared.mailbox.lock().take() else { return };
        self.aggregations = aggregations;
        if !Arc::ptr_eq(&forecast, &self.forecast) {
            // Runs under way go on; files that were unknown are asked for anew.
            let old = std::mem::replace(&mut self.forecast, forecast);
            self.histories.clear();
            self.histories.resize(self.forecast.files.len(), Default::default());
            self.files.retain(|_, known| {
                let file = &old.files[known.file as usize];
                let path = old.paths.get(file.path);
                let found = find_file(&self.forecast, Learner::without_bursts(path), file.target);
                known.file = found.unwrap_or_default() as u32;
                // A file whose bursts are predicted from now on is another one.
                let now_bursts =
                    |found: usize| Learner::are_bursts(self.forecast.paths.get(self.forecast.files[found].path));
                found.is_some_and(|found| now_bursts(found) == Learner::are_bursts(path))
            });
            self.unknown.clear();
            self.links.fill(None);
        }
    }

    /// The file of a request, met for the first time perhaps.
    fn meet(&mut self, now: Time, request: &Request) -> Option<Known> {
        let known = self.files.get(&key(request)).copied();
        if let Some(known) = known.filter(|known| known.checked == self.changes) {
            return Some(known);
        }
        if self.unknown.contains(&key(request)) {
            return None;
        }
        if self.files.len() + self.unknown.len() >= FILES_MAX {
            self.files.clear();
            self.unknown.clear();
        }
        let path = self.names.path(request.file);
        let file = path.and_then(|path| find_file(&self.forecast, &path, request.target.0));
        let Some(file) = file.map(|file| file as u32) else {
            self.files.remove(&key(request));
            self.unknown.insert(key(request));
            return None;
        };
        let known = match known.filter(|known| known.file == file) {
            Some(known) => Known { checked: self.changes, ..known },
            None => self.begin(file, now),
        };
        self.files.insert(key(request), known);
        Some(known)
    }

    /// A run of a file begins.
    fn begin(&mut self, file: u32, now: Time) -> Known {
        // 0 is never held.
        self.epochs = self.epochs.wrapping_add(1).max(1);
        Known { file, epoch: self.epochs, first: now, skew: 0, other: (0, 0), base: 0, checked: self.changes }
    }

    /// A request as predictions have it, with its offset from the beginning of its burst, if its file has such; none if it
    /// belongs to no burst.
    fn in_burst(&mut self, now: Time, request: &Request, known: Known) -> Option<(Request, Known)> {
        let file = &self.forecast.files[known.file as usize];
        if !Learner::are_bursts(self.forecast.paths.get(file.path)) {
            return Some((*request, known));
        }
        let predicted = &self.forecast.requests[file.range(request.op)];
        let known = match self.bursts.place(now, request, predicted) {
            Place::Outside => return None,
            Place::Here(base) => Known { base, ..known },
            Place::New(base) => Known { base, ..self.begin(known.file, now) },
            Place::Moved(base) => Known { base, ..self.begin(known.file, known.first) },
        };
        self.files.insert(key(request), known);
        let offset = request.offset.checked_sub(known.base)?;
        Some((Request { offset, ..*request }, known))
    }

    fn find(&self, known: &Known, now: Time, request: &Request) -> Option<usize> {
        let range = self.forecast.files[known.file as usize].range(request.op);
        let time = now.since(known.first).saturating_add_signed(-known.skew);
        let tolerance = |predicted| self.settings.tolerance(predicted);
        self.forecast.nearest(range, (request.offset, request.len), time, tolerance)
    }

    /// The predicted request at the place of one that came at another time.
    fn anywhere(&self, now: Time, request: &Request) -> Option<(Known, usize)> {
        let known = self.files.get(&key(request)).copied()?;
        let range = self.forecast.files[known.file as usize].range(request.op);
        let time = now.since(known.first).saturating_add_signed(-known.skew);
        Some((known, self.forecast.nearest_at(range, request.offset, time)?))
    }

    /// Whether this request is one that a run begins with.
    fn is_first(&self, known: &Known, request: &Request) -> bool {
        let range = self.forecast.files[known.file as usize].range(request.op);
        self.forecast.nearest(range, (request.offset, request.len), 0, |_| self.settings.margin_floor_ns).is_some()
    }

    /// A run that is faster or slower than the ones before: when some requests in a row are where they were expected, but all
    /// come later, or earlier, by about the same, the clock of the run is set right.
    fn follow(&mut self, now: Time, request: &Request, known: Known) -> Option<(Known, usize)> {
        let range = self.forecast.files[known.file as usize].range(request.op);
        let time = now.since(known.first).saturating_add_signed(-known.skew);
        let found = self.forecast.nearest(range, (request.offset, request.len), time, |_| u64::MAX)?;
        let predicted = self.forecast.requests[found].time;
        let off = (now.since(known.first) as i64).saturating_sub(predicted as i64);
        let agrees = off.abs_diff(known.other.0) <= self.settings.tolerance(predicted);
        let mut known = known;
        known.other = (off, if agrees { known.other.1 + 1 } else { 1 });
        let enough = known.other.1 >= FOLLOW;
        if enough {
            (known.skew, known.other) = (off, (0, 0));
        }
        self.files.insert(key(request), known);
        enough.then_some((known, found))
    }

    /// Links a request, in the run of its file or a new one.
    fn link(&mut self, now: Time, request: &Request, known: Known) -> Option<(Known, usize)> {
        if let Some(found) = self.find(&known, now, request) {
            return Some((known, found));
        }
        if let Some(followed) = self.follow(now, request, known) {
            return Some(followed);
        }
        let duration = self.forecast.files[known.file as usize].duration;
        let over = now.since(known.first) > duration.saturating_add(self.settings.tolerance(duration));
        if !over && !self.is_first(&known, request) {
            return None;
        }
        let known = Known { base: known.base, ..self.begin(known.file, now) };
        self.files.insert(key(request), known);
        self.find(&known, now, request).map(|found| (known, found))
    }

    fn place((file, target): FileKey, op: Op, offset: u64) -> usize {
        let mut hasher = NumberHasher::default();
        hasher.write_u64(file.0);
        hasher.write_u64(offset << 1 | op.index() as u64);
        // An engine of one target has the same neighbours whatever its number.
        ((hasher.finish() >> 7) as usize).wrapping_add(target.0 as usize * 1_021) % LINKS
    }

    /// What has arrived of this run at this place.
    fn arrived(&self, file: FileKey, op: Op, offset: u64, epoch: u32) -> Option<&Link> {
        let link = self.links[TracePredictor::place(file, op, offset)].as_ref()?;
        ((link.file, link.op, link.offset, link.epoch) == (file, op, offset, epoch)).then_some(link)
    }

    /// Bytes of a goal that are still to come: predicted requests, one behind the other. `None` if there is a gap. O(parts of
    /// the goal x log n).
    fn missing(&self, chosen: &Chosen, known: &Known, goal: &Goal, time: u64) -> Option<u64> {
        let requests = self.forecast.files[known.file as usize].range(chosen.op);
        let (mut at, end) = goal.range;
        let mut missing = 0;
        while at < end {
            if at == chosen.offset {
                at = chosen.end;
                continue;
            }
            let found = self.forecast.nearest_at(requests.clone(), at, time)?;
            let part = &self.forecast.requests[found];
            if part.len == 0 || part.end() > end {
                return None;
            }
            let arrived = self.arrived(key_of(chosen), chosen.op, at, known.epoch);
            if arrived.is_none_or(|link| link.request as usize != found) {
                if goal.in_time && part.time.abs_diff(time) > self.settings.tolerance(part.time) {
                    return None;
                }
                missing += u64::from(part.len);
            }
            at = part.end();
        }
        Some(missing)
    }

    /// The group that a batch is of: all of it can be served together, whenever it came in the recorded runs.
    fn group(&self, chosen: &Chosen, groups: Groups, history: &History) -> Option<Goal> {
        let range = groups.at(chosen.offset, self.settings.bytes_max)?;
        Some(Goal { range, until: chosen.earliest.after(history.patience()), in_time: false })
    }

    /// The aggregation of a request as it was predicted from the recorded times.
    fn aggregation(&self, chosen: &Chosen, known: &Known, link: &Link) -> Option<Goal> {
        let whole = self.aggregations.list()[self.aggregations.of(link.request as usize)? as usize];
        let span = whole.last - whole.first;
        let usual = chosen.earliest.after(span.saturating_add((span / 2).max(SLACK_MIN_NS)));
        let last = whole.last.saturating_add(self.settings.tolerance(whole.last)).saturating_add_signed(known.skew);
        let until = usual.min(known.first.after(last));
        link.linked.then_some(Goal { range: (whole.offset, whole.end), until, in_time: true })
    }

    /// How long the device may idle now, in nanoseconds.
    fn allowance(&self, now: Time) -> u64 {
        let elapsed = self.began.map_or(0, |began| now.since(began));
        (self.credit + CREDIT_NS + elapsed as f64 * COST_SHARE).max(0.0) as u64
    }

    /// What to wait for, by offsets as predictions have them.
    fn expect_more(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        let known = self.files.get(&key_of(chosen)).copied()?;
        let link = *self.arrived(key_of(chosen), chosen.op, chosen.offset, known.epoch)?;
        let history = self.histories[known.file as usize][chosen.op.index()];
        let goal = match self.forecast.files[known.file as usize].groups(chosen.op) {
            Some(groups) => self.group(chosen, groups, &history),
            None => self.aggregation(chosen, &known, &link),
        }?;
        let (offset, end) = (goal.range.0.min(chosen.offset), goal.range.1.max(chosen.end));
        if end - offset > self.settings.bytes_max || (offset, end) == (chosen.offset, chosen.end) {
            return None;
        }
        let time = self.forecast.requests[link.request as usize].time;
        let missing = self.missing(chosen, &known, &Goal { range: (offset, end), ..goal }, time)?;
        // One batch less is what waiting gains now. Idling for longer than that is a loss; while others are served, it is not,
        // but what is held back will be missing later. A group that is whole gains later, too, for the next one comes together;
        // an aggregation does not, and is no reason to idle, nor to wait where the device idles anyway.
        let gain = self.cost.of_batch(chosen.op);
        let (longest, idle) = if goal.in_time { (gain, 0) } else { (gain.saturating_mul(BUSY_GAINS), gain) };
        let until = goal.until.min(now.after(longest));
        if missing == 0
            || (goal.in_time && self.load.share() < LOAD_MIN)
            || until <= now
            || !self.trust.allows()
            || !self.histories[known.file as usize][chosen.op.index()].allows()
        {
            return None;
        }
        let idle = idle.min(self.allowance(now));
        self.counters.refused += u64::from(idle == 0 && !goal.in_time);
        let idle_until = if idle == 0 { Time::ZERO } else { until.min(now.after(idle)) };
        Some(Expected { offset, end, until, idle_until, missing })
    }

    fn publish(&self) {
        // Whoever looks at the same moment sees the next ones.
        if let Some(mut counters) = self.shared.counters.try_lock() {
            *counters = self.counters;
        }
    }
}

impl Predictor for TracePredictor {
    fn submitted(&mut self, now: Time, request: &Request) {
        if self.shared.fresh.load(Ordering::Acquire) {
            self.take_over();
        }
        let changes = self.names.changes();
        if changes != self.changes {
            // Those that are known are looked up again one by one: runs under way go on.
            self.changes = changes;
            self.unknown.clear();
        }
        let Some(known) = self.meet(now, request) else { return };
        self.began.get_or_insert(now);
        self.counters.known += 1;
        let Some((request, known)) = self.in_burst(now, request, known) else { return self.publish() };
        let request = &request;
        let (known, found, linked) = match self.link(now, request, known) {
            Some((mut known, found)) => {
                self.counters.linked += 1;
                // Follows slowly: an eighth of what the request is off.
                let predicted = self.forecast.requests[found].time;
                let off = (now.since(known.first) as i64).saturating_sub(predicted as i64);
                known.skew += (off - known.skew) / 8;
                self.files.insert(key(request), known);
                (known, found, true)
            }
            None => match self.anywhere(now, request) {
                Some((known, found)) => (known, found, false),
                None => return self.publish(),
            },
        };
        self.publish();
        let &Request { offset, op, .. } = request;
        let file = key(request);
        let link = Link { file, offset, op, epoch: known.epoch, request: found as u32, linked };
        self.links[TracePredictor::place(file, op, offset)] = Some(link);
    }

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        self.load.batch(now);
        let base = self.files.get(&key_of(chosen))?.base;
        let (offset, end) = (chosen.offset.checked_sub(base)?, chosen.end.checked_sub(base)?);
        let expected = self.expect_more(now, &Chosen { offset, end, ..*chosen })?;
        Some(Expected { offset: expected.offset + base, end: expected.end + base, ..expected })
    }

    fn parallelism(&self) -> u32 {
        self.settings.parallelism
    }

    fn served(&mut self, work: &Work) {
        self.cost.served(work);
        self.load.served(work);
    }

    fn waited(&mut self, wait: &WaitReport) {
        let counters = &mut self.counters;
        counters.waits += 1;
        counters.complete += u64::from(wait.complete);
        counters.gained_bytes += wait.gained;
        counters.waited_ns += wait.waited_ns;
        counters.overlapped_ns += wait.overlapped_ns;
        let saved = if wait.gained > 0 { self.cost.of_batch(wait.chosen.op) } else { 0 };
        self.trust.ended(wait.complete);
        if let Some(known) = self.files.get(&key_of(&wait.chosen)).copied() {
            self.histories[known.file as usize][wait.chosen.op.index()].ended(wait);
        }
        let idle = wait.waited_ns.saturating_sub(wait.overlapped_ns);
        self.credit = (self.credit + saved as f64 - idle as f64).min(CREDIT_MAX_NS);
        let estimate = self.aggregations.alpha();
        let weight = ESTIMATE_NS + counters.waited_ns as f64;
        counters.alpha = (ESTIMATE_NS * estimate + counters.overlapped_ns as f64) / weight;
        self.shared.alpha_bits.store(counters.alpha.to_bits(), Ordering::Relaxed);
        self.publish();
    }
}
