//! `sluice-bench forwarding`: algorithms of I/O nodes, and the council, in real clusters of GlusterFS processes on this machine.

mod load;
mod overhead;
mod record;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;

use crate::bed::{Cluster, ClusterArgs, Runner};
use crate::random::SplitMix64;
use crate::statistics::median;

use load::Pattern;
pub(crate) use load::{LoadArgs, load};

const WINDOWS: [&str; 7] = ["125us", "250us", "500us", "1ms", "2ms", "4ms", "8ms"];
const QUICK_WINDOWS: [&str; 3] = ["125us", "1ms", "8ms"];

/// Measures algorithms of I/O nodes in real clusters on this machine: arrival order, HBRR, each time window of TWINS, the council
///
/// Four data servers, two and four I/O nodes and a mount for each of these are processes of GlusterFS; client processes read one
/// file by turns, write parts of one file, write files of their own, and do both. Requests are 128 KiB, direct; every byte that is read
/// is compared, and what was written is read through another I/O node afterwards. Needs root, glusterfs-server and the translator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Two I/O nodes, three windows, few requests, once: whether it works rather than how fast it is
    #[arg(long)]
    quick: bool,
    /// How often everything is measured, in random order [default: 5; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Numbers of I/O nodes
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    io_nodes: Vec<u32>,
    /// Data servers; the paper has four
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    servers: u32,
    /// Write the windows that I/O nodes announce while programs run whose pattern is known, as a data set (CSV), instead of
    /// measuring
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Measure what announcing to a coordinator costs, in pairs with and without, instead of the algorithms
    #[arg(long, conflicts_with = "record")]
    overhead: bool,
    /// Client processes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1_024))]
    processes: u64,
    /// MiB of each process [default: 32; with --quick 2]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    data: Option<u64>,
    /// Seconds of a pattern before what the council does with it counts, each time [default: 60; with --quick 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    learn: Option<u64>,
    /// Model of the emulated disks of the data servers; none: directories
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200")]
    emulate: String,
    /// The first of the ports of the processes
    #[arg(long, default_value_t = 24_200)]
    port: u16,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    fn io_nodes(&self) -> &[u32] {
        match self.io_nodes.as_slice() {
            [] if self.quick => &[2],
            [] => &[2, 4],
            given => given,
        }
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    fn learning(&self) -> Duration {
        Duration::from_secs(self.learn.unwrap_or(if self.quick { 5 } else { 60 }))
    }

    /// Requests of each process, of so many bytes.
    fn requests(&self, request: u64) -> u64 {
        ((self.data.unwrap_or(if self.quick { 2 } else { 32 }) << 20) / request).max(1)
    }
}

/// Bytes.
const REQUEST: u64 = 128 << 10;

/// What I/O nodes do.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Arm {
    Fifo,
    Hbrr,
    Window(&'static str),
    /// What the coordinator's council chooses, from a window of 1 ms on.
    Council,
    /// Arrival order, announced to a coordinator that is not asked.
    Announced,
}

impl Arm {
    fn all(args: &Args) -> Vec<Arm> {
        let windows = if args.quick { QUICK_WINDOWS.as_slice() } else { &WINDOWS };
        let windows = windows.iter().map(|window| Arm::Window(window));
        [Arm::Fifo, Arm::Hbrr].into_iter().chain(windows).chain([Arm::Council, Arm::Announced]).collect()
    }

    /// Whether it needs a coordinator.
    fn is_coordinated(&self) -> bool {
        matches!(self, Arm::Council | Arm::Announced)
    }

    fn name(&self) -> String {
        match self {
            Arm::Fifo => "fifo".to_owned(),
            Arm::Hbrr => "hbrr".to_owned(),
            Arm::Window(window) => (*window).to_owned(),
            Arm::Council => "council".to_owned(),
            Arm::Announced => "fifo, announced".to_owned(),
        }
    }

    fn policy(&self) -> (&'static str, String) {
        match self {
            // A node whose algorithm is not twins is told nothing.
            Arm::Fifo | Arm::Announced => ("noop", String::new()),
            Arm::Hbrr => ("hbrr", String::new()),
            Arm::Window(window) => ("twins", format!("window={window}")),
            Arm::Council => ("twins", "window=1ms".to_owned()),
        }
    }
}

/// The cluster, and what runs on it.
struct Bed<'a> {
    args: &'a Args,
    cluster: Cluster,
}

impl Bed<'_> {
    /// Starts it anew with what the I/O nodes are to do.
    fn start(&self, arm: &Arm, io_nodes: u32) -> anyhow::Result<()> {
        self.start_with(arm, io_nodes, if arm.is_coordinated() { "[coordinator]\n" } else { "" })
    }

    /// The same with these words on the coordinator.
    fn start_with(&self, arm: &Arm, io_nodes: u32, coordinator: &str) -> anyhow::Result<()> {
        let (policy, parameters) = arm.policy();
        let mut text = format!("[servers]\ncount = {}\n", self.args.servers);
        // Writing to a text cannot fail.
        if self.args.emulate != "none" {
            _ = writeln!(text, "emulate = {{ model = {:?}, size = \"8G\" }}", self.args.emulate);
        }
        _ = write!(
            text,
            "[nodes]\ncount = {io_nodes}\npolicy = \"{policy}\"\nparameters = \"{parameters}\"\n[clients]\ncount = {io_nodes}\n\
             attribute_timeout = 0\n"
        );
        text.push_str(coordinator);
        self.cluster.start(&text).with_context(|| arm.name())
    }

    /// Runs processes with requests of so many bytes; returns MB/s.
    fn load(&self, pattern: Pattern, io_nodes: u32, run: u64, verify: bool, request: u64) -> anyhow::Result<f64> {
        let mounts: Vec<String> =
            (0..io_nodes as usize).map(|client| self.cluster.mount(client).display().to_string()).collect();
        let mut words = vec![
            "forwarding-load".to_owned(),
            format!("--pattern={}", pattern.name()),
            format!("--mounts={}", mounts.join(",")),
        ];
        for (key, value) in [
            ("processes", self.args.processes),
            ("request", request),
            ("requests", self.args.requests(request)),
            ("round", run),
        ] {
            words.push(format!("--{key}={value}"));
        }
        words.extend(verify.then(|| "--verify".to_owned()));
        let said = self.cluster.load(&words).with_context(|| pattern.name())?;
        let of = |key: &str| said[key].as_f64().with_context(|| format!("the client processes say no {key}"));
        Ok(of("bytes")? / of("seconds")? / 1e6)
    }

    /// A pattern with one arm: MB/s.
    fn measure(&self, pattern: Pattern, io_nodes: u32, arm: &Arm, run: u64) -> anyhow::Result<f64> {
        self.start(arm, io_nodes)?;
        let began = Instant::now();
        while *arm == Arm::Council && began.elapsed() < self.args.learning() {
            self.load(pattern, io_nodes, run, false, REQUEST).context("while the council learns")?;
        }
        let rate = self.load(pattern, io_nodes, run, false, REQUEST).with_context(|| arm.name())?;
        if pattern != Pattern::StridedRead {
            self.load(pattern, io_nodes, run, true, REQUEST).with_context(|| format!("{}, read again", arm.name()))?;
        }
        Ok(rate)
    }

    /// Measures round by round, situation by situation, these arms in random order: what was measured in whole rounds, and how it ended.
    fn measure_all(&self, arms: &[Arm]) -> anyhow::Result<(Vec<Measured>, anyhow::Result<()>)> {
        let args = self.args;
        let sizes = args.io_nodes().iter().copied();
        let mut all: Vec<Measured> = sizes
            .flat_map(|io_nodes| Pattern::MEASURED.map(|pattern| Measured { pattern, io_nodes, rounds: Vec::new() }))
            .collect();
        self.start(&Arm::Fifo, args.io_nodes()[0])?;
        self.load(Pattern::Prepare, args.io_nodes()[0], 0, false, REQUEST)?;
        let mut random = SplitMix64(2);
        let bar = output::bar(u64::from(args.rounds()) * (all.len() * arms.len()) as u64, "{bar:40} {pos}/{len} {msg}");
        let ended = (0..u64::from(args.rounds())).try_for_each(|round| {
            all.iter_mut().try_for_each(|Measured { pattern, io_nodes, rounds }| {
                let mut rates = vec![0.0; arms.len()];
                for at in random.shuffled(arms.len()) {
                    bar.set_message(format!("{}, {io_nodes} I/O nodes, {}", pattern.name(), arms[at].name()));
                    // No two runs write the same.
                    rates[at] = self.measure(*pattern, *io_nodes, &arms[at], round * arms.len() as u64 + at as u64)?;
                    bar.inc(1);
                }
                rounds.push(rates);
                anyhow::Ok(())
            })
        });
        bar.finish_and_clear();
        all.retain(|situation| !situation.rounds.is_empty());
        Ok((all, ended))
    }
}

/// A situation, and the rates of all arms in each round.
#[derive(Debug)]
struct Measured {
    pattern: Pattern,
    io_nodes: u32,
    rounds: Vec<Vec<f64>>,
}

/// What was measured of an arm.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    arm: String,
    mb_s: f64,
    /// Smallest and largest.
    range: [f64; 2],
}

#[derive(Debug, Serialize)]
struct Row {
    pattern: &'static str,
    io_nodes: u32,
    /// Whole ones that were measured.
    rounds: usize,
    fifo_mb_s: f64,
    hbrr_mb_s: f64,
    best_window: String,
    best_window_mb_s: f64,
    council_mb_s: f64,
    /// What announcing to a coordinator costs, as a share of arrival order's throughput; negative if chance was with it.
    council_overhead: f64,
    cells: Vec<Cell>,
}

impl Row {
    /// Of the rates of all arms in each round; there is at least one.
    fn of(pattern: Pattern, io_nodes: u32, arms: &[Arm], rounds: &[Vec<f64>]) -> anyhow::Result<Row> {
        let cells = arms.iter().enumerate().map(|(at, arm)| {
            let (mb_s, range) = median(&mut rounds.iter().map(|rates| rates[at]).collect::<Vec<f64>>());
            (matches!(arm, Arm::Window(_)), Cell { arm: arm.name(), mb_s, range })
        });
        let cells: Vec<(bool, Cell)> = cells.collect();
        let rate = |name: &str| cells.iter().find(|(_, cell)| cell.arm == name).map(|(_, cell)| cell.mb_s);
        let windows = cells.iter().filter(|(is_window, _)| *is_window).map(|(_, cell)| cell);
        let best = windows.max_by(|a, b| a.mb_s.total_cmp(&b.mb_s)).context("no window was measured")?;
        let fifo_mb_s = rate("fifo").context("arrival order was not measured")?;
        Ok(Row {
            pattern: pattern.name(),
            io_nodes,
            rounds: rounds.len(),
            fifo_mb_s,
            hbrr_mb_s: rate("hbrr").context("HBRR was not measured")?,
            best_window: best.arm.clone(),
            best_window_mb_s: best.mb_s,
            council_mb_s: rate(&Arm::Council.name()).context("the council was not measured")?,
            council_overhead: 1.0
                - rate(&Arm::Announced.name()).context("arrival order with a coordinator was not measured")?
                    / fifo_mb_s,
            cells: cells.iter().map(|(_, cell)| cell.clone()).collect(),
        })
    }

    /// What the best window brings over the better one of the others: below 1 it costs.
    fn gain(&self) -> f64 {
        self.best_window_mb_s / self.fifo_mb_s.max(self.hbrr_mb_s)
    }
}

fn bed<'a>(args: &'a Args, runner: &Runner) -> anyhow::Result<Bed<'a>> {
    Ok(Bed { args, cluster: Cluster::new(runner, "forwarding", &args.cluster, args.port)? })
}

/// Measures all.
///
/// # Errors
/// If a cluster cannot be started, a process fails, data are wrong, or it was interrupted: what was found before is printed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runner = Runner::new()?;
    if let Some(path) = &args.record {
        record::record(&bed(args, &runner)?, args, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.overhead {
        return overhead::measure(&bed(args, &runner)?, args);
    }
    let arms = Arm::all(args);
    let (measured, ended) = bed(args, &runner)?.measure_all(&arms)?;
    let rows = measured.iter().map(|of| Row::of(of.pattern, of.io_nodes, &arms, &of.rounds));
    let mut rows: Vec<Row> = rows.collect::<anyhow::Result<_>>()?;
    if rows.is_empty() {
        ended?;
        anyhow::bail!("nothing was measured");
    }
    rows.sort_by(|a, b| a.gain().total_cmp(&b.gain()));
    let mut overheads: Vec<f64> = rows.iter().map(|row| row.council_overhead).collect();
    let overhead = median(&mut overheads).0;
    let device = if args.emulate == "none" { "directories".to_owned() } else { format!("emulated {}", args.emulate) };
    if args.json {
        output::pretty_json(&serde_json::json!({
            "rows": rows, "council_overhead": overhead, "devices": device, "network": args.cluster.network(), "servers": args.servers,
            "processes": args.processes, "request": REQUEST, "requests": args.requests(REQUEST), "rounds": args.rounds(), "verified": true,
        }))?;
    } else {
        print(&rows, args, &device, overhead);
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn print(rows: &[Row], args: &Args, device: &str, overhead: f64) {
    output::line(format_args!(
        "{} on {device}, {}, {}, {} of {} KiB each; MB/s, median and range of {};\n\
         every byte was compared; where windows bring least comes first\n",
        counted(args.servers as u64, "data server"),
        args.cluster.network(),
        counted(args.processes, "client process"),
        counted(args.requests(REQUEST), "request"),
        REQUEST >> 10,
        args.rounds()
    ));
    for row in rows {
        let gain = (row.gain() - 1.0) * 100.0;
        let whole = row.rounds == args.rounds() as usize;
        let rounds = if whole { String::new() } else { format!(" (rounds: {})", row.rounds) };
        output::line(format_args!(
            "{}, {}{rounds}: the best window ({}) {gain:+.1} % against the better one of fifo and hbrr",
            row.pattern,
            counted(row.io_nodes as u64, "I/O node"),
            row.best_window
        ));
        for Cell { arm, mb_s, range: [least, most] } in &row.cells {
            output::line(format_args!("    {arm:<16} {mb_s:>8.1}  {least:.1}..{most:.1}"));
        }
    }
    output::line(format_args!(
        "announcing to the council costs {:.1} % of arrival order's throughput (median)",
        overhead * 100.0
    ));
}
