//! What predictions are for.

use std::sync::Arc;

use sluice_adapt::predictor::{Names, series_of};
use sluice_core::{EngineConfig, FileId, Predictor, Request};
use sluice_runtime::{FileNames, Host, Observer, RecordError, Scheduler, Volume};
use sluice_trace::Split;

/// The paths by which files are known in traces. All methods may be called from any thread.
pub trait FilePaths: Send + Sync {
    /// The path of a file as the engines know it, if it has one.
    fn get(&self, file: FileId) -> Option<Arc<[u8]>>;
    /// The part of its file that a request is to, as traces count targets.
    fn part(&self, request: &Request) -> u32 {
        request.target.0
    }
    /// Grows whenever a number stands for another path than before.
    fn changes(&self) -> u64 {
        0
    }
    /// Somebody wants to know from now on.
    fn watch(&self) {}
    /// Takes back a call of [`FilePaths::watch`].
    fn unwatch(&self) {}
}

impl FilePaths for FileNames {
    fn get(&self, file: FileId) -> Option<Arc<[u8]>> {
        FileNames::get(self, file)
    }
    fn part(&self, request: &Request) -> u32 {
        self.position(request.file)
    }
    fn changes(&self) -> u64 {
        FileNames::changes(self)
    }
    fn watch(&self) {
        FileNames::watch(self);
    }
    fn unwatch(&self) {
        FileNames::unwatch(self);
    }
}

/// Files without paths are known by their numbers, as a scheduler's recordings have them.
struct Numbers;

impl FilePaths for Numbers {
    fn get(&self, file: FileId) -> Option<Arc<[u8]>> {
        Some(format!("file {}", file.0).into_bytes().into())
    }
}

/// What has engines whose requests can be predicted.
pub trait Ground {
    /// The settings of its engines.
    fn limits(&self) -> EngineConfig;
    /// How many engines there are.
    fn engines(&self) -> usize;
    /// The paths of its files.
    fn paths(&self) -> Arc<dyn FilePaths>;
    /// How it splits requests; `None` if they come as they are.
    fn split(&self) -> Option<Split>;
    /// Gives each engine a predictor, or none.
    fn set_predictors(&self, make: &mut dyn FnMut(usize) -> Option<Box<dyn Predictor>>);
    /// Tells an observer of every request from now on.
    ///
    /// # Errors
    /// If there is one already, or the system refuses a thread.
    fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError>;
    /// Ends the observation. The observer has heard of everything before.
    ///
    /// # Errors
    /// If there was none.
    fn end_observation(&self) -> Result<(), RecordError>;
}

impl<H: Host> Ground for Volume<H> {
    fn limits(&self) -> EngineConfig {
        Volume::limits(self)
    }
    fn engines(&self) -> usize {
        self.scheduler().shards()
    }
    fn paths(&self) -> Arc<dyn FilePaths> {
        self.names().clone()
    }
    fn split(&self) -> Option<Split> {
        Some(Volume::split(self))
    }
    fn set_predictors(&self, make: &mut dyn FnMut(usize) -> Option<Box<dyn Predictor>>) {
        Volume::set_predictors(self, make);
    }
    fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError> {
        Volume::observe(self, observer)
    }
    fn end_observation(&self) -> Result<(), RecordError> {
        Volume::end_observation(self)
    }
}

impl Ground for Scheduler {
    fn limits(&self) -> EngineConfig {
        Scheduler::limits(self)
    }
    fn engines(&self) -> usize {
        self.shards()
    }
    fn paths(&self) -> Arc<dyn FilePaths> {
        Arc::new(Numbers)
    }
    fn split(&self) -> Option<Split> {
        None
    }
    fn set_predictors(&self, make: &mut dyn FnMut(usize) -> Option<Box<dyn Predictor>>) {
        Scheduler::set_predictors(self, make);
    }
    fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError> {
        Scheduler::observe(self, observer)
    }
    fn end_observation(&self) -> Result<(), RecordError> {
        Scheduler::end_observation(self)
    }
}

/// Paths for a predictor.
pub(crate) struct GroundNames {
    pub(crate) paths: Arc<dyn FilePaths>,
    /// Files are known by their series.
    pub(crate) series: bool,
}

impl Names for GroundNames {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        let path = self.paths.get(file)?;
        Some(if self.series { series_of(&path).into() } else { path })
    }
    fn part(&self, request: &Request) -> u32 {
        self.paths.part(request)
    }
    fn changes(&self) -> u64 {
        self.paths.changes()
    }
}
