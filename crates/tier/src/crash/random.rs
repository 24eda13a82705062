//! Random numbers.

/// G. L. Steele, D. Lea, C. H. Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One below `bound`, 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.number() % bound }
    }

    /// True once in `of` times.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
