//! What detectors learn from and are judged by: windows of simulated data servers whose patterns are known.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use sluice_adapt::detector::{INPUTS, THESIS_INPUTS, inputs, thesis_inputs};
use sluice_adapt::features::{Answers, Features, Window};
use sluice_core::{AppId, FileId, Op};
use sluice_sim::scenario::Place;
use sluice_sim::{Options, PatternWindow, Truth, simulate};

use super::scenarios::{Known, Set, scenario};

/// No scenario needs more events; one that does (a device that is far too slow for it) is cut off.
const EVENTS_MAX: u64 = 20_000_000;

/// The windows of a scenario, or of a real program.
pub(crate) struct Seen {
    pub(crate) seed: u64,
    pub(crate) platform: String,
    pub(crate) mode: &'static str,
    /// The watcher was told of completions.
    pub(crate) knows_answers: bool,
    /// Programs go through small parts several times.
    pub(crate) is_again: bool,
    pub(crate) windows: Vec<PatternWindow>,
}

/// A file in a window, or the files with few requests of an application.
pub(crate) struct Row<'a> {
    pub(crate) file: Option<FileId>,
    pub(crate) app: AppId,
    pub(crate) op: Op,
    pub(crate) features: &'a Features,
    pub(crate) truth: Truth,
}

/// The pattern with most bytes, if it is one of the four.
pub(crate) fn class(truth: &Truth) -> Option<usize> {
    let best = (1..truth.len()).fold(0, |best, class| if truth[class] > truth[best] { class } else { best });
    (truth[best] > 0 && best < 4).then_some(best)
}

/// The rows of a window.
pub(crate) fn rows(seen: &PatternWindow) -> Vec<Row<'_>> {
    let Window { files, rest, .. } = &seen.window;
    let mut left = seen.truths.clone();
    let mut rows = Vec::new();
    for file in files {
        let key = (file.file, file.app, file.op);
        let truth =
            left.iter().position(|(known, _)| *known == key).map_or(Truth::default(), |at| left.swap_remove(at).1);
        rows.push(Row { file: Some(file.file), app: file.app, op: file.op, features: &file.features, truth });
    }
    for group in rest {
        let (app, _, op) = group.key;
        let mut truth = Truth::default();
        let own = left.iter().filter(|((_, of, with), _)| (*of, *with) == (app, op));
        own.for_each(|(_, bytes)| truth.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes));
        rows.push(Row { file: None, app, op, features: &group.features, truth });
    }
    rows
}

fn see(set: Set, seed: u64) -> anyhow::Result<Option<Seen>> {
    let Known { platform, mode, answers, is_again, scenario } = scenario(set, seed)?;
    let knows_answers = answers == Answers::Known;
    let options = Options { patterns: Some(answers), events_max: EVENTS_MAX, ..Options::default() };
    match simulate(&scenario, options, &AtomicBool::new(false)) {
        Ok(outcome) => {
            let (platform, windows) = (platform.to_owned(), outcome.patterns);
            Ok(Some(Seen { seed, platform, mode, knows_answers, is_again, windows }))
        }
        Err(sluice_sim::Failure::Interrupted) => Ok(None),
        Err(failure) => Err(failure).with_context(|| format!("scenario {seed}")),
    }
}

/// Simulates the scenarios of these seeds, in order of the seeds; `progress` is called after each.
pub(crate) fn simulated(
    set: Set,
    seeds: std::ops::Range<u64>,
    jobs: usize,
    progress: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<Seen>> {
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let seen = see(set, seed);
                    all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((seed, seen));
                    progress();
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().filter_map(|(_, seen)| seen.transpose()).collect()
}

/// The first line of the data set.
pub(crate) fn head() -> String {
    let truth = ["contiguous_small", "contiguous_large", "strided_small", "strided_large", "other"]
        .map(|name| format!("{name}_bytes"));
    let thesis = THESIS_INPUTS.map(|name| format!("thesis_{name}"));
    let known = "seed,platform,mode,knows_answers,server,window_end_ns,is_file,app,op,requests,bytes,label";
    format!("{known},{},{},{}\n", truth.join(","), INPUTS.join(","), thesis.join(","))
}

/// Columns before the inputs.
const KNOWN: usize = 17;

/// The inputs of a line of the data set, then D and ΔT_S; `None` if it is of no known pattern.
pub(crate) fn inputs_of(line: &str) -> anyhow::Result<Option<Vec<f32>>> {
    let fields: Vec<&str> = line.split(',').collect();
    anyhow::ensure!(fields.len() == KNOWN + INPUTS.len() + THESIS_INPUTS.len(), "{} columns", fields.len());
    if fields[11] == "-1" {
        return Ok(None);
    }
    let number = |field: &&str| field.parse().with_context(|| format!("\"{field}\" is no number"));
    fields[KNOWN..].iter().map(number).collect::<anyhow::Result<_>>().map(Some)
}

/// Its number; scenarios of detectors have no I/O nodes.
fn server_of(place: Place) -> u32 {
    let (Place::Server(number) | Place::IoNode(number)) = place;
    number
}

/// A scenario's rows of the data set: a line for each file, or files with few requests, in a window.
pub(crate) fn lines(text: &mut String, seen: &Seen) {
    for window in &seen.windows {
        for row in rows(window) {
            let f = row.features;
            let label = class(&row.truth).map_or(-1, |class| class as i32);
            let _ = write!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{},{label}",
                seen.seed,
                seen.platform,
                seen.mode,
                u8::from(seen.knows_answers),
                server_of(window.place),
                window.window.end.0,
                u8::from(row.file.is_some()),
                row.app.0,
                row.op.index(),
                f.requests,
                f.bytes,
            );
            row.truth.iter().for_each(|bytes| {
                let _ = write!(text, ",{bytes}");
            });
            // The shortest text that gives the same number of 32 bits.
            inputs(f).iter().chain(&thesis_inputs(f)).for_each(|input| {
                let _ = write!(text, ",{input}");
            });
            text.push('\n');
        }
    }
}
