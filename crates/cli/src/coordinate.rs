//! `sluice coordinate`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use sd_notify::NotifyState;
use serde_json::Value;
use sluice_control::serve::{self, Options};
use sluice_control::{Address, Council, Limits, Role, by_node, read_token};
use sluice_metrics::{Endpoint, Samples};
use sluice_notation::{show_number, show_time_roughly};

use crate::{output, suggest};

/// For an answer with the status.
const PATIENCE: Duration = Duration::from_secs(10);

/// Coordinates nodes: they tell what they see, and are told what to do
///
/// Nodes are mounts and translators of GlusterFS that have its address. I/O never waits for it: without it everything stays as it is.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where nodes reach it; other machines do under an address of this one, which needs --token-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:24090")]
    listen: SocketAddr,
    /// Directory in which it keeps what it learns [default: none, and all is forgotten at its end]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// A secret in the first line of a file, which whoever connects must know [default: none, and whoever reaches the port may]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// What it does for its nodes: council (which time window I/O nodes use, or none)
    #[arg(long, value_name = "ROLE", default_value = "council",
        value_parser = suggest::choice(&["council"]), hide_possible_values = true)]
    role: String,
    /// Each node has the window that is best for its own load, rather than all that which is best for most
    #[arg(long)]
    coexisting: bool,
    /// Answer GET /metrics for Prometheus there; docs/operation.md lists the names [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Most nodes
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes_max: u32,
}

#[derive(clap::Subcommand)]
enum Command {
    Status(StatusArgs),
}

/// Shows what a coordinator knows and has decided
#[derive(clap::Args)]
struct StatusArgs {
    /// Where it is
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// The file with the secret that it asks for [default: none]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON; docs/status.md explains the fields
    #[arg(long)]
    json: bool,
}

/// Coordinates until SIGINT or SIGTERM, or shows the status.
///
/// # Errors
/// If it cannot listen or has no place for its state; if it cannot be reached.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Command::Status(args)) = args.command {
        return status(&args);
    }
    ensure!(
        args.listen.ip().is_loopback() || args.token_file.is_some(),
        "{} can be reached from other machines: --token-file names a file with a secret that nodes must know",
        args.listen
    );
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let limits = Limits { nodes_max: args.nodes_max as usize, ..Limits::default() };
    let roles: Vec<Box<dyn Role>> = vec![Box::new(Council::new(Box::new(by_node)).coexisting(args.coexisting))];
    let options = Options { listen: args.listen, token, state: args.state, limits, roles };
    let mut endpoint = None;
    let ready = |address: SocketAddr, watch: serve::Watch| {
        if let Some(metrics) = args.metrics {
            let source = move |samples: &mut Samples| sluice_metrics::coordinator(&watch.status(), samples);
            endpoint = Some(Endpoint::start(metrics, source)?);
        }
        let text = format!("nodes are coordinated at {address}; to end: Ctrl-C");
        output::say(&text);
        sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&text)])
            .unwrap_or_else(|error| tracing::warn!("NOTIFY_SOCKET: {error}"));
        Ok(())
    };
    serve::serve(options, ready, serve::interrupted())?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let status = serve::status(&Address::new(&args.address, token.as_deref())?, PATIENCE)?;
    if args.json {
        output::json(&status)?;
    } else {
        output::text(&text(&status));
    }
    Ok(ExitCode::SUCCESS)
}

/// For people. What a coordinator of another version does not tell is left out.
fn text(status: &Value) -> String {
    let mut text = String::new();
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let time = |seconds: &Value| show_time_roughly(number(seconds) * 1e9);
    let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    // Writing to a text cannot fail.
    _ = writeln!(text, "for {}, {} nodes", time(&status["for_s"]), nodes.len());
    let counts = ["announcements", "decisions", "missing", "stale", "refused", "lost"];
    let counts = counts.map(|name| format!("{} {name}", show_number(number(&status[name]))));
    _ = writeln!(text, "{}", counts.join(", "));
    let council = &status["roles"]["council"];
    if council.is_object() {
        let decision = match council["decision"]["policy"].as_str() {
            Some(policy) => algorithm(policy, number(&council["decision"]["window_us"])),
            None => "nothing yet".to_owned(),
        };
        let (voters, known) = (number(&council["voters"]), number(&council["situations"]));
        _ = writeln!(text, "council: {decision}; {voters} nodes vote; {known} situations are known");
    }
    if !nodes.is_empty() {
        _ = writeln!(
            text,
            "\n{:<28} {:<10} {:>8} {:>16} {:>14}  uses",
            "node", "kind", "heard", "clock off by", "busy MB/s"
        );
    }
    for node in nodes {
        let clock = match number(&node["offset_error_us"]) {
            0.0 => "-".to_owned(),
            error => format!("{:.0} +- {error:.0} us", number(&node["offset_us"])),
        };
        let (name, kind) = (node["name"].as_str().unwrap_or("?"), node["kind"].as_str().unwrap_or("?"));
        let uses = algorithm(node["policy"].as_str().unwrap_or("?"), number(&node["window_us"]));
        let late = if node["is_current"] == true { "" } else { " (not what was decided)" };
        let (heard, rate) = (time(&node["silent_s"]), number(&node["busy_mb_s"]));
        _ = writeln!(text, "{name:<28} {kind:<10} {heard:>8} {clock:>16} {rate:>14.1}  {uses}{late}");
    }
    text
}

fn algorithm(policy: &str, window_us: f64) -> String {
    if window_us > 0.0 { format!("{policy} window={window_us}us") } else { policy.to_owned() }
}
