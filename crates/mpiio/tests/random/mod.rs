//! What tests draw from (SplitMix64, Steele et al. 2014).

/// Numbers from 0 to 1.
pub fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}
