//! What an I/O node tells the council of a second, and what networks are asked with.

use sluice_core::{Op, OpFeatures, WindowFeatures};

use crate::detector;
use crate::features::Window;

/// Names of the inputs of the paper's network, in order: file handles, bytes of the largest, smallest and mean request, mean
/// distance in bytes from a request's end to the next one's beginning in the same file.
pub const PAPER_INPUTS: [&str; 5] = ["files", "size_max", "size_min", "size_mean", "distance"];

/// Inputs beside those of the detector.
const OWN: usize = 10;
const COUNT: usize = detector::INPUTS.len() + OWN;

/// Names of the inputs of ours, in order: those of [`detector::INPUTS`], of everything that the node saw, and ten more. `log2` ones
/// are of a number plus 0.001.
pub const INPUTS: [&str; COUNT] = {
    let mut names = ["files_per_server_log2"; COUNT];
    let mut at = 0;
    while at < detector::INPUTS.len() {
        names[at] = detector::INPUTS[at];
        at += 1;
    }
    names[at + 1] = "requests_log2";
    names[at + 2] = "servers_log2";
    names[at + 3] = "requests_per_file_log2";
    names[at + 4] = "contiguous";
    names[at + 5] = "forward";
    names[at + 6] = "preceding";
    names[at + 7] = "preceding_answered";
    names[at + 8] = "between";
    names[at + 9] = "distinct_files_log2";
    names
};

/// What an I/O node saw in a window, as numbers that can be sent: what the networks are asked with, and whether to ask at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// What most of the bytes were asked for; everything but `inputs` is about that operation only, as in the paper (IV-A).
    pub op: Op,
    /// Requests.
    pub requests: u64,
    /// For the paper's network: see [`PAPER_INPUTS`].
    pub paper: [f64; PAPER_INPUTS.len()],
    /// For ours: see [`INPUTS`]; `None` if nobody followed the requests.
    pub inputs: Option<[f64; COUNT]>,
}

impl Observation {
    /// Of the same window of an engine's statistics and of a [`Watcher`](crate::features::Watcher) beside it, if there is one. O(1).
    #[must_use]
    pub fn of(window: &WindowFeatures, seen: Option<&Window>) -> Observation {
        Observation::of_counts(&window.ops, window.files, window.targets, seen)
    }

    /// Of what is known of reads and writes, files and data servers used. O(1).
    #[must_use]
    pub fn of_counts(ops: &[OpFeatures; 2], files: u32, servers: u32, seen: Option<&Window>) -> Observation {
        let [read, write] = ops;
        let (op, most) = if read.bytes >= write.bytes { (Op::Read, read) } else { (Op::Write, write) };
        let (files, servers) = (f64::from(files), f64::from(servers.max(1)));
        let sizes = [f64::from(most.size_max), f64::from(most.size_min), most.size_mean];
        let inputs = seen.map(|seen| {
            let log2 = |value: f64| (value + 1e-3).log2();
            let own = [
                // A file counts once for each server that it is used on.
                log2(files / servers),
                log2(most.requests as f64),
                log2(servers),
                log2(most.requests as f64 / files.max(1.0)),
                most.contiguous,
                most.distance_mean / most.distance_abs_mean.max(1.0),
                seen.all.preceding,
                seen.all.preceding_answered,
                seen.all.between,
                log2(f64::from(seen.distinct_files)),
            ];
            let mut inputs = [0.0; COUNT];
            let all = detector::inputs(&seen.all).map(f64::from);
            inputs.iter_mut().zip(all.into_iter().chain(own)).for_each(|(input, value)| *input = value);
            inputs
        });
        let paper = [files, sizes[0], sizes[1], sizes[2], most.distance_abs_mean];
        Observation { op, requests: most.requests, paper, inputs }
    }
}
