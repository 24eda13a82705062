//! Following engines: everything once, for as long as it is wanted.

mod common;

use std::any::Any;
use std::sync::Arc;

use common::{Results, create, storage};
use sluice_core::{AppId, PolicyConfig, Request, Time, policy::table};
use sluice_runtime::{Monitor, Volume, VolumeConfig};
use sluice_storage::Storage;

/// Counts what it hears, and panics when it has heard of so many requests.
#[derive(Default)]
struct Counts {
    arrived: u32,
    dispatched: u32,
    completed: u32,
    bytes: [u64; 2],
    last: Time,
    bad: u32,
    /// What was queued and with the executor when it began.
    began: Vec<(u32, u32)>,
}

impl Counts {
    fn at(&mut self, now: Time) {
        assert!(now >= self.last);
        self.last = now;
    }
}

impl Monitor for Counts {
    fn begins(&mut self, now: Time, queued: u32, in_flight: u32) {
        self.at(now);
        assert_eq!((self.arrived, self.completed), (0, 0), "before all else");
        self.began.push((queued, in_flight));
    }
    fn arrived(&mut self, now: Time, request: &Request) {
        self.at(now);
        self.arrived += 1;
        self.bytes[0] += u64::from(request.len);
        assert_ne!(self.arrived, self.bad, "as it was told");
    }
    fn dispatched(&mut self, now: Time, requests: u32) {
        self.at(now);
        self.dispatched += requests;
    }
    fn completed(&mut self, now: Time, request: &Request) {
        self.at(now);
        self.completed += 1;
        self.bytes[1] += u64::from(request.len);
    }
}

fn volume(storage: &Storage, policy: &str) -> Volume<Results> {
    let config = VolumeConfig::new(PolicyConfig::parse(policy).unwrap());
    Volume::start(storage.clone(), Arc::new(Results::default()), config).unwrap()
}

fn counts(monitor: Option<Box<dyn Monitor>>) -> Box<Counts> {
    (monitor.expect("it was there") as Box<dyn Any>).downcast().expect("it is ours")
}

#[test]
fn everything_an_engine_does_is_told_once_under_every_algorithm() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 4);
    let file = create(&storage, "f");
    for info in table() {
        let volume = volume(&storage, info.name);
        let scheduler = volume.scheduler();
        let use_it = || {
            for n in 0..8_u64 {
                assert_eq!(volume.write_at(&file, AppId(1), n * 16_384, &[1; 16_384]).unwrap(), 16_384);
                volume.read_at(&file, AppId(2), n * 4096, &mut [0; 4096]).unwrap();
            }
        };
        use_it();
        for engine in 0..scheduler.shards() {
            assert!(scheduler.set_monitor(engine, Some(Box::new(Counts::default()))).is_none());
        }
        use_it();
        let told: Vec<_> = (0..scheduler.shards()).map(|engine| counts(scheduler.set_monitor(engine, None))).collect();
        use_it();
        // Stripes of 4 KiB.
        let requests = 8 * (4 + 1);
        let sum = |of: fn(&Counts) -> u32| told.iter().map(|counts| of(counts)).sum::<u32>();
        let all = [sum(|c| c.arrived), sum(|c| c.dispatched), sum(|c| c.completed)];
        assert_eq!(all, [requests; 3], "{}", info.name);
        assert!(told.iter().all(|counts| counts.began == [(0, 0)]), "{}: nothing was under way", info.name);
        assert!(told.iter().all(|counts| counts.bytes[0] == counts.bytes[1] && counts.bytes[0] > 0), "{}", info.name);
    }
}

#[test]
fn one_that_panics_hears_no_more_and_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let volume = volume(&storage, "sjf");
    volume.scheduler().set_monitor(0, Some(Box::new(Counts { bad: 3, ..Counts::default() })));
    for n in 0..10 {
        assert_eq!(volume.write_at(&file, AppId(1), n * 512, &[1; 512]).unwrap(), 512);
    }
    assert!(volume.scheduler().set_monitor(0, None).is_none());
}

/// Who looks at all of them together takes what each did in the same time.
#[test]
fn the_windows_of_all_engines_begin_together() {
    const WINDOW_NS: u64 = 5_000_000;
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 4);
    let file = create(&storage, "f");
    let mut config = VolumeConfig::new(PolicyConfig::parse("noop").unwrap());
    config.engine.window_ns = WINDOW_NS;
    let volume = Volume::start(storage, Arc::new(Results::default()), config).unwrap();
    let scheduler = volume.scheduler();
    assert_eq!(scheduler.shards(), 4);
    let begin = std::time::Instant::now();
    let starts = loop {
        volume.write_at(&file, AppId(0), 0, &vec![1; 1 << 20]).unwrap();
        let windows: Vec<_> = (0..4).filter_map(|engine| scheduler.window(engine)).collect();
        if windows.len() == 4 || begin.elapsed() > common::LIMIT {
            break windows.iter().map(|window| window.start.0 % WINDOW_NS).collect::<Vec<_>>();
        }
    };
    assert!(starts.len() == 4 && starts.iter().all(|start| *start == starts[0]), "{starts:?}");
}
