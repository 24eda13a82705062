//! What an engine has beside its algorithm: a recording of what it is asked for, and predictions.

use std::path::{Path, PathBuf};

use sluice_predict::{Options, Predictions, Source};
use sluice_runtime::Scheduler;
use sluice_trace::Meta;

/// What the configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Names of recordings, before and after their number.
    pub(crate) recordings: Option<(String, String)>,
    /// Traces of earlier runs.
    pub(crate) traces: Vec<PathBuf>,
    /// Where what repeats is kept.
    pub(crate) learned: Option<PathBuf>,
    /// The profile of the device.
    pub(crate) profile: Option<PathBuf>,
}

/// What is running.
#[derive(Default)]
pub(crate) struct Services {
    predictions: Predictions,
    records: Option<PathBuf>,
}

impl Wanted {
    pub(crate) fn is_nothing(&self) -> bool {
        self.recordings.is_none() && self.traces.is_empty() && self.learned.is_none()
    }

    fn source(&self) -> Source {
        match (self.traces.is_empty(), &self.learned) {
            (false, _) => Source::Files(self.traces.clone()),
            (true, Some(_)) => Source::Learn,
            (true, None) => Source::Off,
        }
    }
}

impl Services {
    /// Starts what is wanted. What cannot be had is complained about, and the program goes on without it.
    pub(crate) fn start(scheduler: &Scheduler, wanted: &Wanted, complain: impl Fn(&str)) -> Services {
        let mut services = Services::default();
        if let Some((before, after)) = &wanted.recordings {
            match record(scheduler, before, after) {
                Ok(path) => services.records = Some(path),
                Err(what) => complain(&format!("no trace is recorded: {what}")),
            }
        }
        let (state, profile) = (wanted.learned.clone(), wanted.profile.clone());
        let options = Options { profile, state, ..Options::default() };
        if let Err(error) = services.predictions.set(scheduler, &wanted.source(), &options) {
            complain(&format!("nothing is predicted: {error:#}"));
        }
        services
    }

    /// Ends them. What is submitted from now on they do not see, and nothing queued waits for what was predicted.
    pub(crate) fn end(&mut self, scheduler: &Scheduler, complain: impl Fn(&str)) {
        if let Some(path) = self.records.take()
            && let Err(error) = scheduler.stop_recording()
        {
            complain(&format!("{}: {error}", path.display()));
        }
        // Saves what was learned. To predict nothing is always possible.
        let _ = self.predictions.set(scheduler, &Source::Off, &Options::default());
    }
}

/// Recordings do not replace each other: each has the first number that is free.
fn record(scheduler: &Scheduler, before: &str, after: &str) -> Result<PathBuf, String> {
    let name = |number: u32| PathBuf::from(format!("{before}.{number}.{after}"));
    let path = (0..u32::MAX).map(name).find(|path| !path.exists()).ok_or("every number is taken")?;
    let source = Path::new("/proc/self/exe").read_link().unwrap_or_default().display().to_string();
    let meta = Meta { source, ..Meta::default() };
    scheduler.start_recording(&path, meta).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
