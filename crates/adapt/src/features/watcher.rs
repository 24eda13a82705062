//! Follows requests and closes windows.

use std::hint::select_unpredictable;

use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};

use super::places::{Distinct, Stream, Streams, Stripes, key as key_of, mix, mix_two};
use super::tally::{BLOCK, Tally, distance_class, size_class};
use super::window::{APPS_MAX, FileWindow, GroupWindow, TARGETS_MAX, Window};

/// Places of a set of files.
const WAYS: usize = 4;
/// Groups of files with few requests.
const RESTS_MAX: usize = 128;
/// Requests under way of which it is remembered where their files are.
const HINTS: usize = 1_024;
/// The hint of those that came while nobody listened.
const UNHEARD: u32 = u32::MAX;

/// How a watcher finds out that a request was answered before the next one came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// It is told of completions.
    Known,
    /// It knows arrivals only: a request counts as answered after so many nanoseconds.
    After(u64),
}

/// Sizes and bounds of a [`Watcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Stripe size in bytes; where data is not striped, the size from which on requests are to count as large. At least 1.
    pub stripe: u64,
    /// Where answers are known from.
    pub answers: Answers,
    /// Files of an application, target and operation that are remembered; rounded up to a power of two.
    pub files: u32,
    /// Sequential streams that are remembered; rounded up likewise.
    pub streams: u32,
    /// As many beginnings of requests that continued nothing are remembered, by which it is seen that what comes lies before them. Else
    /// [`Features::preceding`](super::Features::preceding) is 0.
    pub beginnings: bool,
    /// Stripes that are remembered; rounded up likewise.
    pub stripes: u32,
    /// Files with fewer requests in a window are reported together.
    pub requests_min: u32,
}

impl Default for Settings {
    /// For stripes of 64 KiB: 1,024 files, 2,048 streams and stripes, in about 700 KB; 16 requests.
    fn default() -> Settings {
        let answers = Answers::After(100_000);
        let (streams, stripes) = (2_048, 2_048);
        Settings { stripe: 64 << 10, answers, files: 1_024, streams, beginnings: false, stripes, requests_min: 16 }
    }
}

impl Settings {
    /// For I/O nodes, where each of many processes has a stream to every data server, and what tells how they share a file is
    /// whether neighbours come back to front: 16,384 streams and as many beginnings, in about 1.2 MB.
    #[must_use]
    pub fn of_io_node() -> Settings {
        Settings { answers: Answers::Known, streams: 16_384, beginnings: true, ..Settings::default() }
    }
}

/// What makes a file another one here. Packed, so that what each request needs of a [`File`] is in one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, packed)]
struct Key {
    file: u64,
    /// The application and the target.
    owner: u64,
    op: u8,
}

impl Key {
    /// No request's.
    const NONE: Key = Key { file: 0, owner: 0, op: u8::MAX };

    #[inline]
    fn of(request: &Request) -> Key {
        let owner = u64::from(request.app.0) << 32 | u64::from(request.target.0);
        Key { file: request.file.0, owner, op: request.op.index() as u8 }
    }

    fn app(self) -> AppId {
        AppId((self.owner >> 32) as u32)
    }

    fn target(self) -> TargetId {
        TargetId(self.owner as u32)
    }

    fn op(self) -> Op {
        if self.op == 0 { Op::Read } else { Op::Write }
    }

    /// Of the file and its application, and of all of it.
    #[inline]
    fn hashes(self) -> (u64, u64) {
        let file = mix_two(self.file, self.owner);
        (file, file ^ u64::from(self.op).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Of the file and its application, wherever it is. By counting it is told how many there are, for which files that follow
    /// each other must not be spread evenly: two multiplications.
    #[inline]
    fn anywhere(self) -> u64 {
        mix(mix(0x51_7cc1_b727_220a, self.file), u64::from(self.app().0))
    }
}

/// A file that is followed. The first cache line is what each request needs, and the tally begins with the second.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct File {
    key: Key,
    /// Place of its application.
    app: u8,
    /// Length of the last request, where it ended, and when it came.
    len: u32,
    end: u64,
    at: Time,
    /// Where the requests of the running block lie.
    low: u64,
    high: u64,
    /// Arrived and not completed.
    outstanding: u32,
    /// The window that the tally is of.
    window: u32,
    tally: Tally,
    /// Where those of the blocks before it in the window lie, and their bytes.
    lowest: u64,
    highest: u64,
    earlier: u64,
}

const _: () = assert!(std::mem::offset_of!(File, tally) == 64);

impl File {
    fn new() -> File {
        File {
            key: Key::NONE,
            app: 0,
            len: 0,
            end: 0,
            at: Time::ZERO,
            low: u64::MAX,
            high: 0,
            outstanding: 0,
            window: 0,
            tally: Tally::default(),
            lowest: u64::MAX,
            highest: 0,
            earlier: 0,
        }
    }

    /// Begins the tally of a window.
    fn begin(&mut self, window: u32) {
        (self.window, self.tally, self.earlier) = (window, Tally::default(), 0);
        (self.low, self.high, self.lowest, self.highest) = (u64::MAX, 0, u64::MAX, 0);
    }

    /// How far this request is from the one before.
    #[inline]
    fn distance(&mut self, now: Time, request: &Request) {
        let tally = &mut self.tally;
        tally.gap_ns = tally.gap_ns.saturating_add(now.since(self.at));
        let away = request.offset.abs_diff(self.end);
        tally.distances[distance_class(away, self.len, request.offset < self.end)] += 1;
        if away != 0 {
            tally.distance_sum += away as f64 / f64::from(self.len);
        }
        // Selected rather than branched for: where processes take turns nobody can predict it. Without votes the stride is this one.
        let stride = request.offset.wrapping_sub(self.end - u64::from(self.len)) as i64;
        let votes = tally.stride_votes;
        tally.stride = select_unpredictable(votes == 0, stride, tally.stride);
        tally.stride_votes = select_unpredictable(stride == tally.stride, votes.wrapping_add(1), votes.wrapping_sub(1));
    }

    /// Ends the running block, if it is to end.
    #[inline]
    fn reach(&mut self) {
        if self.tally.count().is_multiple_of(u64::from(BLOCK)) {
            let bytes = self.tally.bytes[0] + self.tally.bytes[1];
            self.tally.blocks += 1;
            self.tally.reach_log2 += ((self.high - self.low) as f32 / (bytes - self.earlier) as f32).log2();
            self.earlier = bytes;
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        (self.lowest, self.highest) = (self.lowest.min(self.low), self.highest.max(self.high));
        (self.low, self.high) = (u64::MAX, 0);
    }
}

#[derive(Clone, Copy, Debug)]
struct App {
    app: AppId,
    outstanding: u32,
    /// The window of its last request; 0: none.
    window: u32,
}

/// Applications by numbers of their own.
#[derive(Clone, Debug)]
struct Apps {
    known: Vec<App>,
    /// How many have unanswered requests, and the time in which several have.
    busy: u32,
    overlap: Span,
}

impl Apps {
    fn new() -> Apps {
        Apps { known: Vec::with_capacity(APPS_MAX), busy: 0, overlap: Span::default() }
    }

    /// The number of an application.
    fn number(&mut self, app: AppId, window: u32) -> u8 {
        let new = App { app, outstanding: 0, window: 0 };
        let at = match self.known.iter().position(|known| known.app == app) {
            Some(at) => at,
            None if self.known.len() < APPS_MAX => {
                self.known.push(new);
                self.known.len() - 1
            }
            // One that is gone makes room.
            None => match self.known.iter().position(|known| known.outstanding == 0 && known.window != window) {
                Some(at) => {
                    self.known[at] = new;
                    at
                }
                None => APPS_MAX - 1,
            },
        };
        at as u8
    }

    #[inline]
    fn completed(&mut self, now: Time, app: u8) {
        let app = &mut self.known[usize::from(app)];
        if app.outstanding == 1 {
            self.busy -= 1;
            self.overlap.set(now, self.busy > 1);
        }
        app.outstanding = app.outstanding.saturating_sub(1);
    }

    /// Some requests ended unheard: no more are unanswered than so many.
    fn resume(&mut self, now: Time, there: u64) {
        reduce(&mut self.known, |app| &mut app.outstanding, there);
        self.busy = self.known.iter().filter(|app| app.outstanding > 0).count() as u32;
        self.overlap.set(now, self.busy > 1);
    }
}

/// A set of files: their hashes, never 0, and where they are; both 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    hashes: [u64; WAYS],
    at: [u32; WAYS],
}

/// A stretch of time that is added up while something is the case.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    since: Option<Time>,
    sum_ns: u64,
}

impl Span {
    fn set(&mut self, now: Time, is_so: bool) {
        match (self.since, is_so) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => (self.since, self.sum_ns) = (None, self.sum_ns + now.since(since)),
            _ => {}
        }
    }

    /// The sum so far, which begins anew.
    fn take(&mut self, now: Time) -> u64 {
        if let Some(since) = &mut self.since {
            self.sum_ns += now.since(std::mem::replace(since, now));
        }
        std::mem::take(&mut self.sum_ns)
    }
}

/// Makes counts smaller, each by the same share, so that they are no more than `most` together.
fn reduce<T>(of: &mut [T], count: impl Fn(&mut T) -> &mut u32, most: u64) {
    let sum: u64 = of.iter_mut().map(|one| u64::from(*count(one))).sum();
    if sum > most {
        of.iter_mut().map(count).for_each(|count| *count = (u64::from(*count) * most / sum) as u32);
    }
}

/// The place of a request among the hints, by its cookie: hosts number what is under way, in one half of it or the other. Where
/// they do not, or several have the same place, files are looked for.
#[inline]
fn hint(request: &Request) -> usize {
    (request.cookie ^ request.cookie >> 32) as usize % HINTS
}

/// Follows the requests of one engine. See the [module](super) for costs and bounds.
#[derive(Clone, Debug)]
pub struct Watcher {
    settings: Settings,
    /// The power of two that the stripe is, if it is one.
    shift: Option<u32>,
    files: Box<[File]>,
    /// Where they are found. They get their places one after the other, so that a few are close together.
    sets: Box<[Set]>,
    /// Places of files that were given.
    used: u32,
    /// Where the file of the last request is.
    recent: usize,
    /// Where the files of requests under way were, so that few completions have to look for theirs: see [`hint`].
    hints: Box<[u32; HINTS]>,
    /// Files with requests in this window.
    touched: Vec<u32>,
    /// The same, wherever they are and whatever was done with them.
    distinct: Distinct,
    streams: Streams,
    stripes: Stripes,
    apps: Apps,
    /// Number of the running window, from 1.
    window: u32,
    start: Time,
    outstanding: u64,
    depth: u64,
    in_flight: u64,
    /// Something was dispatched, so that it is known what is in flight.
    knows_flight: bool,
    busy: Span,
    evicted: u64,
    report: Window,
    /// Sums of groups, in the order of the report's lists.
    sums: Sums,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    all: Tally,
    apps: Vec<(AppId, Tally)>,
    targets: Vec<(TargetId, Tally)>,
    rest: Vec<((AppId, TargetId, Op), Tally)>,
    /// Files of an application on a target with an operation.
    counts: Vec<((AppId, TargetId, Op), u32)>,
}

/// The value of a key in a short list. What finds no room counts with the last.
fn of<K: PartialEq + Copy, V: Default>(list: &mut Vec<(K, V)>, key: K, max: usize) -> &mut V {
    let at = match list.iter().position(|(known, _)| *known == key) {
        Some(at) => at,
        None if list.len() < max => {
            list.push((key, V::default()));
            list.len() - 1
        }
        None => max - 1,
    };
    &mut list[at].1
}

impl Watcher {
    /// Begins the first window at `start`.
    #[must_use]
    pub fn new(settings: Settings, start: Time) -> Watcher {
        let settings = Settings { stripe: settings.stripe.max(1), ..settings };
        let files = settings.files.max(WAYS as u32).next_power_of_two() as usize;
        let room = |max: usize| files.min(max);
        let report = Window {
            start,
            files: Vec::with_capacity(files),
            rest: Vec::with_capacity(room(RESTS_MAX)),
            apps: Vec::with_capacity(room(APPS_MAX)),
            targets: Vec::with_capacity(room(TARGETS_MAX)),
            ..Window::default()
        };
        let sums = Sums {
            all: Tally::default(),
            apps: Vec::with_capacity(room(APPS_MAX)),
            targets: Vec::with_capacity(room(TARGETS_MAX)),
            rest: Vec::with_capacity(room(RESTS_MAX)),
            counts: Vec::with_capacity(room(RESTS_MAX)),
        };
        Watcher {
            shift: settings.stripe.is_power_of_two().then(|| settings.stripe.ilog2()),
            files: vec![File::new(); files].into(),
            sets: vec![Set::default(); files / WAYS].into(),
            used: 0,
            recent: 0,
            hints: Box::new([0; HINTS]),
            touched: Vec::with_capacity(files),
            distinct: Distinct::new(),
            streams: Streams::new(settings.streams),
            stripes: Stripes::new(settings.stripes),
            apps: Apps::new(),
            window: 1,
            start,
            outstanding: 0,
            depth: 0,
            in_flight: 0,
            knows_flight: false,
            busy: Span::default(),
            evicted: 0,
            report,
            sums,
            settings,
        }
    }

    /// The settings, as they are used.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    fn knows_answers(&self) -> bool {
        self.settings.answers == Answers::Known
    }

    /// Number of an offset's stripe, and whether it begins there.
    #[inline]
    fn stripe(&self, offset: u64) -> (u64, bool) {
        match self.shift {
            Some(shift) => (offset >> shift, offset & (self.settings.stripe - 1) == 0),
            None => (offset / self.settings.stripe, offset.is_multiple_of(self.settings.stripe)),
        }
    }

    /// Where a file is, if it is followed.
    #[inline]
    fn find(&self, key: Key, hash: u64) -> Result<usize, usize> {
        // The number of sets is a power of two.
        let set = (hash >> 20) as usize & (self.sets.len() - 1);
        let Set { hashes, at } = &self.sets[set];
        // Two files with the same hash are as good as impossible; the one that is found is compared in full.
        let at = (0..WAYS).fold(at[0], |found, one| if hashes[one] == hash | 1 { at[one] } else { found }) as usize;
        if self.files[at].key == key { Ok(at) } else { Err(set) }
    }

    /// The place of a file, which is followed from now on.
    #[inline]
    fn place(&mut self, key: Key, hash: u64) -> usize {
        if self.files[self.recent].key != key {
            self.recent = self.find(key, hash).unwrap_or_else(|set| self.follow(key, hash, set));
        }
        self.recent
    }

    #[cold]
    fn follow(&mut self, key: Key, hash: u64, set: usize) -> usize {
        let app = self.apps.number(key.app(), self.window);
        let set = &mut self.sets[set];
        let age = |way: &usize| (set.hashes[*way] != 0).then(|| self.files[set.at[*way] as usize].at);
        let way = (0..WAYS).min_by_key(age).unwrap_or(0);
        if set.hashes[way] == 0 {
            set.at[way] = self.used;
            self.used += 1;
        }
        set.hashes[way] = hash | 1;
        let at = set.at[way] as usize;
        let file = &mut self.files[at];
        // A place with requests in this window is in the list of those already, for whoever has it then.
        let window = file.window;
        if file.key != Key::NONE && window == self.window {
            self.evicted += file.tally.count();
        }
        (file.key, file.app, file.len, file.outstanding) = (key, app, 0, 0);
        file.begin(window);
        self.distinct.add(key.anywhere());
        at
    }

    /// A request arrived. O(1); `now` does not go back.
    #[inline]
    pub fn arrived(&mut self, now: Time, request: &Request) {
        if request.len == 0 {
            return;
        }
        let key = Key::of(request);
        let (streams, hash) = key.hashes();
        let (begins, ends) = (key_of(streams, request.offset), key_of(streams, request.end()));
        let (window, knows_answers) = (self.window, self.knows_answers());
        let (stripe, is_aligned) = self.stripe(request.offset);
        // What is looked up by hash comes first: none of it waits for the file then.
        let (is_within, since) = self.stripes.arrived(hash, stripe, now, window);
        let continues = self.streams.take(begins);
        let next = if self.settings.beginnings { self.streams.take_beginning(ends) } else { None };
        if self.settings.beginnings && continues.is_none() {
            self.streams.put_beginning(begins, now);
        }
        // What would continue it has come already, and would be found again when the file is gone through once more.
        if next.is_none() {
            let window = if continues.is_some() { window } else { 0 };
            self.streams.put(ends, Stream::new(now, window));
        }
        let at = self.place(key, hash);
        let file = &mut self.files[at];
        let mut app = &mut self.apps.known[usize::from(file.app)];
        if app.app != request.app && file.outstanding == 0 {
            // It was gone for a while, and another one took its number. What is unanswered counts under the number that it came with.
            file.app = self.apps.number(request.app, window);
            app = &mut self.apps.known[usize::from(file.app)];
        }
        app.window = window;
        if knows_answers {
            self.hints[hint(request)] = at as u32;
            self.depth += self.outstanding;
            self.outstanding += 1;
            app.outstanding += 1;
            if app.outstanding == 1 {
                self.apps.busy += 1;
                self.apps.overlap.set(now, self.apps.busy > 1);
            }
        }
        if file.window != window {
            self.touched.push(at as u32);
            self.distinct.add(key.anywhere());
            file.begin(window);
        }
        let op = request.op.index();
        let tally = &mut file.tally;
        tally.requests[op] += 1;
        tally.bytes[op] += u64::from(request.len);
        tally.size_max = tally.size_max.max(request.len);
        tally.whole += u32::from(u64::from(request.len) >= self.settings.stripe);
        tally.sizes[size_class(request.len)] += 1;
        tally.depth += u64::from(file.outstanding);
        file.outstanding += u32::from(knows_answers);
        if file.len > 0 {
            file.distance(now, request);
        }
        (file.end, file.len, file.at) = (request.end(), request.len, now);
        (file.low, file.high) = (file.low.min(request.offset), file.high.max(request.end()));
        file.reach();
        let tally = &mut file.tally;
        tally.stripes += u32::from(!is_within);
        tally.stripe_ns = tally.stripe_ns.saturating_add(since);
        if let Some(is_answered) = next {
            tally.preceding += 1;
            tally.preceding_answered += u32::from(is_answered);
            tally.between += u32::from(continues.is_some());
        }
        let mut is_new_burst = true;
        if let Some(stream) = &continues {
            tally.continued += 1;
            tally.streams += u32::from(stream.window != window);
            is_new_burst = match self.settings.answers {
                Answers::Known => stream.answered != Time::ZERO,
                Answers::After(ns) => now.since(stream.at) >= ns,
            };
            tally.answered += u32::from(is_new_burst);
            let gap = now.since(stream.at);
            tally.stream_gap_ns = tally.stream_gap_ns.saturating_add(gap);
            tally.stream_gap_log2 += u64::from((gap | 1).ilog2());
            if is_aligned {
                tally.boundary_gap_ns = tally.boundary_gap_ns.saturating_add(gap);
                tally.boundaries += 1;
            }
            if is_new_burst && knows_answers {
                let think = now.since(stream.answered);
                tally.think_ns = tally.think_ns.saturating_add(think);
                tally.think_log2 += u64::from((think | 1).ilog2());
            }
        }
        tally.aligned += u32::from(is_new_burst && is_aligned);
    }

    /// So many requests were given to the device. O(1).
    #[inline]
    pub fn dispatched(&mut self, now: Time, requests: u32) {
        self.knows_flight = true;
        self.in_flight += u64::from(requests);
        self.busy.set(now, self.in_flight > 0);
    }

    /// A request was answered; `hit`: whether the device had the data in its cache, where that is known. To be told with
    /// [`Answers::Known`] of all that arrived. O(1).
    #[inline]
    pub fn completed(&mut self, now: Time, request: &Request, hit: Option<bool>) {
        if self.knows_flight {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.busy.set(now, self.in_flight > 0);
        }
        if request.len == 0 || !self.knows_answers() {
            return;
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        let key = Key::of(request);
        let (streams, hash) = key.hashes();
        let hint = self.hints[hint(request)];
        if hint == UNHEARD {
            // It is among the engine's, and no file's or application's.
            return;
        }
        let hint = hint as usize;
        let found = if self.files[hint].key == key { Ok(hint) } else { self.find(key, hash) };
        let Ok(at) = found else { return self.app_left(now, key.app()) };
        self.streams.answered(key_of(streams, request.end()), now);
        if self.settings.beginnings {
            self.streams.answered_beginning(key_of(streams, request.offset));
        }
        let file = &mut self.files[at];
        file.outstanding = file.outstanding.saturating_sub(1);
        if let Some(hit) = hit.filter(|_| file.window == self.window) {
            file.tally.hits_known += 1;
            file.tally.hits += u32::from(hit);
        }
        self.apps.completed(now, file.app);
    }

    /// A request of an application was answered whose file had to make room.
    #[cold]
    fn app_left(&mut self, now: Time, app: AppId) {
        let app = self.apps.number(app, self.window);
        self.apps.completed(now, app);
    }

    /// The engine was not followed for a while, and has so many requests queued and in flight now. What ended unheard would count as
    /// unanswered for ever: where more are known than there are, each file and each application has its share of those that there
    /// are. Of what came unheard it is not known whose it is: where fewer are known, what is there now counts for none of them, and
    /// neither does its end, by which that of another one would be taken for it. O(files).
    pub fn resume(&mut self, now: Time, queued: u32, in_flight: u32) {
        let there = u64::from(queued) + u64::from(in_flight);
        let known: u64 = self.files.iter().map(|file| u64::from(file.outstanding)).sum();
        if known < there && self.knows_answers() {
            self.hints.fill(UNHEARD);
            self.files.iter_mut().for_each(|file| file.outstanding = 0);
            self.apps.known.iter_mut().for_each(|app| app.outstanding = 0);
        }
        self.outstanding = there;
        self.in_flight = u64::from(in_flight);
        self.busy.set(now, in_flight > 0);
        reduce(&mut self.files, |file| &mut file.outstanding, there);
        self.apps.resume(now, there);
    }

    /// Ends the window at `now` and begins the next. O(files seen in it, times applications if there are many).
    pub fn close(&mut self, now: Time) -> &Window {
        let mut touched = std::mem::take(&mut self.touched);
        let mut sums = std::mem::take(&mut self.sums);
        sums.all = Tally::default();
        sums.apps.clear();
        sums.targets.clear();
        sums.rest.clear();
        sums.counts.clear();
        for &at in &touched {
            let file = &mut self.files[at as usize];
            let Some((app, target, op)) = file.group(self.window) else { continue };
            file.tally.files = 1;
            file.end_block();
            let bytes = file.tally.bytes[0] + file.tally.bytes[1];
            file.tally.extent_log2 = ((file.highest - file.lowest) as f32 / bytes as f32).log2();
            sums.all.merge(&file.tally);
            of(&mut sums.apps, app, APPS_MAX).merge(&file.tally);
            of(&mut sums.targets, target, TARGETS_MAX).merge(&file.tally);
            *of(&mut sums.counts, (app, target, op), RESTS_MAX) += 1;
            if file.tally.count() < u64::from(self.settings.requests_min) {
                of(&mut sums.rest, (app, target, op), RESTS_MAX).merge(&file.tally);
            }
        }
        self.write(now, &touched, &mut sums);
        touched.clear();
        (self.touched, self.sums) = (touched, sums);
        (self.start, self.depth, self.evicted) = (now, 0, 0);
        self.window = self.window.wrapping_add(1).max(1);
        &self.report
    }

    fn write(&mut self, now: Time, touched: &[u32], sums: &mut Sums) {
        let (stripe, knows_answers) = (self.settings.stripe, self.knows_answers());
        let length = now.since(self.start);
        let share = |ns: u64| if length == 0 { 0.0 } else { (ns as f64 / length as f64).min(1.0) };
        let report = &mut self.report;
        (report.start, report.end, report.evicted) = (self.start, now, self.evicted);
        report.distinct_files = self.distinct.take();
        report.files.clear();
        for &at in touched {
            let file = &self.files[at as usize];
            let Some((app, target, op)) = file.group(self.window) else { continue };
            if file.tally.count() >= u64::from(self.settings.requests_min) {
                let files = *of(&mut sums.counts, (app, target, op), RESTS_MAX);
                let features = file.tally.features(stripe, files, knows_answers);
                report.files.push(FileWindow { file: FileId(file.key.file), target, app, op, features });
            }
        }
        report.rest.clear();
        for (key, tally) in &sums.rest {
            let files = sums.counts.iter().find(|(known, _)| known == key).map_or(tally.files, |(_, files)| *files);
            report.rest.push(GroupWindow { key: *key, features: tally.features(stripe, files, knows_answers) });
        }
        report.apps.clear();
        report.apps.extend(groups(&sums.apps, stripe, knows_answers));
        report.targets.clear();
        report.targets.extend(groups(&sums.targets, stripe, knows_answers));
        report.all = sums.all.features(stripe, sums.all.files, knows_answers);
        let arrivals = sums.all.count() + self.evicted;
        let mean = if arrivals == 0 { 0.0 } else { self.depth as f64 / arrivals as f64 };
        report.depth = knows_answers.then_some(mean);
        let (busy, overlap) = (self.busy.take(now), self.apps.overlap.take(now));
        report.idle = (self.knows_flight && knows_answers).then(|| 1.0 - share(busy));
        report.overlap = knows_answers.then(|| share(overlap));
    }
}

fn groups<K: Copy>(sums: &[(K, Tally)], stripe: u64, knows_answers: bool) -> impl Iterator<Item = GroupWindow<K>> {
    sums.iter().map(move |(key, tally)| GroupWindow {
        key: *key,
        features: tally.features(stripe, tally.files, knows_answers),
    })
}

impl File {
    /// Whose it is, if it had requests in this window.
    fn group(&self, window: u32) -> Option<(AppId, TargetId, Op)> {
        (self.window == window && self.tally.count() > 0).then(|| (self.key.app(), self.key.target(), self.key.op()))
    }
}
