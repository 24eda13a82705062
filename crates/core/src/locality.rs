//! Where a device is sent, by all and by each application, and how soon each application comes again: what an orchestrator
//! decides by (Zhang 2012, 5.2.2, formulas 5.1 to 5.3).
//!
//! With each request that is dispatched, the newest observation has a weight of 7/8 and what was known before one of 1/8:
//! `SL = SL / 8 + 7/8 gap`, from `SL = 0`; a gap is the distance between the first bytes of two consecutive requests, of any
//! application or of one. Reuse distances, the times between two consecutive completions of one application, likewise, and only
//! while a [gate](crate::GatePlan) gives it the device. (Where a host takes all that is eligible at once, dispatches say nothing
//! about how often the device sees an application.)
//!
//! With such weights a value is little more than the last gap. The paper compares one sample of each server; here each comes
//! with its mean over the requests since it was asked for last.

use crate::id_map::IdMap;
use crate::list::{Links, List};
use crate::request::{AppId, FileId, Request, TargetId, Time};

/// Applications told apart; of more, the one that was not served for longest is forgotten.
pub const LOCALITY_APPS: usize = 64;

/// Knows where files lie on a device.
pub trait Placement: Send + std::fmt::Debug {
    /// The address, in bytes, of a file's first byte on its target; `None` if it is not known. Where a file lies in pieces: what
    /// has to be added to offsets of the piece in use, which may wrap.
    fn address(&self, file: FileId, target: TargetId) -> Option<u64>;
}

/// How distances are measured.
#[derive(Debug)]
pub struct LocalityConfig {
    /// Where files lie; without it, only distances within a file are known.
    pub placement: Option<Box<dyn Placement>>,
    /// The distance in bytes between two files of which one's place is not known.
    pub far_bytes: u64,
}

/// A quantity as it is smoothed, with its mean.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Smoothed {
    /// The value after the last observation.
    pub last: f64,
    /// Mean of the values since the last report.
    pub mean: f64,
    /// Observations since then.
    pub count: u64,
}

/// What is known of an application.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AppLocality {
    /// Which.
    pub app: AppId,
    /// Requests of it dispatched since the last report.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// `SL_ij`, in bytes.
    pub distance: Smoothed,
    /// `RD_ij`, in nanoseconds.
    pub reuse: Smoothed,
    /// When its last request was completed.
    pub completed: Option<Time>,
}

/// What is known of the device, and of those that have no object of their own behind the gate.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DeviceLocality {
    /// Requests dispatched since the last report.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// `SL_i`, in bytes.
    pub distance: Smoothed,
    /// Reuse distances of all others together, in nanoseconds.
    pub others: Smoothed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Filter {
    value: f64,
    sum: f64,
    count: u64,
}

impl Filter {
    fn note(&mut self, observed: f64) {
        self.value = self.value / 8.0 + observed * 7.0 / 8.0;
        self.sum += self.value;
        self.count += 1;
    }

    fn report(&mut self) -> Smoothed {
        let (sum, count) = (std::mem::take(&mut self.sum), std::mem::take(&mut self.count));
        Smoothed { last: self.value, mean: if count == 0 { self.value } else { sum / count as f64 }, count }
    }
}

/// Where a request begins.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: (FileId, TargetId),
    offset: u64,
    /// On the device, if that is known.
    address: Option<u64>,
}

impl Place {
    fn gap(&self, other: &Place, far_bytes: u64) -> u64 {
        match (self.address, other.address) {
            (Some(a), Some(b)) => a.abs_diff(b),
            _ if self.file == other.file => self.offset.abs_diff(other.offset),
            _ => far_bytes,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct App {
    app: AppId,
    last: Place,
    /// Its last request was completed then.
    completed: Option<Time>,
    requests: u64,
    bytes: u64,
    distance: Filter,
    reuse: Filter,
}

/// See the module's text. Everything is O(1), and nothing is allocated after [`Locality::new`].
#[derive(Debug)]
pub(crate) struct Locality {
    config: LocalityConfig,
    apps: Vec<App>,
    index: IdMap,
    /// The one that was served longest ago in front.
    recent: List,
    links: Links,
    last: Option<Place>,
    requests: u64,
    bytes: u64,
    distance: Filter,
    others: Filter,
    others_completed: Option<Time>,
}

/// Whose turn it is behind the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// When the slice began.
    pub(crate) since: Time,
    /// The request belongs to its object.
    pub(crate) own: bool,
    /// That is all others.
    pub(crate) others: bool,
}

impl Locality {
    pub(crate) fn new(config: LocalityConfig) -> Locality {
        Locality {
            config,
            apps: Vec::with_capacity(LOCALITY_APPS),
            index: IdMap::new(LOCALITY_APPS as u32),
            recent: List::new(),
            links: Links::new(LOCALITY_APPS as u32),
            last: None,
            requests: 0,
            bytes: 0,
            distance: Filter::default(),
            others: Filter::default(),
            others_completed: None,
        }
    }

    /// A request goes to the device.
    pub(crate) fn dispatched(&mut self, request: &Request) {
        let start = self.config.placement.as_ref().and_then(|known| known.address(request.file, request.target));
        let address = start.map(|start| start.wrapping_add(request.offset));
        let place = Place { file: (request.file, request.target), offset: request.offset, address };
        let far_bytes = self.config.far_bytes;
        if let Some(last) = self.last.replace(place) {
            self.distance.note(place.gap(&last, far_bytes) as f64);
        }
        self.requests += 1;
        self.bytes += u64::from(request.len);
        let (number, known) = self.of(request.app, place);
        let app = &mut self.apps[number as usize];
        app.requests += 1;
        app.bytes += u64::from(request.len);
        let last = std::mem::replace(&mut app.last, place);
        if known {
            app.distance.note(place.gap(&last, far_bytes) as f64);
        }
    }

    /// A request was completed.
    pub(crate) fn completed(&mut self, now: Time, app: AppId, turn: Option<Turn>) {
        let apps = &self.apps;
        let Some(number) = self.index.find(u64::from(app.0), |at| u64::from(apps[at as usize].app.0)) else { return };
        let app = &mut self.apps[number as usize];
        let before = app.completed.replace(now);
        let Some(turn) = turn.filter(|turn| turn.own) else { return };
        let within = |before: Option<Time>| before.filter(|before| *before >= turn.since);
        if let Some(before) = within(before) {
            app.reuse.note(now.since(before) as f64);
        }
        if turn.others
            && let Some(before) = within(self.others_completed.replace(now))
        {
            self.others.note(now.since(before) as f64);
        }
    }

    /// The record of an application, and whether it was there.
    fn of(&mut self, app: AppId, place: Place) -> (u32, bool) {
        let apps = &self.apps;
        if let Some(number) = self.index.find(u64::from(app.0), |at| u64::from(apps[at as usize].app.0)) {
            self.recent.remove(&mut self.links, number);
            self.recent.push_back(&mut self.links, number);
            return (number, true);
        }
        let (distance, reuse) = (Filter::default(), Filter::default());
        let record = App { app, last: place, completed: None, requests: 0, bytes: 0, distance, reuse };
        let number = if self.apps.len() < LOCALITY_APPS {
            self.apps.push(record);
            self.apps.len() as u32 - 1
        } else {
            let number = self.recent.pop_front(&mut self.links).unwrap_or(0);
            let (apps, old) = (&self.apps, u64::from(self.apps[number as usize].app.0));
            self.index.remove(old, number, |at| u64::from(apps[at as usize].app.0));
            self.apps[number as usize] = record;
            number
        };
        self.index.insert(u64::from(app.0), number);
        self.recent.push_back(&mut self.links, number);
        (number, false)
    }

    /// What was seen since the last report: of each application that had requests, into `apps`, and of the device.
    pub(crate) fn report(&mut self, apps: &mut Vec<AppLocality>) -> DeviceLocality {
        apps.clear();
        for record in self.apps.iter_mut().filter(|record| record.requests > 0) {
            apps.push(AppLocality {
                app: record.app,
                requests: std::mem::take(&mut record.requests),
                bytes: std::mem::take(&mut record.bytes),
                distance: record.distance.report(),
                reuse: record.reuse.report(),
                completed: record.completed,
            });
        }
        DeviceLocality {
            requests: std::mem::take(&mut self.requests),
            bytes: std::mem::take(&mut self.bytes),
            distance: self.distance.report(),
            others: self.others.report(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Op;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn request(app: u32, file: u64, offset: u64) -> Request {
        let (file, app, target) = (FileId(file), AppId(app), TargetId(0));
        Request { cookie: 0, file, app, target, op: Op::Read, offset, len: 10 }
    }

    fn locality() -> Locality {
        Locality::new(LocalityConfig { placement: None, far_bytes: 1_000 })
    }

    #[test]
    fn values_are_those_of_the_formulas() {
        let (mut locality, mut apps) = (locality(), Vec::new());
        let turn = |own| Some(Turn { since: Time(100), own, others: false });
        for (now, app, file, offset, own) in
            [(90, 1, 1, 0, true), (110, 1, 1, 80, true), (150, 2, 2, 0, false), (160, 1, 1, 160, true)]
        {
            locality.dispatched(&request(app, file, offset));
            locality.completed(Time(now), AppId(app), turn(own));
        }
        let device = locality.report(&mut apps);
        // Gaps of the device: 80, 1000, 1000; of application 1: 80, 80; its reuse within the slice: 50.
        let [first, second] = [80.0 * 0.875, (80.0 * 0.875) / 8.0 + 875.0];
        let third = second / 8.0 + 875.0;
        let mean = (first + second + third) / 3.0;
        assert_eq!(device.distance, Smoothed { last: third, mean, count: 3 });
        assert_eq!((device.requests, device.bytes), (4, 40));
        let app = apps.iter().find(|app| app.app == AppId(1)).unwrap();
        assert_eq!((app.distance.last, app.distance.count), (70.0 / 8.0 + 70.0, 2));
        assert_eq!((app.reuse.last, app.reuse.count, app.completed), (50.0 * 0.875, 1, Some(Time(160))));
        locality.report(&mut apps);
        assert!(apps.is_empty());
    }

    #[test]
    fn others_come_again_as_one() {
        let (mut locality, mut apps) = (locality(), Vec::new());
        let turn = Some(Turn { since: Time(100), own: true, others: true });
        for (now, app) in [(100, 1), (108, 2), (116, 3)] {
            locality.dispatched(&request(app, 1, 0));
            locality.completed(Time(now), AppId(app), turn);
        }
        let others = locality.report(&mut apps).others;
        assert_eq!((others.last, others.count), (7.0 / 8.0 + 7.0, 2));
    }

    proptest! {
        /// The table forgets the one that was served longest ago, and counts what a plain list counts.
        #[test]
        fn the_table_behaves_like_a_list(requests in prop::collection::vec((0..80_u32, 0..1_000_u64), 0..400)) {
            let mut locality = locality();
            let mut model: Vec<(u32, f64, u64)> = Vec::new();
            for &(app, offset) in &requests {
                locality.dispatched(&request(app, 1, offset));
                let known = model.iter().position(|known| known.0 == app);
                let value = known.map_or(0.0, |at| {
                    let (_, value, last) = model.remove(at);
                    value / 8.0 + offset.abs_diff(last) as f64 * 7.0 / 8.0
                });
                if model.len() == LOCALITY_APPS {
                    model.remove(0);
                }
                model.push((app, value, offset));
            }
            let mut apps = Vec::new();
            locality.report(&mut apps);
            let got: HashMap<u32, f64> = apps.iter().map(|app| (app.app.0, app.distance.last)).collect();
            prop_assert_eq!(got, model.iter().map(|&(app, value, _)| (app, value)).collect());
        }
    }
}
