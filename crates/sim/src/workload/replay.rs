//! The requests of one process outside a simulation: to do for real what was simulated.

use sluice_core::Op;

use super::Progress;
use crate::random::Random;
use crate::scenario::{Application, Scenario};

/// A contiguous request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Read or write.
    pub op: Op,
    /// Number of the phase.
    pub phase: usize,
    /// Number of the file among those of the phase.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Computing time before it, in nanoseconds.
    pub think_ns: u64,
}

/// What a process does, request by request; see [`Replay::new`].
#[derive(Debug)]
pub struct Replay<'a> {
    application: &'a Application,
    rank: u32,
    phase: usize,
    round: u32,
    progress: Progress,
    random: Random,
    regions: Vec<(u64, u64)>,
    /// Of the file that the phase appends to, counting only this process.
    end: u64,
}

impl<'a> Replay<'a> {
    /// The requests of process `rank` of an application of the scenario, in the order in which its simulation issues them
    /// (but for waiting at barriers, and for the places of those that append to a file others append to).
    ///
    /// # Panics
    /// If there is no such application, or it has no phases.
    #[must_use]
    pub fn new(scenario: &'a Scenario, application: usize, rank: u32) -> Replay<'a> {
        let before = scenario.applications[..application].iter().map(|app| u64::from(app.processes)).sum::<u64>();
        let application = &scenario.applications[application];
        let mut random = Random::new(scenario.seed, before + u64::from(rank));
        // Drawn as in the simulation, though nobody waits here: what is drawn later depends on it.
        random.below(application.start_spread_ns + 1);
        application.phases[0].computes(&mut random);
        let progress = Progress { requests: 0, bytes: 0 };
        Replay { application, rank, phase: 0, round: 0, progress, random, regions: Vec::new(), end: 0 }
    }
}

impl Iterator for Replay<'_> {
    type Item = Vec<Access>;

    /// The next request: its contiguous parts, which are issued together.
    fn next(&mut self) -> Option<Vec<Access>> {
        loop {
            let phase = self.application.phases.get(self.phase)?;
            let processes = self.application.processes;
            let next = phase.next(
                self.rank,
                processes,
                &mut self.progress,
                &mut self.random,
                &mut self.end,
                &mut self.regions,
            );
            if let Some(next) = next {
                let own = if phase.per_process { self.rank } else { 0 };
                let access = |(&(offset, len), number): (&(u64, u64), usize)| Access {
                    op: next.op,
                    phase: self.phase,
                    file: next.file + own,
                    offset,
                    len,
                    think_ns: if number == 0 { next.think_ns } else { 0 },
                };
                return Some(self.regions.iter().zip(0..).map(access).collect());
            }
            self.progress = Progress { requests: 0, bytes: 0 };
            self.phase += 1;
            if self.phase == self.application.phases.len() {
                self.round += 1;
                if self.round == self.application.repeat {
                    return None;
                }
                self.phase = 0;
            }
            self.application.phases[self.phase].computes(&mut self.random);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::scenario::Plan;
    use crate::simulation::{Options, simulate};

    /// Two phases of 64 requests with random times before them, twice.
    #[test]
    fn a_replay_asks_for_what_its_simulation_does() {
        let phase = "[[application.phase]]\npattern = 'random'\ndata = '4M'\ncompute = '1ms'\ncompute_spread = 0.5\n";
        let text = format!("[[application]]\nrepeat = 2\n{phase}{phase}");
        for seed in ["1", "2", "3"] {
            let settings = [("seed".to_owned(), seed.to_owned())];
            let plan = Plan::parse(&text, "replay", Path::new(""), &settings, &[]).unwrap();
            let scenario = &plan.runs[0].scenario;
            let options = Options { record: true, ..Options::default() };
            let outcome = simulate(scenario, options, &AtomicBool::new(false)).unwrap();
            // The file is all that is on the device, in one piece.
            let served: Vec<u64> = outcome.record.unwrap().path.iter().map(|point| point.address).collect();
            let offsets: Vec<u64> = Replay::new(scenario, 0, 0).flatten().map(|access| access.offset).collect();
            assert_eq!((offsets.len(), &offsets), (256, &served), "seed {seed}");
        }
    }
}
