//! Predictions for whatever has a scheduler: loaded at the start or live, kept up to date in the background.
//!
//! A [`Ground`] is what predictions are for: a volume, whose files have paths, or a bare scheduler, whose files have numbers.

#![forbid(unsafe_code)]

mod ground;
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
    Added, Aggregations, Combiner, Counters, Forecast, Handle, Settings, TimeToProcess, TracePredictor, Verdict,
    default_time_to_process, estimate_alpha,
};
use sluice_core::{Op, Predictor};
use sluice_device::ModelError;
use sluice_device::profile::Profile;
use sluice_device::profiler::profile_of_model;
use sluice_trace::{End, Reader, Split};

use ground::GroundNames;
pub use ground::{FilePaths, Ground};
use learning::{Ready, Told, learning};

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
    /// The device's profile; `None`: it is not known, and nothing is waited for.
    pub profile: Option<PathBuf>,
    /// The model of an emulated device, which counts where there is no profile.
    pub model: Option<String>,
    /// Where what was learned is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// Bytes of the largest request that the host hands to the volume; `None`: any.
    pub request_max: Option<u32>,
    /// What of programs' requests the host does not hand on one by one.
    pub cached: Cached,
}

/// What a host, or the kernel before it, caches: it comes in other sizes, at other times, or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cached {
    /// Nothing.
    #[default]
    Nothing,
    /// Reads.
    Reads,
    /// Reads and writes.
    All,
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
    /// Whether waiting pays, as far as is known: `unknown`, `pays`, `does not pay`, or `no profile` of the device, without
    /// which nothing is waited for. Of several engines, how many say so.
    pub verdict: String,
    /// By how much waiting made programs faster when it was measured last, in percent; the mean of the engines that know.
    pub gain_percent: f64,
    /// Share of waiting in which the device had other requests.
    pub alpha: f64,
    /// What is known of what repeats, when that is predicted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub learned: Option<Learned>,
    /// The traces that are predicted from.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub traces: Vec<TraceUse>,
}

/// What can be predicted from a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceUse {
    /// The file.
    pub path: PathBuf,
    /// Its requests.
    pub requests: u64,
    /// The same as the volume splits them.
    pub pieces: u64,
    /// Of these, those that a request to the volume can match.
    pub can_match: u64,
    /// Why others cannot, or may not.
    pub notes: Vec<String>,
    /// The trace has its end.
    pub complete: bool,
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
    traces: Vec<TraceUse>,
    device_known: bool,
    /// The volume has an observer, which tells what it learns.
    learns: Option<Told>,
    handles: Arc<Vec<Handle>>,
    names: Arc<dyn FilePaths>,
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

/// Random requests of 4 KiB that take longer are those of a device with an arm, which serves one at a time, however many it
/// may choose from.
const ARM_NS: u64 = 1_000_000;

/// The time to process, and how many batches keep the device busy; none if nothing is known of it.
///
/// # Errors
/// If the profile cannot be read, or there is no such model.
fn device(options: &Options) -> anyhow::Result<Option<(TimeToProcess, u32)>> {
    let profile = match (&options.profile, &options.model) {
        (Some(path), _) => Profile::load(path)?,
        (None, Some(model)) => match profile_of_model(model) {
            // Nothing is worth waiting for.
            Err(ModelError::TakesNoTime { .. }) => return Ok(None),
            profile => profile?,
        },
        (None, None) => return Ok(None),
    };
    let read = sluice_device::Op::Read;
    let has_arm = profile.random_ns(read, 4096) > ARM_NS;
    let parallelism = if has_arm { 1 } else { profile.saturation(read).max(1) };
    // A batch goes between those of other files, so the device has to go to its place.
    let ttp: TimeToProcess = Arc::new(move |op, bytes| {
        let op = if op == Op::Read { sluice_device::Op::Read } else { sluice_device::Op::Write };
        profile.random_ns(op, bytes)
    });
    Ok(Some((ttp, parallelism)))
}

/// Whether this is a profile.
///
/// # Errors
/// Why it is none.
pub fn check_profile(path: &Path) -> anyhow::Result<()> {
    Profile::load(path)?;
    Ok(())
}

/// How much longer a read of 64 KiB takes at a random place than behind the one before, by this profile: nanoseconds, and the bytes
/// within which that was measured.
///
/// # Errors
/// Why it is no profile.
pub fn positioning(path: &Path) -> anyhow::Result<(u64, u64)> {
    const LEN: u64 = 64 << 10;
    let (profile, read) = (Profile::load(path)?, sluice_device::Op::Read);
    Ok((profile.random_ns(read, LEN).saturating_sub(profile.ttp_ns(read, LEN)), profile.file_bytes))
}

/// Combines the traces of several runs.
///
/// # Errors
/// If one cannot be read.
fn combine(
    paths: &[PathBuf],
    settings: Settings,
    split: Option<Split>,
    cached: Cached,
) -> anyhow::Result<(Forecast, Vec<TraceUse>)> {
    let mut combiner = Combiner::new(settings).splitting(split);
    let mut uses = Vec::with_capacity(paths.len());
    for path in paths {
        let shown = || path.display().to_string();
        let mut reader = Reader::open(path).with_context(shown)?;
        let added = combiner.add(&mut reader).with_context(shown)?;
        let complete = matches!(reader.end(), End::Complete { .. });
        // A bare scheduler knows no paths.
        let strangers = if split.is_some() { added.absolute } else { 0 };
        uses.push(TraceUse {
            path: path.clone(),
            requests: added.entries,
            pieces: added.requests,
            can_match: added.requests - strangers,
            notes: notes(&reader, &added, strangers, cached),
            complete,
        });
    }
    Ok((combiner.finish(), uses))
}

/// Why requests of a trace cannot match, or may not.
fn notes<R: std::io::Read>(reader: &Reader<R>, added: &Added, strangers: u64, cached: Cached) -> Vec<String> {
    let meta = reader.meta();
    let mut notes = Vec::new();
    if strangers > 0 {
        notes.push(format!(
            "{strangers} cannot match: their paths begin with /, which no file of a mount does; `sluice trace convert --below \
             DIR` mends that"
        ));
    }
    // A recording has what came through the cache.
    let (what, passed) = match cached {
        _ if meta.pieces => ("", 0),
        Cached::Nothing => ("", 0),
        Cached::Reads => ("reads", added.reads),
        Cached::All => ("reads and writes", added.requests),
    };
    if passed > 0 {
        notes.push(format!(
            "{passed} may not match: {what} come in other sizes, or not at all, through the cache (cache)"
        ));
    }
    // What goes through a cache is split by pages of the file.
    if added.parts > 0 && !meta.pieces && cached == Cached::Nothing {
        notes.push(format!(
            "{} are parts of requests that the kernel splits: they match if the program's memory begins on a page",
            added.parts
        ));
    }
    if meta.untimed {
        notes.push("most may not match: their log had no times".to_owned());
    }
    match reader.end() {
        End::Complete { .. } if reader.incomplete().is_empty() => {}
        End::Complete { .. } => notes.push(format!("requests are missing: {}", reader.incomplete())),
        _ => notes.push("requests may be missing: the trace has no end".to_owned()),
    }
    notes
}

impl Predictions {
    /// Predicts from another source from now on.
    ///
    /// # Errors
    /// If traces or profile cannot be read; what was predicted before stays. If there can be no thread to learn: what was learned before
    /// is predicted still, and nothing more learned.
    pub fn set(&self, volume: &impl Ground, source: &Source, options: &Options) -> anyhow::Result<()> {
        let _changing = self.changing.lock();
        // Requests go on meanwhile, with the predictions there are.
        let new = match source {
            Source::Off => None,
            Source::Files(paths) => Some(from_files(volume, paths, options)?),
            Source::Learn => {
                let ready = Ready::new(volume, options)?;
                // One that learned before goes first, and keeps what it knows.
                let _ = volume.end_observation();
                let begun = learning(volume, options, ready);
                if let (Err(_), Some(active)) = (&begun, self.active.lock().as_mut()) {
                    active.learns = None;
                }
                Some(begun?)
            }
        };
        let mut active = self.active.lock();
        if active.as_ref().is_some_and(|active| active.learns.is_some()) && *source != Source::Learn {
            let _ = volume.end_observation();
        }
        let (mut predictors, new) = new.map_or((Vec::new(), None), |(predictors, new)| (predictors, Some(new)));
        let mut next = |_| predictors.pop().map(|predictor| Box::new(predictor) as Box<dyn Predictor>);
        // With locks held that executors, which may be called then, might want.
        sluice_runtime::calling_nobody(|| volume.set_predictors(&mut next));
        *active = new;
        Ok(())
    }

    /// What they did so far.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let active = self.active.lock();
        let active = active.as_ref()?;
        let learned = active.learns.as_ref().map(Told::learned);
        let (from, traces) = (active.from.clone(), active.traces.clone());
        let mut status = Status { from, learned, traces, ..Status::default() };
        let (mut pays, mut does_not, mut gains, mut told) = (0, 0, 0.0, 0_u32);
        for handle in active.handles.iter() {
            let Counters { known, linked, waits, complete, waited_ns, verdict, gain, alpha, .. } = handle.counters();
            // The same for all engines.
            status.predicted = handle.predicted();
            status.known += known;
            status.linked += linked;
            status.waits += waits;
            status.complete += complete;
            status.waited_ms += waited_ns as f64 / 1e6;
            match verdict {
                _ if !active.device_known => {}
                Verdict::Unknown => {}
                Verdict::Pays => pays += 1,
                Verdict::DoesNotPay => does_not += 1,
            }
            (gains, told) = (gains + gain * 100.0, told + u32::from(gain != 0.0));
            status.alpha += alpha / active.handles.len() as f64;
        }
        status.gain_percent = gains / f64::from(told.max(1));
        status.verdict = match (active.device_known, pays, does_not) {
            (false, ..) => "no profile".to_owned(),
            (true, 0, 0) => "unknown".to_owned(),
            (true, _, 0) => "pays".to_owned(),
            (true, 0, _) => "does not pay".to_owned(),
            (true, ..) => format!("pays on {pays} of {} engines", pays + does_not),
        };
        Some(status)
    }
}

/// Settings for a volume and its device.
///
/// # Errors
/// If the device's profile cannot be read.
fn settings(volume: &impl Ground, options: &Options) -> anyhow::Result<(Settings, TimeToProcess)> {
    let (limits, default) = (volume.limits(), Settings::default());
    let known = device(options)?;
    let device_known = known.is_some();
    let (ttp, parallelism) = known.unwrap_or_else(|| (default_time_to_process(), default.parallelism));
    let settings = Settings {
        margin: options.margin.unwrap_or(default.margin),
        bytes_max: limits.batch_bytes_max,
        requests_max: limits.batch_requests_max,
        parallelism,
        device_known,
        anticipates: limits.anticipation.is_some(),
        ..default
    };
    Ok((settings, ttp))
}

fn from_files(
    volume: &impl Ground,
    paths: &[PathBuf],
    options: &Options,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let (settings, ttp) = settings(volume, options)?;
    let split =
        volume.split().map(|split| Split { request_max: options.request_max.unwrap_or(split.request_max), ..split });
    let (forecast, traces) = combine(paths, settings, split, options.cached)?;
    for (path, note) in traces.iter().flat_map(|used| used.notes.iter().map(|note| (used.path.display(), note))) {
        tracing::warn!("{path}: {note}");
    }
    let forecast = Arc::new(forecast);
    let totals = forecast.totals();
    tracing::info!(
        runs = totals.runs,
        entries = totals.entries,
        requests = totals.requests,
        paired = totals.paired,
        rare = totals.rare,
        "predicting from traces"
    );
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let (predictors, mut active) = start(volume, forecast, settings, ttp, shown.join(", "), false)?;
    active.traces = traces;
    Ok((predictors, active))
}

fn start(
    volume: &impl Ground,
    forecast: Arc<Forecast>,
    settings: Settings,
    ttp: TimeToProcess,
    from: String,
    series: bool,
) -> anyhow::Result<(Vec<TracePredictor>, Active)> {
    let names = volume.paths();
    names.watch();
    let aggregations = Aggregations::new(&forecast, &settings, &ttp, estimate_alpha(&forecast, &ttp));
    let shards = volume.engines();
    let (predictors, handles): (Vec<_>, Vec<_>) = (0..shards)
        .map(|_| {
            let names = Arc::new(GroundNames { paths: names.clone(), series });
            TracePredictor::with_aggregations(forecast.clone(), settings, ttp.clone(), names, aggregations.clone())
        })
        .unzip();
    let (end, ended) = channel();
    let handles = Arc::new(handles);
    let mut active = Active {
        from,
        traces: Vec::new(),
        device_known: settings.device_known,
        learns: None,
        handles,
        names,
        end: Some(end),
        thread: None,
    };
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
