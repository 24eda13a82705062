//! How far a calibration is: kept so that one that was interrupted goes on.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_adapt::selector::{Arm, Context, Device, Knowledge, Measured};

use super::measure::PATTERNS;

/// Grows when something means something else.
const VERSION: u32 = 2;

/// What an arm gave under a pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// Work per second, in slices of time.
    rates: Vec<f64>,
    /// What it looked like, and how often.
    looks: BTreeMap<Context, u32>,
    /// Times that it was run.
    pub(super) slots: u32,
}

impl Cell {
    pub(super) fn add(&mut self, rates: &[f64], look: Option<Context>) {
        self.rates.extend(rates);
        if let Some(look) = look {
            *self.looks.entry(look).or_default() += 1;
        }
        self.slots += 1;
    }

    /// Mean work per second; geometric, as selectors reckon.
    pub(super) fn rate(&self) -> Option<f64> {
        let good: Vec<f64> = self.rates.iter().filter(|rate| **rate > 0.0).map(|rate| rate.ln()).collect();
        (!good.is_empty()).then(|| (good.iter().sum::<f64>() / good.len() as f64).exp())
    }
}

/// What it is about: with another of these all begins anew.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    version: u32,
    /// Whose algorithms and classes these are.
    program: String,
    /// Which file system is there.
    file_system: u64,
    pub(super) path: String,
    pub(super) emulate: Option<String>,
    pub(super) direct: bool,
    pub(super) budget_s: f64,
    pub(super) file_bytes: u64,
}

impl Task {
    /// Of the file system at `path`; `emulate`: the model that is emulated there, as text.
    pub(super) fn new(path: &Path, emulate: Option<String>, direct: bool, budget_s: f64, file_bytes: u64) -> Task {
        let file_system = rustix::fs::statvfs(path).map_or(0, |stat| stat.f_fsid);
        let program = crate::version::VERSION.to_owned();
        Task {
            version: VERSION,
            program,
            file_system,
            path: path.display().to_string(),
            emulate,
            direct,
            budget_s,
            file_bytes,
        }
    }
}

/// All that was found so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) task: Task,
    pub(super) spent_s: f64,
    /// The device, as `sluice_adapt::device` writes it.
    pub(super) device: Option<String>,
    /// By pattern and arm.
    pub(super) cells: BTreeMap<String, BTreeMap<String, Cell>>,
}

impl Progress {
    /// What was done before, if it was the same.
    pub(super) fn load(path: Option<&Path>, task: &Task) -> Progress {
        let text = path.and_then(|path| std::fs::read(path).ok());
        // Whatever cannot be read is begun anew: it is a few minutes' work.
        let known = text.and_then(|text| {
            let known = Progress::read(&text);
            if let (None, Some(path)) = (&known, path) {
                tracing::warn!(
                    "how far an earlier call was cannot be read: {} is damaged; all begins anew",
                    path.display()
                );
            }
            known
        });
        let known = known.filter(|known| known.task == *task && (0.0..=task.budget_s).contains(&known.spent_s));
        known.unwrap_or_else(|| Progress { task: task.clone(), ..Progress::default() })
    }

    /// As it is kept: JSON, and its CRC-32 on a line of its own.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("numbers and texts");
        let sum = crc32fast::hash(&text);
        text.extend_from_slice(format!("\n{sum:08x}\n").as_bytes());
        text
    }

    fn read(text: &[u8]) -> Option<Progress> {
        let body = text.len().checked_sub("\n01234567\n".len()).map(|end| &text[..end])?;
        let known: Progress = serde_json::from_slice(body).ok()?;
        (known.to_bytes() == text).then_some(known)
    }

    /// Pattern and arm that come next, of so many rounds; none when all is done.
    pub(super) fn next(&self, arms: &[Arm], rounds: u32) -> Option<(usize, usize)> {
        (0..rounds).find_map(|round| {
            (0..PATTERNS.len()).find_map(|pattern| {
                // Each round begins with another arm, so that none always comes first.
                let mut order = (0..arms.len()).map(|at| (at + round as usize) % arms.len());
                order.find(|arm| self.slots(pattern, &arms[*arm]) <= round).map(|arm| (pattern, arm))
            })
        })
    }

    fn slots(&self, pattern: usize, arm: &Arm) -> u32 {
        let cell = self.cells.get(PATTERNS[pattern].name).and_then(|cells| cells.get(&arm.to_string()));
        cell.map_or(0, |cell| cell.slots)
    }

    /// Slots that were run.
    pub(super) fn done(&self, arms: &[Arm]) -> u32 {
        (0..PATTERNS.len()).flat_map(|pattern| arms.iter().map(move |arm| self.slots(pattern, arm))).sum()
    }

    pub(super) fn cell(&mut self, pattern: usize, arm: &Arm) -> &mut Cell {
        self.cells.entry(PATTERNS[pattern].name.to_owned()).or_default().entry(arm.to_string()).or_default()
    }

    /// As selectors know it. `slice_s`: about the length of a slice.
    pub(super) fn knowledge(&self, device: Device, arms: &[Arm], slice_s: f64) -> Knowledge {
        let mut knowledge = Knowledge::new(device);
        for pattern in &PATTERNS {
            let Some(cells) = self.cells.get(pattern.name) else { continue };
            let measured = |arm: &Arm| {
                let cell = cells.get(&arm.to_string())?;
                let look = cell.looks.iter().max_by_key(|(_, count)| **count).map(|(look, _)| *look);
                Some(Measured { arm: arm.to_string(), look, rates: cell.rates.clone() })
            };
            let measured: Vec<Measured> = arms.iter().filter_map(measured).collect();
            knowledge.measured(slice_s, &measured);
        }
        knowledge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::EngineConfig;

    #[test]
    fn what_was_interrupted_goes_on_where_it_was_and_another_task_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        let task = Task::new(Path::new("/x"), None, false, 60.0, 1 << 20);
        let arms = sluice_adapt::selector::arms(Device::Flash, &EngineConfig::default());
        let mut progress = Progress::load(Some(&path), &task);
        let mut seen = Vec::new();
        while let Some((pattern, arm)) = progress.next(&arms, 2) {
            seen.push((pattern, arm));
            let look = Context::parse(&format!("r{}.q0.d1.f1.a0", pattern % 5));
            let rate = 1e8 * (arm + 1) as f64;
            progress.cell(pattern, &arms[arm]).add(&[rate, rate], look);
            progress.spent_s += 0.5;
            std::fs::write(&path, progress.to_bytes()).unwrap();
            let again = Progress::load(Some(&path), &task);
            assert_eq!(again, progress);
            progress = again;
        }
        assert_eq!(progress.done(&arms), 48);
        let knowledge = progress.knowledge(Device::Flash, &arms, 0.25);
        assert_eq!(knowledge.contexts.len(), 5);
        assert!(knowledge.contexts.values().all(|known| known.best().unwrap().0 == arms[2].to_string()));
        let each = |round: usize| {
            let arms = arms.len();
            (0..PATTERNS.len()).flat_map(move |pattern| (0..arms).map(move |at| (pattern, (at + round) % arms)))
        };
        assert_eq!(seen, each(0).chain(each(1)).collect::<Vec<_>>(), "arms within patterns within rounds");
        assert_eq!(progress.next(&arms, 2), None);
        // Of one that ended in the middle of a slot all others are done, and it comes first.
        progress.cell(3, &arms[1]).slots = 1;
        assert_eq!((progress.next(&arms, 1), progress.next(&arms, 2)), (None, Some((3, 1))));
        progress.cell(3, &arms[1]).slots = 2;
        let other = Task { budget_s: 61.0, ..task.clone() };
        assert_eq!(Progress::load(Some(&path), &other).cells.len(), 0);
        let whole = progress.to_bytes();
        for at in (0..whole.len()).step_by(whole.len() / 200) {
            // Digits become other digits.
            let damaged = [&whole[..at], &[whole[at] ^ 1], &whole[at + 1..]].concat();
            for text in [&damaged, &whole[..at]] {
                std::fs::write(&path, text).unwrap();
                assert_eq!(Progress::load(Some(&path), &task).cells.len(), 0, "at {at}");
            }
        }
        assert_eq!(Progress::load(None, &task).cells.len(), 0);
    }
}
