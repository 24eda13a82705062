//! Every figure of chapter 6 of the dissertation on iTransformer (Zhang 2012), in the simulator: nine data servers without an SSD,
//! with one by the paper's rules, and with one by ours.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;
use sluice_sim::{Estimate, Outcome};

use crate::orchestration::{Gain, Services, gain, simulate};

/// Scenarios, and what their situations are called here.
const SCENARIOS: [(&str, &str); 5] = [
    ("random ", include_str!("../../../../scenarios/itransformer-random.toml")),
    ("HPIO ", include_str!("../../../../scenarios/itransformer-hpio.toml")),
    ("BTIO ", include_str!("../../../../scenarios/itransformer-btio.toml")),
    ("S3aSim ", include_str!("../../../../scenarios/itransformer-s3asim.toml")),
    ("mix", include_str!("../../../../scenarios/itransformer-mix.toml")),
];

/// Gains in throughput that the dissertation states, in per cent, the least and the largest of several sizes. Of S3aSim it gives
/// the time: a third of it is three times the throughput.
const PAPER: &[(&str, f64, f64)] = &[
    ("random read 4K", 140.0, 140.0),
    ("random write 4K", 47.0, 56.0),
    ("random write 8K", 47.0, 56.0),
    ("random write 16K", 47.0, 56.0),
    ("random write 32K", 47.0, 56.0),
    ("random slots of 64K", -10.0, -10.0),
    ("random slots of 256K", 76.0, 76.0),
    ("random slots of 1M", 98.0, 98.0),
    ("random slots of 16M", 245.0, 245.0),
    ("random area of 1G", 117.0, 117.0),
    ("HPIO read 512", 85.0, 85.0),
    ("HPIO read 1024", 22.0, 22.0),
    ("HPIO read 2048", 5.1, 5.1),
    ("HPIO read 4096", 2.2, 2.2),
    ("HPIO write 512", 800.0, 800.0),
    ("HPIO write 1024", 300.0, 300.0),
    ("HPIO write 2048", 200.0, 200.0),
    ("HPIO write 4096", 30.0, 30.0),
    ("BTIO processes 64", 70.0, 70.0),
    ("BTIO log of 1G", 32.0, 32.0),
    ("BTIO log of 2G", 35.0, 35.0),
    ("BTIO log of 4G", 38.0, 38.0),
    ("BTIO log of 8G", 40.0, 40.0),
    ("S3aSim queries 128", 194.0, 194.0),
    ("mix", 42.0, 42.0),
    ("mix: ior", 30.0, 30.0),
    ("mix: btio", 33.0, 33.0),
    ("mix: s3asim", 68.0, 68.0),
];

/// An experiment.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    experiment: String,
    /// Gain over no SSD that the dissertation states, in per cent: least and largest; absent where it gives no figure.
    paper: Option<[f64; 2]>,
    /// By the paper's rules, and by ours.
    papers_rules: Gain,
    ours: Gain,
    /// Ours has the sign that the dissertation states.
    agrees: Option<bool>,
    /// Throughput without an SSD.
    without_mb_s: f64,
    /// Of ours: share of read bytes that came from the SSD, and of writes that went there first,
    hit_rate: f64,
    logged_share: f64,
    /// and of the bytes put into the log, those that were not on the disk when the programs ended.
    left_share: f64,
    write_amplification: f64,
}

/// What was simulated.
#[derive(Debug, Serialize)]
pub(super) struct Simulated {
    seeds: u32,
    /// Those that lose most first.
    rows: Vec<Row>,
    /// Rows of which the dissertation gives a figure, and those with the same sign.
    stated: usize,
    agreeing: usize,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// A program's throughput in MB/s.
fn rate(outcome: &Outcome, program: usize) -> f64 {
    let app = &outcome.apps[program];
    app.bytes as f64 * 1e3 / app.makespan_ns.max(1) as f64
}

/// Of one program.
fn gain_of(program: usize, of: &[Outcome], over: &[Outcome]) -> Gain {
    let logs: Vec<f64> = of.iter().zip(over).map(|(a, b)| (rate(a, program) / rate(b, program)).ln()).collect();
    let estimate = Estimate::of(&logs);
    let percent = |log: f64| (log.exp() - 1.0) * 100.0;
    let bound = percent(estimate.mean - estimate.half_width.copysign(estimate.mean));
    Gain { percent: percent(estimate.mean), half_width: (percent(estimate.mean) - bound).abs() }
}

/// A row of all programs together, or of one.
fn row(experiment: String, services: &Services, program: Option<usize>) -> anyhow::Result<Row> {
    let of = |name: &str| services.get(name).with_context(|| format!("{experiment}: nobody simulated {name:?}"));
    let (stock, paper, ours) = (of("stock")?, of("paper")?, of("ours")?);
    let over_stock = |of: &[Outcome]| program.map_or_else(|| gain(of, stock), |program| gain_of(program, of, stock));
    let tiers = || ours.iter().filter_map(|outcome| outcome.tier.as_ref());
    let stated = PAPER.iter().find(|(name, ..)| *name == experiment).map(|(_, least, most)| [*least, *most]);
    let gained = over_stock(ours);
    Ok(Row {
        paper: stated,
        papers_rules: over_stock(paper),
        agrees: stated.map(|[least, _]| (least > 0.0) == (gained.percent > 0.0)),
        ours: gained,
        without_mb_s: mean(stock.iter().map(|outcome| {
            let programs = program.map_or(0..outcome.apps.len(), |program| program..program + 1);
            programs.map(|program| rate(outcome, program)).sum()
        })),
        hit_rate: mean(tiers().map(|tier| tier.hit_rate())),
        logged_share: mean(tiers().map(|tier| tier.logged_writes as f64 / tier.writes.max(1) as f64)),
        left_share: mean(tiers().map(|tier| tier.dirty_bytes as f64 / tier.logged_bytes.max(1) as f64)),
        write_amplification: mean(tiers().map(|tier| tier.write_amplification())),
        experiment,
    })
}

/// Simulates all of it, or rows that have one of `only` in their names.
pub(super) fn simulated(
    seeds: u32,
    jobs: Option<NonZeroUsize>,
    only: &[String],
    stop: &AtomicBool,
) -> anyhow::Result<Simulated> {
    let mut rows = Vec::new();
    for (prefix, text) in SCENARIOS {
        // The others of a scenario are simulated, too, if one is wanted.
        if !only.is_empty()
            && !only.iter().any(|only| prefix.trim().contains(only.split(' ').next().unwrap_or_default()))
        {
            continue;
        }
        for (situation, services) in simulate(text, &[], seeds, jobs, false, stop)? {
            rows.push(row(format!("{prefix}{situation}"), &services, None)?);
            let programs = services.values().next().and_then(|outcomes| outcomes.first()).map_or(0, |it| it.apps.len());
            if prefix == "mix" {
                for program in 0..programs {
                    let name = &services["stock"][0].apps[program].name;
                    rows.push(row(format!("mix: {name}"), &services, Some(program))?);
                }
            }
        }
    }
    rows.retain(|row| only.is_empty() || only.iter().any(|only| row.experiment.contains(only)));
    anyhow::ensure!(!rows.is_empty(), "--only: there is no such experiment");
    rows.sort_by(|a, b| a.ours.percent.total_cmp(&b.ours.percent));
    let agreeing = rows.iter().filter(|row| row.agrees == Some(true)).count();
    Ok(Simulated { seeds, stated: rows.iter().filter(|row| row.agrees.is_some()).count(), agreeing, rows })
}

pub(super) fn print(simulated: &Simulated) {
    output::line(format_args!(
        "\nsimulated, {}: gains in throughput over no SSD in %, losses first; nine emulated servers\n\n\
         | experiment | dissertation | its rules | ours | sign | without, MB/s | reads from SSD | writes by SSD | left on it | SSD wrote for each byte |\n\
         |---|---|---|---|---|---|---|---|---|---|",
        counted(simulated.seeds as u64, "seed")
    ));
    for row in &simulated.rows {
        let stated = row.paper.map_or("-".to_owned(), |[least, most]| match least == most {
            true => format!("{least:+}"),
            false => format!("{least:+} to {most:+}"),
        });
        let sign = row.agrees.map_or("-", |agrees| if agrees { "same" } else { "**other**" });
        output::line(format_args!(
            "| {} | {stated} | {:+.0} ±{:.0} | {:+.0} ±{:.0} | {sign} | {:.2} | {:.0} % | {:.0} % | {:.0} % | {:.2} |",
            row.experiment,
            row.papers_rules.percent,
            row.papers_rules.half_width,
            row.ours.percent,
            row.ours.half_width,
            row.without_mb_s,
            row.hit_rate * 100.0,
            row.logged_share * 100.0,
            row.left_share * 100.0,
            row.write_amplification
        ));
    }
    output::line(format_args!(
        "\n{} of {} figures that the dissertation states have the same sign",
        simulated.agreeing, simulated.stated
    ));
}
