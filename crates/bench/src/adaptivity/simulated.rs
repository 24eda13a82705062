//! In the simulator: workloads that change, against every fixed choice and against one that knows each phase.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::selector::{Arm, Device, Knowledge, Why, arms};
use sluice_cli::output;
use sluice_core::{Anticipation, EngineConfig, PolicyConfig, WindowFeatures};
use sluice_notation::counted;
use sluice_sim::scenario::{Place, Plan};
use sluice_sim::{Adaptive, Options, Selector, Setup, simulate_with};

use super::course::{Clairvoyant, Course, Followed, Nobody, Pursuit};
use super::{Args, mixes};
use crate::random::SplitMix64;
use crate::statistics::quartiles;

/// Share of what the best arm of each phase gives.
const BAR: f64 = 0.97;
/// Share of the best arm's rate from which on another one is as good for a pattern.
const AS_GOOD: f64 = 0.97;
/// Windows within which a change is to be followed.
const FOLLOWED: u32 = 2;
/// Phases of a run, and how many patterns they are of.
const PHASES: usize = 16;
const KINDS: usize = 5;
const PROCESSES: u64 = 16;
/// Virtual seconds by which a pattern's rates are found.
const CALIBRATION_S: f64 = 5.0;
/// The same of a mix, of which one group may have few requests.
const CALIBRATION_MIX_S: f64 = 30.0;
/// An engine may idle for a stream for so long, on a device that reads so much in a second.
const ANTICIPATION: (u64, u64) = (8_000_000, 100_000_000);
/// Windows by which selectors choose, as those of mounts.
const WINDOW_MS: u64 = 100;
/// Windows by which a phase's end is seen by whoever knows the arms to come.
const FINE_WINDOW: &str = "10ms";
/// Windows after the one in which a phase has ended until somebody who follows within two acts on it.
const LATE: usize = 1;

/// After a model's name: the server has a page cache over it.
const CACHED: &str = "+cache";

/// What 16 processes do in a phase, as keys of a scenario.
const PATTERNS: [(&str, &str); 8] = [
    ("own files, 64K reads", "files = 'per-process'\nrequest = '64K'"),
    ("shared file, strided 32K reads", "pattern = 'strided'\nrequest = '32K'"),
    ("random 4K reads", "pattern = 'random'\nrequest = '4K'\nfile = 'big'"),
    ("shared file, contiguous 64K writes", "op = 'write'\nrequest = '64K'\nfile = 'out'"),
    ("own files, 256K writes", "op = 'write'\nfiles = 'per-process'\nrequest = '256K'\nfile = 'own-out'"),
    ("strided 8K writes", "op = 'write'\npattern = 'strided'\nrequest = '8K'\nfile = 'matrix'"),
    ("random 64K, reads and writes", "op = 'mixed'\npattern = 'random'\nrequest = '64K'\nfile = 'base'"),
    ("large 1M reads", "request = '1M'\nfile = 'large'"),
];

/// Runs of one kind.
struct Cell {
    name: &'static str,
    /// How long phases last when served best, in seconds.
    least_s: f64,
    most_s: f64,
    /// Each phase has different programs at once.
    is_mixed: bool,
}

const fn cell(name: &'static str, least_s: f64, most_s: f64, is_mixed: bool) -> Cell {
    Cell { name, least_s, most_s, is_mixed }
}

const CELLS: [Cell; 4] = [
    cell("phases of 2 to 5 s", 2.0, 5.0, false),
    cell("phases of 2 to 30 s", 2.0, 30.0, false),
    cell("phases of 10 to 30 s", 10.0, 30.0, false),
    cell("mixes of 5 to 30 s", 5.0, 30.0, true),
];

/// A pattern or, from their number on, a mix; and its bytes of each process, in the mean of all.
type Phase = (usize, u64);

fn name_of(kind: usize) -> &'static str {
    PATTERNS.get(kind).map_or_else(|| mixes::MIXES[kind - PATTERNS.len()].0, |(name, _)| name)
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    workload: String,
    device: String,
    seed: u64,
    real: bool,
    /// From nothing.
    adaptive_mb_s: f64,
    /// The same once more, with what was learned the first time.
    remembering_mb_s: f64,
    /// With what was learned in the run of the seed before, of other phases (of the last seed, where it is the first); none with one seed.
    elsewhere_mb_s: Option<f64>,
    /// The time of each phase alone, on a server that nothing was asked of before, with the arm that is best then.
    oracle_mb_s: f64,
    /// One after the other, as they come: with the best that was found of an arm for each phase. What a phase leaves to the next
    /// one is in it.
    sequence_mb_s: f64,
    /// That sequence, each arm of it from two windows after its phase has begun (the end of the window after the one in which it has): what a selector can have
    /// that knows everything and sees a change by the windows.
    follower_mb_s: f64,
    best_fixed: String,
    best_fixed_mb_s: f64,
    worst_fixed_mb_s: f64,
    noop_mb_s: f64,
    /// There are none in the simulator.
    best_kernel: Option<String>,
    best_kernel_mb_s: Option<f64>,
    policy_changes: u64,
    /// Share of the time spent on trying.
    tried: f64,
    /// Virtual seconds.
    seconds: f64,
    phases: Vec<PhaseRow>,
}

/// Virtual seconds of a phase.
#[derive(Clone, Debug, Serialize)]
struct PhaseRow {
    pattern: &'static str,
    alone_s: f64,
    alone_arm: String,
    sequence_s: f64,
    sequence_arm: String,
    adaptive_s: f64,
    remembering_s: f64,
    /// Again: at the end of which of the phase's windows an arm was in force that is as good as the best one for its pattern alone: 1 is that in which it began; 0: one was in force before; none: it never was.
    followed_windows: Option<u32>,
    /// With each arm from beginning to end of the run.
    fixed_s: BTreeMap<String, f64>,
}

/// Virtual seconds of a run, and of each of its phases.
struct Timing {
    seconds: f64,
    phases: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    /// Of a core: mean over all windows, which are so long.
    overhead: f64,
    window_ms: u64,
    decision_us: f64,
    windows: u64,
    /// Of all rows, remembering: against the oracle, least and mean.
    worst_of_oracle: f64,
    mean_of_oracle: f64,
    /// The same against the best sequence.
    worst_of_sequence: f64,
    mean_of_sequence: f64,
    /// Again: share of the phases, but for the first of each run, in which an arm as good as the best one was in force within two windows.
    followed: f64,
}

/// Tells how long choosing takes.
struct Timed {
    adaptive: Adaptive,
    took: Duration,
    windows: u64,
    log: Option<BufWriter<File>>,
    /// How soon it follows, if that is of interest.
    pursuit: Option<Pursuit>,
}

impl Selector for Timed {
    fn window_closed(
        &mut self,
        place: Place,
        features: &WindowFeatures,
        current: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup> {
        let start = Instant::now();
        let setup = self.adaptive.window_closed(place, features, current, limits);
        self.took += start.elapsed();
        self.windows += 1;
        if let Place::Server(server) = place
            && let Some(selector) = self.adaptive.server(server)
        {
            if let Some(pursuit) = &mut self.pursuit {
                pursuit.see(features, &selector.arm().to_string());
            }
            while let Some(mut record) = selector.take_record() {
                if record.why == Why::Begin {
                    record.text = "emulated devices, simulated".to_owned();
                }
                if let Some(log) = &mut self.log {
                    // A log that cannot be written is noticed at its end.
                    let _ = serde_json::to_writer(&mut *log, &record);
                    let _ = log.write_all(b"\n");
                }
            }
        }
        setup
    }
}

/// What choosing has cost the machine that simulates.
#[derive(Default)]
struct Costs {
    took: Duration,
    windows: u64,
    /// Of the first run from nothing, and of the one after it.
    logs: [Option<BufWriter<File>>; 2],
}

/// A device, its arms, and each pattern's bytes of a process in a second, by arm.
struct Bed {
    model: String,
    arms: Vec<Arm>,
    /// So many of them are what selectors choose from.
    usual: usize,
    rotates: bool,
    rates: Vec<Vec<f64>>,
    in_flight: u32,
    /// By which selectors choose.
    window: String,
    /// For the traces of mixes.
    dir: tempfile::TempDir,
}

impl Bed {
    /// `more`: beside the arms that selectors choose from. `mixed`: with mixes.
    fn new(model: &str, window_ms: u64, more: &[Arm], mixed: bool) -> anyhow::Result<Bed> {
        let rotates = sluice_device::model(model.trim_end_matches(CACHED), 1)?.rotates();
        let host = EngineConfig { anticipation: Some(anticipation()), ..Default::default() };
        let (device, in_flight) = if rotates { (Device::Disk, 8) } else { (Device::Flash, 32) };
        let mut arms = arms(device, &host);
        let usual = arms.len();
        for arm in more {
            anyhow::ensure!(!arms.contains(arm), "--arm {arm}: it is compared in any case, or named twice");
            arms.push(arm.clone());
        }
        let window = format!("{window_ms}ms");
        let dir = tempfile::tempdir()?;
        let mut bed = Bed { model: model.to_owned(), arms, usual, rotates, rates: Vec::new(), in_flight, window, dir };
        let kinds = PATTERNS.len() + if mixed && rotates { mixes::MIXES.len() } else { 0 };
        for pattern in 0..kinds {
            let wanted_s = if pattern < PATTERNS.len() { CALIBRATION_S } else { CALIBRATION_MIX_S };
            let of_arm = |arm: &Arm| -> anyhow::Result<f64> {
                let mut data = 256 << 10;
                loop {
                    let phase = (pattern, data);
                    let seconds = bed.fixed(&[phase], arm, 1)?.seconds;
                    if seconds >= wanted_s || data >= 1 << 33 {
                        return Ok(bytes(&phase) as f64 / PROCESSES as f64 / seconds);
                    }
                    data = (data as f64 * (1.2 * wanted_s / seconds).clamp(2.0, 64.0)) as u64;
                }
            };
            let rates = bed.arms.iter().map(of_arm).collect::<anyhow::Result<Vec<f64>>>()?;
            bed.rates.push(rates);
        }
        Ok(bed)
    }

    fn plan(&self, phases: &[Phase], arm: &Arm, seed: u64, window: &str) -> anyhow::Result<Plan> {
        let policy = arm.to_string();
        let limits = ["anticipation=", "in_flight=", "batch_bytes="];
        let is_limit = |word: &&str| limits.iter().any(|limit| word.starts_with(limit));
        let policy: Vec<&str> = policy.split(' ').filter(|word| !is_limit(word)).collect();
        let batch = arm.batch_bytes.map_or_else(String::new, |bytes| format!("batch_bytes = {bytes}\n"));
        let anticipation = if arm.anticipation { "8ms" } else { "0s" };
        let (device, cache) = match self.model.strip_suffix(CACHED) {
            Some(device) => (device, "page_cache = 'on'\nmemory = '256M'\n"),
            None => (self.model.as_str(), ""),
        };
        let mut text = format!(
            "seed = {seed}\n[clients]\nnodes = 4\n[network]\nbandwidth = 0\n[servers]\ncount = 1\ndevice = '{device}'\n\
             {cache}{batch}policy = '{}'\nanticipation = '{anticipation}'\nin_flight = {}\nwindow = '{window}'\nallocation = 'present'\n\
             [[application]]\nprocesses = {PROCESSES}\n",
            policy.join(" "),
            arm.in_flight.unwrap_or(self.in_flight)
        );
        for (kind, data) in phases {
            let what = match PATTERNS.get(*kind) {
                Some((_, keys)) => format!("data = {data}\n{keys}"),
                None => mixes::keys(self.dir.path(), kind - PATTERNS.len(), data * PROCESSES)?,
            };
            text += &format!("[[application.phase]]\nbarrier = 'phase'\n{what}\n");
        }
        Ok(Plan::parse(&text, "adaptivity", self.dir.path(), &[], &[])?)
    }

    /// With an arm from beginning to end.
    fn fixed(&self, phases: &[Phase], arm: &Arm, seed: u64) -> anyhow::Result<Timing> {
        let mut followed = Followed { course: course(phases), who: &mut Nobody };
        let makespan_s = self.run(&self.plan(phases, arm, seed, &self.window)?, &mut followed)?.0;
        Ok(Timing { seconds: makespan_s, phases: followed.course.seconds(makespan_s) })
    }

    /// With an arm for each phase.
    fn sequence(&self, phases: &[Phase], arms: &[usize], seed: u64) -> anyhow::Result<Timing> {
        self.told(phases, arms, seed, FINE_WINDOW, 0)
    }

    /// With an arm for each phase, by windows so long and so many windows late.
    fn told(&self, phases: &[Phase], arms: &[usize], seed: u64, window: &str, late: usize) -> anyhow::Result<Timing> {
        let arms: Vec<&Arm> = arms.iter().map(|at| &self.arms[*at]).collect();
        let plan = self.plan(phases, arms[0], seed, window)?;
        let host = EngineConfig {
            anticipation: Some(anticipation()),
            in_flight_max: self.in_flight,
            ..EngineConfig::default()
        };
        let mut who = Clairvoyant::new(course(phases), arms, host, late);
        let makespan_s = self.run(&plan, &mut who)?.0;
        Ok(Timing { seconds: makespan_s, phases: who.course().seconds(makespan_s) })
    }

    /// Virtual seconds, and how often the algorithm was changed.
    fn run(&self, plan: &Plan, who: &mut dyn Selector) -> anyhow::Result<(f64, u64)> {
        let outcome = simulate_with(&plan.runs[0].scenario, Options::default(), who, &AtomicBool::new(false))?;
        Ok((outcome.makespan_ns as f64 * 1e-9, outcome.policy_changes))
    }

    /// Phases of a seed, each of about so many seconds with the arm that is best for it.
    fn phases(&self, seed: u64, cell: &Cell) -> Vec<Phase> {
        let Cell { least_s: least, most_s: most, is_mixed, .. } = *cell;
        let mut random = SplitMix64(seed);
        let (first, count) = if is_mixed { (PATTERNS.len(), mixes::MIXES.len()) } else { (0, PATTERNS.len()) };
        let kinds: Vec<usize> = random.shuffled(count).into_iter().map(|kind| first + kind).collect();
        let mut last = usize::MAX;
        let phase = |_| {
            let mut kind = kinds[(random.next() % KINDS as u64) as usize];
            while kind == last {
                kind = kinds[(random.next() % KINDS as u64) as usize];
            }
            last = kind;
            let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            let best = self.most(kind);
            (kind, (best * (least + (most - least) * share)) as u64 >> 20 << 20 | 1 << 20)
        };
        (0..PHASES).map(phase).collect()
    }

    /// With a selector, which may know what another one has learned; and how often it changed the algorithm.
    fn adaptive(&self, phases: &[Phase], seed: u64, own: &mut Timed) -> anyhow::Result<(Timing, u64)> {
        let plan = self.plan(phases, &self.arms[0], seed, &self.window)?;
        let mut followed = Followed { course: course(phases), who: own };
        let (seconds, changes) = self.run(&plan, &mut followed)?;
        Ok((Timing { seconds, phases: followed.course.seconds(seconds) }, changes))
    }

    /// The arm that is best for each phase alone, and its time.
    fn alone(&self, phases: &[Phase], seed: u64) -> anyhow::Result<Vec<(usize, f64)>> {
        let best = |phase: &Phase| {
            // An arm that is far from the best of the pattern cannot be the best of the phase.
            let rates = &self.rates[phase.0];
            let most = rates.iter().copied().fold(0.0, f64::max);
            let likely = (0..self.arms.len()).filter(|at| rates[*at] > 0.9 * most);
            let time = |at: usize| Ok((at, self.fixed(&[*phase], &self.arms[at], seed)?.seconds));
            let times = likely.map(time).collect::<anyhow::Result<Vec<(usize, f64)>>>()?;
            times.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).context("no arm")
        };
        phases.iter().map(best).collect()
    }

    /// The best arms for the phases as they come one after the other, as far as is known: those that are best alone, or those under
    /// which the phase was shortest when the whole run had that arm, or of each phase what of both was better there. There are too
    /// many sequences to try them all.
    fn best_sequence(
        &self,
        phases: &[Phase],
        alone: &[(usize, f64)],
        fixed: &[Timing],
        seed: u64,
    ) -> anyhow::Result<(Vec<usize>, Timing)> {
        let shortest = |phase: usize| {
            let by_time = |a: &usize, b: &usize| fixed[*a].phases[phase].total_cmp(&fixed[*b].phases[phase]);
            (0..self.arms.len()).min_by(by_time).unwrap_or(0)
        };
        let by_run: Vec<usize> = (0..phases.len()).map(shortest).collect();
        let by_phase: Vec<usize> = alone.iter().map(|(at, _)| *at).collect();
        let one = self.sequence(phases, &by_run, seed)?;
        let two = self.sequence(phases, &by_phase, seed)?;
        // What is best in one of them need not be in the other: where an arm begins matters.
        let better = |phase: usize| if one.phases[phase] < two.phases[phase] { by_run[phase] } else { by_phase[phase] };
        let by_both: Vec<usize> = (0..phases.len()).map(better).collect();
        let three = self.sequence(phases, &by_both, seed)?;
        let all = [(by_run, one), (by_phase, two), (by_both, three)];
        all.into_iter().min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds)).context("three")
    }

    /// The rate of the best arm that may be chosen for a pattern.
    fn most(&self, kind: usize) -> f64 {
        self.rates[kind][..self.usual].iter().copied().fold(0.0, f64::max)
    }

    /// Those that are as good.
    fn good(&self, kind: usize) -> Vec<String> {
        let most = self.most(kind);
        let arms = self.arms.iter().zip(&self.rates[kind]).take(self.usual);
        arms.filter(|(_, rate)| **rate >= AS_GOOD * most).map(|(arm, _)| arm.to_string()).collect()
    }

    /// Those of another seed are not needed any more.
    fn forget_traces(&self) -> anyhow::Result<()> {
        let mut files = std::fs::read_dir(self.dir.path())?;
        Ok(files.try_for_each(|file| std::fs::remove_file(file?.path()))?)
    }

    /// A row, and what was learned from nothing.
    fn row(&self, cell: &Cell, seed: u64, costs: &mut Costs) -> anyhow::Result<(Row, Knowledge)> {
        let phases = self.phases(seed, cell);
        self.forget_traces()?;
        let alone = self.alone(&phases, seed)?;
        let fixed =
            self.arms.iter().map(|arm| self.fixed(&phases, arm, seed)).collect::<anyhow::Result<Vec<Timing>>>()?;
        let (arms, sequence) = self.best_sequence(&phases, &alone, &fixed, seed)?;
        let follower = self.told(&phases, &arms, seed, &self.window, LATE)?;
        let mut own = self.selector(&phases, seed, None, costs.logs[0].take())?;
        let (cold, policy_changes) = self.adaptive(&phases, seed, &mut own)?;
        let selector = own.adaptive.server(0).context("no window has closed")?;
        let (told, knowledge) = (selector.explain(), selector.knowledge().clone());
        let mut again = self.selector(&phases, seed, Some(&knowledge), costs.logs[1].take())?;
        again.pursuit = Some(Pursuit::new(course(&phases), phases.iter().map(|(kind, _)| self.good(*kind)).collect()));
        let (remembering, _) = self.adaptive(&phases, seed, &mut again)?;
        let followed = again.pursuit.take().map(|pursuit| pursuit.windows).unwrap_or_default();
        for log in [own.log.as_mut(), again.log.as_mut()].into_iter().flatten() {
            log.flush().context("the log of decisions")?;
        }
        (costs.took, costs.windows) = (costs.took + own.took, costs.windows + own.windows);
        let mb = phases.iter().map(bytes).sum::<u64>() as f64 / 1e6;
        let seconds = |at: &usize| fixed[*at].seconds;
        let fastest = (0..fixed.len()).min_by(|a, b| seconds(a).total_cmp(&seconds(b))).context("no arm")?;
        let slowest = fixed.iter().map(|timing| timing.seconds).fold(0.0, f64::max);
        let noop = self.arms.iter().position(|arm| arm.to_string() == "noop").context("noop is an arm")?;
        let phase = |(at, (kind, _)): (usize, &Phase)| PhaseRow {
            pattern: name_of(*kind),
            alone_s: alone[at].1,
            alone_arm: self.arms[alone[at].0].to_string(),
            sequence_s: sequence.phases[at],
            sequence_arm: self.arms[arms[at]].to_string(),
            adaptive_s: cold.phases[at],
            remembering_s: remembering.phases[at],
            followed_windows: followed[at],
            fixed_s: self.arms.iter().zip(&fixed).map(|(arm, timing)| (arm.to_string(), timing.phases[at])).collect(),
        };
        let row = Row {
            workload: cell.name.to_owned(),
            device: self.model.clone(),
            seed,
            real: false,
            adaptive_mb_s: mb / cold.seconds,
            remembering_mb_s: mb / remembering.seconds,
            elsewhere_mb_s: None,
            oracle_mb_s: mb / alone.iter().map(|(_, seconds)| seconds).sum::<f64>(),
            sequence_mb_s: mb / sequence.seconds.min(fixed[fastest].seconds),
            follower_mb_s: mb / follower.seconds,
            best_fixed: self.arms[fastest].to_string(),
            best_fixed_mb_s: mb / fixed[fastest].seconds,
            worst_fixed_mb_s: mb / slowest,
            noop_mb_s: mb / fixed[noop].seconds,
            best_kernel: None,
            best_kernel_mb_s: None,
            policy_changes,
            tried: told.tried_s / told.loaded_s.max(1e-9),
            seconds: cold.seconds,
            phases: phases.iter().enumerate().map(phase).collect(),
        };
        Ok((row, knowledge))
    }

    /// A row of each seed.
    fn rows(&self, cell: &Cell, seeds: impl Iterator<Item = u64>, costs: &mut Costs) -> anyhow::Result<Vec<Row>> {
        let drawn = seeds.map(|seed| self.row(cell, seed, costs)).collect::<anyhow::Result<Vec<_>>>()?;
        let (mut rows, learned): (Vec<Row>, Vec<Knowledge>) = drawn.into_iter().unzip();
        if rows.len() > 1 {
            let before = learned.iter().cycle().skip(learned.len() - 1);
            for (row, knowledge) in rows.iter_mut().zip(before) {
                let phases = self.phases(row.seed, cell);
                self.forget_traces()?;
                let mut elsewhere = self.selector(&phases, row.seed, Some(knowledge), None)?;
                let (timing, _) = self.adaptive(&phases, row.seed, &mut elsewhere)?;
                row.elsewhere_mb_s = Some(phases.iter().map(bytes).sum::<u64>() as f64 / 1e6 / timing.seconds);
            }
        }
        Ok(rows)
    }

    fn selector(
        &self,
        phases: &[Phase],
        seed: u64,
        knows: Option<&Knowledge>,
        log: Option<BufWriter<File>>,
    ) -> anyhow::Result<Timed> {
        let plan = self.plan(phases, &self.arms[0], seed, &self.window)?;
        let adaptive = Adaptive::new(&plan.runs[0].scenario)?;
        let adaptive = match knows {
            Some(knowledge) => adaptive.remembering([(0, knowledge.clone())].into()),
            None => adaptive,
        };
        Ok(Timed { adaptive, took: Duration::ZERO, windows: 0, log, pursuit: None })
    }
}

fn anticipation() -> Anticipation {
    Anticipation::for_device(ANTICIPATION.0, ANTICIPATION.1)
}

/// Of all processes.
fn bytes((kind, data): &Phase) -> u64 {
    let about = data * PROCESSES;
    if *kind < PATTERNS.len() { about } else { mixes::bytes(kind - PATTERNS.len(), about) }
}

fn course(phases: &[Phase]) -> Course {
    Course::new(phases.iter().map(bytes))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let usual: &[&str] = if args.quick {
        &["hdd-7200", "ssd-sata"]
    } else {
        &["hdd-7200", "hdd-7200+cache", "pastel", "graphene", "suno", "edel", "ssd-sata", "nvme"]
    };
    let devices: Vec<&str> =
        if args.device.is_empty() { usual.to_vec() } else { args.device.iter().map(String::as_str).collect() };
    let names = CELLS.map(|cell| cell.name);
    let wanted = || CELLS.iter().filter(|cell| args.wants(cell.name));
    anyhow::ensure!(
        wanted().next().is_some(),
        "--only {}: fits none of these: {}",
        args.only.join(", "),
        names.join(", ")
    );
    let more = args.arm.iter().map(|arm| Arm::parse(arm)).collect::<Result<Vec<_>, _>>().context("--arm")?;
    let window_ms = args.window.unwrap_or(WINDOW_MS);
    let (mut rows, mut costs) = (Vec::new(), Costs::default());
    if let Some(path) = &args.log {
        let create = |path: &Path| File::create(path).map(BufWriter::new).with_context(|| path.display().to_string());
        costs.logs = [Some(create(path)?), Some(create(&PathBuf::from(format!("{}.again", path.display())))?)];
    }
    for device in devices {
        let bed = Bed::new(device, window_ms, &more, wanted().any(|cell| cell.is_mixed))?;
        if !args.json {
            print_rates(&bed);
        }
        // Where nothing moves it makes no difference who is served beside whom.
        for cell in wanted().filter(|cell| bed.rotates || !cell.is_mixed) {
            let seeds = args.first_seed..args.first_seed + args.seeds.unwrap_or(10);
            rows.extend(bed.rows(cell, seeds, &mut costs)?);
        }
    }
    anyhow::ensure!(!rows.is_empty(), "mixes are about devices with an arm to move, and there is none of these");
    let of_oracle: Vec<f64> = rows.iter().map(|row: &Row| row.remembering_mb_s / row.oracle_mb_s).collect();
    let of_sequence: Vec<f64> = rows.iter().map(|row: &Row| row.remembering_mb_s / row.sequence_mb_s).collect();
    let decision_us = costs.took.as_secs_f64() * 1e6 / costs.windows.max(1) as f64;
    let report = Report {
        overhead: decision_us / (window_ms * 1_000) as f64,
        window_ms,
        decision_us,
        windows: costs.windows,
        worst_of_oracle: of_oracle.iter().copied().fold(f64::INFINITY, f64::min),
        mean_of_oracle: of_oracle.iter().sum::<f64>() / of_oracle.len() as f64,
        worst_of_sequence: of_sequence.iter().copied().fold(f64::INFINITY, f64::min),
        mean_of_sequence: of_sequence.iter().sum::<f64>() / of_sequence.len() as f64,
        followed: followed(&rows).share(),
        rows,
    };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

/// How soon changes were followed.
struct Following {
    phases: usize,
    in_time: usize,
    never: usize,
    /// Of these, where what was in force before was not as good.
    needed: usize,
    needed_in_time: usize,
    /// Windows that nine of ten of the latter took at most, of those that were followed at all.
    late: u32,
}

impl Following {
    fn share(&self) -> f64 {
        self.in_time as f64 / self.phases.max(1) as f64
    }
}

fn followed<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Following {
    let all: Vec<Option<u32>> =
        rows.into_iter().flat_map(|row| row.phases.iter().skip(1).map(|phase| phase.followed_windows)).collect();
    let is_in_time = |windows: &&Option<u32>| windows.is_some_and(|windows| windows <= FOLLOWED);
    let needed: Vec<Option<u32>> = all.iter().copied().filter(|windows| *windows != Some(0)).collect();
    let mut windows: Vec<u32> = needed.iter().copied().flatten().collect();
    windows.sort_unstable();
    Following {
        phases: all.len(),
        in_time: all.iter().filter(is_in_time).count(),
        never: all.iter().filter(|windows| windows.is_none()).count(),
        needed: needed.len(),
        needed_in_time: needed.iter().filter(is_in_time).count(),
        late: windows.get((windows.len() * 9).div_ceil(10).saturating_sub(1)).copied().unwrap_or(0),
    }
}

/// What each arm gives alone: what there is to win.
fn print_rates(bed: &Bed) {
    output::line(format_args!("{} (modelled), each pattern alone with each arm, of the best arm:\n", bed.model));
    for (kind, rates) in bed.rates.iter().enumerate() {
        let (name, best) = (name_of(kind), rates.iter().copied().fold(0.0, f64::max));
        let mut ranked: Vec<(&Arm, f64)> = bed.arms.iter().zip(rates.iter().map(|rate| rate / best)).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shown: Vec<String> = ranked.iter().map(|(arm, share)| format!("{arm} {share:.2}")).collect();
        output::line(format_args!("  {name}: {:.1} MB/s\n    {}", best * PROCESSES as f64 / 1e6, shown.join(", ")));
    }
    output::line("");
}

fn print(report: &Report) {
    output::line(format_args!(
        "Simulated: {PHASES} phases of {KINDS} patterns, or mixes of patterns at once, drawn from a seed, 16 processes, one server with the engine of \
         production. Cold: the selector knows nothing at the start; again: what it learned the first time; elsewhere: what it learned in the run of \
         another seed. Cells: least and median \
         of the throughput, as a share: of the oracle, which has the best arm of each phase alone; of the sequence, the best that was \
         found of arms for the phases as they come, each with what the one before has left to it; of the best fixed arm. Follower: \
         that sequence, by somebody who sees a change by two windows, as a share of the oracle.\n"
    ));
    let lost = |row: &&Row| row.adaptive_mb_s < row.best_fixed_mb_s || row.adaptive_mb_s < row.noop_mb_s;
    output::line("Lost against the best fixed configuration of the run (in hindsight), or against noop:");
    for row in report.rows.iter().filter(lost) {
        output::line(format_args!(
            "  {}, {}, seed {}: {:.1} MB/s; {} {:.1}, noop {:.1}",
            row.device, row.workload, row.seed, row.adaptive_mb_s, row.best_fixed, row.best_fixed_mb_s, row.noop_mb_s
        ));
    }
    output::line(format_args!(
        "\n{:<15}{:<22}{:>6}{:>16}{:>16}{:>18}{:>16}{:>16}{:>16}{:>16}{:>16}{:>9}{:>8}",
        "device",
        "workload",
        "seeds",
        "oracle, cold",
        "oracle, again",
        "oracle, elsewhere",
        "follower",
        "sequence, cold",
        "sequence, again",
        "fixed, cold",
        "fixed, again",
        "noop",
        "tried"
    ));
    let mut cells: Vec<(&str, &str)> = report.rows.iter().map(|row| (&*row.device, &*row.workload)).collect();
    cells.dedup();
    for (device, workload) in cells.iter().copied() {
        let rows: Vec<&Row> =
            report.rows.iter().filter(|row| row.device == device && row.workload == workload).collect();
        let range = |of: fn(&Row) -> f64| {
            let [least, _, middle, ..] = quartiles(rows.iter().map(|row| of(row)).collect());
            format!("{least:.3} {middle:.3}")
        };
        let tried = rows.iter().map(|row| row.tried).sum::<f64>() / rows.len() as f64 * 100.0;
        output::line(format_args!(
            "{device:<15}{workload:<22}{:>6}{:>16}{:>16}{:>18}{:>16}{:>16}{:>16}{:>16}{:>16}{:>9}{tried:>7.1}%",
            rows.len(),
            range(|row| row.adaptive_mb_s / row.oracle_mb_s),
            range(|row| row.remembering_mb_s / row.oracle_mb_s),
            if rows.len() > 1 {
                range(|row| row.elsewhere_mb_s.unwrap_or(0.0) / row.oracle_mb_s)
            } else {
                "-".to_owned()
            },
            range(|row| row.follower_mb_s / row.oracle_mb_s),
            range(|row| row.adaptive_mb_s / row.sequence_mb_s),
            range(|row| row.remembering_mb_s / row.sequence_mb_s),
            range(|row| row.adaptive_mb_s / row.best_fixed_mb_s),
            range(|row| row.remembering_mb_s / row.best_fixed_mb_s),
            range(|row| row.adaptive_mb_s / row.noop_mb_s).split(' ').next_back().unwrap_or_default()
        ));
    }
    output::line(
        "\nAgain: changes of the phase by the end of whose second window (the first is that in which it began) a configuration as good as the best \
         one for its pattern was in force; it may be one that is tried, or not stay. The second share: where what was in force before was not as good.",
    );
    for (device, workload) in cells {
        let Following { phases, in_time, never, needed, needed_in_time, late } =
            followed(report.rows.iter().filter(|row| row.device == device && row.workload == workload));
        output::line(format_args!(
            "{device:<15}{workload:<22}{in_time:>5} of {phases}, {needed_in_time} of {needed}, nine of ten that were followed within {late} windows; never: {never}"
        ));
    }
    output::line(format_args!(
        "\nchoosing takes {:.1} us a window ({}): {:.4} % of a core with windows of {} ms",
        report.decision_us,
        counted(report.windows, "window"),
        report.overhead * 100.0,
        report.window_ms
    ));
    output::line(format_args!(
        "again (with what was learned the first time): worst {:.3}, mean {:.3} of the oracle, worst {:.3}, mean {:.3} of the \
         sequence\n\nbar: {BAR} of the oracle, again: {}",
        report.worst_of_oracle,
        report.mean_of_oracle,
        report.worst_of_sequence,
        report.mean_of_sequence,
        if report.worst_of_oracle < BAR { "MISSED" } else { "met" }
    ));
}
