//! `sluice-bench study`, `calibration`, `against-fio`: how right the profiler and the models are.

mod calibration;
pub(crate) mod fio;
mod study;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluice_cli::output;
use sluice_cli::profile::Measuring;
use sluice_device::ModelError;
use sluice_device::profile::standard_sizes;
use sluice_device::profiler::Options;

use calibration::{CALIBRATION, calibrate};
use study::{DeviceStudy, Study};

/// What the study must find.
const MEDIAN_BAR: f64 = 0.03;
const P95_BAR: f64 = 0.10;
const TIME_BAR: f64 = 1.0 / 300.0;
/// How far the models' ratios may be from the thesis's.
const AT_8K_BAR: f64 = 0.10;
const MEAN_BAR: f64 = 0.15;

/// Compares the profiler with complete profiling of device models, in virtual time.
#[derive(clap::Args)]
pub(crate) struct StudyArgs {
    /// Of one model, a shipped one's name or a file [default: all shipped ones that take any time]
    #[arg(long, value_name = "MODEL")]
    device: Option<String>,
    #[command(flatten)]
    measuring: Measuring,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Compares the models of the devices of F. Z. Boito's thesis with what was measured there.
#[derive(clap::Args)]
pub(crate) struct CalibrationArgs {
    #[command(flatten)]
    measuring: Measuring,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Compares and prints.
///
/// # Errors
/// If there is no such model.
pub(crate) fn study(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    let all = sluice_device::models().iter().map(|model| model.name).filter(|name| *name != "null");
    let names: Vec<&str> = match &args.device {
        Some(model) => vec![model],
        None => all.collect(),
    };
    let study = Study::of(in_parallel(&names, &args.measuring.options()?)?);
    if args.json {
        output::pretty_json(&study)?;
    } else {
        print_study(&study);
    }
    Ok(ExitCode::SUCCESS)
}

/// One device for each processor at a time.
fn in_parallel(names: &[&str], options: &Options) -> Result<Vec<DeviceStudy>, ModelError> {
    let bar = output::bar(names.len() as u64, "{bar:40} {pos}/{len} devices, {eta} left");
    bar.tick();
    let (next, sizes) = (AtomicUsize::new(0), standard_sizes().collect::<Vec<_>>());
    let done: Mutex<Vec<(usize, Result<DeviceStudy, ModelError>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((place, name)) = {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    names.get(place).map(|name| (place, *name))
                } {
                    let study = study::study(name, options, &sizes);
                    done.lock().push((place, study));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner();
    done.sort_by_key(|study| study.0);
    done.into_iter().map(|study| study.1).collect()
}

fn print_study(study: &Study) {
    output::line("emulated devices, virtual time: the profiler against complete profiling\n");
    let head = ["device", "median", "95 %", "largest", "TTP median", "largest", "seconds", "complete", "part"];
    let line = |c: [String; 9]| {
        output::line(format_args!(
            "{:<10}{:>8}{:>8}{:>9}{:>12}{:>9}{:>9}{:>10}{:>8}",
            c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
        ));
    };
    line(head.map(str::to_owned));
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    for device in &study.devices {
        line([
            device.device.clone(),
            percent(device.median_error),
            percent(device.p95_error),
            percent(device.max_error),
            percent(device.ttp_median_error),
            percent(device.ttp_max_error),
            format!("{:.1}", device.profiler_s),
            format!("{:.0}", device.complete_s),
            format!("1/{:.0}", 1.0 / device.time_fraction),
        ]);
    }
    let met = |met: bool| if met { "met" } else { "MISSED" };
    output::line(format_args!(
        "\nratio, all sizes: median error {} (bar {}: {}), 95 % of them at most {} (bar {}: {}), largest {}",
        percent(study.median_error),
        percent(MEDIAN_BAR),
        met(study.median_error <= MEDIAN_BAR),
        percent(study.p95_error),
        percent(P95_BAR),
        met(study.p95_error <= P95_BAR),
        percent(study.max_error),
    ));
    output::line(format_args!(
        "time: at most 1/{:.0} of complete profiling (bar 1/{:.0}: {})",
        1.0 / study.time_fraction,
        1.0 / TIME_BAR,
        met(study.time_fraction <= TIME_BAR),
    ));
}

/// Compares and prints.
///
/// # Errors
/// If a shipped model does not load.
pub(crate) fn calibration(args: &CalibrationArgs) -> anyhow::Result<ExitCode> {
    let options = args.measuring.options()?;
    let measured = CALIBRATION.map(|paper| calibrate(paper, &options));
    let measured: Vec<_> = measured.into_iter().collect::<Result<_, _>>()?;
    if args.json {
        output::pretty_json(&serde_json::json!({"emulated": true, "order": ["write", "read"], "devices": measured}))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(
        "emulated: ratios of sequential to random throughput, write and read, of the thesis and of the models\n",
    );
    output::line(format_args!(
        "{:<10}{:>16}{:>16}{:>8}   {:>14}{:>14}{:>8}",
        "device", "8 KiB, thesis", "model", "off", "mean, thesis", "model", "off"
    ));
    let pair = |pair: [f64; 2]| format!("{:.2} {:6.2}", pair[0], pair[1]);
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    for row in &measured {
        output::line(format_args!(
            "{:<10}{:>16}{:>16}{:>8}   {:>14}{:>14}{:>8}",
            row.paper.model,
            row.paper.at_8k.map_or_else(|| "-".to_owned(), pair),
            pair(row.model_at_8k),
            row.error_at_8k.map_or_else(|| "-".to_owned(), percent),
            pair(row.paper.mean),
            pair(row.model_mean),
            percent(row.error_mean),
        ));
    }
    let (at_8k, mean) = measured
        .iter()
        .fold((0.0, 0.0), |(a, m): (f64, f64), row| (a.max(row.error_at_8k.unwrap_or(0.0)), m.max(row.error_mean)));
    let met = |met: bool| if met { "met" } else { "MISSED" };
    output::line(format_args!(
        "\nbars: 8 KiB within {} ({}), mean over sizes within {} ({})",
        percent(AT_8K_BAR),
        met(at_8k <= AT_8K_BAR),
        percent(MEAN_BAR),
        met(mean <= MEAN_BAR),
    ));
    Ok(ExitCode::SUCCESS)
}
