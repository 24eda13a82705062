//! `sluice calibrate`: what serves each kind of workload best on a device, measured there.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde_json::json;
use sluice_adapt::device::{Estimate, Learner};
use sluice_adapt::selector::{Arm, Device, Kind, arms};
use sluice_device::Op;
use sluice_device::profile::Profile;
use sluice_notation::{counted, show_bytes, show_rate, show_time};
use sluice_runtime::VolumeConfig;

use crate::config::{Profiling, Settings};
use crate::{control, mount, output, profile, suggest};

mod busy;
mod measure;
mod place;
mod progress;

use measure::{Bed, PATTERNS, PROCESSES};
use place::Place;
use progress::{Progress, Task};

/// Most time for the profile, and its share of the budget.
const PROFILE_MAX: Duration = Duration::from_secs(60);
const PROFILE_SHARE: f64 = 0.15;
/// Size of the profile's file.
const PROFILE_BYTES: u64 = 256 << 20;
/// With less time nothing is to be learned.
const BUDGET_MIN: Duration = Duration::from_secs(10);
/// Least time for a pattern under an arm, and from where on each is run twice.
const SLOT_MIN: Duration = Duration::from_millis(100);
const TWICE: Duration = Duration::from_secs(2);
/// How long is looked at what others do.
const LOOK: Duration = Duration::from_secs(2);
/// Least size of the test files.
const FILES_MIN: u64 = 64 << 20;
/// What is called a gain.
const GAIN_MIN: f64 = 0.03;

/// Measures what serves each kind of workload best on a device
///
/// Profiles the device, then runs representative patterns for real on PATH (own and shared files, small and large requests, read and
/// written, by 8 threads in this process) with each configuration that a selector chooses from. Mounts of PATH that choose begin with
/// what was found. The test files are removed, however it ends; interrupted, it goes on when it is called again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory that is to be mounted
    path: PathBuf,
    /// Time for everything, a number alone in seconds
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time)]
    budget: Duration,
    /// Write what was learned to this file, too (scheduler.learned, sluice model show); - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Although others use the device
    #[arg(long)]
    force: bool,
    /// As for mounts with --direct: bypass the page cache
    #[arg(long)]
    direct: bool,
    /// As for mounts with --emulate: emulate a device, real bytes and computed times [default: none]
    #[arg(long, value_name = "MODEL", value_parser = suggest::models(), hide_possible_values = true)]
    emulate: Option<String>,
    /// Size of all test files together
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = profile::bytes)]
    file_size: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    let good = profile::budget(text).filter(|time| (BUDGET_MIN..=Duration::from_secs(86_400)).contains(time));
    let least = show_time(BUDGET_MIN.as_nanos() as f64);
    good.ok_or_else(|| format!("expected a time from {least} to a day, like 10min; a number alone is seconds"))
}

/// What a calibration knows of its device.
struct Known {
    device: Device,
    estimate: Estimate,
    config: VolumeConfig,
    arms: Vec<Arm>,
}

/// What a model is: its name, and where that is a file's, what is in it.
fn model_text(name_or_path: &str) -> String {
    let text = std::fs::read_to_string(name_or_path).unwrap_or_default();
    format!("{name_or_path}\n{text}")
}

/// Calibrates.
///
/// # Errors
/// If the path cannot be used, is busy or full, or a measurement fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    output::check_standard(args.out.as_deref(), args.json)?;
    args.out.as_deref().map_or(Ok(()), output::check_file)?;
    let path = checked(args)?;
    let name = mount::device::name(std::slice::from_ref(&path), args.emulate.as_deref());
    let keeps = keeps(&name, args)?;
    let state = |what: &str| mount::state_path(&name, what).filter(|_| keeps);
    let stop = crate::interrupt::flag()?;
    if let Some(at) = mounted(&path, args.emulate.is_some()) {
        output::tell(format_args!(
            "warning: {} is mounted at {} by Sluicegate: that mount goes on with what it learns itself; unmount it first, and \
             mount it again when this is done",
            path.display(),
            at.display()
        ));
    }
    let stopped = || stop.load(Ordering::Relaxed);
    if !look(&path, args, &stopped)? {
        return Ok(interrupted());
    }
    let task = Task::new(
        &path,
        args.emulate.as_deref().map(model_text),
        args.direct,
        args.budget.as_secs_f64(),
        args.file_size,
    );
    let kept = state("calibrating");
    let mut progress = Progress::load(kept.as_deref(), &task);
    if progress.spent_s > 0.0 {
        let spent = show_time(progress.spent_s * 1e9);
        args.say(format_args!("It goes on where it was interrupted, after {spent}."));
    }
    // What a call left that was killed is removed first: it may be what fills the disk.
    let place = Place::create(&path)?;
    place::check_room(&path, args.file_size)?;
    let mut work = Work { args, path: &path, kept, stop, began: Instant::now(), before_s: progress.spent_s };
    let Some(known) = work.calibrate(&place, &mut progress)? else {
        drop(place);
        return Ok(interrupted());
    };
    drop(place);
    deliver(args, &state, &known, &progress)?;
    if let Some(kept) = &work.kept {
        _ = std::fs::remove_file(kept);
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Says something to people; where standard output is a program's, on standard error.
    fn say(&self, text: impl Display) {
        if self.json || self.out.as_deref().is_some_and(output::is_standard) {
            output::tell(text)
        } else {
            output::say(text)
        }
    }
}

/// Whether mounts will find what is found: to be known before the work.
///
/// # Errors
/// If they will not, and it is not written anywhere else either.
fn keeps(name: &Path, args: &Args) -> anyhow::Result<bool> {
    let Some(path) = mount::state_path(name, "calibrated") else { return Ok(false) };
    let dir = path.parent().unwrap_or(Path::new("."));
    let made = std::fs::create_dir_all(dir).with_context(|| dir.display().to_string());
    let tried = made.and_then(|()| output::check_file(&path));
    match (tried, &args.out) {
        (Ok(()), _) => Ok(true),
        (Err(error), Some(out)) => {
            let out = out.display();
            output::tell(format_args!(
                "warning: {error:#}; what is found is written to {out} alone, and no mount begins with it"
            ));
            Ok(false)
        }
        (Err(error), None) => Err(error.context(
            "what is found could not be kept: let SLUICE_STATE_DIR be a directory that can be written, or give --out",
        )),
    }
}

fn interrupted() -> ExitCode {
    output::tell("interrupted; the test files are removed; the same command goes on from here");
    ExitCode::from(130)
}

/// The path as it is mounted.
fn checked(args: &Args) -> anyhow::Result<PathBuf> {
    let shown = args.path.display();
    let path = args.path.canonicalize().with_context(|| format!("{shown} cannot be calibrated"))?;
    if !path.is_dir() {
        bail!("{shown} is not a directory; name the directory that is to be mounted");
    }
    if let Some(at) = path.ancestors().find(|dir| matches!(control::connect(dir), Ok(Some(_)))) {
        bail!("{shown} lies in a mount of Sluicegate, {}: calibrate the directory that is mounted there", at.display());
    }
    if let Some(model) = &args.emulate {
        sluice_device::model(model, 1)?;
    }
    if args.file_size < FILES_MIN {
        bail!("--file-size: at least {}: devices have caches", show_bytes(FILES_MIN));
    }
    if args.direct && !measure::takes_direct(&path) {
        bail!("--direct: the file system of {shown} has no O_DIRECT");
    }
    Ok(path)
}

/// Where a directory is mounted by Sluicegate, as an emulated device or as what it is, if a mount that answers tells so.
fn mounted(path: &Path, emulated: bool) -> Option<PathBuf> {
    let (mounts, of) = (sluice_storage::mounts::table().unwrap_or_default(), format!("directory {},", path.display()));
    let ours = mounts.into_iter().filter(|mount| mount.kind.starts_with("fuse")).map(|mount| mount.path);
    let is_of_it = |at: &PathBuf| {
        let status = control::connect(at).ok().flatten().and_then(|mut client| client.status().ok());
        status.is_some_and(|status| status.emulated == emulated && status.storage.contains(&of))
    };
    ours.rev().find(is_of_it)
}

/// Looks whether others use the device. False if `stop` said so.
///
/// # Errors
/// If they do, and that is not to be borne.
fn look(path: &Path, args: &Args, stop: &dyn Fn() -> bool) -> anyhow::Result<bool> {
    let Some(watched) = busy::Watched::of(path) else {
        args.say(
            "Whether others use the device cannot be told: there is no block device below (memory, or a network).",
        );
        return Ok(true);
    };
    let (began, (_never, pause)) = (Instant::now(), std::sync::mpsc::channel::<()>());
    while began.elapsed() < LOOK {
        if stop() {
            return Ok(false);
        }
        _ = pause.recv_timeout(Duration::from_millis(50));
    }
    let name = &watched.name;
    let Some(used) = watched.so_far(began.elapsed()) else { return Ok(true) };
    let seen = format!(
        "{name} was busy for {:.0} % of {}, with {}",
        used.share * 100.0,
        show_time(LOOK.as_nanos() as f64),
        show_rate(used.bytes_per_s)
    );
    match (used.is_busy(), args.force) {
        (true, false) => bail!("others use the device: {seen}; wait, or measure all the same with --force"),
        (true, true) => output::tell(format_args!("warning: others use the device: {seen}")),
        (false, _) => args.say(format_args!("The device is free: {seen}.")),
    }
    Ok(true)
}

/// A calibration at work.
struct Work<'a> {
    args: &'a Args,
    path: &'a Path,
    /// Where progress is kept; `None`: nowhere.
    kept: Option<PathBuf>,
    stop: Arc<AtomicBool>,
    began: Instant,
    before_s: f64,
}

impl Work<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Seconds left of the budget.
    fn left_s(&self, progress: &Progress) -> f64 {
        (progress.task.budget_s - self.before_s - self.began.elapsed().as_secs_f64()).max(0.0)
    }

    /// Notes how far it is, so that it can go on from there.
    fn keep(&self, progress: &mut Progress) {
        progress.spent_s = (self.before_s + self.began.elapsed().as_secs_f64()).min(progress.task.budget_s);
        let Some(path) = &self.kept else { return };
        if let Err(error) = sluice_select::replace(path, &progress.to_bytes()) {
            tracing::warn!("if this is interrupted it will begin anew: {error:#}");
        }
    }

    /// Profiles, and runs all patterns. `None`: it was interrupted.
    fn calibrate(&mut self, place: &Place, progress: &mut Progress) -> anyhow::Result<Option<Known>> {
        let bar = output::bar(1000, "{bar:40} {percent:>3} %  {msg}");
        let Some(known) = self.device(progress, &bar)? else { return Ok(None) };
        self.keep(progress);
        bar.set_message("writing the test files");
        let (file_bytes, how) = (self.args.file_size, (self.args.emulate.as_deref(), self.args.direct));
        let stopped = || self.stopped();
        let Some(bed) = Bed::open(place, file_bytes, how, known.config.clone(), &stopped)? else { return Ok(None) };
        let all = PATTERNS.len() * known.arms.len();
        let twice = self.left_s(progress) / all as f64 >= TWICE.as_secs_f64();
        // One that was begun in two rounds ends in two.
        let rounds = if twice || progress.done(&known.arms) as usize > all { 2 } else { 1 };
        while let Some((pattern, arm)) = progress.next(&known.arms, rounds) {
            let done = progress.done(&known.arms);
            let open = all as u32 * rounds - done;
            let slot = Duration::from_secs_f64(self.left_s(progress) / f64::from(open)).max(SLOT_MIN);
            bar.set_position(1000 * u64::from(done) / u64::from(all as u32 * rounds));
            bar.set_message(format!("{}: {}", PATTERNS[pattern].name, known.arms[arm]));
            let arm = &known.arms[arm];
            if !bed.run(pattern, arm, slot, progress.cell(pattern, arm), &stopped)? {
                self.keep(progress);
                bar.finish_and_clear();
                return Ok(None);
            }
            self.keep(progress);
        }
        bar.finish_and_clear();
        Ok(Some(known))
    }

    /// What the device is, and how a mount of it would be set. `None`: it was interrupted.
    fn device(&self, progress: &mut Progress, bar: &ProgressBar) -> anyhow::Result<Option<Known>> {
        let mut learner = Learner::new(false);
        let is_known = progress.device.as_ref().is_some_and(|text| learner.remember(text.as_bytes()).is_ok());
        if !is_known {
            bar.set_message("profiling the device");
            let measured = match &self.args.emulate {
                Some(model) => Some(sluice_device::profiler::profile_of_model(model)?),
                None => {
                    let time = self.args.budget.mul_f64(PROFILE_SHARE).min(PROFILE_MAX);
                    profile::quick(self.path, time, PROFILE_BYTES.min(self.args.file_size), self.stop.clone(), bar)?
                }
            };
            let Some(measured) = measured else { return Ok(None) };
            match profile::suspicion(&measured).filter(|_| self.args.emulate.is_none()) {
                None => learner = Learner::profiled(points(&measured)),
                Some(why) => bar.suspend(|| {
                    output::tell(format_args!("warning: {why}; so what the device is stays for mounts to find out"));
                }),
            }
            progress.device = Some(learner.to_text());
        }
        let estimate = learner.estimate();
        let settings = Settings {
            emulate: self.args.emulate.clone(),
            direct: self.args.direct,
            selector: Some(Kind::Bandit),
            profiling: Profiling::Off,
            ..Settings::default()
        };
        // As a mount would have it.
        let device = match estimate.device {
            Device::Unknown => settings.selected_device(mount::on_disks(&settings, &[self.path.to_owned()])),
            device => device,
        };
        let mut config = settings.volume_config(1, device == Device::Disk)?;
        config.engine = settings.learned_limits(&config.engine, 1, &estimate);
        // Of several windows in each slot one sees the whole.
        let slot = self.args.budget / (PATTERNS.len() as u32 * 12);
        config.engine.window_ns = config.engine.window_ns.min((slot.as_nanos() / 6) as u64).max(10_000_000);
        let arms = arms(device, &config.engine);
        Ok(Some(Known { device, estimate, config, arms }))
    }
}

fn points(profile: &Profile) -> Vec<(sluice_core::Op, u64, f64, f64)> {
    let of = |op, own| {
        let points = profile.points(op).iter();
        points.map(move |point| (own, point.size_bytes, point.sequential_ns, point.random_ns))
    };
    of(Op::Read, sluice_core::Op::Read).chain(of(Op::Write, sluice_core::Op::Write)).collect()
}

/// Keeps what was learned for mounts, and says what it is.
fn deliver(
    args: &Args,
    state: &dyn Fn(&str) -> Option<PathBuf>,
    known: &Known,
    progress: &Progress,
) -> anyhow::Result<()> {
    let slice_s = args.budget.as_secs_f64() / (PATTERNS.len() * known.arms.len() * 4) as f64;
    let knowledge = progress.knowledge(known.device, &known.arms, slice_s.min(0.25));
    let kept = state("calibrated");
    if let Some(out) = &args.out {
        output::write_file(out, knowledge.to_text().as_bytes())?;
    }
    if let Some(kept) = &kept {
        sluice_select::save(&knowledge, kept)?;
        let is_known = known.estimate.device != Device::Unknown;
        if let (Some(text), Some(path), true) = (&progress.device, state("device"), is_known) {
            sluice_select::replace(&path, text.as_bytes())?;
        }
    }
    if args.json {
        return output::pretty_json(&as_json(args, known, progress, kept.as_deref()));
    }
    if args.out.as_deref().is_some_and(output::is_standard) {
        return Ok(());
    }
    output::text(&as_text(args, known, progress));
    let workloads = counted(knowledge.contexts.len() as u64, "workload");
    let path = &progress.task.path;
    // What the device is may turn out otherwise.
    let begins = kept.filter(|_| known.estimate.device != Device::Unknown);
    let begins = begins.map_or(String::new(), |_| format!(" Mounts of {path} that choose begin with it."));
    output::say(format_args!("\n{workloads} known.{begins}"));
    if let Some(out) = &args.out {
        output::say(format_args!("knowledge, for scheduler.learned: {}", out.display()));
    }
    Ok(())
}

/// Of a pattern: each arm with its work per second, best first.
fn ranking(progress: &Progress, pattern: &str, arms: &[Arm]) -> Vec<(String, f64)> {
    let cells = progress.cells.get(pattern);
    let rate = |arm: &Arm| Some((arm.to_string(), cells?.get(&arm.to_string())?.rate()?));
    let mut all: Vec<(String, f64)> = arms.iter().filter_map(rate).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn as_text(args: &Args, known: &Known, progress: &Progress) -> String {
    let emulated = args.emulate.as_ref().map_or(String::new(), |model| format!(" (emulated {model})"));
    let moving = known.estimate.positioning_ns.map_or(0.0, |ns| ns.max(0.0));
    let mut text = format!(
        "{}{emulated}: {}; moving costs {}\n\n{:<28}{:<24}{:>12}{:>14}\n",
        progress.task.path,
        known.device,
        show_time(moving),
        "pattern",
        "best",
        "work",
        "over noop"
    );
    for pattern in &PATTERNS {
        let all = ranking(progress, pattern.name, &known.arms);
        let Some((best, rate)) = all.first() else { continue };
        let noop = all.iter().find(|(name, _)| name == "noop").map_or(*rate, |(_, rate)| *rate);
        let gain = rate / noop - 1.0;
        let gain = if gain < GAIN_MIN { "as good".to_owned() } else { format!("{:+.0} %", gain * 100.0) };
        text += &format!("{:<28}{best:<24}{:>12}{gain:>14}\n", pattern.name, show_rate(*rate));
    }
    text
}

fn as_json(args: &Args, known: &Known, progress: &Progress, kept: Option<&Path>) -> serde_json::Value {
    let pattern = |pattern: &measure::Pattern| {
        let arms = ranking(progress, pattern.name, &known.arms);
        let arms: Vec<_> = arms.iter().map(|(arm, rate)| json!({"arm": arm, "work_mb_s": rate / 1e6})).collect();
        json!({"pattern": pattern.name, "arms": arms})
    };
    json!({
        "path": progress.task.path, "emulated": args.emulate, "device": known.device, "processes": PROCESSES,
        "positioning_ms": known.estimate.positioning_ns.map(|ns| ns / 1e6), "seconds": progress.spent_s,
        "patterns": PATTERNS.iter().map(pattern).collect::<Vec<_>>(), "state": kept,
    })
}

/// Has a mount begin with what was found by a calibration of its devices, if that is newer than what it has learned itself, which is
/// added to it.
pub(crate) fn adopt(calibrated: &Path, learned: &Path, device: Device) {
    let newer = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified());
    let Ok(when) = newer(calibrated) else { return };
    if newer(learned).is_ok_and(|own| own >= when) {
        return;
    }
    if let Err(error) = begin_with(calibrated, learned, device) {
        tracing::warn!("what was found by sluice calibrate cannot be used: {error:#}");
    }
}

fn begin_with(calibrated: &Path, learned: &Path, device: Device) -> anyhow::Result<()> {
    let known = sluice_select::load(calibrated)?;
    let found = known.device;
    let Ok(mut known) = known.for_device(device) else {
        tracing::warn!(
            "what was found by sluice calibrate is about {found}, and this mount has {device}: it is not begun with"
        );
        return Ok(());
    };
    if let Some(own) = sluice_select::kept(learned, device)? {
        known.merge(&own).context("what the mount has learned stays as it is")?;
        // Of these a calibration knows nothing.
        (known.budget_s, known.switch_s) = (own.budget_s, own.switch_s);
        known.held_bytes = own.held_bytes.or(known.held_bytes);
    }
    sluice_select::save(&known, learned)
}

#[cfg(test)]
mod tests {
    use sluice_adapt::selector::Knowledge;

    use super::*;

    #[test]
    fn a_budget_without_a_unit_is_in_seconds() {
        assert_eq!(time("25"), Ok(Duration::from_secs(25)));
        assert!(time("9").unwrap_err().ends_with("a number alone is seconds"));
    }

    #[test]
    fn a_mount_begins_with_a_newer_calibration_and_keeps_what_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (calibrated, own) = (dir.path().join("c"), dir.path().join("o"));
        adopt(&calibrated, &own, Device::Disk);
        assert!(!own.exists(), "nothing was calibrated");
        let know = |look: &str, device| {
            let mut known = Knowledge::new(device);
            let look = sluice_adapt::selector::Context::parse(look);
            let one =
                |arm: &str, rate| sluice_adapt::selector::Measured { arm: arm.into(), look, rates: vec![rate; 4] };
            known.measured(0.25, &[one("hbrr", 2e8), one("noop", 1e8)]);
            known
        };
        sluice_select::save(&know("r1.q0.d1.f1.a0", Device::Disk), &calibrated).unwrap();
        adopt(&calibrated, &own, Device::Flash);
        assert!(!own.exists(), "of another kind of device");
        adopt(&calibrated, &own, Device::Disk);
        assert_eq!(sluice_select::load(&own).unwrap().contexts.len(), 1);
        let mut spent = Knowledge { budget_s: 1.5, switch_s: 0.4, ..know("w1.q0.d1.f1.a0", Device::Disk) };
        spent.clock_s = 8_000.0;
        sluice_select::save(&spent, &own).unwrap();
        adopt(&calibrated, &own, Device::Disk);
        assert_eq!(sluice_select::load(&own).unwrap().contexts.len(), 1, "it is older than what the mount knows");
        let later = std::time::SystemTime::now() + Duration::from_secs(60);
        std::fs::File::options().append(true).open(&calibrated).unwrap().set_modified(later).unwrap();
        adopt(&calibrated, &own, Device::Disk);
        let both = sluice_select::load(&own).unwrap();
        assert_eq!(
            (both.contexts.len(), both.budget_s, both.switch_s),
            (2, 1.5, 0.4),
            "both are known, and what it cost"
        );
        let ago = |known: &sluice_adapt::selector::Known| both.clock_s - known.arms["noop"].seen_s;
        let ages: Vec<f64> = both.contexts.values().map(ago).collect();
        assert_eq!((both.clock_s, ages), (8_000.0, vec![7_998.0, 0.0]), "as old as before");
        let later = later + Duration::from_secs(60);
        let touch = || std::fs::File::options().append(true).open(&calibrated).unwrap().set_modified(later).unwrap();
        touch();
        let before = std::fs::read(&own).unwrap();
        adopt(&calibrated, &own, Device::Disk);
        assert_eq!(std::fs::read(&own).unwrap(), before, "it is in there, and would count twice");
        let aside = || {
            let all = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            all.filter(|path| path.to_string_lossy().contains(".damaged-")).collect::<Vec<_>>()
        };
        std::fs::write(&own, know("w2.q0.d1.f1.a0", Device::Unknown).to_text()).unwrap();
        touch();
        adopt(&calibrated, &own, Device::Disk);
        let both = sluice_select::load(&own).unwrap();
        assert_eq!((both.device, both.contexts.len()), (Device::Disk, 2), "it did not know what these devices are");
        assert_eq!(aside().len(), 0);
        for text in [know("w1.q0.d1.f1.a0", Device::Flash).to_text(), "damaged".to_owned()] {
            std::fs::write(&own, &text).unwrap();
            touch();
            adopt(&calibrated, &own, Device::Disk);
            assert_eq!(sluice_select::load(&own).unwrap().contexts.len(), 1, "the calibration's");
            let [aside] = &aside()[..] else { panic!("{:?}", aside()) };
            assert_eq!(std::fs::read_to_string(aside).unwrap(), text, "nothing is lost");
            std::fs::remove_file(aside).unwrap();
        }
    }

    #[test]
    fn times_are_checked() {
        assert_eq!(time("10min"), Ok(Duration::from_secs(600)));
        assert!(time("1s").is_err() && time("2000h").is_err() && time("soon").is_err());
    }
}
