//! Getting to know the devices of a running scheduler, and acting on it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sluice_adapt::device::{BYTES_MAX, Estimate, Learner};
use sluice_adapt::selector::Device;
use sluice_core::{EngineConfig, ServedBatch};
use sluice_runtime::calling_nobody;

use crate::files::{Place, aside, unreadable};
use crate::{Ground, SAVE_PERIOD, Selection, wait};

/// Batches of an engine that are learned from in a window, at most.
const SERVED_MAX: usize = 512;
/// How often it is looked at how long moving takes, and by what factor another time is told to the engines.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
const MUCH: f64 = 1.5;

/// Settings of the engines for devices of which so much is known.
pub type Limits = Box<dyn Fn(&Estimate) -> EngineConfig + Send>;

/// How to learn what the devices are.
pub struct Learn {
    /// Memory may answer instead of the devices, and take what is written.
    pub page_cache: bool,
    /// Where what was learned is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// What the devices are, unless it turns out that they are something else.
    pub device: Device,
    /// The settings of the engines then.
    pub limits: Limits,
}

/// What is told of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// What the devices are taken for.
    pub kind: Device,
    /// What they seem to be by what was served.
    pub seems: Device,
    /// How sure that is, 0 to 1.
    pub confidence: f64,
    /// Why, or what is missing.
    pub reason: String,
    /// By how much a batch elsewhere takes longer, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positioning_ms: Option<f64>,
    /// Sequential throughput in MB a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_mb_s: Option<f64>,
    /// See `read_mb_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_mb_s: Option<f64>,
    /// By operation and size.
    pub sizes: Vec<SizeStatus>,
    /// Batches seen.
    pub batches: u64,
    /// Of these, those that memory answered, or may have.
    pub memory: u64,
    /// Times that the devices were taken for something else.
    pub changes: u64,
    /// Where it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What a user should know of that: that it cannot be written, or that what was there could not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What batches of an operation and a size take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeStatus {
    /// `read` or `write`.
    pub op: String,
    /// Mean size in bytes.
    pub size_bytes: f64,
    /// Microseconds of one that continues the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_us: Option<f64>,
    /// Microseconds of one elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_us: Option<f64>,
    /// The second over the first: the sequential-to-random throughput ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// Learning at work. Dropping it ends the work, and keeps what was learned.
pub struct Learning {
    shared: Arc<Shared>,
    bell: SyncSender<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    ends: AtomicBool,
    work: Mutex<Work>,
}

struct Work {
    learner: Learner,
    /// By engine, for what it has served.
    rooms: Vec<Vec<ServedBatch>>,
    given: Device,
    device: Device,
    limits: Limits,
    selection: Option<Arc<Selection>>,
    place: Place,
    is_kept: bool,
    saves_from: Instant,
    /// By how much moving takes longer, as the engines were told, and when it is looked at again.
    moving_ns: Option<f64>,
    looks_from: Instant,
    changes: u64,
}

/// By how much moving takes longer on such devices. By few batches it may seem to take less, which is no time.
fn moving_ns(estimate: &Estimate, device: Device) -> Option<f64> {
    estimate.positioning_ns.filter(|ns| device == Device::Disk && *ns > 0.0)
}

fn known_or(found: Device, given: Device) -> Device {
    if found == Device::Unknown { given } else { found }
}

/// What was learned before, if anything; where it is kept from now on.
fn remembered(learner: &mut Learner, path: &Path) -> Place {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Place::of(path),
        Err(error) => return unreadable(&anyhow::Error::from(error).context(path.display().to_string())),
        Ok(text) => text,
    };
    let too_long = || anyhow::anyhow!("{} bytes are far too many", text.len());
    let result = if text.len() > 2 * BYTES_MAX { Err(too_long()) } else { learner.remember(&text).map_err(Into::into) };
    match result {
        Ok(()) => Place::of(path),
        Err(error) => aside(path, &error.context(path.display().to_string())),
    }
}

/// What was learned of a device before, and is sure; `Unknown` if there is nothing, or it cannot be used.
#[must_use]
pub fn remembered_device(path: &Path) -> (Device, Estimate) {
    let mut learner = Learner::new(false);
    let read = std::fs::read(path).ok().filter(|text| text.len() <= 2 * BYTES_MAX);
    match read.map(|text| learner.remember(&text)) {
        Some(Ok(())) => (learner.device(), learner.estimate()),
        _ => Default::default(),
    }
}

impl Learning {
    /// Learns what the devices of `ground` are from now on. When that is sure, `selection` is told, or else the settings change.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start<G: Ground>(
        ground: &Arc<G>,
        learn: Learn,
        selection: Option<Arc<Selection>>,
    ) -> anyhow::Result<Learning> {
        let Learn { page_cache, state, device, limits } = learn;
        let mut learner = Learner::new(page_cache);
        let place = state.map(|path| remembered(&mut learner, &path)).unwrap_or_default();
        let given = device;
        let device = known_or(learner.device(), given);
        let moving_ns = moving_ns(&learner.estimate(), device);
        let work = Work {
            learner,
            rooms: (0..ground.engines()).map(|_| Vec::with_capacity(SERVED_MAX)).collect(),
            given,
            device,
            limits,
            selection,
            place,
            is_kept: true,
            saves_from: Instant::now() + SAVE_PERIOD,
            moving_ns,
            looks_from: Instant::now() + LOOK_PERIOD,
            changes: 0,
        };
        let shared = Arc::new(Shared { ends: AtomicBool::new(false), work: Mutex::new(work) });
        let (bell, rings) = sync_channel(1);
        let (works, weak) = (shared.clone(), Arc::downgrade(ground));
        let thread = std::thread::Builder::new()
            .name("sluice-device".into())
            .spawn(move || run(&works, &weak, &rings))
            .context("no thread to learn what the device is")?;
        let ring = bell.clone();
        // If it has rung already that is enough.
        ground.scheduler().watch_devices(Some(Box::new(move || _ = ring.try_send(()))));
        // The engines get room for what they serve.
        _ = bell.try_send(());
        Ok(Learning { shared, bell, thread: Mutex::new(Some(thread)) })
    }

    /// What is known.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        let work = self.shared.work.lock();
        let estimate = work.learner.estimate();
        let us = |ns: Option<f64>| ns.map(|ns| ns / 1e3);
        let sizes = estimate.points.iter().map(|point| SizeStatus {
            op: if point.read { "read" } else { "write" }.to_owned(),
            size_bytes: point.size_bytes,
            sequential_us: us(point.sequential_ns),
            random_us: us(point.random_ns),
            ratio: point.ratio,
        });
        DeviceStatus {
            kind: work.device,
            sizes: sizes.collect(),
            seems: estimate.seems,
            confidence: estimate.confidence,
            reason: estimate.reason,
            positioning_ms: estimate.positioning_ns.map(|ns| ns / 1e6),
            read_mb_s: estimate.read_bytes_per_s.map(|rate| rate / 1e6),
            write_mb_s: estimate.write_bytes_per_s.map(|rate| rate / 1e6),
            batches: estimate.batches,
            memory: estimate.memory,
            changes: work.changes,
            state: crate::shown(&work.place.path),
            note: work.place.note.clone(),
        }
    }

    /// Learns nothing any more, and keeps what was learned.
    pub fn end(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = self.bell.try_send(());
        // It cannot have panicked without having said so.
        let _ = thread.join();
        let mut work = self.shared.work.lock();
        // Somebody who measured it may have written what is better than nothing.
        if work.is_to_save() {
            work.learner.take_unsaved();
            work.keep();
        }
    }
}

impl Drop for Learning {
    fn drop(&mut self) {
        self.end();
    }
}

/// Learns whenever devices have served something, until the end.
fn run<G: Ground>(shared: &Shared, ground: &Weak<G>, rings: &Receiver<()>) {
    while let Some(rang) = wait(rings, calling_nobody(|| shared.work.lock().is_to_save())) {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        if !rang {
            calling_nobody(|| shared.work.lock().save_if_due(Instant::now()));
            continue;
        }
        let Some(ground) = ground.upgrade() else { return };
        calling_nobody(|| shared.work.lock().learn(&*ground));
    }
}

impl Work {
    fn learn(&mut self, ground: &impl Ground) {
        for (engine, room) in self.rooms.iter_mut().enumerate() {
            let served = ground.scheduler().served(engine, std::mem::take(room));
            served.iter().for_each(|batch| self.learner.served(engine as u32, batch));
            *room = served;
            room.clear();
            room.reserve(SERVED_MAX);
        }
        self.act(ground);
        let now = Instant::now();
        self.save_if_due(now);
    }

    /// Whether something was learned that is not kept.
    fn is_to_save(&self) -> bool {
        self.learner.has_unsaved() || !self.is_kept
    }

    /// Keeps what was learned, if it is time for it.
    fn save_if_due(&mut self, now: Instant) {
        if now >= self.saves_from && self.is_to_save() {
            self.learner.take_unsaved();
            self.keep();
            self.saves_from = Instant::now() + SAVE_PERIOD;
        }
    }

    /// Has the devices taken for what they are, if that is something else now, or much more is known of it.
    fn act(&mut self, ground: &impl Ground) {
        let found = known_or(self.learner.device(), self.given);
        let is_other = found != self.device;
        let now = Instant::now();
        if !is_other && now < self.looks_from {
            return;
        }
        self.looks_from = now + LOOK_PERIOD;
        let estimate = self.learner.estimate();
        let moving_ns = moving_ns(&estimate, found).filter(|_| estimate.device == found);
        let is_much = |ns: f64, before: f64| !(1.0 / MUCH..=MUCH).contains(&(ns / before));
        let much_more = moving_ns.is_some_and(|ns| self.moving_ns.is_none_or(|before| is_much(ns, before)));
        if !is_other && !much_more {
            return;
        }
        self.moving_ns = moving_ns;
        let limits = (self.limits)(&estimate);
        if is_other {
            tracing::info!("these are {found}: {}", estimate.reason);
            (self.device, self.changes) = (found, self.changes + 1);
            // What the selector keeps is about these from now on.
            self.saves_from = now;
        }
        match &self.selection {
            Some(selection) if is_other => selection.set_device(ground, found, limits),
            Some(selection) => selection.set_host(ground, limits),
            None => {
                if let Err(error) = ground.set_limits(&limits) {
                    tracing::warn!("what was learned of the device cannot be used: {error}");
                }
            }
        }
    }

    /// Keeps what was learned. Another mount of the same directories may have found out meanwhile what this one has not.
    fn keep(&mut self) {
        let is_decided = self.learner.device() != Device::Unknown;
        self.is_kept = self.place.keep(|path| match remembered_device(path).0 {
            Device::Unknown => save(&self.learner, path),
            _ if is_decided => save(&self.learner, path),
            _ => Ok(()),
        });
    }
}

/// Keeps what was learned of a device, in a new file that takes the place of the old one when it is whole.
///
/// # Errors
/// If it cannot be written.
pub fn save(learner: &Learner, path: &Path) -> anyhow::Result<()> {
    crate::files::replace(path, learner.to_text().as_bytes())
}

#[cfg(test)]
mod tests {
    use sluice_core::{Op, PolicyConfig};
    use sluice_runtime::{Scheduler, SchedulerConfig};

    use super::*;

    /// As a calibration finds a disk: 10 ms elsewhere, 1 ms in a row.
    fn disk() -> Learner {
        let points = [4096, 65_536, 1 << 20];
        Learner::profiled(points.into_iter().flat_map(|size| [Op::Read, Op::Write].map(|op| (op, size, 1e6, 1e7))))
    }

    fn learning(state: &Path) -> (Arc<Scheduler>, Learning) {
        let scheduler = Arc::new(Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap())).unwrap());
        let limits: Limits = Box::new(|_| EngineConfig::default());
        let learn = Learn { page_cache: false, state: Some(state.to_owned()), device: Device::Unknown, limits };
        let learning = Learning::start(&scheduler, learn, None).unwrap();
        (scheduler, learning)
    }

    /// The selector's is, and says what these devices are.
    #[test]
    fn what_was_learned_is_kept_though_nothing_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("device");
        let (_scheduler, learning) = learning(&state);
        let mut work = learning.shared.work.lock();
        work.learner = disk();
        work.is_kept = false;
        work.save_if_due(Instant::now());
        assert!(!state.exists() && work.is_to_save(), "not yet");
        work.saves_from = Instant::now();
        work.save_if_due(Instant::now());
        assert!(!work.is_to_save());
        assert_eq!(remembered_device(&state).0, Device::Disk);
    }

    /// Two mounts of one directory keep it in one file.
    #[test]
    fn who_has_not_found_out_leaves_what_another_has() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("device");
        let (_scheduler, undecided) = learning(&state);
        undecided.shared.work.lock().keep();
        assert_eq!(remembered_device(&state).0, Device::Unknown);
        save(&disk(), &state).unwrap();
        undecided.shared.work.lock().is_kept = false;
        undecided.end();
        assert_eq!(remembered_device(&state).0, Device::Disk);
    }

    #[test]
    fn moving_that_seems_to_take_less_than_none_is_no_time() {
        let of = |ns| moving_ns(&Estimate { positioning_ns: Some(ns), ..Estimate::default() }, Device::Disk);
        assert_eq!((of(-5e6), of(8e6)), (None, Some(8e6)));
        assert_eq!(moving_ns(&Estimate { positioning_ns: Some(8e6), ..Estimate::default() }, Device::Flash), None);
    }
}
