//! `sluice coordinate`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use sd_notify::NotifyState;
use serde_json::Value;
use sluice_adapt::council::{EPSILON, Method};
use sluice_adapt::orchestrator::{Settings, Slicing};
use sluice_control::serve::{self, Options};
use sluice_control::{Address, Council, Limits, Orchestrator, Role, by_node, read_token};
use sluice_metrics::{Endpoint, Samples};
use sluice_notation::{counted, parse_duration, show_number, show_time, show_time_roughly};

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
    /// What it does for its nodes: council (which time window I/O nodes use, or none), orchestrator (which programs data servers serve one at
    /// a time), or both with a comma between
    #[arg(long, value_name = "ROLE", default_value = "council", value_delimiter = ',',
        value_parser = suggest::choice(&["council", "orchestrator"]), hide_possible_values = true)]
    role: Vec<String>,
    /// How the orchestrator decides: tried (by the paper's conditions, and what brings nothing is given up), paper (by the conditions alone),
    /// even (every program has the same) [default: tried]
    #[arg(long, value_name = "HOW",
        value_parser = suggest::choice(&["tried", "paper", "even"]), hide_possible_values = true)]
    orchestrate: Option<String>,
    /// Time that the orchestrator divides among programs, again and again: 100ms to 60s [default: 500ms]
    #[arg(long, value_name = "TIME")]
    window: Option<String>,
    /// Which bandits find the best window: confidence (they stop trying what can gain nothing, and begin with what similar situations
    /// know), epsilon-greedy (of Bez et al. 2019: any window with probability 0.15, else the best one so far) [default: confidence]
    #[arg(long, value_name = "NAME",
        value_parser = suggest::choice(&["confidence", "epsilon-greedy"]), hide_possible_values = true)]
    bandit: Option<String>,
    /// Each node has the window that is best for its own load, rather than all that which is best for most
    #[arg(long)]
    coexisting: bool,
    /// Answer GET /metrics for Prometheus there; docs/operation.md lists the names [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Add what I/O nodes recognise patterns by to this file (CSV), for training (docs/forwarding.md) [default: none]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
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
    let roles = roles(&args)?;
    let options = Options { listen: args.listen, token, state: args.state, limits, roles, record: args.record };
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

fn roles(args: &Args) -> anyhow::Result<Vec<Box<dyn Role>>> {
    let given = [
        ("--orchestrate", "orchestrator", args.orchestrate.is_some()),
        ("--window", "orchestrator", args.window.is_some()),
        ("--bandit", "council", args.bandit.is_some()),
        ("--coexisting", "council", args.coexisting),
    ];
    if let Some((option, role, _)) =
        given.iter().find(|(_, role, given)| *given && args.role.iter().all(|one| one != role))
    {
        bail!("{option} is for the role {role}, which it does not have: --role {role}");
    }
    let mut roles: Vec<Box<dyn Role>> = Vec::new();
    for (at, name) in args.role.iter().enumerate() {
        ensure!(!args.role[..at].contains(name), "--role {name}: it is there twice");
        roles.push(match name.as_str() {
            "council" => {
                let council =
                    Council::new(Box::new(by_node)).learning(method(args.bandit.as_deref().unwrap_or("confidence"))?);
                Box::new(council.coexisting(args.coexisting))
            }
            "orchestrator" => Box::new(Orchestrator::new(settings(
                args.orchestrate.as_deref().unwrap_or("tried"),
                args.window.as_deref().unwrap_or("500ms"),
            )?)),
            _ => bail!("--role {name}: there are council and orchestrator"),
        });
    }
    Ok(roles)
}

/// Which bandits a council has.
fn method(name: &str) -> anyhow::Result<Method> {
    Ok(match name {
        "confidence" => Method::Confidence,
        "epsilon-greedy" => Method::EpsilonGreedy {
            epsilon: EPSILON,
            // No life tries in the order of the one before.
            seed: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
        },
        _ => bail!("--bandit {name}: there are confidence and epsilon-greedy"),
    })
}

/// How an orchestrator decides.
fn settings(how: &str, window: &str) -> anyhow::Result<Settings> {
    let settings = match how {
        "tried" => Settings::default(),
        "paper" => Settings::paper(),
        "even" => Settings { slicing: Slicing::Even, ..Settings::paper() },
        _ => bail!("--orchestrate {how}: there are tried, paper and even"),
    };
    let length = parse_duration(window).with_context(|| format!("--window {window}: not a time, like 500ms"))?;
    ensure!(
        (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&length),
        "--window {window}: from 100ms to 60s"
    );
    Ok(Settings { window_ns: length.as_nanos() as u64, ..settings })
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
    _ = writeln!(text, "for {}, {}", time(&status["for_s"]), counted(nodes.len() as u64, "node"));
    let counts = ["announcements", "decisions", "missing", "stale", "refused", "lost"];
    let counts = counts.map(|name| format!("{} {name}", show_number(number(&status[name]))));
    _ = writeln!(text, "{}", counts.join(", "));
    let council = &status["roles"]["council"];
    if council.is_object() {
        let decision = match council["decision"]["policy"].as_str() {
            Some(policy) => algorithm(policy, number(&council["decision"]["window_us"])),
            None => "nothing yet".to_owned(),
        };
        let [voters, known] = ["voters", "situations"].map(|name| council[name].as_u64().unwrap_or(0));
        let (votes, are) = (if voters == 1 { "votes" } else { "vote" }, if known == 1 { "is" } else { "are" });
        let (voters, known) = (counted(voters, "node"), counted(known, "situation"));
        _ = writeln!(text, "council: {decision}; {voters} {votes}; {known} {are} known");
    }
    let orchestrator = &status["roles"]["orchestrator"];
    if orchestrator.is_object() {
        _ = writeln!(text, "orchestrator: {}", orchestrated(orchestrator));
    }
    if !nodes.is_empty() {
        _ = writeln!(
            text,
            "\n{:<28} {:<10} {:>8} {:>16} {:>14}  uses",
            "node", "kind", "heard", "clock known to", "busy MB/s"
        );
    }
    for node in nodes {
        let clock = match number(&node["offset_error_us"]) {
            0.0 => "-".to_owned(),
            error => format!("{error:.0} us"),
        };
        let (name, kind) = (node["name"].as_str().unwrap_or("?"), node["kind"].as_str().unwrap_or("?"));
        let uses = algorithm(node["policy"].as_str().unwrap_or("?"), number(&node["window_us"]));
        let late = if node["is_current"] == true { "" } else { " (not what was decided)" };
        let (heard, rate) = (time(&node["silent_s"]), number(&node["busy_mb_s"]));
        _ = writeln!(text, "{name:<28} {kind:<10} {heard:>8} {clock:>16} {rate:>14.1}  {uses}{late}");
    }
    text
}

/// What the orchestrator does.
fn orchestrated(role: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let gain = role["gain"].as_f64().map(|gain| format!(" ({:+.1} %)", gain * 100.0)).unwrap_or_default();
    let phase = match role["phase"].as_str().unwrap_or("?") {
        "idle" => "nothing to plan".to_owned(),
        "watch" => "measures without a plan".to_owned(),
        "trial" => "tries a plan".to_owned(),
        "keep" => format!("keeps a plan{gain}"),
        "refused" => format!("a plan did not bring enough{gain}"),
        other => other.to_owned(),
    };
    let slice = |slice: &Value| {
        let programs = slice["programs"].as_array().map_or(&[][..], Vec::as_slice);
        let names: Vec<&str> = programs.iter().filter_map(Value::as_str).collect();
        let names = if names.is_empty() { "others".to_owned() } else { names.join("+") };
        format!("{names} {}", show_time(number(&slice["ms"]) * 1e6))
    };
    let slices = role["plan"].as_array().map(|slices| slices.iter().map(slice).collect::<Vec<_>>().join(", "));
    let plan = slices.map(|slices| format!("; in each {}: {slices}", show_time(number(&role["window_ms"]) * 1e6)));
    let computing = role["computing"].as_array().map_or(&[][..], Vec::as_slice);
    let computing: Vec<&str> = computing.iter().filter_map(Value::as_str).collect();
    let compute = if computing.is_empty() { String::new() } else { format!("; computing: {}", computing.join(", ")) };
    format!("{phase}, {} data servers{}{compute}", number(&role["servers"]), plan.unwrap_or_default())
}

fn algorithm(policy: &str, window_us: f64) -> String {
    if window_us > 0.0 { format!("{policy} window={window_us}us") } else { policy.to_owned() }
}
