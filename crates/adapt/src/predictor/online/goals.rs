//! What a batch is to become.

use sluice_core::{Chosen, Time};

use super::super::Settings;
use super::super::aggregate::Aggregations;
use super::super::stride::Groups;
use super::super::wait::History;
use super::linking::{Known, Link, Linking};

/// Half as long again as predicted is waited, and at least so much longer: parts come late as often as early, and a wait ends
/// when all is there.
const SLACK_MIN_NS: u64 = 1_000_000;

/// What a batch is to become, and until when to wait for that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    pub(super) range: (u64, u64),
    pub(super) until: Time,
    /// Only requests that are predicted for about this time count.
    pub(super) in_time: bool,
}

impl Goal {
    /// What a batch whose first request is `link` is to become: its group if its file has such, else its aggregation.
    pub(super) fn of(
        linking: &Linking,
        aggregations: &Aggregations,
        settings: &Settings,
        chosen: &Chosen,
        (known, link): (&Known, &Link),
        history: &History,
    ) -> Option<Goal> {
        let goal = match linking.forecast.files[known.file as usize].groups(chosen.op) {
            Some(groups) => Goal::group(chosen, groups, settings.bytes_max, history),
            None => Goal::aggregation(aggregations, settings, chosen, known, link),
        }?;
        let (offset, end) = (goal.range.0.min(chosen.offset), goal.range.1.max(chosen.end));
        let grows = (offset, end) != (chosen.offset, chosen.end);
        (grows && end - offset <= settings.bytes_max).then_some(Goal { range: (offset, end), ..goal })
    }

    /// The group that a batch is of: all of it can be served together, whenever it came in the recorded runs.
    fn group(chosen: &Chosen, groups: Groups, bytes_max: u64, history: &History) -> Option<Goal> {
        let range = groups.at(chosen.offset, bytes_max)?;
        Some(Goal { range, until: chosen.earliest.after(history.patience()), in_time: false })
    }

    /// The aggregation of a request as it was predicted from the recorded times.
    fn aggregation(
        aggregations: &Aggregations,
        settings: &Settings,
        chosen: &Chosen,
        known: &Known,
        link: &Link,
    ) -> Option<Goal> {
        let whole = aggregations.list()[aggregations.of(link.request as usize)? as usize];
        let span = whole.last - whole.first;
        let usual = chosen.earliest.after(span.saturating_add((span / 2).max(SLACK_MIN_NS)));
        let last = whole.last.saturating_add(settings.tolerance(whole.last)).saturating_add_signed(known.skew);
        let until = usual.min(known.first.after(last));
        link.linked.then_some(Goal { range: (whole.offset, whole.end), until, in_time: true })
    }

    /// Bytes of a goal that are still to come: predicted requests, one behind the other. `None` if there is a gap. O(parts of
    /// the goal x log n).
    pub(super) fn missing(
        &self,
        linking: &Linking,
        settings: &Settings,
        chosen: &Chosen,
        known: &Known,
        time: u64,
    ) -> Option<u64> {
        let forecast = &linking.forecast;
        let requests = forecast.files[known.file as usize].range(chosen.op);
        let (mut at, end) = self.range;
        let mut missing = 0;
        while at < end {
            if at == chosen.offset {
                at = chosen.end;
                continue;
            }
            let found = forecast.nearest_at(requests.clone(), at, time)?;
            let part = &forecast.requests[found];
            if part.len == 0 || part.end() > end {
                return None;
            }
            let arrived = linking.arrived(chosen, at, known.epoch);
            if arrived.is_none_or(|link| link.request as usize != found) {
                if self.in_time && part.time.abs_diff(time) > settings.tolerance(part.time) {
                    return None;
                }
                missing += u64::from(part.len);
            }
            at = part.end();
        }
        Some(missing)
    }
}
