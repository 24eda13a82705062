//! Checks that models make of their parameters.

/// A parameter's name, value, and the range that makes sense (both ends included).
pub(crate) type Range = (&'static str, f64, f64, f64);

/// Says which parameter is out of its range, if one is. Not-a-number is out of every range.
pub(crate) fn check(ranges: &[Range]) -> Result<(), String> {
    match ranges.iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
        Some((name, value, min, max)) => Err(format!("{name} is {value}, must be from {min} to {max}")),
        None => Ok(()),
    }
}

/// One step of splitmix64: spreads small seeds over all 64 bits.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
