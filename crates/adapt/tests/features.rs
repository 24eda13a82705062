//! Features of windows against naive ones, and the bounds of their tables.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;

use proptest::prelude::*;
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const K: u64 = 1 << 10;

fn request(file: u64, app: u32, op: Op, offset: u64, len: u32) -> Request {
    Request { cookie: 0, file: FileId(file), app: AppId(app), target: TargetId(0), op, offset, len }
}

fn read(file: u64, offset: u64, len: u32) -> Request {
    request(file, 0, Op::Read, offset, len)
}

fn known(stripe: u64) -> Settings {
    Settings { stripe, answers: Answers::Known, requests_min: 1, ..Settings::default() }
}

/// D and ΔT_S of one file as the thesis has them.
fn published(requests: &[(u64, Request)], stripe: u64) -> (f64, f64) {
    let far = |pair: &[(u64, Request)]| {
        let (before, after) = (&pair[0].1, &pair[1].1);
        after.offset.abs_diff(before.end()) as f64 / f64::from(before.len)
    };
    let sum: f64 = requests.windows(2).map(far).sum();
    let mut stripes: HashMap<u64, (u64, u64)> = HashMap::new();
    for (at, request) in requests {
        stripes.entry(request.offset / stripe).or_insert((*at, *at)).1 = *at;
    }
    let spans: u64 = stripes.values().map(|(first, last)| last - first).sum();
    (sum / (requests.len() - 1).max(1) as f64, spans as f64 / stripes.len() as f64)
}

proptest! {
    #[test]
    fn the_published_measures_are_those_of_the_thesis(
        steps in prop::collection::vec((0..50u64, 1..9u32, 0..500u64), 2..200),
        stripe in prop::sample::select(vec![4 * K, 64 * K, 10_000]),
    ) {
        let mut now = 1;
        let requests: Vec<(u64, Request)> = steps.iter().map(|&(block, len, pause)| {
            now += pause;
            (now, read(7, block * 4 * K, len * 1_000))
        }).collect();
        let mut watcher = Watcher::new(known(stripe), Time::ZERO);
        for (at, request) in &requests {
            watcher.arrived(Time(*at), request);
        }
        let window = watcher.close(Time(now + 1));
        let features = &window.files[0].features;
        let (distance, span) = published(&requests, stripe);
        prop_assert!((features.distance - distance).abs() < 1e-9 * distance.max(1.0));
        prop_assert!((features.stripe_span_ns - span).abs() < 1e-9 * span.max(1.0));
        prop_assert_eq!(features.requests, requests.len() as u64);
        prop_assert_eq!(features.sizes.iter().sum::<u32>() as usize, requests.len());
        prop_assert_eq!(features.distances.iter().sum::<u32>() as usize, requests.len() - 1);
    }

    /// Whatever comes, in whatever order, nothing overflows, and no request is lost without being counted.
    #[test]
    fn anything_is_followed(
        steps in prop::collection::vec((0..40u64, 0..100u32, prop::bool::ANY, prop::num::u64::ANY, prop::num::u32::ANY, 0..4u8), 1..300),
        tick in prop_oneof![Just(7u64), Just(u64::MAX / 400)],
    ) {
        let settings = Settings { files: 8, streams: 4, beginnings: true, stripes: 4, ..known(1) };
        let mut watcher = Watcher::new(settings, Time::ZERO);
        let mut counted = 0;
        for (n, &(file, app, is_read, offset, len, what)) in steps.iter().enumerate() {
            let op = if is_read { Op::Read } else { Op::Write };
            let request = request(file, app, op, offset, len);
            let now = Time(n as u64 * tick);
            match what {
                0 => watcher.completed(now, &request, Some(is_read)),
                1 => watcher.dispatched(now, 1),
                _ => {
                    watcher.arrived(now, &request);
                    counted += u64::from(len > 0);
                }
            }
        }
        let window = watcher.close(Time(u64::MAX));
        prop_assert_eq!(window.all.requests + window.evicted, counted);
        let by_file: u64 = window.files.iter().map(|file| file.features.requests).sum();
        prop_assert_eq!(by_file, window.all.requests);
        prop_assert!(window.files.len() <= 8);
        prop_assert!(window.idle.is_none_or(|idle| (0.0..=1.0).contains(&idle)));
        let empty = watcher.close(Time(u64::MAX));
        prop_assert!(empty.files.is_empty() && empty.all.requests == 0 && empty.evicted == 0);
    }
}

/// Four processes far from each other, and four that take turns: the same bytes, told apart.
#[test]
fn streams_and_reach_tell_contiguous_from_strided() {
    let run = |place: &dyn Fn(u64, u64) -> u64| {
        let mut watcher = Watcher::new(known(64 * K), Time::ZERO);
        for turn in 0..40 {
            for process in 0..4 {
                let now = Time(turn * 1_000_000 + process * 1_000 + 1);
                let request = read(1, place(turn, process), 16 << 10);
                watcher.arrived(now, &request);
                watcher.completed(Time(now.0 + 500_000), &request, None);
            }
        }
        watcher.close(Time(100_000_000)).files[0].features
    };
    let contiguous = run(&|turn, process| (process * 1_000_000 + turn) * 16 * K);
    let strided = run(&|turn, process| (turn * 4 + process) * 16 * K);
    assert_eq!((contiguous.streams, strided.streams), (4, 1));
    assert!(
        contiguous.reach > 1_000.0 && (0.9..1.1).contains(&strided.reach),
        "{} {}",
        contiguous.reach,
        strided.reach
    );
    assert_eq!(contiguous.continued, 156.0 / 160.0);
    assert_eq!((strided.stride, strided.distances[0]), (16 << 10, 159));
    assert_eq!(contiguous.answered, 1.0);
}

fn of_io_node() -> Settings {
    Settings { requests_min: 1, ..Settings::of_io_node() }
}

/// Numbers below `count` in an order of their own for each `seed`.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers.sort_by_key(|number| {
        // SplitMix64's mixing of a number (Steele et al. 2014).
        let mixed = (seed << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    });
    numbers
}

/// 600 processes of which a window sees a request of every third, at three data servers: neighbours that come back to front are
/// there where they take turns, and not where each has a part of its own, however often they go through it.
#[test]
fn neighbours_back_to_front_tell_turns_from_parts_when_a_window_sees_few_processes() {
    let (processes, rounds, len) = (600, 8, 384 * K);
    let run = |place: &dyn Fn(u64, u64) -> u64| {
        let mut watcher = Watcher::new(of_io_node(), Time::ZERO);
        let (mut now, mut shares) = (1, Vec::new());
        // The last windows are those of a second time.
        for round in 0..2 * rounds {
            for (n, process) in shuffled(processes, round + 1).into_iter().enumerate() {
                for target in 0..3 {
                    let request = Request {
                        target: TargetId(target),
                        ..request(1, 0, Op::Write, place(round % rounds, process) * len, len as u32)
                    };
                    watcher.arrived(Time(now), &request);
                    watcher.completed(Time(now + 1_000), &request, None);
                    now += 2_000;
                }
                if n % 200 == 199 {
                    let window = watcher.close(Time(now));
                    shares.push((window.all.preceding, window.all.continued));
                    assert_eq!((window.distinct_files, window.all.files), (1, 3));
                    assert_eq!(window.all.preceding_answered, window.all.preceding);
                    assert!(window.all.between <= window.all.preceding.min(window.all.continued));
                }
            }
        }
        shares
    };
    let turns = run(&|round, process| round * processes + process);
    // Parts do not touch, or the last request of one lies before the first of the next.
    let parts = run(&|round, process| process * (rounds + 1) + round);
    let mean = |shares: &[(f64, f64)]| shares.iter().map(|share| share.0).sum::<f64>() / shares.len() as f64;
    assert!((0.4..0.6).contains(&mean(&turns)), "{turns:?}");
    assert!(turns.iter().all(|(preceding, _)| *preceding > 0.05), "{turns:?}");
    // Three streams may want the same pair of places, and what lost its own counts as a beginning.
    assert!(parts.iter().all(|(preceding, _)| *preceding < 0.04), "{parts:?}");
    // But for these all streams have room, so that each request after the first continues one.
    assert!(parts[3..3 * rounds as usize].iter().all(|(_, continued)| *continued > 0.9), "{parts:?}");
}

/// Parts of one request that overtake each other are back to front too, but come before any of them is answered.
#[test]
fn parts_that_overtake_each_other_precede_what_is_not_answered() {
    let mut watcher = Watcher::new(of_io_node(), Time::ZERO);
    for call in 0..20 {
        let now = 1 + call * 10_000_000;
        let parts: Vec<Request> = [1, 0, 3, 2].map(|part| read(1, (call * 4 + part) * 128 * K, 128 << 10)).into();
        parts.iter().for_each(|part| watcher.arrived(Time(now), part));
        parts.iter().for_each(|part| watcher.completed(Time(now + 4_000_000), part, None));
    }
    let features = watcher.close(Time(300_000_000)).all;
    assert_eq!((features.preceding, features.preceding_answered), (0.5, 0.0));
    // All that precede also continue one, but for the very first.
    assert_eq!(features.between, 39.0 / 80.0);
}

#[test]
fn files_are_counted_once_wherever_they_are() {
    let mut watcher = Watcher::new(of_io_node(), Time::ZERO);
    for files in [1, 2, 5, 100, 600] {
        for n in 0..4 * files {
            let op = if n % 2 == 0 { Op::Read } else { Op::Write };
            let request = Request { target: TargetId((n / files) as u32), ..request(n % files, 0, op, n * 4096, 4096) };
            watcher.arrived(Time(n), &request);
        }
        let (found, files) = (f64::from(watcher.close(Time(4 * files)).distinct_files), files as f64);
        assert!((found - files).abs() <= files * 0.04, "{found} of {files}");
    }
    assert_eq!(watcher.close(Time(u64::MAX)).distinct_files, 0);
}

/// A large request comes as pieces before any of them is answered; small ones follow answers.
#[test]
fn bursts_are_what_was_asked_for_at_once() {
    let mut watcher = Watcher::new(known(32 * K), Time::ZERO);
    let pieces = |call: u64| (0..8).map(move |piece| read(1, call * 64 * K + piece * 8 * K, 8 << 10));
    for call in 0..10 {
        let now = 1 + call * 10_000_000;
        pieces(call).for_each(|piece| watcher.arrived(Time(now), &piece));
        pieces(call).for_each(|piece| watcher.completed(Time(now + 4_000_000), &piece, None));
    }
    let features = watcher.close(Time(200_000_000)).files[0].features;
    assert_eq!((features.burst_bytes, features.burst_aligned), (65_536.0, 1.0));
    assert_eq!(features.depth, Some(3.5));
    assert_eq!(features.think_ns, Some(6_000_000.0));
}

#[test]
fn idle_overlap_depth_and_hits_are_as_told() {
    let mut watcher = Watcher::new(known(64 * K), Time::ZERO);
    let (a, b) = (request(1, 1, Op::Read, 0, 4096), request(2, 2, Op::Write, 0, 4096));
    watcher.arrived(Time(100), &a);
    watcher.dispatched(Time(200), 1);
    watcher.arrived(Time(300), &b);
    watcher.completed(Time(400), &a, Some(true));
    watcher.dispatched(Time(500), 1);
    watcher.completed(Time(900), &b, Some(false));
    let window = watcher.close(Time(1_000)).clone();
    assert!((window.idle.unwrap() - 0.4).abs() < 1e-12, "{:?}", window.idle);
    assert!((window.overlap.unwrap() - 0.1).abs() < 1e-12);
    assert_eq!((window.depth, window.all.read_share), (Some(0.5), 0.5));
    assert_eq!(window.all.cache_hits, Some(0.5));
    assert_eq!((window.apps.len(), window.targets.len(), window.all.files), (2, 1, 2));
}

#[test]
fn arrivals_alone_tell_no_depth() {
    let mut watcher = Watcher::new(Settings { requests_min: 1, ..Settings::default() }, Time::ZERO);
    for n in 0..20 {
        watcher.arrived(Time(n * 1_000_000), &read(1, n * 4096, 4096));
    }
    let window = watcher.close(Time(20_000_000));
    let features = &window.files[0].features;
    assert_eq!((window.idle, window.overlap, features.depth), (None, None, None));
    assert_eq!((features.answered, features.burst_bytes), (1.0, 4096.0));
}

#[test]
fn nothing_is_allocated_while_it_runs() {
    let mut watcher = Watcher::new(Settings { files: 64, ..of_io_node() }, Time::ZERO);
    let mut allocations = 0;
    for round in 0..3 {
        let before = ALLOCATIONS.with(Cell::get);
        for n in 0..20_000u64 {
            let request = request(n % 300, (n % 100) as u32, Op::Read, n * 4096, 4096);
            let now = Time(round * 1_000_000_000 + n * 1_000);
            watcher.arrived(now, &request);
            watcher.dispatched(now, 1);
            watcher.completed(Time(now.0 + 10), &request, None);
        }
        watcher.close(Time((round + 1) * 1_000_000_000));
        allocations += ALLOCATIONS.with(Cell::get) - before;
    }
    assert_eq!(allocations, 0);
}

/// Between two windows a follower is with whoever looks at what it has seen, and hears of nothing.
#[test]
fn what_ends_unheard_does_not_count_for_ever() {
    let mut watcher = Watcher::new(known(64 << 10), Time::ZERO);
    let mut now = Time::ZERO;
    let mut tick = || {
        now = now.after(100_000);
        now
    };
    for round in 0..50_u64 {
        watcher.resume(tick(), 0, 0);
        for n in 0..20 {
            let request = read(1, (round * 21 + n) << 14, 1 << 14);
            watcher.arrived(tick(), &request);
            watcher.dispatched(tick(), 1);
            watcher.completed(tick(), &request, None);
        }
        // Its end is not told.
        watcher.arrived(tick(), &read(1, (round * 21 + 20) << 14, 1 << 14));
        watcher.dispatched(tick(), 1);
        let window = watcher.close(tick());
        assert_eq!((window.depth, window.files[0].features.depth), (Some(0.0), Some(0.0)), "round {round}");
        assert!(window.idle.is_some_and(|idle| idle > 0.5), "round {round}: {:?}", window.idle);
    }
    // What is still there goes on counting: each of two files has half of it.
    watcher.resume(tick(), 0, 0);
    (0..64).for_each(|n| watcher.arrived(tick(), &read(2 + n % 2, n << 14, 1 << 14)));
    watcher.dispatched(tick(), 8);
    watcher.close(tick());
    watcher.resume(tick(), 24, 8);
    watcher.arrived(tick(), &read(2, 64 << 14, 1 << 14));
    let window = watcher.close(tick());
    assert_eq!((window.depth, window.files[0].features.depth, window.idle), (Some(32.0), Some(16.0), Some(0.0)));
}

/// Whoever begins to listen hears of the ends of what it never heard come: these must not be taken for those of what came since.
#[test]
fn what_came_unheard_takes_nothing_from_what_is_heard() {
    let (mut watcher, mut now) = (Watcher::new(known(64 << 10), Time::ZERO), Time::ZERO);
    let numbered = |n: u64| Request { cookie: n, ..read(1, n << 14, 1 << 14) };
    watcher.resume(now, 0, 16);
    // Sixteen programs, of which each asks again when it is answered.
    for n in 0..400 {
        now = now.after(100_000);
        watcher.completed(now, &numbered(n), None);
        watcher.arrived(now, &numbered(n + 16));
        watcher.dispatched(now, 1);
        if n == 99 {
            watcher.close(now);
        }
    }
    let window = watcher.close(now);
    assert_eq!((window.depth, window.files[0].features.depth), (Some(15.0), Some(15.0)));
}

/// More applications than are told apart: one of those that share a number gets another while it has a request under way.
#[test]
fn whatever_number_an_application_gets_its_answers_count_for_it() {
    let mut watcher = Watcher::new(known(64 << 10), Time::ZERO);
    let of = |app: u32| request(u64::from(app), app, Op::Read, 0, 4096);
    (0..65).for_each(|app| watcher.arrived(Time(1), &of(app)));
    watcher.completed(Time(2), &of(0), None);
    watcher.close(Time(3));
    watcher.arrived(Time(4), &of(64));
    (0..2).for_each(|_| watcher.completed(Time(5), &of(64), None));
    (1..64).for_each(|app| watcher.completed(Time(5), &of(app), None));
    watcher.close(Time(6));
    watcher.arrived(Time(6), &of(5));
    watcher.completed(Time(9), &of(5), None);
    assert_eq!(watcher.close(Time(10)).overlap, Some(0.0), "one application alone");
}

/// Two streams that go on after half of all the time that there is.
#[test]
fn times_as_long_as_they_can_be_overflow_nothing() {
    let mut watcher = Watcher::new(known(64 << 10), Time::ZERO);
    for at in [1, u64::MAX / 4 * 3] {
        for file in 0..2 {
            let begin = if at > 1 { 4096 } else { 0 };
            [0, 1 << 30].iter().for_each(|offset| watcher.arrived(Time(at), &read(file, offset + begin, 4096)));
        }
    }
    let window = watcher.close(Time(u64::MAX));
    assert!(window.all.stream_gap_ns > 1e18 && window.all.boundary_gap > 0.0, "{:?}", window.all);
}
