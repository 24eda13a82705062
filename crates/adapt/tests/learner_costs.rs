//! What learning costs: memory, as the allocator counts it, and time, which is printed (`cargo test -- --nocapture`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sluice_adapt::predictor::{LearnLimits, Learner, Settings};
use sluice_core::Op;
use sluice_trace::Entry;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MS: u64 = 1_000_000;

/// A file of so many requests.
fn file(learner: &mut Learner, number: u64, requests: u64) {
    // Three files of each series.
    let name: String = format!("{:05}", number / 3).bytes().map(|digit| char::from(digit + b'a' - b'0')).collect();
    let path: Arc<[u8]> = format!("project/{name}/out.{number}").into_bytes().into();
    for n in 0..requests {
        let (time, offset) = ((number * requests + n) * MS / 10, n * 65_536);
        learner.seen(&path, &Entry { time, file: 1, app: 0, target: 0, op: Op::Write, offset, len: 65_536 });
    }
    learner.settle(number * requests * MS / 10);
}

/// A million requests in files of so many.
fn million(requests: u64) -> Learner {
    let mut learner = Learner::new(LearnLimits::default());
    (0..1_000_000 / requests).for_each(|number| file(&mut learner, number, requests));
    learner.settle(u64::MAX);
    let learned = learner.learned();
    assert!(learned.requests <= 1 << 20 && learned.requests > 900_000, "{learned:?}");
    learner
}

#[test]
fn a_million_requests_take_what_is_documented() {
    for (requests, bytes_max) in [(100, 32.0), (1_000, 26.0), (100_000, 25.0)] {
        let before = NOW.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let begin = Instant::now();
        let mut learner = million(requests);
        let seen = begin.elapsed();
        let stays = NOW.load(Ordering::Relaxed) - before;
        let says = learner.learned().bytes;
        let begin = Instant::now();
        let all = learner.forecast(Settings::default());
        let whole = begin.elapsed();
        // One of the series goes on.
        let begin = Instant::now();
        file(&mut learner, 2, requests);
        learner.settle(u64::MAX);
        let part = learner.forecast(Settings::default());
        let one = begin.elapsed();
        assert_eq!(all.requests().len(), part.requests().len());
        let (each, most) = (stays as f64 / 1e6, (MOST.load(Ordering::Relaxed) - before) as f64 / 1e6);
        println!(
            "files of {requests}: {each:.1} bytes a request that stay, {most:.1} at most; {:.0} ns a request; all combined \
             in {whole:.1?}, with one file more in {one:.1?}",
            seen.as_nanos() as f64 / 1e6
        );
        assert!(each <= bytes_max, "{requests}: {each}");
        assert!((says as f64 / stays as f64 - 1.0).abs() < 0.1, "it says {says}, it is {stays}");
        assert!(most <= 90.0, "{requests}: {most}");
    }
}
