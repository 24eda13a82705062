//! `sluice-bench forwarding`: algorithms of I/O nodes, and the council, in real clusters of GlusterFS processes on this machine.

mod load;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use sluice_cli::output;

use crate::bed::{self, Runner};
use crate::random::SplitMix64;
use crate::statistics::median;

use load::Pattern;
pub(crate) use load::{LoadArgs, load};

/// Data servers, as in the paper.
const SERVERS: u32 = 4;
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
    /// How often everything is measured, in random order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Numbers of I/O nodes
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    io_nodes: Vec<u32>,
    /// Client processes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1_024))]
    processes: u64,
    /// MiB of each process
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    data: Option<u64>,
    /// Seconds of a pattern before what the council does with it counts, each time [default: 60; with --quick 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    learn: Option<u64>,
    /// Model of the emulated disks of the data servers; none: directories
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200")]
    emulate: String,
    /// Where everything is, and is removed afterwards
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The translator sluice.so [default: where make install-gluster puts it]
    #[arg(long, value_name = "FILE")]
    translator: Option<PathBuf>,
    /// The first of the ports of the processes
    #[arg(long, default_value_t = 24_200)]
    port: u16,
    /// The sluice command [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
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

    /// Requests of each process.
    fn requests(&self) -> u64 {
        (self.data.unwrap_or(if self.quick { 2 } else { 32 }) << 20) / REQUEST
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

/// A cluster of its own, which ends with it.
struct Cluster<'a> {
    args: &'a Args,
    runner: &'a Runner,
    sluice: PathBuf,
    room: tempfile::TempDir,
    io_nodes: u32,
}

impl Cluster<'_> {
    fn config(&self) -> PathBuf {
        self.room.path().join("cluster.toml")
    }

    fn mounts(&self) -> Vec<String> {
        (0..self.io_nodes).map(|n| self.room.path().join(format!("run/client-{n}")).display().to_string()).collect()
    }

    fn sluice(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.sluice);
        command.args(["-q", "cluster"]).args(words).arg(self.config());
        self.runner.finish(&mut command, false).map(drop)
    }

    fn text(&self, arm: &Arm) -> String {
        let (policy, parameters) = arm.policy();
        let mut text = format!(
            "name = \"bench-{}\"\ndirectory = {:?}\nport = {}\n",
            std::process::id(),
            self.room.path().join("run"),
            self.args.port
        );
        if let Some(translator) = &self.args.translator {
            let _ = writeln!(text, "translator = {translator:?}");
        }
        let _ = writeln!(text, "[servers]\ncount = {SERVERS}");
        if self.args.emulate != "none" {
            let _ = writeln!(text, "emulate = {{ model = {:?}, size = \"8G\" }}", self.args.emulate);
        }
        let _ = write!(
            text,
            "[nodes]\ncount = {0}\npolicy = \"{policy}\"\nparameters = \"{parameters}\"\n[clients]\ncount = {0}\n\
             attribute_timeout = 0\n",
            self.io_nodes
        );
        if arm.is_coordinated() {
            text.push_str("[coordinator]\n");
        }
        text
    }

    /// Starts it anew with what the I/O nodes are to do.
    fn start(&self, arm: &Arm) -> anyhow::Result<()> {
        self.runner.go_on()?;
        if self.config().exists() {
            self.sluice(&["down"])?;
        }
        fs::write(self.config(), self.text(arm))?;
        self.sluice(&["up"])
    }

    /// Runs processes; returns MB/s.
    fn load(&self, pattern: Pattern, round: u64, verify: bool) -> anyhow::Result<f64> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["forwarding-load", "--pattern", pattern.name(), "--mounts", &self.mounts().join(",")]);
        for (key, value) in [
            ("--processes", self.args.processes),
            ("--request", REQUEST),
            ("--requests", self.args.requests()),
            ("--round", round),
        ] {
            command.arg(key).arg(value.to_string());
        }
        if verify {
            command.arg("--verify");
        }
        let said = self.runner.run(&mut command).with_context(|| pattern.name())?;
        let said: serde_json::Value = serde_json::from_str(&said.out).context("what the client processes say")?;
        let of = |key: &str| said[key].as_f64().with_context(|| format!("the client processes say no {key}"));
        Ok(of("bytes")? / of("seconds")? / 1e6)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if self.config().exists()
            && let Err(error) = self.sluice(&["down", "--force", "--remove-disks"])
        {
            output::tell(format_args!("{error:#}\nparts of the cluster stay in {}", self.room.path().display()));
        }
    }
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
    fn of(pattern: Pattern, io_nodes: u32, measured: Vec<(Arm, Vec<f64>)>) -> anyhow::Result<Row> {
        let cells = measured.into_iter().map(|(arm, mut rates)| {
            let (mb_s, range) = median(&mut rates);
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

/// Measures one size of cluster.
fn measure(args: &Args, runner: &Runner, io_nodes: u32) -> anyhow::Result<Vec<Row>> {
    let room = tempfile::Builder::new().prefix("sluice-forwarding-").tempdir_in(&args.dir);
    let room = room.with_context(|| args.dir.display().to_string())?;
    let cluster = Cluster { args, runner, sluice: bed::program(args.sluice.as_deref())?, room, io_nodes };
    let arms = Arm::all(args);
    let mut rates = vec![vec![Vec::new(); arms.len()]; Pattern::MEASURED.len()];
    let mut random = SplitMix64(u64::from(io_nodes));
    let bar = output::bar(u64::from(args.rounds()) * arms.len() as u64, "{bar:40} {pos}/{len} {msg}");
    for round in 0..u64::from(args.rounds()) {
        for at in random.shuffled(arms.len()) {
            let arm = &arms[at];
            bar.set_message(format!("{io_nodes} I/O nodes, {}", arm.name()));
            cluster.start(arm).with_context(|| arm.name())?;
            if rates[0].iter().all(Vec::is_empty) {
                cluster.load(Pattern::Prepare, 0, false)?;
            }
            // No two runs write the same.
            let run = round * arms.len() as u64 + at as u64;
            for (pattern, rates) in Pattern::MEASURED.into_iter().zip(&mut rates) {
                let began = Instant::now();
                while *arm == Arm::Council && began.elapsed() < args.learning() {
                    cluster.load(pattern, run, false).context("while the council learns")?;
                }
                rates[at].push(cluster.load(pattern, run, false).with_context(|| arm.name())?);
                if pattern != Pattern::StridedRead {
                    cluster.load(pattern, run, true).with_context(|| format!("{}, read again", arm.name()))?;
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = Pattern::MEASURED.into_iter().zip(rates);
    rows.map(|(pattern, rates)| Row::of(pattern, io_nodes, arms.iter().cloned().zip(rates).collect())).collect()
}

/// Measures all.
///
/// # Errors
/// If a cluster cannot be started, a process fails, or data are wrong.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "it needs root: data servers keep attributes that are root's"
    );
    let runner = Runner::new()?;
    let mut rows = Vec::new();
    for io_nodes in args.io_nodes() {
        rows.extend(measure(args, &runner, *io_nodes)?);
    }
    rows.sort_by(|a, b| a.gain().total_cmp(&b.gain()));
    let mut overheads: Vec<f64> = rows.iter().map(|row| row.council_overhead).collect();
    let overhead = median(&mut overheads).0;
    let device = if args.emulate == "none" { "directories".to_owned() } else { format!("emulated {}", args.emulate) };
    if args.json {
        output::pretty_json(&serde_json::json!({
            "rows": rows, "council_overhead": overhead, "devices": device, "servers": SERVERS, "processes": args.processes,
            "request": REQUEST, "requests": args.requests(), "rounds": args.rounds(), "verified": true,
        }))?;
    } else {
        print(&rows, args, &device, overhead);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(rows: &[Row], args: &Args, device: &str, overhead: f64) {
    output::line(format_args!(
        "{SERVERS} data servers on {device}, {} client processes, {} requests of {} KiB each; MB/s, median and range of {};\n\
         every byte was compared; where windows bring least comes first\n",
        args.processes,
        args.requests(),
        REQUEST >> 10,
        args.rounds()
    ));
    for row in rows {
        let gain = (row.gain() - 1.0) * 100.0;
        output::line(format_args!(
            "{}, {} I/O nodes: the best window ({}) {gain:+.1} % against the better one of fifo and hbrr",
            row.pattern, row.io_nodes, row.best_window
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
