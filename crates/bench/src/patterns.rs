//! The papers' access patterns as entries of traces.

use sluice_core::Op;
use sluice_trace::Entry;

/// The patterns.
pub(super) const PATTERNS: [&str; 3] = ["strided", "contiguous", "file-per-process"];
/// Applications.
const APPS: u64 = 4;
/// Processes of each.
const PROCESSES: u64 = 16;
const LEN: u64 = 32 << 10;

/// `count` writes of a pattern; with each seed the processes come in another order, at other times.
pub(super) fn entries(pattern: &'static str, count: u64, seed: u64) -> impl Iterator<Item = Entry> {
    let all = APPS * PROCESSES;
    let (mut random, mut time) = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, 0);
    let each = count.div_ceil(all);
    (0..count).map(move |n| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Between arrivals up to 2 ms, to the nanosecond: nothing a compressor could guess.
        time += random % 2_000_000;
        // In each round each process once, from a random one on.
        let process = (n + (random >> 60) * u64::from(n % all == 0)) % all;
        let (turn, app, rank) = (n / all, process / PROCESSES, process % PROCESSES);
        let (file, block) = match pattern {
            "strided" => (app, turn * PROCESSES + rank),
            "contiguous" => (app, rank * each + turn),
            _ => (process, turn),
        };
        let (target, block) = (block / 2 % 4, block / 8 * 2 + block % 2);
        Entry {
            time,
            file: file as u32,
            app: app as u32,
            target: target as u32,
            op: Op::Write,
            offset: block * LEN,
            len: LEN as u32,
        }
    })
}
