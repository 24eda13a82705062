//! `sluice demo`: the main job on an embedded default. Four processes interfere on a volume over emulated disks, once
//! for each algorithm and pattern, several times.

mod bed;
mod pattern;
mod plot;
mod report;
pub(crate) mod worker;

use crate::config::{self, ADAPTIVE};
use crate::{output, suggest};
use anyhow::Context;
use bed::{Bed, Outcome};
use indicatif::ProgressBar;
use pattern::{PATTERNS, Pattern};
use report::{Report, Sample};
use sluice_core::{PolicyConfig, policy::table};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use worker::Task;

/// Repetitions, and how many if there is less time than this; ratios are between runs of the same repetition.
const REPETITIONS: usize = 5;
const REPETITIONS_QUICK: usize = 3;
const QUICK: Duration = Duration::from_secs(60);
/// Seconds that it takes by default. A tenth is 21 s for each pattern; with 7 s trials went on in runs that count.
const SECONDS: u64 = 210;
/// The same with --quick, when 2 s are too little to learn much.
const SECONDS_QUICK: u64 = 20;
/// Share of the time in which the selector learns each pattern, the most that is worth it, and how long a run is to be then, in seconds.
const LEARN_SHARE: f64 = 0.1;
const LEARN_MAX: Duration = Duration::from_secs(60);
const LEARN_RUN_S: f64 = 1.0;
/// A pattern runs for so long before it counts under the selector: that sees by windows which one is there.
const LEAD: Duration = Duration::from_millis(700);
/// Most data, in multiples of the least.
const SCALE_MAX: u64 = 16;

/// Shows the algorithms at work: four processes interfere on emulated disks
///
/// Makes a volume striped over four emulated 7,200 rpm disks in a temporary directory, mounts it, and lets four processes
/// of eight threads read and write through the mount in the patterns of the papers, without scheduling (noop) and under
/// each algorithm, and last with algorithms chosen by a selector that learns them first. Checks all data, and removes it. Takes
/// some 210 seconds, with --quick some 40.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Less data: takes some 40 seconds, and shows less
    #[arg(long)]
    quick: bool,
    /// About how long to take, in seconds; all algorithms take some 40 at least [default: 210; with --quick 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Only these algorithms, or adaptive; noop is always there [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = suggest::policies().and(ADAPTIVE))]
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
    /// Log what is decided while the selector learns to this file, for `sluice explain`: appended [default: none]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Start of the random numbers, for the order of the runs and the disks' phases
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sides = sides(&args.policy)?;
    output::check_standard(args.plot.as_deref(), args.json)?;
    [&args.plot, &args.log].into_iter().flatten().try_for_each(|path| output::check_file(path))?;
    if args.log.as_deref().is_some_and(output::is_standard) {
        anyhow::bail!("--log - is no file: decisions are appended to a file, which `sluice explain FILE` reads");
    }
    let stop = crate::interrupt::flag()?;
    let (mut bed, fuse) = make_bed(&args)?;
    let mut shared = match sides.iter().any(Side::is_shared) {
        true => Some(Bed::make(fuse, true, args.in_flight, args.seed)?),
        false => None,
    };
    let budget = Duration::from_secs(args.seconds.unwrap_or(if args.quick { SECONDS_QUICK } else { SECONDS }));
    let mut demo = Demo {
        bed: &mut bed,
        shared: shared.as_mut(),
        log: args.log.clone(),
        stop: &stop,
        writing: 0,
        learned_s: 0.0,
        settled: Duration::ZERO,
        started: Instant::now(),
    };
    let samples = demo.measure(&sides, budget, args.seed)?;
    let learned_s = demo.learned_s;
    drop((bed, shared));
    let Some(samples) = samples else {
        output::tell("interrupted; everything the demo made is removed");
        return Ok(ExitCode::from(130));
    };
    let names: Vec<&'static str> = sides.iter().map(Side::name).collect();
    let report = Report::new(&names, ADAPTIVE, &samples, learned_s, fuse);
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

/// What is compared.
enum Side {
    Fixed(PolicyConfig),
    Adaptive,
}

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Side::Fixed(policy) => policy.name(),
            Side::Adaptive => ADAPTIVE,
        }
    }

    /// It needs one engine over all disks.
    fn is_shared(&self) -> bool {
        matches!(self, Side::Fixed(policy) if policy.info().shared_engine)
    }
}

/// `noop` and those asked for, or all.
fn sides(names: &[String]) -> anyhow::Result<Vec<Side>> {
    let baseline = table().iter().find(|info| info.bypasses_queue).map(|info| info.name);
    let mut all: Vec<&str> = baseline.into_iter().collect();
    match names {
        [] => all.extend(table().iter().map(|info| info.name).chain([ADAPTIVE])),
        names => all.extend(names.iter().map(String::as_str)),
    }
    let mut seen = Vec::new();
    all.retain(|name| {
        !seen.contains(name) && {
            seen.push(name);
            true
        }
    });
    let side = |name| match name {
        ADAPTIVE => Ok(Side::Adaptive),
        name => config::policy_for(name, &[], bed::DISKS).map(Side::Fixed),
    };
    all.into_iter().map(side).collect()
}

/// The bed, and whether it is mounted.
fn make_bed(args: &Args) -> anyhow::Result<(Bed, bool)> {
    if !args.no_fuse {
        match Bed::make(true, false, args.in_flight, args.seed) {
            Ok(bed) => return Ok((bed, true)),
            Err(error) if error.downcast_ref::<sluice_fuse::MountError>().is_some_and(|e| e.is_unsupported()) => {
                output::tell(format_args!("FUSE is not available here ({error:#}); driving the scheduler directly"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((Bed::make(false, false, args.in_flight, args.seed)?, false))
}

struct Demo<'a> {
    bed: &'a mut Bed,
    /// For sides that need one engine over all disks, if there are any.
    shared: Option<&'a mut Bed>,
    /// Where what is decided while the selector learns is logged.
    log: Option<PathBuf>,
    stop: &'a AtomicBool,
    /// Runs so far.
    writing: u64,
    /// Seconds for which the selector has learned.
    learned_s: f64,
    /// How long the disks took to settle.
    settled: Duration,
    started: Instant,
}

impl Demo<'_> {
    /// All runs; `None` if interrupted.
    ///
    /// The selector learns before. The first repetition, with the least data, shows how long the others may be: where there is time for more data, it
    /// does not count.
    fn measure(&mut self, sides: &[Side], budget: Duration, seed: u64) -> anyhow::Result<Option<Vec<Sample>>> {
        let runs = (sides.len() * PATTERNS.len()) as u64;
        let repetitions = if budget < QUICK { REPETITIONS_QUICK } else { REPETITIONS };
        let progress = output::bar(runs * repetitions as u64, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
        let mut random = seed;
        if sides.iter().any(|side| matches!(side, Side::Adaptive)) {
            let each = budget.mul_f64(LEARN_SHARE).min(LEARN_MAX);
            progress.set_message(format!("learning for {:.0} s", (each * PATTERNS.len() as u32).as_secs_f64()));
            if !self.learn(each)? {
                return Ok(None);
            }
            progress.reset_eta();
        }
        let began = Instant::now();
        let Some(mut samples) = self.repetition(sides, 1, 0, &mut random, &progress)? else { return Ok(None) };
        // What goes before the runs that count does not grow with the data.
        let adaptive = sides.iter().filter(|side| matches!(side, Side::Adaptive)).count() as u32;
        let before = LEAD * adaptive * PATTERNS.len() as u32 + self.settled;
        let least = began.elapsed().saturating_sub(before);
        let left = budget.saturating_sub(self.started.elapsed() + before * repetitions as u32);
        let scale = (left.as_secs_f64() / (least.as_secs_f64() * repetitions as f64)) as u64;
        let scale = scale.clamp(1, SCALE_MAX);
        let counted = usize::from(scale == 1);
        if scale > 1 {
            samples.clear();
            progress.set_length(runs * (repetitions as u64 + 1));
            progress.reset_eta();
        }
        for repetition in counted..repetitions {
            match self.repetition(sides, scale, repetition, &mut random, &progress)? {
                Some(more) => samples.extend(more),
                None => return Ok(None),
            }
        }
        progress.finish_and_clear();
        Ok(Some(samples))
    }

    /// Lets the selector, which knows nothing, try out what serves each pattern, for so long each. False if interrupted.
    fn learn(&mut self, each: Duration) -> anyhow::Result<bool> {
        let began = Instant::now();
        let selection = self.bed.choose(self.log.clone())?;
        for pattern in PATTERNS {
            let (mut scale, start) = (1, Instant::now());
            self.bed.prepare(pattern, scale)?;
            while start.elapsed() < each || scale == 1 {
                let Some(outcome) = self.run(false, pattern, scale)? else { return Ok(false) };
                if scale == 1 {
                    let wanted = LEARN_RUN_S.min(each.as_secs_f64()) / outcome.makespan_s;
                    scale = (wanted as u64).clamp(2, SCALE_MAX);
                    self.bed.prepare(pattern, scale)?;
                }
            }
        }
        drop(selection);
        self.bed.stay()?;
        self.learned_s = began.elapsed().as_secs_f64();
        Ok(true)
    }

    /// Every algorithm under every pattern once, in random order.
    fn repetition(
        &mut self,
        sides: &[Side],
        scale: u64,
        repetition: usize,
        random: &mut u64,
        progress: &ProgressBar,
    ) -> anyhow::Result<Option<Vec<Sample>>> {
        for pattern in PATTERNS {
            self.bed.prepare(pattern, scale)?;
            self.shared.as_ref().map_or(Ok(()), |bed| bed.prepare(pattern, scale))?;
        }
        let mut order: Vec<_> = sides.iter().flat_map(|side| PATTERNS.map(|pattern| (side, pattern))).collect();
        shuffle(&mut order, random);
        let mut samples = Vec::with_capacity(order.len());
        for (side, pattern) in order {
            progress.set_message(format!("{} {}", side.name(), pattern.name()));
            let Some(sample) = self.sample(side, pattern, scale, repetition)? else { return Ok(None) };
            samples.push(sample);
            progress.inc(1);
        }
        Ok(Some(samples))
    }

    fn sample(
        &mut self,
        side: &Side,
        pattern: Pattern,
        scale: u64,
        repetition: usize,
    ) -> anyhow::Result<Option<Sample>> {
        let outcome = match side {
            Side::Fixed(policy) => {
                self.on(side.is_shared()).set_policy(policy);
                self.counted(side.is_shared(), pattern, scale)?
            }
            Side::Adaptive => {
                let (_chooses, start) = (self.bed.choose(None)?, Instant::now());
                loop {
                    let outcome = self.run(false, pattern, scale)?;
                    if outcome.is_none() || start.elapsed() >= LEAD {
                        break;
                    }
                }
                self.counted(false, pattern, scale)?
            }
        };
        self.bed.stay()?;
        let (policy, bytes) = (side.name(), pattern.bytes(scale));
        Ok(outcome.map(|outcome| Sample { policy, pattern, repetition, bytes, outcome }))
    }

    fn on(&mut self, shared: bool) -> &mut Bed {
        match &mut self.shared {
            Some(bed) if shared => bed,
            _ => self.bed,
        }
    }

    /// A run that counts; `None` if interrupted.
    fn counted(&mut self, shared: bool, pattern: Pattern, scale: u64) -> anyhow::Result<Option<Outcome>> {
        let began = Instant::now();
        self.on(shared).settle();
        self.settled += began.elapsed();
        self.run(shared, pattern, scale)
    }

    /// One run; `None` if interrupted.
    fn run(&mut self, shared: bool, pattern: Pattern, scale: u64) -> anyhow::Result<Option<Outcome>> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.writing += 1;
        let task = Task { pattern, scale, writing: self.writing };
        match self.on(shared).run(task) {
            Err(_) if self.stop.load(Ordering::Relaxed) => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

/// Fisher and Yates, with a linear congruential generator.
fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, ((*state >> 33) % (last as u64 + 1)) as usize);
    }
}
