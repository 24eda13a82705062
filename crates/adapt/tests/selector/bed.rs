//! A device that is nothing but a table of gains and noise, with a selector.

use std::collections::BTreeMap;

use sluice_adapt::selector::{Arm, Device, Kind, Load, Record, Selector, Settings, arms};
use sluice_core::{Anticipation, EngineConfig, OpFeatures, Time, WindowFeatures};

pub const WINDOW_NS: u64 = 250_000_000;
pub const PER_S: u64 = 1_000_000_000 / WINDOW_NS;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Sum of 12 uniform numbers, less 6: nearly normal.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.share() * bound as f64) as u64
    }
}

/// A workload: what it looks like, and what each arm makes of it.
#[derive(Clone)]
pub struct Workload {
    pub size: u64,
    pub depth: u64,
    pub contiguous: f64,
    pub is_write: bool,
    /// Bytes a second, by arm.
    pub rates: Vec<f64>,
}

impl Workload {
    /// What anticipation brings, an algorithm, and an arm by itself: wider than what the selector takes for usual.
    pub fn drawn(random: &mut Random, arms: &[Arm]) -> Workload {
        let mut between = |width: f64| width * (random.share() * 2.0 - 1.0);
        let anticipation = between(1.5);
        let mut algorithms: BTreeMap<&str, f64> = BTreeMap::new();
        let mut rate = |arm: &Arm| {
            let on = if arm.anticipation { anticipation } else { 0.0 };
            let algorithm = *algorithms.entry(arm.policy.name()).or_insert_with(|| between(0.4));
            50e6 * (on + algorithm + between(0.2)).exp()
        };
        let rates = arms.iter().map(&mut rate).collect();
        Workload { rates, ..Workload::unrelated(random, arms) }
    }

    /// Arms have nothing to do with each other.
    pub fn unrelated(random: &mut Random, arms: &[Arm]) -> Workload {
        let rates = arms.iter().map(|_| 50e6 * (random.share() * 2.0 - 1.0).exp()).collect();
        Workload {
            size: 4096 << (2 * random.below(4)),
            depth: [2, 6, 20, 64][random.below(4) as usize],
            contiguous: [0.05, 0.5, 0.95][random.below(3) as usize],
            is_write: random.below(2) == 0,
            rates,
        }
    }

    pub fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    pub fn window(&self, at: u64, rate: f64) -> WindowFeatures {
        let count = ((rate * 0.25 / self.size as f64) as u64).max(1);
        let op = OpFeatures {
            requests: count,
            bytes: count * self.size,
            distances: count,
            contiguous: self.contiguous,
            completed: count,
            moved: (rate * 0.25) as u64,
            ..OpFeatures::default()
        };
        let ops = if self.is_write { [OpFeatures::default(), op] } else { [op, OpFeatures::default()] };
        WindowFeatures {
            start: Time(at * WINDOW_NS),
            end: Time((at + 1) * WINDOW_NS),
            busy_ns: WINDOW_NS,
            ops,
            outstanding_mean: self.depth as f64,
            outstanding_bytes_mean: (self.depth * self.size) as f64,
            outstanding_reads_mean: if self.is_write { 0.0 } else { self.depth as f64 },
            files: 4,
            apps: 1,
            ..WindowFeatures::default()
        }
    }
}

/// A device with a selector, and its own account of what happens.
pub struct Bed {
    pub selector: Selector,
    pub arms: Vec<Arm>,
    pub random: Random,
    pub noise: f64,
    pub now: u64,
    /// Work done, and what the best arm would have done.
    pub got: f64,
    pub best: f64,
    pub records: Vec<Record>,
}

pub fn host() -> EngineConfig {
    EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..EngineConfig::default() }
}

pub fn bed(device: Device, seed: u64, noise: f64) -> Bed {
    let arms = arms(device, &host());
    let selector = Selector::new(Settings::new(Kind::Bandit, device), arms.clone(), &arms[0], None).unwrap();
    Bed { selector, arms, random: Random(seed), noise, now: 0, got: 0.0, best: 0.0, records: Vec::new() }
}

impl Bed {
    pub fn in_force(&self) -> usize {
        self.arms.iter().position(|arm| arm == self.selector.arm()).unwrap()
    }

    /// One window of a workload.
    pub fn window(&mut self, workload: &Workload) {
        let rate = workload.rates[self.in_force()];
        (self.got, self.best) = (self.got + rate, self.best + workload.best());
        let seen = rate * (self.noise * self.random.normal()).exp();
        self.give(&workload.window(self.now, seen));
    }

    pub fn give(&mut self, window: &WindowFeatures) {
        let _ = self.selector.window(&Load::of(window));
        self.now += 1;
        self.records.extend(std::iter::from_fn(|| self.selector.take_record()));
    }

    pub fn run(&mut self, workload: &Workload, seconds: u64) {
        (0..seconds * PER_S).for_each(|_| self.window(workload));
    }

    /// Work done since the last call, as a share of what the best arm would have done.
    pub fn efficiency(&mut self) -> f64 {
        let share = self.got / self.best;
        (self.got, self.best) = (0.0, 0.0);
        share
    }

    pub fn unrelated(&mut self) -> Workload {
        Workload::unrelated(&mut self.random, &self.arms)
    }

    pub fn workload(&mut self) -> Workload {
        Workload::drawn(&mut self.random, &self.arms)
    }
}
