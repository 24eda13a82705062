//! `sluice mount`.

mod daemon;
pub(crate) mod device;
pub(crate) mod helper;
mod options;
mod serve;
mod signals;
mod storage;
mod tier;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{self, Settings};
use crate::control;
use crate::output::{Usage, Verbosity};
use crate::suggest;

pub(crate) use serve::state_path;
pub(crate) use storage::on_disks;
pub(crate) use tier::{device as open_device, is_in_use};

/// Puts the scheduler in front of a directory, or of several as one striped volume
///
/// Stays in the foreground until it is unmounted: with Ctrl-C, or from elsewhere with `sluice unmount MOUNTPOINT`. What
/// the configuration file says (sluice.example.toml explains all of it), options here override.
#[derive(clap::Args)]
#[command(override_usage = "sluice mount [OPTIONS] SOURCE MOUNTPOINT\n       \
    sluice mount [OPTIONS] --target DIR --target DIR... MOUNTPOINT\n       \
    sluice mount [OPTIONS] --config FILE")]
pub(crate) struct Args {
    /// The directory to mount, and where. With --target only where; with both in the configuration file neither
    #[arg(value_names = ["SOURCE", "MOUNTPOINT"], num_args = 0..=2)]
    paths: Vec<PathBuf>,
    /// Configuration file in TOML; - is standard input [default: none]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Return when the mount is usable, and serve it in the background
    #[arg(short, long)]
    daemon: bool,

    /// Scheduling algorithm, which stays; `sluice policy --list` shows them all [default: adaptive, chosen and changed while the mount
    /// is in use, see --selector]
    #[arg(short, long, value_name = "NAME", value_parser = suggest::policies().and(config::ADAPTIVE), help_heading = "Scheduling")]
    policy: Option<String>,
    /// Who chooses the algorithm while the mount is in use: fixed (nobody), bandit (what serves best is tried out), tree (a
    /// model says it), tree+bandit (what a model says is begun with), or auto (fixed with --policy, --param or a coordinator, else
    /// bandit). With both, --policy is where it begins [default: auto]
    #[arg(long, value_name = "WHO", help_heading = "Scheduling")]
    selector: Option<String>,
    /// The model that tree and tree+bandit ask [default: the one that comes with Sluicegate]
    #[arg(long, value_name = "FILE", help_heading = "Scheduling")]
    model: Option<PathBuf>,
    /// Parameter of the algorithm; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = config::key_value, help_heading = "Scheduling")]
    param: Vec<(String, String)>,
    /// Batches in flight for each target: a number, 0 for as many as there are workers, or auto (8 on hard disks, else 0;
    /// or as is learned) [default: auto]
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    in_flight: Option<String>,
    /// Let the device idle a moment for the stream it has just served: auto (where its profile, its emulated model
    /// or device.kind says that it has an arm, or where that is learned), off, or what moving costs it, like 8ms [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = "Scheduling")]
    anticipation: Option<String>,
    /// Put syncs (fsync) of several programs off a little so that they go together and share a commit of the file system's
    /// journal: auto (where the device has an arm, or that is learned), off, or what moving costs it, like 8ms [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = "Scheduling")]
    group_commit: Option<String>,
    /// What the device is like: a profile that `sluice profile` has measured, auto (it is learned from what it serves), or off (nothing
    /// is) [default: auto with a selector where nothing says what the device is, else off]
    #[arg(long, value_name = "FILE", help_heading = "Scheduling")]
    profile: Option<String>,
    /// A request that waited so long goes next whatever the algorithm prefers; 0 for never [default: 500ms]
    #[arg(long, value_name = "DURATION", help_heading = "Scheduling")]
    max_wait: Option<String>,
    /// Whether overlapping requests keep their order: strict, none [default: strict]
    #[arg(long, value_name = "HOW",
        value_parser = suggest::choice(&["strict", "none"]), hide_possible_values = true, help_heading = "Scheduling")]
    ordering: Option<String>,
    /// Most bytes in a batch of several requests [default: 1M]
    #[arg(long, value_name = "BYTES", help_heading = "Scheduling")]
    batch_bytes_max: Option<String>,
    /// Most requests in a batch [default: 256]
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    batch_requests_max: Option<String>,
    /// Engines over the targets: per-target, shared, or auto (one for each target, unless the algorithm coordinates them)
    /// [default: auto]
    #[arg(long, value_name = "HOW",
        value_parser = suggest::choice(&["auto", "per-target", "shared"]), hide_possible_values = true, help_heading = "Scheduling")]
    engines: Option<String>,
    /// Who executes requests: threads, io_uring, or auto (threads) [default: auto]
    #[arg(long, value_name = "WHO",
        value_parser = suggest::choice(&["auto", "threads", "io_uring"]), hide_possible_values = true, help_heading = "Scheduling")]
    workers: Option<String>,

    /// HOST:PORT of a coordinator (sluice coordinate), which chooses windows of twins; requests never wait for it [default:
    /// none]
    #[arg(long, value_name = "ADDRESS", help_heading = "Scheduling")]
    coordinator: Option<String>,

    /// Directory of a striped volume; give all of them, in their order. Empty directories become a new volume
    #[arg(short, long, value_name = "DIR", help_heading = "Storage")]
    target: Vec<PathBuf>,
    /// Stripe size of a new volume; one that is there has its own [default: 64K]
    #[arg(long, value_name = "BYTES", help_heading = "Storage")]
    stripe: Option<String>,
    /// Target that each file of a new volume begins on: hash (chosen by hash, so that small files are everywhere), zero (the
    /// first); a volume that is there has its own rule [default: hash]
    #[arg(long, value_name = "RULE",
        value_parser = suggest::choice(&["hash", "zero"]), hide_possible_values = true, help_heading = "Storage")]
    first_target: Option<String>,
    /// Bypass the page cache below the mount (O_DIRECT)
    #[arg(long, help_heading = "Storage")]
    direct: bool,
    /// Emulate a device below each target, real bytes and computed times: hdd-7200, ssd-sata, nvme, ..., or a model's file
    /// (docs/devices.md) [default: none]
    #[arg(long, value_name = "MODEL",
        value_parser = suggest::models(), hide_possible_values = true, help_heading = "Storage")]
    emulate: Option<String>,

    /// What the kernel may keep of files: none, auto (reads), writeback (writes too) [default: auto]
    #[arg(long, value_name = "MODE",
        value_parser = suggest::choice(&["none", "auto", "writeback"]), hide_possible_values = true, help_heading = "Mount")]
    cache: Option<String>,
    /// Let other users in [default: true for root, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true,
        help_heading = "Mount")]
    allow_other: Option<String>,
    /// Refuse changes
    #[arg(long, help_heading = "Mount")]
    read_only: bool,
    /// Options as in /etc/fstab: ro, noexec, noatime, ... and keys of the configuration file (cache=none,policy=hbrr). With
    /// remount a living mount changes: sluice mount -o remount,ro MOUNTPOINT
    #[arg(short, value_name = "OPTION,...", help_heading = "Mount")]
    o: Vec<String>,
    /// Threads that serve the kernel; 0: twice the number of cores, 4 to 16 [default: 0]
    #[arg(long, value_name = "N", help_heading = "Mount")]
    threads: Option<String>,
    /// Answer GET /metrics for Prometheus there; docs/operation.md lists the names [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Mount")]
    metrics: Option<String>,
    /// Environment variable with a batch job's id, by which applications are told apart; may be given several times
    #[arg(long, value_name = "NAME", help_heading = "Mount")]
    job_variable: Vec<String>,

    /// Log file [default: standard error; with --daemon /var/log/sluice/NAME.log for root, else
    /// ~/.local/state/sluice/NAME.log]
    #[arg(long, value_name = "FILE", help_heading = "Log")]
    log: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or auto; goes before -v and -q [default: auto, which is warn at a
    /// terminal, info in a file]
    #[arg(long, value_name = "LEVEL", help_heading = "Log",
        value_parser = suggest::choice(&["auto", "error", "warn", "info", "debug", "trace"]), hide_possible_values = true)]
    log_level: Option<String>,
}

/// Mounts, and serves until the end.
///
/// # Errors
/// Whatever keeps it from mounting.
pub(crate) fn run(args: &Args, verbosity: Verbosity, daemon_child: bool) -> anyhow::Result<ExitCode> {
    if daemon_child {
        return Ok(daemon::child(|| settings(args, verbosity)));
    }
    let table = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let known = args.paths.last().map_or_else(String::new, |path| options::of_table(&table, path));
    if let Some(change) = options::remount(&args.o, &known)? {
        return remount(args, &change);
    }
    let settings = settings(args, verbosity)?;
    if args.daemon { daemon::start(&settings) } else { serve::in_foreground(settings) }
}

fn remount(args: &Args, change: &sluice_fuse::Remount) -> anyhow::Result<ExitCode> {
    let [mountpoint] = args.paths.as_slice() else {
        bail!(Usage("which mount is to change? sluice mount -o remount,... MOUNTPOINT".to_owned()));
    };
    let path = control::canonical(mountpoint)?;
    options::check_remount(&args.o, &path)?;
    sluice_fuse::remount(&path, change)?;
    Ok(ExitCode::SUCCESS)
}

/// Defaults, files, options of `mount`, command line; nothing is opened yet.
fn settings(args: &Args, verbosity: Verbosity) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    if args.daemon && args.config.as_deref().is_some_and(|path| path == "-") {
        bail!("--config -: the background has no standard input; name a file, or leave --daemon out");
    }
    for file in args.config.iter().chain(&options::config_files(&args.o)) {
        config::read(file, &mut settings)?;
    }
    let of_files = settings.policy.clone();
    options::apply(&args.o, &mut settings)?;
    settings.log_level = verbosity.level().and_then(LevelFilter::into_level).or(settings.log_level);
    apply(args, of_files.as_deref(), &mut settings)?;
    settings.policy()?;
    if args.model.is_some() && !settings.selector().asks_model() {
        bail!("--model: nobody asks it; with --selector tree or tree+bandit a model is asked");
    }
    settings.prior()?;
    check_paths(&settings)?;
    check_striping(&settings)?;
    options::check_times(&args.o, &settings)?;
    Ok(settings)
}

fn check_striping(settings: &Settings) -> anyhow::Result<()> {
    let what = match (settings.stripe, settings.first_target) {
        (Some(_), _) => "a stripe size",
        (None, Some(_)) => "the target that files begin on",
        (None, None) => return Ok(()),
    };
    if settings.targets.is_empty() {
        bail!(
            "{what} is for volumes striped over several directories, but a plain directory is to be mounted; \
             leave it out, or give the directories: sluice mount --stripe 64K --target DIR --target DIR... MOUNTPOINT"
        );
    }
    Ok(())
}

/// `of_files`: the algorithm that the files name.
fn apply(args: &Args, of_files: Option<&str>, settings: &mut Settings) -> anyhow::Result<()> {
    apply_paths(args, settings)?;
    let options: [(&str, &str, &str, &Option<String>); 21] = [
        ("--metrics", "mount", "metrics", &args.metrics),
        ("--coordinator", "coordinator", "address", &args.coordinator),
        ("--selector", "scheduler", "selector", &args.selector),
        ("--in-flight", "scheduler", "in_flight", &args.in_flight),
        ("--anticipation", "scheduler", "anticipation", &args.anticipation),
        ("--group-commit", "scheduler", "group_commit", &args.group_commit),
        ("--profile", "prediction", "profile", &args.profile),
        ("--max-wait", "scheduler", "max_wait", &args.max_wait),
        ("--ordering", "scheduler", "ordering", &args.ordering),
        ("--batch-bytes-max", "scheduler", "batch_bytes_max", &args.batch_bytes_max),
        ("--batch-requests-max", "scheduler", "batch_requests_max", &args.batch_requests_max),
        ("--engines", "scheduler", "engines", &args.engines),
        ("--workers", "scheduler", "workers", &args.workers),
        ("--stripe", "volume", "stripe", &args.stripe),
        ("--first-target", "volume", "first_target", &args.first_target),
        ("--emulate", "device", "emulate", &args.emulate),
        ("--cache", "mount", "cache", &args.cache),
        ("--allow-other", "mount", "allow_other", &args.allow_other),
        ("--threads", "mount", "threads", &args.threads),
        ("--log-level", "log", "level", &args.log_level),
        ("--policy", "scheduler", "policy", &args.policy),
    ];
    for (option, section, key, value) in options {
        if let Some(value) = value {
            settings.set(section, key, std::slice::from_ref(value), option)?;
        }
    }
    if settings.policy.as_deref() != of_files {
        // The file's parameters are for the file's algorithm.
        settings.params.clear();
    }
    settings.params.retain(|(key, _)| args.param.iter().all(|(given, _)| given != key));
    settings.params.extend(args.param.iter().cloned());
    if !args.job_variable.is_empty() {
        settings.set("mount", "job_variables", &args.job_variable, "--job-variable")?;
    }
    settings.model = args.model.clone().or(settings.model.take());
    settings.direct |= args.direct;
    settings.mount.read_only |= args.read_only;
    settings.log = args.log.clone().or(settings.log.take());
    Ok(())
}

fn apply_paths(args: &Args, settings: &mut Settings) -> anyhow::Result<()> {
    if !args.target.is_empty() {
        settings.targets.clone_from(&args.target);
        settings.source = None;
    }
    match args.paths.as_slice() {
        [] => {}
        [mountpoint] => settings.mountpoint = Some(mountpoint.clone()),
        [source, mountpoint, ..] => {
            if !args.target.is_empty() {
                bail!(
                    "the targets are what is mounted, so there is no SOURCE {}; \
                     give only the mountpoint: sluice mount --target DIR --target DIR... {}",
                    source.display(),
                    mountpoint.display()
                );
            }
            settings.source = Some(source.clone());
            if !settings.targets.is_empty() {
                // What the file says of its targets is for these.
                settings.stripe = settings.stripe.filter(|_| args.stripe.is_some());
                settings.first_target = settings.first_target.filter(|_| args.first_target.is_some());
            }
            settings.targets.clear();
            settings.mountpoint = Some(mountpoint.clone());
        }
    }
    Ok(())
}

fn check_paths(settings: &Settings) -> anyhow::Result<()> {
    const USAGE: &str = "sluice mount SOURCE MOUNTPOINT, or sluice mount --target DIR --target DIR... MOUNTPOINT";
    match (&settings.source, settings.targets.is_empty(), &settings.mountpoint) {
        (Some(_), false, _) => bail!("the configuration file has both mount.source and volume.targets; keep one"),
        (_, _, None) => bail!(Usage(format!("what to mount, and where? {USAGE}"))),
        (None, true, Some(path)) => bail!(Usage(format!(
            "one path was given ({}), but a source and a mountpoint are needed: {USAGE}",
            path.display()
        ))),
        (_, _, Some(mountpoint)) => check_inside(settings, mountpoint),
    }
}

/// What the mount writes must not lie inside it: it would wait for itself, or be in use by itself for ever.
fn check_inside(settings: &Settings, mountpoint: &Path) -> anyhow::Result<()> {
    let written = [
        ("the log file", &settings.log),
        ("the log of decisions", &settings.decisions),
        ("the file of what is learned", &settings.learned),
        ("the file of what is learned for predictions", &settings.prediction.state),
    ];
    for (what, path) in written {
        if let Some(path) = path.as_deref().filter(|path| is_inside(path, mountpoint)) {
            bail!("{what} {} lies inside the mountpoint; choose another place", path.display());
        }
    }
    Ok(())
}

/// Whether a file lies inside a mountpoint. Where either is missing, opening it says so.
pub(crate) fn is_inside(file: &Path, mountpoint: &Path) -> bool {
    let Ok(mut file) = std::path::absolute(file) else { return false };
    // A link leads to where it does, also if nothing is there yet; the kernel follows 40 at most.
    for _ in 0..40 {
        let (Ok(to), Some(dir)) = (std::fs::read_link(&file), file.parent()) else { break };
        file = dir.join(to);
    }
    // What is made later is in the deepest directory that is there.
    let there = file.ancestors().find_map(|path| path.canonicalize().ok());
    there.is_some_and(|path| control::canonical(mountpoint).is_ok_and(|at| path.starts_with(at)))
}
