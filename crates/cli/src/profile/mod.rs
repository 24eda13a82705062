//! `sluice profile`: what a device needs to be known for, measured and kept in a file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use sluice_device::ModelError;
use sluice_device::profile::Profile;
use sluice_device::profiler::{Modelled, Options, Planner, Report, Target};

use sluice_notation::{counted, parse_bytes, parse_duration, show_size, show_time};

use crate::{input, output, suggest};

pub mod file;
mod meta;
mod plot;
mod table;
mod watch;

pub use meta::is_emulated;

/// Least size of the file.
const FILE_MIN: u64 = 16 << 20;

/// Why there is no profile.
const TOO_SHORT: &str = "the time did not suffice; give it a larger --budget";

/// Measures how much the order and size of requests matter to a storage
///
/// PATH is a directory: a disk, a striped volume, a mount. A temporary file is made there, written and read without the
/// page cache, sequentially and at random, and removed. The scheduler, the predictions and the simulator load the profile.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory on the storage to profile
    #[arg(required_unless_present = "device")]
    path: Option<PathBuf>,
    /// Profile a device model instead, in virtual time: hdd-7200, ssd-sata, nvme, ..., or a model's file (docs/devices.md)
    /// [default: none]
    #[arg(long, value_name = "MODEL",
        value_parser = suggest::models(), hide_possible_values = true, conflicts_with = "path")]
    device: Option<String>,
    #[command(flatten)]
    measuring: Measuring,
    /// Write the profile to this file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw the times and ratios into this SVG file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to measure and how well.
#[derive(clap::Args)]
pub struct Measuring {
    /// Time for everything, a number alone in seconds; what is not known well then has a wide interval
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    budget: Duration,
    /// Measure just these request sizes [default: from 8K to 4M, as many as it takes]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = bytes)]
    sizes: Option<Vec<u64>>,
    /// Size of the temporary file [default: 1200M, or what there is room and time for]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    file_size: Option<u64>,
    /// Half the width of the 95 % confidence interval, over the time, at which a time is known well enough: from 0.001 to 0.5
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    precision: f64,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Prints a profile, and draws it
    Show(Show),
}

#[derive(clap::Args)]
struct Show {
    /// The profile; - is standard input
    file: PathBuf,
    /// Draw the times and ratios into this SVG file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The size of a request or a file, on a command line: 512 bytes to 4 TiB.
///
/// # Errors
/// If it is none; what is expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let good = parse_bytes(text).filter(|bytes| (512..=1 << 42).contains(bytes));
    good.ok_or_else(|| "expected bytes from 512 to 4T, like 8K or 1M".to_owned())
}

/// A time on a command line where seconds are meant if no unit is given.
pub(crate) fn budget(text: &str) -> Option<Duration> {
    text.parse::<u64>().ok().map(Duration::from_secs).or_else(|| parse_duration(text))
}

fn time(text: &str) -> Result<Duration, String> {
    let good = budget(text).filter(|t| (1..=604_800).contains(&t.as_secs()));
    good.ok_or_else(|| "expected a time from 1s to a week, like 60s or 5min; a number alone is seconds".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let good = text.parse().ok().filter(|share| (0.001..=0.5).contains(share));
    good.ok_or_else(|| "expected a number from 0.001 to 0.5".to_owned())
}

/// Measures, or shows.
///
/// # Errors
/// If there is nothing to measure, or it cannot be read or written.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = || args.out.iter().chain(&args.plot).map(PathBuf::as_path);
    output::check_standard(files(), args.json)?;
    files().try_for_each(output::check_file)?;
    check_apart(args.out.as_deref(), args.plot.as_deref())?;
    match args {
        Args { command: Some(Command::Show(show)), .. } => run_show(&show),
        Args { device: Some(ref model), .. } => run_model(&args, model),
        _ => run_path(&args),
    }
}

impl Measuring {
    /// As the profiler has them.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn options(&self) -> anyhow::Result<Options> {
        let mut sizes = self.sizes.clone();
        if let Some(sizes) = &mut sizes {
            sizes.sort_unstable();
            sizes.dedup();
            if sizes.last().is_some_and(|largest| *largest > self.file_size.unwrap_or(1200 << 20) / 4) {
                bail!("--sizes: the largest must be at most a quarter of the file; make it larger with --file-size");
            }
        }
        let file_bytes = self.file_size.unwrap_or(1200 << 20);
        if file_bytes < FILE_MIN {
            bail!("--file-size: at least {}, so that random accesses are random", show_size(FILE_MIN as f64));
        }
        Ok(Options {
            sizes,
            file_bytes,
            budget_ns: self.budget.as_nanos() as u64,
            precision: self.precision,
            seed: self.seed,
            ..Options::default()
        })
    }
}

impl Args {
    /// Writes and prints what was found.
    fn deliver(&self, report: &Report) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            output::write_file(out, report.profile.to_text().as_bytes())?;
        }
        draw(&report.profile, self.plot.as_deref())?;
        if self.json {
            output::line(format_args!("{:#}", table::json(report)));
        } else if !self.out.iter().chain(&self.plot).any(|path| output::is_standard(path)) {
            output::text(&table::text(&report.profile));
            let (requests, time) = (counted(report.requests, "request"), show_time(report.elapsed_ns as f64));
            let clock = if self.device.is_some() { " of virtual time" } else { "" };
            output::say(format_args!("\n{requests} in {time}{clock}"));
            for (what, path) in [("profile", &self.out), ("plot", &self.plot)] {
                if let Some(path) = path {
                    output::say(format_args!("{what}: {}", path.display()));
                }
            }
        }
        for warning in &report.warnings {
            output::tell(format_args!("warning: {warning}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn draw(profile: &Profile, to: Option<&std::path::Path>) -> anyhow::Result<()> {
    let Some(to) = to else { return Ok(()) };
    let svg = plot::draw(profile).context("cannot draw the plot")?;
    output::write_file(to, svg.as_bytes())
}

/// That the picture does not take the place of the profile.
fn check_apart(profile: Option<&std::path::Path>, plot: Option<&std::path::Path>) -> anyhow::Result<()> {
    let real = |path: &std::path::Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(profile) = profile.filter(|profile| plot.map(real) == Some(real(profile))) {
        bail!("{}: the picture would take the place of the profile", profile.display());
    }
    Ok(())
}

fn run_show(show: &Show) -> anyhow::Result<ExitCode> {
    output::check_standard(show.plot.as_deref(), show.json)?;
    check_apart(Some(&show.file), show.plot.as_deref().filter(|plot| !output::is_standard(plot)))?;
    let name = input::name(&show.file);
    let text = input::text(&show.file).with_context(|| format!("{name} cannot be read"))?;
    let profile = Profile::parse(&name, &text)?;
    draw(&profile, show.plot.as_deref())?;
    if show.json {
        output::pretty_json(&profile)?;
    } else if !show.plot.as_deref().is_some_and(output::is_standard) {
        output::text(&table::text(&profile));
    }
    Ok(ExitCode::SUCCESS)
}

fn run_model(args: &Args, model: &str) -> anyhow::Result<ExitCode> {
    let options = args.measuring.options()?;
    let target = Modelled::of(model, args.measuring.seed, options.file_bytes);
    let mut target = target.map_err(|error| match &error {
        ModelError::Unknown { .. } => {
            let known = sluice_device::models().iter().map(|model| model.name);
            anyhow::anyhow!("{error}{}", sluice_notation::hint(model, known))
        }
        _ => error.into(),
    })?;
    let Ok(mut report) = sluice_device::profiler::profile(&mut target, &options);
    anyhow::ensure!(report.is_enough, TOO_SHORT);
    meta::fill(&mut report.profile, &format!("emulated {model} (seed {})", args.measuring.seed), true);
    args.deliver(&report)
}

fn run_path(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args.path.as_deref().context("a directory, or --device MODEL, is needed")?;
    let mut options = args.measuring.options()?;
    // Every request in flight has a thread of its own.
    options.in_flight_max = 64;
    let stop = crate::interrupt::flag()?;
    let room = file::room(path)?;
    let mut warnings = Vec::new();
    if args.measuring.file_size.is_none() {
        options.file_bytes = options.file_bytes.min(room / 2) / (1 << 20) * (1 << 20);
    }
    if options.file_bytes.saturating_add(FILE_MIN) > room || options.file_bytes < FILE_MIN {
        let (wanted, there) = (show_size(options.file_bytes.max(FILE_MIN) as f64), show_size(room as f64));
        bail!("{}: {there} are free, too little for a file of {wanted}; see --file-size", path.display());
    }
    let watch = watch::Watch::new(path);
    let mut target = file::FileTarget::create(path, options.file_bytes, file::Name::None, stop)?;
    warnings.extend(target.warning());
    let bar = watch::bar(args.measuring.budget);
    let measured = measure(&mut target, &args.measuring, &mut options, &bar);
    bar.finish_and_clear();
    let removed = target.remove();
    let mut report = match measured {
        Err(file::Failure::Stopped) => {
            output::tell("interrupted; the temporary file is removed, nothing was written");
            return Ok(ExitCode::from(130));
        }
        Err(file::Failure::Io(error)) => {
            return Err(error).with_context(|| format!("{}: the temporary file is removed", path.display()));
        }
        Ok(report) => report,
    };
    removed?;
    let emulated = meta::is_emulated(path);
    let device = format!("{}{}", if emulated { "emulated, mounted at " } else { "" }, target.path().display());
    meta::fill(&mut report.profile, &device, emulated);
    warnings.append(&mut report.warnings);
    warnings.extend(watch.warnings(target.bytes_moved()));
    warnings.extend(file::suspicions(&report.profile));
    report.warnings = warnings;
    args.deliver(&report)
}

/// Profiles a directory's device at a few sizes, for whoever needs to know it roughly. `None` if `stop` said so.
///
/// # Errors
/// If the file cannot be made, read or written.
pub(crate) fn quick(
    path: &std::path::Path,
    budget: Duration,
    file_bytes: u64,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Option<Profile>> {
    let sizes = Some((13..=20).map(|bits| 1 << bits).collect());
    let measuring = Measuring { budget, sizes, file_size: None, precision: 0.05, seed: 1 };
    let mut options = Options { file_bytes, in_flight_max: 1, ..measuring.options()? };
    let mut target = file::FileTarget::create(path, file_bytes, file::Name::None, stop)?;
    target.warning().into_iter().for_each(|warning| output::tell(format_args!("warning: {warning}")));
    match measure(&mut target, &measuring, &mut options, bar) {
        Ok(report) => Ok(Some(report.profile)),
        Err(file::Failure::Stopped) => Ok(None),
        Err(file::Failure::Io(error)) => Err(error).with_context(|| format!("profiling {}", path.display())),
    }
}

/// What says that memory was measured and not a device.
pub(crate) fn suspicion(profile: &Profile) -> Option<String> {
    file::suspicions(profile)
}

/// Plans and does the measurements, and shows how far it is.
fn measure(
    target: &mut file::FileTarget,
    args: &Measuring,
    options: &mut Options,
    bar: &indicatif::ProgressBar,
) -> Result<Report, file::Failure> {
    bar.set_message("writing the file");
    // A slow device gets a smaller file, so that there is time left to measure.
    let third = args.file_size.is_none().then_some(args.budget / 3);
    let prepared = target.prepare_within(third, bar)?;
    options.file_bytes = target.file_bytes();
    let dropped = drop_sizes(options)?;
    let mut planner = Planner::new(options.clone());
    planner.prepared(prepared);
    while let Some(burst) = planner.next_burst() {
        let progress = planner.progress();
        bar.set_position((progress.share * watch::STEPS as f64) as u64);
        bar.set_message(format!("{}, at most {} s left", progress.doing, progress.left_ns / 1_000_000_000));
        let outcome = target.run(&burst)?;
        planner.record(&burst, &outcome);
    }
    let mut report = planner.report();
    if !report.is_enough {
        return Err(std::io::Error::other(TOO_SHORT).into());
    }
    report.warnings.extend(dropped);
    Ok(report)
}

/// Drops sizes of more than a quarter of the file, which has become smaller than it was to be; says so, if there were any.
///
/// # Errors
/// If that were all.
fn drop_sizes(options: &mut Options) -> std::io::Result<Option<String>> {
    let Some(sizes) = &mut options.sizes else { return Ok(None) };
    let (file, before) = (options.file_bytes, sizes.clone());
    sizes.retain(|size| *size <= file / 4);
    if sizes.len() == before.len() {
        return Ok(None);
    }
    let names: Vec<String> = before[sizes.len()..].iter().map(|size| show_size(*size as f64)).collect();
    let why = format!(
        "--sizes {}: not measured: there was room or time for a file of {} only, and random places need four times the size; \
         see --file-size",
        names.join(","),
        show_size(file as f64)
    );
    if sizes.is_empty() { Err(std::io::Error::other(why)) } else { Ok(Some(why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_the_file_has_become_too_small_for_are_left_out() {
        let with = |sizes: &[u64]| Options { sizes: Some(sizes.to_vec()), file_bytes: 64 << 20, ..Options::default() };
        let mut options = with(&[8192, 16 << 20, 17 << 20, 128 << 20]);
        let said = drop_sizes(&mut options).unwrap().unwrap();
        assert!(said.starts_with("--sizes 17 MiB,128 MiB: not measured"), "{said}");
        assert_eq!(options.sizes, Some(vec![8192, 16 << 20]));
        assert_eq!(drop_sizes(&mut options).unwrap(), None);
        assert!(drop_sizes(&mut with(&[32 << 20])).is_err());
    }

    #[test]
    fn times_and_sizes_are_checked() {
        assert_eq!(time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2min"), Ok(Duration::from_secs(120)));
        assert!(time("0").is_err() && time("1ms").is_err() && time("soon").is_err());
        assert_eq!(bytes("8K"), Ok(8192));
        assert!(bytes("1").is_err() && share("2").is_err() && share("nan").is_err());
    }
}
