//! Synthetic devices under synthetic loads.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::selector::random::Random;

const MS: f64 = 1e6;
const US: f64 = 1e3;

/// What answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Turns: so many nanoseconds a turn, so many for a byte.
    Disk { turn_ns: f64, byte_ns: f64 },
    /// So many of them, striped.
    Raid { disks: usize },
    /// So many nanoseconds a read, and lanes.
    Flash { read_ns: f64, lanes: usize },
}

/// What stands between.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cache {
    None,
    /// Of the device: so many regions of 64 KiB, each answered in so many nanoseconds.
    Device {
        regions: usize,
        hit_ns: f64,
    },
    /// Memory: as `Device`, a few microseconds.
    Page {
        regions: usize,
    },
}

struct Synthetic {
    kind: Kind,
    cache: Cache,
    /// Of each lane or disk: free from when, and where its arm is.
    lanes: Vec<(f64, u64)>,
    held: HashSet<(u64, u64)>,
    order: VecDeque<(u64, u64)>,
    random: Random,
    /// Deviation of all times, and how often something takes 5 ms more.
    noise: (f64, f64),
}

impl Synthetic {
    fn new(kind: Kind, cache: Cache, noise: (f64, f64), seed: u64) -> Synthetic {
        let lanes = match kind {
            Kind::Disk { .. } => 1,
            Kind::Raid { disks } => disks,
            Kind::Flash { lanes, .. } => lanes,
        };
        Synthetic {
            kind,
            cache,
            lanes: vec![(0.0, 0); lanes],
            held: HashSet::new(),
            order: VecDeque::new(),
            random: Random(seed),
            noise,
        }
    }

    fn hold(&mut self, region: (u64, u64), most: usize) {
        if self.held.insert(region) {
            self.order.push_back(region);
        }
        while self.order.len() > most {
            let oldest = self.order.pop_front().unwrap();
            self.held.remove(&oldest);
        }
    }

    fn hit_ns(&mut self, file: u64, offset: u64, len: u64) -> Option<f64> {
        let (regions, hit_ns) = match self.cache {
            Cache::None => return None,
            Cache::Device { regions, hit_ns } => (regions, hit_ns),
            Cache::Page { regions } => (regions, 3.0 * US),
        };
        let touched = (offset >> 16..=(offset + len - 1) >> 16).map(|region| (file, region));
        let is_held = touched.clone().all(|region| self.held.contains(&region));
        touched.for_each(|region| self.hold(region, regions));
        is_held.then_some(hit_ns + len as f64 * 0.1)
    }

    /// When a request that comes now has been served.
    fn serve(&mut self, now: f64, op: Op, file: u64, offset: u64, len: u64) -> f64 {
        let (deviation, stalls) = self.noise;
        let mut scale = 1.0 + deviation * (self.random.share() - 0.5);
        scale = scale.max(0.1);
        let stall = if self.random.share() < stalls { 5.0 * MS } else { 0.0 };
        if op == Op::Read
            && let Some(hit_ns) = self.hit_ns(file, offset, len)
        {
            return now + hit_ns * scale + stall;
        }
        // A file is a gigabyte of the device.
        let address = (file << 30) + offset;
        let lane = match self.kind {
            Kind::Disk { .. } => 0,
            Kind::Raid { disks } => (address >> 16) as usize % disks,
            Kind::Flash { .. } => {
                (0..self.lanes.len()).min_by(|a, b| self.lanes[*a].0.total_cmp(&self.lanes[*b].0)).unwrap()
            }
        };
        let turned = self.random.share();
        let (free, arm) = self.lanes[lane];
        let took = match self.kind {
            Kind::Disk { .. } | Kind::Raid { .. } => {
                let (turn_ns, byte_ns) = match self.kind {
                    Kind::Disk { turn_ns, byte_ns } => (turn_ns, byte_ns),
                    _ => (8.3 * MS, 8.0),
                };
                let distance = address.abs_diff(arm) as f64;
                let is_near = distance < f64::from(1 << 20);
                let seek =
                    if is_near { 0.0 } else { MS + 8.0 * MS * (distance / (64_u64 << 30) as f64).sqrt().min(1.0) };
                seek + if is_near { 50.0 * US } else { turned * turn_ns } + len as f64 * byte_ns
            }
            Kind::Flash { read_ns, .. } => read_ns + len as f64 * 2.0,
        };
        let end = now.max(free) + took * scale + stall;
        self.lanes[lane] = (end, address + len);
        end
    }
}

/// What programs do: each its own thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    Stream { len: u64, op: Op },
    Random { len: u64, op: Op },
}

/// Lets programs work for so many seconds, each with one request at a time; tells the learner.
fn work(device: &mut Synthetic, programs: &[Program], seconds: f64, learner: &mut Learner) {
    let mut random = Random(device.random.share().to_bits());
    // (end, start, program, offset, beside)
    let mut flying: Vec<(f64, f64, usize, u64, u32)> = Vec::new();
    let mut places = vec![0_u64; programs.len()];
    let (mut now, mut number) = (0.0, 0);
    let mut idle: Vec<usize> = (0..programs.len()).collect();
    while now < seconds * 1e9 {
        for at in idle.drain(..) {
            let (len, op) = match programs[at] {
                Program::Stream { len, op } | Program::Random { len, op } => (len, op),
            };
            let offset = match programs[at] {
                Program::Stream { .. } => places[at],
                Program::Random { .. } => (random.share() * ((1 << 30) / len) as f64) as u64 * len,
            };
            places[at] = (offset + len) % (1 << 30);
            let end = device.serve(now, op, at as u64, offset, len);
            flying.push((end, now, at, offset, flying.len() as u32));
        }
        let first = (0..flying.len()).min_by(|a, b| flying[*a].0.total_cmp(&flying[*b].0)).unwrap();
        let (end, start, at, offset, beside) = flying.swap_remove(first);
        now = end;
        number += 1;
        let (Program::Stream { len, op } | Program::Random { len, op }) = programs[at];
        learner.served(
            0,
            &ServedBatch {
                number,
                op,
                file: FileId(at as u64),
                target: TargetId(0),
                offset,
                len,
                start: Time(start as u64),
                end: Time(end as u64),
                beside_at_start: beside,
                beside_at_end: flying.len() as u32,
            },
        );
        // Who gets an answer thinks for a moment.
        now += 10.0 * US;
        idle.push(at);
    }
}

fn learned(kind: Kind, cache: Cache, noise: (f64, f64), programs: &[Program], seconds: f64, seed: u64) -> Learner {
    let mut learner = Learner::new(matches!(cache, Cache::Page { .. }));
    work(&mut Synthetic::new(kind, cache, noise, seed), programs, seconds, &mut learner);
    learner
}

const DISK: Kind = Kind::Disk { turn_ns: 8.3 * MS, byte_ns: 8.0 };
const FLASH: Kind = Kind::Flash { read_ns: 90.0 * US, lanes: 8 };
const STREAM: Program = Program::Stream { len: 65_536, op: Op::Read };
const RANDOM: Program = Program::Random { len: 8_192, op: Op::Read };

#[test]
fn a_disk_and_its_figures_are_found_within_seconds() {
    let learner = learned(DISK, Cache::None, (0.1, 0.0), &[STREAM, RANDOM], 20.0, 1);
    let estimate = learner.estimate();
    assert_eq!((learner.device(), estimate.seems), (Device::Disk, Device::Disk), "{estimate:?}");
    // The two take turns, so nothing is sequential but by chance: one alone shows it.
    let mut learner = learner;
    let mut device = Synthetic::new(DISK, Cache::None, (0.1, 0.0), 2);
    work(&mut device, &[STREAM], 5.0, &mut learner);
    let estimate = learner.estimate();
    let rate = estimate.read_bytes_per_s.unwrap();
    // 50 us and 8 ns for a byte.
    let expected = 65_536.0 / (50.0 * US + 65_536.0 * 8.0) * 1e9;
    assert!((rate / expected - 1.0).abs() < 0.05, "{rate} instead of {expected}");
    let positioning = estimate.positioning_ns.unwrap() / MS;
    assert!((4.0..12.0).contains(&positioning), "{positioning} ms");
    assert!(estimate.points.iter().any(|point| point.random_ns.is_some()));
}

#[test]
fn flash_is_found_by_reads_that_no_cache_can_have_and_not_by_others() {
    let learner = learned(FLASH, Cache::None, (0.1, 0.001), &[STREAM, RANDOM, RANDOM], 20.0, 1);
    assert_eq!(learner.device(), Device::Flash, "{:?}", learner.estimate());
    for programs in [vec![STREAM; 4], vec![Program::Random { len: 4096, op: Op::Write }; 4]] {
        let estimate = learned(FLASH, Cache::None, (0.1, 0.0), &programs, 20.0, 1).estimate();
        assert_eq!(estimate.device, Device::Unknown, "{estimate:?}");
        assert!(estimate.reason.contains("needed"), "{}", estimate.reason);
    }
}

#[test]
fn a_cache_that_has_everything_makes_no_flash_of_a_disk() {
    let hot = |cache, page_cache| {
        let mut learner = Learner::new(page_cache);
        let mut device = Synthetic::new(DISK, cache, (0.1, 0.0), 3);
        // Everything is in the cache before anybody looks.
        for region in 0..1 << 14 {
            device.hold((0, region), 1 << 15);
        }
        work(&mut device, &[RANDOM], 3.0, &mut learner);
        learner.estimate()
    };
    let estimate = hot(Cache::Page { regions: 1 << 15 }, true);
    assert_eq!(estimate.device, Device::Unknown);
    assert!(estimate.reason.contains("memory"), "{}", estimate.reason);
}

#[test]
fn memory_that_waits_for_a_processor_is_no_flash() {
    let mut learner = Learner::new(true);
    let mut random = Random(1);
    for number in 1..20_000 {
        let start = number * 1_000_000;
        // Of a warm page cache; each tenth answer comes late.
        let took = if random.share() < 0.1 { 100_000 + random.next() % 500_000 } else { 5_000 };
        let offset = (random.share() * (64_u64 << 30) as f64) as u64 & !4095;
        let (file, target) = (FileId(1), TargetId(0));
        let (beside_at_start, beside_at_end) = (0, 0);
        let (start, end, op, len) = (Time(start), Time(start + took), Op::Read, 4096);
        learner.served(
            0,
            &ServedBatch { number, op, file, target, offset, len, start, end, beside_at_start, beside_at_end },
        );
    }
    assert_eq!(learner.device(), Device::Unknown, "{:?}", learner.estimate());
}

#[test]
fn what_is_decided_turns_with_the_evidence() {
    let mut learner = learned(DISK, Cache::None, (0.1, 0.0), &[STREAM, RANDOM, RANDOM], 20.0, 1);
    assert_eq!(learner.device(), Device::Disk);
    let text = learner.to_text();
    // Moved to another device; its places are new to a learner that starts.
    let mut moved = Learner::new(false);
    moved.remember(text.as_bytes()).unwrap();
    assert_eq!(moved.device(), Device::Disk);
    work(&mut Synthetic::new(FLASH, Cache::None, (0.1, 0.0), 1), &[STREAM, RANDOM, RANDOM], 20.0, &mut moved);
    assert_eq!(moved.device(), Device::Flash, "{:?}", moved.estimate());
    learner.remember(moved.to_text().as_bytes()).unwrap();
    work(&mut Synthetic::new(DISK, Cache::None, (0.1, 0.0), 1), &[STREAM, RANDOM, RANDOM], 30.0, &mut learner);
    assert_eq!(learner.device(), Device::Disk, "{:?}", learner.estimate());
}

#[test]
fn a_state_is_read_as_it_was_written_and_refused_when_damaged() {
    let learner = learned(DISK, Cache::None, (0.1, 0.0), &[STREAM, RANDOM], 10.0, 1);
    let text = learner.to_text().into_bytes();
    let mut again = Learner::new(false);
    again.remember(&text).unwrap();
    assert_eq!((again.device(), again.estimate().points), (Device::Disk, learner.estimate().points));
    for at in (0..text.len()).step_by((text.len() / 250).max(1)) {
        let mut bad = text.clone();
        bad[at] ^= 1;
        assert!(again.remember(&bad).is_err(), "byte {at}");
        assert!(again.remember(&text[..at]).is_err(), "cut at {at}");
    }
    let with = |from: &str, to: &str| {
        let body = String::from_utf8(text.clone()).unwrap().split_once('\n').unwrap().1.replacen(from, to, 1);
        let head = format!("sluice-device 1 crc32={:08x} bytes={}", crc32fast::hash(body.as_bytes()), body.len());
        Learner::new(false).remember(format!("{head}\n{body}").as_bytes()).unwrap_err().to_string()
    };
    assert!(
        with("\"slow\": ", "\"slow\": 9e99").contains("cannot be")
            || with("\"slow\": ", "\"slow\": -").contains("cannot be")
    );
    assert!(with("\"disk\"", "\"tape\"").contains("unknown variant"));
    assert_eq!(again.remember(b"#!/bin/sh\n"), Err(StateError::Other));
    let newer = String::from_utf8(text).unwrap().replacen("device 1", "device 2", 1);
    assert_eq!(again.remember(newer.as_bytes()), Err(StateError::Version(2)));
}

fn disks() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (4.0..11.0_f64, 4.0..20.0_f64).prop_map(|(turn, byte_ns)| Kind::Disk { turn_ns: turn * MS, byte_ns }),
        (2..6_usize).prop_map(|disks| Kind::Raid { disks }),
    ]
}

fn flashes() -> impl Strategy<Value = Kind> {
    (40.0..300.0_f64, 4..16_usize).prop_map(|(us, lanes)| Kind::Flash { read_ns: us * US, lanes })
}

fn caches() -> impl Strategy<Value = Cache> {
    prop_oneof![
        Just(Cache::None),
        (1..4096_usize, 60.0..200.0_f64).prop_map(|(regions, us)| Cache::Device { regions, hit_ns: us * US }),
        (1..4096_usize).prop_map(|regions| Cache::Page { regions }),
    ]
}

fn programs() -> impl Strategy<Value = Vec<Program>> {
    let len = (12..19_u32).prop_map(|bits| 1_u64 << bits);
    let op = prop_oneof![3 => Just(Op::Read), 1 => Just(Op::Write)];
    let one = (any::<bool>(), len, op)
        .prop_map(|(stream, len, op)| if stream { Program::Stream { len, op } } else { Program::Random { len, op } });
    prop::collection::vec(one, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In doubt nothing is said; what is said is right.
    #[test]
    fn no_device_is_taken_for_the_other_kind(
        disk in disks(), flash in flashes(), cache in caches(), programs in programs(),
        deviation in 0.0..0.5_f64, stalls in 0.0..0.02_f64, seed in any::<u64>(),
    ) {
        let noise = (deviation, stalls);
        let learner = learned(disk, cache, noise, &programs, 15.0, seed);
        prop_assert!(learner.device() != Device::Flash, "{:?}", learner.estimate());
        let learner = learned(flash, cache, noise, &programs, 1.0, seed);
        prop_assert!(learner.device() != Device::Disk, "{:?}", learner.estimate());
    }

    /// With reads here and there and something sequential, within a minute.
    #[test]
    fn a_disk_is_known_within_a_minute(
        disk in disks(), more in programs(), deviation in 0.0..0.3_f64, stalls in 0.0..0.01_f64, seed in any::<u64>(),
    ) {
        let programs: Vec<Program> = [STREAM, RANDOM].into_iter().chain(more).collect();
        let mut learner = Learner::new(false);
        let mut device = Synthetic::new(disk, Cache::None, (deviation, stalls), seed);
        match disk {
            // Of several arms that are at work together each looks faster than it is; a while with less tells.
            Kind::Raid { .. } => {
                for (programs, seconds) in [(&*programs, 35.0), (&[RANDOM], 20.0), (&[STREAM], 5.0)] {
                    device.lanes.iter_mut().for_each(|(free, _)| *free = 0.0);
                    work(&mut device, programs, seconds, &mut learner);
                }
            }
            _ => work(&mut device, &programs, 60.0, &mut learner),
        }
        prop_assert_eq!(learner.device(), Device::Disk, "{:?}", learner.estimate());
    }

    #[test]
    fn flash_is_known_within_seconds(
        flash in flashes(), more in programs(), deviation in 0.0..0.3_f64, stalls in 0.0..0.01_f64, seed in any::<u64>(),
    ) {
        let programs: Vec<Program> = [STREAM, RANDOM].into_iter().chain(more).collect();
        let learner = learned(flash, Cache::None, (deviation, stalls), &programs, 2.0, seed);
        prop_assert_eq!(learner.device(), Device::Flash, "{:?}", learner.estimate());
    }

    #[test]
    fn any_batches_are_taken(
        batches in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..200),
        engine in any::<u32>(), page_cache in any::<bool>(), text in "\\PC{0,60}",
    ) {
        let mut learner = Learner::new(page_cache);
        for (number, target, offset, len, start, end) in batches {
            learner.served(engine, &ServedBatch {
                number, op: Op::Read, file: FileId(offset % 3), target: TargetId(target), offset, len,
                start: Time(start), end: Time(end), beside_at_start: 0, beside_at_end: 0,
            });
        }
        let estimate = learner.estimate();
        prop_assert!((0.0..=1.0).contains(&estimate.confidence));
        Learner::new(false).remember(learner.to_text().as_bytes()).unwrap();
        let _ = Learner::new(false).remember(text.as_bytes());
    }
}
