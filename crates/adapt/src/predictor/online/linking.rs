//! Which predicted request an arrived one is.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use sluice_core::{Chosen, FileId, Op, Request, TargetId, Time};

use super::super::Settings;
use super::super::forecast::Forecast;
use super::super::learn::Learner;
use super::super::learn::bursts::{Bursts, Place};
use super::Names;

/// Files that are remembered. When there are more, all are asked for anew.
const FILES_MAX: usize = 65_536;
/// Arrived requests whose prediction is remembered: a power of two.
const LINKS: usize = 8_192;
/// Unlinked requests in a row that must agree about how late a run is.
const FOLLOW: u32 = 4;

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
pub(super) struct Known {
    /// In the forecast.
    pub(super) file: u32,
    /// Number of its run: different for each run of each file.
    pub(super) epoch: u32,
    /// When the run began with the first request.
    pub(super) first: Time,
    /// By how much requests come later than predicted, in nanoseconds; negative: earlier.
    pub(super) skew: i64,
    /// By how much the last unlinked ones would have, and how many in a row agree about it.
    other: (i64, u32),
    /// Predicted offsets count from here: not 0 in a burst behind the end of a file.
    pub(super) base: u64,
    /// Requests of the run so far, and when the last one came.
    pub(super) seen: u32,
    pub(super) last: Time,
    /// How often numbers had changed their paths when its path was looked up last.
    checked: u64,
}

/// An arrived request of a file that there are predictions for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    file: FileKey,
    offset: u64,
    op: Op,
    epoch: u32,
    /// The predicted request at its place that is nearest in time.
    pub(super) request: u32,
    /// And near enough.
    pub(super) linked: bool,
}

/// The files that an engine has requests to, and what has arrived of their runs.
pub(super) struct Linking {
    pub(super) forecast: Arc<Forecast>,
    settings: Settings,
    names: Arc<dyn Names>,
    /// Of the names, when `files` was right.
    changes: u64,
    files: Files,
    /// Those that nothing is predicted for.
    unknown: HashSet<FileKey, BuildHasherDefault<NumberHasher>>,
    bursts: Bursts,
    epochs: u32,
    links: Box<[Option<Link>]>,
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

impl Linking {
    pub(super) fn new(forecast: Arc<Forecast>, settings: Settings, names: Arc<dyn Names>) -> Linking {
        Linking {
            forecast,
            settings,
            changes: names.changes(),
            names,
            files: Files::default(),
            unknown: HashSet::default(),
            bursts: Bursts::default(),
            epochs: 0,
            links: vec![None; LINKS].into(),
        }
    }

    /// Predicts from another forecast. Runs under way go on; files that were unknown are asked for anew.
    pub(super) fn replace(&mut self, forecast: Arc<Forecast>) {
        let old = std::mem::replace(&mut self.forecast, forecast);
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

    /// What is known of the file of a batch.
    pub(super) fn file_of(&self, chosen: &Chosen) -> Option<Known> {
        self.files.get(&key_of(chosen)).copied()
    }

    /// A request of a run has come: the number of those before it, and how long after the last one, in nanoseconds.
    pub(super) fn counts(&mut self, now: Time, request: &Request) -> Option<(u32, u64)> {
        let known = self.files.get_mut(&key(request))?;
        let counted = (known.seen, now.since(known.last));
        (known.seen, known.last) = (known.seen.saturating_add(1), now);
        Some(counted)
    }

    /// The file of a request, met for the first time perhaps.
    pub(super) fn meet(&mut self, now: Time, request: &Request) -> Option<Known> {
        let changes = self.names.changes();
        if changes != self.changes {
            // Those that are known are looked up again one by one: runs under way go on.
            self.changes = changes;
            self.unknown.clear();
        }
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
        let file = path.and_then(|path| find_file(&self.forecast, &path, self.names.part(request)));
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
        Known {
            file,
            epoch: self.epochs,
            first: now,
            skew: 0,
            other: (0, 0),
            base: 0,
            seen: 0,
            last: now,
            checked: self.changes,
        }
    }

    /// A request as predictions have it, with its offset from the beginning of its burst, if its file has such; none if it
    /// belongs to no burst.
    pub(super) fn in_burst(&mut self, now: Time, request: &Request, known: Known) -> Option<(Request, Known)> {
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

    /// What has arrived of this run of the file of a batch at this place, for its operation.
    pub(super) fn arrived(&self, chosen: &Chosen, offset: u64, epoch: u32) -> Option<&Link> {
        let (file, op) = (key_of(chosen), chosen.op);
        let link = self.links[Linking::place(file, op, offset)].as_ref()?;
        ((link.file, link.op, link.offset, link.epoch) == (file, op, offset, epoch)).then_some(link)
    }

    /// Links a request of a known file, and remembers that it has arrived. `None` if nothing is predicted at its place.
    pub(super) fn arrives(&mut self, now: Time, request: &Request, known: Known) -> Option<Link> {
        let (known, found, linked) = match self.link(now, request, known) {
            Some((mut known, found)) => {
                // Follows slowly: an eighth of what the request is off.
                let predicted = self.forecast.requests[found].time;
                let off = (now.since(known.first) as i64).saturating_sub(predicted as i64);
                known.skew += off.saturating_sub(known.skew) / 8;
                self.files.insert(key(request), known);
                (known, found, true)
            }
            None => {
                let (known, found) = self.anywhere(now, request)?;
                (known, found, false)
            }
        };
        let &Request { offset, op, .. } = request;
        let file = key(request);
        let link = Link { file, offset, op, epoch: known.epoch, request: found as u32, linked };
        self.links[Linking::place(file, op, offset)] = Some(link);
        Some(link)
    }
}
