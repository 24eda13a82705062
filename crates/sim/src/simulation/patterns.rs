//! What the requests of data servers and I/O nodes are like, window by window, and what they really are: the data that detectors
//! learn from.

use std::collections::BTreeMap;

use sluice_adapt::detector::Class;
use sluice_adapt::features::{Answers, Settings, Watcher, Window};
use sluice_core::{AppId, FileId, Op, Request, Time};

use super::Simulation;
use crate::scenario::{Application, Place, Scenario};
use crate::workload::{Pattern, Phase};

/// Bytes that were asked for, by pattern: the four classes, then everything that is none of them.
pub type Truth = [u64; 5];

/// What a data server or an I/O node saw in a window, and what it was.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternWindow {
    /// Who saw it.
    pub place: Place,
    /// What it saw.
    pub window: Window,
    /// What that was, for each file, application and operation, in order.
    pub truths: Vec<((FileId, AppId, Op), Truth)>,
}

/// The class of each phase of an application: a place in [`Truth`].
pub(super) fn classes(scenario: &Scenario, application: &Application) -> Vec<u8> {
    let class = |phase: &Phase| {
        let is_shared = !phase.per_process && application.processes > 1;
        let is_strided = match phase.pattern {
            Pattern::Contiguous => false,
            Pattern::Strided => is_shared,
            _ => return None,
        };
        Class::of(is_strided, phase.request, scenario.storage.stripe, scenario.servers.count)
    };
    application.phases.iter().map(|phase| class(phase).map_or(4, |class| class.index() as u8)).collect()
}

/// Watches one machine with an engine.
pub(super) struct Watch {
    place: Place,
    watcher: Watcher,
    truths: BTreeMap<(u64, u32, u8), Truth>,
    windows: Vec<PatternWindow>,
}

impl Watch {
    /// As `sluice_select::Follower`s there: those of I/O nodes know of no stripes, and of more streams.
    pub(super) fn new(place: Place, stripe: u64, answers: Answers) -> Watch {
        let settings = match place {
            Place::IoNode(_) => Settings { answers, ..Settings::of_io_node() },
            Place::Server(_) => Settings { stripe, answers, ..Settings::default() },
        };
        Watch { place, watcher: Watcher::new(settings, Time::ZERO), truths: BTreeMap::new(), windows: Vec::new() }
    }

    /// A request arrived, of a class.
    pub(super) fn arrived(&mut self, now: Time, request: &Request, class: u8) {
        self.watcher.arrived(now, request);
        let truth = self.truths.entry((request.file.0, request.app.0, request.op.index() as u8)).or_default();
        truth[usize::from(class)] += u64::from(request.len);
    }

    pub(super) fn dispatched(&mut self, now: Time, requests: usize) {
        self.watcher.dispatched(now, requests as u32);
    }

    /// A request was answered; `positioned`: whether the device had to move for it, if it is one that can.
    pub(super) fn completed(&mut self, now: Time, request: &Request, positioned: Option<bool>) {
        self.watcher.completed(now, request, positioned.map(|positioned| !positioned));
    }

    /// The machine has lost its memory: no request is there any more.
    pub(super) fn lost(&mut self, now: Time) {
        self.watcher.resume(now, 0, 0);
    }

    fn close(&mut self, now: Time) {
        let window = self.watcher.close(now);
        if window.all.requests == 0 {
            return;
        }
        let op = |op: u8| if op == 0 { Op::Read } else { Op::Write };
        let truths = std::mem::take(&mut self.truths).into_iter();
        let truths = truths.map(|((file, app, of), truth)| ((FileId(file), AppId(app), op(of)), truth)).collect();
        self.windows.push(PatternWindow { place: self.place, window: window.clone(), truths });
    }

    pub(super) fn windows(self) -> Vec<PatternWindow> {
        self.windows
    }
}

impl Simulation<'_> {
    /// A window of a machine's watcher is over.
    pub(super) fn close_patterns(&mut self, node: u32, now: Time) {
        if let Some(watch) = &mut self.nodes[node as usize].watch {
            watch.close(now);
        }
    }
}
