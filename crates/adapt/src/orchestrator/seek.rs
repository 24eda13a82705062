//! How long a device takes to get so far: `SeekTime` of `SL`.

/// Times to positions, by distance.
#[derive(Clone, PartialEq, Debug)]
pub struct SeekTimes(Vec<(f64, f64)>);

impl SeekTimes {
    /// From pairs of a distance in bytes and nanoseconds, at least one.
    ///
    /// `None` if there is none.
    #[must_use]
    pub fn new(mut points: Vec<(u64, u64)>) -> Option<SeekTimes> {
        points.sort_unstable();
        points.dedup_by_key(|point| point.0);
        let points: Vec<(f64, f64)> = points.into_iter().map(|(bytes, ns)| (bytes as f64, ns as f64)).collect();
        (!points.is_empty()).then_some(SeekTimes(points))
    }

    /// A device of which only a mean is known.
    #[must_use]
    pub fn constant(ns: u64) -> SeekTimes {
        SeekTimes(vec![(0.0, ns as f64)])
    }

    /// A hard disk of 7,200 rotations a minute of which nothing else is known: within 128 KiB the medium passes by anyway; farther
    /// away it has to come round (half a rotation, 4.2 ms), and the arm needs 1 to 9 ms beside that. On devices without an arm that
    /// is wrong; there a plan brings nothing, and is refused after it was tried.
    #[must_use]
    pub fn hard_disk() -> SeekTimes {
        let points = [(128 << 10, 0), (1 << 20, 4_200), (64 << 20, 5_200), (1 << 30, 6_200), (64 << 30, 9_000)];
        let mut points: Vec<(f64, f64)> = points.map(|(bytes, us): (u64, u64)| (bytes as f64, us as f64 * 1e3)).into();
        points.push((1e12, 13e6));
        SeekTimes(points)
    }

    /// A device of which it is known how much longer a request takes at a random place in so many bytes than behind the one before,
    /// as profiles say it: the curve of [`SeekTimes::hard_disk`] with other times, a third of the bytes being the mean distance.
    #[must_use]
    pub fn measured(mean_ns: u64, span_bytes: u64) -> SeekTimes {
        let SeekTimes(mut points) = SeekTimes::hard_disk();
        let usual = SeekTimes(points.clone()).ns((span_bytes as f64 / 3.0).max(1_048_576.0));
        points.iter_mut().for_each(|point| point.1 *= mean_ns as f64 / usual as f64);
        SeekTimes(points)
    }

    /// The time in nanoseconds for a distance in bytes: linear between points, constant beyond them. O(log points).
    #[must_use]
    pub fn ns(&self, distance: f64) -> u64 {
        let points = &self.0;
        let at = points.partition_point(|point| point.0 <= distance);
        let ns = match (at.checked_sub(1).map(|before| points[before]), points.get(at)) {
            (Some((from, a)), Some(&(to, b))) => a + (b - a) * (distance - from) / (to - from),
            (Some((_, ns)), None) => ns,
            (None, Some(&(_, ns))) => ns,
            (None, None) => 0.0,
        };
        ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_interpolated() {
        let times = SeekTimes::new(vec![(100, 10), (0, 0), (200, 14), (100, 99)]).unwrap();
        assert_eq!([0.0, 50.0, 100.0, 150.0, 1e9].map(|d| times.ns(d)), [0, 5, 10, 12, 14]);
        let disk = SeekTimes::hard_disk();
        assert_eq!([0.0, 65_536.0, 1_048_576.0, 1e15].map(|d| disk.ns(d)), [0, 0, 4_200_000, 13_000_000]);
        let flash = SeekTimes::measured(60_000, 3 << 30);
        assert_eq!([0.0, 65_536.0, (1_u64 << 30) as f64].map(|d| flash.ns(d)), [0, 0, 60_000]);
        assert_eq!((SeekTimes::new(Vec::new()), SeekTimes::constant(7).ns(1e12)), (None, 7));
    }
}
