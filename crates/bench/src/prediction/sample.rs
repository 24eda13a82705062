//! `sluice-bench prediction --sample`: what predictions do to workloads that nobody has chosen.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{anyhow, bail};
use parking_lot::Mutex;
use serde::Serialize;
use sluice_cli::output;

use super::measure::{ALPHA, Measured, measure};
use super::{Args, draw};
use crate::statistics::quartiles;

/// Recorded runs that predictions are from.
const RECORDED: u32 = 2;
/// A loss, in percent.
const LOSS: f64 = 2.0;
/// The bars: share of the cases that lose more than that, and the largest loss, in percent.
const SHARE_MAX: f64 = 1.0;
const LOSS_MAX: f64 = 5.0;

#[derive(Serialize)]
struct Report {
    seed: u64,
    /// Whether hard disks may idle for a stream.
    anticipation: bool,
    /// How many.
    cases: usize,
    /// Percent of the cases that lose more than 2 % of their time. What chance does as often is a tie, and no loss.
    share_over_2_percent: f64,
    /// The same with those that may be chance.
    share_over_2_percent_with_ties: f64,
    /// Percent of the cases that save more than 2 %.
    share_saving_2_percent: f64,
    /// Mean of the time saved, in percent.
    mean_saved: f64,
    /// Smallest, quarter, half, three quarters, largest time saved, in percent.
    quartiles: [f64; 5],
    /// The time that the worst case saves, in percent: a loss is negative. Ties do not count.
    worst: f64,
    worst_with_ties: f64,
    met: bool,
    /// The largest loss first.
    all: Vec<Measured>,
}

/// Simulates so many cases, or some of them alone, prints what predictions do to each, the largest losses first.
pub(super) fn run(sample: u64, args: &Args, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
    let (only, seed, json) = (&args.case, args.seed, args.json);
    let draw_case = |number| draw::case(seed, number, !args.no_anticipation);
    if let Some(number) = only.iter().find(|number| **number >= sample) {
        bail!("there is no case {number} in a sample of {sample}: they are numbered from 0");
    }
    if !json {
        only.iter().for_each(|number| output::line(format_args!("# case {number}\n{}", draw_case(*number).text)));
    }
    let numbers: Vec<u64> = if only.is_empty() { (0..sample).collect() } else { only.clone() };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let case = draw_case(number);
            let measured = measure(number, &case, RECORDED, stop);
            done.lock()
                .push(measured.map_err(|error| anyhow!("case {number} ({}): {error}\n{}", case.what, case.text)));
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    if stop.load(Ordering::Relaxed) {
        bail!(sluice_cli::interrupt::Interrupted);
    }
    let mut all = done.into_inner().into_iter().collect::<anyhow::Result<Vec<Measured>>>()?;
    all.sort_by(|a, b| a.saved.total_cmp(&b.saved).then(a.case.cmp(&b.case)));
    let share = |of: &dyn Fn(&Measured) -> bool| {
        all.iter().filter(|case| of(case)).count() as f64 * 100.0 / all.len().max(1) as f64
    };
    let share_over_2_percent = share(&|case| case.is_loss() && case.saved < -LOSS);
    let worst = all.iter().find(|case| case.is_loss()).map_or(0.0, |case| case.saved);
    let report = Report {
        seed,
        anticipation: !args.no_anticipation,
        cases: all.len(),
        share_over_2_percent,
        share_over_2_percent_with_ties: share(&|case| case.saved < -LOSS),
        share_saving_2_percent: share(&|case| case.saved > LOSS),
        mean_saved: all.iter().map(|case| case.saved).sum::<f64>() / all.len().max(1) as f64,
        quartiles: quartiles(all.iter().map(|case| case.saved).collect()),
        worst,
        worst_with_ties: all.first().map_or(0.0, |case| case.saved),
        met: share_over_2_percent <= SHARE_MAX && worst >= -LOSS_MAX,
        all,
    };
    match json {
        true => output::pretty_json(&report)?,
        false => print(&report),
    }
    Ok(if report.met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    if !report.anticipation {
        output::line("hard disks never idle for a stream");
    }
    output::line(format_args!(
        "simulated, predictions from {RECORDED} recorded runs; time saved in %, negative: lost; p: that it is a loss by chance alone;\n\
         tie: p above {ALPHA}\n"
    ));
    output::line(format_args!(
        "{:>6} {:>5} {:>6} {:<4} {:>4} {:>5} {:>9} {:>9} {:>13} {:>6}  case",
        "saved", "error", "p", "", "case", "seeds", "without s", "with s", "complete", "waits"
    ));
    for case in &report.all {
        let tie = if case.saved < 0.0 && !case.is_loss() { "tie" } else { "" };
        output::line(format_args!(
            "{:>+6.1} {:>5.1} {:>6.3} {tie:<4} {:>4} {:>5} {:>9.2} {:>9.2} {:>13} {:>6}  {}",
            case.saved,
            case.error,
            case.p_loss,
            case.case,
            case.seeds,
            case.without_s,
            case.with_s,
            case.complete,
            case.waits,
            case.what
        ));
    }
    let [least, quarter, half, three, most] = report.quartiles;
    output::line(format_args!(
        "\nseed {}: {} cases; mean {:+.1} %; smallest {least:+.1}, quartiles {quarter:+.1} {half:+.1} {three:+.1}, largest {most:+.1}",
        report.seed, report.cases, report.mean_saved
    ));
    output::line(format_args!(
        "{:.1} % of the cases save more than 2 %; {:.1} % lose more than 2 % (with ties {:.1} %); the worst {:+.1} % (with ties {:+.1} %)",
        report.share_saving_2_percent,
        report.share_over_2_percent,
        report.share_over_2_percent_with_ties,
        report.worst,
        report.worst_with_ties
    ));
    let met = if report.met { "met" } else { "missed" };
    output::line(format_args!(
        "bars: a loss of more than 2 % in at most 1 % of the cases, none of more than 5 %: {met}"
    ));
}
