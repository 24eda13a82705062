//! Memory of what is learned, as the allocator counts it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// One million requests in runs of so many. Bytes that stay, that it says stay, and most at a time, with a forecast made.
fn learn(run: u64) -> (usize, u64, usize) {
    const MS: u64 = 1_000_000;
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let mut learner = Learner::new(LearnLimits::default());
    let files = 1_000_000 / run;
    for file in 0..files {
        // Three files of each series.
        let name: String = format!("{:05}", file / 3).bytes().map(|digit| char::from(digit + b'a' - b'0')).collect();
        let path: Arc<[u8]> = format!("project/{name}/out.{file}").into_bytes().into();
        for n in 0..run {
            let time = (file * run + n) * MS / 10;
            learner.seen(
                &path,
                &Entry { time, file: 1, app: 0, target: 0, op: Op::Write, offset: n * 65_536, len: 65_536 },
            );
        }
        learner.settle(file * run * MS / 10);
    }
    learner.settle(u64::MAX);
    let stays = NOW.load(Ordering::Relaxed) - before;
    let learned = learner.learned();
    assert!(learned.requests <= 1 << 20 && learned.requests > 900_000, "{learned:?}");
    let _ = learner.forecast(Settings::default());
    (stays, learned.bytes, MOST.load(Ordering::Relaxed) - before)
}

#[test]
fn a_million_requests_take_what_is_documented() {
    for (run, bytes_max) in [(100, 32.0), (1_000, 26.0), (100_000, 25.0)] {
        let (stays, says, most) = learn(run);
        let (each, most) = (stays as f64 / 1e6, most as f64 / 1e6);
        println!("runs of {run}: {each:.1} bytes a request that stay, {most:.1} at most while a forecast is made");
        assert!(each <= bytes_max, "{run}: {each}");
        assert!((says as f64 / stays as f64 - 1.0).abs() < 0.1, "it says {says}, it is {stays}");
        assert!(most <= 90.0, "{run}: {most}");
    }
}
