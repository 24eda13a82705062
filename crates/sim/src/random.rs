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

/// How times vary: factors with a log-normal distribution and a mean of 1, one for a whole run and one for each request.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    random: Random,
    /// Standard deviation of the logarithm of a request's factor.
    request: f64,
    run: f64,
}

impl Noise {
    /// The noise with that number of those that belong to a seed; none if nothing varies.
    pub(crate) fn new(seed: u64, stream: u64, (request, run): (f64, f64)) -> Option<Noise> {
        let mut random = Random::new(seed, stream);
        let run = log_normal(&mut random, run);
        (request > 0.0 || run != 1.0).then_some(Noise { random, request, run })
    }

    /// A time with its noise.
    pub(crate) fn of(&mut self, ns: u64) -> u64 {
        (ns as f64 * self.run * log_normal(&mut self.random, self.request)) as u64
    }

    /// The factor of the run.
    pub(crate) fn run(&self) -> f64 {
        self.run
    }
}

fn log_normal(random: &mut Random, sigma: f64) -> f64 {
    if sigma == 0.0 { 1.0 } else { exp(sigma * normal(random) - sigma * sigma / 2.0) }
}

/// The sum of twelve uniform numbers, less its mean: nearly normal, variance 1, within 6 of 0.
fn normal(random: &mut Random) -> f64 {
    let lanes = |word: u64| (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
    let sum: u64 = (0..3).map(|_| lanes(random.next())).sum();
    (sum as f64 + 6.0) / 65_536.0 - 6.0
}

/// The exponential function of moderate numbers with the same last bit on every machine, which libraries' do not promise.
fn exp(x: f64) -> f64 {
    let x = x.clamp(-50.0, 50.0);
    let twos = (x * std::f64::consts::LOG2_E).round();
    let rest = x - twos * std::f64::consts::LN_2;
    let series = (1..=14).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    series * f64::from_bits(((1023 + twos as i64) as u64) << 52)
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
        assert!(Noise::new(1, 1, (0.0, 0.0)).is_none());
        let hits = (0..10_000).filter(|_| a.chance(100_000)).count();
        assert!((850..1150).contains(&hits), "{hits}");
    }

    #[test]
    fn noise_has_a_mean_of_one_and_the_wanted_spread() {
        for x in [-20.0, -1.0, -0.1, 0.0, 0.3, 1.0, 7.5, 30.0] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-12, "{x}");
        }
        let mut noise = Noise::new(3, 1, (0.2, 0.0)).unwrap();
        let factors: Vec<f64> = (0..50_000).map(|_| noise.of(1_000_000) as f64 * 1e-6).collect();
        let mean = factors.iter().sum::<f64>() / 5e4;
        let logs: Vec<f64> = factors.iter().map(|factor| factor.ln()).collect();
        let centre = logs.iter().sum::<f64>() / 5e4;
        let sigma = (logs.iter().map(|log| (log - centre) * (log - centre)).sum::<f64>() / 5e4).sqrt();
        assert!((mean - 1.0).abs() < 0.01 && (sigma - 0.2).abs() < 0.005, "{mean} {sigma}");
        let runs: Vec<f64> = (0..100).map(|seed| Noise::new(seed, 1, (0.0, 0.1)).unwrap().run()).collect();
        assert!(runs.iter().any(|run| *run > 1.1) && runs.iter().any(|run| *run < 0.9));
    }
}
