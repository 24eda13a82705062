//! What a window is published as.

use sluice_core::{AppId, FileId, Op, TargetId, Time};

/// Classes of [`Features::sizes`].
pub const SIZES: usize = 12;
/// Classes of [`Features::distances`].
pub const DISTANCES: usize = 9;
/// Applications told apart; further ones count with the last.
pub const APPS_MAX: usize = 64;
/// Targets told apart; further ones count with the last.
pub const TARGETS_MAX: usize = 64;

/// What the requests of a file or a group of files were like. Requests of no bytes are left out. Shares are 0 to 1. What there
/// was nothing to measure of is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Features {
    /// Requests that arrived.
    pub requests: u64,
    /// Bytes they asked for.
    pub bytes: u64,
    /// Share of the bytes that were to be read.
    pub read_share: f64,
    /// The stripe size that everything else is seen against, in bytes.
    pub stripe: u64,
    /// Mean length in bytes.
    pub size_mean: f64,
    /// Largest length in bytes.
    pub size_max: u32,
    /// Requests by length: the first class is below 1 KiB, class n below 2^n KiB, the last one holds all others.
    pub sizes: [u32; SIZES],
    /// Share of the requests that are a stripe long, or longer.
    pub whole_stripes: f64,
    /// D of Boito 2015 (4.3.1): mean distance between a request's end and the next one's beginning, in lengths of the earlier.
    /// In order of arrival, within a file, application, target and operation.
    pub distance: f64,
    /// These distances by class: none, then forward by up to 1, 8, 64 lengths and more, then backward by the same.
    pub distances: [u32; DISTANCES],
    /// ΔT_S of Boito 2015 (4.3.2): from the first arrival to the last within a stripe, mean over the stripes with requests in the
    /// window, in nanoseconds.
    pub stripe_span_ns: f64,
    /// Mean time between arrivals at a file, in nanoseconds.
    pub gap_ns: f64,
    /// Share of the requests that begin where an earlier one ended, not only the one just before, and also one of the other
    /// operation.
    pub continued: f64,
    /// Sequential streams that were continued at least once in the window: how many run at a time.
    pub streams: u32,
    /// Most frequent distance between the beginnings of requests that follow each other, in bytes; negative backwards. Found
    /// by majority vote, so it means something where `stride_share` does.
    pub stride: i64,
    /// By how much the requests at that distance outnumber all others, as a share of all.
    pub stride_share: f64,
    /// From the lowest to the highest byte of 16 requests that follow each other at a file, in multiples of what these moved
    /// (geometric mean): 1 for a sequential file, large where places far from each other are used in turn.
    pub reach: f64,
    /// The same of all requests of a file in the window.
    pub extent: f64,
    /// Mean bytes of a burst. A burst is a run of adjacent requests each of which came while the one before it was not answered:
    /// what a program asked for at once.
    pub burst_bytes: f64,
    /// Share of the bursts that begin at a stripe's beginning.
    pub burst_aligned: f64,
    /// From a request of a stream to the one that continues it, mean in nanoseconds.
    pub stream_gap_ns: f64,
    /// Powers of two between that mean and the geometric mean: about 0 for an even pace, more for bursts and pauses.
    pub stream_gap_spread: f64,
    /// That time for requests that begin a stripe, in multiples of that for others; 1 where there are not both.
    pub boundary_gap: f64,
    /// Of the requests that continue a stream, the share that came after the one before had been answered.
    pub answered: f64,
    /// Share of the requests that end where an earlier one began, which continued nothing: neighbours that come back to front, as
    /// half of them do where processes take turns in a file, and hardly any where each goes through a part of its own. 0 if no
    /// beginnings are remembered ([`Settings::beginnings`](super::Settings::beginnings)).
    pub preceding: f64,
    /// Share of the requests of which that is so, and the earlier one had been answered: not parts of one request that have
    /// overtaken each other. 0 without completions.
    pub preceding_answered: f64,
    /// Share of the requests of which that is so, and which also continue a stream: they fill a gap.
    pub between: f64,
    /// Requests to the same file that an arriving one found unanswered, mean; unknown without completions.
    pub depth: Option<f64>,
    /// From an answer to the request that continues its stream, mean in nanoseconds: computing, and the network; unknown
    /// without completions.
    pub think_ns: Option<f64>,
    /// Powers of two between that mean and the geometric mean; unknown without completions.
    pub think_spread: Option<f64>,
    /// Share of the completed requests that the device had in its cache, among those where that is known.
    pub cache_hits: Option<f64>,
    /// Files in the group; 1 for a file.
    pub files: u32,
    /// Files that the application used with this operation on this target in the window, also those with more requests than the
    /// files of a group; of applications, of targets, and of all the same number as `files`.
    pub app_files: u32,
}

/// A file, as an application used it with one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileWindow {
    /// The file.
    pub file: FileId,
    /// Its data server.
    pub target: TargetId,
    /// Who used it.
    pub app: AppId,
    /// The operation.
    pub op: Op,
    /// What its requests were like.
    pub features: Features,
}

/// Several files together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupWindow<K> {
    /// Whose files.
    pub key: K,
    /// What their requests were like; distances and streams are those within files.
    pub features: Features,
}

/// What a watcher saw in a window. Lists are in no particular order, but the same for the same calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
    /// Files with at least [`requests_min`](super::Settings::requests_min) requests.
    pub files: Vec<FileWindow>,
    /// For each application, target and operation the files with fewer requests, together.
    pub rest: Vec<GroupWindow<(AppId, TargetId, Op)>>,
    /// Applications.
    pub apps: Vec<GroupWindow<AppId>>,
    /// Data servers.
    pub targets: Vec<GroupWindow<TargetId>>,
    /// Everything.
    pub all: Features,
    /// Files of applications, each counted once on however many data servers it is, and if it is both read and written; about
    /// right where there are many.
    pub distinct_files: u32,
    /// Requests unanswered that an arriving one found, mean; unknown without completions.
    pub depth: Option<f64>,
    /// Share of the window in which nothing was in flight; unknown without dispatches.
    pub idle: Option<f64>,
    /// Share of the window in which several applications had unanswered requests; unknown without completions.
    pub overlap: Option<f64>,
    /// Requests of files that had to make room for others: they count for no file or application.
    pub evicted: u64,
}
