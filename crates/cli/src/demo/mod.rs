//! `sluice demo`: the main job on an embedded default. Four processes interfere on a volume over emulated disks, once
//! for each algorithm and pattern, several times.

mod bed;
mod pattern;
mod plot;
mod report;
pub(crate) mod worker;

use crate::{output, suggest};
use anyhow::Context;
use bed::Bed;
use indicatif::ProgressBar;
use pattern::{PATTERNS, Pattern};
use report::{Report, Sample};
use sluice_core::{PolicyConfig, policy::table};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use worker::Task;

/// Repetitions; ratios are between runs of the same repetition.
const REPETITIONS: usize = 3;
/// Most data, in multiples of the least.
const SCALE_MAX: u64 = 16;

/// Shows the algorithms at work: four processes interfere on emulated disks
///
/// Makes a volume striped over four emulated 7,200 rpm disks in a temporary directory, mounts it, and lets four processes
/// of eight threads read and write through the mount in the patterns of the papers, without scheduling (noop) and under
/// each algorithm. Checks all data, and removes it. Takes less than 90 seconds, with --quick less than 25.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Less data: takes less than 25 seconds, and shows less
    #[arg(long)]
    quick: bool,
    /// About how long to take, in seconds [default: 80; with --quick 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Only these algorithms; noop is always there [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = suggest::policies())]
    policy: Vec<String>,
    /// Do not mount: drive the scheduler directly, with threads instead of processes
    #[arg(long)]
    no_fuse: bool,
    /// Batches at a disk at a time; the others wait in the scheduler. Does not apply to noop
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Draw the result into this SVG file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Start of the random numbers, for the order of the runs and the disks' phases
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let policies = policies(&args.policy)?;
    output::check_standard(args.plot.as_deref(), args.json)?;
    args.plot.as_deref().map_or(Ok(()), output::check_file)?;
    let stop = crate::interrupt::flag()?;
    let (mut bed, fuse) = make_bed(&args)?;
    let budget = Duration::from_secs(args.seconds.unwrap_or(if args.quick { 20 } else { 80 }));
    let mut demo = Demo { bed: &mut bed, stop: &stop, writing: 0, started: Instant::now() };
    let samples = demo.measure(&policies, budget, args.seed)?;
    drop(bed);
    let Some(samples) = samples else {
        output::tell("interrupted; everything the demo made is removed");
        return Ok(ExitCode::from(130));
    };
    let report = Report::new(&policies, &samples, fuse);
    if let Some(path) = &args.plot {
        let svg = plot::draw(&report).context("cannot draw the plot")?;
        output::write_file(path, svg.as_bytes())?;
    }
    if args.json {
        output::pretty_json(&report)?;
    } else if !args.plot.as_deref().is_some_and(output::is_standard) {
        output::text(&report.text(args.in_flight));
        if let Some(path) = &args.plot {
            output::say(format_args!("plot: {}", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `noop` and those asked for, or all.
fn policies(names: &[String]) -> anyhow::Result<Vec<PolicyConfig>> {
    let baseline = table().iter().find(|info| info.bypasses_queue).map(|info| info.name);
    let mut all: Vec<&str> = baseline.into_iter().collect();
    match names {
        [] => all.extend(table().iter().map(|info| info.name)),
        names => all.extend(names.iter().map(String::as_str)),
    }
    let mut seen = Vec::new();
    all.retain(|name| {
        !seen.contains(name) && {
            seen.push(name);
            true
        }
    });
    all.into_iter().map(|name| Ok(PolicyConfig::parse(name)?)).collect()
}

/// The bed, and whether it is mounted.
fn make_bed(args: &Args) -> anyhow::Result<(Bed, bool)> {
    if !args.no_fuse {
        match Bed::make(true, args.in_flight, args.seed) {
            Ok(bed) => return Ok((bed, true)),
            Err(error) if error.downcast_ref::<sluice_fuse::MountError>().is_some_and(|e| e.is_unsupported()) => {
                output::tell(format_args!("FUSE is not available here ({error:#}); driving the scheduler directly"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((Bed::make(false, args.in_flight, args.seed)?, false))
}

struct Demo<'a> {
    bed: &'a mut Bed,
    stop: &'a AtomicBool,
    /// Runs so far.
    writing: u64,
    started: Instant,
}

impl Demo<'_> {
    /// All runs; `None` if interrupted.
    ///
    /// The first repetition, with the least data, shows how long the others may be: where there is time for more data, it
    /// does not count.
    fn measure(
        &mut self,
        policies: &[PolicyConfig],
        budget: Duration,
        seed: u64,
    ) -> anyhow::Result<Option<Vec<Sample>>> {
        let runs = (policies.len() * PATTERNS.len()) as u64;
        let progress = output::bar(runs * REPETITIONS as u64, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
        let mut random = seed;
        let Some(mut samples) = self.repetition(policies, 1, 0, &mut random, &progress)? else { return Ok(None) };
        let (least, left) = (self.started.elapsed(), budget.saturating_sub(self.started.elapsed()));
        let scale = (left.as_secs_f64() / (least.as_secs_f64() * REPETITIONS as f64)) as u64;
        let scale = scale.clamp(1, SCALE_MAX);
        let counted = usize::from(scale == 1);
        if scale > 1 {
            samples.clear();
            progress.set_length(runs * (REPETITIONS as u64 + 1));
        }
        for repetition in counted..REPETITIONS {
            match self.repetition(policies, scale, repetition, &mut random, &progress)? {
                Some(more) => samples.extend(more),
                None => return Ok(None),
            }
        }
        progress.finish_and_clear();
        Ok(Some(samples))
    }

    /// Every algorithm under every pattern once, in random order.
    fn repetition(
        &mut self,
        policies: &[PolicyConfig],
        scale: u64,
        repetition: usize,
        random: &mut u64,
        progress: &ProgressBar,
    ) -> anyhow::Result<Option<Vec<Sample>>> {
        for pattern in PATTERNS {
            self.bed.prepare(pattern, scale)?;
        }
        let mut order: Vec<_> = policies.iter().flat_map(|policy| PATTERNS.map(|pattern| (policy, pattern))).collect();
        shuffle(&mut order, random);
        let mut samples = Vec::with_capacity(order.len());
        for (policy, pattern) in order {
            progress.set_message(format!("{} {}", policy.name(), pattern.name()));
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let Some(sample) = self.sample(policy, pattern, scale, repetition)? else { return Ok(None) };
            samples.push(sample);
            progress.inc(1);
        }
        Ok(Some(samples))
    }

    fn sample(
        &mut self,
        policy: &PolicyConfig,
        pattern: Pattern,
        scale: u64,
        repetition: usize,
    ) -> anyhow::Result<Option<Sample>> {
        self.bed.set_policy(policy);
        self.writing += 1;
        let outcome = match self.bed.run(Task { pattern, scale, writing: self.writing }) {
            Err(_) if self.stop.load(Ordering::Relaxed) => return Ok(None),
            outcome => outcome?,
        };
        Ok(Some(Sample { policy: policy.name(), pattern, repetition, bytes: pattern.bytes(scale), outcome }))
    }
}

/// Fisher and Yates, with a linear congruential generator.
fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, ((*state >> 33) % (last as u64 + 1)) as usize);
    }
}
