//! `sluice-bench sim`: how fast the simulator is, on one core.

use serde::Serialize;
use sluice_cli::output;
use sluice_sim::scenario::Plan;
use sluice_sim::{Options, simulate};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

const BAR_PER_S: f64 = 0.7e6;
/// Repetitions; the median counts.
const REPETITIONS: usize = 5;

/// Measures the simulator: requests at the data servers in a second of one core's time.
///
/// 256 processes on 32 machines read a shared file in requests of 64 KB; four data servers with modelled disks, each with the
/// engine of production. The last cells add what costs more: conflicts between reads and writes, random places, I/O nodes
/// (whose own requests are not counted).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Device model of the data servers.
    #[arg(long, default_value = "hdd-7200")]
    device: String,
    /// Requests of each simulation, in thousands.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    thousands: u64,
}

/// What is simulated.
struct Cell {
    what: &'static str,
    /// Algorithm of the data servers.
    policy: &'static str,
    /// Keys to set.
    more: &'static [(&'static str, &'static str)],
}

const fn cell(what: &'static str, policy: &'static str, more: &'static [(&'static str, &'static str)]) -> Cell {
    Cell { what, policy, more }
}

const CELLS: &[Cell] = &[
    cell("noop", "noop", &[]),
    cell("to-agg", "to-agg", &[("servers.in_flight", "8")]),
    cell("hbrr", "hbrr", &[("servers.in_flight", "8")]),
    cell("aioli", "aioli", &[]),
    cell("hbrr, reads and writes", "hbrr", &[("servers.in_flight", "8"), ("application.phase.op", "mixed")]),
    cell("hbrr, random", "hbrr", &[("servers.in_flight", "8"), ("application.phase.pattern", "random")]),
    cell(
        "noop, 8 I/O nodes with twins",
        "noop",
        &[("io_nodes.count", "8"), ("io_nodes.policy", "twins alone_after=0")],
    ),
];

#[derive(Serialize)]
struct Row {
    what: &'static str,
    server_requests: u64,
    requests_per_s: f64,
    requests_per_s_range: [f64; 2],
    events_per_request: f64,
    digest: String,
}

#[derive(Serialize)]
struct Report {
    device: String,
    rows: Vec<Row>,
    misses: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rows = CELLS.iter().map(|cell| measure(&args, cell)).collect::<anyhow::Result<Vec<_>>>()?;
    let missed = rows.iter().filter(|row| row.requests_per_s < BAR_PER_S);
    let misses = missed.map(|row| format!("{}: {:.0} requests/s, bar {BAR_PER_S:.0}", row.what, row.requests_per_s));
    let report = Report { device: args.device, misses: misses.collect(), rows };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

/// Processor time of this thread: that of others does not count.
fn processor_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn measure(args: &Args, cell: &Cell) -> anyhow::Result<Row> {
    let &Cell { what, policy, more } = cell;
    let each = args.thousands * 1000 / 256;
    let text = format!(
        "[clients]\nnodes = 32\n[servers]\ncount = 4\nstripe = '64K'\ndevice = '{}'\npolicy = '{policy}'\n\
         [[application]]\nprocesses = 256\n[[application.phase]]\nop = 'read'\npattern = 'strided'\nrequest = '64K'\n\
         data = {}\n",
        args.device,
        each * (64 << 10)
    );
    let more: Vec<_> = more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let plan = Plan::parse(&text, "bench", Path::new(""), &more, &[])?;
    let mut rates = Vec::new();
    let mut last = None;
    for _ in 0..REPETITIONS {
        let start = processor_s();
        let outcome = simulate(&plan.runs[0].scenario, Options::default(), &AtomicBool::new(false))?;
        rates.push(outcome.server_requests as f64 / (processor_s() - start));
        last = Some(outcome);
    }
    rates.sort_by(f64::total_cmp);
    let Some(outcome) = last else { anyhow::bail!("no repetition") };
    Ok(Row {
        what,
        server_requests: outcome.server_requests,
        requests_per_s: rates[REPETITIONS / 2],
        requests_per_s_range: [rates[0], rates[REPETITIONS - 1]],
        events_per_request: outcome.events as f64 / outcome.server_requests as f64,
        digest: format!("{:016x}", outcome.digest),
    })
}

fn print(report: &Report) {
    output::line(format!(
        "simulator on one core, {}: requests at the data servers in a second of processor time\n",
        report.device
    ));
    for row in &report.rows {
        output::line(format!(
            "  {:<30} {:>9.0}  [{:.0}, {:.0}]  {:.1} events a request  digest {}",
            row.what,
            row.requests_per_s,
            row.requests_per_s_range[0],
            row.requests_per_s_range[1],
            row.events_per_request,
            row.digest
        ));
    }
    let met = if report.misses.is_empty() { "met" } else { "MISSED" };
    output::line(format!("\nbar: {BAR_PER_S:.0} requests/s: {met}"));
    report.misses.iter().for_each(|miss| output::line(format!("MISSED {miss}")));
}
