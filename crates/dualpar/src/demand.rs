//! Whether chunks go through the cache.
//!
//! A node's processes hand over what they have read in their memory; the cache is for what other nodes have read, or what this one
//! has read before. Where nobody ever finds anything there, putting it there is in vain, and on a network it takes as long as reading
//! it: then only every sixteenth chunk goes there, the same ones everywhere, until those are found.

/// Of so many chunks one is put there and asked for in any case.
pub const SAMPLE: u64 = 16;
/// Less than this part of what is asked for must be found for the rest to stay away.
const WORTH: u32 = 4;

/// What a node has asked the cache for, and found: what was long ago counts less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    asked: u32,
    found: u32,
}

impl Demand {
    /// Whether this chunk goes through the cache.
    #[must_use]
    pub fn wants(&self, chunk: u64) -> bool {
        chunk.is_multiple_of(SAMPLE) || self.found.saturating_mul(WORTH) >= self.asked
    }

    /// A batch asked for so many chunks, and found so many of them.
    #[must_use]
    pub fn after(self, asked: usize, found: usize) -> Demand {
        let of = |before: u32, now: usize| (before / 2).saturating_add(u32::try_from(now).unwrap_or(u32::MAX));
        if asked == 0 { self } else { Demand { asked: of(self.asked, asked), found: of(self.found, found) } }
    }

    /// As one number.
    #[must_use]
    pub fn pack(self) -> u64 {
        u64::from(self.asked) << 32 | u64::from(self.found)
    }

    /// What [`Demand::pack`] gave.
    #[must_use]
    pub fn unpack(packed: u64) -> Demand {
        Demand { asked: (packed >> 32) as u32, found: packed as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_finds_stays_away_until_the_sample_is_found() {
        let all = |demand: Demand| (0..64).filter(|&chunk| demand.wants(chunk)).count();
        let new = Demand::default();
        assert_eq!(all(new), 64);
        let vain = new.after(100, 0);
        assert_eq!(all(vain), 4);
        assert_eq!(all(vain.after(0, 0)), 4);
        assert_eq!(all(vain.after(100, 100)), 64);
        assert_eq!(all(vain.after(100, 1)), 4);
        assert_eq!(Demand::unpack(vain.pack()), vain);
    }
}
