//! What selectors' models learn from and are judged by: a file with a line for each case, what each arm took in it and what its
//! windows looked like. docs/selection.md describes it, as others may write it, too.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sluice_adapt::selector::{Arm, Device, INPUTS, Load, MODEL_VERSION, arms, inputs};
use sluice_cli::interrupt::Interrupted;
use sluice_core::{Anticipation, EngineConfig};
use sluice_sim::{Failure, Options, simulate, ties};

use super::cases::{self, Set, THESIS_INPUTS};

const FORMAT: &str = "sluice-selection 1";
/// Seeds of each arm of a case: with fewer the test finds little.
const SEEDS: u64 = 4;
/// Windows kept of an arm in a case.
const WINDOWS: usize = 3;
/// Requests in a window that says something.
const REQUESTS_MIN: u64 = 16;
/// A case whose simulation needs more events is left out: its device is far too slow for it.
const EVENTS_MAX: u64 = 3_000_000;

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    features: u32,
    inputs: Vec<String>,
    thesis_inputs: Vec<String>,
    /// Not known of a site's own cases, and of files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set: Option<Set>,
}

/// What an arm did in a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Seconds, of each repetition (seed).
    pub(crate) seconds: Vec<f64>,
    /// Inputs of some windows.
    pub(crate) windows: Vec<Vec<f32>>,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) case: u64,
    #[serde(default)]
    pub(crate) platform: String,
    pub(crate) device: Device,
    /// In words.
    #[serde(default)]
    pub(crate) what: String,
    #[serde(default)]
    pub(crate) thesis: Vec<f32>,
    /// Arms that are not significantly slower than the fastest, the fastest first.
    #[serde(default)]
    pub(crate) best: Vec<String>,
    /// Processor time of the simulations.
    #[serde(default)]
    pub(crate) cpu_s: f64,
    pub(crate) arms: BTreeMap<String, Measured>,
}

impl Case {
    /// The logarithmic times of an arm; of one with anticipation that was not measured, those without.
    pub(crate) fn times(&self, arm: &str) -> Option<Vec<f64>> {
        let measured = self.arms.get(arm).or_else(|| self.arms.get(arm.strip_suffix(" anticipation=on")?))?;
        Some(measured.seconds.iter().map(|seconds| seconds.max(1e-9).ln()).collect())
    }

    fn is_sound(&self) -> Result<(), String> {
        let count = self.arms.values().next().map_or(0, |one| one.seconds.len());
        for (arm, measured) in &self.arms {
            Arm::parse(arm).map_err(|error| error.to_string())?;
            if measured.seconds.is_empty() || measured.seconds.len() != count {
                return Err(format!("{arm} has {} times, others {count}", measured.seconds.len()));
            }
            if measured.seconds.iter().any(|seconds| !(*seconds > 0.0 && seconds.is_finite())) {
                return Err(format!("the times of {arm} are no seconds"));
            }
            if measured.windows.iter().any(|window| window.len() != INPUTS.len()) {
                return Err(format!("windows of {arm} have not {} inputs", INPUTS.len()));
            }
        }
        if self.arms.len() < 2 { Err("fewer than two arms".to_owned()) } else { Ok(()) }
    }
}

/// The arms that are measured on a device.
fn measured_arms(device: Device) -> Vec<Arm> {
    let mut all = arms(device, &host());
    for arm in arms(Device::Unknown, &host()) {
        if !all.contains(&arm) {
            all.push(arm);
        }
    }
    all
}

/// As a mount on such devices has it.
pub(crate) fn host() -> EngineConfig {
    EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..EngineConfig::default() }
}

/// The case with a number, simulated; `None` if it takes far too long.
///
/// # Errors
/// If it cannot be simulated, or `stop` was set meanwhile.
fn measure(set: Set, number: u64, stop: &AtomicBool) -> anyhow::Result<Option<Case>> {
    let cpu_s = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    let began = cpu_s();
    let drawn = cases::case(set, number)?;
    let mut measured = BTreeMap::new();
    for arm in measured_arms(drawn.device) {
        let mut one = Measured { seconds: Vec::new(), windows: Vec::new() };
        for seed in 0..SEEDS {
            let scenario = drawn.scenario(&arm, number * SEEDS + seed)?;
            let options = Options { windows: seed == 0, events_max: EVENTS_MAX, ..Options::default() };
            let outcome = match simulate(&scenario, options, stop) {
                Ok(outcome) => outcome,
                Err(Failure::Interrupted) if stop.load(Ordering::Relaxed) => bail!(Interrupted),
                Err(Failure::Interrupted) => return Ok(None),
                Err(failure) => return Err(failure).with_context(|| format!("case {number}, {arm}")),
            };
            one.seconds.push(outcome.makespan_ns.max(1) as f64 * 1e-9);
            if seed == 0 {
                let loads = outcome.windows.iter().map(|window| Load::of(&window.features));
                let usable: Vec<Load> =
                    loads.filter(|load| load.has_choice() && load.completed() >= REQUESTS_MIN).collect();
                let count = usable.len().min(WINDOWS);
                let some = (0..count).map(|at| &usable[(2 * at + 1) * usable.len() / (2 * count)]);
                one.windows = some.map(|load| inputs(load, drawn.device).to_vec()).collect();
            }
        }
        measured.insert(arm.to_string(), one);
    }
    let mut case = Case {
        case: number,
        platform: drawn.platform.to_owned(),
        device: drawn.device,
        what: drawn.what,
        thesis: drawn.thesis.to_vec(),
        best: Vec::new(),
        cpu_s: cpu_s() - began,
        arms: measured,
    };
    let names: Vec<String> = case.arms.keys().cloned().collect();
    let series: Vec<Vec<f64>> = names.iter().filter_map(|name| case.times(name)).collect();
    case.best = ties(&series).into_iter().map(|at| names[at].clone()).collect();
    Ok(Some(case))
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Case>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Reads a file to judge by it.
pub(crate) fn read_unseen(path: &Path) -> anyhow::Result<Vec<Case>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let unseen = || {
        anyhow::ensure!(
            head(&text)?.set != Some(Set::Train),
            "its cases are those that models are trained with (--set train): nothing is judged by them"
        );
        parse(&text)
    };
    unseen().with_context(|| path.display().to_string())
}

fn head(text: &str) -> anyhow::Result<Head> {
    let head: Option<Head> = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
    let head = head.filter(|head| head.format.starts_with("sluice-selection ")).context("no data of selections")?;
    anyhow::ensure!(
        head.format == FORMAT && head.features == MODEL_VERSION && head.inputs == INPUTS,
        "it is of another version ({}, inputs {}); make it anew",
        head.format,
        head.features
    );
    Ok(head)
}

fn parse(text: &str) -> anyhow::Result<Vec<Case>> {
    head(text)?;
    let mut cases = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let case: Case = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        case.is_sound().map_err(anyhow::Error::msg).with_context(|| format!("line {}", number + 1))?;
        cases.push(case);
    }
    // As they came depends on which simulation ended first.
    cases.sort_by_key(|case| case.case);
    Ok(cases)
}

fn own_head(set: Set) -> serde_json::Result<String> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (inputs, thesis_inputs) = (names(&INPUTS), names(&THESIS_INPUTS));
    let (format, set) = (FORMAT.to_owned(), Some(set));
    serde_json::to_string(&Head { format, features: MODEL_VERSION, inputs, thesis_inputs, set })
}

/// Opens a file to go on with it, and says which cases it has. A line that was not finished goes.
fn open(set: Set, path: &Path) -> anyhow::Result<(File, HashSet<u64>)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    // What is of something else stays as it is.
    let begins = if whole == 0 { text.as_str() } else { "" };
    anyhow::ensure!(own_head(set)?.starts_with(begins), "it has something else in it; name another file");
    text.truncate(whole);
    let cases = if text.is_empty() { Vec::new() } else { parse(&text)? };
    if !text.is_empty() {
        let head = head(&text)?;
        anyhow::ensure!(
            head.thesis_inputs == THESIS_INPUTS,
            "its cases have other inputs for T1 to T5 (thesis_inputs): it is of another version, or was measured elsewhere; \
             make it anew, or name another file"
        );
        anyhow::ensure!(
            head.set.is_none_or(|known| known == set),
            "its cases are of the other set, and numbered alike; name another file"
        );
    }
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::Start(whole as u64))?;
    if text.is_empty() {
        writeln!(file, "{}", own_head(set)?)?;
    }
    Ok((file, cases.into_iter().map(|case| case.case).collect()))
}

/// Simulates the cases with these numbers that are not in the file yet, and adds them. `progress` is called after each.
///
/// # Errors
/// If the file cannot be used, a case cannot be simulated, or `stop` was set before all were: those that are in the file stay.
pub(crate) fn export(
    set: Set,
    jobs: usize,
    numbers: Vec<u64>,
    path: &Path,
    stop: &AtomicBool,
    progress: &(dyn Fn() + Sync),
) -> anyhow::Result<()> {
    let (file, known) = open(set, path).with_context(|| path.display().to_string())?;
    let (next, file, failed) = (AtomicUsize::new(0), Mutex::new(file), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if !known.contains(number) && !add(set, *number, &file, stop, &failed) {
                        next.store(numbers.len(), Ordering::Relaxed);
                    }
                    progress();
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Whether that worked.
fn add(set: Set, number: u64, file: &Mutex<File>, stop: &AtomicBool, failed: &Mutex<Option<anyhow::Error>>) -> bool {
    let write = || -> anyhow::Result<()> {
        if stop.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        let Some(case) = measure(set, number, stop)? else { return Ok(()) };
        let line = serde_json::to_string(&case)? + "\n";
        Ok(file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?)
    };
    match write() {
        Ok(()) => true,
        Err(error) => {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_interrupted_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        export(Set::Train, 1, vec![6, 7], &path, &AtomicBool::new(false), &|| ()).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let cases = read(&path).unwrap();
        assert_eq!(cases.len(), 2);
        for case in &cases {
            assert!(case.arms.len() >= 6 && case.arms["noop"].seconds.len() == SEEDS as usize, "{case:?}");
            assert!(!case.best.is_empty(), "{case:?}");
        }
        assert!(cases.iter().flat_map(|case| case.arms.values()).any(|arm| !arm.windows.is_empty()));
        // Killed while it wrote the second case.
        std::fs::write(&path, &whole[..whole.len() - 30]).unwrap();
        export(Set::Train, 1, vec![6, 7], &path, &AtomicBool::new(false), &|| ()).unwrap();
        let again = read(&path).unwrap();
        assert_eq!(again.len(), 2);
        assert_eq!(again[1].arms["noop"].seconds, cases[1].arms["noop"].seconds, "the same seeds, the same times");
    }

    /// Else what was made for it outlives the program.
    #[test]
    fn it_ends_when_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let after_one = || {
            done.fetch_add(1, Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
        };
        let error = export(Set::Train, 1, vec![6, 7, 14], &path, &stop, &after_one).unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
        assert_eq!(
            (read(&path).unwrap().len(), done.into_inner()),
            (1, 2),
            "what was done stays, and no more is begun"
        );
        assert!(measure(Set::Train, 7, &stop).unwrap_err().is::<Interrupted>(), "also in the middle of a case");
    }

    /// Sites may leave the papers' inputs out, but then nothing is added.
    #[test]
    fn cases_of_other_versions_get_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        for names in [&[][..], &THESIS_INPUTS[1..]] {
            let head = serde_json::json!({ "format": FORMAT, "features": MODEL_VERSION, "inputs": INPUTS, "thesis_inputs": names });
            let text = format!("{head}\n{{\"case\"");
            std::fs::write(&path, &text).unwrap();
            let error = export(Set::Train, 1, vec![], &path, &AtomicBool::new(false), &|| ()).unwrap_err();
            assert!(format!("{error:#}").contains("thesis_inputs"), "{error:#}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        for _ in 0..2 {
            export(Set::Train, 1, vec![], &path, &AtomicBool::new(false), &|| ()).unwrap();
        }
    }

    /// Cases of both have the same numbers: what is trained with would be judged by.
    #[test]
    fn sets_are_not_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let go_on = |set| export(set, 1, vec![], &path, &AtomicBool::new(false), &|| ());
        let error = |result: anyhow::Result<()>| format!("{:#}", result.unwrap_err());
        go_on(Set::Train).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(error(go_on(Set::HeldOut)).contains("other set"));
        assert!(error(read_unseen(&path).map(drop)).contains("--set train"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        go_on(Set::Train).unwrap();
        // Of earlier versions.
        std::fs::write(&path, text.replace(",\"set\":\"train\"", "")).unwrap();
        assert!(read_unseen(&path).is_ok() && go_on(Set::HeldOut).is_ok() && go_on(Set::Train).is_ok());
        std::fs::remove_file(&path).unwrap();
        go_on(Set::HeldOut).unwrap();
        assert!(read_unseen(&path).is_ok() && error(go_on(Set::Train)).contains("other set"));
    }

    #[test]
    fn what_is_no_data_is_refused() {
        let head =
            serde_json::json!({ "format": FORMAT, "features": MODEL_VERSION, "inputs": INPUTS, "thesis_inputs": [] });
        let why = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(why("").contains("no data") && why("{}\n").contains("no data"));
        assert!(why(&head.to_string().replace("selection 1", "selection 9")).contains("another version"));
        let case = |arms: &str| format!("{head}\n{{\"case\":1,\"device\":\"disk\",\"arms\":{arms}}}\n");
        assert!(why(&case("{}")).contains("fewer than two arms"));
        assert!(why(&case("{\"nope\":{\"seconds\":[1],\"windows\":[]}}")).contains("no algorithm"));
        assert!(why(&case("{\"noop\":{\"seconds\":[0],\"windows\":[]}}")).contains("no seconds"));
        assert!(why(&case("{\"noop\":{\"seconds\":[1],\"windows\":[[1]]}}")).contains("inputs"));
        let good = case("{\"noop\":{\"seconds\":[1],\"windows\":[]},\"sjf\":{\"seconds\":[2],\"windows\":[]}}");
        assert_eq!(parse(&good).unwrap().len(), 1);
    }
}
