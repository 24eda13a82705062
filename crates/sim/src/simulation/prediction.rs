//! Predictions: the scenario is simulated a few times to record what data servers receive; then their engines have the
//! production predictor, which knows these recordings.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use sluice_adapt::predictor::{
    Aggregations, Combiner, Forecast, Handle, Names, Settings, TimeToProcess, TracePredictor, estimate_alpha,
};
use sluice_core::{FileId, Op, Request};
use sluice_device::profiler::profile_of_model;
use sluice_trace::{Entry, Meta, Reader, Writer};

use super::processes::Striping;
use super::records::Content;
use super::{Failure, Options, Simulation, run_to_end};
use crate::random::Random;
use crate::scenario::Scenario;

/// What predictions did at all data servers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PredictionCounts {
    /// Requests that were predicted.
    pub linked: u64,
    /// Batches that were held for what was about to come.
    pub waits: u64,
    /// Of these, the ones after which all was there.
    pub complete: u64,
    /// Bytes that joined them.
    pub gained_bytes: u64,
    /// Time waited, in nanoseconds.
    pub waited_ns: u64,
}

impl PredictionCounts {
    pub(super) fn of(handles: &[Handle]) -> PredictionCounts {
        let mut sum = PredictionCounts::default();
        for counters in handles.iter().map(Handle::counters) {
            sum.linked += counters.linked;
            sum.waits += counters.waits;
            sum.complete += counters.complete;
            sum.gained_bytes += counters.gained_bytes;
            sum.waited_ns += counters.waited_ns;
        }
        sum
    }
}

/// The trace of a simulation. Servers are counted from the one that a file begins on, as a volume's traces count them: files
/// begin elsewhere in runs with other seeds.
pub(super) struct Recorder {
    writer: Writer<Vec<u8>>,
    striping: Striping,
}

fn trouble(error: impl std::fmt::Display) -> Failure {
    Failure::Setup(format!("recording for predictions: {error}"))
}

fn path(file: u64) -> Vec<u8> {
    format!("file {file}").into_bytes()
}

impl Recorder {
    pub(super) fn new(striping: Striping) -> Result<Recorder, Failure> {
        let meta = Meta { targets: striping.servers, pieces: true, emulated: true, ..Meta::default() };
        Writer::new(Vec::new(), &meta).map(|writer| Recorder { writer, striping }).map_err(trouble)
    }

    pub(super) fn arrived(&mut self, now: u64, content: &Content) -> Result<(), Failure> {
        let file = self.writer.file(&path(content.file)).map_err(trouble)?;
        let &Content { offset, len, app, server, op, .. } = content;
        let target = self.striping.position(content.file, server);
        self.writer.push(Entry { time: now, file, app, target, op, offset, len }).map_err(trouble)
    }
}

/// The files of a simulation as its recordings name them.
struct Files(Striping);

impl Names for Files {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        Some(path(file.0).into())
    }

    fn part(&self, request: &Request) -> u32 {
        self.0.position(request.file.0, request.target.0)
    }
}

/// What the recordings of several runs of a scenario with other seeds predict.
pub(super) fn forecast(scenario: &Scenario, stop: &AtomicBool) -> Result<Option<Arc<Forecast>>, Failure> {
    if scenario.storage.predict == 0 {
        return Ok(None);
    }
    let mut combiner = Combiner::new(settings(scenario));
    for run in 0..scenario.storage.predict {
        let seed = Random::new(scenario.seed, u64::from(run) << 32).next();
        let mut earlier = Scenario { seed, ..scenario.clone() };
        earlier.storage.predict = 0;
        let mut simulation = Simulation::new(&earlier, Options::default(), None)?;
        simulation.recorder = Some(Recorder::new(simulation.striping)?);
        let simulation = run_to_end(simulation, stop)?;
        if let Some(Recorder { writer, .. }) = simulation.recorder {
            let bytes = writer.finish(0).map_err(trouble)?;
            let mut reader = Reader::new(&bytes[..]).map_err(trouble)?;
            combiner.add(&mut reader).map_err(trouble)?;
        }
    }
    Ok(Some(Arc::new(combiner.finish())))
}

fn settings(scenario: &Scenario) -> Settings {
    let servers = &scenario.servers;
    Settings {
        bytes_max: servers.batch_bytes,
        requests_max: servers.batch_requests,
        anticipates: servers.anticipation_ns > 0,
        ..Settings::default()
    }
}

/// What the data servers' device takes, measured as `sluice profile` measures devices.
fn time_to_process(scenario: &Scenario) -> TimeToProcess {
    static KNOWN: Mutex<Vec<(String, TimeToProcess)>> = Mutex::new(Vec::new());
    let name = &scenario.storage.device;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, ttp)) = known.iter().find(|(known, _)| known == name) {
        return ttp.clone();
    }
    // Scenarios name devices that there are: it can only be one that takes no time.
    let Ok(profile) = profile_of_model(name) else { return Arc::new(|_, _| 0) };
    let ttp: TimeToProcess = Arc::new(move |op, bytes| {
        let op = if op == Op::Read { sluice_device::Op::Read } else { sluice_device::Op::Write };
        profile.random_ns(op, bytes)
    });
    known.push((name.clone(), ttp.clone()));
    ttp
}

/// What data servers predict from.
pub(super) struct Source {
    forecast: Arc<Forecast>,
    settings: Settings,
    ttp: TimeToProcess,
    alpha: f64,
    striping: Striping,
}

impl Source {
    pub(super) fn new(scenario: &Scenario, striping: Striping, forecast: &Arc<Forecast>) -> Source {
        let (settings, ttp) = (settings(scenario), time_to_process(scenario));
        let alpha = estimate_alpha(forecast, &ttp);
        Source { forecast: forecast.clone(), settings, ttp, alpha, striping }
    }

    /// A predictor that has seen nothing yet.
    fn predictor(&self) -> (TracePredictor, Handle) {
        let Source { forecast, settings, ttp, alpha, striping } = self;
        let aggregations = Aggregations::new(forecast, settings, ttp, *alpha);
        let names = Arc::new(Files(*striping));
        TracePredictor::with_aggregations(forecast.clone(), *settings, ttp.clone(), names, aggregations)
    }
}

impl Simulation<'_> {
    /// Gives a data server a predictor, if there is something to predict from: at the start, and after each crash, which the
    /// recordings outlast.
    pub(super) fn predict(&mut self, node: u32) {
        let Some(source) = self.predicts_from.as_ref().filter(|_| self.is_server(node)) else { return };
        let (predictor, handle) = source.predictor();
        self.nodes[node as usize].engine.set_predictor(Some(Box::new(predictor)));
        self.predictions.push(handle);
    }
}
