//! Predictions on a volume: loaded at the start or live, kept up to date in the background.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sluice_adapt::predictor::{
    Aggregations, Combiner, Counters, Forecast, Handle, LearnLimits, Learner, Names, Settings, TimeToProcess,
    TracePredictor, default_time_to_process, estimate_alpha, series_of,
};
use sluice_core::{FileId, Op, Predictor, Request, Time};
use sluice_device::profile::Profile;
use sluice_runtime::{FileNames, Host, Observer, Volume};
use sluice_trace::{Entry, Meta, Reader, Writer};

/// How often aggregations follow what was observed.
const PERIOD: Duration = Duration::from_secs(5);

/// How often what was learned is kept, if it has changed.
const SAVE_PERIOD: Duration = Duration::from_secs(30);

/// What to predict from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nothing.
    #[default]
    Off,
    /// Traces of runs.
    Files(Vec<PathBuf>),
    /// What repeats here.
    Learn,
}

/// How to predict.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// Where arrivals may be next to their predicted time, as a share of it; `None`: the default.
    pub(crate) margin: Option<f64>,
    /// The device's profile; `None`: a default curve.
    pub(crate) profile: Option<PathBuf>,
    /// Where what was learned is kept; `None`: nowhere.
    pub(crate) state: Option<PathBuf>,
}

/// What `sluice status` tells of predictions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Where predictions come from.
    pub(crate) from: String,
    /// Predicted requests.
    pub(crate) predicted: u64,
    /// Requests to files that are predicted.
    pub(crate) known: u64,
    /// Of these, the ones that were predicted.
    pub(crate) linked: u64,
    pub(crate) waits: u64,
    /// Waits after which all was there.
    pub(crate) complete: u64,
    pub(crate) waited_ms: f64,
    /// Waits not begun because they had cost more than they gained.
    pub(crate) refused: u64,
    /// Share of waiting in which the device had other requests.
    pub(crate) alpha: f64,
}

/// The predictions of one volume.
#[derive(Default)]
pub(crate) struct Predictions {
    active: Mutex<Option<Active>>,
}

struct Active {
    from: String,
    /// The volume has an observer.
    learns: bool,
    handles: Arc<Vec<Handle>>,
    names: Arc<FileNames>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Active {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked without having said so.
            let _ = thread.join();
        }
        self.names.unwatch();
    }
}

/// A volume's names for a predictor.
struct VolumeNames {
    names: Arc<FileNames>,
    /// Files are known by their series.
    series: bool,
}

impl Names for VolumeNames {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        let path = self.names.get(file)?;
        Some(if self.series { series_of(&path).into() } else { path })
    }
    fn changes(&self) -> u64 {
        self.names.changes()
    }
}

/// The time to process, from a profile or by default.
///
/// # Errors
/// If the profile cannot be read.
pub(crate) fn time_to_process(profile: Option<&Path>) -> anyhow::Result<TimeToProcess> {
    let Some(path) = profile else { return Ok(default_time_to_process()) };
    let profile = Profile::load(path)?;
    // A batch goes between those of other files, so the device has to go to its place.
    Ok(Arc::new(move |op, bytes| {
        let op = if op == Op::Read { sluice_device::Op::Read } else { sluice_device::Op::Write };
        profile.random_ns(op, bytes)
    }))
}

/// Combines the traces of several runs.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn combine(paths: &[PathBuf], settings: Settings) -> anyhow::Result<Forecast> {
    let mut combiner = Combiner::new(settings);
    for path in paths {
        let shown = || path.display().to_string();
        let mut reader = Reader::open(path).with_context(shown)?;
        combiner.add(&mut reader).with_context(shown)?;
    }
    Ok(combiner.finish())
}

impl Predictions {
    /// Predicts from another source from now on.
    ///
    /// # Errors
    /// If traces or profile cannot be read; what was predicted before stays.
    pub(crate) fn set<H: Host>(&self, volume: &Volume<H>, source: &Source, options: &Options) -> anyhow::Result<()> {
        let new = match source {
            Source::Off => None,
            Source::Files(paths) => Some(from_files(volume, paths, options)?),
            Source::Learn => Some(learning(volume, options)?),
        };
        let mut active = self.active.lock();
        if active.as_ref().is_some_and(|active| active.learns) && *source != Source::Learn {
            let _ = volume.end_observation();
        }
        let (mut predictors, new) = new.map_or((Vec::new(), None), |(predictors, new)| (predictors, Some(new)));
        volume.set_predictors(|_| predictors.pop().map(|predictor| Box::new(predictor) as Box<dyn Predictor>));
        *active = new;
        Ok(())
    }

    /// What they did so far.
    pub(crate) fn status(&self) -> Option<Status> {
        let active = self.active.lock();
        let active = active.as_ref()?;
        let mut status = Status { from: active.from.clone(), ..Status::default() };
        for handle in active.handles.iter() {
            let Counters { known, linked, waits, complete, waited_ns, refused, alpha, .. } = handle.counters();
            // The same for all engines.
            status.predicted = handle.predicted();
            status.known += known;
            status.linked += linked;
            status.waits += waits;
            status.complete += complete;
            status.waited_ms += waited_ns as f64 / 1e6;
            status.refused += refused;
            status.alpha += alpha / active.handles.len() as f64;
        }
        Some(status)
    }
}

fn settings<H: Host>(volume: &Volume<H>, options: &Options) -> Settings {
    let (limits, default) = (volume.limits(), Settings::default());
    Settings {
        margin: options.margin.unwrap_or(default.margin),
        bytes_max: limits.batch_bytes_max,
        requests_max: limits.batch_requests_max,
        ..default
    }
}

fn from_files<H: Host>(
    volume: &Volume<H>,
    paths: &[PathBuf],
    options: &Options,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let settings = settings(volume, options);
    let forecast = Arc::new(combine(paths, settings)?);
    let totals = forecast.totals();
    tracing::info!(?totals, "predicting from traces");
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    start(volume, forecast, settings, time_to_process(options.profile.as_deref())?, shown.join(", "), false)
}

fn start<H: Host>(
    volume: &Volume<H>,
    forecast: Arc<Forecast>,
    settings: Settings,
    ttp: TimeToProcess,
    from: String,
    series: bool,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let names = volume.names().clone();
    names.watch();
    let aggregations = Aggregations::new(&forecast, &settings, &ttp, estimate_alpha(&forecast, &ttp));
    let shards = volume.runtime().shards();
    let (predictors, handles): (Vec<_>, Vec<_>) = (0..shards)
        .map(|_| {
            let names = Arc::new(VolumeNames { names: names.clone(), series });
            TracePredictor::with_aggregations(forecast.clone(), settings, ttp.clone(), names, aggregations.clone())
        })
        .unzip();
    let (end, ended) = channel();
    let handles = Arc::new(handles);
    let mut active = Active { from, learns: false, handles, names, end: Some(end), thread: None };
    let kept = active.handles.clone();
    let thread = std::thread::Builder::new().name("sluice-predict".into()).spawn(move || refresh(&kept, &ended));
    active.thread = Some(thread.context("no thread for predictions")?);
    Ok((predictors, active))
}

/// Lets aggregations follow what was observed, until nobody holds the other end.
fn refresh(handles: &[Handle], ended: &Receiver<()>) {
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        handles.iter().for_each(|handle| _ = handle.refresh());
    }
}

/// Predictions from what repeats on the volume itself.
fn learning<H: Host>(volume: &Volume<H>, options: &Options) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let settings = settings(volume, options);
    let mut learner = Learner::new(LearnLimits::default());
    if let Some(path) = options.state.as_deref().filter(|path| path.exists()) {
        let mut load = || learner.load(&mut Reader::open(path)?);
        // What cannot be read is learned anew.
        if let Err(error) = load() {
            tracing::warn!("what was learned is not all there: {}: {error}", path.display());
        }
    }
    let forecast = Arc::new(learner.forecast(settings));
    let (predictors, mut active) = start(
        volume,
        forecast,
        settings,
        time_to_process(options.profile.as_deref())?,
        "what repeats".to_owned(),
        true,
    )?;
    learner.take_changed();
    let pupil = Pupil {
        learner,
        names: volume.names().clone(),
        handles: active.handles.clone(),
        settings,
        state: options.state.clone(),
        // The first save is soon enough after a period.
        saved: Instant::now(),
        unsaved: false,
    };
    // One that learned before goes first.
    let _ = volume.end_observation();
    volume.observe(Box::new(pupil))?;
    active.learns = true;
    Ok((predictors, active))
}

/// Watches a volume, and tells its predictors what it learns.
struct Pupil {
    learner: Learner,
    names: Arc<FileNames>,
    handles: Arc<Vec<Handle>>,
    settings: Settings,
    state: Option<PathBuf>,
    saved: Instant,
    unsaved: bool,
}

impl Pupil {
    fn tell(&mut self, now: Time) {
        self.learner.settle(now.0);
        if self.learner.take_changed() {
            let forecast = Arc::new(self.learner.forecast(self.settings));
            self.handles.iter().for_each(|handle| handle.replace(forecast.clone()));
            self.unsaved = true;
        }
    }

    fn save(&mut self) {
        self.unsaved = false;
        self.saved = Instant::now();
        let Some(path) = &self.state else { return };
        if let Err(error) = save(&self.learner, path) {
            tracing::warn!("what was learned cannot be kept: {error:#}");
        }
    }
}

impl Observer for Pupil {
    fn seen(&mut self, at: Time, request: &Request) {
        if let Some(path) = self.names.get(request.file) {
            let Request { app, target, op, offset, len, .. } = *request;
            let entry = Entry { time: at.0, file: 0, app: app.0, target: target.0, op, offset, len };
            self.learner.seen(&path, &entry);
        }
    }

    fn pause(&mut self, now: Time) {
        self.tell(now);
        if self.unsaved && self.saved.elapsed() >= SAVE_PERIOD {
            self.save();
        }
    }

    fn end(&mut self, now: Time) {
        // Whatever is still in use has no run more to come.
        self.tell(Time(now.0.saturating_add(LearnLimits::default().pause_ns + 1)));
        if self.unsaved {
            self.save();
        }
    }
}

/// Keeps what was learned: in a new file that takes the place of the old one when it is whole.
fn save(learner: &Learner, path: &Path) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(shown)?;
    let file = tempfile::Builder::new().prefix(".sluice-").tempfile_in(dir).with_context(shown)?;
    let meta = Meta { source: "what repeats".to_owned(), ..Meta::default() };
    let mut writer = Writer::new(BufWriter::new(file.as_file()), &meta)?;
    learner.save(&mut writer)?;
    writer.finish(0)?;
    file.persist(path).with_context(shown)?;
    Ok(())
}
