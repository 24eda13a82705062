//! Makes a failing sequence as short as it can be made.

use crate::op::Op;

/// Runs that may be spent on it.
const TRIES: usize = 600;

/// A shortest list found that still fails: parts are left out, smaller and smaller ones, then numbers made smaller.
/// `fails` runs a list from the start.
pub fn shortest(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut best = ops.to_vec();
    let mut tries = 0;
    let mut fails = |list: &[Op]| {
        tries += 1;
        tries <= TRIES && fails(list)
    };
    let mut part = best.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let before = best.len();
        while at < best.len() {
            let mut shorter = best.clone();
            shorter.drain(at..(at + part).min(best.len()));
            if fails(&shorter) {
                best = shorter;
            } else {
                at += part;
            }
        }
        // Whatever was left out may make others superfluous that were tried before it.
        part = if part == 1 && best.len() < before { 1 } else { part / 2 };
    }
    for place in 0..best.len() {
        let op = best[place];
        for simpler in [
            Op { at: 0, ..op },
            Op { at: op.at % 4096, ..op },
            Op { len: 1, ..op },
            Op { len: op.len.min(4096), ..op },
            Op { at: 0, len: 1, ..op },
        ] {
            let mut list = best.clone();
            list[place] = simpler;
            if simpler != best[place] && simpler.at <= best[place].at && simpler.len <= best[place].len && fails(&list)
            {
                best = list;
            }
        }
    }
    best
}
