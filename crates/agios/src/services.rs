//! What an engine has beside its algorithm: a recording of what it is asked for, and predictions.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sluice_predict::{Options, Predictions, Source};
use sluice_runtime::{Recording, Scheduler};
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
        if let Some(path) = self.records.take() {
            match scheduler.stop_recording() {
                Ok(Recording { dropped: 1.., .. }) => {
                    complain(&format!(
                        "{}: requests are missing: they came faster than they could be written",
                        path.display()
                    ));
                }
                Ok(_) => {}
                Err(error) => complain(&format!("{}: {error}", path.display())),
            }
        }
        // Saves what was learned. To predict nothing is always possible.
        let _ = self.predictions.set(scheduler, &Source::Off, &Options::default());
    }
}

/// Recordings do not replace each other: each has the first number that is free. It is taken by making the file, as the
/// processes of a parallel program begin at the same time.
fn record(scheduler: &Scheduler, before: &str, after: &str) -> Result<PathBuf, String> {
    let free = |number: u32| {
        let path = PathBuf::from(format!("{before}.{number}.{after}"));
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            made => Some(made.map(|_| path.clone()).map_err(|error| format!("{}: {error}", path.display()))),
        }
    };
    let path = (0..u32::MAX).find_map(free).unwrap_or_else(|| Err("every number is taken".into()))?;
    let source = Path::new("/proc/self/exe").read_link().unwrap_or_default().display().to_string();
    let meta = Meta { source, ..Meta::default() };
    scheduler.start_recording(&path, meta).map_err(|error| {
        let _ = std::fs::remove_file(&path);
        format!("{}: {error}", path.display())
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use sluice_core::PolicyConfig;
    use sluice_runtime::SchedulerConfig;

    use super::*;

    fn scheduler() -> Scheduler {
        Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("to-agg").unwrap())).unwrap()
    }

    #[test]
    fn programs_that_begin_together_record_to_files_of_their_own() {
        const PROGRAMS: usize = 6;
        let dir = tempfile::tempdir().unwrap();
        let before = dir.path().join("trace").display().to_string();
        let earlier = format!("{before}.1.slt");
        std::fs::write(&earlier, b"of an earlier run").unwrap();
        let together = Barrier::new(PROGRAMS);
        let program = || {
            let scheduler = scheduler();
            together.wait();
            let path = record(&scheduler, &before, "slt").unwrap();
            scheduler.stop_recording().unwrap();
            path
        };
        let paths: HashSet<PathBuf> = std::thread::scope(|scope| {
            let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(program)).collect();
            programs.into_iter().map(|program| program.join().unwrap()).collect()
        });
        assert_eq!(paths.len(), PROGRAMS);
        assert!(paths.iter().all(|path| sluice_trace::Reader::open(path).is_ok()));
        assert_eq!(std::fs::read(&earlier).unwrap(), b"of an earlier run");
        assert!(record(&scheduler(), &format!("{before}/no/where"), "slt").is_err());
    }
}
