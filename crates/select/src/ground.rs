//! Whose configuration is chosen.

use std::sync::Arc;

use sluice_core::{ConfigError, EngineConfig, PolicyConfig, Time, WindowFeatures};
use sluice_runtime::{Host, Monitor, Scheduler, Volume};

/// What has engines whose configuration can be chosen. All methods may be called from any thread.
pub trait Ground: Send + Sync + 'static {
    /// The settings in force.
    fn limits(&self) -> EngineConfig;
    /// The algorithm in force.
    fn policy(&self) -> PolicyConfig;
    /// Changes the algorithm of all engines.
    fn set_policy(&self, policy: &PolicyConfig);
    /// Takes over the *live* settings.
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError>;
    /// How many engines there are.
    fn engines(&self) -> usize;
    /// The last window of an engine that has closed.
    fn window(&self, engine: usize) -> Option<Arc<WindowFeatures>>;
    /// What is to be called when a window has closed ([`Scheduler::on_window`]).
    fn on_window(&self, call: Option<Box<dyn Fn() + Send + Sync>>);
    /// The time by the engines' clock.
    fn now(&self) -> Time;
    /// Lets somebody follow an engine, or nobody; gives back who did ([`Scheduler::set_monitor`]).
    fn set_monitor(&self, engine: usize, monitor: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>>;
    /// Requests so far that no engine has seen ([`Volume::passed_by`]).
    fn passed_by(&self) -> u64;
    /// Stripe size in bytes, where data is striped.
    fn stripe(&self) -> Option<u64>;
    /// What has the engines.
    fn scheduler(&self) -> &Scheduler;
}

impl Ground for Scheduler {
    fn limits(&self) -> EngineConfig {
        Scheduler::limits(self)
    }
    fn policy(&self) -> PolicyConfig {
        Scheduler::policy(self)
    }
    fn set_policy(&self, policy: &PolicyConfig) {
        Scheduler::set_policy(self, policy);
    }
    fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        Scheduler::set_limits(self, limits)
    }
    fn engines(&self) -> usize {
        self.shards()
    }
    fn window(&self, engine: usize) -> Option<Arc<WindowFeatures>> {
        Scheduler::window(self, engine)
    }
    fn on_window(&self, call: Option<Box<dyn Fn() + Send + Sync>>) {
        Scheduler::on_window(self, call);
    }
    fn now(&self) -> Time {
        self.clock().now()
    }
    fn set_monitor(&self, engine: usize, monitor: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>> {
        Scheduler::set_monitor(self, engine, monitor)
    }
    fn passed_by(&self) -> u64 {
        0
    }
    fn stripe(&self) -> Option<u64> {
        None
    }
    fn scheduler(&self) -> &Scheduler {
        self
    }
}

impl<H: Host> Ground for Volume<H> {
    fn limits(&self) -> EngineConfig {
        Volume::limits(self)
    }
    fn policy(&self) -> PolicyConfig {
        Volume::policy(self)
    }
    fn set_policy(&self, policy: &PolicyConfig) {
        Volume::set_policy(self, policy);
    }
    fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        Volume::set_limits(self, limits)
    }
    fn engines(&self) -> usize {
        self.scheduler().shards()
    }
    fn window(&self, engine: usize) -> Option<Arc<WindowFeatures>> {
        self.scheduler().window(engine)
    }
    fn on_window(&self, call: Option<Box<dyn Fn() + Send + Sync>>) {
        self.scheduler().on_window(call);
    }
    fn now(&self) -> Time {
        self.scheduler().clock().now()
    }
    fn set_monitor(&self, engine: usize, monitor: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>> {
        self.scheduler().set_monitor(engine, monitor)
    }
    fn passed_by(&self) -> u64 {
        Volume::passed_by(self)
    }
    fn stripe(&self) -> Option<u64> {
        self.storage().data.layout().stripe()
    }
    fn scheduler(&self) -> &Scheduler {
        Volume::scheduler(self)
    }
}
