//! Whether a program is worth being served alone: the three conditions (5.2.3).

use std::collections::BTreeMap;

use super::{Settings, Value};

/// Largest share of the time between any two requests that programs whose requests are near to each other need between theirs.
const NEAR_MAX: f64 = 0.25;
/// Most of a request's time that is reckoned to be saved.
const PROMISED_MAX: f64 = 0.8;

/// What is known of a program at one server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    /// `SL_ij`, and the time to get so far.
    pub(super) distance: Option<(f64, f64)>,
    pub(super) reuse: Option<f64>,
    /// When its last request was completed.
    pub(super) seen: u64,
    pub(super) heard: u64,
}

/// What is known of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    pub(super) number: u64,
    pub(super) heard: u64,
    /// `SL_i` and `SeekTime_i` while nobody was served alone.
    pub(super) apart: Option<(f64, f64)>,
    /// Time for each request then, in nanoseconds.
    pub(super) pace: Option<f64>,
    pub(super) others: Option<f64>,
}

impl Settings {
    pub(super) fn of(&self, value: &Value) -> Option<f64> {
        (value.count > 0).then_some(if self.last_values { value.last } else { value.mean })
    }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The standard deviation as a share of the mean.
fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64;
    if variance == 0.0 { 0.0 } else { variance.sqrt() / mean }
}

/// What serving these programs one at a time is to bring, as a share of what is done without: each request takes less time by
/// what the device needs for the distance between any two over what it needs between two of one program. 0 where nothing is known,
/// and where that difference is not large: then requests that wait together are served in a better order than they come.
/// `programs`: what is known of each, and its requests.
pub(super) fn promise<'a>(
    servers: &BTreeMap<u64, Server>,
    programs: impl Iterator<Item = (&'a BTreeMap<u64, At>, f64)> + Clone,
) -> f64 {
    let of = |(number, server): (&u64, &Server)| {
        let ((_, seek_ns), pace) = (server.apart?, server.pace?);
        let seen = programs.clone().filter_map(|(at, requests)| Some((at.get(number)?.distance?.1, requests)));
        let (own, requests) = seen.fold((0.0, 0.0), |sum, (ns, requests)| (sum.0 + ns * requests, sum.1 + requests));
        let own_ns = own / f64::max(requests, 1.0);
        if own_ns > NEAR_MAX * seek_ns {
            return Some(0.0);
        }
        // Requests beside each other share what they wait for.
        let saved = (seek_ns - own_ns).min(PROMISED_MAX * pace);
        Some(saved / (pace - saved).max(1.0))
    };
    let gains: Option<Vec<f64>> = servers.iter().map(of).collect();
    gains.map_or(0.0, |gains| mean(&gains))
}

/// What the conditions say of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Eligible,
    /// It has not been seen at every server.
    Unknown,
    /// Servers differ too much (condition 1).
    Uneven,
    /// It is not much nearer to itself than to others (condition 2).
    Weak,
    /// Its requests come too late (condition 3).
    Slow,
}

/// Judges a program by what is known of it at each of these servers.
pub(super) fn judge(settings: &Settings, servers: &BTreeMap<u64, Server>, program: &BTreeMap<u64, At>) -> Verdict {
    let (mut all, mut own, mut seek, mut own_seek, mut reuse) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, server) in servers {
        let at = program.get(number);
        let (Some((distance, seek_ns)), Some((near, near_ns))) = (server.apart, at.and_then(|at| at.distance)) else {
            return Verdict::Unknown;
        };
        all.push(distance);
        seek.push(seek_ns);
        own.push(near);
        own_seek.push(near_ns);
        reuse.extend(at.and_then(|at| at.reuse));
    }
    if all.is_empty() {
        return Verdict::Unknown;
    }
    if spread(&all) >= settings.deviation_max || spread(&own) >= settings.deviation_max {
        return Verdict::Uneven;
    }
    if all.iter().sum::<f64>() < settings.ratio_min * own.iter().sum::<f64>()
        || mean(&seek) < settings.seek_ratio_min * mean(&own_seek)
    {
        return Verdict::Weak;
    }
    if !reuse.is_empty() && mean(&reuse) > mean(&seek) {
        return Verdict::Slow;
    }
    Verdict::Eligible
}
