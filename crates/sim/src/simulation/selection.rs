//! Servers that choose their algorithm while they run.

use std::collections::BTreeMap;

use sluice_adapt::selector::{self, Arm, Device, Kind, Knowledge, Load, Model, Prior, Settings};
use sluice_core::{Anticipation, EngineConfig, PolicyConfig, WindowFeatures};

use super::Failure;
use super::node::DISK_BYTES_PER_S;
use super::windows::{Selector, Setup};
use crate::scenario::{Place, Scenario};

/// What moving costs a hard disk, unless the scenario says so.
const POSITIONING_NS: u64 = 8_000_000;

/// A selector for each data server. It learns from nothing, unless it remembers or asks a model.
#[derive(Debug)]
pub struct Adaptive {
    settings: Settings,
    /// The shipped model, if it is asked.
    model: Option<Model>,
    servers: BTreeMap<u32, Server>,
    /// What is known before the first window, by server.
    knowledge: BTreeMap<u32, Knowledge>,
}

#[derive(Debug)]
struct Server {
    selector: selector::Selector,
    /// The engine's settings, as the scenario has them.
    host: EngineConfig,
}

impl Adaptive {
    /// For the devices of a scenario.
    ///
    /// # Errors
    /// If there is no such device, or the model was built in damaged.
    pub fn new(scenario: &Scenario) -> Result<Adaptive, Failure> {
        let model = sluice_device::model(&scenario.storage.device, scenario.seed)
            .map_err(|error| Failure::Setup(error.to_string()))?;
        let device = if model.rotates() { Device::Disk } else { Device::Flash };
        let kind = if scenario.storage.selector == Kind::Fixed { Kind::Bandit } else { scenario.storage.selector };
        let model = kind.asks_model().then(Model::shipped).transpose();
        let model = model.map_err(|error| Failure::Setup(error.to_string()))?;
        let memory_below = scenario.storage.cache.is_some();
        let settings = Settings { memory_below, ..Settings::new(kind, device) };
        Ok(Adaptive { settings, model, servers: BTreeMap::new(), knowledge: BTreeMap::new() })
    }

    /// Goes on with what selectors of such servers have learned before.
    #[must_use]
    pub fn remembering(self, knowledge: BTreeMap<u32, Knowledge>) -> Adaptive {
        Adaptive { knowledge, ..self }
    }

    /// The selector of a data server, once it has seen anything.
    pub fn server(&mut self, server: u32) -> Option<&mut selector::Selector> {
        self.servers.get_mut(&server).map(|server| &mut server.selector)
    }
}

impl Server {
    fn new(
        settings: &Settings,
        model: Option<&Model>,
        current: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Server> {
        let mut host = limits.clone();
        if settings.device == Device::Disk && host.anticipation.is_none() {
            host.anticipation = Some(Anticipation::for_device(POSITIONING_NS, DISK_BYTES_PER_S));
        }
        let in_force = Arm::in_force(current.clone(), limits);
        let arms = selector::arms(settings.device, &host);
        let prior = model.map(|model| Box::new(model.clone()) as Box<dyn Prior>);
        let settings = Settings { window_ns: limits.window_ns, ..settings.clone() };
        let selector = selector::Selector::new(settings, arms, &in_force, prior).ok()?;
        Some(Server { selector, host })
    }
}

impl Selector for Adaptive {
    fn window_closed(
        &mut self,
        place: Place,
        features: &WindowFeatures,
        current: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup> {
        let Place::Server(number) = place else { return None };
        if !self.servers.contains_key(&number) {
            let mut server = Server::new(&self.settings, self.model.as_ref(), current, limits)?;
            if let Some(knowledge) = self.knowledge.remove(&number) {
                // That of other devices is of no use.
                let _ = server.selector.remember(knowledge);
            }
            self.servers.insert(number, server);
        }
        let Server { selector, host } = self.servers.get_mut(&number)?;
        let arm = selector.window(&Load::of(features))?;
        Some(Setup { policy: arm.policy.clone(), limits: Some(arm.limits(host)) })
    }
}
