//! Which places were touched: what a cache may have.

use sluice_core::{FileId, TargetId};

/// Bytes of a region, as a power of two.
const REGION_BITS: u32 = 21;
/// Bits of the set, as a power of two, and how many of them may be set: beyond that too much would seem touched, and nothing is fresh.
const BITS: u32 = 18;
const FULL: u32 = (1 << BITS) / 3;
/// Regions of a batch that are looked at.
const REGIONS_MAX: u64 = 8;

/// A set of regions, which may have some that are not in it: a Bloom filter (B. H. Bloom, CACM 13(7), 1970) of two functions. Some
/// 40,000 regions, or 80 GiB, are told apart.
#[derive(Clone)]
pub(super) struct Touched {
    bits: Box<[u64]>,
    set: u32,
}

impl std::fmt::Debug for Touched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Touched({} bits)", self.set)
    }
}

/// The finaliser of splitmix64 (Steele et al., OOPSLA 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Touched {
    pub(super) fn new() -> Touched {
        Touched { bits: vec![0; 1 << (BITS - 6)].into(), set: 0 }
    }

    /// Whether neither a place nor the region before was touched, which are touched from now on.
    pub(super) fn is_fresh_and_touch(&mut self, file: FileId, target: TargetId, offset: u64, len: u64) -> bool {
        let of_file = mix(file.0 ^ (u64::from(target.0) << 40).wrapping_add(0x9e37_79b9_7f4a_7c15));
        let (first, last) = (offset >> REGION_BITS, offset.saturating_add(len.max(1) - 1) >> REGION_BITS);
        let mut is_fresh = self.set < FULL && !self.has(of_file, first.wrapping_sub(1));
        for region in first..=last.min(first + REGIONS_MAX) {
            is_fresh &= !self.has(of_file, region);
            self.touch(of_file, region);
        }
        is_fresh
    }

    fn places(of_file: u64, region: u64) -> [u32; 2] {
        let hash = mix(of_file.wrapping_add(region));
        [hash, hash >> 32].map(|part| part as u32 & ((1 << BITS) - 1))
    }

    fn has(&self, of_file: u64, region: u64) -> bool {
        Touched::places(of_file, region).iter().all(|at| self.bits[(at >> 6) as usize] >> (at & 63) & 1 == 1)
    }

    fn touch(&mut self, of_file: u64, region: u64) {
        for at in Touched::places(of_file, region) {
            let word = &mut self.bits[(at >> 6) as usize];
            self.set += u32::from(*word >> (at & 63) & 1 == 0);
            *word |= 1 << (at & 63);
        }
    }
}
