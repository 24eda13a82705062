//! In the simulator: workloads that change, against every fixed choice and against one that knows each phase.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::selector::{Arm, Device, Why, arms};
use sluice_cli::output;
use sluice_core::{Anticipation, EngineConfig, PolicyConfig, WindowFeatures};
use sluice_sim::scenario::{Place, Plan};
use sluice_sim::{Adaptive, Options, Selector, Setup, simulate, simulate_with};

use super::Args;
use crate::random::SplitMix64;
use crate::statistics::quartiles;

/// Share of what the best arm of each phase gives.
const BAR: f64 = 0.97;
/// Phases of a run, and how many patterns they are of.
const PHASES: usize = 16;
const KINDS: usize = 5;
/// Virtual seconds by which a pattern's rates are found.
const CALIBRATION_S: f64 = 5.0;

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

/// How long phases last when served best, in seconds.
const LENGTHS: [(&str, f64, f64); 3] =
    [("phases of 2 to 5 s", 2.0, 5.0), ("phases of 2 to 30 s", 2.0, 30.0), ("phases of 10 to 30 s", 10.0, 30.0)];

/// A pattern, and its bytes of each process.
type Phase = (usize, u64);

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
    oracle_mb_s: f64,
    best_fixed: String,
    best_fixed_mb_s: f64,
    worst_fixed_mb_s: f64,
    noop_mb_s: f64,
    policy_changes: u64,
    /// Share of the time spent on trying.
    tried: f64,
    /// Virtual seconds.
    seconds: f64,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    /// Of a core, for windows of 250 ms: mean over all windows.
    overhead: f64,
    decision_us: f64,
    windows: u64,
    /// Of all rows, remembering: against the oracle, least and mean.
    worst_of_oracle: f64,
    mean_of_oracle: f64,
}

/// Tells how long choosing takes.
struct Timed {
    adaptive: Adaptive,
    took: Duration,
    windows: u64,
    log: Option<BufWriter<File>>,
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
    log: Option<BufWriter<File>>,
}

/// A device, its arms, and each pattern's bytes of a process in a second, by arm.
struct Bed {
    model: String,
    arms: Vec<Arm>,
    rates: Vec<Vec<f64>>,
    in_flight: u32,
}

impl Bed {
    fn new(model: &str) -> anyhow::Result<Bed> {
        let rotates = sluice_device::model(model.trim_end_matches(CACHED), 1)?.rotates();
        let host =
            EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..Default::default() };
        let (device, in_flight) = if rotates { (Device::Disk, 8) } else { (Device::Flash, 32) };
        let arms = arms(device, &host);
        let mut bed = Bed { model: model.to_owned(), arms, rates: Vec::new(), in_flight };
        for pattern in 0..PATTERNS.len() {
            let of_arm = |arm: &Arm| -> anyhow::Result<f64> {
                let mut data = 256 << 10;
                loop {
                    let seconds = bed.fixed(&[(pattern, data)], arm, 1)?;
                    if seconds >= CALIBRATION_S || data >= 1 << 33 {
                        return Ok(data as f64 / seconds);
                    }
                    data = (data as f64 * (1.2 * CALIBRATION_S / seconds).clamp(2.0, 64.0)) as u64;
                }
            };
            let rates = bed.arms.iter().map(of_arm).collect::<anyhow::Result<Vec<f64>>>()?;
            bed.rates.push(rates);
        }
        Ok(bed)
    }

    fn plan(&self, phases: &[Phase], arm: &Arm, seed: u64) -> anyhow::Result<Plan> {
        let policy = arm.to_string();
        let policy: Vec<&str> = policy.split(' ').filter(|word| !word.starts_with("anticipation=")).collect();
        let anticipation = if arm.anticipation { "8ms" } else { "0s" };
        let (device, cache) = match self.model.strip_suffix(CACHED) {
            Some(device) => (device, "page_cache = 'on'\nmemory = '256M'\n"),
            None => (self.model.as_str(), ""),
        };
        let mut text = format!(
            "seed = {seed}\n[clients]\nnodes = 4\n[network]\nbandwidth = 0\n[servers]\ncount = 1\ndevice = '{device}'\n\
             {cache}policy = '{}'\nanticipation = '{anticipation}'\nin_flight = {}\nwindow = '250ms'\nallocation = 'present'\n\
             [[application]]\nprocesses = 16\n",
            policy.join(" "),
            self.in_flight
        );
        for (pattern, data) in phases {
            text += &format!("[[application.phase]]\ndata = {data}\nbarrier = 'phase'\n{}\n", PATTERNS[*pattern].1);
        }
        Ok(Plan::parse(&text, "adaptivity", Path::new(""), &[], &[])?)
    }

    /// Virtual seconds with an arm from beginning to end.
    fn fixed(&self, phases: &[Phase], arm: &Arm, seed: u64) -> anyhow::Result<f64> {
        let plan = self.plan(phases, arm, seed)?;
        let outcome = simulate(&plan.runs[0].scenario, Options::default(), &AtomicBool::new(false))?;
        Ok(outcome.makespan_ns as f64 * 1e-9)
    }

    /// Phases of a seed, each of about so many seconds with the arm that is best for it.
    fn phases(&self, seed: u64, (least, most): (f64, f64)) -> Vec<Phase> {
        let mut random = SplitMix64(seed);
        let kinds = random.shuffled(PATTERNS.len());
        let mut last = usize::MAX;
        let phase = |_| {
            let mut kind = kinds[(random.next() % KINDS as u64) as usize];
            while kind == last {
                kind = kinds[(random.next() % KINDS as u64) as usize];
            }
            last = kind;
            let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            let best = self.rates[kind].iter().copied().fold(0.0, f64::max);
            (kind, (best * (least + (most - least) * share)) as u64 >> 20 << 20 | 1 << 20)
        };
        (0..PHASES).map(phase).collect()
    }

    /// Virtual seconds with a selector, which may know what another one has learned.
    fn adaptive(&self, phases: &[Phase], seed: u64, own: &mut Timed) -> anyhow::Result<(f64, u64)> {
        let plan = self.plan(phases, &self.arms[0], seed)?;
        let stop = AtomicBool::new(false);
        let outcome = simulate_with(&plan.runs[0].scenario, Options::default(), own, &stop)?;
        Ok((outcome.makespan_ns as f64 * 1e-9, outcome.policy_changes))
    }

    fn row(&self, name: &str, lengths: (f64, f64), seed: u64, costs: &mut Costs) -> anyhow::Result<Row> {
        let phases = self.phases(seed, lengths);
        let mut best_s = 0.0;
        for phase in &phases {
            // An arm that is far from the best of the pattern cannot be the best of the phase.
            let most = self.rates[phase.0].iter().copied().fold(0.0, f64::max);
            let likely = self.arms.iter().zip(&self.rates[phase.0]).filter(|(_, rate)| **rate > 0.9 * most);
            let times =
                likely.map(|(arm, _)| self.fixed(&[*phase], arm, seed)).collect::<anyhow::Result<Vec<f64>>>()?;
            best_s += times.into_iter().fold(f64::INFINITY, f64::min);
        }
        let mut fixed = Vec::new();
        for arm in &self.arms {
            fixed.push((arm.to_string(), self.fixed(&phases, arm, seed)?));
        }
        let adaptive =
            || Adaptive::new(&self.plan(&phases, &self.arms[0], seed)?.runs[0].scenario).map_err(anyhow::Error::from);
        let mut own = Timed { adaptive: adaptive()?, took: Duration::ZERO, windows: 0, log: costs.log.take() };
        let (seconds, policy_changes) = self.adaptive(&phases, seed, &mut own)?;
        if let Some(mut log) = own.log.take() {
            log.flush().context("the log of decisions")?;
        }
        let selector = own.adaptive.server(0).context("no window has closed")?;
        let (told, knowledge) = (selector.explain(), selector.knowledge().clone());
        let again = adaptive()?.remembering([(0, knowledge)].into());
        let mut again = Timed { adaptive: again, took: Duration::ZERO, windows: 0, log: None };
        let (again_s, _) = self.adaptive(&phases, seed, &mut again)?;
        (costs.took, costs.windows) = (costs.took + own.took, costs.windows + own.windows);
        let mb = phases.iter().map(|(_, data)| data * 16).sum::<u64>() as f64 / 1e6;
        let fastest = fixed.iter().min_by(|a, b| a.1.total_cmp(&b.1)).context("no arm")?;
        let slowest = fixed.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let noop = fixed.iter().find(|(name, _)| name == "noop").context("noop is an arm")?;
        Ok(Row {
            workload: name.to_owned(),
            device: self.model.clone(),
            seed,
            real: false,
            adaptive_mb_s: mb / seconds,
            remembering_mb_s: mb / again_s,
            oracle_mb_s: mb / best_s,
            best_fixed: fastest.0.clone(),
            best_fixed_mb_s: mb / fastest.1,
            worst_fixed_mb_s: mb / slowest,
            noop_mb_s: mb / noop.1,
            policy_changes,
            tried: told.tried_s / told.loaded_s.max(1e-9),
            seconds,
        })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let usual: &[&str] = if args.quick {
        &["hdd-7200", "ssd-sata"]
    } else {
        &["hdd-7200", "hdd-7200+cache", "pastel", "graphene", "suno", "edel", "ssd-sata", "nvme"]
    };
    let devices: Vec<&str> =
        if args.device.is_empty() { usual.to_vec() } else { args.device.iter().map(String::as_str).collect() };
    let log =
        args.log.as_ref().map(|path| File::create(path).with_context(|| path.display().to_string())).transpose()?;
    let (mut rows, mut costs) = (Vec::new(), Costs { log: log.map(BufWriter::new), ..Costs::default() });
    for device in devices {
        let bed = Bed::new(device)?;
        if !args.json {
            print_rates(&bed);
        }
        for (name, least, most) in LENGTHS {
            if !args.wants(name) {
                continue;
            }
            for seed in 1..=args.seeds.unwrap_or(10) {
                rows.push(bed.row(name, (least, most), seed, &mut costs)?);
            }
        }
    }
    anyhow::ensure!(!rows.is_empty(), "nothing was measured: --only fits no workload");
    let of_oracle: Vec<f64> = rows.iter().map(|row: &Row| row.remembering_mb_s / row.oracle_mb_s).collect();
    let decision_us = costs.took.as_secs_f64() * 1e6 / costs.windows.max(1) as f64;
    let report = Report {
        overhead: decision_us / 250_000.0,
        decision_us,
        windows: costs.windows,
        worst_of_oracle: of_oracle.iter().copied().fold(f64::INFINITY, f64::min),
        mean_of_oracle: of_oracle.iter().sum::<f64>() / of_oracle.len() as f64,
        rows,
    };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

/// What each arm gives alone: what there is to win.
fn print_rates(bed: &Bed) {
    output::line(format_args!("{} (modelled), each pattern alone with each arm, of the best arm:\n", bed.model));
    for (at, (name, _)) in PATTERNS.iter().enumerate() {
        let best = bed.rates[at].iter().copied().fold(0.0, f64::max);
        let mut ranked: Vec<(&Arm, f64)> = bed.arms.iter().zip(bed.rates[at].iter().map(|rate| rate / best)).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shown: Vec<String> = ranked.iter().map(|(arm, share)| format!("{arm} {share:.2}")).collect();
        output::line(format_args!("  {name}: {:.1} MB/s\n    {}", best * 16.0 / 1e6, shown.join(", ")));
    }
    output::line("");
}

fn print(report: &Report) {
    output::line(format_args!(
        "Simulated: {PHASES} phases of {KINDS} patterns drawn from a seed, 16 processes, one server with the engine of \
         production. Cold: the selector knows nothing at the start; again: what it learned the first time. Cells: least and median \
         of the throughput, as a share.\n"
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
        "\n{:<15}{:<22}{:>6}{:>16}{:>16}{:>16}{:>16}{:>9}{:>8}",
        "device", "workload", "seeds", "oracle, cold", "oracle, again", "fixed, cold", "fixed, again", "noop", "tried"
    ));
    let mut cells: Vec<(&str, &str)> = report.rows.iter().map(|row| (&*row.device, &*row.workload)).collect();
    cells.dedup();
    for (device, workload) in cells {
        let rows: Vec<&Row> =
            report.rows.iter().filter(|row| row.device == device && row.workload == workload).collect();
        let range = |of: fn(&Row) -> f64| {
            let [least, _, middle, ..] = quartiles(rows.iter().map(|row| of(row)).collect());
            format!("{least:.3} {middle:.3}")
        };
        let tried = rows.iter().map(|row| row.tried).sum::<f64>() / rows.len() as f64 * 100.0;
        output::line(format_args!(
            "{device:<15}{workload:<22}{:>6}{:>16}{:>16}{:>16}{:>16}{:>9}{tried:>7.1}%",
            rows.len(),
            range(|row| row.adaptive_mb_s / row.oracle_mb_s),
            range(|row| row.remembering_mb_s / row.oracle_mb_s),
            range(|row| row.adaptive_mb_s / row.best_fixed_mb_s),
            range(|row| row.remembering_mb_s / row.best_fixed_mb_s),
            range(|row| row.adaptive_mb_s / row.noop_mb_s).split(' ').next_back().unwrap_or_default()
        ));
    }
    output::line(format_args!(
        "\nchoosing takes {:.1} us a window ({} windows): {:.4} % of a core with windows of 250 ms",
        report.decision_us,
        report.windows,
        report.overhead * 100.0
    ));
    output::line(format_args!(
        "again (with what was learned the first time): worst {:.3}, mean {:.3} of the oracle\n\nbar: {BAR} of the oracle, again: {}",
        report.worst_of_oracle,
        report.mean_of_oracle,
        if report.worst_of_oracle < BAR { "MISSED" } else { "met" }
    ));
}
