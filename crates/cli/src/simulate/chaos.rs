//! `sluice simulate --chaos`.

use crate::output;
use sluice_notation::{counted, show_size};
use sluice_sim::{Failure, chaos_many};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

pub(super) fn run(
    first: u64,
    count: u64,
    jobs: Option<NonZeroUsize>,
    json: bool,
    stop: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    let progress = output::bar(count, "chaos {bar:40} {pos}/{len} experiments, {eta} left");
    let course = output::Course::new();
    let report = chaos_many(first, count, jobs, stop, || {
        progress.inc(1);
        course.is_at(|| format!("chaos: {} of {count} experiments", progress.position()));
    });
    progress.finish_and_clear();
    match report {
        Ok(report) if json => output::pretty_json(&report)?,
        Ok(report) => {
            let faults = &report.faults;
            output::line(format!(
                "{}, {}, {}: every read found the last write, nothing was lost or done twice, no \
                 request waited too long",
                counted(report.experiments, "experiment"),
                counted(report.calls, "request"),
                show_size(report.bytes as f64)
            ));
            output::line(format!(
                "survived {} lost and {} doubled messages, {}, {}; {} sent again, {} \
                 recognised, {} refused after a crash",
                faults.lost,
                faults.doubled,
                counted(faults.crashes, "crash"),
                counted(faults.failed, "device error"),
                counted(faults.repeated, "request"),
                faults.recognised,
                faults.refused
            ));
            output::line(format!("digest {:016x}", report.digest));
        }
        Err(failure) if failure.failure == Failure::Interrupted => return Ok(ExitCode::from(130)),
        Err(failure) => {
            output::line(&failure.scenario);
            output::tell(format!("seed {}: {}", failure.seed, failure.failure));
            output::tell(format!("again: sluice simulate --chaos --seed {} --seeds 1", failure.seed));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
