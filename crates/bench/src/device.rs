//! `sluice-bench device`: how many requests a model answers in a second of real time.

use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use sluice_cli::output;
use sluice_device::{Command, Op};

/// Each model, in requests a second.
const BAR: f64 = 5e6;
/// Passes; the fastest counts.
const PASSES: u64 = 10;
/// Requests of one kind before the next, as clients have them.
const RUN: u64 = 64;
const SIZE: u64 = 8 << 10;
const FILE_BLOCKS: u64 = (1200 << 20) / SIZE;

/// Measures how fast the device models are: 8 KiB requests in a file of 1.2 GB, a quarter each sequential and random reads
/// and writes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only this model [default: all shipped ones]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Requests for each model
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000_000))]
    requests: u64,
}

#[derive(Serialize)]
struct Row {
    model: String,
    requests_per_s: f64,
    /// So that nothing is computed for nothing, and runs can be compared.
    virtual_s: f64,
}

/// Measures and prints.
///
/// # Errors
/// If there is no such model.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let names: Vec<&str> = match &args.model {
        Some(model) => vec![model],
        None => sluice_device::models().iter().map(|model| model.name).collect(),
    };
    let rows = names.iter().map(|name| measure(name, args.requests)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        output::pretty_json(&serde_json::json!({"emulated": true, "bar": BAR, "rows": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!("{:<10}{:>16}", "model", "requests/s"));
    for row in &rows {
        output::line(format_args!("{:<10}{:>14.1} M", row.model, row.requests_per_s / 1e6));
    }
    let met = rows.iter().all(|row| row.requests_per_s >= BAR);
    output::line(format_args!("\nbar: each at least {:.0} M: {}", BAR / 1e6, if met { "met" } else { "MISSED" }));
    Ok(ExitCode::SUCCESS)
}

fn measure(model: &str, requests: u64) -> Result<Row, sluice_device::ModelError> {
    let mut device = sluice_device::model(model, 1)?;
    let (mut now_ns, mut random) = (0, 1_u64);
    // The fastest of several passes: whatever else the machine does only makes them slower.
    let pass = requests / PASSES;
    let mut fastest = f64::INFINITY;
    let mut begin = Instant::now();
    for number in 0..pass * PASSES {
        if number > 0 && number.is_multiple_of(pass) {
            fastest = fastest.min(begin.elapsed().as_secs_f64());
            begin = Instant::now();
        }
        let kind = number / RUN % 4;
        let block = if kind.is_multiple_of(2) {
            number % FILE_BLOCKS
        } else {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) * FILE_BLOCKS) >> 31
        };
        let op = if kind < 2 { Op::Read } else { Op::Write };
        now_ns += device.service(now_ns, Command { op, address: block * SIZE, len: SIZE }).total_ns;
    }
    let seconds = fastest.min(begin.elapsed().as_secs_f64());
    Ok(Row { model: model.to_owned(), requests_per_s: pass as f64 / seconds, virtual_s: now_ns as f64 * 1e-9 })
}
