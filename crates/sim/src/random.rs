//! Random numbers that are the same on every machine: splitmix64 (Steele, Lea and Flood, 2014).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream with that number of those that belong to a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        Random(random.next() ^ stream)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0. The bias is below 2^-32 for the bounds used here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with a probability of `millionths` in a million.
    pub(crate) fn chance(&mut self, millionths: u64) -> bool {
        millionths > 0 && self.below(1_000_000) < millionths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_numbers_spread() {
        let (mut a, mut b) = (Random::new(1, 0), Random::new(1, 1));
        assert_ne!(a.next(), b.next());
        let mut seen = [0u32; 10];
        (0..10_000).for_each(|_| seen[a.below(10) as usize] += 1);
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
        assert_eq!(a.below(0), 0);
        let hits = (0..10_000).filter(|_| a.chance(100_000)).count();
        assert!((850..1150).contains(&hits), "{hits}");
    }
}
