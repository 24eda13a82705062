//! Random programs with Sluicegate and past it: whether any of them loses.
//!
//! Half of them are drawn from a seed that never changes, half from one that is drawn when the benchmark runs, and printed. A program
//! makes the same calls by both names of MPI in one run, so that nothing else differs, in turns of which comes first. What looks like
//! a loss is run again, more often, and each time once more with Sluicegate switched off, which says what a difference is by itself
//! (caches, other load); only that counts: of many programs some look like a loss by chance.

use std::path::Path;

use anyhow::{Context, bail};
use sluice_cli::output;
use sluice_notation::counted;

use super::{Args, Bench, Mpi};
use crate::statistics::{median, quartiles};

/// Of the programs that are always the same.
const SEED: u64 = 18;
/// Runs of a program, and of one that looks like a loss.
const ROUNDS: u32 = 5;
const ROUNDS_AGAIN: u32 = 15;
/// Runs in which a program must be slower for chance to be no explanation (sign test, 1.8 %).
const SLOWER: u32 = 12;
/// What may be lost, and what looks like more than that at first.
const ALLOWED: f64 = 0.02;
/// What opening a file may cost, whatever the program does then: some are over in a quarter of a millisecond.
const OPENING: f64 = 100e-6;
/// Files that a program opens at most.
const FILES: f64 = 2.0;

/// A random program.
#[derive(Debug, serde::Serialize)]
pub(super) struct Program {
    seed: u64,
    mpi: &'static str,
    /// On a volume, whose layout is known, or in a plain directory.
    place: &'static str,
    program: String,
    rounds: u32,
    /// Rounds in which it was slower.
    slower: u32,
    /// Its time, divided by that without Sluicegate (and that by the same where it is off, if it was run again), in the middle of
    /// the rounds.
    ratio: f64,
    /// Seconds without Sluicegate, in the middle of the rounds.
    seconds: f64,
    /// What it loses, if that is not by chance.
    loss: f64,
}

impl Program {
    /// Whether what it loses is no more than what opening its files costs.
    fn is_opening(&self) -> bool {
        (self.ratio - 1.0) * self.seconds < OPENING * FILES
    }
}

/// What came of all of them.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Programs {
    /// Of the second half.
    seed: u64,
    /// Losses first.
    programs: Vec<Program>,
}

impl Programs {
    /// What is lost at worst, but for opening files.
    pub(super) fn worst(&self) -> f64 {
        self.programs.iter().filter(|program| !program.is_opening()).map(|program| program.loss).fold(0.0, f64::max)
    }

    pub(super) fn print(&self) {
        if self.programs.is_empty() {
            return;
        }
        let over = |is_opening: bool| {
            let lose = self.programs.iter().filter(|program| program.loss > ALLOWED);
            lose.filter(|program| program.is_opening() == is_opening).count()
        };
        output::line(format_args!(
            "{} (half of seed {SEED}, half of {}), {} that lose more than {:.0} %, and {} more that do so by less than \
             {:.0} us for each file that they open",
            counted(self.programs.len() as u64, "random program"),
            self.seed,
            over(false),
            ALLOWED * 100.0,
            over(true),
            OPENING * 1e6
        ));
        for program in self.programs.iter().filter(|program| program.loss > 0.0) {
            output::line(format_args!(
                "  {:+.1} % of {:.2} ms, slower in {} of {}: {} {}, {}, seed {}",
                (program.ratio - 1.0) * 100.0,
                program.seconds * 1e3,
                program.slower,
                program.rounds,
                program.mpi,
                program.place,
                program.program,
                program.seed
            ));
        }
        let all = quartiles(self.programs.iter().map(|program| (program.ratio - 1.0) * 100.0).collect());
        let all = all.map(|change| format!("{change:+.1}"));
        output::line(format_args!(
            "  change of time in %: from {} to {}, quartiles {}",
            all[0],
            all[4],
            all[1..4].join(", ")
        ));
    }
}

impl Bench {
    /// Runs `count` random programs, with the MPI libraries and places in turn.
    pub(super) fn random(&self, args: &Args, mpis: &[&Mpi], count: u32) -> anyhow::Result<Programs> {
        let drawn = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = args.random_seed.unwrap_or(drawn.as_secs());
        let mut programs = Vec::new();
        let mount = self.mount(args)?;
        for number in 0..count {
            let mpi = mpis[number as usize % mpis.len()];
            let place = if number / mpis.len() as u32 % 4 == 3 { "directory" } else { "volume" };
            let dir = if place == "volume" { &mount.point } else { self.room.path() };
            let of = if number < count / 2 { SEED } else { seed };
            // Numbers of neighbouring seeds have nothing in common.
            let seed = of.wrapping_mul(1_000_003).wrapping_add(u64::from(number));
            let program = self.random_program(mpi, (place, dir), seed)?;
            output::tell(format_args!(
                "random program {} of {count}: time {:.3} of {:.2} ms, {}",
                number + 1,
                program.ratio,
                program.seconds * 1e3,
                program.program
            ));
            programs.push(program);
        }
        programs.sort_by(|a, b| (b.loss, b.ratio).partial_cmp(&(a.loss, a.ratio)).unwrap_or(std::cmp::Ordering::Equal));
        Ok(Programs { seed, programs })
    }

    fn random_program(&self, mpi: &Mpi, (place, dir): (&'static str, &Path), seed: u64) -> anyhow::Result<Program> {
        let file = dir.join("random");
        let mut what = String::new();
        let mut seconds_without = Vec::new();
        let mut run = |round: u32, is_on: bool| -> anyhow::Result<f64> {
            let with: Option<&[&str]> = if is_on { Some(&["--dualpar", "auto"]) } else { None };
            let mut command = self.launch(mpi, with, "programs");
            command.args(["random", &seed.to_string(), &(round % 2).to_string()]).arg(&file);
            let said = self.runner.run(&mut command)?.out;
            let (name, seconds) = said.trim().rsplit_once(": ").with_context(|| said.clone())?;
            let words: Vec<&str> = seconds.split_whitespace().collect();
            let [with, "s", "with", without, "s", "without"] = words[..] else { bail!("{said}") };
            name.clone_into(&mut what);
            let [with, without] = [with.parse::<f64>()?, without.parse::<f64>()?];
            seconds_without.push(without);
            Ok(with / without)
        };
        let mut ratios = (0..ROUNDS).map(|round| run(round, true)).collect::<anyhow::Result<Vec<f64>>>()?;
        let is_suspect = median(&mut ratios).0 > 1.0 + ALLOWED;
        if is_suspect {
            let again = (0..ROUNDS_AGAIN).map(|round| Ok(run(round, true)? / run(round, false)?));
            ratios = again.collect::<anyhow::Result<Vec<f64>>>()?;
        }
        let _ = std::fs::remove_file(&file);
        let slower = ratios.iter().filter(|&&ratio| ratio > 1.0).count() as u32;
        let ratio = median(&mut ratios).0;
        let loss = if is_suspect && slower >= SLOWER { (ratio - 1.0).max(0.0) } else { 0.0 };
        let rounds = ratios.len() as u32;
        let seconds = median(&mut seconds_without).0;
        Ok(Program { seed, mpi: mpi.name, place, program: what, rounds, slower, ratio, seconds, loss })
    }
}
