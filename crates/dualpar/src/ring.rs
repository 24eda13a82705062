//! Which server of the cache has a key: consistent hashing, so that a server that is lost or added moves only its share.

/// Points of each server on the ring.
const POINTS: u32 = 64;

/// Servers on a ring of hashes.
#[derive(Debug)]
pub struct Ring {
    points: Vec<(u64, usize)>,
}

impl Ring {
    /// Of servers with these names; a name has the same place on every ring.
    #[must_use]
    pub fn new<S: AsRef<str>>(servers: &[S]) -> Ring {
        let mut points: Vec<(u64, usize)> = servers
            .iter()
            .enumerate()
            .flat_map(|(index, name)| {
                (0..POINTS).map(move |point| (hash(format!("{}#{point}", name.as_ref()).as_bytes()), index))
            })
            .collect();
        points.sort_unstable();
        Ring { points }
    }

    /// Index of the server that has `key`; none if there are no servers. O(log n).
    #[must_use]
    pub fn server(&self, key: &[u8]) -> Option<usize> {
        let at = self.points.partition_point(|&(point, _)| point < hash(key));
        self.points.get(at).or(self.points.first()).map(|&(_, server)| server)
    }
}

/// FNV-1a, its bits mixed once more (the finaliser of MurmurHash3): keys that differ in the last digits spread.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    for (shift, factor) in [(33, 0xff51_afd7_ed55_8ccd_u64), (33, 0xc4ce_b9fe_1a85_ec53)] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}
