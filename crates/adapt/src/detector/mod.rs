//! Which access pattern the requests of a window are, as the application's processes see it (Boito 2015, 4.3).
//!
//! Two questions: whether each process works through a part of its own from beginning to end (*contiguous*) or the processes
//! take turns in a file, request by request (*1-D strided*); and whether requests are *small*, below a stripe, or *large*, so that
//! each spans all data servers. The data server sees neither processes nor requests, only pieces of them in order of arrival, and
//! there it looks the other way round: contiguous parts of several processes are far from each other, and strided requests of
//! several processes follow each other. The names stay the application's.
//!
//! The thesis decides by two measures, D and ΔT_S, with one tree, file by file from traces: 79.3 % right. Here [`Features`] has
//! more, a window at a time, and a [`Forest`] decides. A server's or an application's pattern is the one with most bytes, and
//! the shares of all are reported; files with few requests are judged together.

mod inputs;
mod why;

use sluice_core::{AppId, FileId, Op, TargetId};

pub use inputs::{INPUTS, THESIS_INPUTS, inputs, thesis_inputs};

use crate::features::{self, Features, Window};
use crate::forest::{Forest, ForestError, Leaves, Purpose, winner};

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Each process its own part, in requests below a stripe.
    ContiguousSmall,
    /// Each process its own part, in requests that span all servers.
    ContiguousLarge,
    /// Processes take turns in a file, in requests below a stripe.
    StridedSmall,
    /// Processes take turns in a file, in requests that span all servers.
    StridedLarge,
}

impl Class {
    /// All, in the order of the models' classes.
    pub const ALL: [Class; 4] =
        [Class::ContiguousSmall, Class::ContiguousLarge, Class::StridedSmall, Class::StridedLarge];
    /// Their names, likewise.
    pub const NAMES: [&'static str; 4] = ["contiguous small", "contiguous large", "strided small", "strided large"];

    /// Its place in [`Class::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Class::NAMES[self as usize]
    }

    /// The class of requests of so many bytes, if it is one of the four: between a stripe and all servers' stripes lies neither.
    #[must_use]
    pub const fn of(is_strided: bool, request: (u64, u64), stripe: u64, servers: u32) -> Option<Class> {
        let (least, most) = request;
        if most < stripe {
            Some(if is_strided { Class::StridedSmall } else { Class::ContiguousSmall })
        } else if least >= stripe * servers as u64 {
            Some(if is_strided { Class::StridedLarge } else { Class::ContiguousLarge })
        } else {
            None
        }
    }

    /// True for 1-D strided patterns.
    #[must_use]
    pub const fn is_strided(self) -> bool {
        matches!(self, Class::StridedSmall | Class::StridedLarge)
    }

    /// True for large requests.
    #[must_use]
    pub const fn is_large(self) -> bool {
        matches!(self, Class::ContiguousLarge | Class::StridedLarge)
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a model says of a file, or of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The most likely pattern.
    pub class: Class,
    /// The votes of the trees for each class, together 1.
    pub votes: [f64; 4],
}

impl Verdict {
    /// Share of the votes for the class, 0.25 to 1.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        self.votes[self.class.index()]
    }
}

/// How the bytes of a group are shared among patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Bytes by class.
    pub bytes: [u64; 4],
    /// For each class the sum of its votes, each weighted with its bytes.
    votes: [f64; 4],
    /// Bytes of groups with too few requests to say.
    pub unknown: u64,
}

impl Mix {
    fn add(&mut self, bytes: u64, verdict: Option<&Verdict>) {
        match verdict {
            Some(verdict) => {
                self.bytes[verdict.class.index()] += bytes;
                self.votes.iter_mut().zip(verdict.votes).for_each(|(sum, vote)| *sum += vote * bytes as f64);
            }
            None => self.unknown += bytes,
        }
    }

    /// Adds another window or group.
    pub fn merge(&mut self, other: &Mix) {
        self.bytes.iter_mut().zip(other.bytes).for_each(|(mine, theirs)| *mine += theirs);
        self.votes.iter_mut().zip(other.votes).for_each(|(mine, theirs)| *mine += theirs);
        self.unknown += other.unknown;
    }

    /// The pattern with most bytes; `None` if nothing is known.
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        let best = (1..4).fold(0, |best, class| if self.bytes[class] > self.bytes[best] { class } else { best });
        (self.bytes[best] > 0).then_some(Class::ALL[best])
    }

    /// Share of a pattern among the bytes whose pattern is known.
    #[must_use]
    pub fn share(&self, class: Class) -> f64 {
        let all: u64 = self.bytes.iter().sum();
        if all == 0 { 0.0 } else { self.bytes[class.index()] as f64 / all as f64 }
    }

    /// Mean vote for the pattern with most bytes, over the bytes whose pattern is known; 0 if nothing is known.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        let all: u64 = self.bytes.iter().sum();
        self.class().map_or(0.0, |class| self.votes[class.index()] / all as f64)
    }
}

/// A file and its pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilePattern {
    /// The file; `None`: those of the application with few requests, together.
    pub file: Option<FileId>,
    /// Its data server.
    pub target: TargetId,
    /// Who used it.
    pub app: AppId,
    /// The operation.
    pub op: Op,
    /// Bytes asked for.
    pub bytes: u64,
    /// The pattern; `None` for too few requests.
    pub verdict: Option<Verdict>,
}

/// The patterns of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    /// Of each file.
    pub files: Vec<FilePattern>,
    /// Of each application.
    pub apps: Vec<(AppId, Mix)>,
    /// Of each data server.
    pub targets: Vec<(TargetId, Mix)>,
    /// Of everything.
    pub all: Mix,
}

/// Recognises patterns with a model.
#[derive(Clone, Debug)]
pub struct Detector {
    forest: Forest,
}

/// The model that comes with Sluicegate, `models/detector.json`.
pub const SHIPPED: &str = include_str!("../../../../models/detector.json");
/// D and ΔT_S alone, trained with the same data: what the thesis's method gives, `models/detector-thesis.json`.
pub const THESIS: &str = include_str!("../../../../models/detector-thesis.json");

/// What models for detectors are made for.
pub const PURPOSE: Purpose<'static> = Purpose {
    kind: "detector",
    features: features::VERSION,
    inputs: &INPUTS,
    classes: Some(&Class::NAMES),
    leaves: Leaves::Shares,
};
/// The same for the thesis's two measures.
pub const THESIS_PURPOSE: Purpose<'static> = Purpose { inputs: &THESIS_INPUTS, ..PURPOSE };

impl Detector {
    /// With a model in a file's text.
    ///
    /// # Errors
    /// If it is damaged, of another version, or made for something else.
    pub fn parse(text: &str) -> Result<Detector, ForestError> {
        Ok(Detector { forest: Forest::parse(text, &PURPOSE)? })
    }

    /// With the model that comes with Sluicegate.
    ///
    /// # Errors
    /// If that was built in damaged.
    pub fn shipped() -> Result<Detector, ForestError> {
        Detector::parse(SHIPPED)
    }

    /// The model.
    #[must_use]
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The pattern of a file or group. O(trees x depth).
    #[must_use]
    pub fn classify(&self, features: &Features) -> Verdict {
        let mut votes = [0.0; 4];
        self.forest.votes(&inputs(features), &mut votes);
        Verdict { class: Class::ALL[winner(&votes)], votes }
    }

    /// The patterns of everything in a window. `requests_min`: of groups with fewer nothing is said.
    #[must_use]
    pub fn detect(&self, window: &Window, requests_min: u32) -> Patterns {
        let mut patterns = Patterns::default();
        for file in &window.files {
            let verdict = Some(self.classify(&file.features));
            let (bytes, file_id) = (file.features.bytes, Some(file.file));
            patterns.add(FilePattern {
                file: file_id,
                target: file.target,
                app: file.app,
                op: file.op,
                bytes,
                verdict,
            });
        }
        for rest in &window.rest {
            let ((app, target, op), bytes) = (rest.key, rest.features.bytes);
            let is_enough = rest.features.requests >= u64::from(requests_min);
            let verdict = is_enough.then(|| self.classify(&rest.features));
            patterns.add(FilePattern { file: None, target, app, op, bytes, verdict });
        }
        patterns
    }
}

impl Patterns {
    fn add(&mut self, file: FilePattern) {
        let FilePattern { bytes, target, app, ref verdict, .. } = file;
        of(&mut self.apps, app).add(bytes, verdict.as_ref());
        of(&mut self.targets, target).add(bytes, verdict.as_ref());
        self.all.add(bytes, verdict.as_ref());
        self.files.push(file);
    }
}

fn of<K: PartialEq>(list: &mut Vec<(K, Mix)>, key: K) -> &mut Mix {
    let at = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        list.push((key, Mix::default()));
        list.len() - 1
    });
    &mut list[at].1
}
