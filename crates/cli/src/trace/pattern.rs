//! Which access pattern a trace has, and why.

use serde::Serialize;
use sluice_adapt::detector::{Class, Detector, Mix, Patterns};
use sluice_adapt::features::{Answers, Features, Settings, TARGETS_MAX, Watcher, Window};
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
    /// Bytes of files with too few requests in a second to say, or that had to make room for others.
    unknown_bytes: u64,
}

/// Recognises the pattern of a trace while it is read.
pub(super) struct Recogniser {
    detector: Detector,
    /// One for each data server, as where it was trained. What finds no room is with the last.
    watchers: Vec<(TargetId, Watcher)>,
    end: u64,
    /// Asked for in the running window.
    bytes: u64,
    all: Mix,
    windows: u64,
    /// For each class the most bytes of one file in a window, and what spoke for it there.
    reasons: [(u64, Option<String>); 4],
}

impl Recogniser {
    pub(super) fn new() -> anyhow::Result<Recogniser> {
        let (detector, all) = (Detector::shipped()?, Mix::default());
        let (watchers, reasons) = (Vec::new(), Default::default());
        Ok(Recogniser { detector, watchers, end: 0, bytes: 0, all, windows: 0, reasons })
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
        let Entry { time, file, app, target, op, offset, len } = entry;
        let (file, app, target) = (FileId(file.into()), AppId(app), TargetId(target));
        let at = match self.watchers.iter().position(|(known, _)| *known == target) {
            Some(at) => at,
            None if self.watchers.len() < TARGETS_MAX => {
                let usual = Settings::default();
                let stripe = if meta.stripe == 0 { usual.stripe } else { meta.stripe };
                let settings = Settings { stripe, answers: Answers::After(ANSWERED_NS), ..usual };
                self.watchers.push((target, Watcher::new(settings, Time(time))));
                self.watchers.len() - 1
            }
            None => TARGETS_MAX - 1,
        };
        self.bytes += u64::from(len);
        self.watchers[at].1.arrived(Time(time), &Request { cookie: 0, file, app, target, op, offset, len });
    }

    fn close(&mut self) {
        let mut all = Mix::default();
        for (_, watcher) in &mut self.watchers {
            let requests_min = watcher.settings().requests_min;
            let window = watcher.close(Time(self.end));
            let patterns = self.detector.detect(window, requests_min);
            all.merge(&patterns.all);
            for (class, bytes, why) in reasons(window, &patterns) {
                let best = &mut self.reasons[class.index()];
                if bytes > best.0 {
                    *best = (bytes, Some(why));
                }
            }
        }
        self.windows += u64::from(all.class().is_some());
        // Of files that had to make room nothing is in any window.
        let told = all.bytes.iter().sum::<u64>() + all.unknown;
        all.unknown += std::mem::take(&mut self.bytes).saturating_sub(told);
        self.all.merge(&all);
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
        let alike = if is_one_stream(features) { "; one stream: contiguous and strided look alike here" } else { "" };
        Some((verdict.class, file.bytes, verdict.why(features) + alike))
    })
}

/// Whether nearly all requests of a file continue the one before.
fn is_one_stream(features: &Features) -> bool {
    features.streams == 1 && features.continued > 0.9
}

#[cfg(test)]
mod tests {
    use sluice_core::Op;

    use super::*;

    /// As many bytes in patterns and beside them as there are in the trace, and of how many each is.
    fn recognised(targets: u32, files: u32, requests: u64) -> (u64, u64, Pattern) {
        let mut recogniser = Recogniser::new().unwrap();
        let meta = Meta { stripe: 64 << 10, ..Meta::default() };
        let mut bytes = 0;
        for n in 0..requests {
            for file in 0..files {
                for target in 0..targets {
                    let at = (n * u64::from(files) + u64::from(file)) * u64::from(targets) + u64::from(target);
                    let time = at * 900_000_000 / (requests * u64::from(files) * u64::from(targets));
                    let (app, op, offset, len) = (1, Op::Read, n << 14, 1 << 14);
                    recogniser.entry(&meta, Entry { time, file, app, target, op, offset, len });
                    bytes += u64::from(len);
                }
            }
        }
        recogniser.close();
        let known = recogniser.all.bytes.iter().sum();
        (bytes, known, recogniser.finish())
    }

    #[test]
    fn files_are_remembered_for_each_data_server_and_no_byte_is_lost() {
        let (bytes, known, pattern) = recognised(8, 300, 16);
        assert_eq!(known + pattern.unknown_bytes, bytes);
        assert_eq!(pattern.windows, 1);
        assert!(known > bytes / 8 * 7, "few had no room in their sets: {known} of {bytes}");
        let why = recognised(1, 1, 200).2.why.unwrap();
        assert!(why.ends_with("; one stream: contiguous and strided look alike here"), "{why}");
        // More files than are remembered of one.
        let (bytes, known, pattern) = recognised(1, 2_000, 16);
        assert!(known < bytes, "some had to make room");
        assert_eq!(known + pattern.unknown_bytes, bytes);
    }
}
