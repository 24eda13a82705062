//! Which access pattern a trace has, and why.

use serde::Serialize;
use sluice_adapt::detector::{Class, Detector, Mix, Patterns};
use sluice_adapt::features::{Answers, Settings, Watcher, Window};
use sluice_core::{AppId, FileId, Request, TargetId, Time};
use sluice_trace::{Columns, Entry, Meta};

/// Patterns are recognised second by second.
const WINDOW_NS: u64 = 1_000_000_000;
/// Traces have no completions. What was asked for at once has one time in them; anything later is taken for something that
/// waited for an answer.
const ANSWERED_NS: u64 = 1;

/// What the requests of a trace are, by bytes.
#[derive(Serialize)]
pub(super) struct Pattern {
    /// Where most bytes belong; none without enough requests.
    pub(super) class: Option<&'static str>,
    /// Mean share of the model's votes for it.
    pub(super) confidence: f64,
    /// Share of each class among the bytes whose pattern is known.
    pub(super) shares: Vec<(&'static str, f64)>,
    /// What speaks for it, in the file and window with most bytes of it.
    pub(super) why: Option<String>,
    /// Seconds in which something was recognised.
    windows: u64,
    /// Bytes of files with too few requests in a second to say.
    unknown_bytes: u64,
}

/// Recognises the pattern of a trace while it is read.
pub(super) struct Recogniser {
    detector: Detector,
    watcher: Option<Watcher>,
    end: u64,
    all: Mix,
    windows: u64,
    /// For each class the most bytes of one file in a window, and what spoke for it there.
    reasons: [(u64, Option<String>); 4],
}

impl Recogniser {
    pub(super) fn new() -> anyhow::Result<Recogniser> {
        let (detector, all) = (Detector::shipped()?, Mix::default());
        Ok(Recogniser { detector, watcher: None, end: 0, all, windows: 0, reasons: Default::default() })
    }

    /// Looks at a block of a trace.
    pub(super) fn add(&mut self, meta: &Meta, block: &Columns) {
        block.iter().for_each(|entry| self.entry(meta, entry));
    }

    fn entry(&mut self, meta: &Meta, entry: Entry) {
        if entry.time >= self.end {
            self.close();
            self.end = (entry.time - entry.time % WINDOW_NS).saturating_add(WINDOW_NS);
        }
        let watcher = self.watcher.get_or_insert_with(|| {
            let usual = Settings::default();
            let stripe = if meta.stripe == 0 { usual.stripe } else { meta.stripe };
            Watcher::new(Settings { stripe, answers: Answers::After(ANSWERED_NS), ..usual }, Time(entry.time))
        });
        let Entry { time, file, app, target, op, offset, len } = entry;
        let (file, app, target) = (FileId(file.into()), AppId(app), TargetId(target));
        watcher.arrived(Time(time), &Request { cookie: 0, file, app, target, op, offset, len });
    }

    fn close(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let requests_min = watcher.settings().requests_min;
        let window = watcher.close(Time(self.end));
        let patterns = self.detector.detect(window, requests_min);
        self.windows += u64::from(patterns.all.class().is_some());
        self.all.merge(&patterns.all);
        for (class, bytes, why) in reasons(window, &patterns) {
            let best = &mut self.reasons[class.index()];
            if bytes > best.0 {
                *best = (bytes, Some(why));
            }
        }
    }

    pub(super) fn finish(mut self) -> Pattern {
        self.close();
        let class = self.all.class();
        let known = |class: &Class| self.all.bytes[class.index()] > 0;
        Pattern {
            class: class.map(Class::name),
            confidence: self.all.confidence(),
            shares: Class::ALL.into_iter().filter(known).map(|class| (class.name(), self.all.share(class))).collect(),
            why: class.and_then(|class| std::mem::take(&mut self.reasons[class.index()].1)),
            windows: self.windows,
            unknown_bytes: self.all.unknown,
        }
    }
}

/// What speaks for the pattern of each file of a window, in the order of `patterns.files`.
fn reasons<'a>(window: &'a Window, patterns: &'a Patterns) -> impl Iterator<Item = (Class, u64, String)> + 'a {
    let features = window.files.iter().map(|file| &file.features).chain(window.rest.iter().map(|rest| &rest.features));
    patterns.files.iter().zip(features).filter_map(|(file, features)| {
        let verdict = file.verdict?;
        Some((verdict.class, file.bytes, verdict.why(features)))
    })
}
