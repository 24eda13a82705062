//! Where files lie on a device.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are mixed by one multiplication: they are numbers that no stranger chooses.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A file, and which of its extents.
type Key = (u64, u64);

/// Which extent of a device holds which extent of which file: one after the other, in the order of first use, as a file system
/// that is not yet fragmented would have them. On a full device each new extent takes the place of the oldest.
pub struct Places {
    of: HashMap<Key, u64, BuildHasherDefault<Mixer>>,
    /// The reverse.
    owner: Vec<Key>,
    /// Most requests stay in the extent of the one before.
    last: Option<(Key, u64)>,
    next: u64,
    extent: u64,
    extents: u64,
}

impl Places {
    /// A device without files, with so many bytes, divided into extents of so many bytes each.
    ///
    /// # Panics
    /// If an extent has no bytes.
    #[must_use]
    pub fn new(capacity_bytes: u64, extent_bytes: u64) -> Places {
        let extents = (capacity_bytes / extent_bytes).max(1);
        Places { of: HashMap::default(), owner: Vec::new(), last: None, next: 0, extent: extent_bytes, extents }
    }

    /// Where on the device a byte of a file is. O(1), expected; memory grows with the extents used.
    #[must_use]
    pub fn address(&mut self, file: u64, offset: u64) -> u64 {
        let key = (file, offset / self.extent);
        let place = match self.last {
            Some((last, place)) if last == key => place,
            _ => self.of.get(&key).copied().unwrap_or_else(|| self.give(key)),
        };
        self.last = Some((key, place));
        place * self.extent + offset % self.extent
    }

    /// Bytes from an offset of a file to the end of its extent: so many are in one piece. At least 1.
    #[must_use]
    pub const fn contiguous(&self, offset: u64) -> u64 {
        self.extent - offset % self.extent
    }

    fn give(&mut self, key: Key) -> u64 {
        let place = self.next;
        self.next = (self.next + 1) % self.extents;
        match self.owner.get_mut(place as usize) {
            Some(owner) => {
                let old = std::mem::replace(owner, key);
                self.of.remove(&old);
            }
            None => self.owner.push(key),
        }
        self.of.insert(key, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_have_one_owner(touches in proptest::collection::vec((0u64..4, 0u64..50), 1..100)) {
            let mut places = Places::new(75, 10);
            for (file, offset) in touches {
                let address = places.address(file, offset);
                prop_assert!(address < 70);
                prop_assert_eq!(address % 10, offset % 10);
                prop_assert_eq!(places.address(file, offset), address);
                prop_assert_eq!(places.contiguous(offset), 10 - offset % 10);
                prop_assert!(places.of.len() <= 7);
                prop_assert_eq!(places.of.values().filter(|p| **p == address / 10).count(), 1);
            }
        }
    }

    #[test]
    fn extents_follow_each_other_in_the_order_of_first_use() {
        let mut places = Places::new(30, 10);
        assert_eq!([(5, 0), (6, 12), (5, 9), (5, 25)].map(|(file, at)| places.address(file, at)), [0, 12, 9, 25]);
        // Full: the oldest goes, and gets the place of the next oldest when it comes again.
        assert_eq!([(7, 3), (5, 0), (7, 0)].map(|(file, at)| places.address(file, at)), [3, 10, 0]);
    }
}
