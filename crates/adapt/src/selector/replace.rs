//! What the host does beside the selector: the device is of another kind than was thought; something else was in force.

use super::explain::Why;
use super::held::Aftermath;
use super::live::{Mode, STRADDLING, Selector};
use super::{Arm, Device, Knowledge, Settings};

impl Selector {
    /// The devices are of another kind, or more is known of them, for which there is this to choose from. What each arm has gained stays known: it was
    /// these devices. What is in force goes on. Of another kind as much may be tried as where nothing is known.
    pub fn set_device(&mut self, device: Device, mut arms: Vec<Arm>) {
        if self.arm != self.incumbent {
            // What was tried for a moment is not what is in use.
            self.switch(self.incumbent, Why::TrialEnded, "more is known of the device".to_owned());
        }
        let settings = Settings { device, ..self.settings.clone() };
        // Where nothing moves nobody anticipates: that is another arm then, or one that there is.
        let moves = arms.iter().any(|arm| arm.anticipation);
        let fit = |arm: Arm| Arm { anticipation: arm.anticipation && moves, ..arm };
        let named = self.named.take().map(fit);
        let begins_with = self.begins_with.take().map(fit);
        if let Some(named) = named.as_ref().filter(|named| !arms.contains(named)) {
            arms.push(named.clone());
        }
        // It had what its kind asks for before.
        let Ok(mut new) = Selector::new(settings, arms, &fit(self.arm().clone()), self.prior.take()) else { return };
        let known = std::mem::replace(&mut self.knowledge, Knowledge::new(device));
        // Nothing is known of what there is more to choose from.
        let budget_s = if device == known.device { known.budget_s } else { new.knowledge.budget_s };
        new.knowledge = Knowledge { device, budget_s, ..known };
        (new.named, new.begins_with, new.trial_gain) = (named, begins_with, self.trial_gain);
        new.until = self.until;
        (new.changes, new.trials, new.tried_s) = (self.changes, self.trials, self.tried_s);
        new.change = self.change.take();
        // It goes on, and with it the log of decisions.
        new.records = std::mem::take(&mut self.records);
        // What is kept says what the devices were, and would be set aside at the next start.
        new.unsaved = self.unsaved || !new.knowledge.contexts.is_empty();
        let load = self.last.unwrap_or_default();
        new.last = self.last;
        *self = new;
        self.record(&load, Why::NewDevice, None, device.to_string());
    }

    /// Whether an arm is tried that may be a bad one: no time to be late for the next window.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        matches!(self.mode, Mode::Trial(_))
    }

    /// Something else was in force for a while, and from now on it is the selector's arm again. The window that is being
    /// observed is credited to nobody.
    pub fn interrupted(&mut self) {
        self.before = None;
        self.gathered = Default::default();
        self.unfinished = Default::default();
        self.skip = self.skip.max(STRADDLING);
        self.aftermath = Aftermath::default();
        self.meter.restart();
        self.place.iter_mut().for_each(|place| place.parts.clear());
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{Anticipation, EngineConfig, Time, WindowFeatures};

    use super::super::{Kind, Load, arms};
    use super::*;

    #[test]
    fn where_nothing_moves_nobody_anticipates() {
        let host = EngineConfig {
            anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)),
            ..EngineConfig::default()
        };
        let disk = arms(Device::Disk, &host);
        let mut selector =
            Selector::new(Settings::new(Kind::Bandit, Device::Disk), disk.clone(), &disk[0], None).unwrap();
        let flash = arms(Device::Flash, &EngineConfig::default());
        selector.set_device(Device::Flash, flash.clone());
        assert!(disk[0].anticipation && !selector.arm().anticipation);
        assert_eq!(selector.arm().policy, disk[0].policy, "it goes on");
        assert_eq!(selector.arms.len(), flash.len(), "it is one of those that there are");
    }

    #[test]
    fn what_is_tried_for_a_moment_does_not_stay_because_the_device_is_another() {
        let (host, settings) = (EngineConfig::default(), Settings::new(Kind::Bandit, Device::Unknown));
        let unknown = arms(Device::Unknown, &host);
        let mut selector = Selector::new(settings, unknown.clone(), &unknown[0], None).unwrap();
        selector.begin_trial(1, 0);
        let flash = arms(Device::Flash, &host);
        selector.set_device(Device::Flash, flash);
        assert_eq!((selector.arm(), selector.incumbent), (&unknown[0], selector.arm));
        let log: Vec<Why> = std::iter::from_fn(|| selector.take_record()).map(|record| record.why).collect();
        assert_eq!(log, [Why::Begin, Why::Trial, Why::TrialEnded, Why::NewDevice]);
    }

    #[test]
    fn what_trying_has_taken_is_owed_and_no_more_than_a_minute() {
        let host = EngineConfig::default();
        let disk = arms(Device::Disk, &host);
        let mut selector =
            Selector::new(Settings::new(Kind::Bandit, Device::Disk), disk.clone(), &disk[0], None).unwrap();
        selector.remember(Knowledge { budget_s: -1e6, ..Knowledge::new(Device::Disk) }).unwrap();
        assert_eq!(selector.knowledge().budget_s, -60.0);
        // On flash a second is allowed, and a trial may take five.
        let flash = arms(Device::Flash, &host);
        let settings = Settings::new(Kind::Bandit, Device::Flash);
        let mut selector = Selector::new(settings, flash.clone(), &flash[0], None).unwrap();
        selector.begin_trial(1, 0);
        let load = |at: u64| {
            let (start, end) = (Time(at * 100_000_000), Time((at + 1) * 100_000_000));
            Load::of(&WindowFeatures { start, end, ..WindowFeatures::default() })
        };
        (0..50).for_each(|at| selector.spend(&load(at)));
        assert!((selector.knowledge().budget_s - (1.0 - 5.0 + 0.1)).abs() < 0.05, "{}", selector.knowledge().budget_s);
    }

    #[test]
    fn what_was_learned_before_it_was_known_what_the_devices_are_is_about_them() {
        let context = super::super::Context::parse("r2.q0.d1.f1.a0").unwrap();
        let mut known = Knowledge { budget_s: 15.0, ..Knowledge::new(Device::Unknown) };
        known.enter(context).credit("sjf", 0.3, 0.0);
        let of =
            |known: &Knowledge, device| known.clone().for_device(device).map(|known| (known.device, known.budget_s));
        assert_eq!(of(&known, Device::Flash).unwrap(), (Device::Flash, 1.0));
        assert_eq!(of(&known, Device::Disk).unwrap(), (Device::Disk, 15.0));
        let disk = Knowledge { device: Device::Disk, ..known };
        assert!(of(&disk, Device::Flash).is_err() && of(&disk, Device::Unknown).is_err());
    }

    #[test]
    fn what_was_learned_stays_and_there_is_more_to_choose_from() {
        let host = EngineConfig::default();
        let unknown = arms(Device::Unknown, &host);
        let settings = Settings::new(Kind::Bandit, Device::Unknown);
        let mut selector = Selector::new(settings, unknown.clone(), &unknown[1], None).unwrap();
        let context = super::super::Context::parse("r2.q0.d1.f1.a0").unwrap();
        selector.knowledge.enter(context).credit("sjf", 0.3, 0.0);
        let host = EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..host };
        let disk = arms(Device::Disk, &host);
        selector.set_device(Device::Disk, disk.clone());
        assert_eq!(selector.arm(), &unknown[1]);
        assert!(disk.iter().all(|arm| selector.arms.contains(arm)));
        assert_eq!(selector.knowledge().device, Device::Disk);
        assert!(selector.knowledge().contexts[&context].arms.contains_key("sjf"));
        assert!(selector.knowledge().budget_s > 20.0);
        assert!(selector.take_unsaved(), "what is kept is about other devices");
        let log: Vec<Why> = std::iter::from_fn(|| selector.take_record()).map(|record| record.why).collect();
        assert_eq!(log, [Why::Begin, Why::NewDevice], "it goes on");
        let named = Arm::parse("aioli wait_time=2ms").unwrap();
        let settings = Settings::new(Kind::Bandit, Device::Unknown);
        let mut of_a_user = Selector::new(settings, unknown.clone(), &named, None).unwrap();
        of_a_user.arm = 0;
        (0..2).for_each(|_| of_a_user.set_device(Device::Disk, disk.clone()));
        assert_eq!(of_a_user.arms.iter().filter(|arm| **arm == named).count(), 1, "what was named is there");
        selector.knowledge.budget_s = 7.0;
        selector.set_device(Device::Disk, disk[1..].to_vec());
        assert_eq!(selector.knowledge().budget_s, 7.0, "it is the same device");
    }
}
