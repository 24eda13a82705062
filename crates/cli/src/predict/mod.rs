//! Predictions on a volume: loaded at the start or live, kept up to date in the background.

mod learning;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sluice_adapt::predictor::{
    Aggregations, Combiner, Counters, Forecast, Handle, Names, Settings, TimeToProcess, TracePredictor,
    default_time_to_process, estimate_alpha, series_of,
};
use sluice_core::{FileId, Op, Predictor};
use sluice_device::profile::Profile;
use sluice_runtime::{FileNames, Host, Volume};
use sluice_trace::Reader;

use learning::{Told, learning};

/// How often aggregations follow what was observed.
const PERIOD: Duration = Duration::from_secs(5);

/// What to predict from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
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
pub struct Options {
    /// Where arrivals may be next to their predicted time, as a share of it; `None`: the default.
    pub margin: Option<f64>,
    /// The device's profile; `None`: a default curve.
    pub profile: Option<PathBuf>,
    /// Where what was learned is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
}

/// What `sluice status` tells of predictions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Where predictions come from.
    pub from: String,
    /// Predicted requests.
    pub predicted: u64,
    /// Requests to files that are predicted.
    pub known: u64,
    /// Of these, the ones that were predicted.
    pub linked: u64,
    /// Batches held back.
    pub waits: u64,
    /// Waits after which all was there.
    pub complete: u64,
    /// In all, in milliseconds.
    pub waited_ms: f64,
    /// Waits for which the device must not idle, because others had cost more than they gained.
    pub refused: u64,
    /// Share of waiting in which the device had other requests.
    pub alpha: f64,
    /// What is known of what repeats, when that is predicted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub learned: Option<Learned>,
}

/// What is known of what repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Files whose paths differ in numbers only, or one file.
    pub series: u64,
    /// Of these, the ones that have been used in the same way more than once.
    pub repeating: u64,
    /// Uses that are kept.
    pub runs: u64,
    /// Their requests.
    pub requests: u64,
    /// Requests of files in use.
    pub open_requests: u64,
    /// Memory of all that.
    pub bytes: u64,
    /// Where it is kept over restarts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<PathBuf>,
}

/// The predictions of one volume.
#[derive(Default)]
pub struct Predictions {
    active: Mutex<Option<Active>>,
    /// Held by whoever changes them, from the beginning of the set-up to its end.
    changing: Mutex<()>,
}

struct Active {
    from: String,
    /// The volume has an observer, which tells what it learns.
    learns: Option<Told>,
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

/// Random requests of 4 KiB that take longer are those of a device with an arm, which serves one at a time, however many it
/// may choose from.
const ARM_NS: u64 = 1_000_000;

/// The time to process, from a profile or by default, and how many batches keep the device busy.
///
/// # Errors
/// If the profile cannot be read.
fn device(profile: Option<&Path>) -> anyhow::Result<(TimeToProcess, u32)> {
    let Some(path) = profile else { return Ok((default_time_to_process(), Settings::default().parallelism)) };
    let profile = Profile::load(path)?;
    let read = sluice_device::Op::Read;
    let has_arm = profile.random_ns(read, 4096) > ARM_NS;
    let parallelism = if has_arm { 1 } else { profile.saturation(read).max(1) };
    // A batch goes between those of other files, so the device has to go to its place.
    let ttp: TimeToProcess = Arc::new(move |op, bytes| {
        let op = if op == Op::Read { sluice_device::Op::Read } else { sluice_device::Op::Write };
        profile.random_ns(op, bytes)
    });
    Ok((ttp, parallelism))
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
    pub fn set<H: Host>(&self, volume: &Volume<H>, source: &Source, options: &Options) -> anyhow::Result<()> {
        let _changing = self.changing.lock();
        // Requests go on meanwhile, with the predictions there are.
        let new = match source {
            Source::Off => None,
            Source::Files(paths) => Some(from_files(volume, paths, options)?),
            Source::Learn => Some(learning(volume, options)?),
        };
        let mut active = self.active.lock();
        if active.as_ref().is_some_and(|active| active.learns.is_some()) && *source != Source::Learn {
            let _ = volume.end_observation();
        }
        let (mut predictors, new) = new.map_or((Vec::new(), None), |(predictors, new)| (predictors, Some(new)));
        volume.set_predictors(|_| predictors.pop().map(|predictor| Box::new(predictor) as Box<dyn Predictor>));
        *active = new;
        Ok(())
    }

    /// What they did so far.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let active = self.active.lock();
        let active = active.as_ref()?;
        let learned = active.learns.as_ref().map(Told::learned);
        let mut status = Status { from: active.from.clone(), learned, ..Status::default() };
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

/// Settings for a volume and its device.
///
/// # Errors
/// If the device's profile cannot be read.
fn settings<H: Host>(volume: &Volume<H>, options: &Options) -> anyhow::Result<(Settings, TimeToProcess)> {
    let (limits, default) = (volume.limits(), Settings::default());
    let (ttp, parallelism) = device(options.profile.as_deref())?;
    let settings = Settings {
        margin: options.margin.unwrap_or(default.margin),
        bytes_max: limits.batch_bytes_max,
        requests_max: limits.batch_requests_max,
        parallelism,
        ..default
    };
    Ok((settings, ttp))
}

fn from_files<H: Host>(
    volume: &Volume<H>,
    paths: &[PathBuf],
    options: &Options,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let (settings, ttp) = settings(volume, options)?;
    let forecast = Arc::new(combine(paths, settings)?);
    let totals = forecast.totals();
    tracing::info!(?totals, "predicting from traces");
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    start(volume, forecast, settings, ttp, shown.join(", "), false)
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
    let shards = volume.scheduler().shards();
    let (predictors, handles): (Vec<_>, Vec<_>) = (0..shards)
        .map(|_| {
            let names = Arc::new(VolumeNames { names: names.clone(), series });
            TracePredictor::with_aggregations(forecast.clone(), settings, ttp.clone(), names, aggregations.clone())
        })
        .unzip();
    let (end, ended) = channel();
    let handles = Arc::new(handles);
    let mut active = Active { from, learns: None, handles, names, end: Some(end), thread: None };
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
