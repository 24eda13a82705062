//! The engine does not allocate once it is made: counted, for every algorithm, under a mixed load.

use sluice_core::{
    Anticipation, AppId, Batch, Engine, EngineConfig, FileId, GatePlan, GateSlice, LOCALITY_APPS, LocalityConfig, Op,
    Outcome, PolicyConfig, Request, TargetId, Time, policy::table,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });

struct Counting;

// SAFETY: every call is passed on unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_while_running() {
    for (info, gated) in table().iter().flat_map(|info| [(info, false), (info, true)]) {
        let policy = PolicyConfig::parse(info.name).unwrap();
        let anticipation = Some(Anticipation { positioning_ns: 1_000, near_bytes: 4_096, slice_ns: 50_000 });
        let config = EngineConfig { capacity: 512, files_max: 32, events: 64, anticipation, ..EngineConfig::default() };
        let mut engine = Engine::new(config, &policy, Time(1)).unwrap();
        if gated {
            let slice = |apps: &[u32], len_ns| GateSlice { apps: apps.iter().copied().map(AppId).collect(), len_ns };
            let slices = vec![slice(&[1, 2], 300_000), slice(&[], 200_000), slice(&[5], 100_000)];
            let (from, expires, idle_ns) = (Time::ZERO, Time(u64::MAX), Some(20_000));
            engine.set_gate(Time(1), Some(GatePlan { epoch: Time(7), from, expires, slices, idle_ns })).unwrap();
            engine.watch_locality(Some(LocalityConfig { placement: None, far_bytes: 1 << 30 }));
        }
        let (mut batch, mut apps) = (Batch::with_capacity(512), Vec::with_capacity(LOCALITY_APPS));
        let (mut now, mut state) = (Time(1), 7_u64);
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut turn = |engine: &mut Engine, requests: u32| {
            for n in 0..requests {
                now = now.after(random(50_000));
                let request = Request {
                    cookie: n.into(),
                    file: FileId(random(40)),
                    app: AppId(random(8) as u32),
                    target: TargetId(random(4) as u32),
                    op: if random(4) == 0 { Op::Write } else { Op::Read },
                    offset: random(200) * 4096,
                    len: 4096 * random(3) as u32,
                };
                let _ = engine.submit(now, request);
                if random(3) == 0 {
                    let _ = engine.locality(&mut apps);
                    while engine.poll_dispatch(now, &mut batch) {
                        for part in batch.parts() {
                            engine.complete(now, part.id, Outcome::ok(part.request.len)).unwrap();
                        }
                    }
                }
            }
        };
        turn(&mut engine, 2_000); // applications get their counters when they first complete
        let before = CALLS.get();
        turn(&mut engine, 20_000);
        assert_eq!(CALLS.get() - before, 0, "{}, behind a gate: {gated}", info.name);
    }
}
