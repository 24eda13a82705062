//! How fast the council's bandits find the best window, against the paper's.
//!
//! As in the paper (Bez et al. 2019, V): learning is simulated by drawing from what was measured of each situation and window.
//! Here "measured" is what `scenarios/twins-windows.toml` simulates with ten seeds: an observation is drawn from a normal
//! distribution with the mean and deviation of the seeds.

use anyhow::{Context, ensure};
use serde::Serialize;
use sluice_adapt::council::{Arms, EPSILON, EpsilonGreedy, Knowledge, Method as Bandits, Op, Pattern, Situation};
use sluice_cli::output;
use sluice_notation::counted;

use super::Args;
use crate::random::SplitMix64;

const RESULTS: &str = include_str!("../../../../scenarios/results/twins-windows.csv");
/// Data servers of the scenario.
const SERVERS: u64 = 4;
/// Student's t of ten seeds, 95 %, two-sided: what the half widths are made with; and of two times ten.
const T_9: f64 = 2.262;
const T_18: f64 = 2.101;
const SEEDS: f64 = 10.0;
/// Observations of a bin.
const BIN: usize = 50;

/// An arm in a situation.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Throughput over that of the best arm.
    of_best: f64,
    /// Relative deviation of a run.
    deviation: f64,
    /// No other arm is significantly better.
    right: bool,
}

/// One of the 144.
#[derive(Debug)]
struct Place {
    situation: Situation,
    pattern: &'static str,
    arms: Vec<Measured>,
}

const PATTERNS: [(&str, Pattern); 3] = [
    ("own-contiguous", Pattern::OwnContiguous),
    ("shared-contiguous", Pattern::SharedContiguous),
    ("shared-strided", Pattern::SharedStrided),
];

fn read() -> anyhow::Result<Vec<Place>> {
    let mut lines = RESULTS.lines();
    let head: Vec<&str> = lines.next().context("the results are empty")?.split(',').collect();
    let column = |name: &str| head.iter().position(|word| *word == name).with_context(|| format!("no column {name}"));
    let [processes, nodes, size, op, pattern, scheduler, makespan, half] =
        ["processes", "io_nodes", "size", "op", "pattern", "scheduler", "makespan_s", "makespan_half_width_s"]
            .map(|name| column(name).map_err(|error| error.to_string()));
    let at = |column: &Result<usize, String>| column.clone().map_err(anyhow::Error::msg);
    let mut places: Vec<(Vec<String>, Place)> = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(',').collect();
        let word = |column: &Result<usize, String>| -> anyhow::Result<&str> {
            words.get(at(column)?).copied().context("a short line")
        };
        // The council chooses for I/O nodes: it cannot do without.
        if word(&scheduler)? == "direct" {
            continue;
        }
        let key: Vec<String> = [&processes, &nodes, &size, &op, &pattern]
            .into_iter()
            .map(|c| word(c).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let (seconds, half): (f64, f64) = (word(&makespan)?.parse()?, word(&half)?.parse()?);
        let arm = Measured { of_best: 1.0 / seconds, deviation: half / T_9 * SEEDS.sqrt() / seconds, right: false };
        match places.iter_mut().find(|(known, _)| *known == key) {
            Some((_, place)) => place.arms.push(arm),
            None => {
                let (name, pattern) =
                    *PATTERNS.iter().find(|(name, _)| *name == key[4]).context("an unknown pattern")?;
                let op = if key[3] == "read" { Op::Read } else { Op::Write };
                let kib: u64 = key[2].trim_end_matches('K').parse()?;
                let situation = Situation::new(pattern, op, SERVERS, key[1].parse()?, key[0].parse()?, kib << 10);
                places.push((key, Place { situation, pattern: name, arms: vec![arm] }));
            }
        }
    }
    let mut places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
    places.iter_mut().for_each(rate);
    ensure!(places.iter().all(|place| place.arms.len() == places[0].arms.len()), "situations have different arms");
    Ok(places)
}

/// Which arms are right, and how good each is.
fn rate(place: &mut Place) {
    let best = *place.arms.iter().max_by(|a, b| a.of_best.total_cmp(&b.of_best)).unwrap_or(&place.arms[0]);
    for arm in &mut place.arms {
        // Relative to the best, where relative deviations are nearly absolute ones.
        let error = (best.deviation.powi(2) / SEEDS + arm.deviation.powi(2) / SEEDS).sqrt();
        arm.of_best /= best.of_best;
        arm.right = 1.0 - arm.of_best <= T_18 * error;
    }
}

/// Who learns.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    /// The paper's.
    EpsilonGreedy,
    /// Ours, each situation for itself.
    Alone,
    /// Ours, situations that are new begin with what similar ones know.
    Shared,
}

impl Method {
    const ALL: [(Method, &'static str); 3] =
        [(Method::EpsilonGreedy, "paper"), (Method::Alone, "ours, alone"), (Method::Shared, "ours")];
}

/// Of 50 observations of each situation: how many choices were right, and the throughput over the best arm's.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Bin {
    right: f64,
    of_best: f64,
}

/// Sums over a run: `bins[n / BIN]`.
fn learn(method: Method, places: &[&Place], observations: usize, random: &mut SplitMix64, bins: &mut [Bin]) {
    let arms = places[0].arms.len();
    // Arrival order and HBRR come first.
    let described = || Arms::new(arms, 2..arms);
    let mut knowledge = Knowledge::new(described(), Bandits::Confidence);
    for at in random.shuffled(places.len()) {
        let place = places[at];
        let mut greedy = EpsilonGreedy::new(arms, EPSILON);
        if method == Method::Alone {
            knowledge = Knowledge::new(described(), Bandits::Confidence);
        }
        for step in 0..observations {
            let arm = match method {
                Method::EpsilonGreedy => greedy.choose(|| share(random)),
                Method::Alone | Method::Shared => knowledge.choose(place.situation),
            };
            let measured = place.arms[arm];
            let bin = &mut bins[step / BIN];
            bin.right += f64::from(u8::from(measured.right));
            bin.of_best += measured.of_best;
            let seen = (measured.of_best * (1.0 + measured.deviation * normal(random))).max(1e-6);
            match method {
                Method::EpsilonGreedy => greedy.learn(arm, seen),
                Method::Alone | Method::Shared => knowledge.learn(place.situation, arm, seen.ln()),
            }
        }
    }
}

/// From 0 to below 1.
fn share(random: &mut SplitMix64) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Box and Muller 1958.
fn normal(random: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * (1.0 - share(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * share(random)).cos()
}

#[derive(Serialize)]
struct Row {
    patterns: &'static str,
    method: Method,
    bins: Vec<Bin>,
}

/// After how many observations the bars are asked for.
const BAR_AT: usize = 100;
pub(super) const BAR_RIGHT: f64 = 0.90;
pub(super) const BAR_OF_BEST: f64 = 0.99;

/// What was learned by whom.
#[derive(Serialize)]
pub(super) struct Report {
    situations: usize,
    repetitions: u32,
    seed: u64,
    /// Observations of a bin.
    bin: usize,
    rows: Vec<Row>,
    /// Shares in the bin that ends where the bars are asked for, mixed patterns.
    pub(super) right: f64,
    pub(super) of_best: f64,
    pub(super) paper_right: f64,
    pub(super) paper_of_best: f64,
    pub(super) observations: usize,
    pub(super) met: bool,
}

/// Lets all learn.
///
/// # Errors
/// If the committed results cannot be read.
pub(super) fn judge(args: &Args) -> anyhow::Result<Report> {
    let places = read()?;
    let observations = args.observations as usize / BIN * BIN;
    let mut rows = Vec::new();
    for set in ["own-contiguous", "shared-contiguous", "shared-strided", "mixed"] {
        let chosen: Vec<&Place> = places.iter().filter(|place| set == "mixed" || place.pattern == set).collect();
        for (method, _) in Method::ALL {
            let mut bins = vec![Bin::default(); observations / BIN];
            let mut random = SplitMix64(args.seed);
            (0..args.repetitions).for_each(|_| learn(method, &chosen, observations, &mut random, &mut bins));
            let count = (chosen.len() * args.repetitions as usize * BIN) as f64;
            bins.iter_mut().for_each(|bin| *bin = Bin { right: bin.right / count, of_best: bin.of_best / count });
            rows.push(Row { patterns: set, method, bins });
        }
    }
    let at = BAR_AT / BIN - 1;
    let mixed =
        |method| rows.iter().find(|row| row.patterns == "mixed" && row.method == method).map(|row| row.bins[at]);
    let ours = mixed(Method::Shared).unwrap_or_default();
    let paper = mixed(Method::EpsilonGreedy).unwrap_or_default();
    Ok(Report {
        situations: places.len(),
        repetitions: args.repetitions,
        seed: args.seed,
        bin: BIN,
        right: ours.right,
        of_best: ours.of_best,
        paper_right: paper.right,
        paper_of_best: paper.of_best,
        observations: BAR_AT,
        met: ours.right >= BAR_RIGHT && ours.of_best >= BAR_OF_BEST,
        rows,
    })
}

pub(super) fn print(report: &Report) {
    let Report { situations, repetitions, rows, met, .. } = report;
    output::line(format_args!(
        "{}, {}; of each {BIN} observations of a situation: right choices and throughput\n\
         over that of the best arm, in %\n",
        counted(*situations as u64, "simulated situation"),
        counted(*repetitions as u64, "repetition")
    ));
    let bins = rows.first().map_or(0, |row| row.bins.len());
    let heads: Vec<String> = (1..=bins).map(|n| format!("{:>12}", format!("to {}", n * BIN))).collect();
    output::line(format_args!("{:<18} {:<12}{}", "patterns", "method", heads.join("")));
    for row in rows {
        let name = Method::ALL.iter().find(|(method, _)| *method == row.method).map_or("", |(_, name)| name);
        let bins: Vec<String> =
            row.bins.iter().map(|bin| format!("{:>6.1}{:>6.1}", bin.right * 100.0, bin.of_best * 100.0)).collect();
        output::line(format_args!("{:<18} {name:<12}{}", row.patterns, bins.join("")));
    }
    let met = if *met { "met" } else { "missed" };
    output::line(format_args!(
        "\nbars, mixed, observations {} to {BAR_AT}: {:.0} % right, {:.0} % of the best: {met}",
        BAR_AT - BIN + 1,
        BAR_RIGHT * 100.0,
        BAR_OF_BEST * 100.0
    ));
}
