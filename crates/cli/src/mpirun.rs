//! `sluice mpirun`: a launcher of MPI programs, told to load what stands between them and their MPI library's I/O.

use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::output;

mod cache;

/// Runs an MPI program, by any launcher, so that its file accesses suit the data servers
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Say what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// The MPI library of the program
    #[arg(long, value_enum, default_value = "auto")]
    mpi: Mpi,
    /// How collective calls are carried out; all but auto are for comparing
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// Write there, as JSON, what was done for each file [default: SLUICE_MPI_REPORT, else nowhere]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Whether independent reads and writes are data-driven (DualPar): where that seems to pay, always, or never
    /// [default: SLUICE_DUALPAR, else off]
    #[arg(long, value_enum)]
    dualpar: Option<DualPar>,
    /// What file systems of Sluicegate are told that the processes are: one job of their user, wherever they run
    /// [default: SLUICE_MPI_JOB, else a name of this run's own: HOST-PID-SECONDS]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// What processes read for each other goes there: addresses of Memcached servers (HOST:PORT, or the path of a socket;
    /// several with commas), or auto: one that is started on this machine, and ended [default: SLUICE_MEMCACHED, else none]
    #[arg(long, value_name = "ADDRESSES")]
    memcached: Option<String>,
    /// The shared object to load [default: libsluice-mpich.so or libsluice-openmpi.so beside this command or in ../lib/sluice]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The launcher and its arguments, as without sluice; or the program alone
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Mpi {
    /// That of the program or else of the launcher
    Auto,
    Mpich,
    Openmpi,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DualPar {
    Auto,
    Always,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// As a cost model and what came of it say
    Auto,
    /// Each data server's data by one process; data exchanged
    Agents,
    /// As agents, but what is read by one process is only asked for early, and read by whom it is for
    Early,
    /// Own data in the order of ranks
    Timed,
    /// By the MPI library
    Library,
}

impl DualPar {
    /// As the environment has it.
    fn name(self) -> &'static str {
        match self {
            DualPar::Auto => "auto",
            DualPar::Always => "always",
            DualPar::Off => "off",
        }
    }
}

impl Mpi {
    /// The end of its shared object's name.
    fn name(self) -> &'static str {
        if self == Mpi::Openmpi { "openmpi" } else { "mpich" }
    }
}

/// What programs of an MPI library are linked with.
const NEEDED: [(&str, Mpi); 3] =
    [("libmpich.so.12", Mpi::Mpich), ("libmpi.so.12", Mpi::Mpich), ("libmpi.so.40", Mpi::Openmpi)];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (mpi, why) = match args.mpi {
        Mpi::Auto => detect(&args.command)?,
        mpi => (mpi, "as told".to_owned()),
    };
    let library = match &args.library {
        Some(path) => path.canonicalize().with_context(|| format!("cannot load {}", path.display()))?,
        None => installed(mpi)?,
    };
    let mut variables: Vec<(&str, OsString)> = Vec::new();
    let mut preload = library.clone().into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    variables.push(("LD_PRELOAD", preload));
    if args.mode != Mode::Auto {
        let mode = clap::ValueEnum::to_possible_value(&args.mode).map(|value| value.get_name().to_owned());
        variables.push(("SLUICE_MPI", mode.unwrap_or_default().into()));
    }
    if let Some(report) = args.report.clone().or_else(|| std::env::var_os("SLUICE_MPI_REPORT").map(PathBuf::from)) {
        // Processes may have other working directories.
        let report = std::path::absolute(&report).with_context(|| format!("cannot write {}", report.display()))?;
        variables.push(("SLUICE_MPI_REPORT", report.into_os_string()));
    }
    variables.push(("SLUICE_MPI_JOB", job(args.job.as_deref())?));
    let dualpar = args.dualpar.map(|dualpar| OsString::from(dualpar.name()));
    let dualpar = dualpar.or_else(|| std::env::var_os("SLUICE_DUALPAR"));
    if args.memcached.is_some() && dualpar.as_deref().is_none_or(|dualpar| dualpar == DualPar::Off.name()) {
        bail!("--memcached is for data-driven execution, which nobody asked for: say --dualpar auto, too");
    }
    variables.extend(dualpar.map(|dualpar| ("SLUICE_DUALPAR", dualpar)));
    let servers = args.memcached.clone().map(OsString::from).or_else(|| std::env::var_os("SLUICE_MEMCACHED"));
    let wants_cache = servers.as_deref() == Some(OsStr::new("auto"));
    let cache = if wants_cache && !args.dry_run { Some(cache::Cache::start()?) } else { None };
    if let Some(servers) = cache.as_ref().map(|cache| cache.socket().into_os_string()).or(servers) {
        variables.push(("SLUICE_MEMCACHED", servers));
    }
    let (command, environment) = launch(&args.command, &variables);
    if args.dry_run {
        output::say(format!("library: {} ({why})", library.display()));
        if wants_cache {
            output::say("cache: a memcached on a socket of its own, whose path takes the place of auto".to_owned());
        }
        for (name, value) in environment {
            output::say(format!("environment: {name}={}", value.to_string_lossy()));
        }
        let words: Vec<_> = command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        output::say(format!("command: {}", words.join(" ")));
        return Ok(ExitCode::SUCCESS);
    }
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]).envs(environment.iter().cloned());
    if cache.is_some() {
        return cache::run(program);
    }
    Err(program.exec()).with_context(|| format!("cannot run {}", command[0].to_string_lossy()))
}

/// The name of the job: as told, or this run's own.
fn job(told: Option<&str>) -> anyhow::Result<OsString> {
    let told = told.map(OsString::from).or_else(|| std::env::var_os("SLUICE_MPI_JOB"));
    let name = told.unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        format!("{:.64}-{}-{}", host.trim(), std::process::id(), now.as_secs()).into()
    });
    let is_name =
        |name: &str| (1..=96).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c.is_whitespace());
    if !name.to_str().is_some_and(is_name) {
        bail!("the job's name {name:?} must have 1 to 96 bytes, without spaces");
    }
    Ok(name)
}

fn quoted(word: &str) -> String {
    let is_plain = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_./:=,+@%".contains(c));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The command line with what its launcher must be told so that processes on other nodes get the variables, and those that it
/// gets itself: where it has an option for it, it does without, and so does not load what is meant for the program.
fn launch<'a>(command: &[OsString], variables: &'a [(&'a str, OsString)]) -> (Vec<OsString>, Vec<(&'a str, OsString)>) {
    let pairs = variables.iter();
    let (options, each): (Vec<OsString>, bool) = match launcher(&command[0]) {
        Some(Mpi::Openmpi) => {
            let assigned = |(name, value): &(&str, OsString)| {
                let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
                ["-x".into(), OsString::from_vec(text)]
            };
            (pairs.flat_map(assigned).collect(), true)
        }
        Some(_) => (pairs.flat_map(|(name, value)| ["-genv".into(), (*name).into(), value.clone()]).collect(), false),
        None => return (command.to_vec(), variables.to_vec()),
    };
    let mut words = vec![command[0].clone()];
    words.extend_from_slice(&options);
    for word in &command[1..] {
        words.push(word.clone());
        // Each of several programs has options of its own.
        if each && word == ":" {
            words.extend_from_slice(&options);
        }
    }
    (words, Vec::new())
}

fn in_path(program: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_program);
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(is_program)
}

/// Whose launcher a program is: the names that Hydra and Open MPI install, behind what links there may be.
fn launcher(program: &OsStr) -> Option<Mpi> {
    let path = in_path(program)?.canonicalize().ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    if name.contains("hydra") || name.contains("mpich") {
        Some(Mpi::Mpich)
    } else if name.contains("openmpi") || name == "orterun" || name == "prterun" {
        Some(Mpi::Openmpi)
    } else {
        None
    }
}

/// The library that a program is linked with, by the names in the file.
fn linked_with(path: &Path) -> Option<(Mpi, &'static str)> {
    let bytes = std::fs::read(path).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    NEEDED.iter().find_map(|&(name, mpi)| {
        let whole = [b"\0", name.as_bytes(), b"\0"].concat();
        bytes.windows(whole.len()).any(|window| window == whole).then_some((mpi, name))
    })
}

fn detect(command: &[OsString]) -> anyhow::Result<(Mpi, String)> {
    for word in command {
        if let Some((mpi, needs)) = in_path(word).and_then(|path| linked_with(&path)) {
            return Ok((mpi, format!("{} is linked with {needs}", word.to_string_lossy())));
        }
    }
    if let Some(mpi) = launcher(&command[0]) {
        return Ok((mpi, format!("{} launches programs of {}", command[0].to_string_lossy(), mpi.name())));
    }
    bail!("which MPI library the program uses is not clear; say it with --mpi mpich or --mpi openmpi")
}

fn installed(mpi: Mpi) -> anyhow::Result<PathBuf> {
    let name = format!("libsluice-{}.so", mpi.name());
    let exe = std::env::current_exe().context("where this command is installed is not known")?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("../lib/{}-linux-gnu/sluice", std::env::consts::ARCH);
    let places = [".", "../lib/sluice", &multiarch].map(|place| dir.join(place).join(&name));
    places.iter().find_map(|place| place.canonicalize().ok()).with_context(|| {
        format!("{name} is not installed (`make install-mpi` does that); or say where it is with --library")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn launchers_that_are_not_known_have_it_in_their_environment() {
        let variables = [("LD_PRELOAD", "/lib/a.so".into())];
        let (command, environment) = launch(&words(&["no-such-launcher", "-n", "4", "./a.out"]), &variables);
        assert_eq!(command, words(&["no-such-launcher", "-n", "4", "./a.out"]));
        assert_eq!(environment, variables);
    }

    #[test]
    fn launchers_are_known_by_what_their_names_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let (orterun, hydra) = (program("orterun"), program("mpiexec.hydra"));
        for (name, target, option) in [("a", &orterun, "-x"), ("b", &hydra, "-genv")] {
            let link = dir.path().join(name);
            std::os::unix::fs::symlink(target, &link).unwrap();
            let variables = [("LD_PRELOAD", "/lib/a.so".into())];
            let line = words(&[link.to_str().unwrap(), "-n", "1", "./a", ":", "-n", "1", "./b"]);
            let (command, environment) = launch(&line, &variables);
            assert!(environment.is_empty());
            assert_eq!(command[1], option);
            let times = command.iter().filter(|word| *word == option).count();
            assert_eq!(times, if option == "-x" { 2 } else { 1 }, "{command:?}");
        }
    }

    #[test]
    fn programs_tell_their_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        for (needed, mpi) in NEEDED {
            std::fs::write(&path, [b"\x7fELF...\0", needed.as_bytes(), b"\0..."].concat()).unwrap();
            assert_eq!(linked_with(&path), Some((mpi, needed)));
        }
        std::fs::write(&path, b"#!/bin/sh\nlibmpi.so.40").unwrap();
        assert_eq!(linked_with(&path), None);
    }
}
